"""What ``numerics`` says of half types: kernels round what is seen of them, or whatever eager rounds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.support.errors import UserError

HALVES = [torch.bfloat16, torch.float16]
SETTINGS = ["float32", "eager"]

pytestmark = pytest.mark.usefixtures("fresh")


def compiled(fn, numerics="float32", **options):
    return braze.compile(fn, options={"numerics": numerics, "verify": 2, **options})


def inputs(dtype, *shape, count=2):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(count)]


def same_bits(ours, theirs):
    assert ours.dtype is theirs.dtype and ours.shape == theirs.shape
    assert torch.equal(ours.isnan(), theirs.isnan())
    kept = ~theirs.isnan()
    assert torch.equal(ours[kept].view(torch.int16), theirs[kept].view(torch.int16))


def error(value, exact):
    return float((value.double() - exact).square().mean().sqrt())


def pointwise(x, y):
    chain = x
    for _ in range(5):
        chain = chain * 1.1 + y
    return (
        chain, torch.cos(x * y + x), torch.exp(x * 0.3 + y * 0.7), F.elu(x * y + y), torch.fmod(x * y + 3, 1.7), F.hardswish(x * y - y),
        torch.log2((x * y).abs() + 0.1), F.silu(x + y) * y * x, torch.where(y > 0, x * y, x + y) * 1.3,
    )  # fmt: skip


def rows(x, y):
    w = y[0]
    norm = F.rms_norm(F.rms_norm(x + y, w.shape, w) * 1.7 + x, w.shape, w)
    return (
        (x * y + x).sum(-1), F.gelu(F.layer_norm(x + y, w.shape, w)), (x * y * 1.3).softmax(-1), F.silu(norm),
        (x - x.mean(-1, keepdim=True)) * y * 0.3, (x * y * 1.1).masked_fill(y > 1, -1e4).log_softmax(-1),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", HALVES)
def test_rounded_as_eager_elementwise_results_are_eagers(dtype):
    x, y = inputs(dtype, 33, 65)
    for ours, theirs in zip(compiled(pointwise, "eager")(x, y), pointwise(x, y), strict=True):
        same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("fn", [pointwise, rows])
def test_by_default_results_are_nearer_to_float64s(fn, dtype):
    """fmod apart: what it jumps by is larger than all that is rounded."""
    x, y = inputs(dtype, 64, 130)
    nearer = 0
    for k, (ours, theirs, exact) in enumerate(
        zip(compiled(fn)(x, y), fn(x, y), fn(x.double(), y.double()), strict=True)
    ):
        assert ours.dtype is theirs.dtype
        if (fn, k) != (pointwise, 4):
            assert error(ours, exact) <= error(theirs, exact) * 1.001
            nearer += error(ours, exact) < 0.8 * error(theirs, exact)
    assert nearer >= 5


ACTIVATIONS = (F.silu, F.mish, F.gelu, F.elu, F.selu, F.softplus, F.logsigmoid, F.hardswish, F.glu, F.relu6)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("numerics", SETTINGS)
def test_gradients_of_activations_are_as_near_to_float64s(dtype, numerics):
    """PyTorch traces some by formulas of several steps, each of which would be rounded, and eager runs one kernel."""

    def fn(*xs):
        return [f(x) for f, x in zip(ACTIVATIONS, xs, strict=True)]

    def gradients(fn, *xs):
        xs = [x.detach().requires_grad_() for x in xs]
        made = fn(*xs)
        return torch.autograd.grad(
            made, xs, [torch.linspace(-3, 3, y.numel()).to(y).view_as(y) for y in made]
        )

    xs = inputs(dtype, 64, 64, count=len(ACTIVATIONS))
    exact = gradients(fn, *[x.double() for x in xs])
    for f, ours, theirs, best in zip(
        ACTIVATIONS, gradients(compiled(fn, numerics), *xs), gradients(fn, *xs), exact, strict=True
    ):
        assert error(ours, best) <= error(theirs, best) * 1.01, f


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("numerics", SETTINGS)
def test_what_the_program_rounds_itself_is_rounded(dtype, numerics):
    def fn(x, y):
        wide = x.float() * y.float()
        return wide.to(dtype).float() * 3.3, (x * y).float().to(dtype) * y, wide - wide.to(dtype).float()

    x, y = inputs(dtype, 17, 40)
    for ours, theirs in zip(compiled(fn, numerics)(x, y), fn(x, y), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("numerics", SETTINGS)
def test_autocasts_casts_stay(numerics):
    weight = torch.randn(8, 8)

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(x * 1.7 + 0.3, weight)

    x = torch.randn(5, 8)
    assert torch.equal(compiled(fn, numerics)(x), fn(x))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_value_that_is_stored_is_used_as_it_is_stored(dtype):
    """Else two ways to the same number would differ: the one that it was stored by, and the one that it was used by."""

    def fn(x, y):
        h = x * y
        s = h.sum(-1, keepdim=True)
        return h, h * y, s, s * 3.3

    x, y = inputs(dtype, 9, 200)
    h, product, s, scaled = compiled(fn)(x, y)
    same_bits(h, x * y)
    same_bits(product, h * y)
    same_bits(scaled, s * 3.3)


def test_a_lost_part_is_found_again():
    """Compensated sums read what they have stored."""

    def fn(total, lost, x):
        y = x - lost
        new = total + y
        return new, (new - total) - y

    total, lost, kept = torch.zeros(64, dtype=torch.bfloat16), torch.zeros(64, dtype=torch.bfloat16), 0.0
    step = compiled(fn)
    for x in torch.rand(40, 64, generator=torch.Generator().manual_seed(0)).bfloat16():
        total, lost = step(total, lost, x)
        kept = kept + x.double()
    assert float(((total.double() - lost.double()) - kept).abs().max()) < 0.07


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_decided_by_is_rounded(dtype):
    def fn(x, y):
        h = x * y
        fraction = h - h.floor()
        most = h.amax(-1, keepdim=True)
        return (
            fraction, h == most, h.argmax(-1), h > 0.5, (h * 4).to(torch.int32), h.to(torch.bool), h == y * x, h.sign(),
            h.max(-1).indices, h.isinf(), torch.remainder(h, 0.25), h.view(torch.int16),
            (x * 0 - 1.5).pow((y * 0 + 1.421875) * 1.4066),  # a number below 0 to the power 2, and not 2.00001
        )  # fmt: skip

    x, y = inputs(dtype, 50, 65)
    ours, theirs = compiled(fn)(x, y), fn(x, y)
    assert (ours[0] >= 0).all() and ours[1].any(-1).all()
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(a, b), k


def test_intermediate_numbers_beyond_float16_are_finite_by_default():
    x = torch.tensor([300.0, 1.0, -300.0], dtype=torch.float16)

    def fn(x):
        return x * x / 300

    assert compiled(fn)(x).tolist() == pytest.approx([300.0, 1 / 300, 300.0], rel=1e-3)
    assert compiled(fn, "eager")(x).tolist() == fn(x).tolist()
    assert torch.isinf(fn(x)).tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("numerics", SETTINGS)
def test_special_values_are_eagers(dtype, numerics):
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 0.5, -2.5, 0.25], dtype=dtype
    )
    x, y = special[:, None].expand(-1, 10).contiguous(), special.expand(10, -1)

    def fn(x, y):
        return -(x * y), (x + y).abs() - y, (x * y - y) * 0.5, F.relu(x - y) * y

    for ours, theirs in zip(compiled(fn, numerics)(x, y), fn(x, y), strict=True):
        same_bits(ours, theirs)


@pytest.mark.parametrize("numerics", SETTINGS)
def test_sizes_of_all_kinds(numerics):
    """None, one, few, many; not known; of stride 0; beginning anywhere."""

    def fn(x, y):
        return (x * 1.5 + y) * y, ((x + y) * 0.7).softmax(-1), (x * y + 1.0).sum(0)

    symbolic = braze.compile(fn, dynamic=True, options={"numerics": numerics, "verify": 2})
    for n, m in ((1, 1), (0, 5), (3, 0), (2, 7), (65, 33)):
        x, y = inputs(torch.bfloat16, n, m)
        for b in (y, y[:1].expand(n, m) if n else y, torch.cat([y, y], 1)[:, m:]):
            for ours, theirs, exact in zip(symbolic(x, b), fn(x, b), fn(x.double(), b.double()), strict=True):
                assert ours.shape == theirs.shape
                if ours.numel():
                    room = 0.02 * float(exact.abs().max()) + 0.02
                    assert float((ours - theirs).abs().max()) <= room
                    assert error(ours, exact) <= 1.3 * error(theirs, exact) + 1e-3


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_are_no_further_from_float64s(dtype):
    def loss(x, w):
        return F.gelu(F.rms_norm(x * 1.3, w.shape, w) * 0.9 + x).float().square().mean()

    def gradients(fn, *given):
        leaves = [t.detach().clone().requires_grad_() for t in given]
        fn(*leaves).backward()
        return [t.grad for t in leaves]

    x, w = inputs(dtype, 32, 64)[0], inputs(dtype, 64)[0]
    ours, theirs = gradients(compiled(loss), x, w), gradients(loss, x, w)
    exact = gradients(
        lambda x, w: F.gelu(F.rms_norm(x * 1.3, w.shape, w) * 0.9 + x).square().mean(), x.double(), w.double()
    )
    for a, b, c in zip(ours, theirs, exact, strict=True):
        assert error(a, c) <= 1.05 * error(b, c) + torch.finfo(dtype).smallest_normal


def test_float32_knows_no_such_setting():
    x = torch.randn(40, 40)
    first, second = (compiled(lambda x: (x * 1.1 + x).softmax(-1), s)(x) for s in SETTINGS)
    assert torch.equal(first, second)


def test_another_word_is_refused():
    with pytest.raises(UserError, match="numerics"):
        braze.compile(lambda x: x + 1, options={"numerics": "half"})(torch.ones(2))
