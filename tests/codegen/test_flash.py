"""Kernels of flex_attention in Triton's interpreter: the whole way, forward and backward, beside PyTorch's operators."""

from __future__ import annotations

import math
import os

import pytest
import torch

pytest.importorskip("triton")

from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import braze
from braze import flex_kernels
from braze.graph.calls import flex, flex_ops
from braze.support import caches
from tests.codegen.libdevice import libdevice  # noqa: F401  a fixture
from tests.codegen.test_triton import offline

pytestmark = pytest.mark.usefixtures("libdevice")

LENGTHS, OFFSET = torch.tensor([53, 20]), torch.tensor(3)
torch.manual_seed(0)
TABLE, SLOPES = torch.randn(4, 37, 53), torch.rand(4)


def causal(b, h, i, j):
    return i >= j


def ragged(b, h, i, j):
    """Of different lengths; one query sees nothing."""
    return (j < LENGTHS[b]) & (i + OFFSET >= j) & (i != 5)


def alibi(s, b, h, i, j):
    return s - SLOPES[h] * (i - j).abs()


def looked_up(s, b, h, i, j):
    return s * 0.5 + TABLE[h, i, j] * (j % 3) + torch.where(i > j, s * s, 0.0)


def capped(s, b, h, i, j):
    return 3 * torch.tanh(s / 3)


@pytest.fixture
def calls(monkeypatch):
    """Kernels run here, with small tiles; which did, and how they walked."""
    seen: list[tuple[str, bool, bool]] = []
    monkeypatch.setattr(flex_ops, "takes", lambda *_: True)
    monkeypatch.setattr(flex, "reads_blocks", lambda _: True)
    monkeypatch.setattr(flex_kernels, "tiles", lambda *_: ((16, 16, 4, 1), (16, 16, 4, 1)))
    for name in ("forward", "backward"):
        original = getattr(flex_kernels.Kernels, name)

        def noted(self, *args, name=name, original=original):
            seen.append((name, self.sparse, self.full))
            return original(self, *args)

        monkeypatch.setattr(flex_kernels.Kernels, name, noted)
    return seen


def operands(dtype=torch.float32, b=2, h=4, shared=2, m=37, n=53, e=16, ev=8, batch=None):
    torch.manual_seed(1)
    shapes = (b, h, m, e), (batch or b, shared, n, e), (batch or b, shared, n, ev)
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def step(f, args):
    """(result, sums, gradients) of a training step."""
    out, lse = f(*args)
    (out.float().square().sum() + lse.masked_fill(lse == -math.inf, 0).sum()).backward()
    return [out, lse, *[x.grad for x in args]]


def agrees(score, mask, calls, kinds, dtype=torch.float32, **sizes):
    def f(q, k, v):
        return flex_attention(q, k, v, score, mask, enable_gqa=True, return_lse=True)

    have = step(braze.compile(f, fullgraph=True), operands(dtype, **sizes))
    assert calls == [("forward", *kinds), ("backward", *kinds)]
    want = step(braze.compile(f, fullgraph=True, backend="eager"), operands(dtype, **sizes))
    limit = 4e-6 if dtype is torch.float32 else 4e-3
    for a, b in zip(have, want):
        assert a.dtype is b.dtype
        assert torch.equal(a == -math.inf, b == -math.inf)
        scale = b.float().nan_to_num(neginf=0).abs().max()
        torch.testing.assert_close(a / scale, b / scale, atol=limit, rtol=limit)


@pytest.mark.parametrize(
    ("score", "dtype"),
    [*((score, torch.float16) for score in (None, alibi, looked_up, capped)), (None, torch.float32), (alibi, torch.float32)],
    ids=lambda given: getattr(given, "__name__", str(given)),
)  # fmt: skip
def test_functions_of_scores(calls, score, dtype):
    agrees(score, None, calls, (False, False), dtype)


@pytest.mark.parametrize("blocks", [16, 32])
@pytest.mark.parametrize("mask", [causal, ragged])
def test_blocks_that_the_mask_hides_are_left_out(calls, mask, blocks):
    made = create_block_mask(mask, 2, None, 37, 53, device="cpu", BLOCK_SIZE=blocks)
    agrees(alibi, made, calls, (True, True))


def test_blocks_per_head_and_blocks_of_rows_and_columns(calls):
    made = create_block_mask(
        lambda b, h, i, j: i + 8 * h >= j, 1, 4, 37, 53, device="cpu", BLOCK_SIZE=(32, 16)
    )
    agrees(None, made, calls, (True, True))


def test_blocks_of_a_size_that_tiles_do_not_divide_are_not_read(calls):
    made = create_block_mask(ragged, 2, None, 37, 53, device="cpu", BLOCK_SIZE=40)
    agrees(None, made, calls, (False, False))


def test_blocks_none_of_which_is_known_to_be_whole(calls):
    seen = create_block_mask(causal, None, None, 37, 53, device="cpu", BLOCK_SIZE=16).to_dense().bool()
    order = seen.int().argsort(descending=True, stable=True).int()
    made = BlockMask.from_kv_blocks(seen.sum(-1).int(), order, None, None, 16, causal, (37, 53))
    agrees(None, made, calls, (True, False))


@pytest.mark.parametrize(
    "sizes",
    [{"m": 1, "n": 1}, {"m": 1}, {"n": 1}, {"e": 5, "ev": 24}, {"h": 6, "shared": 1}, {"shared": 4}],
    ids=str,
)
def test_odd_sizes(calls, sizes):
    agrees(lambda s, b, h, i, j: s + 0.1 * (i - j) * h, None, calls, (False, False), **sizes)


def test_one_batch_of_keys(calls):
    made = create_block_mask(lambda b, h, i, j: i + 2 * b >= j, 2, None, 37, 53, device="cpu", BLOCK_SIZE=16)
    agrees(None, made, calls, (True, True), batch=1)


def test_operands_that_lie_otherwise(calls):
    q, k, v = [x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in operands()]
    f = lambda q, k, v: flex_attention(q, k, v, alibi, enable_gqa=True)
    have = braze.compile(f, fullgraph=True)(q, k, v)
    want = f(q, k, v)
    assert calls and have.stride() == want.stride()
    torch.testing.assert_close(have, want, atol=2e-6, rtol=2e-6)


def test_under_autocast_operands_are_cast(calls):
    def f(q, k, v):
        with torch.autocast("cpu", torch.float16):
            return flex_attention(q, k, v, alibi, enable_gqa=True)

    q, k, v = operands()
    have = braze.compile(f, fullgraph=True)(q, k, v)
    have.float().sum().backward()
    assert have.dtype is torch.float16 and q.grad.dtype is torch.float32
    assert [name for name, *_ in calls] == ["forward", "backward"]


def test_lengths_that_vary(calls):
    f = lambda q, k, v: flex_attention(
        q, k, v, lambda s, b, h, i, j: s - 0.1 * (i - j).abs(), enable_gqa=True
    )
    compiled = braze.compile(f, fullgraph=True, dynamic=True)
    for m, n in [(37, 53), (20, 20), (64, 5)]:
        q, k, v = [x.detach() for x in operands(m=m, n=n)]
        torch.testing.assert_close(compiled(q, k, v), f(q, k, v), atol=2e-6, rtol=2e-6)
    assert len(calls) == 3


def test_a_function_that_cannot_be_printed_runs_by_operators_and_says_so(calls, caplog):
    q, k, v = [x.detach() for x in operands()]
    rows = torch.randn(37, 8)
    f = lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + rows[i].sum(), enable_gqa=True)
    caches.forget()
    have = braze.compile(f, fullgraph=True)(q, k, v)
    assert not calls and "runs by PyTorch's operators" in caplog.text
    torch.testing.assert_close(have, f(q, k, v), atol=2e-6, rtol=2e-6)


@pytest.mark.slow
def test_the_kernels_compile_to_machine_code():
    printed = offline("tests.codegen.flash_offline")
    assert printed.count("flex_") == (12 if os.environ.get("BRAZE_SWEEP") == "1" else 9)
