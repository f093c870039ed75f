"""``aot_function`` and its kin: what the compilers get, and that the compiled function does what the function does."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import braze
from braze import aot
from braze.aot import InputRole, OutputKind
from braze.graph.nodes.facts import facts
from braze.support.errors import BackwardError, Unsupported, UserError
from tests.aot.under_torch_compile import model, trained
from tests.helpers import logged

aten = torch.ops.aten


class Compiler:
    """A compiler that leaves graphs to PyTorch and keeps them."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.examples: list[list] = []

    def __call__(self, module, example_inputs):
        self.graphs.append(module)
        self.examples.append(example_inputs)
        return module.forward

    def targets(self, k: int = 0) -> list[str]:
        return [str(n.target) for n in self.graphs[k].graph.nodes if n.op == "call_function"]


def like_eager(fn, *args, **words):
    """A function through ``aot_function`` beside itself: results, gradients and what became of the arguments."""
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    want = fn(*theirs)
    have = aot.aot_function(fn, aot.nop, **words)(*ours)
    torch.testing.assert_close(have, want)
    torch.testing.assert_close(ours, theirs)
    assert torch.utils._pytree.tree_structure(have) == torch.utils._pytree.tree_structure(want)
    leaves = torch.utils._pytree.tree_leaves
    for mine, yours in ((have, want), (ours, theirs)):
        for a, b in zip(leaves(mine), leaves(yours), strict=True):
            if isinstance(a, torch.Tensor):
                assert (a.requires_grad, a.stride()) == (b.requires_grad, b.stride())
    wanted = [
        [t for t in leaves(part) if isinstance(t, torch.Tensor) and t.requires_grad] for part in (have, want)
    ]
    if not wanted[0]:
        return
    for result in wanted:
        sum(t.square().sum() for t in result).backward()
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        if isinstance(a, torch.Tensor) and a.is_leaf:
            torch.testing.assert_close(a.grad, b.grad)


def weights(*sizes):
    return torch.randn(
        *sizes, generator=torch.Generator().manual_seed(sum(sizes)), dtype=torch.float64, requires_grad=True
    )


def chain(x, w):
    return torch.tanh(x @ w).softmax(-1).square().sum()


def writes(x, w):
    x.mul_(2)
    x[0] = 1
    return (x @ w).sum()


def views(x, w):
    y = x * 2
    return x.t(), y, y[0], y.view(-1), x, y


def nested(d, pair, flag=True):
    total = d["a"] @ pair[0] if flag else d["a"]
    return {"total": total, "rest": [pair[1], None, 3, (d["a"].sum(),)]}


@pytest.mark.parametrize("partition_fn", ["default", "min_cut", aot.default_partition, aot.min_cut_partition])
def test_a_function_does_what_it_does_in_eager(partition_fn):
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    words = {"partition_fn": partition_fn}
    like_eager(chain, weights(4, 3), weights(3, 5), **words)
    like_eager(writes, x, weights(3, 5), **words)
    like_eager(views, weights(4, 3), weights(3, 5), **words)
    like_eager(nested, {"a": weights(4, 3)}, (weights(3, 5), x), **words)
    like_eager(nested, {"a": x}, (x.t().contiguous(), 7), False, **words)


def test_without_gradients_there_is_one_graph_for_the_inference_compiler():
    forward, inference = Compiler(), Compiler()
    fn = aot.aot_function(chain, forward, inference_compiler=inference)
    with torch.no_grad():
        fn(weights(4, 3), weights(3, 5))
    fn(torch.randn(4, 3), torch.randn(3, 5))
    assert not forward.graphs
    assert len(inference.graphs) == 2
    assert inference.graphs[0].meta["output_roles"][0].kind is OutputKind.VALUE


def test_compilers_get_aten_graphs_with_roles_and_fakes():
    forward, backward = Compiler(), Compiler()

    def fn(w, x):
        x.add_(1)
        return (x @ w).sin()

    compiled = aot.aot_function(fn, forward, backward, num_params_buffers=1)
    out = compiled(weights(3, 5), torch.zeros(4, 3, dtype=torch.float64))
    assert not backward.graphs, "the backward is compiled when it first runs"
    out.sum().backward()
    assert forward.targets()[:3] == ["aten.add.Tensor", "aten.mm.default", "aten.sin.default"]
    first, second = forward.graphs[0].meta, backward.graphs[0].meta
    assert first["input_roles"] == (InputRole.PARAMETER, InputRole.USER)
    kinds = [role.kind for role in first["output_roles"]]
    assert kinds[:2] == [OutputKind.MUTATION, OutputKind.VALUE]
    assert set(kinds[2:]) == {OutputKind.SAVED}
    assert first["output_roles"][0].input == 1
    assert first["output_roles"][1].output == 0
    assert second["input_roles"][-1] is InputRole.TANGENT
    assert [(r.kind, r.input) for r in second["output_roles"]] == [(OutputKind.GRADIENT, 0)]
    for compiler in (forward, backward):
        names = [n for n in compiler.graphs[0].graph.nodes if n.op == "placeholder"]
        assert [facts(n).role for n in names] == list(compiler.graphs[0].meta["input_roles"])
        for example, node in zip(compiler.examples[0], names, strict=True):
            assert example is node.meta["val"]


def test_one_compile_for_each_kind_of_arguments():
    compiler = Compiler()
    fn = aot.aot_function(lambda x, k: x * k, compiler)
    for x, k in (
        (torch.ones(2), 2),
        (torch.zeros(2), 2),
        (torch.ones(3), 2),
        (torch.ones(2), 3),
        (torch.ones(2), 2.0),
        (torch.ones(2), True),
        (torch.ones(2, dtype=torch.int64), 2),
        (torch.ones(4)[::2], 2),
    ):
        torch.testing.assert_close(fn(x, k), x * k)
    assert len(compiler.graphs) == 7


def test_zeros_of_both_signs_and_nan_are_constants_of_their_own():
    compiler = Compiler()
    fn = aot.aot_function(lambda x, k: x * k, compiler)
    one = torch.ones(1)
    for k in (0.0, -0.0, float("nan"), 0.0, -0.0, float("nan")):
        assert str(fn(one, k).item()) == str((one * k).item())
    assert len(compiler.graphs) == 3


def test_arguments_that_share_memory_are_another_kind():
    def fn(x, y):
        x.add_(1)
        return y * 2

    x = torch.zeros(3)
    compiled = aot.aot_function(fn, aot.nop)
    assert compiled(torch.zeros(3), torch.zeros(3)).tolist() == [0, 0, 0]
    assert compiled(x, x[:]).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]


def test_too_many_kinds_of_arguments_are_told_once():
    compiled = aot.aot_function(lambda x, k: x + k, aot.nop)
    x = torch.zeros(1)
    with logged() as messages:
        for k in range(70):
            assert compiled(x, k).item() == k
    assert len([m for m in messages if "BZ0044" in m]) == 1


@pytest.mark.parametrize("attribute", ["boxed", "_boxed_call"])
def test_a_boxed_callable_gets_one_list_that_it_may_empty(attribute):
    sizes = []

    def compiler(module, example_inputs):
        def run(inputs):
            assert type(inputs) is list
            sizes.append(len(inputs))
            values = list(inputs)
            inputs.clear()
            return module.forward(*values)

        setattr(run, attribute, True)
        return run

    x, w = weights(4, 3), weights(3, 5)
    out = aot.aot_function(chain, compiler)(x, w)
    have = torch.autograd.grad(out, [x, w])
    torch.testing.assert_close(have, torch.autograd.grad(chain(x, w), [x, w]))
    assert len(sizes) == 2
    assert sizes[0] == 2


def test_a_compiler_of_unboxed_callables_can_be_made_boxed():
    x = torch.randn(3)
    made = aot.make_boxed_compiler(aot.nop)
    torch.testing.assert_close(aot.aot_function(torch.sin, made)(x), x.sin())


def test_errors_of_autograd_are_eagers():
    x, w = weights(4, 3), weights(3, 5)
    compiled = aot.aot_function(chain, aot.nop)
    loss = compiled(x, w)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    with pytest.raises(BackwardError, match="BZ2023") as found:
        torch.autograd.grad(compiled(x, w), [x], create_graph=True)[0].sum().backward()
    assert "torch.func" in str(found.value)
    assert "uncompiled" in str(found.value)


def test_random_numbers_of_the_forward_are_the_backwards():
    def fn(x):
        return torch.nn.functional.dropout(x, 0.5)

    for partition_fn in ("default", "min_cut"):
        x = torch.ones(100, requires_grad=True)
        out = aot.aot_function(fn, aot.nop, partition_fn=partition_fn)(x)
        out.sum().backward()
        assert torch.equal(x.grad, out.detach())
        assert 0 < int((out == 0).sum()) < 100


def test_a_checkpoint_in_a_function_draws_once_or_is_refused():
    def body(x, w, p):
        return torch.nn.functional.dropout(x @ w, p).sin()

    def fn(x, w, p):
        return torch.utils.checkpoint.checkpoint(body, x, w, p, use_reentrant=False).sum()

    compiled = aot.aot_function(fn, aot.nop)
    x, w = weights(4, 3), weights(3, 5)
    have = torch.autograd.grad(compiled(x, w, 0.0), [x, w])
    torch.testing.assert_close(have, torch.autograd.grad(fn(x, w, 0.0), [x, w]))
    with pytest.raises(Unsupported, match="BZ2022"):
        compiled(x, w, 0.5)


def test_gradients_may_be_asked_for_inside():
    def by_autograd(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            return torch.autograd.grad(y.exp().sum(), y)[0] * x

    x = torch.randn(3, dtype=torch.float64)
    for fn in (by_autograd, torch.func.grad(lambda x: x.sin().sum()), torch.vmap(lambda x: x * 2)):
        torch.testing.assert_close(aot.aot_function(fn, aot.nop)(x), fn(x))
    y = x.clone().requires_grad_()
    have = torch.autograd.grad(aot.aot_function(by_autograd, aot.nop)(y).sum(), y)
    torch.testing.assert_close(have, torch.autograd.grad(by_autograd(y).sum(), y))


def test_a_function_of_autograd_keeps_its_own_backward():
    class Odd(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.saved_tensors[0] * 3

    like_eager(lambda x: Odd.apply(x) * 2, weights(3))


def test_autocast_and_inference_mode_are_kinds_of_their_own():
    compiler = Compiler()
    compiled = aot.aot_function(lambda x: x @ x, compiler)
    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert compiled(x).dtype is torch.bfloat16
    assert compiled(x).dtype is torch.float32
    with torch.inference_mode():
        assert compiled(x).is_inference()
    assert len(compiler.graphs) == 3


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("backend", ["aot_function", "aot_eager", "braze"])
def test_where_a_program_turns_autocast_off_nothing_is_cast(backend, graded):
    """A graph of ATen has autocast's casts in it: run under autocast, no more are made."""

    def program(x):
        with torch.autocast("cpu", enabled=False):
            return x @ x

    compiled = (
        aot.aot_function(program, Compiler())
        if backend == "aot_function"
        else braze.compile(program, backend=backend)
    )
    x = torch.randn(4, 4, requires_grad=graded)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        have, want = compiled(x), program(x)
    assert have.dtype is torch.float32
    torch.testing.assert_close(have, want)
    if graded:
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (have, want)))


def test_in_a_compiled_function_it_runs_whole():
    compiler = Compiler()
    inner = aot.aot_function(chain, compiler)
    compiled = braze.compile(lambda x, w: inner(x * 2, w) + 1, backend="eager")
    x, w = weights(4, 3), weights(3, 5)
    with logged() as messages:
        for _ in range(2):
            have = torch.autograd.grad(compiled(x, w), w)
            torch.testing.assert_close(have, torch.autograd.grad(chain(x * 2, w), w))
    assert len(compiler.graphs) == 2
    assert not any("BZ9013" in m for m in messages)


# -- decompositions ---------------------------------------------------------------------------------


def double_gelu(x, approximate="none"):
    return x * 2


@pytest.mark.parametrize("op", [aten.gelu.default, aten.gelu])
def test_decompositions_are_the_callers(op):
    compiler = Compiler()
    x = torch.randn(3)
    fn = aot.aot_function(torch.nn.functional.gelu, compiler, decompositions={op: double_gelu})
    assert torch.equal(fn(x), x * 2)
    assert compiler.targets() == ["aten.mul.Tensor"]
    plain = Compiler()
    torch.testing.assert_close(
        aot.aot_function(torch.nn.functional.gelu, plain)(x), torch.nn.functional.gelu(x)
    )
    assert plain.targets() == ["aten.gelu.default"]


def test_a_decomposition_may_write_what_it_gives_and_the_program_a_part_of_a_view_of_that():
    """As PyTorch's own of ``index_fill`` does before 2.12."""

    def cosine(x):
        return torch.empty_like(x).copy_(aten.cos.default(x))

    def program(of):
        def run(x):
            whole = of(x)
            turned = whole.t()
            whole.narrow(0, 0, 1).zero_()
            return turned, whole.mT

        return run

    x = torch.randn(3, 4)
    fn = aot.aot_function(program(torch.sin), aot.nop, decompositions={aten.sin.default: cosine})
    for have, want in zip(fn(x), program(torch.cos)(x), strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_decomposition_gives_is_no_view_whatever_it_was_written_through(grad):
    """In training it was refused: a view with a history, over memory that has none."""

    def negated(x):
        seen = torch.empty_like(x).view(-1).view(x.shape)
        return seen.copy_(x * -1)

    def program(x):
        whole = x.neg()
        return whole.t(), whole

    x, y = (torch.randn(3, 4).requires_grad_(grad) for _ in "xy")
    y.data.copy_(x.data)
    fn = aot.aot_function(program, aot.nop, aot.nop, decompositions={aten.neg.default: negated})
    found, wanted = fn(x), program(y)
    for have, want in zip(found, wanted, strict=True):
        assert torch.equal(have, want) and have._is_view() is want._is_view()
    if grad:
        for made in (found, wanted):
            (made[0].sum() + made[1].square().sum()).backward()
        assert torch.equal(x.grad, y.grad)


# -- modules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition_fn", ["default", "min_cut"])
def test_a_module_trains_as_in_eager(partition_fn):
    ours, theirs = model(), model()
    compiled = aot.aot_module(ours, aot.nop, partition_fn=partition_fn)
    torch.testing.assert_close(trained(compiled, ours), trained(theirs, theirs))
    compiled.eval()
    assert not ours.training
    x = torch.randn(5, 3, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    torch.testing.assert_close(compiled(x), theirs.eval()(x))
    assert list(compiled.parameters())[0] is ours[0].weight


def test_a_module_in_eval_mode_is_compiled_again():
    """The graphs of training would write the statistics."""
    ours = model()
    compiled = aot.aot_module(ours, aot.nop)
    x = torch.randn(5, 3, dtype=torch.float64)
    compiled(x)
    before = ours[1].running_mean.clone()
    compiled.eval()(x)
    assert torch.equal(ours[1].running_mean, before)


def test_parameters_have_their_role_and_shared_ones_are_one_input():
    compiler = Compiler()
    shared = nn.Linear(3, 3)
    aot.aot_module(nn.Sequential(shared, shared), compiler)(torch.randn(2, 3)).sum().backward()
    roles = compiler.graphs[0].meta["input_roles"]
    assert roles == (InputRole.PARAMETER, InputRole.PARAMETER, InputRole.USER)


def test_messages_name_a_module_by_its_class():
    class Adder(nn.Module):
        def forward(self, x, k):
            return x + k[0]

    with pytest.raises(UserError, match="an argument of Adder is neither a tensor nor hashable"):
        aot.aot_module(Adder(), aot.nop)(torch.zeros(1), bytearray(1))


def test_a_module_that_replaces_a_buffer_is_refused():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count = self.count + 1
            return x * self.count

    with pytest.raises(UserError, match="replaces count"):
        aot.aot_module(Counts(), aot.nop)(torch.ones(2))


def test_what_is_no_module_is_refused():
    with pytest.raises(UserError, match="BZ0005"):
        aot.aot_module(chain, aot.nop)


@pytest.mark.parametrize("partition_fn", ["default", "min_cut"])
def test_a_backend_of_ones_own(partition_fn):
    compiler = Compiler()

    def backend(gm, example_inputs):
        return aot.aot_module_simplified(gm, example_inputs, compiler, partition_fn=partition_fn)

    ours, theirs = model(), model()
    compiled = braze.compile(ours, backend=backend)
    torch.testing.assert_close(trained(compiled, ours), trained(theirs, theirs))
    assert len(compiler.graphs) == 2
    assert InputRole.PARAMETER in compiler.graphs[0].meta["input_roles"]


def somebody_elses(joint_module, joint_inputs, *, num_fwd_outputs):
    return aot.min_cut_partition(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)


def sized(x, w):
    """Sizes are in what the backward computes."""
    return chain(x, w) * x.shape[0], (x.reshape(-1)[: x.shape[0]] * w.sum()).view(1, -1).expand(3, -1)


@pytest.mark.parametrize("partition_fn", ["default", "min_cut", somebody_elses])
def test_a_backend_gets_symbolic_sizes_through(partition_fn):
    compiler = Compiler()

    def backend(gm, example_inputs):
        return aot.aot_module_simplified(gm, example_inputs, compiler, partition_fn=partition_fn)

    compiled = braze.compile(sized, backend=backend, dynamic=True)
    for n in (4, 6, 9):
        x, w = weights(n, 3), weights(3, n)
        have, want = ([*f(x, w)] for f in (compiled, sized))
        torch.testing.assert_close(have, want)
        have, want = (torch.autograd.grad(a + b.sum(), [x, w]) for a, b in (have, want))
        torch.testing.assert_close(have, want)
    assert len(compiler.graphs) == 2


def test_a_backend_hears_of_what_the_trace_cannot_carry():
    """And may run the graph as captured, whose error comes where eager's does."""
    heard = []

    def backend(gm, example_inputs):
        try:
            return aot.aot_module_simplified(gm, example_inputs, aot.nop)
        except Unsupported as error:
            heard.append(error.code)
            return gm.forward

    def spoils(x):
        y = x.exp()
        z = y * 2
        y.add_(1)
        return z, y

    x = weights(3)
    loss = braze.compile(spoils, backend=backend)(x)[1].sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert heard == ["BZ2021"]


def test_a_module_over_real_tensors_is_compiled_now():
    compiler = Compiler()
    ours = model().eval()
    x = torch.randn(5, 3, dtype=torch.float64)
    call = aot.aot_module_simplified(ours, [x], compiler)
    assert len(compiler.graphs) == 1
    torch.testing.assert_close(call(x), ours(x))
    call(x).sum().backward()
    assert all(p.grad is not None for p in ours.parameters())


def test_a_backend_under_torch_compile_trains_and_refuses_symbolic_sizes():
    done = subprocess.run(
        [sys.executable, "-m", "tests.aot.under_torch_compile"],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["trains as eager", "symbolic sizes are refused"]


# -- bad input --------------------------------------------------------------------------------------


def gives_nothing(module, example_inputs):
    return None


def gives_too_few(module, example_inputs):
    return lambda *inputs: module.forward(*inputs)[:-1]


def gives_a_tensor(module, example_inputs):
    return lambda *inputs: module.forward(*inputs)[0]


@pytest.mark.parametrize(
    ("compiler", "what"),
    [
        (gives_nothing, "gives_nothing gave NoneType for the forward"),
        (gives_too_few, "returned 1 results, not a list or tuple of"),
        (gives_a_tensor, "returned Tensor, not a list or tuple of"),
    ],
)
def test_compilers_that_do_not_fit_are_told(compiler, what):
    with pytest.raises(UserError, match="BZ0040") as found:
        aot.aot_function(lambda x: (x.sin(), x.cos()), compiler)(torch.ones(2))
    assert what in str(found.value)


@pytest.mark.parametrize(
    ("compiler", "what"),
    [
        (gives_nothing, "gives_nothing gave NoneType for the backward"),
        (gives_too_few, "of the backward returned 1 results, not a list or tuple of 2"),
    ],
)
def test_so_are_compilers_of_the_backward(compiler, what):
    loss = aot.aot_function(chain, aot.nop, compiler)(weights(4, 3), weights(3, 5))
    with pytest.raises(UserError, match="BZ0040") as found:
        loss.backward()
    assert what in str(found.value)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"fw_compiler": None}, "BZ0040"),
        ({"fw_compiler": aot.nop, "bw_compiler": 3}, "BZ0040"),
        ({"fw_compiler": aot.nop, "partition_fn": None}, "BZ0040"),
        ({"fw_compiler": aot.nop, "partition_fn": "least"}, "BZ0041"),
        ({"fw_compiler": aot.nop, "decompositions": {"aten.gelu": double_gelu}}, "BZ0045"),
        ({"fw_compiler": aot.nop, "decompositions": {aten.gelu: 3}}, "BZ0045"),
        ({"fw_compiler": aot.nop, "decompositions": [aten.gelu]}, "BZ0045"),
        ({"fw_compiler": aot.nop, "options": {"memory_buget": 0.5}}, "BZ0003"),
    ],
)
def test_words_that_cannot_be_are_refused_at_once(words, code):
    with pytest.raises(UserError, match=code):
        aot.aot_function(chain, **words)


def test_what_is_not_callable_is_refused():
    with pytest.raises(UserError, match="BZ0005"):
        aot.aot_function(3, aot.nop)


def test_a_result_that_is_no_tensor_is_refused():
    with pytest.raises(UserError, match="BZ0042") as found:
        aot.aot_function(lambda x: (x, object()), aot.nop)(torch.ones(2))
    assert "item 1" in str(found.value)


def test_an_argument_that_is_no_key_is_refused():
    with pytest.raises(UserError, match="BZ0043"):
        aot.aot_function(lambda x, s: x, aot.nop)(torch.ones(2), {1, 2})


def test_an_exception_of_the_function_is_its_own():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        aot.aot_function(fails, aot.nop)(torch.ones(2))


def test_data_cannot_decide():
    with pytest.raises(UserError, match="reads what a tensor holds"):
        aot.aot_function(lambda x: x + 1 if x.sum() > 0 else x, aot.nop)(torch.ones(2))


def test_weights_from_outside_must_be_arguments():
    w = weights(3, 5)
    with pytest.raises(Unsupported, match="BZ2001"):
        aot.aot_function(lambda x: x @ w, aot.nop)(weights(4, 3))
    constant = torch.ones(3)
    x = torch.randn(3)
    assert torch.equal(aot.aot_function(lambda x: x + constant, aot.nop)(x), x + 1)


def test_partials_and_objects_are_functions_too():
    x = torch.randn(3)
    assert torch.equal(aot.aot_function(functools.partial(torch.add, x), aot.nop)(x), x + x)
