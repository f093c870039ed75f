"""Every kind of module and of tensor is captured, or breaks the graph with eager's answer; none crashes."""

from __future__ import annotations

import pytest

from tests.end_to_end import corpus_module_kinds, corpus_tensor_kinds
from tests.end_to_end.conformance import check_like_python, scenarios_of

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("name", [*scenarios_of(corpus_module_kinds), *scenarios_of(corpus_tensor_kinds)])
def test_kinds(name: str) -> None:
    check_like_python(name)


@pytest.mark.parametrize(
    "name",
    ["modes_switched_inside", "complex_tensors", "masked_and_meta_and_undefined", "batch_norm_in_every_mode"],
)
def test_kinds_with_kernels(name: str) -> None:
    check_like_python(name, kernels=True)
