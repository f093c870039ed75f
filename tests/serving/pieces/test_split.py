"""A split graph does what the graph does, whatever it is made of and wherever it is cut."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import braze
from braze.graph.nodes.facts import facts
from braze.serving.pieces.custom_ops import direct_register_custom_op, mark_splitting_op
from braze.serving.pieces.split import SplitItem, split_graph
from braze.support.errors import Unsupported


def attend(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, layer: str) -> None:
    out.copy_(q * 2 + k.sin())


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    return [x * 0.5, x + 3]


def give(x: torch.Tensor) -> torch.Tensor:
    return x * 7


ATTEND = direct_register_custom_op("s_attend", attend, ["out"], dispatch_key="CPU")
HALVES = direct_register_custom_op(
    "s_halves",
    halves,
    fake_impl=lambda x: [torch.empty_like(x), torch.empty_like(x)],
    dispatch_key="CPU",
)
GIVE = direct_register_custom_op("s_give", give, fake_impl=torch.empty_like, dispatch_key="CPU")
NAMES = ["braze::s_attend", "braze.s_halves", "braze::s_give.default"]


class Layer(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.qk, self.out = name, nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x):
        q, k = self.qk(x).split([8, 8], -1)
        out = torch.empty_like(q)
        torch.ops.braze.s_attend(q, k, out, self.name)
        return x + self.out(out)


class Model(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(f"layers.{i}") for i in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def captured(function, *inputs, dynamic=False):
    """The graph that a backend is given, and the inputs that it is called with."""
    seen = []

    def backend(gm, examples):
        def call(*values):
            seen.append((gm, values))
            return gm(*values)

        return call

    with torch.no_grad():
        braze.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)(*inputs)
    return seen[0]


def kinds(items: list[SplitItem]) -> list[bool]:
    return [item.is_splitting_graph for item in items]


def test_a_model_of_three_layers_has_three_splitting_pieces_between_four():
    gm, inputs = captured(Model(), torch.randn(4, 8))
    split, items = split_graph(gm, NAMES)
    assert kinds(items) == [False, True, False, True, False, True, False]
    assert [item.submod_name for item in items] == [f"submod_{i}" for i in range(7)]
    for item in items:
        targets = {n.target for n in item.graph.graph.nodes if n.op == "call_function"}
        assert (ATTEND in targets or torch.ops.braze.s_attend in targets) == item.is_splitting_graph
    torch.testing.assert_close(split(*inputs), gm(*inputs), rtol=0, atol=0)


def test_the_graph_itself_stays_as_it_is():
    gm, _ = captured(Model(), torch.randn(4, 8))
    before = str(gm.graph)
    split_graph(gm, NAMES)
    assert str(gm.graph) == before


def test_pieces_are_not_written_as_python_before_somebody_wants_that(monkeypatch):
    """Of a model's pieces a few are compiled, and none runs as PyTorch's text."""
    written = []
    text = torch.fx.Graph.python_code
    monkeypatch.setattr(torch.fx.Graph, "python_code", lambda *a, **k: written.append(1) or text(*a, **k))
    gm, inputs = captured(Model(), torch.randn(2, 8))
    written.clear()
    whole, items = split_graph(gm, NAMES)
    assert len(items) == 7 and not written
    assert torch.equal(whole(*inputs)[0], gm(*inputs)[0])
    assert "s_attend" in items[1].graph.code


@pytest.mark.parametrize("names", [[], ["aten::nothing_like_it"]])
def test_what_names_nothing_splits_nothing(names):
    gm, inputs = captured(Model(), torch.randn(4, 8))
    split, items = split_graph(gm, names)
    assert kinds(items) == [False]
    torch.testing.assert_close(split(*inputs), gm(*inputs), rtol=0, atol=0)


@pytest.mark.parametrize(
    "name", ["braze::s_give", "braze.s_give", "braze::s_give.default", GIVE, torch.ops.braze.s_give]
)
@pytest.mark.parametrize("called", [GIVE, torch.ops.braze.s_give], ids=["overload", "packet"])
def test_an_operator_is_found_by_each_of_its_names(name, called):
    gm = torch.fx.symbolic_trace(lambda x: called(x + 1) * 2)
    whole = called is torch.ops.braze.s_give and (name is GIVE or str(name).endswith(".default"))
    assert kinds(split_graph(gm, [name])[1]) == ([False] if whole else [False, True, False])


def test_a_marked_operator_splits_without_being_named():
    op = direct_register_custom_op("s_marked", give, fake_impl=torch.empty_like, dispatch_key="CPU")
    gm = torch.fx.symbolic_trace(lambda x: op(x + 1) * 2)
    assert kinds(split_graph(gm)[1]) == [False]
    mark_splitting_op(op)
    assert kinds(split_graph(gm)[1]) == [False, True, False]
    assert kinds(split_graph(gm, marked=False)[1]) == [False]


def test_items_of_a_tuple_stay_with_what_made_it():
    def f(x):
        parts = HALVES(x.cos())
        y = GIVE(x + 1)
        return parts[0] + y, parts[1] * 2

    for gm, inputs in (captured(f, torch.randn(3, 4)), (torch.fx.symbolic_trace(f), (torch.randn(3, 4),))):
        split, items = split_graph(gm, NAMES)
        for item in items:
            crossing = item.graph.graph.output_node().args[0]
            assert not any(n.target in (HALVES, torch.ops.braze.s_halves, "split") for n in crossing)
        torch.testing.assert_close(split(*inputs), gm(*inputs), rtol=0, atol=0)


def test_splitting_operators_in_a_row_share_a_piece_with_memory_taken_between_them():
    def f(x):
        q = x + 1
        a = torch.empty_like(q)
        ATTEND(q, q, a, "a")
        b = torch.empty_like(q)
        ATTEND(a, q, b, "b")
        return b * 2

    gm, inputs = captured(f, torch.randn(3, 4))
    split, items = split_graph(gm, NAMES)
    assert kinds(items) == [False, True, False]
    assert sum("empty_like" in n.name for n in items[0].graph.graph.nodes) == 2
    torch.testing.assert_close(split(*inputs), gm(*inputs), rtol=0, atol=0)


def test_a_piece_that_only_takes_memory_is_none():
    def f(x):
        out = torch.empty_like(x)
        ATTEND(x, x, out, "a")
        return out.view(-1)

    gm, inputs = captured(f, torch.randn(3, 4))
    split, items = split_graph(gm, NAMES)
    assert kinds(items) == [True]
    torch.testing.assert_close(split(*inputs), gm(*inputs), rtol=0, atol=0)


def test_sizes_cross_as_numbers():
    def f(x, y):
        size = x.size()
        z = GIVE(x)
        return z.view(size[0] * size[1]), y.expand(size), torch.zeros(x.shape) + z.shape[-1]

    inputs = torch.randn(3, 4), torch.randn(4)
    for gm in (torch.fx.symbolic_trace(f), captured(f, *inputs, dynamic=True)[0]):
        given = inputs if len(gm.graph.find_nodes(op="placeholder")) == 2 else None
        split, _ = split_graph(gm, NAMES)
        for node in split.graph.nodes:
            assert not isinstance(node.meta.get("val"), torch.Size)
        if given is not None:
            torch.testing.assert_close(split(*given), gm(*given), rtol=0, atol=0)


def test_with_symbolic_sizes_a_piece_takes_the_number_it_needs():
    gm, inputs = captured(lambda x: GIVE(x + 1).view(x.shape[0] * 4), torch.randn(3, 4), dynamic=True)
    split, items = split_graph(gm, NAMES)
    assert kinds(items)[:2] == [False, True]
    crossing = [n.meta["val"] for item in items for n in item.graph.graph.find_nodes(op="placeholder")]
    assert not any(isinstance(v, (tuple, torch.Size)) for v in crossing)
    torch.testing.assert_close(split(*inputs), gm(*inputs), rtol=0, atol=0)


def test_writes_keep_their_order():
    def f(x, cache):
        cache.add_(1)
        y = GIVE(cache)
        cache.mul_(3)
        z = GIVE(cache)
        cache.sub_(x)
        return y + z + cache

    gm, given = captured(f, torch.randn(4), torch.randn(4))
    split, items = split_graph(gm, NAMES)
    assert kinds(items) == [False, True, False, True, False]
    first, second = [x.clone() for x in given], [x.clone() for x in given]
    torch.testing.assert_close(split(*first), gm(*second), rtol=0, atol=0)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_tensors_that_a_graph_holds_are_inputs_of_its_pieces():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4))
            self.register_buffer("b", torch.randn(4))
            self.inner = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x):
            return self.inner(GIVE(x * self.w)) + self.b * self.w

    gm = torch.fx.symbolic_trace(Holds())
    split, items = split_graph(gm, NAMES)
    for item in items:
        assert not item.graph.graph.find_nodes(op="get_attr")
    x = torch.randn(3, 4)
    torch.testing.assert_close(split(x), gm(x), rtol=0, atol=0)


def test_a_block_that_changes_settings_is_not_cut():
    def across(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = GIVE(x @ x)
            return y @ x

    def beside(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return GIVE(y.float()) + 1

    x = torch.randn(4, 4)
    with pytest.raises(Unsupported, match="BZ7204") as caught:
        split_graph(captured(across, x)[0], NAMES)
    assert caught.value.origin is not None
    gm, inputs = captured(beside, x)
    torch.testing.assert_close(split_graph(gm, NAMES)[0](*inputs), gm(*inputs), rtol=0, atol=0)


def test_blocks_without_gradients_may_be_cut_where_there_are_none():
    def f(x):
        with torch.no_grad():
            y = GIVE(x + 1)
        return y * 2

    gm, inputs = captured(f, torch.randn(4))
    with torch.no_grad():
        split, items = split_graph(gm, NAMES)
        assert kinds(items) == [False, True, False]
        torch.testing.assert_close(split(*inputs), gm(*inputs), rtol=0, atol=0)


def test_pieces_tell_where_their_operators_come_from():
    gm, _ = captured(Model(1), torch.randn(4, 8))
    _, items = split_graph(gm, NAMES)
    for item in items:
        for node in item.graph.graph.nodes:
            assert "val" in node.meta
            if node.op.startswith("call_"):
                assert facts(node).origin.file == __file__


# -- random graphs ----------------------------------------------------------------------------------

OPERATIONS = ("add", "relu", "write", "give", "halves", "attend", "size", "split", "view", "empty")


@st.composite
def programs(draw):
    """A graph of operators on (n, 6) tensors: some write, some split, sizes and tuples cross."""
    graph = torch.fx.Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    pick = lambda: values[draw(st.integers(0, len(values) - 1))]
    for kind in draw(st.lists(st.sampled_from(OPERATIONS), max_size=12)):
        x = pick()
        match kind:
            case "add":
                values.append(graph.call_function(torch.add, (x, pick())))
            case "relu":
                values.append(graph.call_method("relu", (x,)))
            case "write":
                graph.call_method(draw(st.sampled_from(["add_", "sub_"])), (x, draw(st.integers(1, 3))))
            case "give":
                values.append(
                    graph.call_function(draw(st.sampled_from([GIVE, torch.ops.braze.s_give])), (x,))
                )
            case "halves":
                both = graph.call_function(HALVES, (x,))
                values += [graph.call_function(operator.getitem, (both, i)) for i in (0, 1)]
            case "attend":
                out = graph.call_function(torch.empty_like, (x,))
                graph.call_function(ATTEND, (x, pick(), out, "layer"))
                values.append(out)
            case "size":
                size = graph.call_method("size", (x,))
                first = graph.call_function(operator.getitem, (size, draw(st.sampled_from([0, -2]))))
                values.append(graph.call_method("view", (x, first, 6)))
            case "split":
                parts = graph.call_method("split", (x, 3, -1))
                a, b = (graph.call_function(operator.getitem, (parts, i)) for i in (0, 1))
                values.append(graph.call_function(torch.cat, ([b, a], -1)))
            case "view":
                values.append(graph.call_method("view", (x, -1, 6)))
            case "empty":
                taken = graph.call_function(torch.empty_like, (x,))
                graph.call_method("copy_", (taken, x))
                values.append(taken)
    kept = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    graph.output(tuple(kept))
    return torch.fx.GraphModule({}, graph)


@settings(max_examples=150)
@given(programs(), st.lists(st.sampled_from(NAMES), unique=True))
def test_running_the_split_graph_is_running_the_graph(gm, names):
    split, items = split_graph(gm, names)
    for left, right in itertools.pairwise(items):
        assert not (left.is_splitting_graph and right.is_splitting_graph)
    inputs = torch.randn(5, 6), torch.randn(5, 6)
    mine, theirs = [x.clone() for x in inputs], [x.clone() for x in inputs]
    torch.testing.assert_close(split(*mine), gm(*theirs), rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
