"""Triton kernels that take one step for all parameters of a table on a GPU.

``step(table, places, scratch, numbers, found, scale, width, ...)``: a program does ``CHUNK`` elements of one row, which
``places`` names (row, chunk). ``table`` and ``numbers`` are those of the C kernels; ``scratch`` has two doubles a row.
``advance(table, ...)`` counts the steps that live on the device, and fills ``scratch`` from them.

``found`` is a float that is not zero if the step is to be skipped, ``scale`` one to divide gradients by: what a
GradScaler gives to optimizers that were made with ``fused=True``.
"""

from __future__ import annotations

from braze.optim.rules import ADAM, DECOUPLED, L2, NUMBERS, Kind
from braze.support.dtypes import LONG

#: elements of a program, and of one turn of its loop
CHUNK, BLOCK = 8192, 1024
#: rows of a program of ``advance``
ROWS = 128
WARPS = 4


def step_source(kind: Kind) -> str:
    """The module with ``step`` (and ``advance``, where parameters count their steps)."""
    compute = "tl.float64" if kind.dtype == "f64" else "tl.float32"
    adam = kind.algorithm == ADAM
    names = ("p", "g", *(f"s{i}" for i in range(len(kind.states))))
    element = f"tl.{LONG[kind.dtype]}"
    numbers = {name: i for i, name in enumerate(NUMBERS[kind.algorithm])}
    lines = [
        "import triton",
        "import triton.language as tl",
        "",
        f"CHUNK, BLOCK, ROWS, WARPS = {CHUNK}, {BLOCK}, {ROWS}, {WARPS}",
        "",
    ]
    if adam:
        lines += [ADVANCE, ""]
    lines += [
        "@triton.jit",
        "def step(table, places, scratch, numbers, found, scale, width, SCALED: tl.constexpr, FOUND: tl.constexpr, "
        "ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):",
        "    if FOUND:",
        "        if tl.load(found) != 0:",
        "            return",
        "    place = tl.program_id(0).to(tl.int64) * 2",
        "    row = tl.load(places + place)",
        "    at = table + row * width",
        "    count = tl.load(at)",
        *(f"    {n}_ = tl.load(at + {2 + i}).to(tl.pointer_type({element}))" for i, n in enumerate(names)),
        "    if ALIGNED:",
        *(f"        {n}_ = tl.multiple_of({n}_, 16)" for n in names),
        f"    flag = tl.load(at + {2 + len(names)})",
        *(f"    {name} = tl.load(numbers + {i})" for name, i in numbers.items()),
        *_scalars(adam, compute),
        "    if SCALED:",
        f"        divisor = tl.load(scale).to({compute})",
        "    first = tl.load(places + place + 1) * CHUNK",
        # a mask known to hold lets a thread load several elements at once
        "    if first + CHUNK <= count:",
        *_loop(kind, names, compute, ""),
        "    else:",
        *_loop(kind, names, compute, ", mask=i < count"),
    ]
    return "\n".join([*lines, ""])


def _loop(kind: Kind, names: tuple[str, ...], compute: str, mask: str) -> list[str]:
    """A program's turns, indented for a branch."""
    element = f"tl.{LONG[kind.dtype]}"
    other = ", other=0.0" if mask else ""
    lines = [
        "for start in range(0, CHUNK, BLOCK):",
        "    i = first + start + tl.arange(0, BLOCK)",
        *(f"    {n} = tl.load({n}_ + i{mask}{other}).to({compute})" for n in names),
        "    if SCALED:",
        "        g = g / divisor",
        f"        tl.store(g_ + i, g.to({element}){mask})",
        *(f"    {line}" for line in (_adam if kind.algorithm == ADAM else _sgd)(kind)),
        *(f"    tl.store({n}_ + i, {n}.to({element}){mask})" for n in names if n != "g"),
    ]
    return [f"        {line}" for line in lines]


def _scalars(adam: bool, compute: str) -> list[str]:
    """The numbers rounded as PyTorch rounds them; ``decay`` stays a mode."""
    if adam:
        return [
            f"    shrink = (1.0 - lr * weight_decay).to({compute})",
            f"    w1 = (1.0 - beta1).to({compute})",
            f"    w2 = (1.0 - beta2).to({compute})",
            f"    size = tl.load(scratch + 2 * row).to({compute})",
            f"    root = tl.load(scratch + 2 * row + 1).to({compute})",
            *(f"    {n} = {n}.to({compute})" for n in ("beta2", "eps", "weight_decay", "sign")),
        ]
    return [
        f"    fresh = (1.0 - dampening).to({compute})",
        f"    size = (-lr).to({compute})",
        *(f"    {n} = {n}.to({compute})" for n in ("momentum", "weight_decay", "sign")),
    ]


def _adam(kind: Kind) -> list[str]:
    second = "s2" if len(kind.states) > 2 else "s1"
    wide = kind.dtype == "f64"
    # float's own square root and quotient are approximate on a GPU
    root = "tl.sqrt" if wide else "tl.sqrt_rn"

    def divided(a: str, b: str) -> str:
        return f"{a} / {b}" if wide else f"tl.div_rn({a}, {b} + tl.zeros_like(s0))"

    return [
        "g = g * sign",
        f"p = tl.where(decay == {DECOUPLED}, p * shrink, p)",
        f"g = tl.where(decay == {L2}, g + weight_decay * p, g)",
        "s0 = tl.where(w1 < 0.5, s0 + w1 * (g - s0), g + (w1 - 1.0) * (g - s0))",
        "s1 = s1 * beta2 + w2 * g * g",
        *(["s2 = tl.where((s2 > s1) | (s2 != s2), s2, s1)"] if second == "s2" else []),
        f"d = {divided(f'{root}({second})', 'root')} + eps",
        f"p = p + {divided('(size * s0)', 'd')}",
    ]


def _sgd(kind: Kind) -> list[str]:
    lines = ["g = g * sign", f"g = tl.where(decay == {L2}, g + weight_decay * p, g)"]
    if kind.states:
        lines.append("s0 = tl.where(flag != 0, g, s0 * momentum + g * fresh)")
        lines.append("g = g + s0 * momentum" if kind.nesterov else "g = s0")
    return [*lines, "p = p + g * size"]


#: steps += 1 for each row, then (-lr / (1 - beta1^step), sqrt(1 - beta2^step)); logarithms of the betas are given
ADVANCE = """\
@triton.jit
def advance(steps, scratch, numbers, logs, found, rows, FOUND: tl.constexpr, ROWS: tl.constexpr):
    if FOUND:
        if tl.load(found) != 0:
            return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = tl.load(steps + 3 * row + 2, mask=inside, other=0).to(tl.pointer_type(tl.float32))
    now = tl.load(at, mask=inside, other=0.0) + 1.0
    tl.store(at, now, mask=inside)
    t = now.to(tl.float64)
    lr = tl.load(numbers)
    one = 1.0 - tl.exp(t * tl.load(logs))
    two = 1.0 - tl.exp(t * tl.load(logs + 1))
    tl.store(scratch + 2 * row, -(lr / one), mask=inside)
    tl.store(scratch + 2 * row + 1, tl.sqrt(two), mask=inside)
"""
