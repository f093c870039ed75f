"""Every kind of module and of tensor is captured, or breaks the graph with eager's answer; none crashes."""

from __future__ import annotations

import pytest

import braze
from tests.end_to_end import corpus_module_kinds, corpus_tensor_kinds
from tests.end_to_end.conformance import observe, scenarios_of


@pytest.mark.parametrize("name", [*scenarios_of(corpus_module_kinds), *scenarios_of(corpus_tensor_kinds)])
def test_kinds(name: str) -> None:
    braze.reset()
    expected = observe(name, lambda fn: fn)
    seen = observe(name, lambda fn: braze.compile(fn, backend="eager"))
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours == theirs


@pytest.mark.parametrize(
    "name",
    ["modes_switched_inside", "complex_tensors", "masked_and_meta_and_undefined", "batch_norm_in_every_mode"],
)
def test_kinds_with_kernels(name: str) -> None:
    braze.reset()
    expected = observe(name, lambda fn: fn, exact=False)
    seen = observe(name, lambda fn: braze.compile(fn), exact=False)
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours == theirs
