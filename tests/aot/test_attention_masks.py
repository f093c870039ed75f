"""A mask of bools becomes numbers once for all attention that reads it, as the kernel that PyTorch chooses wants them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.aot import attention
from braze.aot.attention import is_chosen_now
from braze.support import trace


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(attention, "is_on_gpu", lambda value: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def layers(x, mask):
    for _ in range(3):
        x = F.scaled_dot_product_attention(x, x, x, mask) + x
    return x


@pytest.mark.parametrize("shape", [(16, 16), (2, 1, 16, 16), (2, 4, 1, 16)])
def test_three_layers_share_one_mask_of_numbers(as_on_a_gpu, shape):
    x, mask = torch.randn(2, 4, 16, 8), torch.rand(shape) > 0.3
    mask[..., -1, :] = False  # rows that see nothing
    with torch.no_grad(), trace.collect() as events:
        found = braze.compile(layers, options={"verify": 2})(x, mask)
    called = [payload for kind, payload in events if kind == "aten"]
    assert called == ["aten._scaled_dot_product_flash_attention_for_cpu.default"] * 3
    assert torch.equal(found, layers(x, mask))


def test_other_attention_chooses_its_kernel_when_it_runs(as_on_a_gpu):
    x = torch.randn(2, 4, 16, 8)
    mask = torch.ones(16, 16, dtype=torch.bool)
    assert is_chosen_now((x, x, x, mask), {}, {})
    assert not is_chosen_now((x, x, x), {}, {})
    assert not is_chosen_now((x, x, x, mask.float()), {}, {})
    assert not is_chosen_now((x, x, x, mask, 0.1), {}, {})
    assert not is_chosen_now((x, x, x), {"attn_mask": mask, "dropout_p": 0.1}, {})
    assert not is_chosen_now((x[:, :, :0], x, x, mask[:0]), {}, {})


def test_on_the_cpu_attention_stays_one_operator():
    x = torch.randn(2, 4, 16, 8)
    assert not is_chosen_now((x, x, x, torch.ones(16, 16, dtype=torch.bool)), {}, {})
