"""Pictures interpolated between their elements on a GPU as loops; interpreted here."""

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.loops.ir import ExternCall
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.loops.interpret import interpret


def program_of(f, x):
    return pipeline.lower_graph(partition_on_gpu(f, [x]), CTX)


def calls(program):
    return [s.target for s in program.steps if isinstance(s, ExternCall)]


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(
    "size",
    [(8, 10), (4, 5), (7, 3), (1, 1), (2, 1), (9, 20), (33, 17)],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 1, 7), (1, 1, 12, 1), (0, 2, 4, 4)])
def test_values_and_layouts(shape, size, align_corners):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64)
    for given in (x, x.contiguous(memory_format=torch.channels_last)):
        f = lambda t: F.interpolate(t, size=size, mode="bilinear", align_corners=align_corners) * 2
        program = program_of(f, given)
        assert not calls(program)
        (found,) = interpret(program, [given])
        torch.testing.assert_close(found, f(given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("scale", "ours"), [(2, True), (0.5, True), ((4, 2), True), (1.7, False)])
def test_scales_that_tell_the_size_and_others(scale, ours):
    x = torch.randn(1, 2, 6, 8, dtype=torch.float64)
    f = lambda t: F.interpolate(t, scale_factor=scale, mode="bilinear") + 1
    program = program_of(f, x)
    assert (not calls(program)) is ours
    if ours:
        torch.testing.assert_close(interpret(program, [x])[0], f(x), rtol=1e-12, atol=1e-12)


def test_half_types_are_interpolated_in_float32():
    x = torch.randn(1, 2, 6, 8, dtype=torch.bfloat16)
    f = lambda t: F.interpolate(t, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(
        interpret(program_of(f, x), [x])[0], f(x.float()).bfloat16(), rtol=1e-2, atol=1e-2
    )
