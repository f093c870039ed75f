"""Two GPUs that share a model, over NCCL."""

from __future__ import annotations

import pytest
import torch

from tests.serving.engine.test_parallel import check_two_ranks
from tests.serving.policy.test_data_parallel import check_two_processes


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs")
def test_two_gpus_give_the_tokens_of_one(tmp_path, exact_products):
    """Sums and gathers over NCCL, in recordings too."""
    check_two_ranks(tmp_path, "nccl", "cuda:0")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs")
def test_ranks_of_two_gpus_agree_on_a_step(tmp_path):
    check_two_processes(tmp_path, "nccl")
