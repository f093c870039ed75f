"""The text of lowered programs runs and means what the interpreter says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.loops.interpret import interpret
from tests.loops.replay import replay
from tests.lower.conftest import _flat, lowered

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(5))

PROGRAMS: dict[str, tuple[Callable[..., object], list[torch.Tensor]]] = {
    "half": (lambda x: x.bfloat16() * 1.1 + x.bfloat16().exp(), [X]),
    "norm": (lambda x: (x - x.mean(1, keepdim=True)) * torch.rsqrt(x.var(1, keepdim=True) + 1e-5), [X]),
    "gather": (
        lambda x, i: x[i] + F.embedding(i + 3, x.t()).sum(-1, keepdim=True),
        [X, torch.tensor([-1, -2, 0])],
    ),
    "pad": (lambda x: F.pad(1 / x, (1, 2, 0, 1), value=2.0), [X]),
    "cat": (lambda x: torch.cat([x[:, 2:], -x[:, :2], x], 1).relu(), [X]),
    "integers": (lambda x: ((x * 100).int() // 7, (x * 100).to(torch.int8) * 3, (x * 9).long() % 5), [X]),
    "tests": (lambda x: ((x > 0).any(1), (x > 0).all(0), x.isnan() | (x < 0.5)), [X]),
    "extrema": (lambda x: (x.argmax(1), x.amin(), *x.max(0)), [X]),
    "strided": (lambda x: (x.t() + 1).reshape(2, 6)[:, ::2], [X]),
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [X, torch.randn(5, 4), torch.randn(5)]),
    "bits": (lambda x: x.view(torch.int32) >> 3, [X]),
    "calls": (lambda x: x.topk(2)[0] + x.cumsum(0)[:, :2], [X]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_running_the_text(name: str) -> None:
    fn, inputs = PROGRAMS[name]
    program = lowered(fn, inputs, constants=[1, 2])
    for a, b, e in zip(replay(program, inputs), interpret(program, inputs), _flat(fn(*inputs)), strict=True):
        assert a.dtype == b.dtype == e.dtype
        torch.testing.assert_close(a, b)
        torch.testing.assert_close(a, e)
