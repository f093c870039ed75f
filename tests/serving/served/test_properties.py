"""Properties of served models: whatever the mode, the sizes and the batches, the module's results, and nothing else recorded."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from braze import forward_context, serve
from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving import AttentionMetaData, CUDAGraphMode, get_forward_context
from tests.serving.cases import share

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
SLOTS = 40


class Cached(nn.Module):
    """Attends to one row of a cache per token: writes it where the metadata says, and reads the one before it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, ids):
        context = get_forward_context()
        cache = context.kv_cache_data["layer"].view(-1, 4)
        slots = context.attn_metadata.slot_mapping
        # rows of padding go to the last one, which is nobody's
        where = torch.where(slots < 0, SLOTS - 1, slots)
        cache.index_copy_(0, where, self.table(ids))
        return torch.tanh(cache.index_select(0, where)) + cache.index_select(0, (where - 1).clamp(min=0))


@st.composite
def traces(draw: st.DrawFn):
    """Batches of requests with so many tokens each, and the slots of these."""
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        requests = draw(st.integers(1, 6))
        uniform = draw(st.booleans())
        lengths = (
            [draw(st.integers(1, 2))] * requests
            if uniform
            else [draw(st.integers(1, 4)) for _ in range(requests)]
        )
        slots = draw(st.permutations(range(SLOTS - 1)))[: sum(lengths)]
        steps.append((lengths, slots))
    return steps


def metadata(lengths: list[int], slots: list[int]) -> AttentionMetaData:
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    n = len(lengths)
    return AttentionMetaData(
        ends,
        torch.tensor(lengths, dtype=torch.int32),
        torch.zeros(n, 2, dtype=torch.int32),
        torch.tensor(slots),
        max(lengths),
        64,
        sum(lengths),
    )


@settings(max_examples=share(1) // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["NONE", "FULL", "FULL_DECODE_ONLY"]),
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sampled_from(["per_tier", "shared"]),
    st.sampled_from(["eager", "lazy"]),
    st.sampled_from(["off", "always"]),
    traces(),
)
def test_any_trace_in_any_mode_gives_the_modules_results_and_state(mode, sizes, pool, capture, verify, trace):
    """(b), (c) and (g), end to end: tails and memory of recordings are spoilt where replays are verified."""
    register("cpu", SimulatedGraphs)
    try:
        torch.manual_seed(len(trace))
        model = Cached()
        cache, reference = torch.randn(SLOTS, 4), torch.zeros(SLOTS, 4)
        reference.copy_(cache)
        caches = {"layer": cache}
        m = serve(
            model, level=0, cudagraph_mode=mode, capture_sizes=[1, *sizes] if mode != "NONE" else "auto", pool=pool, capture=capture,
            verify=verify, max_num_seqs=8, max_num_batched_tokens=32, num_speculative_tokens=1,
        )  # fmt: skip
        for lengths, slots in trace:
            ids = torch.randint(0, 50, (sum(lengths),))
            step = metadata(lengths, slots)
            with forward_context(step, kv_cache_data=caches):
                found = m(ids)
            with forward_context(step, kv_cache_data={"layer": reference}), torch.no_grad():
                expected = model(ids)
            assert found.equal(expected)
            assert cache[: SLOTS - 1].equal(reference[: SLOTS - 1])
            m.idle()
        stats = m.stats()
        assert stats.mismatches == ()
        assert mode != "NONE" or (stats.captured, stats.bytes, stats.replayed) == (0, 0, ())
        assert all(name in {"FULL"} for name, _ in stats.replayed)
        keys = {(FULL, key) for key in m.dispatcher.keys(FULL)}
        assert set(m._recordings.captured) <= keys
        assert verify == "off" or stats.verified == sum(dict(stats.replayed).values())
    finally:
        register("cpu", None)
