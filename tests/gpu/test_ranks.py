"""Two GPUs that share a model, over NCCL."""

from __future__ import annotations

import pytest
import torch

from tests.serving.engine.test_parallel import check_two_ranks


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs")
def test_two_gpus_give_the_tokens_of_one(tmp_path, exact_products):
    """Sums and gathers over NCCL, in recordings too."""
    check_two_ranks(tmp_path, "nccl", "cuda:0")
