"""Small functions whose call costs what guards and wrappers cost.

``add``: ``f(x) = x + 1`` with ``backend="eager"``, as a user would meet it. The others run on a backend that
answers with results it has kept, so that a call is guards and wrapper and nothing else. On a GPU: what one launch costs the
host, and many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class Linears(nn.Module):
    """A module tree of small Linears, five to a Sequential."""

    def __init__(self, count: int) -> None:
        super().__init__()
        made = (nn.Sequential(*(nn.Linear(4, 4) for _ in range(5))) for _ in range(count // 5))
        self.blocks = nn.ModuleList(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def add(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def hundred_means(x: torch.Tensor) -> torch.Tensor:
    """A hundred steps of which each needs all that the one before it made, by columns and by rows in turn."""
    for _ in range(50):
        x = x - x.mean(0)
        x = x - x.mean(1, keepdim=True)
    return x


def sum_of_eight(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> torch.Tensor:
    return a + b + c + d + e + f + g + h


def kept_results(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend whose callable computes once and answers with that ever after."""
    kept: list[Any] = []

    def call(*inputs: Any) -> Any:
        if not kept:
            kept.append(gm.forward(*inputs))
        return kept[0]

    return call


def kept_results_of_one_sequence(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """The same for callers that hand over all inputs as one sequence, as braze does to its own kernels."""
    call = kept_results(gm, example_inputs)
    kept: list[Any] = []

    def boxed(inputs: Sequence[Any]) -> Any:
        if not kept:
            kept.append(call(*inputs))
        return kept[0]

    boxed.boxed = True  # type: ignore[attr-defined]
    return boxed


def case(name: str) -> tuple[Callable[..., Any], tuple[Any, ...], str | Callable[..., Any] | None]:
    """The function, its arguments, and the backend to compile it with (None: the usual one)."""
    torch.manual_seed(0)
    if name == "add":
        return add, (torch.ones(4),), "eager"
    if name in LINEARS:
        return Linears(LINEARS[name]).eval(), (torch.ones(1, 4),), kept_results
    if name == "linears_eager":
        return Linears(50).eval(), (torch.ones(1, 4),), "eager"
    if name == "eight":
        return sum_of_eight, tuple(torch.ones(4) for _ in range(8)), kept_results
    if name == "cuda_add_eager":
        return add, (torch.ones(4, device="cuda"),), "eager"
    if name == "cuda_add":
        return add, (torch.ones(4, device="cuda"),), None
    if name == "cuda_hundred":
        return hundred_means, (torch.ones(256, 256, device="cuda"),), None
    raise KeyError(name)


#: case -> Linears in the tree; each has two parameters
LINEARS = {"linears": 50, "linears200": 200, "linears1000": 1000}
#: cases in which a compiled call is overhead and nothing else
BARE = (*LINEARS, "eight")
#: case -> what it shows
CASES = {
    "add": 'f(x) = x + 1, backend="eager"',
    "linears": "50 Linears, graph that costs nothing",
    "linears200": "200 Linears, graph that costs nothing",
    "linears1000": "1000 Linears, graph that costs nothing",
    "linears_eager": '50 Linears, backend="eager"',
    "eight": "eight tensors, graph that costs nothing",
}
#: the same on a GPU: the host's time, the device's where that is longer
CUDA_CASES = {
    "cuda_add_eager": 'f(x) = x + 1 on a GPU, backend="eager"',
    "cuda_add": "f(x) = x + 1 on a GPU",
    "cuda_hundred": "100 means and differences of 256 x 256 on a GPU",
}


def prepare(
    impl: str, name: str, compiled: Callable[..., Callable[..., Any]]
) -> tuple[Callable[[int], float], float | None]:
    """A function that makes n calls and returns seconds per call, and seconds of the guard walk alone (braze).

    ``compiled(impl, function, backend)``: what an implementation makes of a callable.
    """
    fn, args, backend = case(name)
    if impl == "braze" and backend is kept_results:
        backend = kept_results_of_one_sequence
    call = compiled(impl, fn, backend)

    def loop(calls: int) -> float:
        with torch.no_grad():
            numbers = range(calls)
            start = time.perf_counter()
            for _ in numbers:
                call(*args)
            if args[0].is_cuda:
                torch.cuda.synchronize()
            return (time.perf_counter() - start) / calls

    loop(5)
    return loop, guard_walk(fn, call, args) if impl == "braze" else None


def guard_walk(fn: Callable[..., Any], call: Any, args: tuple[Any, ...]) -> float:
    """Seconds that the guards of a compiled function take of each call."""
    from braze.capture.dispatch.variants import all_sites

    is_module = isinstance(fn, nn.Module)
    entry = call.__compiled__.entry if is_module else call
    (site,) = (site for site in all_sites() if site.entry is entry)
    locals = (fn, args, {}) if is_module else args
    with torch.no_grad():
        return site.variants[0].program.cost(entry.function, locals, 2000) * 1e-9
