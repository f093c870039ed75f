"""Memory of a training step: large values come and go one by one, and a dying one's memory serves the next."""

from __future__ import annotations

import cProfile
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze import native
from braze.aot.calls import autograd
from braze.codegen.host import lives
from braze.graph.private import holders
from braze.graph.private.holders import is_held_once
from braze.inspect.memory import peak_bytes
from braze.runtime.memory.arena import POOL, clear_arenas
from braze.schedule.memory import memory


@pytest.fixture
def all_large(monkeypatch):
    """Every temporary counts as large."""
    monkeypatch.setattr(memory, "LARGE", 1)
    monkeypatch.setattr(lives, "MUCH", 1)
    torch.manual_seed(0)


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.sin(F.gelu(x @ w)) * x
    return x


def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.softmax(x @ w, -1).relu() + x, (16,)).square()


def given() -> list[torch.Tensor]:
    return [torch.randn(24, 16, requires_grad=True), (torch.randn(16, 16) / 4).requires_grad_()]


@pytest.mark.parametrize("fn", [chain, normed])
def test_gradients_of_calls_and_of_retained_graphs(all_large, fn: Callable[..., Any]):
    """A graph that is retained keeps what it saved as it is: its second backward gives the first's gradients."""
    compiled = braze.compile(fn)
    for _ in range(2):
        args = given()
        tangent = torch.randn(24, 16)
        before = tangent.clone()
        out = compiled(*args)
        first = torch.autograd.grad(out, args, tangent, retain_graph=True)
        kept = [g.clone() for g in first]
        second = torch.autograd.grad(out, args, tangent)
        exact = torch.autograd.grad(fn(*args), args, tangent)
        torch.testing.assert_close(kept, list(exact), rtol=1e-4, atol=1e-5)
        for a, b, c in zip(first, second, kept, strict=True):
            assert torch.equal(a, b) and torch.equal(a, c)
        assert torch.equal(tangent, before)


@pytest.mark.parametrize("fn", [chain, normed])
def test_what_hooks_hold_is_not_written(all_large, fn: Callable[..., Any]):
    args, compiled = given(), braze.compile(fn)
    compiled(*args).sum().backward()
    held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        held.append((t, t.clone()))
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = compiled(*args)
    out.sum().backward()
    assert held
    for seen, copy in held:
        assert torch.equal(seen, copy)


def test_results_that_the_caller_keeps_are_not_written(all_large):
    """The backward of exp reads its result, which belongs to the caller."""
    x = torch.randn(64, requires_grad=True)
    compiled = braze.compile(lambda x: torch.exp(x))
    for _ in range(2):
        out = compiled(x)
        copy = out.detach().clone()
        out.sum().backward()
        assert torch.equal(out.detach(), copy)


@pytest.mark.parametrize("is_held_once", [holders.is_held_once, holders.held_once()])
def test_a_tensor_is_held_once(is_held_once: Callable[[torch.Tensor], bool]):
    """By one variable, with memory of its own; not where a list, a view, a base or autograd has it too."""

    def asked(boxed: list[torch.Tensor]) -> bool:
        (x,) = boxed
        boxed.clear()
        return is_held_once(x)

    held, whole = torch.ones(5), torch.ones(6)
    assert asked([torch.ones(5)])
    assert not asked([held])
    assert not asked([whole[1:]])
    assert not asked([whole.view(2, 3)])
    assert not asked([torch.ones(3, requires_grad=True)])
    assert not asked([torch.ones(100)[:50].detach()])


def test_the_core_counts_holders_where_frames_are_watched():
    def asked() -> tuple[bool, bool]:
        held = torch.ones(5)
        also = held
        alone = torch.ones(5)
        return held_once(alone), held_once(also)

    profiled = cProfile.Profile()
    for state in (asked, functools.partial(native.run_hooked, asked), lambda: profiled.runcall(asked)):
        holders.held_once.cache_clear()
        held_once = holders.held_once()
        assert state() == (True, False)
        if native.native_available:
            assert held_once is not is_held_once


def test_holders_are_counted_right_where_frames_are_watched():
    """CPython holds arguments twice while a hook watches frames; what was learned in one state holds in the other."""

    def asked() -> tuple[bool, bool]:
        held = torch.ones(5)
        also = held
        alone = torch.ones(5)
        return is_held_once(alone), is_held_once(also)

    watched = functools.partial(native.run_hooked, asked)
    for states in ((asked, watched), (watched, asked)):
        holders._holders_of_one.cache_clear()
        for state in states:
            assert state() == (True, False)


def test_a_gradient_is_written_over_what_it_is_made_of():
    """Of three values of 4 MB, the kept sine's argument, and the gradients by it and by x, two exist at once."""
    x = torch.randn(1024, 1024, requires_grad=True)
    compiled = braze.compile(lambda x: torch.sin(x.cumsum(0)).sum())
    compiled(x).backward()
    x.grad = None
    clear_arenas()
    peak = peak_bytes(lambda: compiled(x).backward())
    assert peak < 2.6 * x.nbytes


def test_a_step_of_several_layers_takes_no_more_than_eagers():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(4))
    )
    x = torch.randn(2048, 256)

    def peak(call: Callable[..., Any]) -> int:
        for _ in range(2):
            call(x).square().mean().backward()
            model.zero_grad(set_to_none=True)
        clear_arenas()
        found = peak_bytes(lambda: call(x).square().mean().backward())
        model.zero_grad(set_to_none=True)
        return found

    assert peak(braze.compile(model)) <= peak(model)


class Words(nn.Module):
    """Tokens to numbers; the gradient that is made last is the largest by far."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4096, 128)
        self.norm = nn.LayerNorm(128)
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.embedding(tokens))
        for layer in self.layers:
            h = h + layer(h) * torch.softmax(layer(h.mean(1)), -1).matmul(layer.weight)[:, None]
        return h.square().mean()


class Pixels(nn.Module):
    """Convolutions of one pixel, as those that squeeze and excite."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(512, 1024, 1), nn.Conv2d(1024, 512, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.excite(self.squeeze(x).relu()).square().mean()


def peaks(model: nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """Bytes of a step, compiled and eager."""
    found = []
    for call in (braze.compile(model), model):
        for _ in range(2):
            call(x).backward()
            model.zero_grad(set_to_none=True)
        clear_arenas()
        found.append(peak_bytes(lambda call=call: call(x).backward()))
        model.zero_grad(set_to_none=True)
    return found[0], found[1]


def test_the_last_gradient_finds_no_arena_beside_it(monkeypatch):
    """When the largest gradient is made, small temporaries are gone, the forward's too; else they come on top."""
    torch.manual_seed(0)
    model, x = Words(), torch.randint(0, 4096, (8, 32))
    ours, eager = peaks(model, x)
    assert ours <= eager
    braze.reset()
    monkeypatch.setattr(lives, "UNKEPT", 1 << 40)
    assert peaks(model, x)[0] > ours


def test_a_large_step_leaves_no_arena_and_a_small_one_keeps_its_own():
    torch.manual_seed(0)
    clear_arenas()
    model, x = Words(), torch.randint(0, 4096, (8, 32))
    compiled = braze.compile(model)
    for _ in range(2):
        compiled(x).backward()
    assert not POOL._free
    small = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.Linear(8, 8))
    compiled = braze.compile(small)
    for _ in range(2):
        compiled(torch.randn(4, 8)).square().mean().backward()
    assert POOL._free


def test_gradients_of_weights_of_one_pixel_are_not_copied():
    """What a convolution returns differs from what is planned in strides of single elements: no reason for a copy."""
    torch.manual_seed(0)
    model, x = Pixels(), torch.randn(2, 512, 1, 1)
    # whether oneDNN takes them hangs on the number of threads
    with torch.backends.mkldnn.flags(enabled=False):
        ours, eager = peaks(model, x)
        braze.compile(model)(x).backward()
    assert ours <= eager
    assert all(p.grad.stride() == p.stride() for p in model.parameters())


@pytest.mark.parametrize("hold", ["nobody", "hook", "node hook", "prehook", "retained", "asked", "variable"])
def test_an_incoming_gradient_is_taken_only_from_the_engine(monkeypatch, hold: str):
    """Whoever else holds it finds it as it was."""
    monkeypatch.setattr(autograd, "LARGE", 1)
    compiled = braze.compile(lambda x: torch.sin(x) * x)
    for _ in range(2):
        x = torch.randn(8, requires_grad=True)
        out, seen = compiled(x), []
        if hold == "hook":
            out.register_hook(lambda g: seen.append(g))
        elif hold == "node hook":
            out.grad_fn.register_hook(lambda inputs, outputs: seen.extend(outputs))
        elif hold == "prehook":
            out.grad_fn.register_prehook(lambda outputs: seen.extend(outputs))
        elif hold == "retained":
            out.retain_grad()
        gradient = torch.full((8,), 3.0)
        if hold == "asked":
            x_grad, *seen = torch.autograd.grad((out * 3).sum(), [x, out])
        elif hold == "variable":
            out.backward(gradient)
            seen.append(gradient)
        else:
            (out * 3).sum().backward()
        found = x_grad if hold == "asked" else x.grad
        torch.testing.assert_close(found, 3 * (torch.cos(x) * x + torch.sin(x)).detach())
        seen += [out.grad] if hold == "retained" else []
        assert len(seen) == (hold != "nobody")
        assert all(torch.equal(g, gradient) for g in seen)


def test_a_large_incoming_gradient_goes_after_its_last_use():
    x = torch.randn(512, 64, requires_grad=True)
    w = torch.randn(64, 2048)
    compiled = braze.compile(lambda x: torch.sin(torch.sin(x @ w) @ w.t()) @ w)

    def peak(call: Callable[..., Any]) -> int:
        for _ in range(2):
            call(x).square().sum().backward()
            x.grad = None
        clear_arenas()
        found = peak_bytes(lambda: call(x).square().sum().backward())
        x.grad = None
        return found

    assert peak(compiled) <= peak(lambda x: torch.sin(torch.sin(x @ w) @ w.t()) @ w)
