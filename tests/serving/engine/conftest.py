"""Tests of this folder run with the processor as a device that can record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.cudagraphs.conftest import simulated

__all__ = ["simulated"]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tiny models are quicker without a team of threads, by far where others use the processor too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
