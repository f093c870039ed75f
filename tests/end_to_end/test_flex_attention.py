"""``flex_attention``: captured whole, with its functions of scores and masks, and right in values and gradients."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

import braze
from braze.support.errors import CaptureError

pytestmark = pytest.mark.usefixtures("fresh")

BOTH = pytest.mark.parametrize("backend", ["eager", "braze"])


def operands(b=2, h=4, m=37, n=53, e=16, ev=8, heads=None, dtype=torch.float32, grad=False, batch=None):
    torch.manual_seed(0)
    heads = heads or h
    shapes = (b, h, m, e), (batch or b, heads, n, e), (batch or b, heads, n, ev)
    return [torch.randn(s).to(dtype).requires_grad_(grad) for s in shapes]


def near(have, want, dtype=torch.float32):
    limit = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(have, want, atol=limit, rtol=limit)


def causal(b, h, i, j):
    return i >= j


def bumped(table):
    return lambda s, b, h, i, j: 2 * torch.tanh(s / 2) + table[h, i, j]


def sees_nothing(row):
    return lambda b, h, i, j: (i + 3 >= j) & (i != row)


# -- values


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_scores_and_masks_that_look_tables_up(backend, dtype):
    q, k, v = operands(heads=2, dtype=dtype)
    table, lengths = torch.randn(4, 37, 53), torch.tensor([53, 11])
    mask = create_block_mask(
        lambda b, h, i, j: (j < lengths[b]) & (i + 20 >= j), 2, None, 37, 53, device="cpu", BLOCK_SIZE=16
    )

    def f(q, k, v):
        return flex_attention(q, k, v, bumped(table), mask, enable_gqa=True, return_lse=True)

    have, want = braze.compile(f, fullgraph=True, backend=backend)(q, k, v), f(q, k, v)
    near(have[0], want[0], dtype)
    near(have[1], want[1])
    assert [x.stride() for x in have] == [x.stride() for x in want]
    assert [x.dtype for x in have] == [x.dtype for x in want]


@BOTH
def test_rows_that_see_nothing_are_zeros(backend):
    q, k, v = operands()
    mask = create_block_mask(sees_nothing(5), None, None, 37, 53, device="cpu", BLOCK_SIZE=16)

    def f(q, k, v):
        return flex_attention(q, k, v, block_mask=mask, return_lse=True)

    (out, lse), want = braze.compile(f, fullgraph=True, backend=backend)(q, k, v), f(q, k, v)
    assert (out[:, :, 5] == 0).all()
    assert (lse[:, :, 5] == -math.inf).all()
    near(out, want[0])
    near(lse, want[1])


MODS = {
    "none": None,
    "distance": lambda s, b, h, i, j: s + (i - j),
    "alibi": lambda s, b, h, i, j: s - torch.exp2(-(h + 1) * 8.0 / 4) * (i - j).abs(),
    "where": lambda s, b, h, i, j: torch.where(i >= j, s, -float("inf")),
    "constant": lambda s, b, h, i, j: torch.zeros_like(s),
    "narrow": lambda s, b, h, i, j: s.to(torch.bfloat16),
    "wide": lambda s, b, h, i, j: s.double() * 1.5,
    "partial": functools.partial(lambda c, s, b, h, i, j: c * torch.tanh(s / c), 3.0),
    "odd": lambda s, b, h, i, j: torch.where((i + j) % 2 == 0, s, s * 0.5) + b,
}


@pytest.mark.parametrize(
    ("name", "sizes"),
    [*[(name, (37, 53)) for name in MODS], ("odd", (1, 5)), ("alibi", (128, 128)), ("where", (53, 1))],
    ids=str,
)
def test_functions_of_scores(name, sizes):
    q, k, v = operands(m=sizes[0], n=sizes[1])

    def f(q, k, v):
        return flex_attention(q, k, v, score_mod=MODS[name], scale=0.7)

    want = f(q, k, v)
    limit = torch.bfloat16 if name == "narrow" else torch.float32  # eager goes on in what it gets
    for backend in ("eager", "braze"):
        near(braze.compile(f, fullgraph=True, backend=backend)(q, k, v), want, limit)


@BOTH
def test_special_values_are_eagers(backend):
    q, k, v = operands(b=1, h=1, m=6, n=7)
    q[0, 0, 1], q[0, 0, 2, 0], k[0, 0, 3, 1] = math.nan, math.inf, -math.inf

    def f(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s * (i != 4), return_lse=True)

    have, want = braze.compile(f, fullgraph=True, backend=backend)(q, k, v), f(q, k, v)
    for a, b in zip(have, want):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_results_lie_as_the_queries_do():
    q, k, v = operands(ev=16)
    for order in [(0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)]:
        back = sorted(range(4), key=order.__getitem__)
        given = [x.permute(order).contiguous().permute(back) for x in (q, k, v)]
        want = flex_attention(*given)
        have = braze.compile(lambda *x: flex_attention(*x), fullgraph=True)(*given)
        assert have.stride() == want.stride(), order
        near(have, want)


def test_one_batch_of_keys_serves_all_queries():
    q, k, v = operands(batch=1)
    mask = create_block_mask(lambda b, h, i, j: i + 2 * b >= j, 2, None, 37, 53, device="cpu")

    def f(q, k, v):
        return flex_attention(q, k, v, block_mask=mask)

    near(braze.compile(f, fullgraph=True)(q, k, v), f(q, k, v))


def test_what_pytorch_refuses_it_refuses_itself():
    q, k, v = operands(heads=2)
    with pytest.raises(ValueError, match="enable_gqa"):
        braze.compile(lambda q, k, v: flex_attention(q, k, v))(q, k, v)
    mask = create_block_mask(causal, None, None, 30, 53, device="cpu")

    def too_short(q, k, v):
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=True)

    with pytest.raises((ValueError, RuntimeError)) as eager:  # since 2.14 the latter
        too_short(q, k, v)
    with pytest.raises(type(eager.value), match="block_mask was created for"):
        braze.compile(too_short)(q, k, v)
    with pytest.raises(TypeError):
        braze.compile(lambda q: flex_attention(q))(q)


def test_a_function_of_scores_with_side_effects_breaks_the_graph():
    q, k, v = operands()
    seen = []

    def f(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda s, *_: (seen.append(1), s)[1])

    with pytest.raises(CaptureError, match="flex_attention: it writes to objects from outside"):
        braze.compile(f, fullgraph=True)(q, k, v)


# -- gradients


def dense(q, k, v, table, row):
    """What a function with a table and a mask gives, from PyTorch's plain operators."""
    groups, wide = (
        q.shape[1] // k.shape[1],
        [x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v)],
    )
    assert groups
    scores = q @ wide[0].transpose(-1, -2) / math.sqrt(q.shape[-1])
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    seen = (i + 3 >= j) & (i != row)
    scores = (2 * torch.tanh(scores / 2) + table).masked_fill(~seen, -1e30)
    alive = seen.any(-1)
    return (scores.softmax(-1) * alive[:, None]) @ wide[1], scores.logsumexp(-1).masked_fill(~alive, 0)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("heads", [4, 2, 1])
def test_gradients_of_operands_and_tables(backend, dtype, heads):
    q, k, v = operands(heads=heads, dtype=dtype, grad=True)
    table = torch.randn(4, 37, 53).to(dtype).requires_grad_()
    mask = create_block_mask(sees_nothing(5), None, None, 37, 53, device="cpu", BLOCK_SIZE=16)

    def f(q, k, v):
        out, lse = flex_attention(q, k, v, bumped(table), mask, enable_gqa=True, return_lse=True)
        return out.square().sum() + lse.masked_fill(lse == -math.inf, 0).sum()

    leaves = q, k, v, table
    braze.compile(f, fullgraph=True, backend=backend)(q, k, v).backward()
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    out, lse = dense(*doubles, 5)
    (out.square().sum() + lse.sum()).backward()
    for have, want in zip(leaves, doubles):
        scale = want.grad.abs().max()
        limit = {torch.float32: 1e-6, torch.float64: 1e-7, torch.bfloat16: 8e-3}[dtype]
        assert (have.grad - want.grad).abs().max() / scale < limit


@BOTH
def test_gradients_are_no_further_than_pytorchs_own(backend):
    """Against the backward that PyTorch's operator has, which only its compiler would call here."""
    q, k, v = operands(dtype=torch.bfloat16)
    mask = create_block_mask(causal, None, None, 37, 53, device="cpu")
    grad = torch.randn(2, 4, 37, 8).to(torch.bfloat16)
    doubles = [x.double().requires_grad_() for x in (q, k, v)]
    scores = doubles[0] @ doubles[1].transpose(-1, -2) / 4
    hidden = ~(torch.arange(37)[:, None] >= torch.arange(53)[None])
    (scores.masked_fill(hidden, -math.inf).softmax(-1) @ doubles[2]).backward(grad.double())
    operator = flex.flex_attention_hop
    score = lambda s, b, h, i, j: s
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    operator(*leaves, score, mask.as_tuple(), 0.25, {}, (), ())[0].backward(grad)
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    braze.compile(lambda *x: flex_attention(*x, block_mask=mask), fullgraph=True, backend=backend)(
        *ours
    ).backward(grad)
    for mine, theirs, exact in zip(ours, leaves, doubles):
        assert (mine.grad - exact.grad).norm() <= 1.05 * (theirs.grad - exact.grad).norm()


def test_a_mean_score_has_gradients_where_only_the_sums_are_used():
    q, k, v = operands(grad=True)

    def f(q, k, v):
        return flex_attention(q, k, v, return_lse=True)[1].sum()

    braze.compile(f, fullgraph=True)(q, k, v).backward()
    grads = [x.grad.clone() for x in (q, k)]
    assert not v.grad.any()
    q.grad = k.grad = None
    (q @ k.transpose(-1, -2) / 4).logsumexp(-1).sum().backward()
    for have, want in zip(grads, (q.grad, k.grad)):
        near(have, want)


def test_second_derivatives_are_refused_not_wrong():
    q, k, v = operands(grad=True)
    out = braze.compile(lambda *x: flex_attention(*x), backend="eager")(q, k, v)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.sum().backward()


# -- masks


@BOTH
@pytest.mark.parametrize("function", [causal, sees_nothing(2)])
def test_masks_of_blocks_are_made_inside(backend, function):
    q, k, v = operands(m=100, n=100)

    def f(q, k, v):
        mask = create_block_mask(function, None, None, 100, k.shape[2], device="cpu", BLOCK_SIZE=16)
        return flex_attention(q, k, v, block_mask=mask), mask.kv_indices, mask.full_q_num_blocks

    have, want = braze.compile(f, fullgraph=True, backend=backend)(q, k, v), f(q, k, v)
    near(have[0], want[0])
    assert torch.equal(have[1], want[1]) and torch.equal(have[2], want[2])


def test_masks_of_blocks_as_arguments_and_in_modules():
    q, k, v = operands(m=48, n=48)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mask = create_block_mask(causal, None, None, 48, 48, device="cpu")
            self.slopes = torch.nn.Parameter(torch.rand(4))

        def bias(self, s, b, h, i, j):
            return s + self.slopes[h] * (i - j)

        def forward(self, q, k, v, mask=None):
            return flex_attention(q, k, v, self.bias, self.mask if mask is None else mask)

    layer = Layer()
    compiled = braze.compile(layer, fullgraph=True)
    other = create_block_mask(flex.and_masks(causal, sees_nothing(3)), None, None, 48, 48, device="cpu")
    for mask in (None, other, None):
        near(compiled(q, k, v, mask), layer(q, k, v, mask))
    compiled(q, k, v).square().sum().backward()
    grad, slopes = layer.slopes.grad, layer.slopes.detach().double().requires_grad_()
    i, j = torch.arange(48)[:, None], torch.arange(48)[None]
    scores = q.double() @ k.double().transpose(-1, -2) / 4 + slopes[:, None, None] * (i - j)
    out = scores.masked_fill(i < j, -math.inf).softmax(-1) @ v.double()
    out.square().sum().backward()
    near(grad.double() / slopes.grad.abs().max(), slopes.grad / slopes.grad.abs().max())


@BOTH
def test_dense_masks(backend):
    hidden = lambda s, b, h, i, j: torch.where(i >= j + h, s, -math.inf)

    def f(x):
        n = x.shape[0]
        return create_mask(causal, 2, None, n, n, device="cpu"), create_mask(hidden, 1, 3, n, n, "cpu")

    x = torch.ones(9)
    for have, want in zip(braze.compile(f, fullgraph=True, backend=backend)(x), f(x)):
        assert torch.equal(have, want)


def test_a_mask_may_not_look_at_what_wants_a_gradient():
    q, k, v = operands()
    limit = torch.tensor(0.5, requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i * limit >= j, None, None, 37, 53, device="cpu")
    with pytest.raises(CaptureError, match="wants a gradient"):
        braze.compile(lambda *x: flex_attention(*x, block_mask=mask), fullgraph=True)(q, k, v)


# -- sizes, casts, other ways to call it


def test_one_graph_serves_all_lengths():
    def f(q, k, v):
        return flex_attention(q, k, v, MODS["alibi"], return_lse=True)

    made = []

    def backend(gm, inputs):
        made.append(gm)
        return gm

    for settings in ({}, {"backend": backend}):
        compiled = braze.compile(f, fullgraph=True, dynamic=True, **settings)
        for m, n in [(37, 53), (64, 64), (5, 200), (129, 2)]:
            q, k, v = operands(m=m, n=n)
            for have, want in zip(compiled(q, k, v), f(q, k, v)):
                near(have, want)
    assert len(made) == 1


def test_masks_of_blocks_of_all_lengths():
    def f(q, k, v):
        mask = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    compiled = braze.compile(f, fullgraph=True, dynamic=True)
    for m, n in [(37, 53), (300, 300), (5, 200)]:
        q, k, v = operands(m=m, n=n)
        near(compiled(q, k, v), f(q, k, v))


def test_gradients_at_all_lengths():
    compiled = braze.compile(
        lambda q, k, v: flex_attention(q, k, v, MODS["alibi"]).square().sum(), fullgraph=True, dynamic=True
    )
    for m, n in [(37, 53), (64, 64), (5, 200)]:
        q, k, v = operands(m=m, n=n, grad=True)
        compiled(q, k, v).backward()
        doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
        i, j, h = torch.arange(m)[:, None], torch.arange(n)[None], torch.arange(4)[:, None, None]
        scores = doubles[0] @ doubles[1].transpose(-1, -2) / 4 - torch.exp2(-(h + 1) * 2.0) * (i - j).abs()
        (scores.softmax(-1) @ doubles[2]).square().sum().backward()
        for x, exact in zip((q, k, v), doubles):
            near(x.grad.double(), exact.grad)


@BOTH
def test_under_autocast_operands_are_cast_and_scores_are_not(backend):
    q, k, v = operands()

    def f(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return flex_attention(q, k, v, MODS["distance"], return_lse=True)

    have, want = braze.compile(f, fullgraph=True, backend=backend)(q, k, v), f(q, k, v)
    assert have[0].dtype is want[0].dtype
    near(have[0], want[0], torch.bfloat16)
    near(have[1], want[1])


def test_flex_attention_itself_is_compiled():
    q, k, v = operands()
    mask = create_block_mask(causal, None, None, 37, 53, device="cpu")
    compiled = braze.compile(flex_attention, fullgraph=True)
    near(compiled(q, k, v, block_mask=mask), flex_attention(q, k, v, block_mask=mask))
    near(compiled(q, k, v, MODS["odd"]), flex_attention(q, k, v, MODS["odd"]))
    made = braze.compile(create_block_mask, fullgraph=True)(causal, None, None, 300, 300, "cpu")
    assert torch.equal(made.kv_indices, create_block_mask(causal, None, None, 300, 300, "cpu").kv_indices)


def test_a_checkpoint_may_hold_it():
    from torch.utils.checkpoint import checkpoint

    q, k, v = operands(grad=True)

    def f(q, k, v):
        return checkpoint(lambda *x: flex_attention(*x, MODS["alibi"]).sin(), q, k, v, use_reentrant=False)

    braze.compile(f, fullgraph=True)(q, k, v).sum().backward()
    grads = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    flexible = braze.compile(lambda *x: flex_attention(*x, MODS["alibi"]), backend="eager")
    flexible(q, k, v).sin().sum().backward()
    for have, x in zip(grads, (q, k, v)):
        near(have, x.grad)
