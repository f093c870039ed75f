"""The graph module of a capture: its code is written late, runs as PyTorch's would, and edits count."""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
import pickle
import traceback
import weakref
from typing import Any, NamedTuple

import pytest
import torch
import torch.fx

from braze.graph.nodes.captured import Captured, Late, forward_of


def some_graph() -> torch.fx.Graph:
    """Every kind of node and argument that captures make."""
    g = torch.fx.Graph()
    x, y = g.placeholder("x"), g.placeholder("y")
    a = g.call_function(operator.add, (x, y))
    b = g.call_function(operator.mul, (2.5, a))
    c = g.call_method("reshape", (b, (-1, 3)))
    d = g.call_function(torch.cat, ([c, c],), {"dim": 1})
    e = g.call_function(operator.getitem, (d, (slice(None, None, 2), ..., 1)))
    f = g.call_function(torch.clamp, (e,), {"min": -math.inf})
    h = g.call_method("to", (f,), {"dtype": torch.float64})
    g.call_function(torch.neg, (h,))
    w = g.call_function(torch.full, (torch.Size([2]), 1 - 2j), {"device": torch.device("cpu")})
    g.output((h, w, {"k": [a, None, "text"]}))
    return g


def same(found: Any, wanted: Any) -> None:
    assert torch.equal(found[0], wanted[0]) and found[0].dtype is wanted[0].dtype
    assert torch.equal(found[1], wanted[1])
    assert torch.equal(found[2]["k"][0], wanted[2]["k"][0]) and found[2]["k"][1:] == wanted[2]["k"][1:]


INPUTS = torch.arange(12.0).reshape(2, 6), torch.ones(2, 6)


def test_it_runs_as_pytorch_writes_it() -> None:
    wanted = torch.fx.GraphModule({}, some_graph())(*INPUTS)
    module = Captured(some_graph())
    assert forward_of(module.graph) is not None
    same(module(*INPUTS), wanted)
    same(module.forward(*INPUTS), wanted)
    bound = Captured(some_graph()).forward
    same(bound(*INPUTS), wanted)


def test_nothing_is_written_before_it_is_wanted() -> None:
    module = Captured(some_graph())
    assert "_code" not in vars(module)
    assert "forward" not in vars(type(module))
    module(*INPUTS)
    assert "forward" in vars(type(module)) and "_code" not in vars(module)
    assert "torch.clamp" in module.code


@pytest.mark.parametrize("kind", [Captured, Late])
def test_an_edit_counts_after_recompile(kind: type[Captured]) -> None:
    for early in (False, True):
        g = torch.fx.Graph()
        x = g.placeholder("x")
        node = g.call_function(torch.neg, (x,))
        g.output((node,))
        module = kind(g)
        if early:
            assert module(torch.ones(1))[0].item() == -1
        node.target = torch.exp
        module.recompile()
        assert module(torch.zeros(1))[0].item() == 1
        assert "torch.exp" in module.code
        node.target = torch.cos
        module.recompile()
        assert "torch.cos" in module.code
        assert module(torch.zeros(1))[0].item() == 1 and module(torch.ones(1))[0].item() < 1


def test_a_late_module_is_not_written_by_recompile() -> None:
    module = Late(some_graph())
    for _ in range(2):
        module.recompile()
        assert "_code" not in vars(module) and "forward" not in vars(type(module))
        module(*INPUTS)
        assert "_code" not in vars(module) and "forward" in vars(type(module))


def test_a_late_module_holds_what_its_root_holds() -> None:
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(torch.full((1,), 3.0))
    g = torch.fx.Graph()
    g.output((g.call_function(torch.add, (g.placeholder("x"), g.get_attr("weight"))),))
    module = Late(g, root)
    assert module.weight is root.weight and module(torch.ones(1))[0].item() == 4


@pytest.mark.parametrize("kind", [Captured, Late])
@pytest.mark.parametrize("early", [False, True])
def test_copies_and_pickles(kind: type[Captured], early: bool) -> None:
    module = kind(some_graph())
    if early:
        module(*INPUTS)
    wanted = torch.fx.GraphModule({}, some_graph())(*INPUTS)
    copied = copy.deepcopy(module)
    same(copied(*INPUTS), wanted)
    same(copy.copy(module)(*INPUTS), wanted)
    same(pickle.loads(pickle.dumps(module))(*INPUTS), wanted)
    node = next(n for n in copied.graph.nodes if n.target is torch.clamp)
    node.kwargs = {"min": 9.0}
    copied.recompile()
    assert copied(*INPUTS)[0].tolist() == [9, 20] and wanted[0].tolist() == [5, 20]
    same(module(*INPUTS), wanted)


def test_values_are_let_go_after_their_last_use() -> None:
    alive: list[Any] = []
    at_end: list[bool] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        made = x + 1
        alive.append(weakref.ref(made))
        return made

    def look(x: torch.Tensor) -> torch.Tensor:
        at_end.extend(ref() is not None for ref in alive)
        return x

    g = torch.fx.Graph()
    x = g.placeholder("x")
    a = g.call_function(watch, (x,))
    b = g.call_function(torch.neg, (a,))
    g.call_function(watch, (b,))
    c = g.call_function(look, (b,))
    g.output((c,))
    Captured(g)(torch.ones(2))
    assert at_end == [False, False]


def test_a_traceback_shows_the_line() -> None:
    g = torch.fx.Graph()
    x = g.placeholder("x")
    g.output((g.call_method("reshape", (x, 7)),))
    with pytest.raises(RuntimeError) as caught:
        Captured(g)(torch.ones(2))
    assert "x.reshape(7)" in "".join(traceback.format_exception(caught.value))


class Pair(NamedTuple):
    first: Any
    second: int


def test_what_it_cannot_write_is_pytorchs() -> None:
    g = torch.fx.Graph()
    x = g.placeholder("x")
    g.output((x, g.call_function(len, (Pair(x, 1),))))
    assert forward_of(g) is None
    assert Captured(g)(torch.ones(1))[1] == 2


@dataclasses.dataclass
class Chosen:
    """As PyTorch's operators take options."""

    factor: int


def test_an_object_is_an_argument_though_its_text_means_nothing() -> None:
    def scaled(x: torch.Tensor, chosen: Chosen) -> torch.Tensor:
        return x * chosen.factor

    g = torch.fx.Graph()
    g.output((g.call_function(scaled, (g.placeholder("x"), Chosen(3))),))
    (result,) = Captured(g).forward(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 3.0))


@pytest.mark.parametrize("kind", [Captured, Late])
def test_torch_compile_takes_it_as_any_module(kind):
    """A backend may hand a piece of its graph on: PyTorch's tracer asks which node a line of code is of."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output(graph.call_function(torch.relu, (graph.call_function(operator.add, (x, y)),)))
    call = torch.compile(kind(graph), backend="eager", fullgraph=True)
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    torch.testing.assert_close(call(a, b), torch.relu(a + b))
