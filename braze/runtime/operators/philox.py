"""Random numbers as a function of a seed and a place: Philox-4x32-10 (Salmon et al. 2011).

``braze::uniform(seed, size)`` is the operator that decompositions write: the kernels of loops compute it in registers, and
a backward can make the same numbers again. Its kernel here is the reference, in NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_FACTORS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_STEPS = (0x9E3779B9, 0xBB67AE85)


def philox(seed: int, offset: Array) -> tuple[Array, Array]:
    """The first two of the four 32-bit words at each offset, as unsigned 64-bit numbers."""
    place = np.asarray(offset).astype(np.int64).view(np.uint64)
    c0, c1 = place & _LOW, place >> _HALF
    c2 = c3 = np.zeros_like(place)
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        a, b = _FACTORS[0] * c0, _FACTORS[1] * c2
        k0, k1 = np.uint64(key[0]), np.uint64(key[1])
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ k0, b & _LOW, (a >> _HALF) ^ c3 ^ k1, a & _LOW
        key = [(k + step) & 0xFFFFFFFF for k, step in zip(key, _STEPS, strict=True)]
    return c0, c1


def uniform(seed: int, offset: Array) -> Array:
    """Numbers in [0, 1) of 24 bits."""
    return (philox(seed, offset)[0] >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)


def normal(seed: int, offset: Array) -> Array:
    """Numbers of the standard normal distribution, by Box and Muller's transform."""
    first, second = philox(seed, offset)
    u = ((first >> np.uint64(8)).astype(np.float64) + 1) * 2.0**-24
    angle = (second >> np.uint64(8)).astype(np.float64) * 2.0**-24 * 2 * np.pi
    return (np.sqrt(-2 * np.log(u)) * np.cos(angle)).astype(np.float32)


_library = torch.library.Library("braze", "DEF")
_library.define("uniform(Tensor seed, SymInt[] size) -> Tensor")


def _uniform(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    count = int(np.prod(size, dtype=np.int64))
    made = uniform(int(seed), np.arange(count)).reshape(tuple(size))
    return torch.from_numpy(made).to(seed.device)


def _shaped(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return torch.empty(size, dtype=torch.float32, device=seed.device)


_library.impl("uniform", _uniform, "CPU")
_library.impl("uniform", _uniform, "CUDA")
_library.impl("uniform", _shaped, "Meta")

#: one uniform number in [0, 1) per element; the same for the same seed
UNIFORM = torch.ops.braze.uniform.default
