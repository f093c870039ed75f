"""What tests on a GPU share."""

from __future__ import annotations

import pytest
import torch

from braze.cudagraphs.registry import device_of
from tests.cudagraphs.helpers import Place


@pytest.fixture
def simulated(monkeypatch):
    """The real device in place of the simulated one."""
    monkeypatch.setattr(Place, "device", "cuda")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield device_of("cuda:0")
    torch.set_float32_matmul_precision(before)
