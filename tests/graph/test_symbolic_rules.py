"""Rules on symbolic sizes: what they give, with numbers put in, is what eager gives at these numbers."""

from __future__ import annotations

import pytest
import torch

from braze.aot.facts.views import hint
from braze.graph.fakes import fakes
from braze.graph.rules import metadata

aten = torch.ops.aten
F32, I64 = torch.float32, torch.int64


def like(*sizes, dtype=F32):
    """A tensor to be; strings are symbols and expressions over them."""
    return ("tensor", sizes, dtype)


B, S, H = "b", "s", "h"
X = like(B, S, 8)
IMAGE = like(B, 3, H, S)
HALF = like(B, 4, "(h-1)//2+1", "(s-1)//2+1")
#: what a picture is padded to, and how often the window is in that
ROWS, COLUMNS = "h + (7 - h % 7) % 7", "s + (-s) % 7"
DOWN, ACROSS = "(h + 6) // 7", "-((-s) // 7)"
PADDED = like(B, ROWS, COLUMNS, 8)
CALLS = {
    "add": (aten.add.Tensor, X, X),
    "add a bias": (aten.add.Tensor, X, like(8)),
    "add a mask": (aten.add.Tensor, like(B, 2, S, S), like(B, 1, 1, S)),
    "add of halves": (aten.add.Tensor, HALF, HALF),
    "mul by a gate": (aten.mul.Tensor, HALF, like(B, 4, 1, 1)),
    "mul by a number": (aten.mul.Scalar, X, 2.5),
    "mul of kinds": (aten.mul.Tensor, X, like(B, S, 8, dtype=I64)),
    "div": (aten.div.Tensor, like(B, S, dtype=I64), like(B, 1, dtype=I64)),
    "compare": (aten.lt.Tensor, like(S, dtype=I64), like(S, 1, dtype=I64)),
    "gelu": (aten.gelu.default, X),
    "hardswish": (aten.hardswish.default, HALF),
    "hardswish in place": (aten.hardswish_.default, HALF),
    "add in place": (aten.add_.Tensor, X, like(8)),
    "where": (aten.where.self, like(B, 1, S, dtype=torch.bool), like(B, S, S), like(1, 1, 1)),
    "layer norm": (aten.native_layer_norm.default, X, [8], like(8), like(8), 1e-5),
    "batch norm": (aten.native_batch_norm.default, IMAGE, like(3), like(3), like(3), like(3), False, 0.1, 1e-5),
    "softmax": (aten._softmax.default, X, -1, False),
    "embedding": (aten.embedding.default, like(10, 6), like(B, S, dtype=I64)),
    "mm": (aten.mm.default, like(S, 8), like(8, 5)),
    "addmm": (aten.addmm.default, like(5), like(S, 8), like(8, 5)),
    "bmm": (aten.bmm.default, like(B, S, 8), like(B, 8, S)),
    "convolution": (
        aten.convolution.default, IMAGE, like(5, 3, 3, 3), like(5), [2, 2], [1, 1], [1, 1], False, [0, 0], 1,
    ),
    "mean": (aten.mean.dim, HALF, [2, 3], True),
    "sum": (aten.sum.dim_IntList, X, [1]),
    "amax": (aten.amax.default, X, [-1], True),
    "norm": (aten.linalg_vector_norm.default, X, 2, [1]),
    "norm over one element": (aten.linalg_vector_norm.default, like(B, 1, S), 1, [1]),
    "cat": (aten.cat.default, [X, like(B, S, 3)], -1),
    "pad": (aten.constant_pad_nd.default, X, [0, 0, 1, 2]),
    "copy": (aten.clone.default, X),
    "cast": (aten._to_copy.default, X),
    "zeros like": (aten.zeros_like.default, X),
    "attention": (aten._scaled_dot_product_flash_attention_for_cpu.default, *[like(B, 2, S, 8)] * 3),
    "pool": (aten._adaptive_avg_pool2d.default, IMAGE, [1, 1]),
    "transpose": (aten.transpose.int, X, 1, 2),
    "t": (aten.t.default, like(S, 8)),
    "permute": (aten.permute.default, IMAGE, [0, 2, 3, 1]),
    "unsqueeze": (aten.unsqueeze.default, X, 1),
    "unsqueeze at the end": (aten.unsqueeze.default, X, -1),
    "select": (aten.select.int, X, 1, 0),
    "select the last": (aten.select.int, X, 1, -1),
    "slice": (aten.slice.Tensor, X, 1, 1, 2**63 - 1),
    "slice to a number": (aten.slice.Tensor, X, 2, 2, 6),
    "slice off the end": (aten.slice.Tensor, X, 1, 0, -1),
    "diagonal": (aten.diagonal.default, X),
    "diagonal beside the main one": (aten.diagonal.default, X, 1, -2, 0),
    "diagonal below the main one": (aten.diagonal.default, X, -1, 2, 1),
    "expand": (aten.expand.default, like(B, 1, 8), [-1, S, -1]),
    "expand in front": (aten.expand.default, like(S), [B, S]),
    "view": (aten.view.default, X, [B, S, 2, 4]),
    "flatten": (aten.view.default, X, [-1, 8]),
    "flatten the middle": (aten.view.default, IMAGE, [B, 3, -1]),
    "unflatten": (aten._unsafe_view.default, X, [B, -1, 4]),
    "split": (aten.split.Tensor, X, 3, 2),
    "split by sizes": (aten.split_with_sizes.default, X, [2, 6], -1),
    "pad to windows": (aten.constant_pad_nd.default, like(B, H, S, 8), [0, 0, 0, "(-s) % 7", 0, "(7 - h % 7) % 7"]),
    "cut into windows": (aten.view.default, PADDED, [B, DOWN, 7, ACROSS, 7, 8]),
    "put windows together": (aten.view.default, like(f"b*({DOWN})*({ACROSS})", 7, 7, 8), [-1, DOWN, ACROSS, 7, 7, 8]),
    "rows of windows": (aten.view.default, like(B, DOWN, 7, ACROSS, 7, 8), [-1, ROWS, COLUMNS, 8]),
    "view of a window": (aten.view.default, ("part", like(B, S, 8), 2, 1, 5), [B, S, 2, 2]),
    "view with ones": (aten.view.default, like(B, 1, S, 8), [1, B, S, 1, 4, 2]),
    "loss": (aten.mse_loss.default, X, like(B, S, 8), 0),
    "smooth loss of what is turned": (aten.smooth_l1_loss.default, like(1, S), like(S, 1), 0, 2.0),
    "roll": (aten.roll.default, PADDED, [-3, -3], [1, 2]),
    "every second row": (aten.slice.Tensor, PADDED, 1, 0, 2**63 - 1, 2),
    "every second column from the second": (aten.slice.Tensor, X, 1, 1, 2**63 - 1, 2),
    "masked fill": (aten.masked_fill.Scalar, X, like(B, S, 1, dtype=torch.bool), 2.0),
    "masked fill, and more dims": (aten.masked_fill.Scalar, like(S, 8), like(B, S, 1, dtype=torch.bool), 2.0),
    "cat of what is written otherwise": (
        aten.cat.default, [like(B, "h + (7 - h % 7) % 7"), like(B, "7 * ((h + 6) // 7)")], 0,
    ),
    "attention with a mask": (
        aten._scaled_dot_product_flash_attention_for_cpu.default, *[like(B, 2, S, 8)] * 3, 0.0, False,
        {"attn_mask": like(1, 2, S, S)},
    ),
    "new zeros": (aten.new_zeros.default, X, [S, 3]),
    "full": (aten.full.default, [B, S], 1.0),
    "arange": (aten.arange.default, S),
}  # fmt: skip
SIZES = [
    {"b": 3, "s": 12, "h": 10},
    {"b": 7, "s": 5, "h": 4},
    {"b": 2, "s": 4, "h": 11},
    {"b": 2, "s": 2, "h": 2},
]


def number(size, at):
    return eval(size, {}, at) if isinstance(size, str) else size


def real(argument, at):
    if isinstance(argument, tuple) and argument[:1] == ("part",):
        _, whole, dim, start, end = argument
        return aten.slice.Tensor(real(whole, at), dim, start, end)
    if isinstance(argument, dict):
        return {name: real(a, at) for name, a in argument.items()}
    if isinstance(argument, tuple) and argument[:1] == ("tensor",):
        _, sizes, dtype = argument
        shape = [number(n, at) for n in sizes]
        return torch.zeros(shape, dtype=dtype)
    if isinstance(argument, list):
        return [real(a, at) for a in argument]
    return number(argument, at)


def symbolic(argument, mode, symbols):
    if isinstance(argument, tuple) and argument[:1] == ("part",):
        _, whole, dim, start, end = argument
        with mode:
            return aten.slice.Tensor(symbolic(whole, mode, symbols), dim, start, end)
    if isinstance(argument, dict):
        return {name: symbolic(a, mode, symbols) for name, a in argument.items()}
    if isinstance(argument, tuple) and argument[:1] == ("tensor",):
        shape = [symbolic(n, mode, symbols) for n in argument[1]]
        with mode:
            return torch.empty(shape, dtype=argument[2])
    if isinstance(argument, list):
        return [symbolic(a, mode, symbols) for a in argument]
    return number(argument, symbols)


def flat(value):
    return [t for v in value for t in flat(v)] if isinstance(value, tuple | list) else [value]


def call(arguments, values):
    """Positional and named arguments."""
    named = values[-1] if isinstance(arguments[-1], dict) else {}
    return (values[:-1] if named else values), named


def trace(arguments):
    """A mode, its symbols by name, and the arguments in it."""
    mode = fakes.new_mode(dynamic=True)
    base = mode.fake(torch.randn(3, 12, 10), symbolic_dims={0, 1, 2}, source="x")
    symbols = dict(zip("bsh", base.shape, strict=True))
    return mode, symbols, [symbolic(a, mode, symbols) for a in arguments]


def compare(found, op, arguments, given, symbols, at):
    """What a rule gave, with numbers put in, beside what eager gives."""
    inputs = [real(a, at) for a in arguments]
    positional, named = call(arguments, inputs)
    expected = flat(op(*positional, **named))
    values = {symbols[n].node._expr: at[n] for n in symbols}
    known = [t for t in flat(positional) if isinstance(t, torch.Tensor)]
    asked = [t for t in flat(call(arguments, given)[0]) if isinstance(t, torch.Tensor)]
    for ours, eager in zip(flat(found), expected, strict=True):
        if eager.numel() == 0 and 0 in ours.shape:
            continue  # statistics that only training keeps
        told = [
            tuple(n if type(n) is int else int(n.node.expr.xreplace(values)) for n in each)
            for each in (ours.shape, ours.stride(), (ours.storage_offset(),))
        ]
        assert told[0] == tuple(eager.shape) and told[2] == (eager.storage_offset(),)
        seen = [(n, step) for n, step in zip(told[0], told[1], strict=True) if n != 1]
        assert seen == [(n, s) for n, s in zip(eager.shape, eager.stride(), strict=True) if n != 1]
        assert ours.dtype is eager.dtype
        shared = [a.untyped_storage()._cdata == ours.untyped_storage()._cdata for a in asked]
        assert shared == [a.untyped_storage().data_ptr() == eager.untyped_storage().data_ptr() for a in known]


@pytest.mark.parametrize("name", CALLS)
def test_a_rule_gives_what_eager_gives_at_each_size(name):
    op, *arguments = CALLS[name]
    mode, symbols, given = trace(arguments)
    guards = len(mode.env.guards)
    positional, named = call(arguments, given)
    with mode:
        found = metadata.symbolic_result_of(mode.dispatch, op, positional, named, mode.ground)
    assert found is not metadata.MISS
    assert len(mode.env.guards) == guards, "a rule asks nothing"
    for at in SIZES:
        compare(found, op, arguments, given, symbols, at)


def test_a_result_over_a_window_has_its_order_of_dims_and_no_gaps():
    mode, symbols, (x,) = trace([X])
    with mode:
        window = x[:, :, 2:6].transpose(1, 2)
        found = metadata.symbolic_result_of(mode.dispatch, aten.exp.default, (window,), {}, mode.ground)
    assert found is not metadata.MISS
    for at in SIZES:
        compare(found, lambda x: x[:, :, 2:6].transpose(1, 2).exp(), [X], [x], symbols, at)


ONES = {
    "a column": lambda x: x[:1, :, 0].t().view(x.shape[1], -1),
    "a column with a dim more": lambda x: x[:1, :, 0].t().view(x.shape[1], 1, 1),
    "a column as a row": lambda x: x[:1, :, 0].t().view(1, x.shape[1]),
    "rows of one": lambda x: x[:, :, :1].view(x.shape[0], x.shape[1], 1, 1),
    "one row": lambda x: x[:, 1:2].view(1, x.shape[0], 1, -1),
}


@pytest.mark.parametrize("name", ONES)
def test_a_view_gives_dims_of_one_element_the_steps_that_eager_gives_them(name):
    """They decide whether a later operator takes channels for the innermost dim."""
    real = torch.zeros(3, 12, 10)
    mode = fakes.new_mode(dynamic=True)
    x = mode.fake(real, symbolic_dims={0, 1, 2}, source="x")
    with mode:
        found = ONES[name](x)
    assert [hint(n) for n in found.stride()] == list(ONES[name](real).stride())


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("sizes", [(5, 1, 4), (-1,), (2, 10), (20, 1, 1)])
def test_dims_that_do_not_lie_as_one_are_not_joined_across_one_of_one_element(dynamic, sizes):
    """PyTorch's fakes join them: a view of such fakes would read other elements than a copy."""
    real = torch.zeros(5, 1, 4).permute(2, 1, 0)
    mode = fakes.new_mode(dynamic=dynamic)
    x = mode.fake(real, symbolic_dims={0, 2} if dynamic else frozenset(), source="x")
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        real.view(sizes)
    with mode, pytest.raises(RuntimeError, match="view size is not compatible"):
        x.view([x.shape[2], 1, x.shape[0]] if sizes == (5, 1, 4) else sizes)


def test_the_gradient_of_a_gated_unit_is_as_large_as_its_operand_by_the_same_formula():
    """Else autograd's engine fits it, and what is added to it takes the sign of a zero."""
    mode = fakes.new_mode(dynamic=True)
    x = mode.fake(torch.zeros(4, 6), symbolic_dims={0, 1}, source="x")
    with mode:
        gradient = aten.glu_backward.default(torch.nn.functional.glu(x, 1), x, 1)
    assert [str(n) for n in gradient.shape] == [str(n) for n in x.shape]


ASKED = {
    "a convolution that may leave nothing": (
        aten.convolution.default, IMAGE, like(5, 3, 4, 4), None, [4, 4], [0, 0], [1, 1], False, [0, 0], 1,
    ),
    "a slice that may end outside": (aten.slice.Tensor, X, 1, 0, 5),
    "an item that may be outside": (aten.select.int, X, 1, 3),
    "a mask that may not fit": (
        aten._scaled_dot_product_flash_attention_for_cpu.default, *[like(B, 2, S, 8)] * 3, 0.0, False,
        {"attn_mask": like(1, 2, 12, 12)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_what_a_rule_must_know_is_asked_and_guarded(name):
    op, *arguments = ASKED[name]
    mode, symbols, given = trace(arguments)
    positional, named = call(arguments, given)
    with mode:
        found = metadata.symbolic_result_of(mode.dispatch, op, positional, named, mode.ground)
    assert found is not metadata.MISS
    assert mode.shape_relations() and (mode.env.guards or mode.env.replacements)
    holding = [at for at in SIZES if holds(mode, symbols, at)]
    assert SIZES[0] in holding and SIZES[3] not in holding
    for at in holding:
        compare(found, op, arguments, given, symbols, at)


def holds(mode, symbols, at):
    """Whether the guards of a trace let sizes in."""
    known = {str(symbols[n].node._expr): at[n] for n in symbols}
    found = {symbols[n].node._expr: at[n] for n in symbols}
    settled = all(e.xreplace(found) == found[s] for s, e in mode.env.replacements.items())
    return settled and all(eval(text, {}, known) for text, _ in mode.shape_relations())


MAYBE = {
    "a broadcast of sizes that may be equal": (aten.add.Tensor, like(B, 8), like(S, 8)),
    "a size that may be 1, beside another": (aten.add.Tensor, like("(s-1)//2+1"), like(H)),
    "a view that may not fit": (aten.view.default, like(S), [-1, 4]),
}  # fmt: skip


@pytest.mark.parametrize("name", MAYBE)
def test_what_holds_at_some_sizes_only_is_left_to_pytorch(name):
    op, *arguments = MAYBE[name]
    mode, _, given = trace(arguments)
    with mode:
        assert metadata.symbolic_result_of(mode.dispatch, op, given, {}, mode.ground) is metadata.MISS
    assert mode.env.var_to_range


def test_products_of_sizes_that_differ_are_left_to_pytorch():
    op, *arguments = aten.mm.default, like(B, S), like(H, 5)
    mode, _, given = trace(arguments)
    with mode:
        assert metadata.symbolic_result_of(mode.dispatch, op, given, {}, mode.ground) is metadata.MISS
