"""PyTorch's table of operators (OpInfo) with unusual inputs: special values, odd layouts, all types, derivatives along a direction.

In ``make test`` each operator takes a part in one of these, by a hash of its name; ``BRAZE_SWEEP=1 pytest tests/tables -m slow``
runs all of all (half an hour), as two samples or more of each.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable

import pytest
import torch

from tests.end_to_end import ops
from tests.tables import checks, inputs
from tests.tables.known import FORWARD_MODE, LAYOUTS, SPECIAL_VALUES, TYPES

pytestmark = pytest.mark.usefixtures("own_kernels")

SWEEP = bool(os.environ.get("BRAZE_SWEEP"))
#: types that the sweep of tests/end_to_end/test_ops.py goes through
USUAL = {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64}  # fmt: skip


def part(name: str, kind: int, of: int) -> bool:
    """Whether an operator takes part in a kind of test on every run."""
    return zlib.crc32(name.encode()) % of == kind


def cases(names: Iterable[str], known: dict[str, str], kind: int, of: int) -> list[object]:
    """Some operators, all in a sweep; a known failure must fail."""
    made = []
    for name in names:
        marks = [pytest.mark.xfail(strict=True, reason=known[name])] if name in known else []
        if SWEEP or part(name, kind, of):
            made.append(pytest.param(name, id=name, marks=[*marks, *([pytest.mark.slow] if SWEEP else [])]))
    return made


def named(
    names: Iterable[str], suffixes: Iterable[str], wanted: Callable[[str, str], bool] | None = None
) -> list[str]:
    """``softmax turned``."""
    return [f"{n} {s}" for n in names for s in suffixes if wanted is None or wanted(n, s)]


def takes(name: str, dtype: str) -> bool:
    return getattr(torch, dtype) in ops.OPS[name].supported_dtypes("cpu")


@pytest.mark.parametrize(
    "case",
    cases(
        named(ops.names(), ("float32", "bfloat16", "int64", "uint8"), takes),
        SPECIAL_VALUES,
        0,
        120,
    ),
)
def test_special_values(case: str) -> None:
    name, dtype = case.split()
    assert not checks.special_values(name, getattr(torch, dtype), most=4)


@pytest.mark.parametrize("case", cases(named(ops.names(), inputs.LAYOUTS), LAYOUTS, 1, 120))
def test_layouts(case: str) -> None:
    name, layout = case.split()
    dtype = ops.dtypes(ops.OPS[name], [torch.float32])[0]
    assert not checks.layouts(name, dtype, 3, layout)


def others(name: str, dtype: str) -> bool:
    return takes(name, dtype) and getattr(torch, dtype) not in USUAL


OTHERS = ("int8", "int16", "int32", "uint16", "uint32", "uint64", "complex32", "complex128", "float8_e4m3fn", "float8_e5m2")  # fmt: skip


@pytest.mark.parametrize("case", cases(named(ops.names(), OTHERS, others), TYPES, 2, 120))
def test_other_types(case: str) -> None:
    name, dtype = case.split()
    assert not ops.check(name, "function", getattr(torch, dtype), most=2)


DIRECTIONS = named([n for n in ops.names() if checks.has_forward_mode(n)], ("inside", "outside"))


@pytest.mark.parametrize("case", cases(DIRECTIONS, FORWARD_MODE, 3, 50))
def test_derivatives_along_a_direction(case: str) -> None:
    """``torch.func.jvp`` inside the compiled program, and forward-mode differentiation of it from outside."""
    name, where = case.split()
    assert not checks.forward_mode(name, 1, inside=where == "inside")
