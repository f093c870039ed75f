"""Tests of serving may have the processor record, by a simulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from braze.cudagraphs.device import DeviceGraphs
from braze.cudagraphs.registry import device_of, register
from braze.cudagraphs.simulated import SimulatedGraphs


@pytest.fixture
def simulated() -> Iterator[DeviceGraphs]:
    """The simulated device."""
    register("cpu", SimulatedGraphs)
    yield device_of("cpu")
    register("cpu", None)
