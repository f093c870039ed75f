"""What kernels allocate before their loops lies as in eager: turned, cut, repeated and empty operands, and strides that mean nothing."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.graph.fakes import fakes
from braze.graph.rules.allocations import ALLOCATIONS

aten = torch.ops.aten


def laid(*shape, strides):
    """Ones that lie so."""
    reach = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True) if n)
    return torch.ones(reach).as_strided(shape, strides)


OPERANDS = [
    laid(1, 5, strides=(1, 1)),
    laid(1, 1, 5, strides=(1, 1, 1)),
    laid(1, 4, 5, strides=(77, 5, 1)),
    laid(3, 1, 5, strides=(1, 3, 3)),
    laid(3, 4, 5, strides=(20, 0, 1)),
    laid(3, 4, 5, strides=(1, 3, 12)),
    laid(3, 4, 5, strides=(100, 10, 1)),
    laid(1, 0, 3, strides=(10, 5, 1)),
    laid(4, 5, strides=(1, 4)),
    laid(5, 1, strides=(1, 77)),
    laid(5, 1, strides=(1, 1)),
    laid(2, 1, 4, 4, strides=(16, 1, 4, 1)),
    laid(2, 3, 4, 4, strides=(48, 1, 12, 3)),
    laid(2, 3, 4, 4, strides=(1, 2, 6, 24)),
    laid(2, 1, 4, 4, 4, strides=(64, 1, 16, 4, 1)),
]
_OF_TWO = [
    op for op, rule in ALLOCATIONS.items() if rule.__name__.startswith(("_loop_of", "_complex", "_normal"))
]
#: calls of one operand
OF_ONE = {
    **{op.name(): op for op in (aten.deg2rad.default, aten.rad2deg.default, aten.frexp.Tensor)},
    **{f"{op} of integers": lambda x, op=op: op(x.long()) for op in (aten.deg2rad, aten.rad2deg)},
    "polygamma": lambda x: torch.polygamma(1, x),
    "polygamma of integers": lambda x: torch.polygamma(1, x.long()),
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x, x.mT.contiguous().mT, reduction="none"),
    "prelu": lambda x: F.prelu(x, torch.ones_like(x.flatten()[:1])),
    "renorm": lambda x: torch.renorm(x, 2, 1, 1.0),
    "diag_embed": lambda x: torch.diag_embed(x, 1, 0, 2),
    "diag_embed_last": lambda x: torch.diag_embed(x, -1),
    **{f"rot90_{k}": lambda x, k=k: torch.rot90(x, k, (0, 1)) for k in range(4)},
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear" if x.dim() == 4 else "trilinear"),
    "bicubic": lambda x: F.interpolate(x, size=(3, 5), mode="bicubic"),
    "rand_like": torch.rand_like,
    "fill": lambda x: torch.fill(x, 2.0),
    "index_put": lambda x: torch.index_put(x, (torch.zeros(1, dtype=torch.int64),), x[:1]) if x.numel() else x,
    "layer_norm": lambda x: torch.native_layer_norm(x, x.shape, None, None, 1e-5),
    "nll_loss": lambda x: F.nll_loss(x, x[:, 0].long() * 0, reduction="none"),
}  # fmt: skip


def differs(call, *given):
    """What is told of a call beside what eager gives; whether eager refuses it is told first, and that the trace refuses it, too."""
    mode = fakes.new_mode()
    with torch.no_grad():
        try:
            want = call(*given)
        except (RuntimeError, IndexError, ValueError):
            with pytest.raises((RuntimeError, IndexError, ValueError)), mode:
                call(*map(mode.fake, given))
            return None
        with mode:
            got = call(*map(mode.fake, given))
    pairs = zip(*([r] if isinstance(r, torch.Tensor) else r for r in (got, want)), strict=True)
    facts = [[(t.shape, t.stride(), t.dtype) for t in pair] for pair in pairs]
    return [pair for pair in facts if pair[0] != pair[1]] or None


@pytest.mark.parametrize("op", _OF_TWO, ids=[op.name() for op in _OF_TWO])
def test_one_loop_over_two_tensors_gives_what_eagers_iterator_orders(op):
    integers = ALLOCATIONS[op].__name__ == "_loop_of_integers"
    for x, y in itertools.product(OPERANDS, repeat=2):
        x, y = (t.long() if integers else t for t in (x, y))
        assert differs(op, x, y) is None, (x.stride(), y.stride())


@pytest.mark.parametrize("name", OF_ONE)
def test_what_a_kernel_allocates_beside_one_tensor_lies_as_in_eager(name):
    for x in OPERANDS:
        assert differs(OF_ONE[name], x) is None, (x.shape, x.stride())


def test_a_dropped_gradient_lies_as_the_product_that_eager_makes():
    for x, y in itertools.product(OPERANDS, repeat=2):
        if x.shape == y.shape:
            call = aten.native_dropout_backward
            assert differs(lambda a, b: call(a, b > 0, 2.0), x, y) is None, (x.stride(), y.stride())


@pytest.mark.parametrize("k", range(4))
def test_a_turned_picture_of_varying_sizes_has_its_dims_turned(k):
    mode, x = fakes.new_mode(dynamic=True), laid(3, 4, 5, strides=(20, 5, 1))
    with torch.no_grad():
        fake = mode.fake(x, symbolic_dims={0, 1})
        with mode:
            got = torch.rot90(fake, k, (0, -2))
    want = torch.rot90(x, k, (0, -2))
    assert [*map(int, got.shape), *map(int, got.stride())] == [*want.shape, *want.stride()]


def test_what_is_looked_up_at_turned_places_lies_as_in_eager_where_sizes_vary():
    """Its places lie as these do, which PyTorch's fake does not say (`large` 6046)."""

    def called(x, i):
        return x[i], x[:, i] + 1, x[..., i], x[i][1:] - x[i][:-1]

    compiled = braze.compile(called, dynamic=True)
    for rows, columns, places in ((7, 3, (4, 2)), (5, 5, (5, 5)), (4, 6, (2, 3))):
        x, i = torch.randn(rows, columns), torch.randint(0, 3, places).mT
        for ours, theirs in zip(compiled(x, i), called(x, i), strict=True):
            assert ours.stride() == theirs.stride() and torch.equal(ours, theirs)
