"""Lines, pictures and volumes whose sizes are multiplied are repeated on a processor, as eager looks their elements up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.graph.fakes import torch_composites
from tests.helpers import together


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("factor", [1, 2, 3, 5, 2.5, 0.5])
def test_a_line_is_repeated_where_its_length_is_a_multiple(dtype: torch.dtype, factor: float) -> None:
    x = torch.randn(3, 5, 13).to(dtype)
    x[0, 0, :5] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")]).to(dtype)

    def f(t: torch.Tensor) -> torch.Tensor:
        return F.interpolate(t, scale_factor=factor, mode="nearest")

    given = (x, x.transpose(0, 2), x[:, :, 1:8:2], x[:1, :1, :2], x[:, :1].expand(3, 5, 13))
    for each, found in zip(given, together(*((f, each) for each in given)), strict=True):
        want = f(each)
        torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == want.stride()
        assert torch.equal(found.signbit() & ~found.isnan(), want.signbit() & ~want.isnan())


def test_a_size_is_a_multiple_too() -> None:
    x = torch.randn(2, 3, 7)
    for size in (7, 14, 28, 15):
        f = lambda t, n=size: F.interpolate(t, size=n) + t.sum()
        torch.testing.assert_close(braze.compile(f)(x), f(x))


def test_a_line_that_is_repeated_is_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    braze.compile(lambda t: F.interpolate(t, scale_factor=2))(torch.randn(3, 5, 64))
    text = "".join(path.read_text() for path in tmp_path.glob("*_kernels*.c"))
    assert "static void cpu_" in text and "bz_check" not in text


def test_what_is_said_to_be_repeated_is_what_floats_come_to() -> None:
    said = [torch_composites.repeats(7, 7 * times, float(times)) for times in range(1, 130)]
    assert said.count(False) and all(said[:40])
    for times, repeated in enumerate(said, 1):
        for size in (3, 1025):
            x = torch.arange(size, dtype=torch.float32)[None, None]
            made = F.interpolate(x, scale_factor=float(times))[0, 0]
            given = F.interpolate(x, size=size * times, mode="nearest-exact")[0, 0]
            if repeated:
                assert torch.equal(made, x[0, 0].repeat_interleave(times)), (size, times)
                assert torch.equal(given, made), (size, times)


def test_a_multiple_that_floats_miss_is_looked_up() -> None:
    x = torch.arange(300.0)[None, None, None]
    f = lambda t: F.interpolate(t, scale_factor=(2.0, 41.0))
    want = f(x)
    assert not torch.equal(want[0, 0, 0], x[0, 0, 0].repeat_interleave(41))
    assert torch.equal(braze.compile(f)(x), want)


NEAREST = [(torch.float32, "nearest"), (torch.bfloat16, "nearest"), (torch.uint8, "nearest")]
EXACT = [(torch.float32, "nearest-exact"), (torch.float64, "nearest-exact")]


@pytest.mark.parametrize(("dtype", "mode"), NEAREST + EXACT, ids=str)
def test_pictures_and_volumes_are_repeated_as_they_lie(dtype: torch.dtype, mode: str) -> None:
    picture = torch.randint(0, 200, (2, 3, 5, 7)).to(dtype)
    flat = picture.to(memory_format=torch.channels_last)
    pictures = (picture, flat, picture[:, :, 1:, ::2], flat[:, :, 1:3], picture[:1].expand(4, 3, 5, 7))
    volume = torch.randint(0, 200, (2, 2, 3, 4, 5)).to(dtype)
    given: list[tuple[torch.Tensor, Any]] = [(x, factor) for x in pictures for factor in (3, (2, 5), 2.5)]
    given += [(x, (1, 2, 3)) for x in (volume, volume.to(memory_format=torch.channels_last_3d))]
    given.append((torch.ones(1, 2, 1, 1).to(dtype), (3, 1)))

    def f(t: torch.Tensor, factor: Any) -> torch.Tensor:
        return F.interpolate(t, scale_factor=factor, mode=mode)

    for (x, factor), found in zip(given, together(*((f, *each) for each in given)), strict=True):
        want = f(x, factor)
        assert torch.equal(found, want) and found.stride() == want.stride(), (x.shape, x.stride(), factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_gradients_are_sums_of_what_was_repeated(dtype: torch.dtype) -> None:
    picture = torch.randn(2, 3, 5, 7).to(dtype)
    flat, volume = picture.to(memory_format=torch.channels_last), torch.randn(2, 2, 3, 4, 5).to(dtype)
    for x in (picture, flat, picture[..., ::2], picture[0], volume, torch.randn(1, 2, 1, 1).to(dtype)):
        for given in ("plain", "as it lies", "one number"):
            _check_gradient(x, 3, given)
    _check_gradient(picture, (3, 1), "plain")


def _check_gradient(x: torch.Tensor, factor: Any, given: str) -> None:
    made = F.interpolate(x, scale_factor=factor)
    weights = torch.randn(made.shape).to(x.dtype) if given == "plain" else torch.randn_like(made)
    if given == "one number":
        weights = torch.ones((), dtype=x.dtype).expand(made.shape)

    def g(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        t = t.detach().requires_grad_()
        return torch.autograd.grad(F.interpolate(t, scale_factor=factor), t, w)[0]

    want, found = g(x, weights), braze.compile(g)(x, weights)
    exact = g(x.double(), weights.double())
    if x.is_contiguous() or given == "as it lies":  # a gradient is taken to lie as what it is of
        assert found.stride() == want.stride(), (x.shape, x.stride(), factor, given)
    allowed = (want.double() - exact).abs().max() + 2 * torch.finfo(x.dtype).eps * exact.abs().max()
    assert (found.double() - exact).abs().max() <= allowed, (x.shape, x.stride(), factor, given)


def test_places_of_doubles_are_doubles() -> None:
    x = torch.arange(300.0, dtype=torch.float64)[None, None, None]
    for mode in ("nearest", "nearest-exact"):
        for given in (x, x[0], x[None]):
            f = lambda t, m=mode: F.interpolate(t, scale_factor=(*[1.0] * (t.dim() - 3), 41.0), mode=m)
            assert torch.equal(braze.compile(f)(given), f(given))


def test_batches_of_any_number_are_repeated() -> None:
    f = lambda t: F.interpolate(t, scale_factor=3)
    compiled = braze.compile(f, dynamic=True)
    for batch in (2, 5, 1, 0, 9):
        x = torch.randn(batch, 3, 4, 6)
        braze.mark_static(x, [1, 2, 3])
        assert torch.equal(compiled(x), f(x))
