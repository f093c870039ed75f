"""Single functions over drawn dims of drawn shapes, among which cliffs are looked for: ``program(17)`` is the same one each time.

Programs of users' idioms have few shapes; what a kernel's tiles are hangs on sizes, how many dims lie within and outside those that are reduced, and
on which of them is odd or short. One dim is the number of rows, which makes the input as large as it is to be.
"""

from __future__ import annotations

import math
import random

from benchmarks.cliff_programs import FEW, MANY, Input, Program

#: sizes of dims but that of the rows: powers of two, odd ones, and what models have
SIZES = (
    2,
    3,
    4,
    5,
    7,
    8,
    12,
    16,
    24,
    32,
    49,
    64,
    77,
    100,
    128,
    196,
    200,
    256,
    384,
    512,
    768,
    1000,
    1024,
    2048,
    3136,
    4096,
)
#: elements of one row at most
ROW = 1 << 16
#: ``d``: one dim or two, ``k``: the last of these
FUNCTIONS = (
    "x0.sum({d})", "x0.amax({d})", "torch.var_mean(x0, {d})", "x0 - x0.mean({d}, keepdim=True)", "x0 * torch.rsqrt(x0.square().sum({d}, keepdim=True) + 1e-6)",
    "(x0 - x0.mean({d}, keepdim=True)) * torch.rsqrt(x0.var({d}, keepdim=True) + 1e-5)", "x0.softmax({k})", "x0.logsumexp({d})", "x0.argmax({k})", "x0.cumsum({k})",
    "x0.transpose({k}, -1).contiguous() + 1", "x0.sum({d}), x0.amax({k})", "x0 * x0.select({k}, 0).unsqueeze({k})", "x0.flip({d}) * 2", "x0.roll(3, {k}) - x0",
    "torch.stack((x0, -x0), {k})",
)  # fmt: skip


def program(seed: int) -> Program:
    """The function of a seed, of 16-bit or 32-bit floats of two to four dims."""
    chance = random.Random(seed)
    while True:
        shape = [chance.choice(SIZES) for _ in range(chance.choice((2, 3, 3, 4)))]
        shape[chance.randrange(len(shape))] = 0
        row = 1
        for size in shape:
            row *= size or 1
        dims = sorted(chance.sample(range(len(shape)), chance.choice((1, 1, 2))))
        if row <= ROW and len(dims) < len(shape):
            break
    line = chance.choice(FUNCTIONS).format(d=tuple(dims), k=dims[-1])
    inputs = (Input(chance.choice(("f32", "bf")), tuple(shape)),)
    # in a processor's caches, and beyond
    few = int(math.exp(chance.uniform(math.log(FEW[0]), math.log(FEW[1]))))
    return Program(inputs, (f"return {line}",), grad=False, sizes=(few, MANY[1] // 4))
