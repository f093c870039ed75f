"""Control-flow operators, and functions that other compilers were told about, give what eager gives."""

from __future__ import annotations

import pytest

from tests.end_to_end import corpus_control_flow
from tests.end_to_end.conformance import check_like_python, scenarios_of

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("name", scenarios_of(corpus_control_flow))
def test_control_flow(name: str) -> None:
    check_like_python(name)
