"""Attention over a paged cache: the reference against dense attention in float64, the kernels against the reference."""

from __future__ import annotations

import pytest
import torch

from braze.cudagraphs.device import record
from braze.serving.engine.attention import operators, reference
from braze.serving.step.context import AttentionMetaData, forward_context
from braze.support.errors import UserError
from tests.codegen.triton_bench import computed_bounds
from tests.serving.engine.batches import Batch, batch, dense

kernels = pytest.importorskip("braze.serving.engine.attention.triton_paged")

#: new tokens, tokens in the cache, block size, padded requests
SHAPES = {
    "one token": ([1], [1], 4, 0),
    "one token of a long request": ([1], [33], 4, 0),
    "decode at the borders of blocks": ([1, 1, 1, 1], [15, 16, 17, 32], 16, 0),
    "decode with padded requests": ([1, 1], [5, 40], 8, 3),
    "a prompt": ([19], [19], 8, 0),
    "a chunk behind a prefix": ([7], [23], 8, 0),
    "prompts, chunks and decodes": ([5, 1, 16, 3], [5, 20, 17, 40], 8, 2),
    "an empty request among others": ([3, 0, 2], [9, 0, 2], 4, 0),
    "two tokens each, as drafts are verified": ([2, 2, 2], [2, 9, 34], 16, 1),
}
#: heads, heads of the cache, dim, dim of values
HEADS = {
    "one head": (1, 1, 16, 16),
    "groups": (4, 2, 8, 8),
    "odd groups": (6, 2, 24, 24),
    "many heads": (8, 8, 32, 32),
}


def tensors(b: Batch, heads: tuple[int, int, int, int], page: int, blocks: int, dtype: torch.dtype):
    """(query, key cache, value cache) of random numbers."""
    many, shared, dim, value_dim = heads
    return (
        torch.randn(b.tokens, many, dim, dtype=dtype),
        torch.randn(blocks, page, shared, dim, dtype=dtype),
        torch.randn(blocks, page, shared, value_dim, dtype=dtype),
    )


def case(name: str) -> tuple[Batch, int, int]:
    queries, lengths, page, padding = SHAPES[name]
    blocks = sum(-(-n // page) for n in lengths) + 2
    return batch(queries, lengths, page, blocks, padding), page, blocks


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_dense_attention_of_each_request(shape: str, heads: str):
    b, page, blocks = case(shape)
    q, k, v = tensors(b, HEADS[heads], page, blocks, torch.float64)
    out = torch.full((b.tokens, *q.shape[1:2], v.shape[-1]), float("nan"), dtype=torch.float64)
    reference.paged_attention(q, k, v, out, *b.metadata, 0.3)
    torch.testing.assert_close(out, dense(b, q, k, v, 0.3), rtol=1e-12, atol=1e-12)


#: each shape with one kind of heads, each kind of heads with one shape: the interpreter takes its time
PAIRS = [(shape, "odd groups") for shape in SHAPES] + [
    ("prompts, chunks and decodes", heads) for heads in HEADS
]


@computed_bounds
@pytest.mark.parametrize(("shape", "heads"), dict.fromkeys(PAIRS))
def test_the_kernels_are_as_near_float64_as_the_reference(shape: str, heads: str):
    b, page, blocks = case(shape)
    q, k, v = tensors(b, HEADS[heads], page, blocks, torch.float32)
    out = torch.full((b.tokens + 2, q.shape[1], v.shape[-1]), 7.0)
    longest = int(b.cu_seqlens.diff().max())
    kernels.paged_attention(q, k, v, out, *b.metadata, 0.3, longest)
    torch.testing.assert_close(out[: b.tokens].double(), dense(b, q, k, v, 0.3), rtol=2e-5, atol=2e-6)
    assert (out[b.tokens :] == 7).all(), "rows of padding are left alone"


@computed_bounds
@pytest.mark.parametrize("shape", ["decode with padded requests", "prompts, chunks and decodes"])
def test_a_latent_cache_is_read_once_for_keys_and_values(shape: str):
    b, page, blocks = case(shape)
    rank, rope = 32, 16
    q = torch.randn(b.tokens, 4, rank + rope)
    cache = torch.randn(blocks, page, 1, rank + rope)
    values = cache[..., :rank]
    out = torch.empty(b.tokens, 4, rank)
    kernels.paged_attention(q, cache, values, out, *b.metadata, 0.2, int(b.cu_seqlens.diff().max()))
    torch.testing.assert_close(out.double(), dense(b, q, cache, values, 0.2), rtol=2e-5, atol=2e-6)


@computed_bounds
def test_half_precision_stays_near_float64():
    b, page, blocks = case("prompts, chunks and decodes")
    q, k, v = tensors(b, HEADS["groups"], page, blocks, torch.float16)
    out, plain = torch.empty_like(q), torch.empty_like(q)
    kernels.paged_attention(q, k, v, out, *b.metadata, 0.3, 16)
    reference.paged_attention(q, k, v, plain, *b.metadata, 0.3)
    exact = dense(b, q, k, v, 0.3)
    assert (out - exact).abs().max() <= 2 * (plain - exact).abs().max() + 1e-3


def test_splits_are_where_few_rows_are_to_fill_the_device():
    assert kernels.splits_of(1, 1, 132) == 32
    assert kernels.splits_of(264, 1, 132) == 1
    assert kernels.splits_of(1, 512, 132) == 1, "a prompt has rows enough"


@pytest.mark.parametrize("write", [reference.write_cache, kernels.write_cache], ids=["reference", "kernel"])
def test_slots_of_minus_one_write_nothing(write):
    keys, values = torch.zeros(3, 4, 2, 8), torch.zeros(3, 4, 2, 16)
    k, v = torch.randn(5, 2, 8), torch.randn(5, 2, 16)
    write(k, v, keys, values, torch.tensor([6, -1, 0, 11, -1]))
    assert torch.equal(keys.flatten(0, 1)[[6, 0, 11]], k[[0, 2, 3]])
    assert torch.equal(values.flatten(0, 1)[[6, 0, 11]], v[[0, 2, 3]])
    others = [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert not keys.flatten(0, 1)[others].any()
    assert not values.flatten(0, 1)[others].any()


@pytest.mark.parametrize("write", [reference.write_cache, kernels.write_cache], ids=["reference", "kernel"])
def test_fewer_slots_than_rows_write_those(write):
    """A step that runs by pieces has padded rows, and metadata of the real ones."""
    keys = torch.zeros(2, 4, 1, 8)
    k = torch.randn(4, 1, 8)
    write(k, None, keys, None, torch.tensor([3, 4]))
    assert torch.equal(keys.flatten(0, 1)[[3, 4]], k[:2])
    assert not keys.flatten(0, 1)[[0, 1, 2, 5, 6, 7]].any()


def metadata(b: Batch) -> AttentionMetaData:
    longest = int(b.cu_seqlens.diff().max())
    return AttentionMetaData(
        b.cu_seqlens, b.seq_lens, b.block_tables, b.slots, longest, int(b.seq_lens.max()), b.tokens
    )


def test_the_operator_writes_its_layers_cache_and_attends_to_it():
    b, page, blocks = case("a chunk behind a prefix")
    q, keys, values = tensors(b, HEADS["groups"], page, blocks, torch.float32)
    k, v = torch.randn(b.tokens, 2, 8), torch.randn(b.tokens, 2, 8)
    caches = {"layer_3": operators.KVCache(keys, values)}
    out = torch.empty_like(q)
    with forward_context(metadata(b), kv_cache_data=caches):
        torch.ops.braze.unified_attention_with_output(q, k, v, out, 3, 0.3)
    assert torch.equal(keys.flatten(0, 1)[b.slots], k)
    torch.testing.assert_close(out.double(), dense(b, q, keys, values, 0.3), rtol=2e-5, atol=2e-6)


def test_a_step_without_metadata_gives_zeros():
    q, k, v, out = (torch.randn(3, 2, 8) for _ in range(4))
    torch.ops.braze.unified_attention_with_output(q, k, v, out, 0, 1.0)
    assert not out.any()


def test_a_layer_without_a_cache_is_told():
    b, _, _ = case("one token")
    q = torch.randn(1, 1, 8)
    with forward_context(metadata(b)), pytest.raises(UserError) as error:
        torch.ops.braze.unified_attention_with_output(q, q, q, q.clone(), 5, 1.0)
    assert error.value.code == "BZ7401"
    assert "layer 5" in str(error.value)


def test_a_recording_reads_lengths_and_tables_when_it_is_replayed(simulated):
    """The metadata's tensors change between replays; the Python that read the context does not run again."""
    page, blocks = 8, 9
    first, second = (batch([1, 1], lengths, page, blocks) for lengths in ([3, 9], [17, 30]))
    width = second.block_tables.shape[1]
    live = batch([1, 1], [3, 9], page, blocks)
    live.block_tables = torch.zeros(2, width, dtype=torch.int32)
    q, keys, values = tensors(live, HEADS["groups"], page, blocks, torch.float32)
    k, v, out = torch.randn(2, 2, 8), torch.randn(2, 2, 8), torch.empty(2, 4, 8)
    caches = {"layer_0": operators.KVCache(keys, values)}
    with forward_context(metadata(live), kv_cache_data=caches):
        graph, _ = record(
            simulated,
            simulated.new_pool(),
            lambda: torch.ops.braze.unified_attention_with_output(q, k, v, out, 0, 0.3),
        )
    for b in (first, second):
        live.seq_lens.copy_(b.seq_lens)
        live.slots.copy_(b.slots)
        live.block_tables[:, : b.block_tables.shape[1]].copy_(b.block_tables)
        graph.replay()
        torch.testing.assert_close(out.double(), dense(b, q, keys, values, 0.3), rtol=2e-5, atol=2e-6)
