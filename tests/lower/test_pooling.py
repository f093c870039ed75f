"""Maxima, means and their gradients over windows as loops; a GPU's are interpreted here."""

import pytest
import torch
import torch.nn.functional as F

import braze
from braze import pipeline
from braze.loops.ir import ExternCall
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.aot.recording import CONTEXT, compile_aot
from tests.loops.interpret import interpret

LAST = torch.channels_last


def program_of(f, x):
    return pipeline.lower_graph(partition_on_gpu(f, [x]), CTX)


def calls(program):
    return [s.target for s in program.steps if isinstance(s, ExternCall)]


WINDOWS = [
    dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=2),
    dict(kernel_size=(2, 3), stride=(3, 1), padding=(1, 0)),
    dict(kernel_size=3, stride=2, padding=1, dilation=2),
    dict(kernel_size=3, stride=2, ceil_mode=True),
    dict(kernel_size=(1, 4), stride=1, padding=(0, 2)),
    dict(kernel_size=5, stride=5),
]


@pytest.mark.parametrize("options", WINDOWS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 11, 10), (3, 8, 7), (1, 1, 6, 6)])
def test_values_and_layouts(options, shape):
    torch.manual_seed(0)
    x = torch.randn(shape)
    x.view(-1)[::7] = float("nan")
    x.view(-1)[1::7] = -0.0
    x.view(-1)[2::7] = 0.0
    x.view(-1)[3::5] = float("-inf")
    for given in [x, x.contiguous(memory_format=LAST)] if len(shape) == 4 else [x]:
        program = program_of(lambda t: F.max_pool2d(t, **options) * 2, given)
        assert not calls(program)
        (found,) = interpret(program, [given])
        want = F.max_pool2d(given, **options) * 2
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.nan_to_num().signbit(), want.nan_to_num().signbit())


def test_half_types():
    x = torch.randn(2, 3, 9, 8, dtype=torch.bfloat16)
    program = program_of(lambda t: F.max_pool2d(t, 3, 2, 1), x)
    (found,) = interpret(program, [x])
    assert not calls(program) and torch.equal(found, F.max_pool2d(x, 3, 2, 1))


@pytest.mark.parametrize(
    "f",
    [
        lambda t: F.max_pool2d(t, 3, return_indices=True),
        lambda t: F.max_pool2d(t, 3, return_indices=True)[1],
        lambda t: F.max_pool2d(t, (1, 26), stride=1),
    ],
)
def test_places_and_large_windows_are_atens(f):
    assert calls(program_of(f, torch.randn(1, 2, 5, 30))) == ["aten.max_pool2d_with_indices.default"]


def test_a_processors_windows_are_loops_too():
    """``max_pool1d`` became ATen's pool of pictures, which takes up to 30 times as long as what eager calls for lines."""

    def lines(x):
        return F.max_pool1d(x, 3, 2, 1), F.max_pool1d(x, 2), F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2)

    def steps(x):
        return F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 3)

    x = torch.randn(3, 6, 8)
    for f, grad in ((lines, False), (steps, True)):
        part, _ = compile_aot(f, [x.clone().requires_grad_(grad)], grad=grad)
        assert not calls(pipeline.lower_graph(part, CONTEXT))
    wide, _ = compile_aot(lambda x: F.max_pool2d(x, 6), [x])
    assert calls(pipeline.lower_graph(wide, CONTEXT)) == ["aten.max_pool2d_with_indices.default"]


def test_a_processors_maxima_and_their_places_are_eagers():
    """Of equal ones the first, of nothing but minus infinity the first that there is, of nans the last."""
    torch.manual_seed(0)

    def f(x):
        found = [F.max_pool2d(x, **options, return_indices=True) for options in WINDOWS]
        return [part for pair in found for part in pair]

    compiled = braze.compile(f, dynamic=False)
    for kind in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, 11, 10).round().to(kind)
        x[..., 2], x[0, 0, 3:, 4:], x[0, 1] = -0.0, float("-inf"), float("-inf")
        x.view(-1)[::7] = float("nan")
        for given in (x, x.contiguous(memory_format=LAST)):
            for ours, eager in zip(compiled(given), f(given), strict=True):
                torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
                assert ours.stride() == eager.stride()
                if eager.is_floating_point():
                    assert torch.equal(ours.nan_to_num().signbit(), eager.nan_to_num().signbit())


MEANS = [
    dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=2),
    dict(kernel_size=(2, 3), stride=(3, 1), padding=(1, 0)),
    dict(kernel_size=3, stride=2, padding=1, count_include_pad=False),
    dict(kernel_size=3, stride=2, ceil_mode=True),
    dict(kernel_size=3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    dict(kernel_size=(1, 4), stride=1, padding=(0, 2), divisor_override=3),
    dict(kernel_size=2, stride=3, ceil_mode=True),
    dict(kernel_size=5, stride=5),
]


@pytest.mark.parametrize("options", MEANS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 11, 10), (3, 8, 7), (1, 1, 6, 6), (0, 2, 6, 6)])
def test_means_and_their_gradients(options, shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64).mul(64).round()
    x.view(-1)[::7] = -0.0
    gradient = torch.randn_like(F.avg_pool2d(x, **options))

    def backward(g, t):
        words = [
            options.get(k, v)
            for k, v in dict(
                kernel_size=(),
                stride=(),
                padding=0,
                ceil_mode=False,
                count_include_pad=True,
                divisor_override=None,
            ).items()
        ]
        words[:3] = [list(w) if isinstance(w, tuple) else [w] * 2 for w in words[:3]]
        return torch.ops.aten.avg_pool2d_backward(g, t, *words)

    for given in [x, x.contiguous(memory_format=LAST)] if len(shape) == 4 else [x]:
        program = program_of(lambda t: F.avg_pool2d(t, **options) * 2, given)
        assert not calls(program)
        (found,) = interpret(program, [given])
        torch.testing.assert_close(found, F.avg_pool2d(given, **options) * 2, rtol=1e-15, atol=0)
        part = partition_on_gpu(lambda g, t: backward(g, t) * 2, [gradient, given])
        program = pipeline.lower_graph(part, CTX)
        assert not calls(program)
        (found,) = interpret(program, [gradient, given])
        torch.testing.assert_close(found, backward(gradient, given) * 2, rtol=1e-14, atol=1e-15)


def test_means_of_half_types_are_sums_in_float32():
    x = torch.randn(2, 3, 9, 8, dtype=torch.bfloat16)
    (found,) = interpret(program_of(lambda t: F.avg_pool2d(t, 3, 2, 1), x), [x])
    torch.testing.assert_close(found, F.avg_pool2d(x.float(), 3, 2, 1).bfloat16(), rtol=0, atol=0)


def test_means_of_large_windows_are_atens():
    assert calls(program_of(lambda t: F.avg_pool2d(t, (1, 26), stride=1), torch.randn(1, 2, 5, 30))) == [
        "aten.avg_pool2d.default"
    ]


@pytest.mark.parametrize(
    ("size", "into", "ours"),
    [
        ((6, 8), (3, 2), True),
        ((5, 5), (1, 1), True),
        ((7, 6), (3, 2), True),
        ((0, 4), (1, 2), True),
        ((7, 5), (3, 9), True),
        ((4, 4), (40, 9), False),
    ],
)
def test_gradients_of_means_over_so_many_windows(size, into, ours):
    torch.manual_seed(0)
    x = torch.randn(2 if size[0] else 0, 3, size[0] or 3, size[1], dtype=torch.float64)
    gradient = torch.randn(*x.shape[:2], *into, dtype=torch.float64)
    f = lambda g, t: torch.ops.aten._adaptive_avg_pool2d_backward(g, t) * 2
    for given in (x, x.contiguous(memory_format=LAST)):
        program = pipeline.lower_graph(partition_on_gpu(f, [gradient, given]), CTX)
        assert (not calls(program)) is ours
        if ours:
            (found,) = interpret(program, [gradient, given])
            want = f(gradient, given)
            torch.testing.assert_close(found, want, rtol=1e-15, atol=0)
            assert found.stride() == want.stride()


@pytest.mark.parametrize("into", [(3, 2), (7, 5), (2, 11), (1, 12), (12, 12), (14, 3)], ids=str)
def test_means_over_so_many_windows(into):
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    f = lambda t: F.adaptive_avg_pool2d(t, into) * 2
    for given in (x, x.contiguous(memory_format=LAST), x[0]):
        program = program_of(f, given)
        assert not calls(program)
        (found,) = interpret(program, [given])
        torch.testing.assert_close(found, f(given), rtol=1e-14, atol=1e-15)
        assert found.stride() == f(given).stride()


def test_means_of_nothing_but_negative_zeros_are_zeros():
    """ATen's kernels add to 0.0, be it one element, and so do their gradients (`tensors` 16100003021)."""

    def both(x):
        means = [F.adaptive_avg_pool2d(x, into) for into in ((6, 5), (3, 5), (12, 10))]
        return *means, *(torch.autograd.grad(y, x, torch.full_like(y, -0.0))[0] for y in means)

    x = torch.full((2, 6, 5), -0.0, requires_grad=True)
    for dynamic in (False, True):
        braze.reset()
        for found, want in zip(braze.compile(both, dynamic=dynamic)(x), both(x), strict=True):
            assert torch.equal(found.signbit(), want.signbit()) and not want.signbit().any()


@pytest.mark.parametrize("options", [o for o in WINDOWS if o.get("dilation", 1) == 1], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 11, 10), (3, 8, 7), (0, 2, 6, 6)], ids=str)
def test_gradients_of_maxima(options, shape):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64).mul(2).round()  # several are the largest
    words = [options.get(k, d) for k, d in dict(kernel_size=(), stride=(), padding=0, dilation=1).items()]
    words = [list(w) if isinstance(w, tuple) else [w] * 2 for w in words]
    for given in [x, x.contiguous(memory_format=LAST)] if len(shape) == 4 else [x]:
        y, places = F.max_pool2d(given, **options, return_indices=True)
        g = torch.randn_like(y)
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        f = lambda g, t, i: backward(g, t, *words, options.get("ceil_mode", False), i) * 2
        program = pipeline.lower_graph(partition_on_gpu(f, [g, given, places]), CTX)
        assert not calls(program)
        (found,) = interpret(program, [g, given, places])
        torch.testing.assert_close(found, f(g, given, places), rtol=1e-14, atol=1e-15)
