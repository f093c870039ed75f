"""Calls of the operators that backward graphs are made of: operator -> argument lists."""

from __future__ import annotations

from typing import Any

import torch

from tests.decomp.samples import ints, numbers, plain, unit

aten = torch.ops.aten
ALL = (True, True, True)
Call = tuple[tuple[Any, ...], dict[str, Any]]


def layer_norm(shape: tuple[int, ...], norm: tuple[int, ...], affine: bool = True, mask: Any = ALL) -> Call:
    x = plain(*shape)
    weight, bias = (plain(*norm), plain(*norm) + 1) if affine else (None, None)
    _, mean, rstd = aten.native_layer_norm.default(x, list(norm), weight, bias, 1e-5)
    return (plain(*shape) * 0.7 + 0.1, x, list(norm), mean, rstd, weight, bias, list(mask)), {}


def batch_norm(x: torch.Tensor, train: bool, affine: bool = True, mask: Any = ALL) -> Call:
    channels = x.shape[1]
    weight = plain(channels) if affine else None
    mean, var = plain(channels), unit(channels)
    saved = aten.native_batch_norm.default(x, weight, weight, mean.clone(), var.clone(), train, 0.1, 1e-5)
    grad = plain(*x.shape) * 0.3
    return (grad, x, weight, mean, var, saved[1], saved[2], train, 1e-5, list(mask)), {}


def group_norm(shape: tuple[int, ...], groups: int, affine: bool = True, mask: Any = ALL) -> Call:
    x = plain(*shape)
    n, channels = shape[:2]
    spread = x.numel() // n // channels
    weight = plain(channels) if affine else None
    _, mean, rstd = aten.native_group_norm.default(x, weight, weight, n, channels, spread, groups, 1e-5)
    return (plain(*shape) * 0.3, x, mean, rstd, weight, n, channels, spread, groups, list(mask)), {}


def nll(
    x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignored: int, two: bool = False
) -> Call:
    forward = aten.nll_loss2d_forward.default if two else aten.nll_loss_forward.default
    loss, total = forward(x, target, weight, reduction, ignored)
    grad = plain(*loss.shape) if loss.dim() else torch.tensor(1.7, dtype=torch.float64)
    return (grad, x, target, weight, reduction, ignored, total), {}


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


_WEIGHTS = torch.softmax(numbers(4, 6).clamp(-5, 5).nan_to_num(0.0), 1)
_BATCH = (plain(4, 3, 5), plain(3), plain(3), plain(3), unit(3))

GRADIENTS: dict[Any, list[Call]] = {
    aten.native_dropout_backward.default: [
        ((numbers(4, 6), plain(4, 6) > 0, 1.25), {}),
        ((numbers(3, 5).to(torch.bfloat16), plain(3, 5) > 0, 1 / 0.9), {}),
        ((plain(0, 3), plain(0, 3) > 0, 2.0), {}),
    ],
    aten.native_layer_norm_backward.default: [
        layer_norm((3, 8), (8,)),
        layer_norm((2, 3, 8), (3, 8)),
        layer_norm((3, 8), (8,), False, (True, False, False)),
        layer_norm((8,), (8,)),
        layer_norm((3, 1), (1,)),
        layer_norm((4, 2, 5), (5,), mask=(False, True, True)),
        layer_norm((0, 4), (4,)),
    ],
    aten.native_batch_norm_backward.default: [
        batch_norm(plain(4, 3, 5), True),
        batch_norm(plain(4, 3, 5, 2), False),
        batch_norm(plain(4, 3), True, False),
        batch_norm(plain(4, 3, 2, 2, 2), True, mask=(True, False, False)),
        batch_norm(plain(4, 3, 5), True, mask=(False, True, True)),
        batch_norm(plain(4, 3, 5), False, mask=(True, False, True)),
        batch_norm(plain(4, 3, 2, 2).to(memory_format=torch.channels_last), True),
    ],
    aten.native_batch_norm.default: [
        ((*_BATCH, True, 0.1, 1e-5), {}),
        ((plain(4, 3, 5), None, None, plain(3), unit(3), False, 0.1, 1e-5), {}),
        ((plain(4, 3, 5), None, None, None, None, True, 0.1, 1e-5), {}),
    ],
    aten._native_batch_norm_legit.default: [
        ((*_BATCH, True, 0.3, 1e-5), {}),
        ((*_BATCH, False, 0.3, 1e-5), {}),
    ],
    aten._native_batch_norm_legit.no_stats: [((plain(4, 3, 5), plain(3), plain(3), True, 0.1, 1e-5), {})],
    aten._native_batch_norm_legit_functional.default: [((*_BATCH, True, 0.1, 1e-5), {})],
    aten._batch_norm_with_update.default: [((*_BATCH, 0.1, 1e-5), {})],
    aten.native_group_norm_backward.default: [
        group_norm((2, 6, 4), 3),
        group_norm((2, 6, 2, 2), 1, False, (True, False, False)),
        group_norm((3, 6, 5), 2, mask=(True, True, False)),
        group_norm((3, 6), 2),
        group_norm((2, 6, 4), 6, mask=(False, True, True)),
    ],
    aten._fused_rms_norm.default: [
        ((plain(3, 8), [8], plain(8), 1e-6), {}),
        ((plain(3, 2, 8), [2, 8], None, None), {}),
        ((plain(1, 1), [1], plain(1), 1e-6), {}),
        ((plain(0, 8), [8], plain(8), 1e-6), {}),
    ],
    aten._softmax_backward_data.default: [
        ((numbers(4, 6), _WEIGHTS, 1, torch.float64), {}),
        ((plain(4, 6), _WEIGHTS, 0, torch.float64), {}),
        ((scalar(2.0), scalar(1.0), 0, torch.float64), {}),
    ],
    aten._log_softmax_backward_data.default: [
        ((numbers(4, 6), _WEIGHTS.log(), 1, torch.float64), {}),
        ((plain(4, 6), _WEIGHTS.log(), 0, torch.float64), {}),
        ((scalar(2.0), scalar(0.0), 0, torch.float64), {}),
    ],
    aten.nll_loss_backward.default: [
        nll(plain(6, 5), ints(6), None, 1, -100),
        nll(plain(6, 5), ints(6), unit(5), 1, 2),
        nll(plain(6, 5), ints(6), unit(5), 2, -100),
        nll(plain(6, 5), ints(6), None, 0, 1),
        nll(plain(5), torch.tensor(2), None, 1, -100),
        nll(plain(5), torch.tensor(2), None, 0, -100),
        nll(plain(6, 5), torch.full((6,), 3), None, 1, 3),
        nll(plain(6, 300), ints(6).to(torch.uint8), None, 1, -100),
    ],
    aten.nll_loss2d_backward.default: [
        nll(plain(2, 5, 3, 2), ints(2, 3, 2), unit(5), r, 1, True) for r in (0, 1, 2)
    ],
}

#: of operators that have no kernel on the CPU
ELSEWHERE = {
    aten._fused_rms_norm_backward.default,
    aten.batch_norm_backward.default,
    aten.convolution.default,
    aten.convolution_backward.default,
    aten.cudnn_batch_norm.default,
    aten.cudnn_batch_norm_backward.default,
    aten.miopen_batch_norm.default,
    aten.miopen_batch_norm_backward.default,
}

for _kind in ("upsample_nearest", "_upsample_nearest_exact"):
    for _dims in (1, 2, 3):
        _lines, _made = [2, 5, 3][:_dims], [6, 10, 3][:_dims]
        GRADIENTS[getattr(aten, f"{_kind}{_dims}d_backward").default] = [
            ((plain(2, 3, *_made), _made, [2, 3, *_lines]), {}),
            ((plain(2, 3, *_made), _made, [2, 3, *_lines], *[3.0, 2.0, 1.0][:_dims]), {}),
        ]
