"""Buffers that keep their addresses: staging, tails by policy, and outputs that do not depend on tails."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braze.serving.step.slots import LAST, Extent, PaddingPolicy, Slot, StaticBuffers
from braze.support.errors import UserError
from tests.serving.cases import share

LIMITS = Extent(8, 4)


def buffers(**slots: Slot) -> StaticBuffers:
    return StaticBuffers(slots, LIMITS)


def rows(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def stage(b: StaticBuffers, real: int, padded: int, **values: torch.Tensor) -> dict[str, list[int]]:
    found = b.stage(values, Extent(real, min(real, 4)), Extent(padded, min(padded, 4)))
    return {name: x.tolist() for name, x in found.items()}


def test_views_of_one_size_lie_at_one_address():
    b = buffers(x=Slot())
    one = b.stage({"x": rows(1, 2, 3)}, Extent(3, 3), Extent(4, 4))["x"]
    other = b.stage({"x": rows(5, 6)}, Extent(2, 2), Extent(4, 4))["x"]
    assert (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())


def test_a_sentinel_fills_what_a_larger_step_has_left():
    b = buffers(x=Slot(pad=-1))
    assert stage(b, 5, 8, x=rows(1, 2, 3, 4, 5))["x"] == [1, 2, 3, 4, 5, -1, -1, -1]
    assert stage(b, 2, 4, x=rows(6, 7))["x"] == [6, 7, -1, -1]
    assert stage(b, 6, 8, x=rows(1, 1, 1, 1, 1, 1))["x"] == [1, 1, 1, 1, 1, 1, -1, -1]
    assert stage(b, 1, 8, x=rows(9))["x"] == [9, -1, -1, -1, -1, -1, -1, -1]


def test_zero_keep_and_fill_once():
    b = buffers(
        z=Slot(policy=PaddingPolicy.ZERO),
        k=Slot(policy=PaddingPolicy.KEEP),
        f=Slot(pad=7, policy=PaddingPolicy.FILL_ONCE),
    )
    four = dict(z=rows(1, 2, 3, 4), k=rows(1, 2, 3, 4), f=rows(1, 2, 3, 4))
    stage(b, 4, 4, **four)
    found = stage(b, 2, 6, z=rows(5, 6), k=rows(5, 6), f=rows(5, 6))
    assert found["z"] == [5, 6, 0, 0, 0, 0]
    assert found["k"][:4] == [5, 6, 3, 4]
    assert found["f"] == [5, 6, 3, 4, 7, 7]


def test_the_last_row_is_repeated_for_offsets():
    b = buffers(cu=Slot(pad=LAST, unit="requests", extra=1))
    found = b.stage({"cu": rows(0, 3, 5)}, Extent(5, 2), Extent(8, 4))["cu"]
    assert found.tolist() == [0, 3, 5, 5, 5]


def test_copy_takes_what_the_caller_has_padded():
    b = buffers(x=Slot(policy=PaddingPolicy.COPY))
    assert stage(b, 2, 4, x=rows(1, 2, 8, 9))["x"] == [1, 2, 8, 9]
    with pytest.raises(UserError) as error:
        stage(b, 2, 4, x=rows(1, 2))
    assert error.value.code == "BZ7305"


def test_other_dimensions_may_vary():
    b = buffers(p=Slot(dim=1, policy=PaddingPolicy.ZERO))
    found = b.stage({"p": torch.ones(3, 2)}, Extent(2, 2), Extent(4, 4))["p"]
    assert found.tolist() == [[1, 1, 0, 0]] * 3


def test_what_the_model_writes_is_filled_each_time():
    b = buffers(x=Slot(pad=-1, written=True))
    view = b.stage({"x": rows(1)}, Extent(1, 1), Extent(4, 4))["x"]
    view.fill_(99)
    assert stage(b, 1, 4, x=rows(2))["x"] == [2, -1, -1, -1]


def test_what_is_written_in_place_is_not_copied(monkeypatch):
    b = buffers(x=Slot(pad=-1))
    stage(b, 2, 4, x=rows(1, 2))
    mine = b.view("x", Extent(3, 3))
    mine.copy_(rows(7, 8, 9))
    monkeypatch.setattr("braze.serving.step.slots.copy_all", lambda *args: pytest.fail("copied"))
    assert stage(b, 3, 4, x=mine)["x"] == [7, 8, 9, -1]


def test_all_inputs_of_a_step_are_copied_by_one_call(monkeypatch):
    calls = []
    from braze.graph.private.torch_compat import copy_all

    monkeypatch.setattr(
        "braze.serving.step.slots.copy_all", lambda to, of: (calls.append(len(to)), copy_all(to, of))
    )
    b = buffers(x=Slot(), y=Slot(), z=Slot())
    stage(b, 2, 4, x=rows(1, 2), y=rows(1, 2), z=rows(1, 2))
    assert calls == [3]


def test_steady_decoding_fills_no_tail():
    """Only the first step after a larger one has a tail to fill."""
    b = buffers(x=Slot(pad=-1))
    stage(b, 8, 8, x=torch.arange(8))
    stage(b, 3, 4, x=rows(1, 2, 3))
    with torch.autograd.profiler.profile() as profile:
        stage(b, 3, 4, x=rows(4, 5, 6))
    assert "aten::fill_" not in {event.name for event in profile.function_events}


def test_reset_makes_buffers_as_when_they_were_made():
    b = buffers(x=Slot(pad=-1))
    stage(b, 4, 4, x=rows(1, 2, 3, 4))
    b.reset()
    assert b.view("x", Extent(8, 4)).tolist() == [-1] * 8
    assert stage(b, 1, 4, x=rows(5))["x"] == [5, -1, -1, -1]


@pytest.mark.parametrize(
    "slot",
    [
        Slot(unit="rows"),
        Slot(pad="first"),
        Slot(pad=LAST, policy=PaddingPolicy.ZERO),
        Slot(pad=3, policy=PaddingPolicy.ZERO),
        Slot(extra=-1),
        -1,
    ],
)
def test_slots_that_cannot_be_are_refused(slot):
    with pytest.raises(UserError) as error:
        buffers(x=slot)
    assert error.value.code == "BZ7304"
    assert error.value.hints


@pytest.mark.parametrize(
    ("name", "value"),
    [("x", rows(1, 2, 3)), ("x", torch.ones(2)), ("x", rows(1, 2)[:, None]), ("y", rows(1, 2))],
)
def test_inputs_that_do_not_fit_are_refused(name, value):
    b = buffers(x=Slot())
    stage(b, 2, 2, x=rows(1, 2))
    with pytest.raises(UserError) as error:
        stage(b, 2, 2, **{name: value})
    assert error.value.code == "BZ7305"


def test_a_step_over_the_limits_is_refused():
    with pytest.raises(UserError) as error:
        stage(buffers(x=Slot()), 9, 9, x=torch.arange(9))
    assert error.value.code == "BZ7306"


SLOTS = st.builds(
    Slot,
    pad=st.integers(-3, 3).filter(bool),
    policy=st.sampled_from([PaddingPolicy.SENTINEL, PaddingPolicy.KEEP, PaddingPolicy.FILL_ONCE]),
    unit=st.sampled_from(["tokens", "requests"]),
    extra=st.integers(0, 1),
    written=st.booleans(),
)


@settings(max_examples=share(2), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    SLOTS,
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(0, 8), st.integers(0, 4)), max_size=6
    ),
)
def test_tails_are_as_their_policy_says_whatever_steps_came_before(slot, steps):
    """(c), first half: real rows are the step's; a sentinel's tail is its pad, also where the model writes."""
    b = buffers(x=slot)
    for tokens, requests, more_tokens, more_requests in steps:
        real = Extent(tokens, requests)
        padded = Extent(min(8, tokens + more_tokens), min(4, requests + more_requests))
        value = torch.randint(10, 99, (real.of(slot),))
        found = b.stage({"x": value}, real, padded)["x"]
        assert found[: len(value)].equal(value)
        assert len(found) == padded.of(slot)
        if slot.policy is PaddingPolicy.SENTINEL:
            assert (found[len(value) :] == slot.pad).all()
        if slot.written:
            found.fill_(55)


@settings(max_examples=share(2), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 7), st.integers(0, 2**31))
def test_real_rows_of_outputs_do_not_depend_on_tails(tokens, seed):
    """(c), second half: poisoned tails change nothing of the rows that are real."""
    torch.manual_seed(seed)
    b = buffers(x=Slot(policy=PaddingPolicy.KEEP), ids=Slot(policy=PaddingPolicy.KEEP))
    weight = torch.randn(3, 5)
    values = {"x": torch.randn(tokens, 3), "ids": torch.randint(0, 9, (tokens,))}
    real, padded = Extent(tokens, 1), Extent(8, 4)

    def model(x, ids):
        return torch.softmax(x @ weight, -1) + ids[:, None]

    clean = model(**b.stage(values, real, padded))[:tokens].clone()
    b.poison(real)
    staged = b.stage(values, real, padded)
    assert staged["x"][tokens:].isnan().all()
    assert model(**staged)[:tokens].equal(clean)
