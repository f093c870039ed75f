"""What a call depends on beside its inputs' values, changed between replays: bits and memory of tensors, versions, generators, modes, hooks."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import braze
from tests.cudagraphs.helpers import assert_equal, numbers, recording, recordings

pytestmark = pytest.mark.usefixtures("simulated")


def complex_numbers(*shape):
    return torch.complex(numbers(*shape), numbers(*shape))


# -- bits of tensors


def test_conjugates_and_negatives_by_turns_at_one_address():
    f, g = (lambda x, w: (x @ w, x * 2)), (lambda x: (x @ x, x * 2 + 1))
    ours, theirs = (recording(f), recording(g)), (f, g)
    x, w = complex_numbers(4, 4), complex_numbers(4, 4)
    with recordings() as made:
        for k in range(9):
            y = x.conj() if k % 2 else x
            part = y.imag
            assert part.is_neg() == bool(k % 2)
            for mine, their in zip(ours, theirs, strict=True):
                given_ = (y, w) if their is f else (part,)
                assert_equal(
                    [a.resolve_conj() for a in mine(*given_)], [a.resolve_conj() for a in their(*given_)]
                )
        assert made()


def test_gradients_that_are_wanted_by_turns():
    w, x = torch.nn.Parameter(numbers(4, 4)), numbers(4, 4)

    def f(x):
        return torch.tanh(x @ w)

    g = recording(f)
    for k in range(12):
        x.requires_grad_(k % 2 == 0)
        w.requires_grad_(k % 3 != 0)
        found = []
        for call in (f, g):
            y = call(x)
            wanted = [t for t in (x, w) if t.requires_grad]
            assert y.requires_grad == bool(wanted)
            found.append((y.detach(), *(torch.autograd.grad(y.sum(), wanted) if wanted else ())))
        assert_equal(found[1], found[0])


# -- numbers


@pytest.mark.parametrize("dynamic", [False, True])
@given(
    st.lists(st.sampled_from([0.0, -0.0, 0, 1, 1.0, True, -1, 2.5, float("inf")]), min_size=4, max_size=10)
)
@settings(max_examples=6)
def test_numbers_that_are_equal_and_not_the_same(dynamic, values):
    def f(x, s):
        return x * s, x + s

    g = braze.compile(
        f, dynamic=dynamic, options={"cudagraphs": True, "cudagraph_launches": 1, "recompile_limit": 64}
    )
    x = torch.ones(3)
    for s in [each for value in values for each in (value, value)]:
        ours, theirs = g(x, s), f(x, s)
        assert_equal(ours, theirs)
        assert torch.equal(torch.signbit(ours[0]), torch.signbit(theirs[0]))


# -- memory of inputs


def test_parameters_that_are_swapped_in_every_way():
    m = torch.nn.Linear(4, 4).requires_grad_(False)

    def f(x):
        return torch.relu(m(x))

    changes = (
        lambda: setattr(m.weight, "data", numbers(4, 4)),
        lambda: m.weight.set_(numbers(4, 4)),
        lambda: torch.utils.swap_tensors(m.weight, torch.nn.Parameter(numbers(4, 4), requires_grad=False)),
        lambda: setattr(m.weight, "data", numbers(4, 4).t()),
        lambda: setattr(m.weight, "data", numbers(8, 4)[::2]),
        lambda: m.weight.data.copy_(numbers(4, 4)),
    )
    g = recording(f)
    kept = []
    for k in range(24):
        x = numbers(4, 4)
        assert_equal(g(x), f(x))
        kept.append(m.weight.data)
        changes[k % len(changes)]()


#: layouts of 4 x 4 at one address: rows, columns, beside others, apart, one row for all, one number for all, none, one
LAYOUTS = (
    lambda big: big[:16].view(4, 4),
    lambda big: big[:16].view(4, 4).t(),
    lambda big: big[:32].view(4, 8)[:, :4],
    lambda big: big[:64].view(8, 8)[::2, ::2],
    lambda big: big[:4].expand(4, 4),
    lambda big: big[:1].expand(4, 4),
    lambda big: big[:0].view(0, 4),
    lambda big: big[:1].view(1, 1),
    lambda big: torch.empty(0).set_(big.untyped_storage(), 0, (4, 4), (4, 1)),
)


@pytest.mark.parametrize("dynamic", [False, True])
@given(st.lists(st.sampled_from(LAYOUTS), min_size=6, max_size=12))
@settings(max_examples=8)
def test_other_layouts_and_storages_at_one_address(dynamic, layouts):
    def f(x):
        return x.sum(0), x * 2, x.t()

    g = braze.compile(
        f, dynamic=dynamic, options={"cudagraphs": True, "cudagraph_launches": 1, "recompile_limit": 64}
    )
    big = numbers(64)
    for layout in layouts:
        big.add_(1)
        assert_equal(g(layout(big)), f(layout(big)))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=6, max_size=12), st.booleans())
@settings(max_examples=12)
def test_inputs_that_share_memory_in_changing_ways(starts, moves):
    def f(x, y):
        x.mul_(2)
        return x + y, y * 1, y[1:]

    g = recording(f)
    ours = numbers(8, 4)
    for a, b in starts:
        ours = ours.clone() if moves else ours
        theirs = ours.clone()
        mine, their = (f_(t[a : a + 4], t[b : b + 4]) for f_, t in ((g, ours), (f, theirs)))
        assert_equal(mine, their)
        assert mine[2].data_ptr() - ours.data_ptr() == their[2].data_ptr() - theirs.data_ptr()
        assert_equal(ours, theirs)
        ours.mul_(0.25)


# -- versions


def test_a_replay_that_writes_an_input_is_seen_by_autograd():
    def f(x):
        x.add_(1)
        return x * 2

    g = recording(f)
    x, w = numbers(4, 4), numbers(4, 4).requires_grad_()
    for _ in range(5):
        before = x._version
        y = (w * x).sum()
        g(x)
        assert x._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            y.backward()


def test_a_change_of_one_output_is_seen_through_its_view_and_not_through_others():
    g = recording(lambda x: (x * 2, (x * 2)[:1], x + 1))
    for _ in range(5):
        w = numbers(4, 4).requires_grad_()
        z, view, other = g(numbers(4, 4))
        alone, seen = (w * other).sum(), (w[:1] * view).sum() + (w * z).sum()
        z.add_(1)
        alone.backward()
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            seen.backward()


# -- random numbers


def test_states_of_the_generator_that_are_set_kept_and_forked():
    def f(x):
        return torch.nn.functional.dropout(x, 0.5), torch.rand(3)

    x = torch.ones(8, 8)

    def drawn(call, seed):
        torch.manual_seed(seed)
        found = [call(x)]
        state = torch.get_rng_state()
        found.append(call(x))
        torch.set_rng_state(state)
        found.append(call(x))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(99)
            found.append(call(x))
        return [*found, call(x), torch.rand(2)]

    recorded, plain = recording(f), braze.compile(f)
    with recordings() as made:
        for seed in range(4):
            assert_equal(drawn(recorded, seed), drawn(plain, seed))
        assert made()


def test_a_generator_of_the_programs_own():
    own = torch.Generator()

    def f(x):
        return x + torch.rand(4, 4, generator=own)

    g, x = recording(f), torch.zeros(4, 4)
    for seed in (0, 1, 0, 1, 1):
        found = []
        for call in (g, f):
            own.manual_seed(seed)
            found.append((call(x), call(x)))
        assert_equal(*found)


# -- modes


def test_deterministic_mode_and_autocast_by_turns():
    w = numbers(4, 4)

    def f(x, i):
        return torch.zeros(4, 4).index_add(0, i, x), x @ w

    g, i = recording(f), torch.tensor([0, 1, 1, 2])
    modes = (contextlib.nullcontext, lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    try:
        for k in range(12):
            torch.use_deterministic_algorithms(k % 3 == 1)
            x = numbers(4, 4)
            with modes[k % 2]():
                (a, b), (c, d) = g(x, i), f(x, i)
            assert_equal(a, c)
            assert b.dtype == d.dtype
            torch.testing.assert_close(b, d, rtol=2e-2, atol=2e-2)
    finally:
        torch.use_deterministic_algorithms(False)


def test_inference_mode_by_turns_with_inputs_that_are_returned():
    w = torch.nn.Parameter(numbers(4, 4), requires_grad=False)

    def f(x):
        return x @ w, x.t(), torch.sin(x), x

    g = recording(f)
    fed = numbers(4, 4)
    for k in range(12):
        with torch.inference_mode(k % 3 == 1):
            x = fed if k % 2 else numbers(4, 4)
            ours, theirs = g(x), f(x)
            assert_equal(ours, theirs)
            assert [t.is_inference() for t in ours] == [t.is_inference() for t in theirs]
            fed = ours[0]


# -- hooks


def test_hooks_on_inputs_and_outputs_run_each_time():
    def f(x):
        return torch.tanh(x) * 2

    g = recording(f)
    for k in range(8):
        x, found = numbers(4, 4), []
        for call in (f, g):
            leaf, heard = x.clone().requires_grad_(), []
            if k % 2:
                leaf.register_hook(lambda grad, heard=heard: (heard.append("input"), grad * 3)[1])
            y = call(leaf)
            if k % 3:
                y.register_hook(lambda grad, heard=heard: (heard.append("output"), grad + 1)[1])
            y.sum().backward()
            found.append((leaf.grad, heard))
        assert_equal(found[1], found[0])


@pytest.mark.parametrize("dynamic", [None, True])
def test_backwards_of_results_that_are_independent_of_each_other_miss_what_the_others_saved(dynamic):
    """Each is a call of its own, with nothing in the places of what it does not read."""
    fn = lambda x, w: (torch.tanh(x @ w), torch.cumsum(x * 2, 0), (w * w).sum())
    w = torch.nn.Parameter(numbers(4, 4))
    other = torch.nn.Parameter(w.detach().clone())
    f = braze.compile(fn, dynamic=dynamic, options={"cudagraphs": True, "cudagraph_launches": 1})
    with recordings() as made:
        for calls in range(12):
            x = numbers(3 + calls // 6 if dynamic else 3, 4)
            for call, parameter in ((f, w), (fn, other)):
                first, _, last = call(x, parameter)
                (first.sum(), last, first.sum() * last)[calls % 3].backward()
            assert_equal(w.grad, other.grad)
        assert made() >= 3
