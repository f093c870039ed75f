"""Numbers and arrays of numpy: as arguments, of shapes, made inside, handed on."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.end_to_end.conformance import case, scenario

X = torch.arange(6.0).reshape(2, 3)
whole = functools.partial(case, whole=True)


@whole(
    (X, np.float64(2.5)),
    (X, np.float32(1.5)),
    (X, np.float64(-0.0)),
    (X, np.float64(0.0)),
    (X, np.bool_(True)),
)
def numbers_of_numpy_as_arguments(x, k):
    return x * k, k * x, x + float(k), 1 / (x + 1) ** k, torch.tensor(k), torch.tensor([k, k]), k


@whole((X, np.int64(3)), (X, np.int64(2)), (X, np.uint8(6)))
def sizes_of_numpy(x, n):
    return (
        x.reshape(int(n), -1),
        x.reshape(n, -1),
        torch.zeros(n),
        x[: n - 1],
        list(range(n)),
        torch.full((2,), n),
    )


@whole((X,), (X[:1],), kernels=True)
def numpy_of_shapes(x):
    count = np.prod(x.shape)
    return (
        x.reshape(int(count)) / np.sqrt(x.shape[-1]) + np.log2(8.0) + np.pi,
        np.ceil(2.1),
        int(np.maximum(3, 4)),
    )


@whole((X,))
def arrays_that_only_the_trace_knows(x):
    for rate in np.linspace(0, 1, 3):
        x = x + float(rate)
    table = np.arange(6).reshape(2, 3)
    sizes = np.array([1, 2]) * 2
    return (
        x + torch.tensor(table),
        x + torch.from_numpy(np.arange(3, dtype=np.float32)),
        int(sizes.sum()),
        sizes.tolist(),
    )


@case((X,))
def arrays_handed_on(x):
    fresh = np.arange(3.0)
    fresh[0] = 7
    held = np.ones(3, dtype=np.float32)
    shared = torch.from_numpy(held)
    shared.add_(1)
    return x + shared, held, fresh, np.zeros((2, 2))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = np.sqrt(8.0)
        self.rates = list(np.linspace(0, 0.5, 3))

    def forward(self, x):
        for rate in self.rates:
            x = F.dropout(x, rate, False) * (1 - rate)
        return x * self.scale


@scenario
def modules_with_numbers_of_numpy(c):
    model = Scaled()
    f = c(model)
    yield f(X)
    model.scale = np.float64(3)
    yield f(X)
    model.rates[1] = np.float64(0.75)
    yield f(X)
