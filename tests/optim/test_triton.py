"""The Triton kernels give what the C kernels give, in Triton's interpreter, and compile to sm_90 without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton")


from braze import native
from braze.optim.engine import CpuEngine, GpuEngine
from braze.optim.rules import ADAM, Kind
from tests.optim.kinds import KINDS, MOMENTS

ROOT = Path(__file__).parents[2]
DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
STATES = (*MOMENTS, "max_exp_avg_sq")
SIZES = [5, 0, 1, 8192, 8200, 64]
NUMBERS = {
    ADAM: [(0.01, 0.9, 0.999, 1e-8, 0.1, 1.0, 2.0), (0.01, 0.3, 0.0, 1e-3, 0.1, -1.0, 1.0), (0.05, 0.9, 0.9, 1e-8, 0, 1.0, 0.0)],
    "sgd": [(0.1, 0.9, 0.5, 0.1, 1.0, 1.0), (0.1, 0.5, 0.0, 0.0, -1.0, 0.0)],
}  # fmt: skip


class Rows:
    """Tensors of a bucket, the same for each instance, and their tables."""

    def __init__(self, kind, fresh=False, offset=0):
        g = torch.Generator().manual_seed(0)
        dtype = DTYPES[kind.dtype]
        self.columns = tuple(
            [
                (
                    torch.randn(n + offset, generator=g).abs()
                    if k > 2
                    else torch.randn(n + offset, generator=g)
                ).to(dtype)[offset:]
                for n in SIZES
            ]
            for k in range(kind.columns)
        )
        self.steps = [torch.tensor(float(i)) for i in range(len(SIZES))]
        self.table = np.zeros((len(SIZES), 3 + kind.columns), dtype=np.int64)
        self.counts = np.zeros((len(SIZES), 3), dtype=np.int64)
        assert native.tabulate(self.columns, torch.empty(0, dtype=dtype), self.table)[0] == -1
        assert native.tabulate((self.steps,), torch.empty(0), self.counts)[0] == -1
        self.table[::2, -1] = fresh

    def check(self, other, dtype):
        # a rounding apart in a state is a rounding of the largest term in what is computed from it
        rtol, atol = {"f32": (3e-5, 1e-5), "f64": (1e-11, 1e-14), "bf16": (8e-3, 3e-2), "f16": (2e-3, 4e-3)}[
            dtype
        ]
        for a, b in zip(self.columns, other.columns):
            for x, y in zip(a, b):
                torch.testing.assert_close(y, x, rtol=rtol, atol=atol)
        assert self.steps == other.steps


#: kernels with each of their numbers; those of Adam count steps on the host or on the device
CASES = [
    pytest.param(
        kind, number, counted, id=f"{kind.algorithm}-{kind.dtype}-{len(kind.states)}-{number}-{counted}"
    )
    for kind in KINDS
    for number in range(len(NUMBERS[kind.algorithm]))
    for counted in (("cpu", "cuda") if kind.algorithm == ADAM else ("cpu",))
]


@pytest.mark.parametrize(("kind", "number", "counted"), CASES)
def test_like_the_c_kernel(kind, number, counted):
    """Rows of several programs and of none, chunks that end within a row, counts on the host and on the device."""
    ours, theirs = Rows(kind, fresh=True, offset=number), Rows(kind, fresh=True, offset=number)
    c = CpuEngine(kind, theirs.table, theirs.counts, False)
    t = GpuEngine(
        kind, ours.table, ours.counts, False, torch.device("cpu"), counted if kind.algorithm == ADAM else ""
    )
    for _ in range(2):
        c.step(NUMBERS[kind.algorithm][number])
        t.step(NUMBERS[kind.algorithm][number])
    theirs.check(ours, kind.dtype)


def test_special_values_like_the_c_kernel():
    """An average without memory after a large gradient; a maximum that is nan."""
    kind, numbers = Kind(ADAM, "f32", STATES), (0.01, 0.0, 0.9, 1e-8, 0.0, 1.0, 0.0)
    both = Rows(kind), Rows(kind)
    for rows in both:
        rows.columns[2][0].fill_(1e8)
        rows.columns[4][0][1] = float("nan")
    ours, theirs = both
    CpuEngine(kind, theirs.table, theirs.counts, False).step(numbers)
    GpuEngine(kind, ours.table, ours.counts, False, torch.device("cpu"), "cpu").step(numbers)
    for rows in both:
        assert torch.equal(rows.columns[2][0], rows.columns[1][0])
        assert rows.columns[4][0].isnan().tolist() == [False, True, False, False, False]


def test_scaler_on_the_device():
    """A step that found infinities changes nothing; another divides the gradients, and leaves them so."""
    kind, numbers = KINDS[0], NUMBERS[ADAM][0]
    rows, before = Rows(kind), Rows(kind)
    engine = GpuEngine(kind, rows.table, rows.counts, False, torch.device("cpu"), "cuda")
    engine.step(numbers, torch.ones(()), torch.tensor(4.0))
    before.check(rows, "f32")
    engine.step(numbers, torch.zeros(()), torch.tensor(4.0))
    for g in before.columns[1]:
        g /= 4
    CpuEngine(kind, before.table, before.counts, False).step(numbers)
    before.check(rows, "f32")


def test_compiles_for_a_gpu():
    """All kinds, with loads of 16 bytes a thread where addresses allow."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.optim.triton_offline"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
