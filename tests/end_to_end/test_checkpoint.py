"""``torch.utils.checkpoint`` in compiled code: one graph, eager's gradients, and less memory kept."""

from __future__ import annotations

import copy
import functools
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import braze
from braze.aot import aot_module_simplified
from braze.support.errors import BrazeError
from tests.helpers import logged

X = torch.linspace(-1, 1, 24).reshape(4, 6)


class Block(nn.Module):
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(6, 24), nn.Linear(24, 6), nn.Dropout(p)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.drop(self.down(torch.relu(self.up(x)))) * scale


class Net(nn.Module):
    def __init__(self, call: Any, p: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(p) for _ in range(3))
        self.call = call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return x.pow(2).mean()


def plain(block, x):
    return block(x)


def checkpointed(block, x):
    return checkpoint(block, x, use_reentrant=False)


def reentrant(block, x):
    return checkpoint(block, x, use_reentrant=True)


def with_keywords(block, x):
    return checkpoint(functools.partial(block, scale=0.5), x, use_reentrant=False, preserve_rng_state=False)


def through_a_closure(block, x):
    return checkpoint(lambda: block(x) + x, use_reentrant=False)


def several_results(block, x):
    a, (b, c) = checkpoint(lambda x: (block(x), [x.sin(), None]), x, use_reentrant=False)
    return a + b if c is None else a


def in_parts(block, x):
    return checkpoint_sequential([block.up, block.down], 2, x, use_reentrant=False)


def one_in_another(block, x):
    return checkpoint(lambda x: checkpointed(block, x.sin()) * 2, x, use_reentrant=False)


def step(run: Any, module: nn.Module, seed: int = 0) -> Any:
    """Everything that one step of training leaves behind."""
    module.zero_grad()
    x = X.clone().requires_grad_()
    torch.manual_seed(seed)
    loss = run(x)
    loss.backward()
    after = torch.rand(1)
    grads = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    return loss.detach(), x.grad, grads, [b.clone() for b in module.buffers()], after


def check(module: nn.Module, backend: Any, **settings: Any) -> None:
    other = copy.deepcopy(module)
    compiled = braze.compile(module, backend=backend, **{"fullgraph": True, **settings})
    for seed in range(2):
        torch.testing.assert_close(step(compiled, module, seed), step(other, other, seed))


CALLS = [
    checkpointed,
    reentrant,
    with_keywords,
    through_a_closure,
    several_results,
    in_parts,
    one_in_another,
]


@pytest.mark.parametrize("call", CALLS)
def test_a_step_is_that_of_eager(call):
    check(Net(call), "eager")


@pytest.mark.parametrize("call", [checkpointed, reentrant, one_in_another, several_results])
def test_a_step_with_kernels_is_that_of_eager(call):
    braze.reset()
    check(Net(call), "braze")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_random_numbers_are_drawn_once(backend):
    check(Net(checkpointed, p=0.5), backend)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (checkpoint(self.norm, x, use_reentrant=False) * x).sum()


@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_buffers_are_written_as_often_as_in_eager(backend):
    check(Normed(), backend)


def kept_bytes(call: Any) -> int:
    """What the compiled backward keeps besides parameters."""
    module = Net(call)
    braze.reset()
    loss = braze.compile(module, fullgraph=True)(X)
    own = {p.data_ptr() for p in module.parameters()}
    kept = [x for x in loss.grad_fn.saved_tensors if x is not None and x.data_ptr() not in own]
    return sum(x.numel() * x.element_size() for x in kept)


def test_less_is_kept():
    assert kept_bytes(checkpointed) < kept_bytes(plain) / 2


def products_of_a_backward(body: Any) -> int:
    """Products of matrices in the backward of what ``body`` gives under a checkpoint, times a matrix."""
    halves: list[Any] = []

    def keep(gm: Any, examples: Any) -> Any:
        halves.append(gm)
        return gm.forward

    def backend(gm: Any, examples: Any) -> Any:
        return aot_module_simplified(gm, examples, keep, partition_fn="min_cut")

    def f(x, w):
        return checkpoint(body, x, w, use_reentrant=False) @ w

    args = [torch.ones(4, 4, requires_grad=True) for _ in range(2)]
    braze.compile(f, backend=backend, fullgraph=True)(*args).sum().backward()
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return sum(n.target in products for n in halves[1].graph.nodes)


def test_what_leaves_a_region_is_kept_and_what_is_inside_made_again():
    """Two gradients of each of the two products; and the inner product again, where the region goes on from it."""
    assert products_of_a_backward(lambda x, w: (x @ w).relu()) == 4
    assert products_of_a_backward(lambda x, w: (x @ w).sin()) == 5


def test_what_a_region_writes_in_place_to_its_own_is_made_again():
    assert products_of_a_backward(lambda x, w: torch.zeros(4, 4).addmm_(x, w).sin()) == 5
    assert products_of_a_backward(lambda x, w: (x * 1).copy_(x @ w).sin()) == 5


@pytest.mark.parametrize("seen", [lambda b: b, lambda b: b.t()], ids=["whole", "view"])
def test_a_region_that_reads_what_is_written_later(seen: Any):
    """Its first contents are kept: made again it would read the later ones."""

    def f(x, b):
        y = checkpoint(lambda x: (x + seen(b)).sin() * 2, x, use_reentrant=False)
        b.add_(1)
        return y.sum()

    x, b = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_(), torch.linspace(0, 1, 16).view(4, 4)
    before = seen(b).clone()
    with logged() as said:
        braze.compile(f, fullgraph=True)(x, b).backward()
    assert not [m for m in said if "as captured" in m]
    torch.testing.assert_close(x.grad, (x + before).cos().detach() * 2)


def test_without_gradients_it_is_a_call():
    graphs = []

    def backend(gm, examples):
        graphs.append(gm)
        return gm.forward

    module = Net(checkpointed)
    with torch.no_grad():
        torch.testing.assert_close(braze.compile(module, backend=backend)(X), module(X))
    assert len(graphs) == 1
    assert not any(n.op == "get_attr" for n in graphs[0].graph.nodes)


def test_what_the_function_writes_outside_is_left_to_eager():
    seen = []

    def f(x):
        def body(x):
            seen.append(1)
            return x.sin()

        return checkpoint(body, x, use_reentrant=False).sum()

    x = X.clone().requires_grad_()
    with pytest.raises(BrazeError, match="BZ1019"):
        braze.compile(f, backend="eager", fullgraph=True)(x)
    braze.compile(f, backend="eager")(x).backward()
    assert len(seen) == 2
    torch.testing.assert_close(x.grad, X.cos())


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around_a_compiled_function(reentrant):
    """Its hooks see what a call saves, not what a compile does; and the second run draws what the first drew."""
    x = torch.ones(1000, requires_grad=True)
    compiled = braze.compile(lambda x: F.dropout(x, 0.5))
    y = checkpoint(lambda x: compiled(x) * x, x, use_reentrant=reentrant)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * y.detach())


@pytest.mark.parametrize("backend", ["braze", "eager"])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_a_checkpoint_of_nothing_but_a_compiled_function(backend, drop):
    """The second run ends where all is saved that the first run saved: within the call."""
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Dropout(drop))
    x = torch.ones(1000, 8, requires_grad=True)
    compiled = braze.compile(layer, backend=backend)
    for _ in range(2):
        x.grad = None
        y = checkpoint(compiled, x, use_reentrant=False)
        with logged() as said:
            y.sum().backward()
        assert not said
        if drop:
            assert torch.equal(y.eq(0).all(1), x.grad.eq(0).all(1))
        else:
            (expected,) = torch.autograd.grad(layer(x).sum(), x)
            torch.testing.assert_close(x.grad, expected)


def test_a_checkpoint_beside_a_break_runs_twice_alike():
    """Neither its first run, in a frame that runs as it is, nor its second, in a backward, keeps what a graph keeps."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y * 2
        z = checkpoint(lambda: torch.fmin(x, y), use_reentrant=False)
        x.add_(1)
        y.register_hook(lambda g: g * 2)
        return z

    def gradient(function: Any) -> Any:
        y = X.clone().requires_grad_()
        function(torch.ones(1), y).sum().backward()
        return y.grad

    compiled = braze.compile(f)
    for _ in range(2):
        assert torch.equal(gradient(compiled), gradient(f))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_broken_region_in_a_step_runs_twice_alike(reentrant):
    """The second run is met within the compiled step, whose frames are captured."""

    def region(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x).sin()
        time.perf_counter()
        return y.exp() * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = checkpoint(region, x, use_reentrant=reentrant).sum()
        loss.backward()
        return loss.detach()

    compiled = braze.compile(step)
    for _ in range(2):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        torch.testing.assert_close(compiled(x), step(y))
        torch.testing.assert_close(x.grad, y.grad)


def test_hooks_on_what_is_saved_see_tensors_only():
    seen = []
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.tolist()) or t, lambda t: t):
        braze.compile(lambda x: (x.sin() * x).sum())(x).backward()
    assert seen


class Counting(nn.Module):
    """Buffers that are written before the last tensor that autograd saves, and ``behind`` it."""

    def __init__(self, norm_last: bool, behind: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(6, 6), nn.BatchNorm1d(6)]
        self.layers = nn.Sequential(*layers if norm_last else reversed(layers))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(6))
        self.behind = behind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x = self.layers(x)
        if self.behind:
            self.average.mul_(0.5).add_(x.detach().mean(0))
        return x


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("norm_last", [True, False])
def test_the_second_run_of_a_compiled_model_writes_what_eagers_does_before_the_last_saved_tensor(
    norm_last, behind, early_stop
):
    model = Counting(norm_last, behind)
    twin = copy.deepcopy(model)
    compiled = braze.compile(model)
    for _ in range(2):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        for function, given in ((compiled, x), (twin, y)):
            checkpoint(function, given, use_reentrant=False, early_stop=early_stop).exp().sum().backward()
        for name, buffer in model.named_buffers():
            torch.testing.assert_close(buffer, twin.get_buffer(name), msg=name)
        torch.testing.assert_close(x.grad, y.grad)


def test_the_second_run_of_a_written_argument_with_a_history_writes_it_again():
    def f(x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        y = x * 2
        y.mul_(x)
        seen[0].add_(y.detach().sum())
        return (y * x).tanh()

    found = []
    for function in (f, braze.compile(f)):
        x, seen = X.clone().requires_grad_(), [torch.zeros(())]
        checkpoint(function, x, seen, use_reentrant=False).sum().backward()
        found.append((seen[0], x.grad))
    torch.testing.assert_close(*found)
