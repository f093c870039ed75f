"""Inputs that only kernels read are not copied: the kernels of a recording are told where each call has them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import braze
from braze.cudagraphs import recorded
from braze.cudagraphs.device import Costs
from braze.support import trace
from tests.cudagraphs.helpers import (
    Place,
    assert_equal,
    held,
    noted,
    numbers,
    placed,
    recording,
    recordings,
)

pytestmark = pytest.mark.usefixtures("simulated")


@pytest.fixture(autouse=True)
def no_gradients(monkeypatch, simulated):
    """On a GPU small copies cost less than kernels that are told: here nothing does."""
    monkeypatch.setattr(simulated, "costs", Costs(0.0, 0.0, 0.0), raising=False)
    with torch.no_grad():
        yield


def told():
    """How many inputs the kernels of all recordings so far are told."""
    return trace.COUNTERS["cudagraph_inputs_told"]


#: what earlier tests recorded and somebody holds
others: weakref.WeakSet[recorded.Recorded] = weakref.WeakSet()


def copied():
    """How many inputs recordings that are alive, and are not others', have memory for."""
    gc.collect()
    ours = set(recorded._live).difference(others)
    every = [r for each in ours for g in each.sizes.groups.values() for r in g.recordings]
    return sum(len(r.inputs._to) for r in every)


@pytest.fixture
def alone():
    """What else is recorded by now is others'."""
    braze.reset()
    gc.collect()
    others.clear()
    others.update(recorded._live)


def test_inputs_of_kernels_are_told_and_have_no_memory(alone):
    program = lambda x, y: ((x * y).sin() + 1, x.sum(0))
    f, before = recording(program), told()
    with recordings() as made:
        for _ in range(6):
            x, y = numbers(5, 4), numbers(5, 4)
            assert_equal(f(x, y), program(x, y))
        assert made() == 1
    assert told() - before == 2 and copied() == 0


def test_inputs_of_pytorchs_operators_are_copied(alone):
    program = lambda x, y: (x.cumsum(0) + y, y * 2)
    f, before = recording(program), told()
    for _ in range(6):
        x, y = numbers(5, 4), numbers(5, 4)
        assert_equal(f(x, y), program(x, y))
    assert told() - before == 1 and copied() == 1


def test_an_input_that_an_operator_sees_through_a_view_is_copied(alone):
    program = lambda x: (x.t()[1:].cumsum(0), x + 1)
    f, before = recording(program), told()
    for _ in range(5):
        x = numbers(8, 8)  # on a GPU sums up to four places are a kernel's
        assert_equal(f(x), program(x))
    assert told() == before and copied() == 1


@pytest.mark.parametrize("make", [
    lambda: numbers(65)[1:],
    lambda: numbers(17, 4)[1:].t(),
    lambda: numbers(16, 9)[:, 1:5],
    lambda: numbers(5)[1:].expand(16, 4),
    lambda: numbers(80)[3:].as_strided((8, 8), (4, 1)),
])  # fmt: skip
def test_an_address_that_16_does_not_divide_goes_by_a_copy(make):
    program = lambda x: (x * 2 + 1, x.sum(-1))
    f, before = recording(program), told()
    with recordings() as made:
        for k in range(8):
            x = make()
            x = x.clone(memory_format=torch.preserve_format) if k % 2 and 0 not in x.stride() else x
            assert_equal(f(held(x)), program(x))
        assert made() <= 2
    assert told() > before


def test_addresses_of_all_kinds_take_turns(alone):
    program = lambda x: x * 3 - 1
    f, base = recording(program), numbers(256)
    with recordings() as made:
        for start in (0, 1, 4, 3, 64, 0, 2, 8, 100, 5):
            x = base[start : start + 64]
            assert_equal(f(x), program(x))
        assert made() == 1 and told()


def test_one_tensor_in_two_places_and_memory_that_overlaps():
    program = lambda x, y: (x * 2 + y, y - x.flip(0))
    f, base = recording(program), numbers(64)
    x, y = base[:16], base[16:32]
    for pair in ((x, y), (y, x), (x, x), (base[4:20], x), (y, base[20:36]), (x, y), (y, y), (x, x)):
        assert_equal(f(*pair), program(*pair))


def test_outputs_fed_back():
    program = lambda x: torch.sin(x) * 1.5
    f = recording(program)
    x = y = numbers(4, 4)
    for _ in range(10):
        x, y = f(x), program(y)
        assert_equal(x, y)


def test_outputs_fed_back_beside_outputs_that_are_kept():
    program = lambda x, y: (x + y.sin(), y - x)
    f, kept = recording(program), []
    a = b = (numbers(3, 3), numbers(3, 3))
    for k in range(16):
        a, b = f(*a), program(*b)
        kept = [*kept[-3:], (a, b)] if k % 3 else []
        for ours, theirs in kept:
            assert_equal(ours, theirs)


@pytest.mark.parametrize("verify", [0, 1])
def test_what_is_borrowed_is_copied(alone, verify):
    """A replay may write to borrowed memory while it is an input."""
    program = lambda x: x.flip(0) * 0.5
    f, before = recording(program, outputs="borrow", verify=verify), told()
    x = y = numbers(64)
    for _ in range(8):
        x, y = f(x), program(y)
        assert_equal(x, y)
    assert told() == before


def test_an_output_that_is_the_input_or_a_view_of_it():
    program = lambda x: (x, x[1:], x * 2, x.t())
    f = recording(program)
    for _ in range(6):
        x = numbers(4, 4)
        ours = f(x)
        assert ours[0] is x and ours[1].data_ptr() == x[1:].data_ptr()
        assert_equal(ours, program(x))


def test_an_input_beside_one_that_is_written():
    def program(cache, x):
        cache[1] = x[0]
        cache.add_(x.sum(0))
        return cache * x[:1]

    f, ours = recording(program), numbers(3, 4)
    theirs = ours.clone()
    with recordings() as made:
        for _ in range(6):
            x = numbers(2, 4)
            assert_equal(f(ours, x), program(theirs, x))
            assert_equal(ours, theirs)
        assert made() <= 2


def test_an_input_that_sees_what_is_written():
    def program(cache, x):
        y = x * 2
        cache.add_(1)
        return y, x * 3

    f, ours = recording(program), numbers(8)
    theirs = ours.clone()
    for k in range(9):
        mine, other = (ours[2:6], theirs[2:6]) if k % 3 == 2 else (numbers(4),) * 2
        assert_equal(f(ours, mine), program(theirs, other))
        assert_equal(ours, theirs)


def test_a_parameter_that_moves_again_and_again_is_told_in_the_end():
    weight = torch.nn.Parameter(numbers(4), requires_grad=False)
    program = lambda x: x * weight
    f = recording(program)
    with recordings() as made:
        for k in range(14):
            weight.data = numbers(4)
            x = numbers(3, 4)
            assert_equal(f(x), program(x))
        assert made() <= 6


def test_memory_that_is_gone_is_not_read():
    program = lambda x: (x * 2).relu()
    f = recording(program)
    for k in range(8):
        x = numbers(1024)
        result, wanted = f(x), program(x)
        del x
        gc.collect()
        assert_equal(result, wanted)


def test_sizes_that_vary_and_none_at_all():
    program = lambda x, y: x * 2 + y
    f = braze.compile(program, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1})
    for _ in range(4):
        for rows in (2, 3, 0, 5, 1):
            x, y = numbers(rows, 4), numbers(4)
            assert_equal(f(x, y), program(x, y))


def test_parts_are_told_what_unrecorded_ones_made(alone):
    from tests.cudagraphs.test_cuts import counted

    program = lambda x: counted((x @ x) * 2).sin() + 1
    f, before = recording(program), told()
    with recordings() as made:
        for _ in range(6):
            x = numbers(4, 4)
            assert_equal(f(x), program(x))
        assert made() == 2
    assert told() - before == 1


def test_training_forward_and_backward():
    with torch.enable_grad():
        layer, twin = placed(torch.nn.LayerNorm(4)), placed(torch.nn.LayerNorm(4))
        f = recording(lambda x: (layer(x) * 2).tanh())
        for _ in range(6):
            x, seed = numbers(3, 4), numbers(3, 4)
            f(x).backward(seed)
            (twin(x) * 2).tanh().backward(seed)
            assert_equal(layer.weight.grad, twin.weight.grad)
            assert_equal(layer.bias.grad, twin.bias.grad)
            layer.zero_grad()
            twin.zero_grad()


def test_random_numbers_follow_the_seed_beside_told_inputs():
    program = lambda x: torch.nn.functional.dropout(x, 0.5)
    f, g = recording(program), braze.compile(program)
    x = numbers(64)
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        ours = [f(x.clone()) for _ in range(3)]
        torch.manual_seed(seed)
        assert_equal(ours, [g(x.clone()) for _ in range(3)])


def test_what_costs_more_than_a_copy_is_copied(alone, simulated, monkeypatch):
    """One kernel is told where much lies; where little lies, it is copied."""
    monkeypatch.setattr(simulated, "costs", Costs(patch=1.0, copy=0.5, byte=0.001))
    program = lambda x, y: (x + 1, y.sum())
    f, before = recording(program), told()
    for _ in range(5):
        x, y = numbers(16), numbers(1024)
        assert_equal(f(x, y), program(x, y))
    assert told() - before == 1 and copied() == 1


def test_costs_weigh_readers_against_bytes():
    costs = Costs(patch=1e-6, copy=2e-6, byte=1e-12)
    assert costs.patched(1, 0) and costs.patched(2, 0) and not costs.patched(3, 0)
    assert costs.patched(3, 1 << 20) and not costs.patched(0, 1 << 40) and not costs.patched(-1, 1 << 40)


def test_nothing_that_pytorchs_operators_read_is_taken_for_the_kernels(monkeypatch):
    """What the schedule says of inputs is what the device sees, where there is one that can tell."""
    from braze.cudagraphs.inputs import Inputs

    seen, tell = [], Inputs.tell

    def telling(self, graph, watched, costs):
        seen.extend(graph.readers)
        return tell(self, graph, watched, costs)

    monkeypatch.setattr(Inputs, "tell", telling)
    w = numbers(4, 4)
    programs = (
        lambda x, y: (x @ w + y).relu(),
        lambda x, y: torch.cat([x, y], 1).cumsum(1) + x.repeat(1, 2),
        lambda x, y: torch.softmax(x, -1) * y.sort().values,
        lambda x, y: (x.view(-1)[y.view(-1).argsort()], y.as_strided((2, 2), (1, 4), 1)),
        lambda x, y: torch.nn.functional.scaled_dot_product_attention(x[None], y[None], (x + y)[None]),
        lambda x, y: torch.nn.functional.conv1d(x[None], y[:, :, None]) + x.sum(),
    )
    for program in programs:
        f = recording(program)
        with noted() as codes:
            for _ in range(4):
                x, y = numbers(4, 4), numbers(4, 4)
                assert_equal(f(x, y), program(x, y))
            assert "BZ6208" not in codes()
    assert seen and -1 not in seen


def test_the_tests_run_where_they_should():
    assert numbers(1).device.type == Place.device
