"""Attention that a program writes by hand: what is found, what is not, and that the answers are eager's."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.aot.passes import attention, softmax_products

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def _of_any_size(monkeypatch):
    """Attention is found whatever its size, as on a GPU."""
    monkeypatch.setattr(softmax_products, "faster_on_cpu", lambda *_: True)


def operands(dtype=torch.float32, grad=False, m=8, n=8, e=16, heads=4):
    torch.manual_seed(0)
    shapes = (2, heads, m, e), (2, heads, n, e), (2, heads, n, e)
    return [torch.randn(s).to(dtype).requires_grad_(grad) for s in shapes]


def hidden(m=8, n=8):
    """A mask of bools in which one query sees no key."""
    torch.manual_seed(1)
    mask = torch.rand(2, 1, m, n) > 0.5
    mask[:, :, :, 0] = False
    mask[0, 0, 3] = True
    return mask


def operators(f, *args):
    """What the compiled graph calls of ATen."""
    text = str(braze.explain(f)(*args))
    return "attention" in text


def plain(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


def scaled_first(q, k, v, mask):
    return F.softmax(torch.matmul(q * 0.25, k.mT), -1) @ v


def added(q, k, v, mask):
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.25
    scores = scores + torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, -math.inf)
    return torch.matmul(nn.functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v)


def filled(q, k, v, mask):
    scores = (q @ k.mT) * (1 / math.sqrt(16))
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v


def added_and_filled(q, k, v, mask):
    scores = (q @ k.mT) * 0.25 + mask.roll(1, -1).to(q.dtype)
    return scores.masked_fill(mask, -math.inf).softmax(-1) @ v


def added_and_filled_with_a_number(q, k, v, mask):
    scores = (q @ k.mT) * 0.25 + mask.roll(1, -1).to(q.dtype)
    return scores.masked_fill(mask, torch.finfo(q.dtype).min).softmax(-1) @ v


def chosen(q, k, v, mask):
    scores = 0.25 * (q @ k.mT)
    return torch.where(mask, torch.finfo(torch.float32).min, scores).softmax(3) @ v


def chosen_with_a_full_tensor(q, k, v, mask):
    scores = q @ k.mT
    return torch.where(mask.logical_not(), scores, torch.full([], -1e9)).softmax(-1) @ v


def by_letters(q, k, v, mask):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k).masked_fill(mask, -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def of_three_dims(q, k, v, mask):
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), dim=-1), v)


def flat(*given):
    return [x.reshape(-1, *x.shape[2:]) for x in given]


def added_to_products(q, k, v, mask):
    q, k, v = flat(q, k, v)
    shown = torch.zeros(8, *mask.shape[2:]).masked_fill(mask[:, 0].repeat_interleave(4, 0), -math.inf)
    return torch.bmm(torch.baddbmm(shown, q, k.mT, alpha=0.25).softmax(-1), v)


def added_to_nothing(q, k, v, mask):
    q, k, v = flat(q, k, v)
    room = torch.empty(q.shape[0], q.shape[1], k.shape[1])
    scores = torch.baddbmm(room, q, k.mT, beta=0, alpha=0.25)
    return torch.bmm((scores + mask.repeat_interleave(4, 0)[:, 0].to(q.dtype)).softmax(-1), v)


def a_row_added_to_products(q, k, v, mask):
    q, k, v = flat(q, k, v)
    return torch.bmm(mask[:1, 0, :1].to(q.dtype).baddbmm(q, k.mT, beta=1, alpha=0.5).softmax(dim=-1), v)


def later_hidden(q, k, v, mask):
    n = q.shape[2]
    scores = (q @ k.mT).masked_fill(torch.triu(torch.ones(n, n, dtype=torch.bool), 1), -math.inf)
    return scores.softmax(-1) @ v


def repeated_heads(q, k, v, mask):
    k, v = (x[:, :2, None].expand(2, 2, 2, *x.shape[2:]).reshape(2, 4, *x.shape[2:]) for x in (k, v))
    return (q @ k.mT).masked_fill(mask, -math.inf).softmax(-1) @ v


def a_module(q, k, v, mask):
    return nn.Dropout(0.5).eval()(nn.Softmax(-1)(q @ k.mT)) @ v


FOUND = [
    plain, scaled_first, added, filled, added_and_filled, added_and_filled_with_a_number, chosen,
    chosen_with_a_full_tensor, by_letters, of_three_dims, later_hidden, repeated_heads, a_module,
    added_to_products, added_to_nothing, a_row_added_to_products,
]  # fmt: skip


def same(have, want, limit):
    assert have.dtype is want.dtype and have.stride() == want.stride()
    torch.testing.assert_close(have, want, atol=limit, rtol=limit, equal_nan=True)


@pytest.mark.parametrize("f", FOUND, ids=lambda f: f.__name__)
def test_attention_by_hand_is_found_and_right(f):
    args = *operands(), hidden()
    with torch.no_grad():
        same(braze.compile(f, fullgraph=True)(*args), f(*args), 2e-6)
        assert operators(f, *args)


@pytest.mark.parametrize("f", [plain, added, filled, later_hidden, by_letters], ids=lambda f: f.__name__)
def test_gradients_are_eagers(f):
    mask = hidden()
    mask[0, 0, 3, 0] = False
    args = operands(grad=True)
    f(*args, mask).square().sum().backward()
    want = [x.grad.clone() for x in args]
    for x in args:
        x.grad = None
    braze.compile(f, fullgraph=True)(*args, mask).square().sum().backward()
    for x, grad in zip(args, want):
        torch.testing.assert_close(x.grad, grad, atol=2e-5, rtol=5e-6)
    assert operators(f, *args, mask)


def test_a_query_that_sees_nothing_is_nan_in_gradients_too():
    args, mask = operands(grad=True), hidden()
    out = braze.compile(filled, fullgraph=True)(*args, mask)
    assert out[0, :, 3].isnan().all() and not out[1].isnan().any()
    out.sum().backward()
    assert args[0].grad[0, :, 3].isnan().all() and args[2].grad[0].isnan().all()


@pytest.mark.parametrize("number", [float("-inf"), -1e9])
def test_a_query_that_a_mask_of_numbers_leaves_nothing_is_eagers(number):
    """The mask is made of numbers alone, so that what it hides is known while the graph is made."""

    def f(q, k, v):
        columns = torch.arange(k.shape[-2])
        mask = torch.zeros(q.shape[-2], k.shape[-2]).masked_fill(
            columns >= torch.arange(q.shape[-2])[:, None], number
        )
        return (q @ k.mT * 0.25 + mask).softmax(-1) @ v

    given = operands()
    found, wanted = braze.compile(f)(*given), f(*given)
    assert bool(wanted.isnan().any()) is (number == float("-inf"))
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_a_mask_that_hides_what_comes_later_is_none():
    args = *operands(), None
    with torch.no_grad():
        text = str(braze.explain(later_hidden)(*args))
    assert "cpu_" not in text, "no mask is made, and no row looked for that sees nothing"


def probabilities_too(q, k, v, mask):
    p = (q @ k.mT).softmax(-1)
    return p @ v, p


def scores_that_are_read_too(q, k, v, mask):
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.sum()


def masked_then_scaled(q, k, v, mask):
    return ((q @ k.mT + mask.to(q.dtype)) * 0.5).softmax(-1) @ v


def along_queries(q, k, v, mask):
    return (q @ k.mT).softmax(-2) @ v


def of_other_types(q, k, v, mask):
    return (q @ k.mT).float().softmax(-1) @ v.float()


def changed_scores(q, k, v, mask):
    return torch.tanh(q @ k.mT).softmax(-1) @ v


def a_small_fill(q, k, v, mask):
    return (q @ k.mT).masked_fill(mask, -10000.0).softmax(-1) @ v


def keys_written_between(q, k, v, mask):
    k = k.clone()
    scores = q @ k.mT
    k.zero_()
    return scores.softmax(-1) @ v + k


def turned_round(q, k, v, mask):
    return (q @ k.mT * -1.0).softmax(-1) @ v


def filled_in_place(q, k, v, mask):
    scores = q @ k.mT
    scores /= 4
    scores.masked_fill_(mask, float("-inf"))
    return scores.softmax(-1) @ v


def added_twice(q, k, v, mask):
    q, k, v = flat(q, k, v)
    return torch.bmm(torch.baddbmm(torch.ones(8, 1, 8), q, k.mT, beta=2).softmax(-1), v)


def added_to_as_products_less(q, k, v, mask):
    q, k, v = flat(q, k, v)
    return torch.bmm(torch.baddbmm(torch.ones(8, 1, 8), q, k.mT, alpha=-1).softmax(-1), v)


LEFT = [
    added_twice, added_to_as_products_less,
    filled_in_place,
    probabilities_too, scores_that_are_read_too, masked_then_scaled, along_queries, changed_scores, a_small_fill,
    keys_written_between, turned_round,
]  # fmt: skip


@pytest.mark.parametrize("f", LEFT, ids=lambda f: f.__name__)
def test_what_is_more_than_attention_is_left_as_it_is(f):
    args = *operands(), hidden()
    with torch.no_grad():
        have, want = braze.compile(f, fullgraph=True)(*args), f(*args)
        assert not operators(f, *args)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (have, want))):
        same(a, b, 2e-5)


@pytest.mark.parametrize(
    ("given", "share"), [((0.25, True), 0.25), ((0.25, False), 0.0), ((1.0, True), None)]
)
def test_a_share_that_dropout_takes_is_the_operators_unless_it_takes_all(given, share, monkeypatch):
    """All of it is nothing that attention's operators take."""
    monkeypatch.setattr(softmax_products, "_pays", lambda *_: True)  # as on a GPU
    graphs = []

    def f(q, k, v):
        return F.dropout((q @ k.mT).softmax(-1), *given) @ v

    def backend(module, example_inputs):
        graphs.append(module.graph)
        return module.forward

    braze.compile(f, backend=backend)(*operands())
    found = softmax_products.find(graphs[0], dropout=True)
    assert [match.dropout for match in found.values()] == ([] if share is None else [share])


def test_products_in_another_type_than_the_result_are_left():
    args = *operands(torch.bfloat16, m=256, n=256), None
    with torch.no_grad():
        same(braze.compile(of_other_types, fullgraph=True)(*args), of_other_types(*args), 2e-2)
        assert not operators(of_other_types, *args)


def test_half_precision_is_no_further_from_the_exact_result():
    args = *operands(torch.bfloat16, m=256, n=256), hidden(256, 256)
    with torch.no_grad():
        have, eager = braze.compile(filled, fullgraph=True)(*args), filled(*args)
        exact = filled(*[x.double() for x in args[:3]], args[3])
        assert operators(filled, *args)
    alive = ~exact.isnan()
    assert (have - exact)[alive].norm() <= 1.01 * (eager - exact)[alive].norm()
    assert torch.equal(have.isnan(), eager.isnan())


def test_lengths_that_vary():
    compiled = braze.compile(filled, fullgraph=True, dynamic=True)
    for m, n in [(8, 8), (5, 9), (33, 2)]:
        args = *operands(m=m, n=n), hidden(m, n)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*args), filled(*args), atol=2e-6, rtol=2e-6, equal_nan=True)


def test_under_autocast():
    def f(q, k, v, mask):
        with torch.autocast("cpu", torch.bfloat16):
            return filled(q, k, v, mask)

    args = *operands(m=256, n=256), hidden(256, 256)
    with torch.no_grad():
        same(braze.compile(f, fullgraph=True)(*args), f(*args), 2e-2)
        assert operators(f, *args)


def test_autocast_that_begins_with_the_attention():
    """What stands before it was computed without."""

    def f(q, k, v):
        turned = k.mT
        with torch.autocast("cpu", torch.bfloat16):
            return torch.softmax(q @ turned / 4.0, -1) @ v

    args = operands(m=256, n=256)
    with torch.no_grad():
        same(braze.compile(f, fullgraph=True)(*args), f(*args), 2e-2)
        assert operators(f, *args)


def test_a_learned_bias_is_left_in_training():
    q, k, v = operands(grad=True)
    bias = torch.randn(4, 8, 8, requires_grad=True)

    def f(q, k, v):
        return (q @ k.mT + bias).softmax(-1) @ v

    f(q, k, v).square().sum().backward()
    want = bias.grad.clone()
    bias.grad = None
    braze.compile(f, fullgraph=True)(q, k, v).square().sum().backward()
    torch.testing.assert_close(bias.grad, want, atol=5e-6, rtol=5e-6)


def test_a_checkpointed_attention():
    from torch.utils.checkpoint import checkpoint

    args = operands(grad=True)
    f = lambda q, k, v: checkpoint(lambda *x: plain(*x, None).sin(), q, k, v, use_reentrant=False)
    f(*args).sum().backward()
    want = [x.grad.clone() for x in args]
    for x in args:
        x.grad = None
    braze.compile(f, fullgraph=True)(*args).sum().backward()
    for x, grad in zip(args, want):
        torch.testing.assert_close(x.grad, grad, atol=5e-6, rtol=5e-6)


def test_on_a_processor_it_is_taken_whole_where_that_is_faster(monkeypatch):
    monkeypatch.undo()
    for m, dtype, whole in [(1, torch.float32, True), (8, torch.float32, False), (128, torch.float32, True),
                            (128, torch.bfloat16, False)]:  # fmt: skip
        args = *operands(dtype, m=m, n=128), None
        with torch.no_grad():
            assert operators(plain, *args) is whole, (m, dtype)
    args = operands(m=128, n=128, grad=True)
    assert not operators(plain, *args, None)


def test_a_mask_on_a_gpu_gets_its_columns_beside_each_other(monkeypatch):
    """Where the graph chooses the kernel, which reads it so; training does."""
    read = []

    def seen(args, kwargs, known):
        found = attention.with_readable_mask(args, kwargs, known)
        read.append((args[3].stride(), found[0][3].stride()))
        return found

    monkeypatch.setattr(attention, "is_on_gpu", lambda value: True)
    monkeypatch.setattr(softmax_products, "with_readable_mask", seen)

    def f(q, k, v, bias):
        return (q @ k.mT * 0.25 + bias.mT).softmax(-1) @ v

    given = *operands(grad=True), torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(braze.compile(f)(*given), f(*given))
    assert read and all(before[-1] != 1 and after[-1] == 1 for before, after in read)
