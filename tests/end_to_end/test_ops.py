"""Every operator of PyTorch's OpInfo table: compiled is eager, in values, types, strides, aliases and errors.

Two float32 samples of each, one of another dtype for half of them, in-place forms, and calls that must fail. The whole table
takes a quarter of an hour: ``BRAZE_SWEEP=1 pytest tests/end_to_end/test_ops.py -m slow``.
"""

from __future__ import annotations

import os
import zlib

import pytest
import torch

from tests.end_to_end import ops
from tests.end_to_end.ops_known import ALONE, KNOWN

#: by the operator's name; None: float32 is enough
OTHERS = (torch.float64, torch.bfloat16, torch.int64, torch.bool, None, None)
WHOLE = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]  # fmt: skip


pytestmark = pytest.mark.usefixtures("own_kernels")


def key(name: str, variant: str, dtype: torch.dtype | None) -> str:
    return f"{name} {variant}" if dtype is None else f"{name} {variant} {str(dtype).removeprefix('torch.')}"


def cases(found: list[tuple[str, str, torch.dtype | None]]) -> list[object]:
    """Each of a group of its own."""
    made = []
    for case in found:
        reason = KNOWN.get(key(*case))
        marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
        made.append(pytest.param([case], id=key(*case), marks=marks))
    return made


#: operators whose calls make one graph
TOGETHER = 6


def grouped(found: list[ops.Case]) -> list[object]:
    """Several operators a case; those with a known failure, and those that give no graph with others, alone."""
    single = [case for case in found if key(*case) in KNOWN or case[0] in ALONE | ops.UNDEFINED]
    rest = [case for case in found if case not in single]
    groups = [rest[i : i + TOGETHER] for i in range(0, len(rest), TOGETHER)]
    return cases(single) + [
        pytest.param(group, id=", ".join(key(*case) for case in group)) for group in groups
    ]


def usual() -> list[ops.Case]:
    """Two samples of each in float32, or in a type that it takes."""
    return [(n, "function", ops.dtypes(ops.OPS[n], [torch.float32])[0]) for n in ops.names()]


def other() -> list[ops.Case]:
    """For half of them, another type."""
    found = [(n, OTHERS[zlib.crc32(n.encode()) % len(OTHERS)]) for n in ops.names()]
    return [(n, "function", d) for n, d in found if d and d in ops.OPS[n].supported_dtypes("cpu")]


def in_place() -> list[ops.Case]:
    return [(n, "inplace", d) for n, v, d in usual() if "inplace" in ops.variants(ops.OPS[n])]


def failing() -> list[tuple[str, str, torch.dtype | None]]:
    return [(n, "errors", None) for n in ops.names() if ops.OPS[n].error_inputs_func is not None]


SWEEP = bool(os.environ.get("BRAZE_SWEEP"))


def whole() -> list[tuple[str, str, torch.dtype | None]]:
    """All variants in many types."""
    return [
        (name, variant, dtype)
        for name in (ops.names() if SWEEP else [])
        for variant in ops.variants(ops.OPS[name])
        for dtype in ops.dtypes(ops.OPS[name], WHOLE)
    ]


@pytest.mark.parametrize("operators", grouped(usual()))
def test_samples(operators: list[ops.Case]) -> None:
    assert not ops.check_together(operators, most=2)


@pytest.mark.parametrize("operators", grouped(other()))
def test_another_type(operators: list[ops.Case]) -> None:
    assert not ops.check_together(operators, most=1)


@pytest.mark.parametrize("operators", grouped(in_place()))
def test_in_place(operators: list[ops.Case]) -> None:
    assert not ops.check_together(operators, most=1)


@pytest.mark.parametrize("operators", cases(failing()))
def test_calls_that_fail(operators: list[tuple[str, str, None]]) -> None:
    ((name, _, _),) = operators
    assert not ops.check_errors(name, most=12)


@pytest.mark.slow
@pytest.mark.skipif(not SWEEP, reason="takes a quarter of an hour: BRAZE_SWEEP=1")
@pytest.mark.parametrize("operators", cases(whole()))
def test_the_whole_table(operators: list[ops.Case]) -> None:
    assert not ops.check_together(operators, most=12)
