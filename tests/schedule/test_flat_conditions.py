"""Rows that are joined, rolled or padded along their number are one stretch of memory, whatever their length."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import braze
from braze.loops import build
from braze.loops.ir import Axis, Node, Op
from braze.schedule.fusion.flat_conditions import flattened
from braze.symbolic.expr import Integer, axis_symbol
from tests.helpers import together

Tensor = torch.Tensor
JOINED: dict[str, Callable[[Tensor], Tensor]] = {
    "cat": lambda x: torch.cat((-x[:5], x[5:] * 2)),
    "cat of three": lambda x: torch.cat((x[7:] + 1, x, x[:3])) * 2,
    "roll": lambda x: x.roll(1, 0) * 2,
    "roll back": lambda x: x.roll(-3, 0) * 2,
    "pad": lambda x: F.pad(x.flatten(1), (0, 0, 3, 5)) * 2,
    "cut": lambda x: F.pad(x.flatten(1), (0, 0, -2, 4), value=3.0) * 2,
    "written": lambda x: (x * 2).slice_scatter(x[:4] * 3, 0, 2, 6),
}
SHAPES = [(13, 3), (1024, 3), (64, 7, 5), (11, 2, 3, 4), (700, 10), (9, 1), (8, 1000)]


ORDERED = {Op.LT: operator.lt, Op.LE: operator.le, Op.GT: operator.gt, Op.GE: operator.ge}


@pytest.mark.parametrize("op", ORDERED, ids=lambda op: op.value)
@pytest.mark.parametrize("step", [1, 2, 3, -1, -3])
def test_each_comparison_says_the_same_of_elements(op: Op, step: int) -> None:
    rows, columns = (Axis(axis_symbol(n, e), Integer(e)) for n, e in (("i0", 11), ("i1", 4)))
    at = rows.symbol * 4 + columns.symbol
    for start in range(-12, 13):
        for turned in (False, True):
            row, number = build.index(rows.symbol * step), build.index(Integer(start))
            condition = build.binary(op, *((number, row) if turned else (row, number)))
            if condition.op is Op.CONST:
                continue
            change = flattened((rows, columns), [condition], [at])
            flat = condition if change is None else change(condition)
            for k in range(44):
                sides = (k // 4 * step, start)
                wanted = ORDERED[op](*(sides[::-1] if turned else sides))
                assert _holds(flat, k) is wanted, (start, turned, k)


def _holds(n: Node, k: int) -> bool:
    if n.op is Op.CONST:
        return bool(n.attr)
    i0, i1 = axis_symbol("i0", 11), axis_symbol("i1", 4)
    left, right = (a.attr if a.op is Op.CONST else a.attr.evaluate({i0: k // 4, i1: k % 4}) for a in n.args)
    return ORDERED[n.op](left, right)


def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, f: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """The C of what one call compiles."""
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    braze.compile(f)(x)
    (text,) = (path.read_text() for path in tmp_path.glob("*_kernels*.c"))
    return text[text.index("static void cpu_") :]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_values_are_as_in_eager(dtype: torch.dtype) -> None:
    calls = [(f, (torch.randn(shape) * 30).to(dtype)) for shape in SHAPES for f in JOINED.values()]
    for (f, x), ours in zip(calls, together(*calls), strict=True):
        assert torch.equal(ours, f(x)), x.shape


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("rows", [40, 4000])
def test_no_row_is_walked_by_itself(
    name: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test of where an element lies is left in a loop, and no vector of three."""
    text = loops(tmp_path, monkeypatch, JOINED[name], torch.randn(rows, 3))
    assert "i1" not in text and "bz_mask" not in text and "bz_sel" not in text


def test_what_else_steps_over_rows_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(40, 20)
    w = torch.randn(20)
    f = lambda x: x.roll(1, 0) * w
    assert "i1" in loops(tmp_path, monkeypatch, f, x)
    assert torch.equal(braze.compile(f)(x), f(x))


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_a_middle_axis_is_cut_too(dim: int) -> None:
    x = torch.randn(3, 5, 4, 6)
    for f in (
        lambda x: x.roll(2, dim) * 2,
        lambda x: torch.cat((x.narrow(dim, 1, 2), -x), dim),
        lambda x: torch.cat((x.roll(1, 0).narrow(dim, 1, 2), -x), dim),
        lambda x: x.roll((1, 2, 1), (0, 1, 2)) * 2,
    ):
        assert torch.equal(braze.compile(f)(x), f(x))


@pytest.mark.parametrize("rows", [1, 2, 6, 40])
def test_rows_that_vary_are_as_in_eager(rows: int) -> None:
    f = braze.compile(lambda x: torch.cat((x, -x)) * 2, dynamic=True)
    x = torch.randn(rows, 3)
    assert torch.equal(f(x), torch.cat((x, -x)) * 2)


def test_gradients_are_as_in_eager() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cat((x[:3].sin(), x[3:].exp())).roll(1, 0)

    x = torch.randn(50, 3, dtype=torch.float64, requires_grad=True)
    (ours,), (exact,) = (torch.autograd.grad(g(x).square().sum(), x) for g in (braze.compile(f), f))
    torch.testing.assert_close(ours, exact)
