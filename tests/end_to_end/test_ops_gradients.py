"""Gradients of every differentiable operator of PyTorch's OpInfo table, in double precision: compiled is eager.

Two samples of each, of three operators in one graph. All samples, and symbolic sizes and floats for all operators, take an hour:
``BRAZE_SWEEP=1 pytest tests/end_to_end/test_ops_gradients.py -m slow``.
"""

from __future__ import annotations

import os

import pytest

from tests.end_to_end import op_gradients, ops
from tests.end_to_end.op_gradients_known import KNOWN, KNOWN_OF_ALL, KNOWN_SYMBOLIC
from tests.end_to_end.ops_known import ALONE

SWEEP = bool(os.environ.get("BRAZE_SWEEP"))


pytestmark = pytest.mark.usefixtures("own_kernels")


def swept(known: dict[str, str]) -> list[object]:
    """Every operator where all are asked for, else none; a known failure must fail."""
    made = []
    for name in op_gradients.names() if SWEEP else []:
        marks = [pytest.mark.xfail(strict=True, reason=known[name])] if name in known else []
        made.append(pytest.param(name, id=name, marks=marks))
    return made


def test_every_known_failure_is_an_operator() -> None:
    assert {*KNOWN, *KNOWN_OF_ALL, *KNOWN_SYMBOLIC} <= set(op_gradients.names())


#: operators whose calls make one graph
TOGETHER = 3


def grouped() -> list[object]:
    """Several operators a case; those with a known failure, and those that give no graph with others, alone."""
    single = {
        **dict.fromkeys(KNOWN),
        **dict.fromkeys(n for n in op_gradients.names() if n in ALONE | ops.UNDEFINED),
    }
    rest = [name for name in op_gradients.names() if name not in single]
    groups = [[name] for name in single] + [rest[i : i + TOGETHER] for i in range(0, len(rest), TOGETHER)]
    marks = {name: pytest.mark.xfail(strict=True, reason=reason) for name, reason in KNOWN.items()}
    return [pytest.param(group, id=", ".join(group), marks=marks.get(group[0], ())) for group in groups]


@pytest.mark.parametrize("names", grouped())
def test_two_samples(names: list[str]) -> None:
    assert not op_gradients.check_together(names, most=2)


@pytest.mark.slow
@pytest.mark.skipif(not SWEEP, reason="takes most of an hour: BRAZE_SWEEP=1")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", swept(KNOWN | KNOWN_OF_ALL))
def test_all_samples(name: str) -> None:
    assert not op_gradients.check(name, most=1000)


#: of which the first look found a difference where sizes and floats are symbols
ONCE_WRONG = (
    "__rsub__",
    "constant_pad_nd",
    "masked.cumprod",
    "nn.functional.local_response_norm",
    "select_scatter",
)


@pytest.mark.parametrize("name", ONCE_WRONG)
def test_some_operators_of_symbolic_sizes(name: str) -> None:
    assert not op_gradients.check(name, most=2, dynamic=True)


@pytest.mark.slow
@pytest.mark.skipif(not SWEEP, reason="takes ten minutes: BRAZE_SWEEP=1")
@pytest.mark.parametrize("name", swept(KNOWN_SYMBOLIC))
def test_two_samples_of_symbolic_sizes(name: str) -> None:
    assert not op_gradients.check(name, most=2, dynamic=True)
