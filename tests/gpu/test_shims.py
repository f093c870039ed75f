"""Convolutions and attention on a GPU, past the dispatcher: what PyTorch's operators give, in all that can be seen."""

from __future__ import annotations

import pytest
import torch

from braze import native

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and native.native_available), reason="needs a GPU, and the C core"
)

aten = torch.ops.aten
HALF = torch.bfloat16


def made(*sizes, dtype=HALF):
    return torch.randn(*sizes, device="cuda", dtype=dtype)


def heads(batch=2, count=4, rows=40, width=64):
    return made(batch, rows, count, width).transpose(1, 2)


def shim_of(op):
    """The call past the dispatcher, and the calls that PyTorch's own function got."""
    native.bind_torch()
    seen = []

    def general(*args, **kwargs):
        seen.append(args)
        return op(*args, **kwargs)

    return native.shim(op._schema, general), seen


def check(op, args, kwargs=None, compared=None):
    """Twice with the same seed; ``compared``: how many results are equal in their numbers (others are uninitialized where nothing is drawn)."""
    shim, seen = shim_of(op)
    results = []
    for call in (op, shim):
        torch.manual_seed(0)
        result = call(*args, **kwargs or {})
        results.append(list(result) if isinstance(result, tuple) else [result])
    want, got = results
    assert not seen and len(got) == len(want)
    for k, (w, g) in enumerate(zip(want, got, strict=True)):
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        assert (g.shape, g.stride(), g.dtype, g.device, g._is_view()) == (
            w.shape,
            w.stride(),
            w.dtype,
            w.device,
            w._is_view(),
        )
        if compared is None or k < compared:
            torch.testing.assert_close(g, w, rtol=1e-2, atol=1e-2, equal_nan=True)
    return want


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("groups", [1, 4])
@torch.no_grad()
def test_convolutions(memory_format, groups):
    x = made(2, 8, 12, 12).to(memory_format=memory_format)
    w = torch.nn.Parameter(made(16, 8 // groups, 3, 3).to(memory_format=memory_format))
    tail = [1, 1], [1, 1], [1, 1], False, [0, 0], groups
    check(aten.convolution.default, (x, w, None, *tail))
    check(aten.convolution.default, (x, w, made(16), *tail))
    g = made(2, 16, 12, 12).to(memory_format=memory_format)
    for mask in ([True, True, True], [False, True, False], [True, False, False]):
        check(aten.convolution_backward.default, (g, x, w, [16], *tail, mask))


@torch.no_grad()
def test_convolutions_of_one_dimension():
    check(aten.convolution.default, (made(2, 8, 20), made(4, 8, 3), None, [1], [1], [1], False, [0], 1))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@torch.no_grad()
def test_flash_attention(causal, dropout):
    q, k, v = (heads() for _ in range(3))
    drawn = 7 if dropout else 2  # behind the generator's state one is there for nothing
    scale = {"scale": 0.2}
    want = check(aten._scaled_dot_product_flash_attention.default, (q, k, v, dropout, causal), scale, drawn)
    out, logsumexp, first, second, most_q, most_k, seed, offset, _ = want
    given = (
        torch.randn_like(out),
        q,
        k,
        v,
        out,
        logsumexp,
        first,
        second,
        most_q,
        most_k,
        dropout,
        causal,
        seed,
        offset,
    )
    check(aten._scaled_dot_product_flash_attention_backward.default, given, scale)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@torch.no_grad()
def test_efficient_attention(masked, dropout):
    q, k, v = (heads() for _ in range(3))
    mask = made(2, 4, 40, 40) if masked else None
    drawn = None if dropout else 2
    want = check(
        aten._scaled_dot_product_efficient_attention.default, (q, k, v, mask, True, dropout), compared=drawn
    )
    out, logsumexp, seed, offset = want
    wanted = [True, True, True, masked]
    given = torch.randn_like(out), q, k, v, mask, out, logsumexp, seed, offset, dropout, wanted
    check(aten._scaled_dot_product_efficient_attention_backward.default, given)
