"""Side effects of compiled functions are those of eager, in its order, also where an exception ends the call."""

from __future__ import annotations

import pytest

from tests.end_to_end import corpus_side_effects, corpus_torch_effects
from tests.end_to_end.conformance import check_like_python, scenarios_of

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("name", [*scenarios_of(corpus_side_effects), *scenarios_of(corpus_torch_effects)])
def test_side_effects(name: str) -> None:
    check_like_python(name)


@pytest.mark.parametrize(
    "name",
    [
        "inputs_and_their_views_written",
        "an_exception_of_an_operation_half_way",
        "buffers_and_parameters_rebound",
    ],
)
def test_side_effects_with_kernels(name: str) -> None:
    check_like_python(name, kernels=True)
