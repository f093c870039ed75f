"""Autograd functions of the program: what their backward reads, writes and depends on is as in eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import braze
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")


def ones(*shape: int) -> Tensor:
    return torch.linspace(0.5, 1.5, max(1, torch.Size(shape).numel()), dtype=torch.float64).reshape(shape)


def own(backward: Callable[..., Any], forward: Callable[..., Any] = lambda ctx, x: x * 2) -> Any:
    """An autograd function of one tensor."""
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Own", (torch.autograd.Function,), body)


def held_to_eager(run: Callable[[Callable[..., Any]], Any]) -> None:
    """``run(compile)`` gives the same with ``braze.compile`` as with nothing."""
    torch.testing.assert_close(run(braze.compile), run(lambda fn, **words: fn))


class Reverse(torch.autograd.Function):
    """The layer that turns gradients round: its forward gives its argument, or a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, same: bool) -> Tensor:
        ctx.scale = scale
        return x if same else x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return -grad * ctx.scale, None, None


@pytest.mark.parametrize("same", [True, False])
def test_a_view_of_an_input_keeps_its_backward(same):
    def run(compile):
        x = ones(3).requires_grad_()
        out = compile(lambda x: Reverse.apply(x, 2.0, same))(x)
        (out * 3).sum().backward()
        return x.grad

    held_to_eager(run)


def test_numbers_that_its_forward_computed_first_are_made_before_it():
    """The graph holds the call of the function in the place of what its forward recorded: also of what was made of sizes there."""

    class Limited(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, low, high):
            return x.clamp(low, high)

        @staticmethod
        def backward(ctx, grad):
            return grad, None, None

    def run(compile):
        limited, grads = compile(lambda x, bits: Limited.apply(x * 8, -(2**bits), 2**bits - 1)), []
        for bits in (1, 2, 3):
            x = ones(5).requires_grad_()
            limited(x, bits).square().sum().backward()
            grads.append(x.grad)
        return grads

    with logged() as messages:
        held_to_eager(run)
    assert not any("BZ6013" in message for message in messages)


def test_views_of_one_result_keep_the_backward_between_them():
    def run(compile):
        x = ones(3).requires_grad_()
        plain, turned = compile(lambda x: (h := x.sin(), Reverse.apply(h, 2.0, False)))(x)
        (plain + 5 * turned).sum().backward()
        return x.grad

    held_to_eager(run)


def test_hooks_in_the_graph_between_views():
    def hooked(x):
        h = x.sin()
        h.register_hook(lambda g: g + 1)
        return h.view(-1), h[0]

    def run(compile):
        x = ones(2, 3).requires_grad_()
        sum(out.sum() for out in compile(hooked)(x)).backward()
        return x.grad

    held_to_eager(run)


def test_in_the_middle_it_is_compiled_whatever_has_a_part_in_the_loss():
    linear = [nn.Linear(3, 3).double() for _ in range(3)]

    def heads(x, scale):
        h = linear[0](x).relu()
        return linear[1](h), linear[2](Reverse.apply(h, scale, False))

    def run(compile):
        found, call = [], compile(heads, fullgraph=True)
        for k in range(1, 5):
            first, second = call(ones(k, 3), k / 4)
            for layer in linear:
                layer.zero_grad()
            (first.sum() if k == 2 else first.sum() + second.square().sum()).backward()
            found += [p.grad for layer in linear for p in layer.parameters() if p.grad is not None]
        return found

    with logged() as told:
        held_to_eager(run)
    assert not [message for message in told if "as captured" in message]


class Two(torch.autograd.Function):
    """Two results, of whose gradients the backward makes more than a multiple."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, materialize: bool) -> Any:
        ctx.set_materialize_grads(materialize)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Any:
        if first is None or second is None:
            return (100 * second if first is None else 10 * first), None
        return first * 2 + (second + 1) * 3, None


@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_results_without_a_part_in_the_loss(materialize, dynamic):
    def run(compile):
        call, found = compile(lambda x: (*Two.apply(x, materialize), x * 5), dynamic=dynamic), []
        for parts in range(1, 8):
            x = ones(2 + parts % 3).requires_grad_()
            torch.autograd.backward([out.sum() for k, out in enumerate(call(x)) if parts >> k & 1])
            found.append(x.grad)
        return found

    held_to_eager(run)


def test_a_penalty_on_one_of_two_results_of_unknown_size():
    penalty = own(lambda ctx, g: g + 0.1, lambda ctx, x: x.clone())

    def run(compile):
        call, found = compile(lambda x: (penalty.apply(x) * 2, x * 3), dynamic=True), []
        for rows in (2, 3):
            x = ones(rows).requires_grad_()
            call(x)[1].sum().backward()
            found.append(x.grad)
        return found

    held_to_eager(run)


SCALE = 1.0
WEIGHT = ones(3)
SEEN: list[str] = []


def counts_forward(ctx, x):
    SEEN.append("forward")
    return x * 2


def counts_backward(ctx, g):
    SEEN.append("backward")
    return g * 2


def writes(ctx, g):
    WEIGHT.add_(g)
    return g * WEIGHT


@pytest.mark.parametrize(
    "function",
    [
        own(lambda ctx, g: g * SCALE),
        own(lambda ctx, g: g * WEIGHT),
        own(lambda ctx, g: g * WEIGHT, lambda ctx, x: x * WEIGHT),
        own(counts_backward, counts_forward),
        own(writes),
    ],
    ids=["number", "tensor", "tensors", "counts", "writes"],
)
def test_what_it_reads_and_writes_outside(function):
    def run(compile):
        global SCALE, WEIGHT
        SEEN.clear()
        call, found = compile(lambda x: function.apply(x * SCALE) * 2), []
        for k in range(1, 5):
            SCALE, WEIGHT = float(k), ones(3) * k
            x = ones(3).requires_grad_()
            call(x).sum().backward()
            found += [x.grad, WEIGHT.clone(), torch.tensor(len(SEEN))]
        return found

    held_to_eager(run)


class Sine(torch.autograd.Function):
    """One that torch.func can differentiate, with another derivative than its operations have."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 7 * grad * ctx.saved_tensors[0].cos()


@pytest.mark.parametrize(
    "derivative",
    [
        lambda x: torch.func.grad(lambda x: Sine.apply(x).sum())(x),
        lambda x: torch.func.jacrev(Sine.apply)(x),
        lambda x: torch.func.vjp(Sine.apply, x)[1](x)[0],
        lambda x: torch.func.vmap(torch.func.grad(lambda x: Sine.apply(x) * 2))(x),
    ],
    ids=["grad", "jacrev", "vjp", "vmap"],
)
def test_transforms_see_its_own_derivative(derivative):
    held_to_eager(lambda compile: compile(derivative)(ones(3)))


def test_transforms_that_go_forward_raise_as_in_eager():
    with pytest.raises(RuntimeError, match="jvp"):
        braze.compile(lambda x: torch.func.jvp(Sine.apply, (x,), (x,)))(ones(3))


class Batched(torch.autograd.Function):
    """One that says itself how it is batched: who runs its forward on a batch shows."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, y: Tensor) -> Any:
        return x * y + info.batch_size, 0


@pytest.mark.parametrize("training", [False, True])
def test_vmap_follows_its_own_rule(training):
    def run(compile):
        mapped = compile(lambda x, y: torch.vmap(lambda x, y: Batched.apply(x, y) * 2)(x, y))
        found = []
        for size in (2, 3, 4):
            x = ones(size, 3).requires_grad_(training)
            y = mapped(x, ones(size, 3))
            if training:
                y.sum().backward()
            found.append((y.detach(), x.grad))
        return found

    held_to_eager(run)


@pytest.mark.parametrize("function", [own(lambda ctx, grad: grad), Batched], ids=["no setup", "two rules"])
def test_vmap_refuses_what_says_nothing_of_it_as_in_eager(function, monkeypatch):
    monkeypatch.setattr(function, "generate_vmap_rule", True)
    given = (ones(2, 3),) * (2 if function is Batched else 1)
    told = []
    for compile in (lambda fn: fn, braze.compile):
        with pytest.raises(RuntimeError) as refused:
            compile(lambda *xs: torch.vmap(function.apply)(*xs))(*given)
        told.append(str(refused.value))
    assert told[0] == told[1]


class Triple(torch.autograd.Function):
    """Doubles, with three times the gradient: who loses it shows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


class Plus(Triple):
    @classmethod
    def apply(cls, x: Tensor, number: float) -> Tensor:
        return super().apply(x) + number


class Holder:
    apply = Triple.apply


triple, holder = Triple.apply, Holder()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: triple(x),
        lambda x: Plus.apply(x, 1.0),
        lambda x: holder.apply(x),
        lambda x: functools.partial(Triple.apply)(x),
        lambda x: next(map(Triple.apply, [x])),
        lambda x: max([x], key=lambda x: Triple.apply(x).sum() > 0) + sorted([x], key=Triple.apply)[0],
    ],
    ids=["alias", "overridden", "attribute", "partial", "map", "sorted"],
)
def test_apply_has_its_backward_however_it_is_reached(program):
    def run(compile):
        x = ones(3).requires_grad_()
        compile(program, backend="aot_eager")(x).sum().backward()
        return x.grad

    held_to_eager(run)
