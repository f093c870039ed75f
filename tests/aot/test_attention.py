"""Masks of attention in training on a GPU: what PyTorch chooses the fused kernels by, on the CPU's fakes here."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from braze.aot import partition
from braze.aot.passes import attention
from braze.decomp import table
from braze.graph.fakes import fakes
from braze.graph.private import torch_compat
from tests.aot.cuda_fakes import partition_on_gpu
from tests.aot.recording import CONTEXT, compile_aot, record

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(attention, "is_on_gpu", lambda mask: True)


def all_of(q):
    """As transformers makes the mask of a model that hides nothing."""
    rows = torch.arange(6, device=q.device)[None, None, :, None]
    return (rows >= 0).expand(2, 1, 6, 6)


def causal(q):
    places = torch.arange(6, device=q.device)
    return (places[:, None] >= places).expand(2, 1, 6, 6)


def one_number(q):
    return (q.detach()[:1, :1, :1, :1] > -9).expand(2, 1, 6, 6)


def bias(q):
    return q.detach()[:, :1, :, :1].expand(2, 1, 6, 6)


def turned(q):
    return (q.detach()[:, :1] @ q.detach()[:, :1].mT).mT


def function(mask):
    def f(q):
        return F.scaled_dot_product_attention(q, q, q, mask(q)).square().mean()

    return f


def masks(f, context=CONTEXT):
    """What attention is given in the traced graph."""
    x = torch.randn(2, 3, 6, 8, requires_grad=True)
    gm, given, _ = record(f, [x], grad=True)
    part = partition(gm, given, context, table())
    calls = [n for n in part.forward.graph.nodes if "flash_attention" in str(n.target)]
    assert len(calls) == 1
    return calls[0].kwargs.get("attn_mask")


def test_a_mask_that_hides_nothing_is_left_out():
    assert masks(function(all_of)) is None
    assert masks(function(causal)) is not None


@pytest.mark.parametrize("mask", [bias, turned])
def test_columns_lie_beside_each_other(mask):
    given = masks(function(mask)).meta["val"]
    assert given.stride(-1) == 1
    whole = mask(torch.randn(2, 3, 6, 8))
    assert whole.stride(-1) != 1
    assert (given.stride(0) == 0) == (whole.stride(0) == 0)  # stored once as before


def test_what_is_the_same_is_stored_once():
    mask = torch.tensor(True).expand(4, 1, 6, 6)
    made = attention._with_columns(mask)
    assert [made.stride(d) for d in (0, 2, 3)] == [0, 0, 1] and torch.equal(made, mask)
    for same in (torch.ones(2, 3), torch.ones(3, 1).expand(3, 1), torch.ones(())):
        assert attention._with_columns(same) is same


@pytest.mark.parametrize("mask", [all_of, causal, one_number, bias, turned])
def test_values_and_gradients(mask):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 6, 8, dtype=torch.float64, requires_grad=True)
    f = function(mask)
    _, call = compile_aot(f, [x], table(), grad=True)
    want = torch.autograd.grad(f(x), x)
    (found,) = call([x])
    torch.testing.assert_close(torch.autograd.grad(found, x), want)


def test_who_asks_for_eagers_numbers_gets_eagers_mask():
    options = dataclasses.replace(CONTEXT.options, fallback_random=True)
    context = dataclasses.replace(CONTEXT, options=options)
    assert masks(function(all_of), context) is not None


def test_on_a_gpu_the_result_lies_as_the_query_does():
    """In inference attention is called whole: a result of other strides would be copied after each call."""

    def f(x):
        q = x.permute(0, 2, 1, 3)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=0.0)

    for strides in [(144, 24, 8, 1), (432, 72, 8, 1)]:  # whole, and a part of what holds keys and values too
        x = torch.empty_strided((2, 6, 3, 8), strides, dtype=torch.bfloat16)
        part = partition_on_gpu(f, [x])
        (call,) = part.forward.graph.find_nodes(
            op="call_function", target=aten.scaled_dot_product_attention.default
        )
        assert call.meta["val"].stride() == (144, 8, 24, 1)
    mode = fakes.new_mode()
    meta = torch.empty(2, 3, 6, 8, device="meta")
    here = torch_compat.assemble_fake(mode.dispatch, meta, torch.device("cpu"), False)
    assert mode.run(aten.scaled_dot_product_attention.default, (here, here, here), {}).shape == (2, 3, 6, 8)


def is_fused(batch: tuple[int, ...], queries: int, keys: int) -> bool:
    """Whether PyTorch's operator stands for an attention by hand in inference on a GPU."""

    def by_hand(q, k, v):
        return (q @ k.mT * 0.25).softmax(-1) @ v

    q, k = (torch.empty(*batch, n, 8, dtype=torch.float16, device="meta") for n in (queries, keys))
    graph = partition_on_gpu(by_hand, [q, k, k]).forward.graph
    return bool(graph.find_nodes(op="call_function", target=aten.scaled_dot_product_attention.default))


@pytest.mark.parametrize(
    ("batch", "queries", "keys", "fused"),
    [
        ((128, 32), 32, 32, False),
        ((4096,), 1, 16, False),
        ((127, 32), 32, 32, True),
        ((128, 32), 33, 32, True),
        ((128, 32), 1, 33, True),
    ],
)
def test_attention_of_many_short_heads_by_hand_stays_products(batch, queries, keys, fused):
    """Fused kernels compute 64 queries of each head, whatever there are: 1,250 us of a step where products take 280."""
    assert is_fused(batch, queries, keys) is fused


@pytest.mark.parametrize("shape", [(2, 3), (65535, 2), (2, 65535), (65535,)])
def test_attention_by_hand_of_more_heads_than_a_launch_may_have_stays_products(shape):
    """Eager multiplies as many matrices as there are; PyTorch's kernels for attention would be refused."""
    assert is_fused(shape, 40, 40)
    assert max(shape) < 65535 or not is_fused(tuple(n + (n == 65535) for n in shape), 40, 40)


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_kernels_of_a_gpu_get_rows_in_one_piece_whatever_was_written_also_in_their_backward(kernel):
    """They refuse what lies otherwise, and the backward is given what the forward was, before that was copied."""
    forward = getattr(aten, f"_scaled_dot_product_{kernel}_attention").default
    backward = getattr(aten, f"_scaled_dot_product_{kernel}_attention_backward").default

    def training(x, mask, new, new_mask):
        q, mask = x * 2, mask * 2
        aten.copy_.default(q, new.mT)
        aten.copy_.default(mask, new_mask.mT)
        if kernel == "flash":
            out, sums, *rest = forward(q, q, q)
            return backward(out, q, q, q, out, sums, *rest[:4], 0.0, False, *rest[4:6])
        if kernel == "efficient":
            out, sums, *random = forward(q, q, q, mask, True)
            return backward(out, q, q, q, mask, out, sums, *random, 0.0, [True] * 4)
        out, sums, first, second, longest, most, seed, offset, _ = forward(q, q, q, None, True)
        return backward(out, q, q, q, out, sums, seed, offset, mask, first, second, longest, most, 0.0, False)

    x, mask = torch.ones(2, 3, 16, 8, dtype=torch.float16), torch.ones(2, 3, 16, 16, dtype=torch.float16)
    part = partition_on_gpu(training, (x, mask, x.mT.contiguous(), mask))
    for op in (forward, backward):
        (call,) = part.forward.graph.find_nodes(op="call_function", target=op)
        rows = [n.meta["val"] for n in call.args[op is backward :][: 3 + (kernel == "efficient")]]
        assert [value.stride(-1) for value in rows] == [1] * len(rows)
