"""Every module and every test draws the same random numbers, whatever ran before it."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Modules make their cases when they are imported."""
    if isinstance(collector, pytest.Module):
        seed()


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    seed()


def seed() -> None:
    """Start the generators again; some tests run without PyTorch."""
    random.seed(0)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)
