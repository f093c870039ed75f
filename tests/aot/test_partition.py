"""Roles of inputs and outputs, what is refused, and what the wrapper does around the forward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from braze.aot import InputRole, OutputKind, eager_forward, partition, wrap
from braze.aot.functional.functionalize import functionalize
from braze.aot.trace.trace import trace
from braze.decomp import table
from braze.graph.fakes import fakes
from braze.graph.nodes.facts import set_facts
from braze.graph.nodes.printer import print_graph
from braze.graph.nodes.specs import Dialect, SymbolSpec
from braze.support.errors import Unsupported
from tests.aot.recording import CONTEXT, compile_aot, record, same_storage, targets
from tests.helpers import logged

aten = torch.ops.aten


def kinds(part) -> list[OutputKind]:
    return [role.kind for role in part.outputs]


def test_outputs_are_values_views_of_inputs_views_of_outputs_and_the_same_again():
    def f(x):
        y = x.exp()
        return y, y[0], x.t(), x, y, x + 1

    x = torch.randn(3, 4)
    part, call = compile_aot(f, [x])
    K = OutputKind
    assert kinds(part) == [K.ALIAS_OF_OUTPUT, K.ALIAS_OF_OUTPUT, K.ALIAS, K.ALIAS, K.SAME, K.VALUE]
    y, row, turned, same, again, more = call([x])
    assert same is x and again is y
    assert same_storage(row, y) and same_storage(turned, x) and turned.stride() == (1, 4)
    torch.testing.assert_close(more, x + 1)


def test_a_write_to_an_input_is_a_mutation_and_the_graph_has_none():
    def f(x, y):
        x[1:].add_(y)
        return x.sum()

    x, y = torch.randn(3, 4), torch.randn(4)
    part, call = compile_aot(f, [x.clone(), y])
    assert [role.input for role in part.mutations] == [0]
    assert not [t for t in targets(part) if t.split(".")[1].endswith("_")]
    want = x.clone()
    want[1:] += y
    (total,) = call([x, y])
    torch.testing.assert_close(x, want)
    torch.testing.assert_close(total, want.sum())


def test_an_input_that_is_only_read_is_not_copied():
    part, _ = compile_aot(lambda x: x.clone().add_(1), [torch.randn(3)])
    assert part.mutations == () and targets(part) == ["aten.add.Tensor"]


def test_a_value_that_is_an_inputs_is_copied_for_the_user():
    x = torch.randn(3)
    _, call = compile_aot(lambda x: x.clone(), [x])
    (y,) = call([x])
    assert not same_storage(x, y)


def test_two_inputs_swapped_in_place():
    def f(x, y):
        kept = x.clone()
        x.copy_(y)
        y.copy_(kept)
        return x + y

    x, y = torch.zeros(2), torch.ones(2)
    _, call = compile_aot(f, [x.clone(), y.clone()])
    call([x, y])
    assert x.tolist() == [1, 1] and y.tolist() == [0, 0]


def test_views_of_one_memory_that_lie_apart_are_inputs_of_their_own():
    x = torch.randn(4)
    part, call = compile_aot(lambda a, b: a.add_(b).sum(), [x[:2], x[2:]])
    assert part.shared == () and [role.input for role in part.mutations] == [0]
    want = x[:2] + x[2:]
    call([x[:2], x[2:]])
    torch.testing.assert_close(x[:2], want)


def test_views_that_overlap_become_views_of_one_input():
    x = torch.arange(4.0)
    part, call = compile_aot(lambda a, b: (a.mul_(2), b + 1)[1], [x[:3], x[1:]])
    (shared,) = part.shared
    assert (shared.inputs, shared.offsets, shared.offset, shared.size) == ((0, 1), (0, 1), 0, 4)
    (found,) = call([x[:3], x[1:]])
    assert x.tolist() == [0, 2, 4, 3] and found.tolist() == [3, 5, 4]


def test_views_that_overlap_far_apart_are_refused():
    x = torch.zeros(1000)
    with pytest.raises(Unsupported, match="BZ2005"):
        compile_aot(lambda a, b: a.add_(b), [x[::900], x[::900]])


def writes_one_reads_other(x, y):
    x.add_(1)
    return y * 2


def test_inputs_that_overlap_later_run_eagerly():
    part = partition(*record(writes_one_reads_other, [torch.zeros(3), torch.zeros(3)])[:2], CONTEXT)
    x = torch.zeros(3)
    (got,) = wrap(part, eager_forward(part.forward), eager=lambda x, y: (writes_one_reads_other(x, y),))(
        [x, x]
    )
    assert got.tolist() == [2, 2, 2]
    with pytest.raises(Unsupported, match="BZ2017"):
        wrap(part, eager_forward(part.forward))([x, x])


def test_each_graph_tells_once_that_a_call_ran_eagerly_though_it_lies_where_another_lay():
    part = partition(*record(writes_one_reads_other, [torch.zeros(3), torch.zeros(3)])[:2], CONTEXT)
    x = torch.zeros(3)
    for _ in range(20):
        call = wrap(part, eager_forward(part.forward), eager=lambda x, y: (writes_one_reads_other(x, y),))
        with logged() as said:
            call([x, x])
            call([x, x])
        assert sum("BZ2017" in text for text in said) == 1
        del call


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_enlarging_by_known_sizes_stays_one_operator_in_training_and_saves_nothing(dims):
    """In PyTorch's formula for sizes that are symbols it is a gather, whose places would be saved, and its gradient a scatter."""
    x = torch.randn(2, 3, *(4,) * dims, requires_grad=True)
    part, _ = compile_aot(lambda x: F.interpolate(x, size=(7, 5, 6)[:dims], mode="nearest"), [x], grad=True)
    assert targets(part) == [f"aten.upsample_nearest{dims}d.default"]
    assert part.backward is not None and not part.backward.saved


@pytest.mark.parametrize(
    "resize",
    [
        lambda x: x.resize_(9), lambda x: x.t_(), lambda x: x.set_(x.clone()), lambda x: (x * 2).resize_(9),
        lambda x: (x * 2).set_(x.clone()),
    ],
    ids=["resized", "turned", "another's", "a value resized", "a value that gets another's"],
)  # fmt: skip
def test_tensors_whose_memory_changes_are_refused(resize):
    """Inputs, and values that come to have another memory than the operator gave them."""
    with pytest.raises(Unsupported, match="BZ2009"):
        compile_aot(lambda x: resize(x).sum(), [torch.randn(2, 3)])


def test_parameters_keep_their_role_and_numbers_are_constants():
    gm, made, _ = record(lambda x, w: x @ w, [torch.randn(2, 3), torch.randn(3, 2)])
    set_facts(list(gm.graph.nodes)[1], role=InputRole.PARAMETER)
    part = partition(gm, made, CONTEXT)
    assert part.input_roles == (InputRole.USER, InputRole.PARAMETER)
    assert targets(part) == ["aten.mm.default"] and part.dialect is Dialect.FUNCTIONAL


def test_autocast_inside_the_graph_is_applied():
    _, made, _ = record(lambda x, w: (x, w), [torch.randn(2, 3), torch.randn(4, 3)])
    graph = torch.fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    enter = graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False))
    y = graph.call_function(F.linear, (x, w))
    graph.call_function(torch.amp.autocast_mode._exit_autocast, (enter,))
    z = graph.call_function(F.linear, (x, w))
    graph.output((y, z))
    part = partition(torch.fx.GraphModule(torch.nn.Module(), graph), made, CONTEXT)
    assert targets(part) == ["aten._to_copy.default"] * 2 + ["aten.linear.default"] * 2
    assert [role.spec.dtype for role in part.outputs] == [torch.bfloat16, torch.float32]
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_and_grad_mode_are_put_back_after_a_failure():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.amp.autocast_mode._enter_autocast, ("cpu", torch.bfloat16, True, False))
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output((graph.call_method("item", (x,)),))
    _, made, _ = record(lambda x: x, [torch.randn(3)])
    with pytest.raises(Unsupported, match="BZ2007"):
        partition(torch.fx.GraphModule(torch.nn.Module(), graph), made, CONTEXT)
    assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()


def test_random_operators_are_kept_in_order_and_follow_the_seed():
    def f(x):
        torch.rand(2)  # moves the generator on
        return F.dropout(x, 0.5, True), torch.randn(3)

    x = torch.ones(64)
    _, call = compile_aot(f, [x], table(eager_random=True))
    torch.manual_seed(3)
    want = f(x)
    torch.manual_seed(3)
    for have, expected in zip(call([x]), want):
        torch.testing.assert_close(have, expected)


def test_literals_are_new_on_each_call():
    def f(x):
        t = torch.tensor([1.0, 2.0])
        t.add_(x)
        return t, torch.tensor(3.0) * x

    _, call = compile_aot(f, [torch.ones(2)])
    for _ in range(2):
        t, scaled = call([torch.ones(2)])
        assert t.tolist() == [2, 3] and scaled.tolist() == [3, 3]


def test_batch_norm_in_training_writes_its_statistics():
    bn = torch.nn.BatchNorm1d(3)
    x = torch.randn(5, 3)

    def f(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    for decompositions in (None, table()):
        mean, var = bn.running_mean.clone(), bn.running_var.clone()
        try:
            _, call = compile_aot(f, [x, mean, var], decompositions)
        except Unsupported:
            assert decompositions is None
            continue
        want_mean, want_var = mean.clone(), var.clone()
        want = f(x, want_mean, want_var)
        (got,) = call([x, mean, var])
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(mean, want_mean)
        torch.testing.assert_close(var, want_var)


def test_symbolic_sizes_flow_through_to_the_outputs():
    def f(x, y):
        z = x.reshape(2, -1)
        return torch.cat([x, y]) * x.shape[0], z, x[1:], x.new_zeros(x.shape[0])

    x, y = torch.randn(6, 4), torch.randn(3, 4)
    part, call = compile_aot(f, [x, y], table(), dynamic=True)
    assert any(isinstance(s, str) for s in part.inputs[0].sizes)
    for n, m in ((6, 3), (8, 5)):
        a, b = torch.randn(n, 4), torch.randn(m, 4)
        for have, want in zip(call([a, b]), f(a, b)):
            torch.testing.assert_close(have, want)


def test_a_symbolic_int_is_an_input_with_a_symbol():
    mode = fakes.new_mode(dynamic=True)
    n, x = mode.symbol(5, "n"), mode.fake(torch.randn(5, 2))
    graph = torch.fx.Graph()
    s, t = graph.placeholder("n"), graph.placeholder("x")
    made = graph.call_function(torch.full, ((s,), 2.0))
    graph.output((graph.call_method("sum", (made,)), t))
    part = partition(torch.fx.GraphModule(torch.nn.Module(), graph), [n, x], CONTEXT)
    assert isinstance(part.inputs[0], SymbolSpec) and part.input_roles[0] is InputRole.SYMBOL
    real = torch.randn(5, 2)
    total, same = wrap(part, eager_forward(part.forward))([7, real])
    assert total.item() == 14 and same is real


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.bn = torch.nn.BatchNorm2d(8)
        self.gn = torch.nn.GroupNorm(2, 8)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        y = F.relu(self.bn(self.conv(x)))
        y = self.gn(F.max_pool2d(y, 2))
        y = F.interpolate(y, scale_factor=2).flatten(2).transpose(1, 2)
        y, _ = self.attention(y, y, y)
        return F.log_softmax(y.mean(1), -1), F.adaptive_avg_pool2d(x, 1)


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_small_model_means_the_same(decomposed):
    net = Net().eval().double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    names = [n for n, _ in [*net.named_parameters(), *net.named_buffers()]]
    values = [v.detach() for _, v in [*net.named_parameters(), *net.named_buffers()]]

    def f(x, *state):
        return torch.func.functional_call(net, dict(zip(names, state)), (x,))

    part, call = compile_aot(f, [x, *values], table() if decomposed else None)
    with torch.no_grad():
        want = net(x)
    for have, expected in zip(call([x, *values]), want):
        torch.testing.assert_close(have, expected)
    text = print_graph(part.forward)
    space: dict = {}
    exec(text, space)
    with torch.no_grad():
        for have, expected in zip(space["forward"](x, *values), want):
            torch.testing.assert_close(have, expected)


def test_functionalize_leaves_a_graph_without_writes_alone():
    gm, made, _ = record(lambda x: x.t() + 1, [torch.randn(2, 3)])
    traced = trace(gm, made, {})
    before = str(traced.module.graph)
    result = functionalize(traced.module, traced.mode, [n for n, _ in traced.outputs])
    assert str(traced.module.graph) == before and result.mutated == []


def test_what_is_computed_of_complex_numbers_is_kept_for_the_backward_and_not_computed_again():
    """An absolute value has half the bytes of its number; a view of complex numbers is no computation."""

    def f(x):
        y = torch.fft.rfft(x)
        return (y.abs() + 1e-3).log(), torch.view_as_real(y * y).square()

    x = torch.tensor([0.0, -0.0, 1.0, -2.0, 1e-30, 3.0], requires_grad=True)
    for inputs in ([x], [torch.randn(3, 16, requires_grad=True)], [torch.randn(1, 1, requires_grad=True)]):
        part, compiled = compile_aot(f, inputs, table(), grad=True)
        assert part.backward is not None
        again = [str(n.target) for n in part.backward.graph.graph.nodes]
        assert "aten.abs.default" not in again and "aten._fft_r2c.default" not in again
        ours, eager = compiled(inputs), f(*inputs)
        gradients = [torch.randn_like(y) for y in eager]
        torch.testing.assert_close(list(ours), list(eager))
        torch.testing.assert_close(
            torch.autograd.grad(list(ours), inputs, gradients), torch.autograd.grad(eager, inputs, gradients)
        )
