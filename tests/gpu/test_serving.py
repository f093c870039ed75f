"""Attention's kernels and the runner's recordings on a GPU: pytest tests/gpu/test_serving.py."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from braze.cudagraphs.device import record
from braze.cudagraphs.registry import device_of
from braze.serving.engine.attention import operators, reference, triton_rope
from braze.serving.engine.attention import triton_paged as kernels
from braze.serving.engine.models import experts
from braze.serving.step.context import AttentionMetaData, forward_context
from tests.serving.engine.batches import Batch, batch, dense
from tests.serving.engine.test_attention import case
from tests.serving.engine.test_experts import exact, mixture
from tests.serving.engine.test_rope_attention import EPS, Layer
from tests.serving.engine.test_runner import Trace
from tests.serving.engine.tiny import engine, tiny

#: heads of models that are served: heads, heads of the cache, dim, dim of values
REAL = {
    "llama": (32, 8, 64, 64),
    "qwen3": (16, 8, 128, 128),
    "odd": (12, 3, 80, 80),
    "wide": (8, 8, 256, 256),
}
#: how far from float64 kernels may be, in the type's own steps
STEPS = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
#: each form is built once a model and type: these are one of each
FEW = ("one token of a long request", "decode with padded requests", "prompts, chunks and decodes")


pytestmark = pytest.mark.usefixtures("exact_products")


def here(b: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(t.cuda() for t in b.metadata)  # type: ignore[return-value]


@pytest.mark.parametrize("dtype", STEPS, ids=str)
@pytest.mark.parametrize("heads", REAL)
@pytest.mark.parametrize("shape", [*FEW, "a long decode", "a long prompt"])
def test_the_kernels_are_near_float64(shape, heads, dtype):
    long = {"a long decode": ([1, 1], [3000, 17]), "a long prompt": ([700, 1], [900, 1200])}
    if shape in long:
        page, (queries, lengths) = 16, long[shape]
        blocks = sum(-(-n // page) for n in lengths) + 2
        b = batch(queries, lengths, page, blocks)
    else:
        b, page, blocks = case(shape)
    many, shared, dim, value_dim = REAL[heads]
    q = torch.randn(b.tokens, many, dim).to(dtype)
    k, v = (torch.randn(blocks, page, shared, d).to(dtype) for d in (dim, value_dim))
    out = torch.full((b.tokens + 3, many, value_dim), 7.0, dtype=dtype, device="cuda")
    scale = dim**-0.5
    kernels.paged_attention(
        q.cuda(), k.cuda(), v.cuda(), out, *here(b), scale, int(b.cu_seqlens.diff().max())
    )
    exact = dense(b, q, k, v, scale)
    assert (out[: b.tokens].cpu().double() - exact).abs().max() <= 4 * STEPS[dtype] * exact.abs().max().clamp(
        min=1
    )
    assert (out[b.tokens :] == 7).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", FEW)
def test_latent_attention_of_deepseeks_sizes_is_near_float64(shape, dtype):
    b, page, blocks = case(shape)
    q = torch.randn(b.tokens, 16, 576).to(dtype)
    cache = torch.randn(blocks, page, 1, 576).to(dtype)
    out = torch.empty(b.tokens, 16, 512, dtype=dtype, device="cuda")
    there = cache.cuda()
    kernels.paged_attention(
        q.cuda(), there, there[..., :512], out, *here(b), 0.04, int(b.cu_seqlens.diff().max())
    )
    exact = dense(b, q, cache, cache[..., :512], 0.04)
    assert (out.cpu().double() - exact).abs().max() <= 4 * STEPS[dtype] * exact.abs().max().clamp(min=1)


def test_slots_of_minus_one_write_nothing():
    k, v = torch.randn(5, 2, 8, device="cuda"), torch.randn(5, 2, 16, device="cuda")
    found, wanted = [], []
    for write, into in ((kernels.write_cache, found), (reference.write_cache, wanted)):
        into += [torch.zeros(3, 4, 2, 8, device="cuda"), torch.zeros(3, 4, 2, 16, device="cuda")]
        write(k, v, *into, torch.tensor([6, -1, 0, 11, -1], device="cuda"))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", STEPS, ids=str)
@pytest.mark.parametrize("heads", ["llama", "qwen3", "odd"])
@pytest.mark.parametrize("shape", [*FEW, "a long decode", "a long prompt", "drafts"])
def test_attention_from_the_projection_is_near_float64(shape, heads, dtype):
    """Again and again: programs that share a request's keys arrive in any order, and leave nothing behind."""
    long = {
        "a long decode": ([1, 1], [3000, 17]),
        "a long prompt": ([700, 1], [900, 1200]),
        "drafts": ([4, 4], [900, 5]),
    }
    if shape in long:
        page, (queries, lengths) = 16, long[shape]
        blocks = sum(-(-n // page) for n in lengths) + 2
        b = batch(queries, lengths, page, blocks)
    else:
        b, page, blocks = case(shape)
    many, shared, dim, _ = REAL[heads]
    layer = Layer(b, (many, shared, dim, heads != "llama"), page, blocks, dtype)
    layer.arrivals = torch.zeros(len(b.seq_lens) * shared, dtype=torch.int32)
    exact = layer.exact(b)
    there, longest, slots = layer.to("cuda"), int(b.cu_seqlens.diff().max()), b.slots.cuda()
    first = None
    for _ in range(50):
        out = torch.full_like(there.empty(), 7.0, device="cuda")
        triton_rope.rope_attention(*there.tensors(), out, there.arrivals, *here(b), slots, 0.3, EPS, longest)
        assert first is None or torch.equal(out, first)
        first = out
    assert not there.arrivals.any()
    assert (out[b.tokens :] == 7).all()
    for found, wanted in zip((out[: b.tokens], there.keys, there.values), exact, strict=True):
        bound = 4 * STEPS[dtype] * wanted.abs().max().clamp(min=1)
        assert (found.cpu().double() - wanted).abs().max() <= bound


def test_a_recording_of_grouped_experts_sorts_what_each_replay_chooses():
    device = device_of("cuda:0")
    given = [t.cuda() for t in mixture(24, 16, 4, 64, 32, torch.bfloat16)]
    assert experts.grouped_here(given[0], given[1])
    out = torch.empty_like(given[0])
    torch.ops.braze.chosen_experts(*given, out)
    graph, _ = record(device, device.new_pool(), lambda: torch.ops.braze.chosen_experts(*given, out))
    for seed in range(4):
        torch.manual_seed(seed)
        given[0].normal_()
        given[3].copy_(torch.stack([torch.randperm(16 if seed else 4)[:4] for _ in range(24)]))
        graph.replay()
        wanted = exact(*(t.cpu() for t in given))
        assert (out.cpu().double() - wanted).abs().max() < 0.03 * wanted.abs().max()


def test_a_recording_reads_lengths_and_tables_when_it_is_replayed():
    device, page, blocks = device_of("cuda:0"), 16, 200
    width = 130
    ends = torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda")
    lens = torch.ones(2, dtype=torch.int32, device="cuda")
    tables = torch.zeros(2, width, dtype=torch.int32, device="cuda")
    slots = torch.zeros(2, dtype=torch.int64, device="cuda")
    keys, values = (torch.randn(blocks, page, 2, 64, device="cuda") for _ in range(2))
    q, out = torch.randn(2, 8, 64, device="cuda"), torch.empty(2, 8, 64, device="cuda")
    k, v = (torch.randn(2, 2, 64, device="cuda") for _ in range(2))
    metadata = AttentionMetaData(ends, lens, tables, slots, 1, width * page, 2)

    def step() -> None:
        torch.ops.braze.unified_attention_with_output(q, k, v, out, 0, 0.125)

    with forward_context(metadata, kv_cache_data={"layer_0": operators.KVCache(keys, values)}):
        step()
        graph, _ = record(device, device.new_pool(), step)
    for lengths in ([3, 1000], [2000, 17], [1, 1]):
        b = batch([1, 1], lengths, page, blocks)
        lens.copy_(b.seq_lens)
        tables[:, : b.block_tables.shape[1]].copy_(b.block_tables)
        slots.copy_(b.slots)
        graph.replay()
        exact = dense(b, q.cpu(), keys.cpu(), values.cpu(), 0.125)
        torch.testing.assert_close(out.cpu().double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "mode", "drafts", "split"),
    [
        ("llama", "FULL", 0, None),
        ("llama", "FULL_DECODE_ONLY", 2, None),
        ("deepseek", "FULL_DECODE_ONLY", 0, None),
        ("qwen3", "FULL_AND_PIECEWISE", 0, "graph"),
        ("llama", "PIECEWISE", 2, "capture"),
    ],
)
def test_every_mode_gives_the_tokens_of_plain_steps(name, mode, drafts, split):
    model = tiny(name).cuda()
    plain = engine(model, blocks=40)
    options = dict(cudagraph_mode=mode, drafts=drafts, split=split)
    recorded = engine(model, blocks=40, graphs=device_of("cuda:0"), **options)
    for seed in range(3):
        trace = Trace(seed)
        assert trace.run(recorded) == trace.run(plain)
    counts = recorded.runner.counts
    assert counts["steps_full"] + counts["steps_piecewise"] > 10
    assert not recorded.runner.recordings.failed


def test_memory_is_measured_before_the_cache_is_made():
    runner = engine(tiny("llama").cuda()).runner
    left = runner.profile_memory()
    total = torch.cuda.get_device_properties(0).total_memory
    assert 0.8 * total < left < 0.9 * total
