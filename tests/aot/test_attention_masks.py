"""A mask of bools becomes numbers once for all attention that reads it, as the kernel that PyTorch chooses wants them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.aot.passes import attention
from braze.aot.passes.attention import is_chosen_now
from braze.aot.trace import trace as aot_trace
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


@pytest.mark.parametrize("bias", [None, (16, 16), (2, 1, 16, 16), (1, 5, 16, 16), (2, 5, 16, 16)])
def test_heads_that_are_more_than_a_launch_may_have_take_the_place_of_batches(as_on_a_gpu, monkeypatch, bias):
    """PyTorch's memory-efficient kernel goes by so many batches at once, and is refused with as many heads."""
    monkeypatch.setattr(attention, "MOST_HEADS", 4)
    seen, of = [], attention.with_heads_as_batches

    def noted(args, kwargs):
        seen.append(of(args, kwargs))
        return seen[-1]

    monkeypatch.setattr(aot_trace, "with_heads_as_batches", noted)
    mask = None if bias is None else torch.linspace(-1, 1, math.prod(bias)).reshape(bias)

    def step(f):
        x = torch.randn(2, 5, 16, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = f(x * 1.5)
        y.square().sum().backward()
        return y.detach(), x.grad

    def attend(q):
        return F.scaled_dot_product_attention(q, q.sin(), q.cos(), mask, is_causal=mask is None)

    ours, eager = step(braze.compile(attend, options={"verify": 2})), step(attend)
    (given,) = seen
    assert given["query"].shape == (5, 2, 16, 8)
    assert ours[0].stride() == eager[0].stride()
    for mine, theirs in zip(ours, eager):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("how", ["few", "half", "dropout", "shared"])
def test_other_attention_keeps_its_heads(as_on_a_gpu, monkeypatch, how):
    monkeypatch.setattr(attention, "MOST_HEADS", 9 if how == "few" else 4)
    x = torch.randn(2, 5, 16, 8, dtype=torch.float16 if how == "half" else torch.float32)
    keys = x[:, :1] if how == "shared" else x
    given = {"dropout_p": 0.1} if how == "dropout" else {}
    assert attention.with_heads_as_batches((x, keys, keys), given) is None
