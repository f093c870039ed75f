"""What says something of a GPU runs on it: beside other tests kernels are interpreted."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import conftest


@pytest.mark.parametrize(("interprets", "there"), [("1", True), ("1", False), ("0", True), (None, True)])
def test_tests_on_a_gpu_are_of_kernels_that_are_built(interprets, there, monkeypatch, request):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if interprets is not None:
        monkeypatch.setenv("TRITON_INTERPRET", interprets)
    if interprets == "1" and there:
        with pytest.raises(pytest.skip.Exception, match="alone"):
            conftest.pytest_runtest_setup(request.node)
    else:
        conftest.pytest_runtest_setup(request.node)
