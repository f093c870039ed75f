"""Partition functions: ours are what others may write too, and what others write is checked before it runs."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import braze
from braze import aot
from braze.aot import InputRole, OutputKind
from braze.aot.cut.min_cut import is_random
from braze.aot.joint.partition_functions import NAMED
from braze.support.errors import UserError
from tests.helpers import logged

aten = torch.ops.aten


def deep(x, w):
    for _ in range(3):
        x = torch.tanh(x @ w) + x.softmax(-1)
    return x.square().sum(), x


def writes(x, w):
    """The backward reads what the input held before."""
    y = (x.clone() * w).sin()
    x.add_(w.detach())
    return (y * x).sum()


def views(x, w):
    return ((x @ w.t()).view(-1) * x.reshape(-1).exp()).sum(), x.t()


def drops(x, w):
    return (torch.nn.functional.dropout(x @ w, 0.5) * w).sum()


def normalized(x, w):
    y = torch.nn.functional.layer_norm(x @ w, (4,), w[0])
    return y.square().sum(), y.detach()


FUNCTIONS = [deep, writes, views, drops, normalized]


def tensors():
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(4, 4, dtype=torch.float64, generator=g) for _ in range(2))
    return x, w.requires_grad_()


def through(partition_fn):
    """As a function of its own, which takes the way of somebody else's."""

    def somebody_elses(joint_module, joint_inputs, *, num_fwd_outputs):
        return partition_fn(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)

    return somebody_elses


def run(fn, partition_fn):
    """Results, the inputs afterwards, and the gradient."""
    x, w = tensors()
    torch.manual_seed(0)
    made = aot.aot_function(fn, aot.nop, partition_fn=partition_fn)(x, w)
    loss = made[0] if isinstance(made, tuple) else made
    loss.backward()
    return made, x, w.grad


def kept(forward):
    return [role.kind for role in forward.meta["output_roles"]].count(OutputKind.SAVED)


@pytest.mark.parametrize(
    "partition_fn", [aot.default_partition, aot.min_cut_partition], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_our_functions_give_the_same_as_somebody_elses(fn, partition_fn):
    torch.testing.assert_close(run(fn, partition_fn), run(fn, through(partition_fn)), rtol=0, atol=0)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_partitions_of_pytorch_itself_fit(fn):
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    want = run(fn, aot.default_partition)
    for partition_fn in (
        default_partition,
        functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
    ):
        torch.testing.assert_close(run(fn, partition_fn), want)


def test_the_cut_is_by_the_option_and_by_the_function():
    saved = {}

    def compiler(name):
        def compile(module, example_inputs):
            saved.setdefault(name, kept(module))
            return module.forward

        return compile

    def waves(x, w):
        return (x @ w).sin().sin().cos().sum()

    x, w = tensors()
    for name in ("default", "min_cut"):
        aot.aot_function(waves, compiler(name), aot.nop, partition_fn=name)(x, w)
        again = f"{name} again"
        aot.aot_function(waves, compiler(again), aot.nop, partition_fn=through(NAMED[name]))(x, w)
        assert saved[name] == saved[again]
    assert saved["default"] > saved["min_cut"]


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_the_option_of_compile(partition, backend):
    x, w = tensors()
    compiled = braze.compile(deep, backend=backend, options={"partition": partition})
    have = torch.autograd.grad(compiled(x, w)[0], w)
    torch.testing.assert_close(have, torch.autograd.grad(deep(x, w)[0], w))


@pytest.mark.parametrize("options", [{"partition": "most"}, {"partition": "default", "memory_budget": 0.5}])
def test_options_that_do_not_go_together_are_refused(options):
    with pytest.raises(UserError, match="BZ0003"):
        braze.compile(deep, options=options)


def test_a_budget_is_a_word_of_the_cut():
    saved = []

    def compiler(module, example_inputs):
        saved.append(kept(module))
        return module.forward

    x, w = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)
    with logged():
        for budget in (1.0, 0.3):
            cut = functools.partial(aot.min_cut_partition, memory_budget=budget)
            aot.aot_function(deep, compiler, aot.nop, partition_fn=cut)(x, w)
    assert saved[1] < saved[0]


def test_a_partition_function_sees_roles_and_does_not_change_the_joint_graph():
    seen = {}

    def partition_fn(joint_module, joint_inputs, *, num_fwd_outputs):
        before = str(joint_module.graph)
        made = aot.min_cut_partition(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)
        assert str(joint_module.graph) == before
        seen.update(
            inputs=joint_module.meta["input_roles"],
            outputs=[r.kind for r in joint_module.meta["output_roles"]],
            lengths=[len(part) for part in joint_inputs],
            results=num_fwd_outputs,
        )
        return made

    run(writes, partition_fn)
    assert seen == {
        "inputs": (InputRole.USER, InputRole.USER, InputRole.TANGENT),
        "outputs": [OutputKind.MUTATION, OutputKind.VALUE, OutputKind.GRADIENT],
        "lengths": [2, 1],
        "results": 2,
    }


# -- partitions that do not fit ---------------------------------------------------------------------


def edited(edit):
    """A partition function that spoils what ours makes."""

    def partition_fn(joint_module, joint_inputs, *, num_fwd_outputs):
        halves = aot.default_partition(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)
        return edit(*halves, num_fwd_outputs)

    return partition_fn


def set_output(module, items):
    next(n for n in module.graph.nodes if n.op == "output").args = (tuple(items),)
    module.recompile()


def items_of(module):
    return list(next(n for n in module.graph.nodes if n.op == "output").args[0])


def no_outputs(forward, backward, count):
    set_output(forward, items_of(forward)[: count - 1])
    return forward, backward


def other_output(forward, backward, count):
    items = items_of(forward)
    set_output(forward, [items[1], *items[1:]])
    return forward, backward


def unsaved(forward, backward, count):
    set_output(forward, items_of(forward)[:-1])
    return forward, backward


def constant_saved(forward, backward, count):
    set_output(forward, [*items_of(forward), 3])
    return forward, backward


def gradient_dropped(forward, backward, count):
    set_output(backward, items_of(backward)[:-1])
    return forward, backward


def gradient_changed(forward, backward, count):
    last = next(n for n in reversed(backward.graph.nodes) if n.op == "call_function")
    with backward.graph.inserting_after(last):
        turned = backward.graph.call_function(aten.sum.default, (last,))
    set_output(backward, [turned])
    return forward, backward


def input_dropped(forward, backward, count):
    unread = next(n for n in forward.graph.nodes if n.op == "placeholder")
    with forward.graph.inserting_before(unread.next):
        one = forward.graph.call_function(aten.zeros.default, ([4, 4],), {"dtype": torch.float64})
    unread.replace_all_uses_with(one)
    forward.graph.erase_node(unread)
    forward.graph.lint()
    return forward, backward


def foreign_node(forward, backward, count):
    wrong = next(n for n in forward.graph.nodes if n.op == "call_function")
    reader = next(n for n in backward.graph.nodes if n.op == "call_function")
    reader.args = (wrong, *reader.args[1:])
    return forward, backward


def one_module(forward, backward, count):
    return forward


def no_modules(forward, backward, count):
    return forward.forward, backward.forward


def no_tuple(forward, backward, count):
    next(n for n in backward.graph.nodes if n.op == "output").args = (items_of(backward)[0],)
    return forward, backward


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (no_outputs, "item 1 of the joint graph"),
        (other_output, "made item 0 of its forward f64[4, 4]"),
        (unsaved, "which its forward does not save"),
        (constant_saved, "saves 3"),
        (gradient_dropped, "returns 0 gradients from its backward, of 1"),
        (gradient_changed, "made gradient 0 of its backward"),
        (input_dropped, "a forward of 1 inputs, not 2"),
        (foreign_node, "gave a backward that cannot run"),
        (one_module, "gave GraphModule"),
        (no_modules, "it must give a forward and a backward, two graph modules"),
        (no_tuple, "gave a backward that does not return a tuple"),
        (lambda *_: None, "gave NoneType"),
    ],
    ids=lambda x: getattr(x, "__name__", "") if callable(x) else "",
)
def test_partitions_that_do_not_fit_are_told(edit, what):
    x, w = tensors()
    with pytest.raises(UserError, match="BZ0041") as found:
        aot.aot_function(deep, aot.nop, partition_fn=edited(edit))(x, w)
    assert what in str(found.value)
    assert "partition_fn" in str(found.value)


@pytest.mark.parametrize("name", [None, "anew"])
def test_random_numbers_may_not_be_drawn_again(name):
    """A backward that draws for itself would use another mask than the forward."""

    def partition_fn(joint_module, joint_inputs, *, num_fwd_outputs):
        forward, backward = aot.default_partition(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)
        drawn = next(n for n in forward.graph.nodes if is_random(n) and n.op == "call_function")
        mask = next(
            n
            for n in backward.graph.nodes
            if n.op == "placeholder" and n.name in {u.name for u in drawn.users}
        )
        like = next(n for n in backward.graph.nodes if n.name.startswith("tangents"))
        with backward.graph.inserting_after(like):
            whole = backward.graph.call_function(
                aten.empty.memory_format, ([4, 4],), {"dtype": torch.float64}
            )
        with backward.graph.inserting_after(whole):
            again = backward.graph.create_node(
                "call_function", drawn.target, (whole, *drawn.args[1:]), dict(drawn.kwargs), name=name
            )
        mask.replace_all_uses_with(again)
        backward.graph.erase_node(mask)
        return forward, backward

    x, w = tensors()
    with pytest.raises(UserError, match="BZ0041") as found:
        aot.aot_function(drops, aot.nop, partition_fn=partition_fn)(x, w)
    assert "draws random numbers" in str(found.value)


def test_an_exception_of_a_partition_function_is_its_own():
    def fails(joint_module, joint_inputs, *, num_fwd_outputs):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(deep, fails)


# -- what is mended rather than refused -------------------------------------------------------------


def save_instead(choose):
    """Save other values than ours: those that ``choose`` picks of the forward, from which the backward is made again."""

    def partition_fn(joint_module, joint_inputs, *, num_fwd_outputs):
        from torch._functorch.partitioners import _extract_fwd_bwd_modules

        nodes = [n for n in joint_module.graph.nodes if choose(n)]
        return _extract_fwd_bwd_modules(joint_module, nodes, [], num_fwd_outputs=num_fwd_outputs)

    return partition_fn


def test_a_saved_view_is_saved_by_its_base():
    """The backward gets the weight, and turns it itself: nothing is copied, and a write to the weight is noticed."""
    graphs = []

    def compiler(module, example_inputs):
        graphs.append(module)
        return module.forward

    def product(x, w):
        return (x @ w.t()).sin().sum()

    def of_views(node):
        forward = node.meta.get("partitioner_tag") == "is_forward"
        return forward and node.target in ("primals_1", aten.t.default, aten.mm.default)

    x, w = tensors()
    x.requires_grad_()
    call = aot.aot_function(product, compiler, aot.nop, partition_fn=save_instead(of_views))
    loss = call(x, w)
    have = torch.autograd.grad(loss, [x], retain_graph=True)
    torch.testing.assert_close(have, torch.autograd.grad(product(x, w), [x]))
    assert not [n for n in graphs[0].graph.nodes if n.target is aten.clone.default]
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_view_may_be_saved_before_what_it_is_a_view_of():
    """The base comes to the backward once, whichever of the two the forward gives first."""
    graphs = []

    def compiler(module, example_inputs):
        graphs.append(module)
        return module.forward

    def product(x, w):
        y = x @ w
        turned = y.t()
        return (turned.exp() * turned).sum() + (y.sin() * y).sum()

    def partition_fn(joint_module, joint_inputs, *, num_fwd_outputs):
        from torch._functorch.partitioners import _extract_fwd_bwd_modules

        nodes = [n for n in joint_module.graph.nodes if n.meta.get("partitioner_tag") == "is_forward"]
        kept = [n for n in nodes if n.target in ("primals_1", "primals_2", aten.t.default, aten.mm.default)]
        return _extract_fwd_bwd_modules(joint_module, kept[::-1], [], num_fwd_outputs=num_fwd_outputs)

    x, w = tensors()
    x.requires_grad_()
    loss = aot.aot_function(product, compiler, compiler, partition_fn=partition_fn)(x, w)
    have = torch.autograd.grad(loss, [x, w])
    torch.testing.assert_close(have, torch.autograd.grad(product(x, w), [x, w]))
    assert (
        len([n for n in graphs[1].graph.nodes if n.op == "placeholder"]) == 4
    )  # x, w, the product and a tangent


def test_a_backward_may_read_nothing():
    """The gradient of a sign is zeros, whatever comes in."""

    def partition_fn(joint_module, joint_inputs, *, num_fwd_outputs):
        forward, backward = aot.default_partition(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)
        graph = backward.graph
        with graph.inserting_before(graph.output_node()):
            zeros = graph.call_function(aten.zeros.default, ([4, 4],), {"dtype": torch.float64})
        set_output(backward, [zeros])
        for node in reversed(list(graph.nodes)):
            if node.op != "output" and not node.users:
                graph.erase_node(node)
        assert not graph.find_nodes(op="placeholder")
        return forward, backward

    x, w = tensors()
    aot.aot_function(lambda x, w: w.sign(), aot.nop, partition_fn=partition_fn)(x, w).sum().backward()
    assert torch.equal(w.grad, torch.zeros(4, 4, dtype=torch.float64))


def written_views(x, w):
    y = (x.clone() @ w).tanh()
    x[0].mul_(2)
    z = y.view(2, 8).t()
    return (z.exp() * x.view(8, 2)).sum(), z, y


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data(), fn=st.sampled_from([deep, writes, views, normalized, written_views]))
def test_more_may_be_saved_than_is_needed(data, fn):
    """Views, inputs that are written, results, values twice: whatever is saved besides, results and gradients are the same."""

    def partition_fn(joint_module, joint_inputs, *, num_fwd_outputs):
        from torch._functorch.partitioners import _extract_fwd_bwd_modules

        forward, _ = aot.default_partition(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)
        needed = {n.name for n in items_of(forward)[num_fwd_outputs:]}
        could = [
            n
            for n in joint_module.graph.nodes
            if n.meta.get("partitioner_tag") == "is_forward" and isinstance(n.meta["val"], torch.Tensor)
        ]
        more = data.draw(st.sets(st.sampled_from([n.name for n in could])))
        nodes = [n for n in joint_module.graph.nodes if n.name in needed | more]
        return _extract_fwd_bwd_modules(joint_module, nodes, [], num_fwd_outputs=num_fwd_outputs)

    torch.testing.assert_close(run(fn, partition_fn), run(fn, aot.default_partition))
