"""A step of an ocean model's mixing along surfaces of equal density: a thousand slices of few fields, and writes to them.

Of temperature and salt come the density's derivatives (ratios of polynomials), their gradients between neighbouring cells, slopes and
fluxes with tapers on four corners of each face, and an implicit step: a tridiagonal system in each column, solved by sweeps.
All in float64, on fields [x, y, z], as such models are written for NumPy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Tensor = torch.Tensor

#: coefficients of the numerator and denominator of density over temperature, salt and pressure
_N = (9.9984e2, 7.35, -5.45e-2, 3.98e-4, 2.96, -7.2e-3, 2.1e-3, 1.01e-2, 1e-7, 5.2e-6, 3.5e-8, 2e-12)
_D = (7.28e-3, -4.6e-5, -4.3e-8, 1.84e-10, 1.7e-3, 6e-6, -1.6e-10, 5.3e-6, -1.3e-11, -2e-10)
#: slope at which mixing is tapered, over what range, and what keeps quotients finite
_SLOPE, _RANGE, _TINY, _STEP = 4e-3, 1e-3, 1e-20, 0.1

_INNER = slice(2, -2)


def density(salt: Tensor, heat: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Density, and its derivatives by temperature and by salt."""
    square, root = heat * heat, torch.sqrt(salt.clamp(min=0) + 1e-3)
    above = (
        _N[0] + heat * (_N[1] + heat * (_N[2] + _N[3] * heat)) + salt * (_N[4] + _N[5] * heat + _N[6] * salt)
    )
    above = above + p * (_N[7] + _N[8] * square + _N[9] * salt + p * (_N[10] + _N[11] * square))
    below = 1 + heat * (_D[0] + heat * (_D[1] + heat * (_D[2] + _D[3] * heat))) + p * _D[9] * heat
    below = below + salt * (_D[4] + _D[5] * heat + _D[6] * heat * square + root * (_D[7] - _D[8] * square))
    found = above / below
    by_heat = (
        _N[1] + heat * (2 * _N[2] + 3 * _N[3] * heat) + _N[5] * salt + 2 * p * heat * (_N[8] + p * _N[11])
    )
    by_salt = _N[4] + _N[5] * heat + 2 * _N[6] * salt + p * _N[9]
    return (
        found,
        (by_heat - found * (_D[0] + 2 * _D[1] * heat)) / below,
        (by_salt - found * (_D[4] + _D[5] * heat)) / below,
    )


def taper(slope: Tensor) -> Tensor:
    """From one to zero where a slope is steep."""
    return 0.5 * (1 + torch.tanh((_SLOPE - torch.abs(slope)) / _RANGE))


def gradients(field: Tensor, mask: Tensor, widths: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Differences of neighbours along each axis, zero at the last cell."""
    made = tuple(torch.zeros_like(field) for _ in range(3))
    dx, dy, dz = widths
    made[0][:-1] = mask[:-1] * (field[1:] - field[:-1]) / dx[:-1, None, None]
    made[1][:, :-1] = mask[:, :-1] * (field[:, 1:] - field[:, :-1]) / dy[None, :-1, None]
    made[2][:, :, :-1] = mask[:, :, :-1] * (field[:, :, 1:] - field[:, :, :-1]) / dz[:-1]
    return made


def moved(axis: int, first: int, last: int) -> tuple[slice, slice]:
    """The inner cells of a layer, from ``first`` to ``last`` (from the end) along one axis."""
    along = slice(first, last or None)
    return (along, _INNER) if axis == 0 else (_INNER, along)


class Mixing(nn.Module):
    """Temperature and salt after one step, with the mixing's coefficients."""

    def forward(
        self, heat: Tensor, salt: Tensor, mask: Tensor, depth: Tensor, mixing: Tensor, dx: Tensor, dy: Tensor, dz: Tensor
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Fields [x, y, z] and widths of cells [x], [y], [z]; ``depth``: [z]."""
        widths = (dx, dy, dz)
        rho, by_heat, by_salt = density(salt, heat, depth)
        slopes = (by_heat * mask, by_salt * mask)
        of = [gradients(field, mask, widths) for field in (heat, salt)]
        sides = [self.sideways(axis, slopes, of, mask, mixing, dz) for axis in (0, 1)]
        upward = torch.zeros_like(heat)
        bottoms = [self.upwards(axis, slopes, of, mask, mixing, upward) for axis in (0, 1)]
        upward[..., -1] = 0.0
        made = [
            self.step(field, of[k], sides, bottoms, upward, mixing, widths)
            for k, field in enumerate((heat, salt))
        ]
        return (*made, upward, rho, *(part for side in sides for part in side), *bottoms)

    def sideways(
        self, axis: int, slopes: tuple[Tensor, ...], of: list[tuple[Tensor, ...]], mask: Tensor, mixing: Tensor, dz: Tensor
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Mixing through the faces across one axis, and the slopes at their four corners [x, y, z, 2, 2]."""
        (by_heat, by_salt), (heat, salt) = slopes, of
        made, corners = torch.zeros_like(mask), torch.zeros((*mask.shape, 2, 2), dtype=mask.dtype)
        here = moved(axis, 1, -2)
        flux = torch.zeros_like(mask[here])
        for upper in range(2):
            z, below = slice(1 - upper, None), slice(0, -1 if not upper else None)
            for side in range(2):
                cell = moved(axis, 1 + side, -2 + side)
                a, b = by_heat[cell][:, :, z], by_salt[cell][:, :, z]
                across = a * heat[axis][here][:, :, z] + b * salt[axis][here][:, :, z]
                along = a * heat[2][cell][:, :, below] + b * salt[2][cell][:, :, below]
                slope = -across / (torch.minimum(along, torch.zeros_like(along)) - _TINY)
                kept = taper(slope)
                flux[:, :, z] += (
                    dz[below] * mixing[here][:, :, z] * torch.maximum(kept, torch.full_like(kept, 0.02)) / 4
                )
                corners[(*here, z, side, upper)] = kept * slope * mask[here][:, :, z]
        made[here] = flux / (4 * dz)
        return made, corners

    def upwards(
        self, axis: int, slopes: tuple[Tensor, ...], of: list[tuple[Tensor, ...]], mask: Tensor, mixing: Tensor, total: Tensor
    ) -> Tensor:  # fmt: skip
        """Adds to the mixing through the upper faces; returns the slopes at their corners."""
        (by_heat, by_salt), (heat, salt) = slopes, of
        corners = torch.zeros((*mask.shape, 2, 2), dtype=mask.dtype)
        inner = (_INNER, _INNER)
        flux = torch.zeros_like(mask[inner][:, :, :-1])
        for side in range(2):
            for upper in range(2):
                z, cell = slice(upper, -1 if not upper else None), moved(axis, 1 + side, -3 + side)
                a, b = by_heat[inner][:, :, z], by_salt[inner][:, :, z]
                along = a * heat[2][inner][:, :, :-1] + b * salt[2][inner][:, :, :-1]
                across = a * heat[axis][cell][:, :, z] + b * salt[axis][cell][:, :, z]
                slope = -across / (torch.minimum(along, torch.zeros_like(along)) - _TINY)
                kept = taper(slope)
                flux += kept * slope**2 * mixing[inner][:, :, :-1] * mask[cell][:, :, z] / 4
                corners[(*inner, slice(0, -1), side, upper)] = kept * slope * mask[inner][:, :, :-1]
        total[2:-2, 2:-2, :-1] += flux
        return corners

    def step(
        self, field: Tensor, of: tuple[Tensor, ...], sides: list[tuple[Tensor, Tensor]], bottoms: list[Tensor],
        upward: Tensor, mixing: Tensor, widths: tuple[Tensor, Tensor, Tensor],
    ) -> Tensor:  # fmt: skip
        """One field after the step: what flows through each face, its divergence, and the column's implicit part."""
        fluxes = [torch.zeros_like(field) for _ in range(3)]
        for axis, (strength, corners) in enumerate(sides):
            here = moved(axis, 1, -2)
            fluxes[axis][here] = strength[here] * of[axis][here]
            for side in range(2):
                for upper in range(2):
                    cell, bottom = moved(axis, 1 + side, -2 + side), moved(axis, 1 + side, -3 + side)
                    fluxes[axis][(*here, slice(1, None))] -= (
                        mixing[here][:, :, 1:]
                        * corners[here][:, :, 1:, side, upper]
                        * of[2][cell][:, :, :-1]
                        / 4
                    )
                    fluxes[2][2:-2, 2:-2, :-1] -= (
                        bottoms[axis][2:-2, 2:-2, :-1, side, upper] * of[axis][bottom][:, :, :-1] / 4
                    )
        change, (dx, dy, dz) = torch.zeros_like(field), widths
        change[2:-2, 2:-2] = (fluxes[0][2:-2, 2:-2] - fluxes[0][1:-3, 2:-2]) / dx[2:-2, None, None]
        change[2:-2, 2:-2] += (fluxes[1][2:-2, 2:-2] - fluxes[1][2:-2, 1:-3]) / dy[2:-2, None]
        change[:, :, 0] += fluxes[2][:, :, 0] / dz[0]
        change[:, :, 1:] += (fluxes[2][:, :, 1:] - fluxes[2][:, :, :-1]) / dz[1:]
        return implicit(field + _STEP * change, upward, dz)


def implicit(right: Tensor, strength: Tensor, dz: Tensor) -> Tensor:
    """The column's tridiagonal systems, solved by a sweep up and one down."""
    low, middle, high = torch.zeros_like(right), torch.ones_like(right), torch.zeros_like(right)
    flow = _STEP / dz[:-1] * strength[:, :, :-1]
    low[:, :, 1:] = -flow / dz[1:]
    high[:, :, :-1] = -flow / dz[:-1]
    middle[:, :, 1:] += flow / dz[1:]
    middle[:, :, :-1] += flow / dz[:-1]
    above, value, made = (torch.zeros_like(right) for _ in range(3))
    above[:, :, 0], value[:, :, 0] = high[:, :, 0] / middle[:, :, 0], right[:, :, 0] / middle[:, :, 0]
    for k in range(1, right.shape[2]):
        scale = 1 / (middle[:, :, k] - low[:, :, k] * above[:, :, k - 1])
        above[:, :, k] = high[:, :, k] * scale
        value[:, :, k] = (right[:, :, k] - low[:, :, k] * value[:, :, k - 1]) * scale
    made[:, :, -1] = value[:, :, -1]
    for k in range(right.shape[2] - 2, -1, -1):
        made[:, :, k] = value[:, :, k] - above[:, :, k] * made[:, :, k + 1]
    return made


def mixing(x: int = 44, y: int = 44, z: int = 16) -> tuple[nn.Module, dict[str, Any]]:
    """The model and fields of a size that suits a CPU."""

    def field(*sizes: int) -> Tensor:
        return torch.rand(*sizes, dtype=torch.float64)

    sizes = (x, y, z)
    return Mixing(), {
        "heat": 15 + 10 * field(*sizes), "salt": 35 + field(*sizes), "mask": (field(*sizes) > 0.15).double(),
        "depth": 100 * field(z), "mixing": 1000 * field(*sizes), "dx": 1 + field(x), "dy": 1 + field(y), "dz": 1 + field(z),
    }  # fmt: skip
