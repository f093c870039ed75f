"""Every kind of module and of tensor is captured, or breaks the graph with eager's answer; none crashes."""

from __future__ import annotations

import pytest

from braze.graph.torch_import import VERSION
from tests.end_to_end import corpus_module_kinds, corpus_tensor_kinds
from tests.end_to_end.conformance import check_like_python, scenarios_of

pytestmark = pytest.mark.usefixtures("fresh")


#: before PyTorch 2.12 a size of a nested tensor is a symbol that guards cannot read: such frames are compiled at each call
FAULTS = {"nested_tensors": "BZ9013"} if VERSION < (2, 12) else {}


def cases() -> list[object]:
    names = [*scenarios_of(corpus_module_kinds), *scenarios_of(corpus_tensor_kinds)]
    marks = {name: pytest.mark.provokes(code) for name, code in FAULTS.items()}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]


@pytest.mark.parametrize("name", cases())
def test_kinds(name: str) -> None:
    check_like_python(name)


@pytest.mark.parametrize(
    "name",
    ["modes_switched_inside", "complex_tensors", "masked_and_meta_and_undefined", "batch_norm_in_every_mode"],
)
def test_kinds_with_kernels(name: str) -> None:
    check_like_python(name, kernels=True)
