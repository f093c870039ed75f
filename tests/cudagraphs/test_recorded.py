"""Calls of compiled functions that are recorded and replayed: as eager, whatever inputs do and whoever holds outputs."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

import braze
from braze.cudagraphs import recorded
from braze.cudagraphs.device import record
from braze.cudagraphs.plan import Plan
from braze.cudagraphs.recorded import Limits, Recorded
from braze.cudagraphs.storages import borrowed, tensor_over
from braze.cudagraphs.trees import forest_of
from tests.cudagraphs.helpers import (
    Place,
    assert_equal,
    filled,
    noted,
    numbers,
    placed,
    recording,
    recordings,
    tensor,
)

pytestmark = pytest.mark.usefixtures("simulated")


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


# -- recording and replay


def test_the_second_call_is_recorded_and_later_ones_are_replayed():
    fn = lambda x: torch.relu(x) @ x.t() + 1
    f = recording(fn)
    with recordings() as made:
        for calls in range(5):
            x = numbers(4, 4)
            assert_equal(f(x), fn(x))
            assert made() == (0 if calls == 0 else 1)


def test_an_input_that_is_made_anew_where_the_last_one_lay_is_not_taken_for_one_that_stays():
    """As an allocator gives small tensors one place, until something else takes it: that was recorded a second time."""
    fn, memory = lambda x: torch.relu(x) @ x.t() + 1, numbers(4, 4)
    f = recording(fn)
    with recordings() as made, noted() as codes:
        for calls in range(5):
            memory.normal_()
            storage = borrowed(memory.data_ptr(), memory.nbytes, memory.device, memory)
            x = tensor_over(storage, memory.dtype, 0, (4, 4), (4, 1)) if calls < 3 else numbers(4, 4)
            assert_equal(f(x), fn(x))
        assert (made(), codes()) == (1, [])


def test_an_input_that_the_program_holds_is_read_where_it_lies(monkeypatch):
    fn, x, copied = lambda x: torch.cumsum(x, 0) @ x.t(), numbers(4, 4), []
    kinds = recorded.Recorded._kinds
    monkeypatch.setattr(recorded.Recorded, "_kinds", lambda *a: copied.append(kinds(*a)[2]) or kinds(*a))
    f = recording(fn)
    for _ in range(4):
        x.normal_()
        assert_equal(f(x), fn(x))
    assert copied == [[]]


def test_parameters_are_read_in_place_and_changes_of_them_are_seen():
    layer = placed(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).eval())
    f = recording(layer)
    with recordings() as made:
        for k in range(6):
            x = numbers(3, 8)
            layer[0].weight.add_(0.1)
            layer[0].bias.data.mul_(1.5)
            layer[1].running_mean.fill_(k)
            assert_equal(f(x), layer(x))
        assert made() == 1


def test_a_parameter_that_moves_is_recorded_again():
    layer = placed(torch.nn.Linear(8, 8))
    f = recording(layer)
    kept = []
    with recordings() as made, noted() as codes:
        for k in range(8):
            if k in (3, 5):
                kept.append(layer.weight.data)
                layer.weight.data = numbers(8, 8)
            x = numbers(3, 8)
            assert_equal(f(x), layer(x))
        assert made() == 3
        assert codes() == ["BZ6201", "BZ6201"]


def test_a_parameter_that_always_moves_is_copied():
    layer = placed(torch.nn.Linear(8, 8))
    f, kept = recording(layer), []
    with recordings() as made:
        for _ in range(20):
            kept.append(layer.weight.data)
            layer.weight.data = numbers(8, 8)
            x = numbers(3, 8)
            assert_equal(f(x), layer(x))
        assert made() <= 5


def test_an_input_that_seemed_static_and_moves_is_copied_from_then_on():
    f = recording(lambda x: x * 2)
    x, kept = numbers(5), []
    with recordings() as made:
        for _ in range(3):
            assert_equal(f(x), x * 2)
        for _ in range(6):
            kept.append(numbers(5))
            assert_equal(f(kept[-1]), kept[-1] * 2)
        assert made() == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(0, 3),
        lambda: numbers(1).expand(4, 3),
        lambda: numbers(10)[3:7],
        lambda: numbers(6, 4)[::2, 1:],
        lambda: numbers(4, 3).t(),
        lambda: numbers(10).unfold(0, 4, 2),
        lambda: tensor(3.0),
        lambda: tensor([True, False]),
        lambda: numbers(3).to(torch.bfloat16),
        lambda: numbers(3).to(torch.complex64),
        lambda: filled(float("nan"), 3),
        lambda: tensor([-0.0, float("inf"), 5e-324], dtype=torch.float64),
    ],
)
def test_inputs_of_odd_layouts_and_types(make):
    fn = lambda x: (x + x, x.sum())
    f, kept = recording(fn), []
    with recordings() as made:
        for _ in range(5):
            kept.append(make())
            assert_equal(f(kept[-1]), fn(kept[-1]))
        assert made() >= 1


def test_one_tensor_as_two_inputs_and_overlapping_inputs():
    fn = lambda x, y: x * 2 + y
    f = recording(fn)
    for _ in range(3):
        x, y = numbers(8), numbers(8)
        assert_equal(f(x, y), fn(x, y))
        assert_equal(f(x, x), fn(x, x))
        z = numbers(12)
        assert_equal(f(z[:8], z[4:]), fn(z[:8], z[4:]))


def test_inputs_that_are_returned_are_the_callers_own():
    f = recording(lambda x, y: (x, x[1:], y * 2, x.view(2, 2)))
    for _ in range(4):
        x, y = numbers(4), numbers(4)
        a, b, c, d = f(x, y)
        assert a is x and b.data_ptr() == x[1:].data_ptr() and d.data_ptr() == x.data_ptr()
        assert_equal(c, y * 2)


def test_views_of_one_output_stay_views_of_one_memory():
    def fn(x):
        y = x * 2
        return y, y[1:], y.t()

    f = recording(fn)
    for _ in range(6):
        x = numbers(3, 3)
        ours, theirs = f(x), fn(x)
        assert_equal(ours, theirs)
        ours[0].add_(1)
        theirs[0].add_(1)
        assert_equal(ours, theirs)


def test_numbers_and_none_among_outputs():
    f = recording(lambda x: (x + 1, None, 3, x.shape[0], "a"))
    for _ in range(4):
        x = numbers(3)
        assert_equal(f(x), (x + 1, None, 3, 3, "a"))


def test_random_numbers_are_those_of_the_default_mode_and_follow_the_seed():
    fn = lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)
    f, g = recording(fn), braze.compile(fn)
    x = filled(1.0, 50)
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        ours = [f(x) for _ in range(4)]
        torch.manual_seed(seed)
        theirs = [g(x) for _ in range(4)]
        assert_equal(ours, theirs)
        assert not torch.equal(ours[0], ours[1])


def test_inference_mode_and_others_by_turns():
    fn = lambda x: (x * 2).t()
    f = recording(fn)
    for k in range(8):
        x = numbers(3, 2)
        with torch.inference_mode(k % 2 == 0):
            y = f(x)
            assert y.is_inference() == (k % 2 == 0)
            assert_equal(y, fn(x))


def test_autocast():
    layer = placed(torch.nn.Linear(4, 4))
    f = recording(layer)
    for k in range(6):
        x = numbers(3, 4)
        with torch.autocast(Place.device, torch.bfloat16, enabled=k % 2 == 1):
            assert_equal(f(x).dtype, layer(x).dtype)
            torch.testing.assert_close(f(x), layer(x), rtol=0.02, atol=0.02)


def test_graph_breaks_make_graphs_that_are_recorded_each():
    def fn(x):
        y = x * 2
        braze.graph_break()
        z = y.relu() + x
        braze.graph_break()
        return z @ y

    f = recording(fn)
    with recordings() as made:
        for _ in range(8):
            x = numbers(4, 4)
            y = f(x)
            assert_equal(y, fn(x))
            del y
        assert 3 <= made() <= 9


def test_inputs_written_whole_and_in_parts():
    def fn(cache, x, i):
        cache[i] = x
        return cache.sum(0)

    f = recording(fn)
    ours, theirs = filled(0.0, 4, 3), filled(0.0, 4, 3)
    for k in range(8):
        x = numbers(3)
        i = tensor(k % 4)
        assert_equal(f(ours, x, i), fn(theirs, x, i))
        assert_equal(ours, theirs)


def test_a_written_input_that_moves_at_each_call_leaves_the_graph_unrecorded():
    def fn(cache, x):
        cache[1] = x
        return x + 1

    f, kept = recording(fn), []
    with noted() as codes:
        for _ in range(12):
            cache, x = filled(0.0, 3, 2), numbers(2)
            kept.append(cache)
            assert_equal(f(cache, x), x + 1)
            assert_equal(cache[1], x)
        # on a GPU whole inputs are written after the graph
        assert codes().count("BZ6205") == (Place.device == "cpu")


# -- outputs


def test_outputs_fed_back_as_inputs():
    fn = lambda x: torch.sin(x) * 2 + x.mean()
    f = recording(fn)
    x = y = numbers(6)
    with recordings() as made:
        for _ in range(12):
            x, y = f(x), fn(y)
            assert_equal(x, y)
        assert made() <= 3, "two slots that feed each other"


def test_f_of_f():
    fn = lambda x: x * 2 + 1
    f = recording(fn)
    for _ in range(5):
        x = numbers(4)
        y = f(x)
        z = f(y)
        assert_equal((y, z, f(f(f(x)))), (fn(x), fn(fn(x)), fn(fn(fn(x)))))


def test_outputs_kept_in_a_list():
    f = recording(lambda x: x * 2)
    inputs = [numbers(4) for _ in range(20)]
    with recordings() as made:
        outputs = [f(x) for x in inputs]
        assert made() == 3, "two slots, and one whose outputs are copied out"
    assert_equal(outputs, [x * 2 for x in inputs])


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y[1:],
        lambda y: y.view(-1),
        lambda y: y.detach(),
        lambda y: y.cpu() if y.is_cuda else y.numpy(),
        lambda y: y.untyped_storage(),
    ],
)
def test_a_view_of_an_output_keeps_it_as_it_is(view):
    f = recording(lambda x: x * 2)
    for _ in range(3):
        f(numbers(2, 3))
    kept, wanted = [], []
    for _ in range(4):
        x = numbers(2, 3)
        kept.append(view(f(x)))
        wanted.append(view(x * 2))
    for a, b in zip(kept, wanted, strict=True):
        assert list(a)[: len(b)] == list(b) if isinstance(a, torch.UntypedStorage) else bool((a == b).all())


def test_outputs_changed_in_place():
    f = recording(lambda x: x * 2)
    total = theirs = None
    for _ in range(8):
        x = numbers(4)
        y, z = f(x), x * 2
        y.add_(1)
        y[0] = 7
        z.add_(1)
        z[0] = 7
        assert_equal(y, z)
        total = y if total is None else total.add_(y)
        theirs = z if theirs is None else theirs.add_(z)
        assert_equal(total, theirs)


def test_a_slot_whose_output_is_let_go_of_serves_again():
    f = recording(lambda x: x * 2)
    kept = []  # no input lies where one before it lay
    with recordings() as made:
        for _ in range(10):
            kept.append(numbers(3))
            y = f(kept[-1])
        assert made() == 2, "y is held while the next is made: two slots take turns"
        del y
        for _ in range(10):
            f(numbers(3))
        assert made() == 2


def test_one_of_several_outputs_held():
    fn = lambda x: (x + 1, x * 2, x.sum())
    f, held = recording(fn), []
    for k in range(12):
        x = numbers(3)
        outputs = f(x)
        assert_equal(outputs, fn(x))
        held.append((outputs[k % 3], fn(x)[k % 3]))
        del outputs
        for ours, theirs in held[-3:]:
            assert_equal(ours, theirs)


@pytest.mark.unverified
def test_borrowed_outputs_are_written_over_by_the_next_call():
    f = recording(lambda x: x * 2, outputs="borrow")
    inputs = [filled(float(k), 3) for k in range(6)]  # all alive: none lies where another lay
    with recordings() as made:
        kept = [f(x) for x in inputs]
        assert made() == 1
    assert_equal(kept[0], filled(0.0, 3))
    assert all(torch.equal(y, filled(10.0, 3)) for y in kept[1:])
    x = y = numbers(3)
    for _ in range(5):
        x, y = f(x), y * 2
        assert_equal(x, y)


def test_borrowed_outputs_that_are_read_too_late_are_noticed_under_verify():
    f = recording(lambda x: (x * 2, x.long(), x[1:] + 1), outputs="borrow", verify=1)
    for _ in range(3):
        x = numbers(3)
        a, b, c = f(x)
        view = a[1:]
        assert_equal((a, b, c, view), (x * 2, x.long(), x[1:] + 1, x[1:] * 2))
    f(numbers(3))
    if Place.device == "cpu":
        assert torch.isnan(view).all() and torch.isnan(c).all() and (b == -1).all()
    else:
        for late in (a, b, c, view):
            with pytest.raises(RuntimeError, match="BZ6210"):
                late + 1


def test_outputs_of_training_are_never_borrowed():
    with torch.enable_grad():
        w = numbers(3).requires_grad_()
        f = recording(lambda x: (x * w).exp(), outputs="borrow")
        for _ in range(4):
            x, y = numbers(3), numbers(3)
            a, b = f(x), f(y)
            (a * b).sum().backward()
            theirs = torch.autograd.grad(((x * w).exp() * (y * w).exp()).sum(), w)[0]
            torch.testing.assert_close(w.grad, theirs)
            w.grad = None


# -- training


def test_training_forward_and_backward_are_recorded():
    with torch.enable_grad():
        torch.manual_seed(0)
        make = lambda: placed(
            torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
        )
        ours = make()
        theirs = make()
        theirs.load_state_dict(ours.state_dict())
        step = recording(lambda x: (ours(x) ** 2).mean())
        one, two = torch.optim.SGD(ours.parameters(), 0.1), torch.optim.SGD(theirs.parameters(), 0.1)
        with recordings() as made:
            for _ in range(8):
                x = numbers(5, 6)
                one.zero_grad()
                two.zero_grad()
                a, b = step(x), (theirs(x) ** 2).mean()
                a.backward()
                b.backward()
                assert_equal(a.detach(), b.detach())
                one.step()
                two.step()
            assert 2 <= made() <= 6
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_equal(a.detach(), b.detach())


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_accumulate(to_none):
    with torch.enable_grad():
        layer = placed(torch.nn.Linear(4, 4))
        twin = placed(torch.nn.Linear(4, 4))
        twin.load_state_dict(layer.state_dict())
        f = recording(lambda x: layer(x).tanh().sum())
        for _ in range(4):
            for _ in range(3):
                x = numbers(2, 4)
                f(x).backward()
                twin(x).tanh().sum().backward()
                assert_equal(layer.weight.grad, twin.weight.grad)
            layer.zero_grad(set_to_none=to_none)
            twin.zero_grad(set_to_none=to_none)


def test_two_forwards_before_their_backwards():
    with torch.enable_grad():
        w = numbers(4, 4).requires_grad_()
        fn = lambda x: (x @ w).sin().sum()
        f = recording(fn)
        for _ in range(5):
            x, y = numbers(2, 4), numbers(2, 4)
            a, b = f(x), f(y)
            (ga,) = torch.autograd.grad(a, w, retain_graph=True)
            (gb,) = torch.autograd.grad(b, w)
            (again,) = torch.autograd.grad(a, w)
            assert_equal(ga, torch.autograd.grad(fn(x), w)[0])
            assert_equal(gb, torch.autograd.grad(fn(y), w)[0])
            assert_equal(again, ga)


def test_a_saved_tensor_that_is_changed_raises_eagers_error():
    with torch.enable_grad():
        x = numbers(4).requires_grad_()
        f = recording(lambda x: x.exp())
        for _ in range(4):
            y = f(x)
            y.sum().backward()
        y = f(x)
        y.detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# -- threads, other recordings


def test_threads_of_calls():
    fn = lambda x: (x @ x).relu() + 1
    f, wrong = recording(fn), []

    def calls(seed):
        generator = torch.Generator(Place.device).manual_seed(seed)
        kept = []
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(5, 5, generator=generator, device=Place.device)
                kept.append((f(x), fn(x)))
                kept = kept[-(seed + 1) :]
                wrong.extend(1 for a, b in kept if not torch.allclose(a, b, atol=1e-5))

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_inside_a_recording_of_the_users_a_call_becomes_a_part_of_it(simulated):
    call = Recorded(lambda inputs: (inputs[0] * 2 + 1,), Plan("f", simulated.name, (0,)), simulated, Limits())
    x = numbers(3)
    for _ in range(3):
        call([x])
    with noted() as codes:
        graph, y = record(simulated, simulated.new_pool(), lambda: call([x])[0].relu())
        assert codes() == ["BZ6211"]
    x.fill_(4)
    graph.replay()
    assert_equal(y, filled(9.0, 3))


@pytest.mark.parametrize("begin", [braze.mark_step_begin, torch.compiler.cudagraph_mark_step_begin])
def test_mark_step_begin_is_accepted_and_not_needed(begin):
    def fn(x):
        begin()
        return x * 2

    f = recording(fn)
    for _ in range(4):
        x = numbers(3)
        begin()
        assert_equal(f(x), x * 2)
    assert braze.explain(fn)(numbers(3)).breaks == ()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a bad index ends a process that uses a GPU")
def test_a_call_that_fails_fails_again_and_later_ones_are_recorded():
    table = numbers(4, 2)
    f = recording(lambda i: table[i])
    f(tensor([1]))
    for _ in range(2):
        with pytest.raises(IndexError):
            f(tensor([9]))
        assert_equal(f(tensor([3])), table[[3]])
    with recordings() as made:
        f(tensor([2]))
        assert made() == 0
    with pytest.raises(IndexError):
        f(tensor([-9]))
    assert_equal(f(tensor([0])), table[[0]])


def test_recordings_and_their_memory_go_with_the_function(simulated):
    braze.reset()
    gc.collect()
    others, held = set(recorded._live), forest_of(simulated).held()  # others' stay while these are held
    f = recording(lambda x: x + 1)
    for _ in range(3):
        f(numbers(2))
    assert len(set(recorded._live) - others) == 1
    assert forest_of(simulated).held() > held
    del f
    braze.reset()
    gc.collect()
    assert not set(recorded._live) - others
    assert forest_of(simulated).held() <= held
