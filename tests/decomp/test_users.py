"""Decompositions of users: before ours, for the process, a block or one compile; compiled code follows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._decomp import core_aten_decompositions, get_decompositions

import braze
from braze import aot
from braze.decomp import table, users
from braze.decomp.families import ours
from braze.graph.operators.decompositions import as_table
from braze.support.errors import UserError
from tests.helpers import logged

aten = torch.ops.aten
X = torch.linspace(-2, 2, 5)


@pytest.fixture(autouse=True)
def _nothing_stays():
    with braze.decompositions():
        yield
    assert not users.registered()


def doubled(x, approximate="none"):
    return x * 2


def tripled(x, approximate="none"):
    return x * 3


def test_the_order_is_compile_registered_ours():
    mine, other = doubled, tripled
    for op in (aten.gelu.default, aten.stack.default):
        base = ours().get(op)
        assert table().get(op) is base
        with braze.decompositions({op: mine}):
            assert table()[op] is mine
            assert table({op: other})[op] is other
            assert table()[op] is mine
        assert table().get(op) is base


def test_registered_for_good_and_for_a_block():
    compiled = braze.compile(F.gelu)
    torch.testing.assert_close(compiled(X), F.gelu(X))
    with braze.decompositions():
        assert braze.register_decomposition(aten.gelu.default)(doubled) is doubled
        assert torch.equal(compiled(X), 2 * X)
        with braze.decompositions({aten.gelu: tripled}):
            assert torch.equal(compiled(X), 3 * X)
        assert torch.equal(compiled(X), 2 * X)
    torch.testing.assert_close(compiled(X), F.gelu(X))


def test_what_was_compiled_under_a_table_is_kept_for_it():
    """Going in and out of a block compiles each side once."""
    compiles = []

    def backend(gm, example_inputs):
        compiles.append(dict(users.registered()))
        return gm.forward

    compiled = braze.compile(lambda x: F.gelu(x) + 1, backend=backend)
    for _ in range(3):
        compiled(X)
        with braze.decompositions({aten.gelu.default: doubled}):
            compiled(X)
            compiled(X)
    assert compiles == [{}, {aten.gelu.default: doubled}]
    with braze.decompositions({aten.gelu.default: tripled}):
        compiled(X)
    assert len(compiles) == 3


def test_the_same_function_again_is_the_same_table():
    assert users.key() == users.key({})
    with braze.decompositions({aten.gelu.default: doubled}):
        first = users.key()
    with braze.decompositions({aten.gelu.default: doubled}):
        assert users.key() == first
        with braze.decompositions({aten.gelu.default: tripled}):
            assert users.key() != first


def test_tables_that_are_long_gone_are_compiled_again():
    """Variants of a few tables are kept, not of all that ever were."""
    compiles = []

    def backend(gm, example_inputs):
        compiles.append(1)
        return gm.forward

    compiled = braze.compile(lambda x: F.gelu(x) + 1, backend=backend)
    compiled(X)
    for k in range(12):
        with braze.decompositions({aten.gelu.default: lambda x, approximate="none", k=k: x * k}):
            compiled(X)
    assert len(compiles) == 13


def test_a_compiled_function_may_register():
    """The graph ends there, and what comes behind is compiled under the new table."""

    @braze.compile
    def step(x):
        with braze.decompositions({aten.gelu.default: doubled}):
            y = F.gelu(x)
        return y, F.gelu(x)

    for _ in range(2):
        inside, behind = step(X)
        assert torch.equal(inside, 2 * X)
        torch.testing.assert_close(behind, F.gelu(X))
    assert not users.registered()


def test_reset_forgets_what_was_put_aside():
    compiled = braze.compile(F.gelu)
    compiled(X)
    with braze.decompositions({aten.gelu.default: doubled}):
        braze.reset()
        assert torch.equal(compiled(X), 2 * X)
    torch.testing.assert_close(compiled(X), F.gelu(X))


def test_for_one_compile_alone():
    options = {"decompositions": {aten.gelu: doubled}}
    assert torch.equal(braze.compile(F.gelu, options=options)(X), 2 * X)
    torch.testing.assert_close(braze.compile(F.gelu)(X), F.gelu(X))
    with braze.decompositions({aten.gelu.default: tripled}):
        assert torch.equal(braze.compile(F.gelu, options=options)(X), 2 * X)
        assert torch.equal(braze.compile(F.gelu)(X), 3 * X)


def test_the_whole_table_is_for_writers_of_backends_too():
    seen = []

    def compiler(module, example_inputs):
        seen.extend(n.target for n in module.graph.nodes if n.op == "call_function")
        return module.forward

    fn = aot.aot_function(
        lambda x: F.gelu(x) + x.softmax(-1), compiler, decompositions=table({aten.gelu: doubled})
    )
    torch.testing.assert_close(fn(X), 2 * X + X.softmax(-1))
    assert aten._softmax.default not in seen
    assert aten.gelu.default not in seen


def test_the_in_place_form_follows():
    fn = aot.aot_function(lambda x: x.clone().relu_(), aot.nop, decompositions={aten.relu: doubled})
    assert torch.equal(fn(X), 2 * X)
    with braze.decompositions({aten.relu.default: doubled}):
        x = X.clone()
        out = braze.compile(lambda x: F.relu(x, inplace=True))(x)
        assert out is x
        assert torch.equal(x, 2 * X)


def test_gradients_are_of_the_operator_unless_its_backward_is_registered_too():
    def loss(x):
        return F.gelu(x).sum()

    def backward(grad, x, approximate="none"):
        return grad * 2

    x = X.clone().requires_grad_()
    with braze.decompositions({aten.gelu.default: doubled}):
        (mine,) = torch.autograd.grad(braze.compile(loss)(x), x)
        torch.testing.assert_close(mine, torch.autograd.grad(loss(x), x)[0])
        with braze.decompositions({aten.gelu_backward: backward}):
            (mine,) = torch.autograd.grad(braze.compile(loss)(x), x)
            assert torch.equal(mine, torch.full_like(x, 2))


def test_not_implemented_leaves_the_operator():
    def sometimes(x, approximate="none"):
        return NotImplemented if approximate == "tanh" else x * 2

    with braze.decompositions({aten.gelu.default: sometimes}):
        compiled = braze.compile(lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")))
        first, second = compiled(X)
    assert torch.equal(first, 2 * X)
    torch.testing.assert_close(second, F.gelu(X, approximate="tanh"))


@pytest.mark.parametrize("train", [False, True])
def test_the_parts_of_an_operator_are_not_cast_one_by_one(train):
    """Autocast decides at the operator that the program calls: gelu is none that it casts, whatever it is made of."""
    x = torch.randn(4, 4, requires_grad=train)

    def f(x):
        return F.gelu(x), torch.mm(x, x)

    with (
        torch.autocast("cpu", torch.bfloat16),
        braze.decompositions({aten.gelu.default: lambda x, approximate="none": torch.mm(x, x)}),
    ):
        whole, product = braze.compile(f)(x)
    assert whole.dtype == torch.float32 and product.dtype == torch.bfloat16
    torch.testing.assert_close(whole, x @ x)


@pytest.mark.provokes("BZ9022")
def test_another_result_than_the_operators_is_told_and_not_used():
    with (
        braze.decompositions({aten.gelu.default: lambda x, approximate="none": x.sum()}),
        logged() as messages,
    ):
        torch.testing.assert_close(braze.compile(F.gelu)(X), F.gelu(X))
    assert any("BZ9022" in m for m in messages)


@pytest.mark.provokes("BZ2007")
def test_an_exception_of_a_decomposition_reaches_the_user_as_a_refusal():
    def fails(x, approximate="none"):
        raise ValueError("mine")

    with logged() as messages, braze.decompositions({aten.gelu.default: fails}):
        torch.testing.assert_close(braze.compile(F.gelu)(X), F.gelu(X))
    assert any("ValueError: mine" in m for m in messages)


def test_operators_of_ones_own_can_have_one():
    library = torch.library.Library("test_users", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
    op = torch.ops.test_users.twice.default
    seen = []

    def compiler(module, example_inputs):
        seen.extend(n.target for n in module.graph.nodes if n.op == "call_function")
        return module.forward

    fn = aot.aot_function(lambda x: op(x), compiler, decompositions={op: lambda x: x * 2})
    assert torch.equal(fn(X), 2 * X)
    assert seen == [aten.mul.Tensor]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"aten.gelu": doubled}, "is no operator"),
        ({torch.sin: doubled}, "is no operator"),
        ({aten.gelu: None}, "NoneType, not a function"),
        ({aten.relu_.default: doubled}, "it writes to its arguments"),
        ({aten.linear.default: doubled}, "addmm for linear"),
        ({aten.linear: doubled}, "addmm for linear"),
        ([aten.gelu], "a dict from operators to functions, not list"),
    ],
)
def test_what_cannot_have_a_decomposition_is_refused(given, what):
    with pytest.raises(UserError, match="BZ0045") as found:
        with braze.decompositions(given):
            raise AssertionError
    assert what in str(found.value)
    with pytest.raises(UserError, match="BZ0045"):
        braze.compile(F.gelu, options={"decompositions": given})


@pytest.mark.parametrize("ops", [(), ("aten.gelu",), (None,)])
def test_a_decorator_over_no_operator_is_refused(ops):
    with pytest.raises(UserError, match="BZ0045"):
        braze.register_decomposition(*ops)(doubled)


@pytest.mark.parametrize(
    "table", [core_aten_decompositions, lambda: get_decompositions([aten.gelu, aten.relu_])]
)
def test_pytorchs_own_tables_are_taken_without_what_no_trace_asks_for(table):
    given = table()
    taken = as_table(given)
    assert 0 < len(taken) < len(given)
    x = torch.randn(5)
    compiled = braze.compile(
        lambda x: F.gelu(x).relu_(), backend="aot_eager", options={"decompositions": given}
    )
    torch.testing.assert_close(compiled(x), F.gelu(x).relu_())
