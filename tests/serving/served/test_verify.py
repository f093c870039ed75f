"""Replays are compared with eager: what is wrong is found, named, and never returned."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from braze.serving import AttentionMetaData
from braze.serving.served.batch import forward_context
from braze.serving.served.serve import serve
from braze.serving.served.verify import difference
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("simulated")
WORDS = dict(
    level=0, cudagraph_mode="FULL", capture_sizes=[1, 2, 4, 8], max_num_seqs=8, max_num_batched_tokens=32
)


class Scaled(nn.Module):
    """Reads a number that Python holds: a recording has the one of its time."""

    def __init__(self):
        super().__init__()
        self.scale = 1

    def forward(self, x):
        return x * self.scale


def test_a_right_recording_passes():
    m = serve(Scaled(), verify="always", **WORDS)
    for n in (3, 5, 8, 1):
        x = torch.randn(n)
        assert m(x).equal(x)
    assert m.stats().verified == 4
    assert m.stats().mismatches == ()


def test_a_wrong_replay_is_told_not_returned_and_not_used_again():
    m = serve(Scaled(), verify="always", **WORDS)
    x = torch.randn(3)
    m(x)
    m.model.scale = 2
    with logged() as said:
        assert m(x).equal(x * 2)
    assert any("BZ7312" in text and "the recording of the whole call" in text for text in said)
    assert m.stats().captured == 3
    assert "differed from eager" in m.stats().failures[0][1]
    assert m.dispatch(3).descriptor.num_tokens == 8


def test_a_share_of_the_replays_is_compared():
    m = serve(Scaled(), verify="sample:1/4", **WORDS)
    for _ in range(12):
        m(torch.randn(2))
    assert m.stats().verified == 3


def test_state_that_a_step_writes_is_written_once():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(()))

        def forward(self, x):
            self.total += x.sum() * 0 + 1
            return x + 1

    m = serve(Counter(), verify="always", **WORDS)
    for _ in range(5):
        m(torch.randn(3))
    assert m.model.total == 5
    assert m.stats().mismatches == ()


def test_state_that_padding_spoils_is_found():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(()))

        def forward(self, x):
            self.rows += len(x)
            return x + 1

    m = serve(Counter(), verify="always", **WORDS)
    m(torch.randn(3))
    assert "the module at the padded size, without recordings: state 0 differs" in m.stats().mismatches[0]
    assert m.model.rows == 3


def test_inputs_that_the_model_writes_are_staged_for_each_run():
    class Writes(nn.Module):
        def forward(self, x):
            x += 1
            return x * 2

    m = serve(Writes(), verify="always", **WORDS)
    x = torch.randn(3)
    assert m(x.clone()).equal((x + 1) * 2)
    assert (m.stats().verified, m.stats().mismatches) == (1, ())


class Cached(nn.Module):
    """Writes its rows into a cache and sums what the cache holds of them, by the forward context."""

    def forward(self, x):
        from braze.serving import get_forward_context

        context = get_forward_context()
        cache = context.kv_cache_data["layer"]
        slots = context.attn_metadata.slot_mapping
        flat = cache.view(-1, cache.shape[-1])
        where = torch.where(slots < 0, len(flat) - 1, slots)
        flat.index_copy_(0, where, x)
        return flat.index_select(0, where) * 2


def metadata(n: int) -> AttentionMetaData:
    return AttentionMetaData(
        torch.arange(n + 1, dtype=torch.int32),
        torch.ones(n, dtype=torch.int32),
        torch.zeros(n, 2, dtype=torch.int32),
        torch.randperm(12)[:n],
        1,
        16,
        n,
    )


def test_rows_of_caches_are_kept_and_compared():
    cache = torch.zeros(4, 4, 3)
    caches = {"layer": cache}
    m = serve(Cached(), verify="always", **WORDS)
    for n in (3, 2, 5, 8, 1):
        x, step = torch.randn(n, 3), metadata(n)
        with forward_context(step, kv_cache_data=caches):
            assert m(x).equal(x * 2)
        assert cache.view(-1, 3)[step.slot_mapping].equal(x)
    assert m.stats().mismatches == ()
    assert m.stats().verified == 5


def test_memory_of_recordings_is_spoilt_before_a_verified_replay():
    """A recording that reads what another left in their pool shows."""

    m = serve(Scaled(), verify="always", pool="shared", **WORDS)
    x = torch.randn(4)
    m(x)
    found = [memory for pool in m._runnable.pools.pools() for memory in pool.memory()]
    assert found
    assert m.stats().mismatches == ()


def test_differences_in_words():
    x = torch.ones(3, 2)
    assert difference([x], [x.clone()]) == ""
    assert difference([x], [x + 1e-7]) == ""
    y = x.clone()
    y[1, 0] = 2
    assert difference([x, x], [x, y]) == "output 1 differs from row 1 on"
    assert difference([x], [x, x]) == "1 outputs for 2"
    assert "not torch.float32 of (2, 3)" in difference([x], [x.T])
    assert difference([1], [2]) == "output 0 is 1, not 2"
    nan = torch.tensor([float("nan"), 1.0])
    assert difference([nan], [nan.clone()]) == ""
    assert difference([nan], [torch.ones(2)]) == "output 0 differs from row 0 on"
    assert difference([torch.empty(0)], [torch.empty(0)]) == ""
