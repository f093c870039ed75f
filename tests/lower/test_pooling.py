"""Maxima over windows on a GPU as loops, where nobody reads the places; interpreted here."""

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.loops.ir import ExternCall
from tests.aot.cuda_fakes import CTX, partition_on_gpu
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
