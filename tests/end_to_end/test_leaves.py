"""Tensors that a compiled function makes and asks gradients for: attacks, forces, Langevin steps, inner problems."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import braze
from tests.end_to_end.training import flat

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
W = torch.linspace(0.5, 2, 3, dtype=torch.float64)


def detached(x, w):
    x = x.detach().requires_grad_()
    return x, (x * w).sum()


def computed(x, w):
    x = (x * 2).requires_grad_()
    return x, (x * w).sin()


def assigned(x, w):
    x = x.clone().detach()
    x.requires_grad = True
    return x, (x * w).sum()


def factory(x, w):
    d = torch.zeros_like(x, requires_grad=True)
    return d, ((x + d) * w).square()


def from_numbers(x, w):
    d = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    return d, d * w * x


def cut_in_the_middle(x, w):
    y = x * w
    z = y.detach().requires_grad_()
    return y, z, (z * z).sum()


def parameter(x, w):
    p = nn.Parameter(x * 2)
    return p, (p * w).sum()


def without_gradients(x, w):
    with torch.no_grad():
        y = (x * w).requires_grad_()
    return y, y * 2


def view_of_one(x, w):
    x = (x * 2).requires_grad_()
    return x.view(-1), x[0] * w


def taken_back(x, w):
    x = (x * 2).requires_grad_()
    y = (x * w).detach()
    x.requires_grad_(False)
    return x, y


@pytest.mark.parametrize(
    "function",
    [detached, computed, assigned, factory, from_numbers, cut_in_the_middle, parameter, without_gradients, view_of_one,
     taken_back],
)  # fmt: skip
def test_a_leaf_that_a_function_makes_is_one_outside(function):
    def run(compile):
        w = W.clone().requires_grad_()
        call, found = compile(function), []
        for _ in range(2):
            w.grad = None
            results = call(X, w)
            needs = [(t.requires_grad, t.is_leaf) for t in results]
            loss = sum(t.square().sum() for t in flat(results))
            if loss.requires_grad:
                loss.backward()
            leaves = [t.grad for t in results if t.is_leaf]
            found.append((needs, [t.detach() for t in results], leaves, w.grad))
        return found

    for ours, theirs in zip(run(braze.compile), run(lambda fn: fn), strict=True):
        assert ours[0] == theirs[0]
        torch.testing.assert_close(ours[1:], theirs[1:])


def forces(model: nn.Module, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    return x.detach() - 0.1 * gradient


def attack(model: nn.Module, x: Tensor) -> Tensor:
    """Projected gradient descent."""
    step = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        model(x + step).square().sum().backward()
        step.data = (step.data + 0.1 * step.grad.sign()).clamp(-0.2, 0.2)
        step.grad.zero_()
    return step.detach()


def langevin(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_(True)
    for _ in range(3):
        (gradient,) = torch.autograd.grad(model(x).sum(), x)
        with torch.no_grad():
            x -= 0.1 * gradient
    return x


@pytest.mark.parametrize("program", [forces, attack, langevin])
def test_gradients_for_what_the_function_makes(program):
    def run(compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        call = compile(lambda x: program(model, x))
        found = [call(X), call(X * 2)]
        return (
            [t.requires_grad for t in found],
            [t.detach() for t in found],
            [p.grad for p in model.parameters()],
        )

    ours, theirs = run(braze.compile), run(lambda fn: fn)
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1:], theirs[1:])


class Inner(torch.autograd.Function):
    """A function whose forward differentiates something itself."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            ctx.leaf = x.detach().requires_grad_()
            ctx.value = ctx.leaf.exp().sum()
        return ctx.value.detach()

    @staticmethod
    def backward(ctx, grad):
        (inner,) = torch.autograd.grad(ctx.value, ctx.leaf, retain_graph=True)
        return grad * inner


def test_a_forward_of_an_autograd_function_that_differentiates():
    def run(compile):
        x = X.clone().requires_grad_()
        out = compile(lambda x: Inner.apply(x * 2) * 3)(x)
        out.backward()
        return out.detach(), x.grad

    torch.testing.assert_close(run(braze.compile), run(lambda fn: fn))


def test_one_that_stays_inside_is_no_break():
    def inside(x, w):
        x = x.detach().requires_grad_()
        return (x * w).sum()

    w = W.clone().requires_grad_()
    braze.compile(inside, fullgraph=True)(X, w).backward()
    torch.testing.assert_close(w.grad, X.sum(0))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
def test_a_view_of_an_argument_that_comes_to_require_grad_does_so_beside_another_gradient(backend):
    def program(x, w):
        v = x.unflatten(0, (-1, 1))
        v.requires_grad_()
        return v.flatten(0, 1), w.sum()

    for fn in (program, braze.compile(program, backend=backend)):
        x, w = torch.ones(3), torch.ones(2, requires_grad=True)
        view, _ = fn(x, w)
        assert view.requires_grad and not view.is_leaf and not x.requires_grad


def part_of_a_result(x):
    h = x / 2
    with torch.no_grad():
        part = h[1:]
    part.requires_grad_()
    return part, h * 2, (part * 3).sum()


def part_of_an_argument(x):
    with torch.no_grad():
        part = x[1:]
    part.requires_grad = True
    return part, (part * 3).sum() + x.sum()


def part_taken_before(x):
    part = x[:1]
    x.requires_grad_()
    part.requires_grad_()
    return part, (part * 3).sum() + x.sum()


def part_that_stays_one(x):
    h = x / 2
    with torch.no_grad():
        part = h[1:]
    part.requires_grad_(False)
    return part, h * 2, (part * 3).sum()


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize(
    "program", [part_of_a_result, part_of_an_argument, part_taken_before, part_that_stays_one]
)
def test_a_part_made_without_gradients_is_a_leaf_of_its_own_from_when_the_program_says_so(program, needs):
    """It requires a gradient before, as soon as what it is of does, and keeps none."""

    def run(call):
        x = torch.arange(3.0).requires_grad_(needs)
        results = call(x)
        start = torch.zeros((), requires_grad=True)
        sum((t.square().sum() for t in results if t.requires_grad), start).backward()
        kept = [t.grad for t in (x, *results) if t.is_leaf]
        return [(t.requires_grad, t.is_leaf, t.grad_fn is None) for t in results], kept

    ours, theirs = run(braze.compile(program)), run(program)
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("value", [True, False])
def test_what_is_no_leaf_is_told_of_no_gradient_by_an_attribute(value):
    """The attribute cannot be set, not even to what it is, where the method may be called."""

    def program(x):
        h = x * 2
        h.requires_grad = value
        return h

    for call in (program, braze.compile(program)):
        with pytest.raises(RuntimeError, match="flags of leaf variables"):
            call(torch.ones(2, requires_grad=True))


@torch.library.custom_op("braze_leaves::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    """An operator whose derivative is written in Python."""
    return x * 2


twice.register_fake(torch.empty_like)
twice.register_autograd(lambda ctx, grad: grad * 2)


def operator_of_a_leaf(x):
    return twice(x.detach().requires_grad_()), x * 3


def choice_of_a_leaf(x):
    leaf = x.detach().requires_grad_()
    return torch.cond(x.sum() > 0, lambda: leaf * 2, lambda: leaf + 1), x * 3


@pytest.mark.parametrize("program", [operator_of_a_leaf, choice_of_a_leaf])
def test_a_derivative_written_in_python_that_reaches_no_argument_is_looked_at(program):
    compiled = braze.compile(program, backend="aot_eager", options={"verify": 1})
    x = torch.arange(3.0).requires_grad_()
    results = compiled(x)
    assert [t.requires_grad for t in results] == [True, True]
    torch.testing.assert_close(results, (x * 2, x * 3))
    sum(t.sum() for t in results).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 3.0))


@pytest.mark.parametrize(
    "words",
    [{}, {"requires_grad": False}, {"dtype": torch.float64}, {"device": "cpu", "copy": False}, {"copy": True},
     {"dtype": torch.float32, "requires_grad": False}, {"device": "cpu:0", "requires_grad": False}],
    ids=str,
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:torch.asarray")
def test_what_asarray_makes_of_a_leaf_from_outside_and_the_leaf_want_a_gradient_as_in_eager(words):
    """It gives the leaf itself, of which it sets the flag: without ``requires_grad`` before PyTorch 2.13, too."""

    def function(x):
        made = torch.asarray(x, **words)
        return made, x * 2

    def run(compile):
        call, found = compile(function), []
        leaf, plain = X.clone().requires_grad_(), X.clone()
        for given in (X.clone().requires_grad_() * 1, leaf, X.clone().requires_grad_() * 1, plain):
            made, twice = call(given)
            shared = made.data_ptr() == given.data_ptr()
            found.append(
                (made is given, shared, made.requires_grad, given.requires_grad, twice.requires_grad)
            )
        return found

    assert run(braze.compile) == run(lambda fn: fn)


def test_what_asarray_makes_of_a_view_with_a_history_behind_a_break_is_detached():
    """What stands for it there is a leaf, and was given itself."""

    def function(x):
        part = (x * 3)[1:]
        braze.graph_break()
        return torch.asarray(part, requires_grad=False), part

    for call in (function, braze.compile(function)):
        made, part = call(X.clone().requires_grad_())
        assert not made.requires_grad and part.requires_grad
        torch.testing.assert_close(made, X[1:] * 3)
