"""Operations with others in common that save nothing: autograd adds what they lead there before it goes on, as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze


def parts(x: torch.Tensor) -> Any:
    """Eager joins the gradients of the parts to one; the first saves what it is of, the second its argument."""
    first, second, third = x.unbind()
    return torch.hypot(third, first), F.softplus(second)


def of_a_sum(x: torch.Tensor) -> Any:
    total = -(x + x)
    return total.abs(), total.square(), -total


def of_views(x: torch.Tensor) -> Any:
    turned = (x * -0.5).mT
    return turned[1:].sin(), turned.reshape(-1).flip(0), turned.diagonal() * turned.diagonal()


def of_another_type(x: torch.Tensor) -> Any:
    wide = (-x).double()
    return wide.square(), -wide


def beside_the_argument(x: torch.Tensor) -> Any:
    """The first saves nothing, as what it is made of besides: both come to one leaf."""
    turned = -x
    return torch.cat([x, turned]), turned.sin(), turned.exp()


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    parts, of_a_sum, of_views, of_another_type, beside_the_argument
]  # fmt: skip


def with_signed_zeros(results: Any) -> None:
    """All at once, with gradients that are zeros of either sign."""
    made = torch.Generator().manual_seed(3)
    zeros = [torch.zeros_like(r) for r in results]
    signs = [
        torch.where(torch.rand(r.shape, generator=made) > 0.5, -z, z)
        for r, z in zip(results, zeros, strict=True)
    ]
    torch.autograd.backward(results, signs)


def one_by_one(results: Any) -> None:
    for result in results:
        result.sum().backward()


def the_last_alone(results: Any) -> None:
    results[-1].sum().backward()


def kept(results: Any) -> None:
    for _ in range(2):
        (results[0].sum() + results[-1].sum() * 2).backward(retain_graph=True)


def twice(results: Any) -> None:
    for _ in range(2):
        results[0].sum().backward()


def gradient(call: Callable[..., Any], x: torch.Tensor, backward: Callable[[Any], None]) -> Any:
    leaf = x.clone().requires_grad_()
    try:
        backward(call(leaf))
    except RuntimeError as error:
        return str(error)[:40]
    return leaf.grad


BACKWARDS = [with_signed_zeros, one_by_one, the_last_alone, kept, twice]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_meet_before_the_common_operations_as_in_eager(
    program: Callable[..., Any], backend: str, dynamic: bool
) -> None:
    """One forward, of which every backward asks for the gradients."""
    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    for backward, sizes in itertools.product(BACKWARDS, ((3, 5), (3, 2), (3, 0), (3, 1))):
        # at sizes that vary the parts of an unbind go backward together, also where one gradient alone comes in
        if dynamic and (program, backward) == (parts, the_last_alone):
            continue
        x = torch.randn(sizes)
        ours, theirs = gradient(compiled, x, backward), gradient(program, x, backward)
        if isinstance(theirs, str):
            assert ours == theirs, backward
            continue
        torch.testing.assert_close(ours, theirs, msg=lambda said: f"{backward.__name__} {sizes}: {said}")
        assert torch.equal(ours[ours == 0].signbit(), theirs[theirs == 0].signbit()), (backward, sizes)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_nobody_has_a_hidden_result(backend: str) -> None:
    """It takes one number's memory, and results are as many as before, with hooks that see what eager's see."""

    def told(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-2, 2, 6).view(2, 3).requires_grad_()
        seen: list[Any] = []
        x.register_hook(lambda g: seen.append(("leaf", g.tolist())))
        results = call(x)
        for i, result in enumerate(results):
            result.register_hook(lambda g, i=i: seen.append((i, g.tolist())))
        torch.autograd.backward(list(results), [torch.ones_like(r) for r in results])
        return len(results), sorted(map(str, seen)), [r.requires_grad for r in results]

    assert told(braze.compile(of_a_sum, backend=backend)) == told(of_a_sum)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_hooks_on_a_result_see_what_is_made_of_it_and_of_its_argument(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        turned = -x
        return turned, torch.cat([x, turned]), turned.sin(), turned.detach()

    def told(call: Callable[..., Any]) -> Any:
        x = torch.linspace(-2, 2, 6).requires_grad_()
        seen: list[Any] = []
        turned, *others = call(x)
        turned.register_hook(lambda g: seen.append(g.tolist()))
        sum(other.sum() for other in others).backward()
        return seen, x.grad

    torch.testing.assert_close(told(braze.compile(program, backend=backend)), told(program))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_the_gradient_of_a_written_window_comes_before_that_of_a_hidden_result(
    backend: str, dynamic: bool
) -> None:
    def program(x: torch.Tensor) -> Any:
        same = torch.broadcast_to(x, x.shape)
        twice = torch.hstack([same, same])
        twice.as_strided((1,), (2,), 1).mul_(3)
        return same.abs().sqrt(), twice

    x = torch.linspace(1, 3, 7)
    compiled = braze.compile(program, backend=backend, dynamic=dynamic, options={"verify": 1})
    for backward in (one_by_one, the_last_alone):
        ours, theirs = gradient(compiled, x, backward), gradient(program, x, backward)
        torch.testing.assert_close(ours, theirs)
