"""What the sweeps over PyTorch's tables have found, in small."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import braze

INF = float("inf")


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("mode", "shape"), [("linear", (1, 1, 8)), ("bilinear", (1, 1, 4, 4)), ("trilinear", (1, 1, 3, 3, 3))])  # fmt: skip
def test_an_infinity_is_interpolated_as_in_eager(mode: str, shape: tuple[int, ...], grad: bool) -> None:
    """The weights of both neighbours are multiplied in: a difference of infinities would be nan."""
    x = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    x.view(-1)[3] = INF
    x.requires_grad_(grad)

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode=mode, align_corners=False)

    torch.testing.assert_close(braze.compile(program)(x), program(x), equal_nan=True)


@pytest.mark.parametrize(
    "program", [F.relu, F.relu6, F.hardtanh, lambda x: x.clamp(0), lambda x: x.clamp(max=-0.0)]
)
def test_what_equals_a_bound_keeps_its_sign(program: Callable[..., torch.Tensor]) -> None:
    x = torch.tensor([-0.0, 0.0, 1.0, -1.0] * 5)
    assert torch.equal(braze.compile(program)(x).signbit(), program(x).signbit())


def test_the_second_operand_of_rsub_decides_its_layout() -> None:
    x, y = torch.randn(5, 10, 5).permute(2, 1, 0), torch.randn(10, 5)
    assert braze.compile(torch.rsub)(x, y).stride() == torch.rsub(x, y).stride()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.roll(1, 0),
        lambda x: x.flip(0),
        lambda x: torch.view_copy(x, (4, 3)),
        lambda x: torch.expand_copy(x[:1], (3, 4)),
        lambda x: torch.narrow_copy(x, 0, 1, 2),
    ],
)
def test_complex_numbers_move(program: Callable[..., torch.Tensor]) -> None:
    """No loop holds them: what only moves elements calls ATen for them."""
    x = torch.view_as_complex(torch.randn(3, 4, 2))
    assert torch.equal(braze.compile(program)(x), program(x))


def test_lerp_rounds_once() -> None:
    """As in eager's kernel: what would overflow on the way, where the result does not, stays finite."""
    largest = torch.finfo(torch.float32).max
    start, end, weight = torch.zeros(16), torch.full((16,), -largest), torch.full((16,), -1.0)
    assert torch.equal(braze.compile(torch.lerp)(start, end, weight), torch.lerp(start, end, weight))


def test_an_object_of_an_extension_that_a_call_makes_is_not_made_again_empty() -> None:
    """Its class looks like one of Python's; an instance made by ``__new__`` alone holds whatever was in its memory."""

    def program(x: torch.Tensor, keys: torch._C.DispatchKeySet) -> tuple[torch.Tensor, str]:
        joined = keys | keys
        braze.graph_break()
        return x + 1, str(joined)

    x = torch.ones(3)
    keys = torch._C._dispatch_keys(x)
    assert braze.compile(program, backend="eager")(x, keys)[1] == str(keys)
