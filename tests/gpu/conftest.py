"""What tests on a GPU share."""

from __future__ import annotations

import pytest
import torch

from braze.cudagraphs.registry import device_of
from tests.cudagraphs.helpers import Place


@pytest.fixture
def exact_products():
    """Products of float32 are those of float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def simulated(monkeypatch, exact_products):
    """The real device in place of the simulated one."""
    monkeypatch.setattr(Place, "device", "cuda")
    yield device_of("cuda:0")
    Place.made.clear()
