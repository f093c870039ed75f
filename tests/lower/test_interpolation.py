"""Pictures interpolated between their elements on a GPU as loops; interpreted here."""

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.loops.ir import ExternCall
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.loops.interpret import interpret

aten = torch.ops.aten


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


KINDS = {
    "nearest": (aten.upsample_nearest2d, {}),
    "exact": (aten._upsample_nearest_exact2d, {}),
    "linear": (aten.upsample_bilinear2d, dict(align_corners=False)),
    "corners": (aten.upsample_bilinear2d, dict(align_corners=True)),
    "cubic": (aten.upsample_bicubic2d, dict(align_corners=False)),
    "cubic corners": (aten.upsample_bicubic2d, dict(align_corners=True)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "size",
    [(8, 10), (4, 5), (7, 3), (1, 1), (2, 1), (9, 9), (10, 4)],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 2, 1, 7), (1, 1, 12, 1)])
def test_every_kind_and_its_gradient(kind, shape, size):
    op, words = KINDS[kind]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layouts = [torch.contiguous_format]
    if "cubic" not in kind:  # PyTorch's own rule for that asks a GPU
        layouts.append(torch.channels_last)
    for layout in layouts:
        given = x.contiguous(memory_format=layout)
        f = lambda t: op(t, size, *words.values()) * 2
        program = program_of(f, given)
        assert not calls(program)
        torch.testing.assert_close(interpret(program, [given])[0], f(given), rtol=1e-12, atol=1e-12)
        g = torch.randn_like(op(given, size, *words.values()))
        backward = getattr(aten, f"{op.__name__}_backward")
        f = lambda g: backward(g, size, shape, *words.values()) * 2
        program = program_of(f, g)
        assert not calls(program)
        torch.testing.assert_close(interpret(program, [g])[0], f(g), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("factor", [3, 7, 49, 2.5])
def test_elements_are_repeated_where_eagers_floats_have_them(factor):
    x = torch.randn(1, 2, 6, 4).contiguous(memory_format=torch.channels_last)
    f = lambda t: F.interpolate(t, scale_factor=factor, mode="nearest") + 1
    torch.testing.assert_close(interpret(program_of(f, x), [x])[0], f(x), rtol=0, atol=0)


def test_gradients_of_far_larger_pictures_are_summed_dim_by_dim():
    g = torch.randn(1, 2, 64, 48, dtype=torch.float64)
    f = lambda t: aten.upsample_bilinear2d_backward(t, [64, 48], [1, 2, 4, 6], False)
    program = program_of(f, g)
    assert not calls(program)
    assert len(program.steps) == 2
    torch.testing.assert_close(interpret(program, [g])[0], f(g), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "nearest"])
@pytest.mark.parametrize("dims", [1, 3])
def test_sequences_and_volumes(kind, dims):
    mode = {1: "linear", 3: "trilinear"}[dims] if kind == "linear" else kind
    x = torch.randn([2, 2, 3, 4, 2][: dims + 2], dtype=torch.float64)
    f = lambda t: F.interpolate(t, scale_factor=2, mode=mode) * 2
    program = program_of(f, x)
    assert not calls(program)
    torch.testing.assert_close(interpret(program, [x])[0], f(x), rtol=1e-12, atol=1e-12)


def test_a_gradient_that_is_no_number_stays_where_eager_has_it():
    g = torch.ones(1, 1, 6, 6, dtype=torch.float64)
    g[0, 0, 2, 3], g[0, 0, 5, 0] = float("inf"), float("nan")
    f = lambda t: aten.upsample_bilinear2d_backward(t, [6, 6], [1, 1, 3, 3], True)
    torch.testing.assert_close(
        interpret(program_of(f, g), [g])[0], f(g), rtol=1e-12, atol=1e-12, equal_nan=True
    )


def test_half_types_are_interpolated_in_float32():
    x = torch.randn(1, 2, 6, 8, dtype=torch.bfloat16)
    f = lambda t: F.interpolate(t, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(
        interpret(program_of(f, x), [x])[0], f(x.float()).bfloat16(), rtol=1e-2, atol=1e-2
    )
