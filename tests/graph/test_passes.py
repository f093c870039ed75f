"""Passes change what they say and nothing else; the verifier and the printer say what a graph is."""

from __future__ import annotations

import pytest
import torch

from braze.graph.fakes import fakes
from braze.graph.nodes.facts import set_facts
from braze.graph.nodes.passes import (
    DEFAULT,
    fill_what_is_written,
    fold_view_chains,
    merge_equal_nodes,
    remove_dead_nodes,
    remove_no_ops,
    run_passes,
)
from braze.graph.nodes.printer import print_graph
from braze.graph.nodes.specs import Dialect
from braze.graph.nodes.verify import verify
from braze.support.errors import InternalError, Origin

aten = torch.ops.aten


def graph_of(build, *shapes):
    """A module whose graph ``build(call, *inputs)`` makes; ``call(op, *args)`` adds a node with its fake."""
    mode = fakes.new_mode()
    graph = torch.fx.Graph()
    inputs = []
    for i, shape in enumerate(shapes):
        node = graph.placeholder(f"x{i}")
        node.meta["val"] = mode.fake(torch.randn(shape))
        inputs.append(node)

    def call(op, *args, **kwargs):
        node = graph.call_function(op, args, kwargs)
        values = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        with mode:
            node.meta["val"] = op(*values, **kwargs)
        return node

    out = build(call, *inputs)
    graph.output(out if isinstance(out, tuple) else (out,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def ops(module) -> list:
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def same_answers(module, before, *inputs) -> None:
    module.recompile()
    for have, want in zip(module(*inputs), before):
        torch.testing.assert_close(have, want)


def test_copies_that_change_nothing_go_and_those_that_change_strides_stay():
    def build(call, x):
        a = call(aten.clone.default, x)
        b = call(aten._to_copy.default, a, dtype=torch.float32)
        c = call(aten.clone.default, call(aten.t.default, b), memory_format=torch.contiguous_format)
        return call(aten.view.default, c, [12])

    module = graph_of(build, (3, 4))
    x = torch.randn(3, 4)
    before = module(x)
    assert remove_no_ops(module)
    assert ops(module) == [aten.t.default, aten.clone.default, aten.view.default]
    same_answers(module, before, x)


def test_new_memory_that_is_written_in_part_holds_zeros_and_other_stays_as_it_is():
    def build(call, x):
        made = [call(aten.empty.memory_format, [4, 3], dtype=dtype) for dtype in (torch.float32, torch.bool)]
        shown, written, complex_ = (
            call(aten.empty.memory_format, [4, 3], dtype=dtype)
            for dtype in (torch.float32, torch.float32, torch.complex64)
        )
        row = call(aten.empty.memory_format, [3], dtype=torch.float32)
        return [
            call(aten.select_scatter.default, made[0], x, 0, 1),
            call(aten.select_scatter.default, made[1], call(aten.gt.Scalar, x, 0), 0, 1),
            call(aten.slice_scatter.default, shown, call(aten.neg.default, shown), 0, 0, 4),
            call(aten.select_scatter.default, written, row, 0, 1),
            call(aten.select_scatter.default, complex_, call(aten.complex.default, x, x), 0, 1),
        ]

    module = graph_of(build, (3,))
    assert fill_what_is_written(module)
    verify(module, Dialect.FUNCTIONAL, after="the pass")
    filled = module.graph.find_nodes(op="call_function", target=aten.full.default)
    assert [(n.meta["val"].dtype, n.args) for n in filled] == [
        (torch.float32, ([4, 3], 0)),
        (torch.bool, ([4, 3], False)),
        (torch.float32, ([4, 3], 0)),
    ]
    assert len(module.graph.find_nodes(op="call_function", target=aten.empty.memory_format)) == 3
    assert not fill_what_is_written(module)


def test_a_cast_to_another_type_stays():
    module = graph_of(lambda call, x: call(aten._to_copy.default, x, dtype=torch.float64), (2,))
    assert not remove_no_ops(module)


@pytest.mark.parametrize(
    ("dims", "stays"),
    [([-1, 0, 1], True), ([-2, -1, 0], True), ([0, 1, 2], False), ([-3, -2, -1], False)],
)
def test_a_turn_counted_from_the_end_is_a_turn(dims, stays):
    module = graph_of(lambda call, x: call(aten.permute.default, x, dims), (2, 2, 2))
    x = torch.arange(8.0).reshape(2, 2, 2)
    assert remove_no_ops(module) is not stays
    same_answers(module, [x.permute(dims)], x)


def test_views_of_views_are_one_view():
    def build(call, x):
        a = call(aten.view.default, call(aten.view.default, x, [12]), [2, 6])
        return call(aten.permute.default, call(aten.permute.default, a, [1, 0]), [1, 0])

    module = graph_of(build, (3, 4))
    x = torch.randn(3, 4)
    before = module(x)
    run_passes(module, DEFAULT, Dialect.FUNCTIONAL, verify_level=2)
    fold_view_chains(module)
    remove_no_ops(module)
    remove_dead_nodes(module)
    assert ops(module) == [aten.view.default]
    same_answers(module, before, x)


def test_equal_nodes_are_merged_but_not_different_numbers_or_random_ones():
    def build(call, x):
        same = [call(aten.add.Tensor, x, 1) for _ in range(2)]
        others = [call(aten.add.Tensor, x, v) for v in (1.0, True, 0.0, -0.0)]
        random = [call(aten.rand_like.default, x) for _ in range(2)]
        return (*same, *others, *random)

    module = graph_of(build, (3,))
    assert merge_equal_nodes(module)
    assert ops(module).count(aten.add.Tensor) == 5
    assert ops(module).count(aten.rand_like.default) == 2


def test_dead_nodes_go_but_random_draws_stay():
    def build(call, x):
        call(aten.exp.default, call(aten.neg.default, x))
        call(aten.rand_like.default, x)
        return call(aten.sin.default, x)

    module = graph_of(build, (3,))
    assert remove_dead_nodes(module)
    assert ops(module) == [aten.rand_like.default, aten.sin.default]
    assert not remove_dead_nodes(module)


def test_the_verifier_names_the_fault_and_shows_the_neighbours():
    module = graph_of(lambda call, x: call(aten.exp.default, x), (3,))
    verify(module, Dialect.FUNCTIONAL)
    node = next(n for n in module.graph.nodes if n.op == "call_function")
    set_facts(node, origin=Origin("model.py", 7, function="forward"))
    del node.meta["val"]
    with pytest.raises(InternalError) as caught:
        verify(module, Dialect.FUNCTIONAL, after="a pass")
    text = str(caught.value)
    assert "BZ9020" in text and "meta['val']" in text and "after a pass" in text
    assert "model.py:7" in text and "x0" in text


@pytest.mark.parametrize(
    ("build", "fault"),
    [
        (lambda call, x: call(aten.add_.Tensor, x, 1), "writes"),
        (lambda call, x: call(torch.exp, x), "no ATen overload"),
    ],
)
def test_what_the_functional_dialect_forbids(build, fault):
    module = graph_of(build, (3,))
    with pytest.raises(InternalError, match=fault):
        verify(module, Dialect.FUNCTIONAL)
    verify(module, Dialect.CAPTURED)


def test_core_can_be_held_to_a_list():
    module = graph_of(lambda call, x: call(aten.sort.default, x), (3,))
    verify(module, Dialect.CORE)
    with pytest.raises(InternalError, match="core set"):
        verify(module, Dialect.CORE, allowed={aten.add.Tensor})


def test_a_pass_that_breaks_the_graph_is_named():
    from braze.graph.nodes.passes import GraphPass

    def spoil(module):
        next(n for n in module.graph.nodes if n.op == "call_function").meta.clear()
        return True

    module = graph_of(lambda call, x: call(aten.exp.default, x), (3,))
    with pytest.raises(InternalError, match="after spoil"):
        run_passes(module, [GraphPass("spoil", spoil)], Dialect.CORE, verify_level=2)


def test_the_printed_graph_runs_and_shows_shapes_and_lines():
    def build(call, x, y):
        a = call(aten.mul.Tensor, x, float("inf"))
        set_facts(a, origin=Origin("model.py", 3, function="forward"))
        parts = call(aten.split.Tensor, call(aten.cat.default, [x, y], 0), 2)
        return a, call(aten.to.dtype, x, torch.float64), parts

    module = graph_of(build, (2, 3), (4, 3))
    text = print_graph(module)
    assert "# x0: f32[2, 3]" in text and "model.py:3 in forward" in text and "f64[2, 3]" in text
    space: dict = {}
    exec(text, space)
    x, y = torch.randn(2, 3), torch.randn(4, 3)
    for have, want in zip(space["forward"](x, y), module(x, y)):
        torch.testing.assert_close(have, want)
