"""The processor's kernel of attention against dense attention in float64, and against what else there is."""

from __future__ import annotations

import pytest
import torch

from braze.serving.engine.attention import c_paged, reference
from braze.support.errors import Unsupported
from tests.serving.engine.batches import batch, dense
from tests.serving.engine.test_attention import HEADS, SHAPES, case, tensors

WIDE = {
    "no whole vector": (2, 1, 5, 3),
    "vectors and a rest": (4, 2, 67, 35),
    "the widest": (1, 1, 1024, 1024),
}


def attend(b, q, k, v, scale=0.3, fill=7.0):
    out = torch.full((b.tokens + 2, q.shape[1], v.shape[-1]), fill, dtype=q.dtype)
    c_paged.paged_attention(q, k, v, out, *b.metadata, scale, int(b.cu_seqlens.diff().max()))
    assert (out[b.tokens :] == fill).all(), "rows of padding are left alone"
    return out[: b.tokens]


@pytest.mark.parametrize("heads", HEADS | WIDE)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_as_near_float64_as_the_reference(shape: str, heads: str):
    b, page, blocks = case(shape)
    q, k, v = tensors(b, (HEADS | WIDE)[heads], page, blocks, torch.float32)
    q *= (16 / q.shape[-1]) ** 0.5
    torch.testing.assert_close(attend(b, q, k, v).double(), dense(b, q, k, v, 0.3), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", ["groups", "odd groups"])
def test_half_precision_stays_near_float64(dtype: torch.dtype, heads: str):
    b, page, blocks = case("prompts, chunks and decodes")
    q, k, v = tensors(b, HEADS[heads], page, blocks, dtype)
    plain = torch.empty_like(q)
    reference.paged_attention(q, k, v, plain, *b.metadata, 0.3)
    exact = dense(b, q, k, v, 0.3)
    assert (attend(b, q, k, v) - exact).abs().max() <= 1.01 * (plain - exact).abs().max() + 1e-3


def test_a_latent_cache_and_parts_of_larger_tensors():
    b, page, blocks = case("decode with padded requests")
    q = torch.randn(b.tokens, 5, 60)[:, 1:, 5:53]
    cache = torch.randn(blocks, page, 3, 64)[:, :, 1:2, :48]
    torch.testing.assert_close(
        attend(b, q, cache, cache[..., :32], 0.2).double(),
        dense(b, q, cache, cache[..., :32], 0.2),
        rtol=2e-5,
        atol=2e-6,
    )


def test_a_rows_numbers_do_not_depend_on_who_is_beside_it():
    """Bit for bit: modes pad steps to other sizes, and give the same tokens."""
    b = batch([1, 2, 16], [50, 33, 90], 8, 30)
    q, k, v = tensors(b, HEADS["groups"], 8, 30, torch.float32)
    whole = attend(b, q, k, v)
    alone, out = torch.tensor([0, 1], dtype=torch.int32), torch.empty(1, 4, 8)
    _, lengths, tables = b.metadata
    c_paged.paged_attention(q[:1], k, v, out, alone, lengths[:1], tables[:1], 0.3, 1)
    assert torch.equal(out[0], whole[0])


def test_special_values_are_the_references():
    b, page, blocks = case("decode at the borders of blocks")
    for where in ("query", "keys", "values"):
        for value in (float("nan"), float("inf"), -float("inf")):
            q, k, v = tensors(b, HEADS["one head"], page, blocks, torch.float32)
            {"query": q, "keys": k, "values": v}[where].view(-1)[3] = value
            plain = torch.zeros_like(q)
            reference.paged_attention(q, k, v, plain, *b.metadata, 0.3)
            torch.testing.assert_close(attend(b, q, k, v), plain, equal_nan=True, rtol=2e-5, atol=2e-6)


def test_what_it_does_not_know_the_reference_does(monkeypatch):
    b, page, blocks = case("prompts, chunks and decodes")

    def checked(q, k, v):
        torch.testing.assert_close(attend(b, q, k, v).double(), dense(b, q, k, v, 0.3), rtol=2e-5, atol=2e-6)

    q, k, v = tensors(b, HEADS["groups"], page, blocks, torch.float64)
    checked(q, k, v)
    q, k, v = (x.float() for x in (q, k, v))
    checked(q.mT.contiguous().mT, k, v)
    c_paged._kernel.cache_clear()

    def none(*_):
        raise Unsupported("BZ5001", "no C compiler found")

    monkeypatch.setattr(c_paged.functions, "address_of", none)
    assert c_paged._kernel("f32") is None
    checked(q, k, v)
    c_paged._kernel.cache_clear()
