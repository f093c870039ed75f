"""Gathers read what eager reads, and refuse what eager refuses."""

from __future__ import annotations

import pytest
import torch

from tests.loops.interpret import interpret
from tests.lower.conftest import check, lowered


def test_embedding() -> None:
    table = torch.randn(10, 4)
    check(torch.nn.functional.embedding, torch.tensor([[1, 2, 9], [0, 0, 3]]), table, exact=True)
    check(torch.nn.functional.embedding, torch.tensor([[1, 2, 9]], dtype=torch.int32), table, exact=True)
    check(torch.nn.functional.embedding, torch.zeros(0, 2, dtype=torch.int64), table, exact=True)
    check(lambda i, w: torch.nn.functional.embedding(i + 1, w) * 2, torch.tensor(3), table)


@pytest.mark.parametrize("index", [10, -1])
def test_embedding_out_of_range_raises(index: int) -> None:
    inputs = [torch.tensor([index]), torch.randn(10, 4)]
    with pytest.raises(IndexError):
        interpret(lowered(torch.nn.functional.embedding, inputs), inputs)


def test_gather() -> None:
    x = torch.randn(3, 5)
    check(lambda v, i: v.gather(1, i), x, torch.tensor([[0, 4], [2, 2]]), exact=True)
    check(lambda v, i: (v + 1).gather(0, i) * 2, x, torch.tensor([[0, 2, 1]]))
    check(lambda v, i: v.gather(-1, i), x.t(), torch.tensor([[0, 2], [1, 1]]), exact=True)


def test_index_select() -> None:
    x = torch.randn(3, 5, 2)
    check(lambda v, i: v.index_select(1, i), x, torch.tensor([4, 0, 4]), exact=True)
    check(lambda v, i: v.index_select(-1, i), x, torch.tensor([1], dtype=torch.int32), exact=True)


INDEXED = {
    "first": lambda v, i, j: v[i],
    "second": lambda v, i, j: v[:, i],
    "both": lambda v, i, j: v[i, j],
    "apart": lambda v, i, j: v[i, :, j],
    "broadcast": lambda v, i, j: v[i[:, None], j],
    "last": lambda v, i, j: v[..., j],
    "sliced": lambda v, i, j: v[1:, i],
    "with_new": lambda v, i, j: v[:, None, i],
    "with_number": lambda v, i, j: v[0, i, j],
    "of_computed": lambda v, i, j: (v + 1)[i] + v[j],
    "negative": lambda v, i, j: v[i - 3, -j],
}


@pytest.mark.parametrize("name", INDEXED)
def test_index_by_tensors(name: str) -> None:
    """Neighbouring indices stay in place, others move to the front; negative ones count from the end."""
    check(INDEXED[name], torch.randn(3, 4, 5), torch.tensor([0, 2, 1]), torch.tensor([1, 0, 2]))


COUNTED = {
    "rows": lambda i: torch.arange(12).view(3, 4)[i] * 2,
    "columns": lambda i: torch.arange(12).view(3, 4)[:, i] * 2,
    "turned": lambda i: torch.arange(12).view(3, 4).t().reshape(-1)[i] * 2,
    "a part": lambda i: torch.tril(torch.ones(3, 5, dtype=torch.int64), 1)[i] * 2,
}


@pytest.mark.parametrize("name", COUNTED)
def test_numbers_that_nobody_stored_are_made_for_the_places_that_are_read(name: str) -> None:
    """What counts along an index that is computed counts what was computed."""
    program = check(COUNTED[name], torch.tensor([0, 2, 1, -1]), exact=True)
    assert len(program.steps) == 1


def test_index_layout_of_a_permuted_tensor() -> None:
    check(lambda v, i: v[i], torch.randn(5, 4, 3).permute(2, 1, 0), torch.tensor([0, 2]), exact=True)


def test_index_out_of_range_raises() -> None:
    for index in (3, -4):
        inputs = [torch.randn(3, 2), torch.tensor([index])]
        with pytest.raises(IndexError):
            interpret(lowered(lambda v, i: v[i], inputs), inputs)


def test_writes_at_computed_places_are_atens() -> None:
    x, i, s = torch.randn(3, 5), torch.tensor([[0, 4], [2, 2], [1, 0]]), torch.randn(3, 2)
    check(lambda v, k, w: v.scatter(1, k, w), x, i, s, allow=["aten.scatter_.src"])
    check(lambda v, k, w: v.scatter_add(1, k, w), x, i, s, allow=["aten.scatter_add_.default"])
    check(lambda v, k, w: v.index_put((k[:, 0],), w[:, :1]), x, i, s, allow=["aten.index_put_.default"])


def test_slice_and_select_scatter() -> None:
    x, s = torch.randn(4, 6), torch.randn(4, 2)
    check(lambda v, w: torch.slice_scatter(v, w, 1, 2, 4), x, s, exact=True)
    check(lambda v, w: torch.slice_scatter(v, w, 1, 1, 5, 2), x, s, exact=True)
    check(lambda v, w: torch.slice_scatter(v, w, 1, -2), x, s, exact=True)
    check(lambda v, w: torch.select_scatter(v, w[:, 0], 1, -1), x, s, exact=True)
    check(lambda v, w: torch.select_scatter(v * 2, w[:, 0] * 3, 1, 2) + 1, x, s)


def test_gather_of_values_in_loss() -> None:
    """Log-probabilities picked by label."""

    def nll(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        top = logits.amax(-1, keepdim=True)
        log = logits - top - (logits - top).exp().sum(-1, keepdim=True).log()
        return -log.gather(1, labels[:, None]).mean()

    check(nll, torch.randn(4, 7), torch.tensor([0, 6, 3, 3]))


@pytest.mark.parametrize(("heads", "steps"), [(3, 2), (32, 1)])
def test_short_rows_are_looked_up_once_for_a_broadcast(heads: int, steps: int) -> None:
    """Biases by relative position for every window of a picture; long rows are read where they are used."""

    def biased(scores: torch.Tensor, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        bias = table[places.view(-1)].view(4, 4, heads)
        return scores + bias

    inputs = (torch.randn(8, 4, 4, heads), torch.randn(49, heads), torch.randint(0, 49, (4, 4)))
    assert len(check(biased, *inputs).steps) == steps
