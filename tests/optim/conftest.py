"""Each test sees warnings afresh."""

import pytest

import braze


@pytest.fixture(autouse=True)
def fresh():
    braze.reset()
    yield
    braze.reset()
