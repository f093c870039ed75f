"""Properties of dispatch that hold for every configuration and batch.

``BRAZE_CASES=10000`` runs that many cases in all; without it a few hundred.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braze.serving import CUDAGraphMode
from braze.serving.policy.data_parallel import Batch, dispatch_again, synchronise
from braze.serving.policy.dispatch import Dispatcher
from tests.serving.cases import share

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL
QUIET = dict(deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def dispatchers(draw: st.DrawFn) -> Dispatcher:
    return Dispatcher(
        draw(st.sampled_from(CUDAGraphMode)),
        draw(st.lists(st.integers(1, 70), min_size=1, max_size=8)),
        max_num_seqs=draw(st.integers(1, 40)),
        max_num_batched_tokens=draw(st.integers(1, 80)),
        uniform_query_lens=draw(st.sampled_from([(1,), (1, 2), (3,), (4, 1)])),
        variants=draw(st.sampled_from([(None,), (None, "a")])),
        enforce_eager=draw(st.booleans()) and draw(st.booleans()),
    )


@st.composite
def batches(draw: st.DrawFn, most: int = 40) -> Batch:
    """Requests of some tokens each; all as many in half of the cases, none in a few."""
    requests = draw(st.integers(0, most))
    if draw(st.booleans()):
        q = draw(st.integers(1, 4))
        return Batch(requests * q, requests, q if requests else 0)
    tokens = [draw(st.integers(1, 9)) for _ in range(min(requests, 12))]
    return Batch(sum(tokens), len(tokens), max(tokens, default=0))


def decide(d: Dispatcher, b: Batch, **more):
    return d.dispatch(b.num_tokens, b.num_reqs, max_query_len=b.max_query_len, variant=b.variant, **more)


@settings(max_examples=share(4), **QUIET)
@given(dispatchers(), batches())
def test_dispatch_is_pure_and_pads_least(d, b):
    """(a) The same answer twice; what it pads to holds the batch, and no smaller recording of that mode would."""
    if b.num_reqs > d.max_num_seqs or b.num_tokens > d.max_num_batched_tokens:
        return
    found = decide(d, b)
    assert found == decide(d, b)
    size = found.descriptor
    assert size.num_tokens >= b.num_tokens
    assert size.num_reqs is None or size.num_reqs >= b.num_reqs
    if found.mode is NONE:
        return
    uniform = b.num_reqs * b.max_query_len == b.num_tokens
    q = b.max_query_len if uniform and found.mode is FULL and d.mode.separate_routine() else 0
    rungs = [k for k in d.keys(found.mode) if k.uniform_query_len == q and k.variant == b.variant]
    assert size.num_tokens == min(k.num_tokens for k in rungs if k.num_tokens >= b.num_tokens)
    assert size.uniform_query_len in (0, b.max_query_len)


@settings(max_examples=share(3), **QUIET)
@given(dispatchers(), batches(), batches())
def test_a_larger_batch_is_padded_to_no_less(d, b, c):
    """(a) Monotone, within one ladder."""
    small, large = sorted((b, c), key=lambda batch: (batch.num_tokens, batch.num_reqs))
    one, other = decide(d, small), decide(d, large)
    alike = (one.mode, one.descriptor.uniform_query_len) == (other.mode, other.descriptor.uniform_query_len)
    if alike:
        assert one.descriptor.num_tokens <= other.descriptor.num_tokens


@settings(max_examples=share(1), **QUIET)
@given(dispatchers(), batches())
def test_none_neither_captures_nor_pads(d, b):
    """(b)"""
    found = decide(d, b)
    if d.mode is NONE:
        assert found.mode is NONE
        assert not any(d.keys(mode) for mode in (PIECEWISE, FULL))
    if found.mode is NONE:
        assert (found.descriptor.num_tokens, found.descriptor.num_reqs) == (b.num_tokens, b.num_reqs)
        assert found.reason


@settings(max_examples=share(2), **QUIET)
@given(dispatchers(), st.lists(batches(), min_size=1, max_size=4))
def test_all_ranks_decide_the_same_and_each_batch_fits(d, ranks):
    """(d) From the same rows, the same decision; it holds every rank's batch."""
    rows: list = []
    for b in ranks:
        synchronise(b, decide(d, b), lambda row: rows.append(tuple(row)) or [row])
    agreed = [dispatch_again(d, rows) for _ in ranks]
    assert len(set(agreed)) == 1
    found = agreed[0].decision
    if found.mode is NONE:
        assert agreed[0].tokens_across_ranks == tuple(b.num_tokens for b in ranks)
        return
    assert set(agreed[0].tokens_across_ranks) == {found.descriptor.num_tokens}
    for b in ranks:
        assert b.num_tokens <= found.descriptor.num_tokens
        assert found.descriptor.num_reqs is None or b.num_reqs <= found.descriptor.num_reqs
        if found.descriptor.uniform and b.num_tokens:
            assert b.max_query_len == found.descriptor.uniform_query_len
            assert b.num_reqs * b.max_query_len == b.num_tokens


@settings(max_examples=share(1), **QUIET)
@given(dispatchers(), batches(), st.sets(st.sampled_from(CUDAGraphMode)))
def test_pairs_of_modes_never_reach_a_step(d, b, valid):
    """(f)"""
    assert decide(d, b).mode in CUDAGraphMode.valid_runtime_modes()
    assert decide(d, b, valid_modes=valid).mode in valid | {NONE}
    for mode in CUDAGraphMode:
        assert bool(d.keys(mode)) <= mode.is_runtime_mode()


@settings(max_examples=share(2), **QUIET)
@given(dispatchers(), batches(), st.data())
def test_what_is_captured_is_what_steps_ask_for(d, b, data):
    """(g) A step asks for a key that is captured; and each key is what some step asks for."""
    keys = {(mode, key) for mode in (PIECEWISE, FULL) for key in d.keys(mode)}
    found = decide(d, b)
    assert found.mode is NONE or (found.mode, found.descriptor) in keys
    for mode, key in keys:
        q = key.uniform_query_len
        reqs = key.num_reqs or 1
        step = d.dispatch(
            key.num_tokens,
            reqs,
            max_query_len=q or key.num_tokens + 1,
            variant=key.variant,
            valid_modes={mode},
        )
        assert (step.mode, step.descriptor) == (mode, key)
    some = set(data.draw(st.lists(st.sampled_from(sorted(keys, key=repr))))) if keys else set()
    found = decide(d, b, captured=some)
    assert found.mode is NONE or (found.mode, found.descriptor) in some
