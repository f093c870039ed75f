"""Fourier transforms lie as eager's, for inputs that are turned, cut, repeated, and of dims of one element."""

from __future__ import annotations

import random

import pytest
import torch

import braze
from braze.graph.rules import fourier_rules
from tests.graph.test_metadata import meta

aten = torch.ops.aten


def drawn(rng: random.Random) -> torch.Tensor:
    rank = rng.randint(1, 5)
    x = torch.zeros([rng.choice((1, 1, 2, 3, 4)) for _ in range(rank)])
    x = x.permute(rng.sample(range(rank), rank))
    how = rng.randint(0, 4)
    if how == 0:
        x = x[..., :1].expand(*x.shape[:-1], 3)
    elif how == 1:
        x = x[:1].expand(4, *x.shape[1:])
    elif how == 2:
        x = x[-1:]
    return x


@pytest.mark.parametrize("seed", range(4))
def test_transforms_lie_as_eagers(seed):
    rng, told = random.Random(seed), 0
    for _ in range(500):
        x = drawn(rng)
        dims = rng.sample(range(x.dim()), rng.randint(1, x.dim()))
        real, whole = x, x.to(torch.complex64)
        if x.stride() != whole.stride():  # a cast has memory of its own
            whole = torch.zeros(64**2, dtype=torch.complex64).as_strided(x.shape, x.stride())
        for op, given, more in (
            (aten._fft_r2c.default, real, [0, rng.random() < 0.7]),
            (aten._fft_c2c.default, whole, [0, rng.random() < 0.5]),
            (aten._fft_c2r.default, whole, [0, 2 * max(whole.shape[dims[-1]] - 1, 1)]),
        ):
            if op is aten._fft_c2r.default and whole.shape[dims[-1]] < 2:
                continue
            want = op(given, dims, *more)
            got = fourier_rules.TRANSFORMS[op](meta(given), dims, *more)
            told += 1
            assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype), (
                op, given.shape, given.stride(), dims,
            )  # fmt: skip
    assert told > 1000


TURNED = [
    lambda: torch.rand(3, 3, 33).movedim(-1, 0),
    lambda: torch.rand(1, 3, 7, 3).expand(4, 3, 7, 3),
    lambda: torch.rand(4, 6, 9, 2).movedim(-1, 0),
    lambda: torch.rand(5, 4, 3)[1:, ::2],
]

PROGRAMS = {
    "rfft": lambda x: torch.fft.rfft(x),
    "there and back": lambda x: torch.fft.irfft(torch.fft.rfft(x)).mT,
    "sizes": lambda x: torch.fft.rfft(x).abs(),
    "fft": lambda x: torch.fft.fft(x),
    "of the first dim": lambda x: torch.fft.rfft(x, dim=0),
    "of two": lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
    "of two, in an order": lambda x: torch.fft.fftn(x * (1 - 2j), dim=(1, 0)),
    "to reals": lambda x: torch.fft.irfftn(x * (1 - 2j), dim=(1, 0)),
    "hfft": lambda x: torch.fft.hfft(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_transforms_lie_as_eagers(name, backend, dynamic):
    """Of sizes that vary PyTorch's fakes before 2.13 took results for rows in their order."""
    braze.reset()
    compiled = braze.compile(PROGRAMS[name], backend=backend, dynamic=dynamic, options={"verify": 2})
    for make in TURNED:
        x = make()
        found, wanted = compiled(x), PROGRAMS[name](x)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
