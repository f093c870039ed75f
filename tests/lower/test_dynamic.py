"""Symbolic sizes: one program serves every size, with its sizes found on the inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from braze.graph.sizes.numbers import ALLOWED
from braze.lower.values import scalars
from tests.lower.conftest import check

# the tests' own tracer leaves sizes in the graph as they are
pytestmark = pytest.mark.filterwarnings("ignore:Raw SymInt value")


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, s, _ = x.shape
    q, k, v = (x @ w).view(b, s, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    scores = q @ k.transpose(-1, -2) * 0.5
    mask = torch.arange(s)[None, :] <= torch.arange(s)[:, None]
    scores = scores.masked_fill(~mask, float("-inf"))
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    p = e / e.sum(-1, keepdim=True)
    return (p @ v).transpose(1, 2).reshape(b, s, 8)


#: name -> function of a matrix with two symbolic sizes
CASES = {
    "pointwise": lambda x: x.relu() * 2 + 1,
    "broadcast": lambda x: x + x[:1] * x[:, :1],
    "reduce": lambda x: x.sum(0),
    "reduce_symbolic": lambda x: x.mean(1),
    "reduce_all": lambda x: x.var(),
    "view": lambda x: (x + 1).view(-1),
    "slice": lambda x: x[:, 1:] - x[:, :-1],
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "size_as_number": lambda x: x / x.shape[0] + x.shape[1],
    "arange": lambda x: x + torch.arange(x.shape[1]),
    "argmax": lambda x: x.argmax(),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(3, 1),
    "expand": lambda x: x[:, :1].expand(x.shape[0], x.shape[1]).reshape(-1),
    "halves": lambda x: torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(3, 8), (5, 16), (2, 40)])
def test_one_program_for_all_sizes(name: str, shape: tuple[int, int]) -> None:
    fn = CASES[name]
    x = torch.randn(4, 24)
    check(fn, x, dynamic=[(0, 0), (0, 1)], at=[torch.randn(shape)])


@pytest.mark.parametrize("batch", [2, 3, 7])
@pytest.mark.parametrize("length", [5, 9])
def test_attention_with_symbolic_batch_and_length(batch: int, length: int) -> None:
    w = torch.randn(8, 24)
    check(
        attention, torch.randn(4, 6, 8), w, constants=[1], dynamic=[(0, 0), (0, 1)],
        at=[torch.randn(batch, length, 8), w], allow=["aten.bmm.default"] * 2,
    )  # fmt: skip


def test_embedding_of_symbolic_length() -> None:
    table, position = torch.randn(10, 4), torch.randn(30, 4)
    check(
        lambda i, w, p: F.embedding(i, w) + p[: i.shape[1]], torch.ones(2, 5, dtype=torch.int64), table, position,
        dynamic=[(0, 0), (0, 1)], at=[torch.randint(0, 10, (3, 7)), table, position],
    )  # fmt: skip


def test_sizes_are_found_on_inputs() -> None:
    program = check(lambda x: x + 1, torch.randn(4, 6), dynamic=[(0, 1)], at=[torch.randn(4, 9)])
    ((source),) = program.sizes
    assert (source.input, source.dim) == (0, 1)


def test_only_functions_that_graphs_may_hold_are_lowered() -> None:
    assert set(scalars.OPERATIONS) <= ALLOWED
