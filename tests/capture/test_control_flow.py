"""Control-flow operators: one node each, over graphs of the functions that they get."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as over_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_flatten, tree_unflatten

import braze
from braze.graph.calls import control_flow
from braze.graph.nodes.facts import facts
from braze.support.errors import BrazeError

X = torch.arange(6.0).reshape(2, 3)
INPUTS = (X, X - 9, torch.cat([X, X - 1]), X / 10)
W = torch.linspace(-1, 1, 3)


def plain_cond(pred, yes, no, operands=()):
    return (yes if pred else no)(*operands)


def plain_while_loop(go_on, body, values):
    while go_on(*values):
        values = body(*values)
    return values


def plain_scan(step, carry, xs, *, dim=0, reverse=False):
    leaves, spec = tree_flatten(xs)
    order = range(leaves[0].shape[dim])
    rows = []
    for i in reversed(order) if reverse else order:
        carry, row = step(carry, tree_unflatten([x.select(dim, i) for x in leaves], spec))
        rows.append(tree_flatten(row))
    if reverse:
        rows.reverse()
    columns = [torch.stack(column) for column in zip(*[leaves for leaves, _ in rows], strict=True)]
    columns = [x.movedim(0, dim) if dim < x.dim() else x for x in columns]
    return carry, tree_unflatten(columns, rows[0][1])


def plain_over_rows(function, xs, *more):
    return torch.stack([function(row, *more) for row in xs])


@pytest.fixture
def expected(monkeypatch):
    """Runs a program with the operators as Python says them: PyTorch's own go through its compiler."""

    def run(program, *args):
        with monkeypatch.context() as patched:
            patched.setattr(torch, "cond", plain_cond)
            for name, plain in (
                ("while_loop", plain_while_loop),
                ("scan", plain_scan),
                ("over_rows", plain_over_rows),
            ):
                patched.setitem(globals(), name, plain)
            return program(*args)

    return run


class Kept:
    """A backend that runs graphs as they are and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.graphs.append(gm)
        return gm.forward

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return [n for gm in self.graphs for n in gm.graph.nodes]


def two_ways(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + W, lambda x: x.cos() - 1, (x,)) * 2


def nested(x):
    def outer(x):
        return torch.cond(x.max() > 4, lambda x: x * W, lambda x: x * 100, (x,))

    return torch.cond(x.sum() > 0, outer, lambda x: -x, (x,))


def several_results(x):
    def yes(x):
        return {"a": x + 1, "b": [x.sum(0), W * 2]}

    def no(x):
        return {"a": x - 1, "b": [x.amax(0), W * 3]}

    return torch.cond(x.mean() > 0, yes, no, (x,))


def no_operands(x):
    return torch.cond(x.sum() > 0, lambda: x.sin(), lambda: W + x)


def given_back(x):
    return torch.cond(x.sum() > 0, lambda x: x, lambda x: x.sin(), (x,)) + 1


def rounds(x):
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + W), (torch.tensor(0), x))


def rounds_until(x):
    return while_loop(lambda x: x.norm() < 100, lambda x: (x * 1.5 + 1,), (x,))


def no_rounds(x):
    return while_loop(lambda i, x: i < 0, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))


def choice_in_a_loop(x):
    def body(i, x):
        return i + 1, torch.cond(x.sum() > 0, lambda x: x * 2 * W, lambda x: x - 1, (x,))

    return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))


def steps(x):
    def step(carry, row):
        carry = carry * 0.5 + row
        return carry, carry.sin()

    return scan(step, torch.zeros(3), x, dim=0)


def steps_back_along_columns(x):
    def step(carry, row):
        now = carry["sum"] + row["x"] + W[0]
        return {"sum": now}, (now * 2, row["x"] - 1)

    return scan(step, {"sum": torch.zeros_like(x[:, 0])}, {"x": x}, dim=1, reverse=True)


def each_row(x):
    return over_rows(lambda row, k: row * 2 + k * W, x, W)


def sizes_inside(x):
    n = x.shape[0]
    return torch.cond(x.sum() > 0, lambda x: x.reshape(n * 3).sin(), lambda x: x.flatten() * n, (x,))


PROGRAMS = [
    two_ways,
    nested,
    several_results,
    no_operands,
    given_back,
    rounds,
    rounds_until,
    no_rounds,
    choice_in_a_loop,
    steps,
    steps_back_along_columns,
    each_row,
    sizes_inside,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_gives_what_python_would(program, dynamic, expected):
    kept = Kept()
    compiled = braze.compile(program, backend=kept, fullgraph=True, dynamic=dynamic)
    for x in INPUTS:
        torch.testing.assert_close(compiled(x), expected(program, x), rtol=0, atol=0)
    assert len(kept.graphs) == (1 if dynamic else 2)
    assert any(n.target in control_flow.OPERATORS for n in kept.nodes)


@pytest.mark.parametrize("program", [two_ways, nested, steps, steps_back_along_columns, sizes_inside])
def test_gradients_are_those_of_python(program, expected):
    compiled = braze.compile(program, backend="eager", fullgraph=True)
    for x in INPUTS:
        grads = []
        for run in (compiled, functools.partial(expected, program)):
            leaf = x.clone().requires_grad_()
            sum(y.sum() for y in tree_flatten(run(leaf))[0]).backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(grads[0], grads[1])


def test_parameters_that_a_branch_does_not_use_get_zeros():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return torch.cond(x.sum() > 0, self.a, lambda x: self.b(x) * 2, (x,))

    module = Either()
    compiled = braze.compile(module, backend="eager", fullgraph=True)
    out = compiled(X)
    torch.testing.assert_close(out, module.a(X))
    out.add_(1).sum().backward()  # a result of its own: it may be written
    assert module.a.weight.grad.abs().sum() > 0
    assert torch.equal(module.b.weight.grad, torch.zeros(3, 3))


def test_a_predicate_that_python_knows_chooses_while_tracing():
    def f(x, flag):
        return torch.cond(flag, lambda x: x + 1, lambda x: x - 1, (x,))

    kept = Kept()
    compiled = braze.compile(f, backend=kept, fullgraph=True)
    assert torch.equal(compiled(X, True), X + 1)
    assert torch.equal(compiled(X, False), X - 1)
    assert not any(n.target in control_flow.OPERATORS for n in kept.nodes)


def test_a_predicate_on_sizes_is_guarded(expected):
    def f(x):
        return torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x - 1, (x,))

    compiled = braze.compile(f, backend="eager", dynamic=True, fullgraph=True)
    for x in INPUTS:
        assert torch.equal(compiled(x), expected(f, x))


def test_subgraphs_are_modules_of_the_graph_and_know_their_lines():
    kept = Kept()
    braze.compile(two_ways, backend=kept)(X)
    (gm,) = kept.graphs
    held = [gm.get_submodule(n.target) for n in gm.graph.nodes if n.op == "get_attr"]
    assert len(held) == 2
    for module in held:
        lines = {facts(n).origin.line for n in module.graph.nodes if n.op == "call_method"}
        assert lines == {two_ways.__code__.co_firstlineno + 1}
    assert "cond" in gm.print_readable(print_output=False)


def log_to_list(x):
    seen = []

    def yes(x):
        seen.append(1)
        return x + 1

    return torch.cond(x.sum() > 0, yes, lambda x: x - 1, (x,)), seen


def write_nonlocal(x):
    count = 0

    def yes(x):
        nonlocal count
        count += 1
        return x + 1

    return torch.cond(x.sum() > 0, yes, lambda x: x - 1, (x,)), count


class Box:
    value = 0


BOX = Box()


def write_attribute(x):
    def yes(x):
        BOX.value = 3
        return x + 1

    return torch.cond(x.sum() > 0, yes, lambda x: x - 1, (x,))


def write_operand(x):
    return torch.cond(x.sum() > 0, lambda x: x.add_(1).sin(), lambda x: x - 1, (x * 2,))


def write_closure(x):
    y = x * 2
    return torch.cond(x.sum() > 0, lambda x: y.mul_(x), lambda x: x - 1, (x,))


def write_closure_through_a_view(x):
    y = x * 2
    return torch.cond(x.sum() > 0, lambda x: x + y.view(-1)[:1].mul_(3), lambda x: x - 1, (x,)), y


def print_inside(x):
    def body(x):
        print("round")
        return (x * 2,)

    return while_loop(lambda x: x.sum() < 100, body, (x,))


@pytest.mark.parametrize(
    "program",
    [
        log_to_list,
        write_nonlocal,
        write_attribute,
        write_operand,
        write_closure,
        write_closure_through_a_view,
        print_inside,
    ],
)
def test_side_effects_are_left_to_pytorch(program):
    with pytest.raises(BrazeError, match="BZ1019"):
        braze.compile(program, backend="eager", fullgraph=True)(X)


def other_shape(x):
    return torch.cond(x.sum() > 0, lambda x: x.sum(), lambda x: x.sin(), (x,))


def other_type(x):
    return torch.cond(x.sum() > 0, lambda x: x.double(), lambda x: x.sin(), (x,))


def other_structure(x):
    return torch.cond(x.sum() > 0, lambda x: (x.sin(),), lambda x: x.sin(), (x,))


def other_layout(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.t().contiguous().t().sin(), (x,))


def growing(x):
    return while_loop(lambda x: x.sum() < 100, lambda x: (torch.cat([x, x]),), (x,))


@pytest.mark.parametrize("program", [other_shape, other_type, other_structure, other_layout, growing])
def test_results_must_agree(program):
    with pytest.raises(BrazeError, match="BZ1021") as caught:
        braze.compile(program, backend="eager", fullgraph=True)(X)
    assert f"test_control_flow.py:{program.__code__.co_firstlineno + 1}" in str(caught.value)


def test_a_break_inside_a_branch_moves_before_the_operator():
    def f(x):
        y = x + 1
        z = torch.cond(y.sum() > 0, lambda y: y * float(y.sum()), lambda y: y, (y,))
        return z * 2

    with pytest.raises(BrazeError, match=r"torch\.cond: .*BZ1004"):
        braze.compile(f, backend="eager", fullgraph=True)(X)


def test_numbers_that_change_are_operands():
    def f(x, n):
        return torch.cond(pred=x.sum() > 0, true_fn=lambda x: x * n, false_fn=lambda x: x - n, operands=(x,))

    kept = Kept()
    compiled = braze.compile(f, backend=kept, fullgraph=True)
    for n in (2, 3, 4, 5):
        assert torch.equal(compiled(X, n), X * n)
    assert len(kept.graphs) == 2
    for n in (2.5, 3.5, 4.5, 5.5):
        assert torch.equal(compiled(X - 9, n), X - 9 - n)
    assert len(kept.graphs) <= 4


def test_marked_regions_are_followed():
    """Of ``torch.compiler.nested_compile_region``: PyTorch's placeholder, which its compiler replaces, refuses to be traced."""

    class Block(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        @torch.compiler.nested_compile_region
        def forward(self, x, *, func=1.0):
            return (x * self.scale + func).relu()

    marked = torch.compiler.nested_compile_region(torch.compiler.nested_compile_region(lambda x: x.sin() * 2))
    model = nn.Sequential(Block(0.5), Block(-1.5))
    compiled = braze.compile(lambda x: marked(model(x)) + model[0](x), fullgraph=True)
    for x in INPUTS:
        torch.testing.assert_close(compiled(x), marked(model(x)) + model[0](x))
    with pytest.raises(TypeError, match="multiple values for argument 'func'"):
        braze.compile(lambda x: model[0](x, func=2.0))(X)
