"""Compiled graphs as operations of autograd: what the C core does itself, and what it leaves to Python, as eager does it."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import braze
from braze import native
from braze.aot.calls.autograd import _Plan, differentiable
from braze.aot.calls.wrap import eager_forward
from braze.native.operations import Read, Way
from braze.support.errors import BackwardError
from tests.aot.recording import compile_aot

pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not native.native_available, reason="of the C core"),
]


@pytest.fixture
def fresh():
    braze.reset()
    yield
    braze.reset()


@pytest.fixture
def late(monkeypatch: Any) -> list[int]:
    """How many gradients came in at each step that Python has taken."""
    seen: list[int] = []
    usual = _Plan.gradients

    def gradients(self, ctx, tangents, *refused):
        seen.append(len(tangents))
        return usual(self, ctx, tangents, *refused)

    monkeypatch.setattr(_Plan, "gradients", gradients)
    return seen


def operation_of(f: Any, *inputs: Any) -> Any:
    part, _ = compile_aot(f, list(inputs), grad=True)
    return differentiable(part, eager_forward(part.forward), lambda b: eager_forward(b.graph))


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes, requires_grad=True)


def test_plain_calls_and_gradients_are_handled_without_python(late):
    x, y = ones(3, 4), torch.full((3, 4), 2.0, requires_grad=True)
    call = operation_of(lambda x, y: (x * y).sin(), x, y)
    assert type(call).__name__ == "Operation" and call.boxed
    for _ in range(2):
        (out,) = call([x, y])
        found = torch.autograd.grad(out, [x, y], torch.full((3, 4), 3.0))
    slope = 3 * torch.full((3, 4), 2.0).cos()
    torch.testing.assert_close(found, (2 * slope, slope))
    assert not late


@pytest.mark.parametrize(
    "tangent",
    [
        torch.ones(()).expand(3, 4),
        torch.arange(12.0).view(4, 3).t(),
        torch.ones(3, 4, dtype=torch.complex64).conj().imag,
    ],
    ids=["expanded", "transposed", "negated"],
)
def test_gradients_of_another_layout_are_laid_out(late, tangent):
    x = ones(3, 4)
    call = operation_of(lambda x: x.sin(), x)
    (found,) = torch.autograd.grad(call([x])[0], x, tangent)
    torch.testing.assert_close(found, tangent.resolve_neg() * torch.ones(3, 4).cos())
    assert late == [1]


def test_strides_of_a_dimension_of_one_element_are_no_other_layout(late):
    x = ones(3, 1, 4)
    tangent = torch.ones(12).as_strided((3, 1, 4), (4, 77, 1))
    torch.autograd.grad(operation_of(lambda x: x.sin(), x)([x])[0], x, tangent)
    assert not late


def test_a_gradient_that_does_not_come_in_is_left_out(late):
    x = ones(3)
    call = operation_of(lambda x: (x.sin(), x.cos()), x)
    _, b = call([x])
    (found,) = torch.autograd.grad(b.sum(), x)
    torch.testing.assert_close(found, -torch.ones(3).sin())
    assert late == [2]


def test_many_gradients_at_once(late):
    x = ones(3)
    call = operation_of(lambda x: x * x * x, x)
    (found,) = torch.autograd.grad(call([x])[0], x, torch.eye(3), is_grads_batched=True)
    torch.testing.assert_close(found, 3 * torch.eye(3))
    assert late == [1]


def test_a_second_backward_and_a_retained_one():
    x = ones(3)
    call = operation_of(lambda x: x.exp().sin(), x)
    (out,) = call([x])
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)
    second = torch.autograd.grad(out.sum(), x)
    assert torch.equal(first[0], second[0])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out.sum(), x)


def test_a_gradient_of_a_gradient_is_refused():
    x = ones(3)
    (out,) = operation_of(lambda x: x.exp(), x)([x])
    with pytest.raises(BackwardError, match="BZ2023"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_an_input_that_was_written_since_is_eagers_error():
    x, y = ones(3), torch.ones(3)
    (out,) = operation_of(lambda x, y: x * y, x, y)([x, y])
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_result_that_was_written_since_is_eagers_error():
    """Results that are kept have their versions noted by the C core."""
    x = ones(3)
    (out,) = operation_of(lambda x: x.exp(), x)([x])
    (out.detach()).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_hooks_see_each_saved_tensor_once():
    packed, unpacked = [], []
    x, y = ones(3), ones(3)
    call = operation_of(lambda x, y: x * y, x, y)
    with saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: (unpacked.append(t), t * 2)[1]):
        (out,) = call([x, y])
    found = torch.autograd.grad(out.sum(), [x, y])
    assert (len(packed), len(unpacked)) == (2, 2)
    assert all(torch.equal(g, torch.full((3,), 2.0)) for g in found)


@pytest.mark.parametrize("size", [3, 1 << 18])
def test_what_a_hook_lays_out_anew_is_read_as_it_lies_then(size):
    def f(x, y):
        return (x * y).sin()

    def unpacked(kept):
        return torch.frombuffer(bytearray(kept), dtype=torch.float32).view(3, size)

    def gradients(f):
        x = torch.linspace(0, 1, 3 * size).view(size, 3).t().requires_grad_()
        y = torch.linspace(1, 2, 6 * size).view(3, 2 * size)[:, ::2].requires_grad_()
        with saved_tensors_hooks(lambda t: t.numpy(force=True).tobytes(), unpacked):
            out = f(x, y)
        return torch.autograd.grad(out, (x, y), torch.ones(3, size))

    for found, wanted in zip(gradients(braze.compile(f)), gradients(f), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_broadcast_that_a_hook_copies_is_one_again():
    def gradients(f):
        x, y = torch.tensor(0.5).expand(3, 4).requires_grad_(), torch.rand(4, 3).t().requires_grad_()
        with saved_tensors_hooks(torch.clone, lambda t: t):
            out = f(x, y)
        return [g.tolist() for g in torch.autograd.grad(out, (x, y), torch.ones(3, 4))]

    torch.manual_seed(0)
    found = gradients(braze.compile(lambda x, y: x * y))
    torch.manual_seed(0)
    assert found == gradients(lambda x, y: x * y)


def test_the_error_of_a_hook_is_the_programs_and_it_is_asked_once():
    asked = []

    def unpack(tensor):
        asked.append(tensor)
        raise RuntimeError("no such tensor")

    x = ones(3)
    call = operation_of(lambda x: x.sin(), x)
    with saved_tensors_hooks(lambda t: t, unpack):
        (out,) = call([x])
    with pytest.raises(RuntimeError, match="no such tensor"):
        out.sum().backward()
    assert len(asked) == 1


def test_errors_of_either_half_are_the_callers():
    x = ones(3)
    part, _ = compile_aot(lambda x: x.sin(), [x], grad=True)

    def failing(inputs):
        raise ValueError("half")

    with pytest.raises(ValueError, match="half"):
        differentiable(part, failing, lambda b: eager_forward(b.graph))([x])
    (out,) = differentiable(part, eager_forward(part.forward), lambda b: failing)([x])
    with pytest.raises(ValueError, match="half"):
        out.sum().backward()


def test_grad_mode_off_is_on_for_what_turns_it_on_itself():
    x = ones(3)
    call = operation_of(lambda x: x.sin(), x)
    with torch.no_grad():
        (out,) = call([x])
    assert out.requires_grad
    out.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).cos())


def test_transforms_of_torch_func_are_told_what_eager_functions_tell():
    x = ones(3)
    call = operation_of(lambda x: x.sin(), x)
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda y: call([x])[0].sum())(torch.ones(3))


def test_inputs_are_more_than_what_gets_gradients():
    index = torch.tensor([2, 0])
    x = ones(3)
    call = operation_of(lambda x, index: x[index] * 2, x, index)
    (found,) = torch.autograd.grad(call([x, index])[0], x, torch.ones(2))
    assert found.tolist() == [2, 0, 2]


def test_results_without_a_history_stand_beside_others(late):
    x = ones(3, 4)
    call = operation_of(lambda x: x.max(1), x)
    values, places = call([x])
    assert values.requires_grad and not places.requires_grad
    (found,) = torch.autograd.grad(values.sum(), x)
    assert found.sum() == 3


def test_what_was_saved_is_let_go_of_after_the_backward():
    x = ones(3)
    call = operation_of(lambda x: x.sin().exp().sin(), x)
    gone = []

    def pack(tensor):
        held = tensor.detach()
        gone.append(weakref.ref(held))
        return held

    with saved_tensors_hooks(pack, lambda held: held):
        (out,) = call([x])
    gc.disable()
    try:
        assert gone and all(ref() is not None for ref in gone)
        out.sum().backward()
        assert all(ref() is None for ref in gone)
    finally:
        gc.enable()


def test_an_operation_that_nobody_holds_is_collected():
    x = ones(3)
    call = operation_of(lambda x: x.sin(), x)
    call([x])[0].sum().backward()
    gone = weakref.ref(call.general)
    del call
    gc.collect()
    assert gone() is None


def test_hooks_of_nodes_and_anomaly_mode():
    x = ones(3)
    seen = []
    call = operation_of(lambda x: x.sqrt(), x)
    with torch.autograd.set_detect_anomaly(True):
        (out,) = call([x])
        node = out.grad_fn
        node.register_prehook(lambda grads: seen.append("before"))
        node.register_hook(lambda made, given: seen.append("after"))
        torch.autograd.grad(out, x, torch.ones(3), retain_graph=True)
        with (
            pytest.warns(UserWarning, match="Error detected"),
            pytest.raises(RuntimeError, match="nan values"),
        ):
            torch.autograd.grad(out, x, torch.full((3,), torch.nan))
    assert seen == ["before", "after"] * 2


def test_many_threads_find_one_backward():
    x = ones(3)
    part, _ = compile_aot(lambda x: x.sin(), [x], grad=True)
    made: list[Any] = []
    call = differentiable(
        part, eager_forward(part.forward), lambda b: made.append(b) or eager_forward(b.graph)
    )
    begin, found = threading.Barrier(4), []

    def work():
        (out,) = call([x])
        begin.wait()
        for _ in range(50):
            found.extend(torch.autograd.grad(out, x, torch.ones(3), retain_graph=True))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(made) == 1 and len(found) == 200
    assert all(torch.equal(g, found[0]) for g in found)


def test_a_backward_stays_while_another_thread_finds_it_too():
    asked, found = threading.Barrier(2), threading.Event()
    backwards: list[weakref.ref[Any]] = []

    def find():
        def backward(values):
            return [len(values)]

        if threading.current_thread() is other:
            asked.wait()
            found.wait()  # until the backward that is found second is in use
        else:
            asked.wait()
            backwards.append(weakref.ref(backward))
        return backward

    class Context:
        def maybe_clear_saved_tensors(self):
            pass

        @property
        def saved_tensors(self):
            if threading.current_thread() is not other:
                found.set()
                other.join()
                assert backwards[0]() is not None
            return ()

    way = Way(*[pytest.fail] * 2, None, find, *[pytest.fail] * 2, "f backward")
    call = native.operation(
        pytest.fail, bool, way, 1, (), [(0, "cpu")], (), [Read(0, "cpu", torch.float32, (3,), (1,))]
    )

    def backward():
        with torch.no_grad():
            assert call.backward(Context(), torch.ones(3)) == (None, 1)

    other = threading.Thread(target=backward)
    other.start()
    backward()


def test_places_that_a_graph_does_not_have_are_told():
    x = ones(3)
    part, _ = compile_aot(lambda x: x.sin(), [x], grad=True)
    call = differentiable(part, lambda inputs: (), lambda b: eager_forward(b.graph))
    with pytest.raises(IndexError, match="fewer"):
        call([x])
    short = differentiable(part, eager_forward(part.forward), lambda b: lambda values: ())
    with pytest.raises(IndexError, match="another number of gradients"):
        torch.autograd.grad(short([x])[0], x, torch.ones(3))
