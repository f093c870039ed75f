"""What stands between autograd and a compiled backward: layouts of gradients that come in, and gradients that hang on none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze import native
from braze.aot import partition
from braze.aot.calls import autograd
from braze.aot.calls.autograd import _layout, differentiable
from braze.aot.calls.wrap import eager_forward
from braze.aot.joint.histories import behind
from braze.aot.joint.missing_tangents import without_tangents
from braze.graph.nodes.facts import InputRole, set_facts
from braze.graph.nodes.specs import TensorSpec
from tests.aot.recording import CONTEXT, compile_aot, record
from tests.end_to_end.writes import hold_to_eager, numbers
from tests.helpers import logged

aten = torch.ops.aten

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def fresh():
    braze.reset()
    yield
    braze.reset()


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    part, _ = compile_aot(lambda x: x + 1, [tensor])
    (spec,) = part.inputs
    assert isinstance(spec, TensorSpec)
    return spec


def test_a_gradient_in_the_layout_that_is_wanted_is_not_copied():
    lay = _layout(spec_of(torch.zeros(3, 1, 4)))
    plain, odd = torch.zeros(3, 1, 4), torch.zeros(12).as_strided((3, 1, 4), (4, 77, 1))
    assert lay(plain, {}) is plain
    assert lay(odd, {}) is odd  # differs in a dimension of one element only


def test_a_gradient_in_another_layout_is_copied():
    lay = _layout(spec_of(torch.zeros(3, 4)))
    turned = torch.arange(12.0).view(4, 3).t()
    found = lay(turned, {})
    assert found.stride() == (4, 1) and torch.equal(found, turned)
    assert lay(torch.ones(()).expand(3, 4), {}).stride() == (4, 1)


def test_no_gradient_is_zeros_in_the_layout():
    found = _layout(spec_of(torch.zeros(4, 3).t()))(None, {})
    assert found.stride() == (1, 3) and not found.any()


def test_lazily_negated_and_conjugated_gradients():
    """Kernels read memory, where neither has been done."""
    compiled = braze.compile(lambda x: x * 3)
    x = torch.ones(1, requires_grad=True)
    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_neg()
    (found,) = torch.autograd.grad(compiled(x), x, negated)
    assert found.item() == -6
    z = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    tangent = torch.full((3,), 2 + 1j).conj()
    (found,) = torch.autograd.grad(compiled(z), z, tangent)
    assert torch.equal(found, torch.full((3,), 6 - 3j))


def test_results_without_a_history():
    def f(x, y):
        with torch.no_grad():
            aside = x * 3
        return x * y, aside, (x * 5).detach(), x.argmax(), x > 0

    hold_to_eager(
        braze.compile(f, fullgraph=True), f, lambda: [numbers(4, 4), numbers(4, 4, seed=1)], grad=True
    )


def test_a_gradient_of_nothing_is_zeros():
    """Rounding has a gradient: zeros, whatever comes in."""
    compiled = braze.compile(lambda x: x.round(), fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    assert x.grad is not None and not x.grad.any()


def test_a_backward_is_compiled_for_a_few_choices_of_gradients_only(monkeypatch: Any):
    """For the others its operators run one by one."""
    monkeypatch.setattr(autograd, "MOST", 2)

    def f(x):
        y = x.sin()
        return y * 2, y * 3, y * 5

    x = torch.ones(3, requires_grad=True)
    part, _ = compile_aot(f, [x], grad=True)
    made = []

    def compiled(backward):
        made.append(backward)
        return eager_forward(backward.graph)

    call = differentiable(part, eager_forward(part.forward), compiled, by_tangents=True)
    slope = torch.ones(3).cos()
    for chosen in ((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)):
        out = call([x])
        (found,) = torch.autograd.grad(sum(out[i] for i in chosen).sum(), x)
        torch.testing.assert_close(found, slope * sum((2, 3, 5)[i] for i in chosen))
    assert len(made) == 3


def test_a_backward_that_is_for_all_gradients_is_compiled_once():
    x = torch.ones(3, requires_grad=True)
    part, _ = compile_aot(lambda x: (x.sin(), x.cos()), [x], grad=True)
    made = []
    call = differentiable(
        part, eager_forward(part.forward), lambda b: made.append(b) or eager_forward(b.graph)
    )
    for chosen in (0, 1, 0, 1):
        call([x])[chosen].sum().backward()
    call([x])[0].add(call([x])[1]).sum().backward()
    assert len(made) == 1


@pytest.mark.parametrize("alpha", [None, 3])
def test_a_sum_with_a_missing_gradient_is_the_other_summand_only_where_it_is_a_plain_sum(alpha):
    part, _ = compile_aot(
        lambda x: (lambda y: (y * 2, y * 3))(x.sin()), [torch.ones(3, requires_grad=True)], grad=True
    )
    backward = part.backward
    assert backward is not None
    (total,) = [n for n in backward.graph.graph.nodes if n.target is aten.add.Tensor]
    if alpha:
        total.kwargs = {"alpha": alpha}
    (first,) = {n for n in total.args[0].all_input_nodes}
    tangents = [n for n in backward.graph.graph.nodes if n.op == "placeholder"][len(backward.saved) :]
    made, unread = without_tangents(backward, [tangents.index(first)])
    assert unread == {tangents.index(first)}
    assert bool([n for n in made.graph.graph.nodes if n.target is aten.add.Tensor]) is bool(alpha)


def test_a_parameter_is_kept_rather_than_what_is_made_of_it():
    """It stays anyway: nothing besides is kept."""
    model = torch.nn.Linear(4, 4, bias=False)

    def f(x, w):
        return x * w.sin()

    gm, made, _ = record(f, [torch.randn(4, 4, requires_grad=True), model.weight], grad=True)
    set_facts(list(gm.graph.nodes)[1], role=InputRole.PARAMETER)
    part = partition(gm, made, CONTEXT)
    assert part.backward is not None
    assert [str(s.source) for s in part.backward.saved] == ["SavedFrom.INPUT"] * 2


@pytest.mark.parametrize("held", [False, True])
def test_a_large_gradient_that_nobody_else_holds_is_written_over(held):
    """What comes in for an elementwise function is where the gradient that goes out is put."""
    compiled = braze.compile(lambda x: x.sin(), fullgraph=True)
    x = torch.linspace(-1, 1, autograd.LARGE).requires_grad_()
    for _ in range(2):
        kept, places = [], []
        y = compiled(x)
        y.register_hook(lambda g: (places.append(g.data_ptr()), kept.append(g) if held else None)[-1])
        x.grad = None
        (y * 2).sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach().cos())
        assert (x.grad.data_ptr() == places[0]) is not held
        assert all(torch.equal(g, torch.full_like(g, 2)) for g in kept)


@pytest.mark.skipif(not native.native_available, reason="without the core Python does it")
@pytest.mark.parametrize("size", [16, autograd.LARGE // 4, autograd.LARGE])
def test_gradients_of_every_size_go_past_python(size, monkeypatch):
    def refuse(*given: Any) -> Any:
        raise AssertionError("plain gradients are for the C core")

    monkeypatch.setattr(autograd._Plan, "gradients", refuse)
    x = torch.linspace(-1, 1, size, requires_grad=True)
    compiled = braze.compile(lambda x: x.sin() * x.exp() * x.cos() * x.tanh())
    (compiled(x) * 2).sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("size", [16, autograd.LARGE // 4])
def test_only_of_large_gradients_is_it_asked_who_holds_them(size, monkeypatch):
    asked: list[int] = []
    real = autograd.taken_over

    def counted(gradients: Any, least: int) -> Any:
        asked.append(len(gradients))
        return real(gradients, least)

    monkeypatch.setattr(autograd, "taken_over", counted)
    x = torch.ones(size, requires_grad=True)
    braze.compile(lambda x: x.sin())(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
    assert len(asked) == (size * 4 >= autograd.LARGE)


def test_autograds_nodes_are_met_once_for_each_result():
    x = torch.ones(3, requires_grad=True)
    a, b = (x * 2).split([1, 2])
    total = (a * a).sum() + (b * b * a).sum()
    known = {a.grad_fn.next_functions[0][0]}
    found = list(behind([(total.grad_fn, 0)], known))
    assert len(found) == len(set(found)) and {(a.grad_fn, 0), (a.grad_fn, 1)} <= set(found)
    assert not any(node is None or node in known for node, _ in found)


def test_operations_behind_an_input_without_a_gradient_do_not_run() -> None:
    def refuse(g: torch.Tensor) -> None:
        raise AssertionError("a gradient where eager has none")

    x = torch.ones(3, requires_grad=True)
    beside = torch.ones(3, requires_grad=True) * 2
    beside.register_hook(refuse)

    def program(x: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        unused = beside.mul(x)
        return x * unused.shape[0]

    braze.compile(program, backend="aot_eager")(x, beside).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3, 3]


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_backward_does_not_read_may_have_been_written(dynamic: bool) -> None:
    """Where sizes vary it is asked for those, which no write changes."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = x.exp()
        return first, first.softmax(0)

    compiled = braze.compile(program, backend="aot_eager", dynamic=dynamic)
    x = torch.arange(3.0, requires_grad=True)
    first, second = compiled(x)
    with torch.no_grad():
        second.zero_()
    first.sum().backward()
    assert torch.allclose(x.grad, torch.arange(3.0).exp())
    first, second = compiled(x)
    with torch.no_grad():
        second.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_an_input_without_elements_is_read_by_a_backward_whatever_was_written_to_its_memory(backend):
    """The write comes after the graph has run, and what it marks has no numbers that it could change."""

    def fn(x, other):
        other += 1
        return torch.addcdiv(x, x, x)

    x = torch.ones(2, 0, requires_grad=True)
    braze.compile(fn, backend=backend)(x, x.detach()[1:]).sum().backward()
    assert x.grad.shape == (2, 0)


def test_what_has_no_derivative_refuses_a_backward_that_reaches_no_input():
    """Eager's backward raises at it, wherever it leads."""

    def fn(x):
        with torch.no_grad():
            v = x.reshape(-1)
        return torch.nn.functional.logsigmoid(v).floor_divide_(2)

    result = braze.compile(fn, options={"verify": 2})(torch.rand(5, requires_grad=True))
    with pytest.raises(RuntimeError, match="floor_divide_ is not implemented"):
        result.sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_what_has_no_derivative_refuses_a_backward_where_it_wrote_a_part(backend):
    """Inside autograd's operation on the whole it is not to be seen, and no gradient of the trace comes there."""

    def fn(x):
        with torch.no_grad():
            v = x.reshape(-1)
        whole = torch.nn.functional.logsigmoid(v)
        whole[:2].floor_divide_(2)
        return whole, x * 2

    result, other = braze.compile(fn, backend=backend)(torch.rand(5, requires_grad=True))
    with pytest.raises(RuntimeError, match="floor_divide_ is not implemented"):
        (result.sum() + other.sum()).backward()


def test_a_part_that_is_written_differentiably_is_compiled_where_no_leaf_is_behind_it():
    def fn(x):
        with torch.no_grad():
            v = x.reshape(-1)
        whole = v.sin()
        whole[:2].mul_(2)
        return whole, x * 2

    x = torch.rand(5, requires_grad=True)
    result, other = braze.compile(fn, fullgraph=True, options={"verify": 2})(x)
    (result.sum() + other.sum()).backward()
    assert result.requires_grad
    assert torch.equal(x.grad, torch.full((5,), 2.0))


@pytest.mark.parametrize("function", [torch.logaddexp, torch.pow])
def test_a_derivative_that_subtracts_bools_is_refused_as_in_eager(function):
    x, mask = torch.rand(3, requires_grad=True), torch.tensor([True, False, True])
    result = braze.compile(function, options={"verify": 2})(x, mask)
    with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
        result.sum().backward()


@pytest.mark.parametrize(
    "function",
    [
        lambda mask: 1 - mask,
        lambda mask: torch.rsub(mask, 1),
        lambda mask: torch.rsub(mask, torch.ones(3)),
    ],
)
def test_a_bool_is_not_subtracted_from(function):
    with pytest.raises(RuntimeError, match="with a bool tensor is not supported"):
        braze.compile(function)(torch.tensor([True, False, True]))


def test_a_part_of_what_was_turned_in_place_is_returned_where_autograd_cannot_make_it_again():
    """Its step counts dims that the tensor does not have on autograd's way to it: the graph runs as captured, under a proof too."""

    def fn(x):
        whole = x + 1
        part = whole[:3]
        part.unsqueeze_(0)
        seen = part[..., 3]
        part -= 3
        return seen

    x = torch.rand(1, 8, requires_grad=True)
    result = braze.compile(fn, options={"verify": 2})(x)
    assert torch.equal(result, fn(x)) and result.requires_grad


def test_gradients_that_end_within_the_program_have_their_history():
    def fn(x):
        v = x + 1
        v.requires_grad_()
        return (v % 3).std(0)

    with logged() as messages:
        result = braze.compile(fn, options={"verify": 2})(torch.rand(8))
    assert result.requires_grad
    assert any("BZ2021" in message for message in messages)


def a_part_seen_before_its_whole_is_a_leaf(x):
    whole = x.data
    part = whole[1:]
    whole.requires_grad_()
    return part


def a_part_of_that_asked_too(x):
    whole = x.detach()
    seen = whole.view_as(whole)
    whole.requires_grad_()
    return seen.narrow(0, 0, 2).requires_grad_()


def a_part_without_a_history_that_is_a_leaf(x):
    with torch.no_grad():
        part = x[..., 0]
    return part.requires_grad_()


def a_part_of_a_result_that_is_a_leaf(x):
    whole = x * 2
    with torch.no_grad():
        part = whole.unbind(0)[0]
    return part.requires_grad_(), whole


@pytest.mark.parametrize(
    "program",
    [
        a_part_seen_before_its_whole_is_a_leaf,
        a_part_of_that_asked_too,
        a_part_without_a_history_that_is_a_leaf,
        a_part_of_a_result_that_is_a_leaf,
    ],
)
@pytest.mark.parametrize("given", ["plain", "leaf", "computed"])
def test_views_of_a_leaf_that_the_program_makes_are_leaves_as_in_eager(program, given):
    """Whether one requires grad, is a leaf, and keeps the gradient that comes to it."""

    def seen(called):
        x = torch.arange(12.0).view(4, 3).requires_grad_(given != "plain")
        results = called(x * 1 if given == "computed" else x)
        results = results if isinstance(results, tuple) else (results,)
        sum(result.sum() for result in results if result.requires_grad).backward()
        kept = [result.grad is not None for result in results if result.is_leaf]
        return [(r.requires_grad, r.is_leaf, r.tolist()) for r in results], kept, x.grad is not None

    assert seen(braze.compile(program, options={"verify": 2})) == seen(program)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("given", ["whole", "a view", "beside its memory"])
@pytest.mark.parametrize("size", [(9,), (3, 3)])
def test_what_is_copied_over_something_with_a_history_gets_none_itself(backend, given, size):
    """The new contents are that tensor as it is, which is the caller's: autograd would put the copy's history on it."""

    def program(x, y, other):
        x.copy_(y.view(size) if given == "a view" else y)
        return y * 1

    def seen(called):
        leaf = torch.ones(size, requires_grad=True)
        x, y = leaf * 1, torch.full(size, 2.0)
        made = called(x, y, y[...] if given == "beside its memory" else torch.ones(3))
        facts = [(t.requires_grad, t.grad_fn is None) for t in (x, y, made)]
        x.sum().backward()
        return facts, leaf.grad.tolist(), x.tolist()

    assert seen(braze.compile(program, backend=backend)) == seen(program)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_derivative_that_has_no_such_dim_is_refused_as_one_that_raises(backend):
    """PyTorch's of ``_foreach_addcdiv`` takes the first of no dims (IndexError): the graph runs as captured, and was told as a fault of ours."""

    def program(x):
        y = x.sin()
        return torch._foreach_addcdiv([y], [y], [y.abs() + 1])[0]

    told = []
    with logged() as messages:
        for call in (program, braze.compile(program, backend=backend)):
            with pytest.raises(IndexError) as caught:
                call(torch.tensor(1.5, requires_grad=True)).backward()
            told.append(str(caught.value))
    assert told[0] == told[1]
    assert ["BZ2021" in message for message in messages] == [True]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "write", [torch.logical_not, lambda x, out: torch.eq(x, 0, out=out)], ids=["not", "eq"]
)
def test_a_leaf_to_which_truth_values_are_written_wants_its_gradient_still(backend, write):
    """Autograd lets operators without a derivative have a leaf as ``out=``, which stays one; its gradient was lost silently."""

    def program(x, leaf):
        write(x, out=leaf)
        return leaf * leaf + leaf

    def seen(call):
        leaf = torch.tensor([2.0, -3.0], requires_grad=True)
        out = call(torch.tensor([0.0, 1.0]), leaf)
        out.sum().backward()
        return out.tolist(), leaf.tolist(), leaf.grad.tolist(), leaf.is_leaf

    assert seen(braze.compile(program, backend=backend)) == seen(program)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_an_earlier_view_of_what_is_written_in_a_list_without_a_derivative_has_none(backend):
    """Such a write was counted by nobody, and so the view had the gradient of what it saw before."""

    def program(x):
        y = x.sin()
        view = y[1:]
        torch._foreach_minimum_([y], 0.5)
        return view

    told = []
    for call in (program, braze.compile(program, backend=backend)):
        with pytest.raises(RuntimeError, match="_foreach_minimum_ is not implemented") as caught:
            call(torch.rand(3, 2, requires_grad=True)).sum().backward()
        told.append(str(caught.value))
    assert told[0] == told[1]
