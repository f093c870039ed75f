"""Tests of this folder run with the processor as a device that can record."""

from __future__ import annotations

import pytest

from braze.cudagraphs.registry import device_of, register
from braze.cudagraphs.simulated import SimulatedGraphs
from tests.cudagraphs.helpers import Place


@pytest.fixture
def simulated():
    """The simulated device, of which compiled graphs on the processor make recordings."""
    register("cpu", SimulatedGraphs)
    yield device_of("cpu")
    register("cpu", None)
    Place.made.clear()
