"""What the interpreter's tests say: capture a function, run it, compare with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from braze.capture.dispatch.session import compile_callable
from braze.options import Options


class Run:
    """One function compiled with an eager backend; ``graphs`` are the FX graphs that it made."""

    def __init__(self, fn: Callable[..., Any], fullgraph: bool = False) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.entry = compile_callable(fn, self.backend, Options(fullgraph=fullgraph))

    def backend(self, graph: torch.fx.GraphModule, examples: Any) -> Any:
        """Run the graph as it is."""
        self.graphs.append(graph)
        return graph.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.entry(*args, **kwargs)


def same(a: Any, b: Any) -> bool:
    """Whether two results are equal in structure, types and values."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__dict__") and not callable(a):
        return same(vars(a), vars(b))
    return bool(a == b) or (a != a and b != b) or callable(a)


def check(fn: Callable[..., Any], *args: Any, graphs: int | None = 1, calls: int = 2) -> Run:
    """``fn`` gives what eager gives, at each of some calls, and changes its arguments alike."""
    run = Run(fn, fullgraph=graphs == 1)
    for _ in range(calls):
        ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
        expected = fn(*theirs)
        result = run(*ours)
        assert same(expected, result), (expected, result)
        assert same(theirs, ours), "arguments changed otherwise than in eager"
    assert graphs is None or len(run.graphs) == graphs, [g.code for g in run.graphs]
    return run
