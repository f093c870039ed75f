"""Kernels that begin before those ahead of them have ended give, bit for bit, what they give in turn."""

from __future__ import annotations

import pytest
import torch

import braze
from benchmarks.cudagraphs import Decoder

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]


@pytest.fixture
def attention_that_repeats():
    """Attention of few rows by cuDNN gives now one last bit, now another: of 3,000 calls for 8 rows 45 differed, of flash attention's none."""
    was = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(was)


@pytest.mark.usefixtures("attention_that_repeats")
@pytest.mark.parametrize("word", ["products", "all"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("recorded", [False, True])
def test_weights_and_inputs_that_change_just_before_a_call(batch, recorded, word):
    """Weights are turned to their negatives and back ahead of the call, so that one read too early shows."""
    torch.manual_seed(0)
    model = Decoder(4, 1024, 16, 2816, batch).cuda().bfloat16()
    table = torch.randn(2, 64, device="cuda").bfloat16()
    told = {"cudagraphs": recorded, "early_launches": "none"}
    plain = braze.compile(model, options=told)
    early = braze.compile(model, options=told | {"early_launches": word})
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    with torch.no_grad():
        for _ in range(100):
            tokens = torch.randint(0, 8192, (batch,), device="cuda")
            wanted = plain(tokens, *table).clone()
            for p in (*model.parameters(), *model.parameters()):
                p.neg_()
            wrong += (early(tokens, *table) != wanted).any()
            wrong += (early(tokens, *table) != wanted).any()
    assert int(wrong) == 0
