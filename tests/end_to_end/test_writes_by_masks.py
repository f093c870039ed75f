"""What is written where a mask says goes backward in the graph: what is written tells how many places there are, or is one for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.support import log

Tensor = torch.Tensor
MASK = torch.tensor([[True, False, True], [False, False, True]])
NONE = torch.zeros(2, 3, dtype=torch.bool)


def each(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x[mask] = v
    return x


def one_for_all(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x[mask] = v.sum()
    return x


def one_row_for_all(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x[mask[:, 0]] = v
    return x


def columns(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x[:, mask[0]] = v[:2]
    return x


def one_for_all_columns(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x[:, mask[0]] = v[:2, None]
    return x


def through_a_view(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x.t()[mask.t()] = v
    return x


def added(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x.index_put_((mask,), v, accumulate=True)
    return x


def rows_of_more(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
    x = torch.stack([x, x * 2], -1)
    x[mask] = torch.stack([v, v.sin()], -1)
    return x


WRITES = [
    each,
    one_for_all,
    one_row_for_all,
    columns,
    one_for_all_columns,
    through_a_view,
    added,
    rows_of_more,
]


def told(f: Callable[..., Any], mask: Tensor, count: int = 3) -> list[Any]:
    x = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(2, 3).requires_grad_()
    v = torch.tensor([3.0, -1.0, 0.5, 2.0, 7.0], dtype=torch.float64)[:count].requires_grad_()
    made = f(x * 2, mask, v * 1).sin()
    (made * torch.arange(1.0, 1.0 + made.numel(), dtype=torch.float64).view(made.shape)).sum().backward()
    return [made.detach(), x.grad, v.grad]


@pytest.mark.parametrize("f", WRITES)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_written_by_a_mask_has_eagers_gradient_in_the_graph(
    f: Callable[..., Any], backend: str, dynamic: bool
) -> None:
    compiled = braze.compile(f, backend=backend, dynamic=dynamic)
    heard: list[str] = []
    with log.listen(heard.append):
        for mask in (MASK, MASK.flip(0) if f not in (columns, one_for_all_columns) else MASK):
            for ours, theirs in zip(told(compiled, mask), told(f, mask), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert not [message for message in heard if "BZ2" in message]


def test_other_numbers_of_places_are_other_sizes() -> None:
    compiled = braze.compile(each)
    for mask, count in ((MASK, 3), (~MASK & (MASK.flip(0) | ~MASK), 3), (MASK | ~MASK[:1], 5)):
        assert mask.sum() == count
        for ours, theirs in zip(told(compiled, mask, count), told(each, mask, count), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("f", [one_for_all, one_row_for_all])
def test_one_for_all_is_written_nowhere_where_the_mask_is_nowhere(f: Callable[..., Any]) -> None:
    compiled = braze.compile(f)
    for mask in (MASK, NONE):
        for ours, theirs in zip(told(compiled, mask), told(f, mask), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mask", [NONE, ~NONE])
def test_a_mask_of_another_count_is_refused_as_in_eager(mask: Tensor) -> None:
    compiled = braze.compile(each)
    told(compiled, MASK)
    with pytest.raises(RuntimeError, match="shape mismatch") as theirs:
        told(each, mask)
    with pytest.raises(RuntimeError, match="shape mismatch") as ours:
        told(compiled, mask)
    assert str(ours.value).split("\n")[0] == str(theirs.value).split("\n")[0]


@pytest.mark.parametrize(
    ("mask", "value"),
    [
        (torch.ones(2, 1, dtype=torch.bool), torch.tensor(1.0)),
        (torch.ones(1, dtype=torch.bool), torch.tensor(1.0)),
        (MASK[:, 0], torch.ones(1, 2)),
        (MASK[:, 0], torch.ones(2, 1, 3)),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_eager_refuses_to_write_by_a_mask_is_refused(mask: Tensor, value: Tensor, dynamic: bool) -> None:
    """A mask of another shape would be broadcast by `where`, and so would what is wider."""

    def write(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        x = x * 2
        x[mask] = value
        return x

    x = torch.ones(2, 3)
    texts = []
    for call in (write, braze.compile(write, dynamic=dynamic)):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            call(x, mask, value)
        texts.append((type(caught.value), str(caught.value).split("\n")[0]))
    assert texts[0] == texts[1]


def test_one_number_for_all_places_of_a_mask_is_no_call_of_atens() -> None:
    def write(x: Tensor, mask: Tensor) -> Tensor:
        y = x * 2
        y[mask] = 0.0
        y[:, mask[0]] = -1.0
        return y + 1

    compiled = braze.compile(write)
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(compiled(x, MASK), write(x, MASK))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        compiled(x, MASK)
    operators = [e.key for e in seen.key_averages() if e.key.startswith("aten::")]
    assert not [name for name in operators if "index" in name or "nonzero" in name]
