"""Each decomposition gives what the operator's eager kernel gives, special values and empty sizes included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.decomp.families import ours
from braze.decomp.random import DRAWS
from tests.decomp.gradients import ELSEWHERE, GRADIENTS
from tests.decomp.samples import INF, NAN, bools, ints, numbers, plain, unit

aten = torch.ops.aten

cpu = torch.device("cpu")

#: operator -> argument lists (each a tuple of args and kwargs)
CASES: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    aten.native_layer_norm.default: [
        ((plain(3, 8), [8], plain(8), plain(8), 1e-5), {}),
        ((numbers(3, 2, 8), [2, 8], None, None, 1e-3), {}),
        ((plain(3, 1), [1], plain(1), None, 1e-5), {}),
        ((plain(0, 4), [4], plain(4), plain(4), 1e-5), {}),
    ],
    aten.rms_norm.default: [
        ((plain(3, 8), [8], plain(8), 1e-6), {}),
        ((numbers(3, 2, 8), [2, 8], None, None), {}),
        ((plain(3, 8), [8], None, 1e-6), {}),
    ],
    aten.native_group_norm.default: [
        ((plain(2, 6, 4), plain(6), plain(6), 2, 6, 4, 3, 1e-5), {}),
        ((numbers(2, 6, 2, 2), None, None, 2, 6, 4, 1, 1e-5), {}),
    ],
    aten.batch_norm.default: [
        ((plain(2, 3, 4), plain(3), plain(3), plain(3), unit(3), False, 0.1, 1e-5, False), {}),
        ((numbers(2, 3, 4, 4), None, None, plain(3), unit(3), False, 0.1, 1e-5, False), {}),
        ((plain(4, 3), plain(3), plain(3), None, None, True, 0.1, 1e-5, False), {}),
    ],
    aten._native_batch_norm_legit_no_training.default: [
        ((plain(2, 3, 4), plain(3), plain(3), plain(3), unit(3), 0.1, 1e-5), {}),
    ],
    aten._softmax.default: [
        ((numbers(4, 6), -1, False), {}),
        (
            (
                torch.tensor([[-INF, -INF], [0.0, -INF], [INF, 0.0], [NAN, 1.0]], dtype=torch.float64),
                1,
                False,
            ),
            {},
        ),
        ((plain(3, 0), 1, False), {}),
        ((plain(0, 3), 1, False), {}),
        ((torch.tensor(2.0, dtype=torch.float64), 0, False), {}),
        ((plain(3, 4, 5), 1, False), {}),
    ],
    aten._log_softmax.default: [
        ((numbers(4, 6), -1, False), {}),
        ((torch.tensor([[-INF, -INF], [0.0, -INF], [INF, 0.0]], dtype=torch.float64), 1, False), {}),
        ((plain(2, 0), 1, False), {}),
    ],
    aten._safe_softmax.default: [
        ((torch.tensor([[-INF, -INF], [0.0, -INF], [1.0, 0.0]], dtype=torch.float64), 1), {}),
    ],
    aten.logsumexp.default: [
        ((numbers(4, 6), [1]), {}),
        (
            (
                torch.tensor([[-INF, -INF], [INF, INF], [INF, -INF], [1.0, 2.0]], dtype=torch.float64),
                [1],
                True,
            ),
            {},
        ),
        ((plain(3, 4, 5), [0, 2]), {}),
        ((torch.tensor(1.5, dtype=torch.float64), [0]), {}),
        ((ints(3, 4), [1]), {}),
    ],
    aten.nll_loss_forward.default: [
        ((plain(6, 5), ints(6), None, 1, -100), {}),
        ((plain(6, 5), ints(6), unit(5), 1, 2), {}),
        ((plain(6, 5), ints(6), unit(5), 2, -100), {}),
        ((plain(6, 5), ints(6), None, 0, 1), {}),
        ((plain(6, 5), torch.full((6,), 3), None, 1, 3), {}),
        ((plain(5), torch.tensor(2), None, 1, -100), {}),
        ((plain(5), torch.tensor(2), unit(5), 0, -100), {}),
        ((plain(5), torch.tensor(2), unit(5), 0, 2), {}),
    ],
    aten.nll_loss2d_forward.default: [((plain(2, 5, 3, 2), ints(2, 3, 2), unit(5), 1, 1), {})],
    aten.mse_loss.default: [((numbers(3, 4), plain(3, 4), r), {}) for r in (0, 1, 2)],
    aten.smooth_l1_loss.default: [((numbers(3, 4), plain(3, 4), r, 0.5), {}) for r in (0, 1, 2)],
    aten.huber_loss.default: [((plain(3, 4), plain(3, 4), r, 0.7), {}) for r in (0, 1, 2)],
    aten.binary_cross_entropy.default: [
        ((unit(3, 4), unit(3, 4), None, 1), {}),
        (
            (
                torch.tensor([0.0, 1.0, 0.5], dtype=torch.float64),
                torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
                plain(3),
                0,
            ),
            {},
        ),
    ],
    aten.soft_margin_loss.default: [
        ((plain(3, 4), unit(3, 4), 1), {}),
        ((plain(4).bfloat16(), unit(4).half(), 0), {}),
        ((plain(4).double(), unit(4).float(), 2), {}),
    ],
    aten.binary_cross_entropy_with_logits.default: [
        ((plain(3, 4), unit(3, 4), None, None, 1), {}),
        ((torch.tensor([1e3, -1e3, 0.0], dtype=torch.float64), unit(3), unit(3), unit(3), 0), {}),
        ((plain(4).float(), unit(4).double(), unit(4).double(), unit(4).double(), 1), {}),
        ((plain(4).double(), unit(4).float(), None, unit(4).double(), 0), {}),
    ],
    aten.glu.default: [((numbers(3, 8), 1), {}), ((plain(4, 3), 0), {})],
    aten._prelu_kernel.default: [((numbers(3, 8), plain(8)), {})],
    aten.log_sigmoid_forward.default: [
        ((numbers(3, 8),), {}),
        ((torch.tensor([-1e4, 1e4, 0.0], dtype=torch.float64),), {}),
    ],
    aten.rrelu_with_noise.default: [((plain(3, 8), plain(3, 8), 0.1, 0.3, False), {})],
    aten.logit.default: [
        ((unit(3, 4),), {}),
        ((torch.tensor([0.0, 1.0, 0.5, 2.0], dtype=torch.float64), 1e-3), {}),
    ],
    aten.zeros.default: [(([2, 3],), {}), (([0],), {"dtype": torch.int64})],
    aten.ones.default: [(([2, 3],), {}), (([],), {"dtype": torch.bool})],
    aten.scalar_tensor.default: [((2.5,), {}), ((2,), {"dtype": torch.int32})],
    aten.zeros_like.default: [((plain(2, 3),), {}), ((plain(2, 3),), {"dtype": torch.int8})],
    aten.ones_like.default: [((plain(2, 3),), {})],
    aten.full_like.default: [((plain(2, 3), 7), {}), ((ints(2, 3), 7), {})],
    aten.new_zeros.default: [((plain(2), [3, 1]), {})],
    aten.new_ones.default: [((plain(2), [3, 1]), {"dtype": torch.bool})],
    aten.new_full.default: [((plain(2), [3, 1], 2.5), {})],
    aten.arange.default: [((5,), {}), ((5.5,), {}), ((5,), {"dtype": torch.float16})],
    aten.arange.start: [((2, 7), {}), ((2, 7.0), {})],
    aten.linspace.default: [((0, 1, 7), {}), ((-3.5, 2, 8), {"dtype": torch.float64}), ((1, 1, 1), {})],
    aten.eye.default: [((3,), {}), ((0,), {})],
    aten.eye.m: [((3, 5), {"dtype": torch.int64})],
    aten.mv.default: [((plain(3, 4), plain(4)), {})],
    aten.addmv.default: [
        ((plain(3), plain(3, 4), plain(4)), {"beta": 0.5, "alpha": 2}),
        ((torch.full((3,), NAN, dtype=torch.float64), plain(3, 4), plain(4)), {"beta": 0}),
    ],
    aten.dot.default: [((plain(5), plain(5)), {}), ((ints(4), ints(4)), {}), ((plain(0), plain(0)), {})],
    aten.vdot.default: [((plain(5), plain(5)), {}), ((ints(4), ints(4)), {}), ((plain(0), plain(0)), {})],
    aten.addr.default: [((plain(3, 4), plain(3), plain(4)), {"beta": 2, "alpha": 0.5})],
    aten.addbmm.default: [((plain(3, 4), plain(2, 3, 5), plain(2, 5, 4)), {"beta": 2, "alpha": 0.5})],
    aten._adaptive_avg_pool2d.default: [((numbers(2, 3, 4, 4), [1, 1]), {})],
    aten._adaptive_avg_pool3d.default: [((plain(2, 3, 2, 4, 4), [1, 1, 1]), {})],
    aten.count_nonzero.dim_IntList: [((numbers(3, 4), [1]), {}), ((bools(3, 4), [0]), {})],
    aten.count_nonzero.default: [((ints(3, 4),), {})],
    aten.nansum.default: [((numbers(3, 4).clamp(-5, 5), [1], True), {}), ((numbers(3, 4).clamp(-5, 5),), {})],
    aten.aminmax.default: [((plain(3, 4),), {"dim": 1, "keepdim": True}), ((numbers(3, 4),), {})],
    aten.norm.ScalarOpt_dim: [
        ((plain(3, 4), 2, [1], True), {}),
        ((plain(3, 4), None, [0]), {}),
        ((plain(3, 4), 1, [0]), {}),
    ],
    aten.norm.Scalar: [((plain(3, 4),), {})],
    aten.dist.default: [
        ((plain(3, 4), numbers(3, 4)), {}),
        ((plain(3, 4), plain(4), 1), {}),
        ((plain(0), plain(0), 3.0), {}),
    ],
    aten.view_copy.default: [
        ((plain(3, 4), [2, -1]), {}),
        ((plain(3, 4).t(), [12]), {}),
        ((plain(3, 0), [0]), {}),
    ],
    aten.trace.default: [((plain(3, 5),), {}), ((ints(4, 2),), {}), ((plain(3, 2) * (1 - 2j),), {})],
    aten.stack.default: [
        (([plain(2, 3), numbers(3, 3)[:2]], 1), {}),
        (([plain(2), plain(2)], -1), {}),
        (([torch.tensor(1.0)], 0), {}),
    ],
    aten.repeat.default: [
        ((numbers(2, 3), [2, 1, 3]), {}),
        ((plain(2), [0]), {}),
        ((torch.tensor(3), [2]), {}),
        ((plain(3, 2).t(), [1, 2]), {}),
    ],
    aten.tril.default: [((numbers(4, 5), k), {}) for k in (-6, -1, 0, 2)] + [((bools(2, 3, 3),), {})],
    aten.triu.default: [((numbers(4, 5), k), {}) for k in (-1, 0, 2, 7)] + [((ints(3, 3),), {})],
    aten.masked_fill.Scalar: [
        ((numbers(3, 4), bools(3, 4), -INF), {}),
        ((plain(3, 4), bools(4), 2), {}),
        ((ints(3), bools(2, 3), 2), {}),
    ],
    aten.masked_fill.Tensor: [((numbers(3, 4), bools(3, 1), torch.tensor(3)), {})],
    aten.one_hot.default: [((ints(3, 2), 5), {})],
    aten.channel_shuffle.default: [((plain(2, 6, 3, 2), 3), {}), ((plain(2, 6, 3, 2).mT, 6), {})],
    aten.pixel_shuffle.default: [((plain(2, 8, 3, 2), 2), {}), ((plain(2, 18, 3, 2), 3), {})],
    aten.pixel_unshuffle.default: [((plain(2, 2, 6, 4), 2), {})],
    aten.rot90.default: [((plain(3, 4), k, [0, 1]), {}) for k in (0, 1, 2, 3, -1)],
    aten.diag_embed.default: [((plain(2, 3), k), {}) for k in (0, 1, -2)],
    aten.upsample_nearest1d.default: [
        ((plain(2, 3, 5).float(), [7]), {}),
        ((plain(2, 3, 5), [10], 2.0), {}),
        ((plain(1, 1, 7).float(), [3]), {}),
        ((plain(2, 3, 5), [7]), {}),
    ],
    aten.upsample_nearest2d.default: [
        ((plain(2, 3, 4, 5), [8, 10]), {}),
        ((plain(2, 3, 4, 5).float(), [3, 13], None, None), {}),
        ((plain(2, 3, 4, 5), [12, 25], 3.0, 5.0), {}),
    ],
    aten.upsample_nearest3d.default: [((plain(2, 3, 2, 4, 5), [2, 12, 10]), {})],
    aten._upsample_nearest_exact1d.default: [((numbers(2, 3, 5), [15], 3.0), {})],
    aten._upsample_nearest_exact2d.default: [
        ((numbers(2, 3, 4, 5), [8, 15], 2.0, 3.0), {}),
        ((plain(2, 3, 4, 5), [8, 13]), {}),
    ],
    aten._upsample_nearest_exact3d.default: [((plain(2, 3, 2, 4, 5), [2, 12, 10]), {})],
}

CASES |= GRADIENTS

#: entered, but their results are memory without contents, or random
NO_VALUES = {aten.new_empty.default} | DRAWS


def written(op: Any, args: list[Any]) -> list[torch.Tensor]:
    """The arguments that batch normalization updates."""
    return [a for a in args if isinstance(a, torch.Tensor)] if "batch_norm" in str(op) else []


def flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def test_every_decomposition_has_a_case():
    assert set(ours()) - NO_VALUES - ELSEWHERE == set(CASES)


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [(op, args, kwargs) for op, cases in CASES.items() for args, kwargs in cases],
    ids=str,
)
def test_it_gives_what_eager_gives(op, args, kwargs):
    copies = [a.clone() if isinstance(a, torch.Tensor) and a._base is None else a for a in args]
    got = ours()[op](*copies, **kwargs)
    if got is NotImplemented:
        return  # the operator stays: test_it_declines lists where
    theirs = [a.clone() if isinstance(a, torch.Tensor) and a._base is None else a for a in args]
    want = flat(op(*theirs, **kwargs)) + written(op, theirs)
    got = flat(got) + written(op, copies)
    for have, expected in zip(got, want, strict=True):
        if expected is None:
            assert have is None
            continue
        assert have.dtype == expected.dtype
        assert have.shape == expected.shape or expected.numel() == 0
        close = 1e-9 if expected.dtype == torch.float64 else None
        torch.testing.assert_close(have, expected, equal_nan=True, rtol=close, atol=close, check_stride=False)


def test_it_declines_only_what_is_known():
    """Which of the cases above a decomposition leaves to the operator."""
    left = []
    for op, cases in CASES.items():
        for i, (args, kwargs) in enumerate(cases):
            copies = [a.clone() if isinstance(a, torch.Tensor) and a._base is None else a for a in args]
            if ours()[op](*copies, **kwargs) is NotImplemented:
                left.append((str(op), i))
    assert left == [
        ("aten.native_layer_norm.default", 3),
        ("aten.linspace.default", 2),
        ("aten.upsample_nearest1d.default", 3),
        ("aten._upsample_nearest_exact2d.default", 1),
        ("aten.native_layer_norm_backward.default", 6),
        ("aten._fused_rms_norm.default", 3),
    ]


HALF_CASES = [
    (
        aten.native_layer_norm.default,
        lambda d: (plain(3, 16, dtype=d), [16], plain(16, dtype=d), plain(16, dtype=d), 1e-5),
    ),
    (aten.rms_norm.default, lambda d: (plain(3, 16, dtype=d), [16], plain(16, dtype=d), 1e-6)),
    (
        aten.native_group_norm.default,
        lambda d: (plain(2, 4, 8, dtype=d), plain(4, dtype=d), plain(4, dtype=d), 2, 4, 8, 2, 1e-5),
    ),
    (
        aten.batch_norm.default,
        lambda d: (
            plain(2, 3, 8, dtype=d),
            plain(3, dtype=d),
            plain(3, dtype=d),
            plain(3, dtype=d),
            unit(3).to(d),
            False,
            0.1,
            1e-5,
            False,
        ),
    ),
    (aten._softmax.default, lambda d: (plain(4, 16, dtype=d), -1, False)),
    (aten._log_softmax.default, lambda d: (plain(4, 16, dtype=d), -1, False)),
    (aten.logsumexp.default, lambda d: (plain(4, 16, dtype=d), [1])),
    (aten.log_sigmoid_forward.default, lambda d: (plain(4, 16, dtype=d),)),
    (aten.logit.default, lambda d: (unit(4, 16).to(d),)),
    (aten.mse_loss.default, lambda d: (plain(4, 16, dtype=d), plain(16, 4, dtype=d).t(), 1)),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("op", "make"), HALF_CASES, ids=[str(op) for op, _ in HALF_CASES])
def test_in_narrow_types_it_is_no_further_from_the_truth_than_eager(op, make, dtype):
    args = make(dtype)
    exact = flat(op(*[a.double() if isinstance(a, torch.Tensor) else a for a in args]))[0]
    eager = flat(op(*args))[0]
    ours_is = flat(ours()[op](*args))[0]
    assert ours_is.dtype == eager.dtype
    error, allowed = (ours_is.double() - exact).norm(), (eager.double() - exact).norm()
    assert error <= allowed + torch.finfo(dtype).eps * exact.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", [aten.smooth_l1_loss.default, aten.huber_loss.default])
def test_a_loss_that_bends_is_rounded_once(op, dtype):
    """Of one half type eager's kernel does so; of the other it rounds the difference, which adds an error."""
    x, target = plain(256, dtype=dtype) * 1.7, plain(16, 16, dtype=dtype).flatten().flip(0)
    exact = op(x.double(), target.double(), 0)
    assert torch.equal(ours()[op](x, target, 0), exact.to(dtype))


@pytest.mark.parametrize("op", [aten.smooth_l1_loss.default, aten.huber_loss.default])
def test_a_loss_that_bends_is_left_to_aten_where_it_is_of_whole_numbers(op):
    """Eager's kernels refuse them."""
    x = torch.arange(6)
    assert ours()[op](x, x.flip(0), 0) is NotImplemented
    with pytest.raises(NotImplementedError):
        op(x, x.flip(0), 0)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_a_diagonal_of_wide_unsigned_numbers_is_left_to_aten(dtype):
    """PyTorch before 2.13 has a kernel of it, and none of the choice that it is made of elsewhere (`rare` 11100004015)."""
    x = torch.tensor([3, 1]).to(dtype)
    assert ours()[aten.diag_embed.default](x) is NotImplemented
    assert braze.compile(torch.diagflat)(x).tolist() == [[3, 0], [0, 1]]


def test_a_gate_is_not_rounded_before_it_is_multiplied():
    """One that has no place in the type leaves a product that has: eager's kernel computes both in float32."""
    x = torch.cat([unit(64).half() * 10000 + 10000, plain(64, dtype=torch.float16) - 17])
    want = aten.glu.default(x, 0)
    torch.testing.assert_close(ours()[aten.glu.default](x, 0), want, rtol=1e-3, atol=1e-7)


def test_batch_norm_in_training_updates_the_running_statistics():
    x, mean, var = plain(4, 3, 5), plain(3), unit(3)
    want_mean, want_var = mean.clone(), var.clone()
    want = aten.batch_norm.default(x, None, None, want_mean, want_var, True, 0.3, 1e-5, False)
    got = ours()[aten.batch_norm.default](x, None, None, mean, var, True, 0.3, 1e-5, False)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(mean, want_mean)
    torch.testing.assert_close(var, want_var)


def test_the_gradient_of_rms_norm_is_autograds():
    x, weight = plain(3, 2, 8).requires_grad_(), plain(2, 8).requires_grad_()
    y = aten.rms_norm.default(x, [2, 8], weight, 1e-6)
    grad = plain(3, 2, 8) * 0.3
    want = torch.autograd.grad(y, (x, weight), grad)
    with torch.no_grad():
        rstd = ours()[aten._fused_rms_norm.default](x, [2, 8], weight, 1e-6)[1]
        got = ours()[aten._fused_rms_norm_backward.default](grad, x, [2, 8], rstd, weight, [True, True])
    torch.testing.assert_close(got, want)


def test_batch_norms_of_other_libraries_are_the_plain_one():
    x, weight, bias, mean, var = plain(4, 3, 5), plain(3), plain(3), plain(3), unit(3)
    want = aten.native_batch_norm.default(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5)
    rules, grad = ours(), plain(4, 3, 5) * 0.3
    for op in (aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default):
        got = rules[op](x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5)
        torch.testing.assert_close(got[:3], want)
    y, *rest = rules[aten.cudnn_batch_norm.default](x, weight, bias, mean, var, False, 0.1, 1e-5)
    torch.testing.assert_close(y, torch.nn.functional.batch_norm(x, mean, var, weight, bias))
    assert [t.shape for t in rest] == [(0,)] * 3  # cuDNN saves nothing outside training
    _, save_mean, invstd = want
    mask, empty = [True, True, True], torch.empty(0)
    plain_one = rules[aten.native_batch_norm_backward.default]
    expected = plain_one(grad, x, weight, mean, var, save_mean, invstd, True, 1e-5, mask)
    common = (weight, mean, var, save_mean, invstd)
    for op, args in (
        (aten.cudnn_batch_norm_backward.default, (x, grad, *common, 1e-5, empty)),
        (aten.miopen_batch_norm_backward.default, (x, grad, *common, 1e-5)),
        (aten.batch_norm_backward.default, (grad, x, *common, True, 1e-5, mask, empty)),
    ):
        torch.testing.assert_close(rules[op](*args), expected)


NORMS = {
    "batch_norm": lambda x, m, v, t: torch.batch_norm(x, None, None, m, v, t, 0.1, 1e-5, False),
    "native_batch_norm": lambda x, m, v, t: torch.native_batch_norm(x, None, None, m, v, t, 0.1, 1e-5),
    "legit": lambda x, m, v, t: aten._native_batch_norm_legit(x, None, None, m, v, t, 0.1, 1e-5),
}


@pytest.mark.parametrize("sizes", [(0, 3), (0, 3, 4), (2, 3, 0), (0, 3, 4, 4), (0, 3, 2, 2, 2)], ids=str)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_a_batch_of_nothing_moves_no_running_statistics(name, training, sizes):
    """`batch_norm` leaves them as they are; its kernels refuse such a batch."""
    found = []
    for call in (NORMS[name], braze.compile(NORMS[name])):
        mean, var = torch.full((3,), 0.5), torch.full((3,), 2.0)
        try:
            made = flat(call(torch.empty(sizes), mean, var, training))
        except RuntimeError as error:
            made = [torch.tensor(["at least one element" in str(error)])]
        found.append([*made, mean, var])
    for expected, have in zip(*found, strict=True):
        torch.testing.assert_close(have, expected, rtol=0, atol=0, equal_nan=True)
    assert found[0][-1].tolist() == [2.0] * 3
