"""What tests on a GPU share."""

from __future__ import annotations

import os

import pytest
import torch

from braze.cudagraphs.registry import device_of
from tests.cudagraphs.helpers import Place


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Beside tests of other folders kernels are interpreted, which says nothing of the GPU's."""
    if interpreted_on_a_gpu():
        pytest.skip("kernels are interpreted in this run: tests/gpu is to be run alone")


def interpreted_on_a_gpu():
    return os.environ.get("TRITON_INTERPRET") == "1" and torch.cuda.is_available()


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
