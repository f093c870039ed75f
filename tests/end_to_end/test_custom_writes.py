"""Custom operators that write to their arguments, in compiled graphs: nothing of them is known but their schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from tests.end_to_end.writes import hold_to_eager, numbers
from tests.helpers import logged

Tensor = torch.Tensor
CALLS: list[str] = []


@torch.library.custom_op("writes::clear_and_add", mutates_args={"out"})
def clear_and_add(out: Tensor, x: Tensor) -> None:
    """Reads ``x`` after it has written ``out``: shows where both are one memory."""
    CALLS.append("clear_and_add")
    out.zero_()
    out.add_(x)


@torch.library.custom_op("writes::both", mutates_args={"a", "b"})
def both(a: Tensor, b: Tensor) -> Tensor:
    CALLS.append("both")
    a.add_(1)
    b.mul_(2)
    return a + b


@both.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return torch.empty_like(a)


@torch.library.custom_op("writes::scale", mutates_args={"a"})
def scale(a: Tensor, b: Tensor | None = None, factor: float = 2.0) -> None:
    CALLS.append("scale")
    a.mul_(factor)
    if b is not None:
        a.add_(b)


@torch.library.custom_op("writes::add_to_all", mutates_args={"xs"})
def add_to_all(xs: list[Tensor], y: Tensor) -> None:
    CALLS.append("add_to_all")
    for x in xs:
        x.add_(y)


for each in (clear_and_add, scale, add_to_all):
    each.register_fake(lambda *args, **kwargs: None)

_library = torch.library.Library("writes_by_schema", "DEF")
_library.define("increase(Tensor(a!) x, Tensor y) -> Tensor(a!)")
_library.define("maybe(Tensor(a!) x, Tensor(b!)? y) -> ()")
_library.define("noted(Tensor x, Tensor(a!)? kept) -> ()")
_library.define("rows(Tensor(a) x) -> Tensor(a)")


def _noted(x: Tensor, kept: Tensor | None) -> None:
    CALLS.append("noted")
    if kept is not None:
        kept.add_(x.sum())


def _maybe(x: Tensor, y: Tensor | None) -> None:
    x.add_(1)
    if y is not None:
        y.mul_(3)


_library.impl("increase", lambda x, y: x.add_(y), "CompositeExplicitAutograd")
_library.impl("maybe", _maybe, "CompositeExplicitAutograd")
_library.impl("noted", _noted, "CompositeExplicitAutograd")

ops = torch.ops.writes
by_schema = torch.ops.writes_by_schema


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    CALLS.clear()
    yield
    braze.reset()


def copy_and_source(x, y):
    """The published failure of a dropped clone: the operator read what it had just cleared."""
    z = x.clone()
    ops.clear_and_add(z, x)
    return z, x * 1


def two_copies_of_one(x, y):
    z, w = x.clone(), x.clone()
    ops.clear_and_add(z, w)
    return z, w


def two_copies_both_written(x, y):
    z, w = x.clone(), x.clone()
    return ops.both(z, w), z, w


def equal_values_both_written(x, y):
    """Merged where equal nodes are computed once: the two would be written as one."""
    a, b = x + 1, x + 1
    return ops.both(a, b), a, b


def equal_zeros_both_written(x, y):
    a, b = torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    return ops.both(a, b), a, b


def inputs(x, y):
    return ops.both(x, y)


def halves_of_one(x, y):
    b = x * 2
    return ops.both(b[:3], b[3:]), b


def columns_of_one(x, y):
    b = torch.stack([x, y], 1) * 1
    return ops.both(b[:, 0], b[:, 1]), b


def views_of_inputs(x, y):
    ops.scale(x[::2], y[::2])
    return x + y


def optional_and_default(x, y):
    z = x.clone()
    ops.scale(z)
    ops.scale(z, y, factor=3.0)
    return z


def a_list(x, y):
    z = x.clone()
    w = z + 1
    ops.add_to_all([z, w], y)
    return z, w


def a_list_of_inputs(x, y):
    ops.add_to_all([x, y], torch.ones(6, dtype=torch.float64))
    return x * 1


def returns_what_it_writes(x, y):
    z = x * 1
    by_schema.increase(z, y).mul_(2)
    return z


def optional_written(x, y):
    by_schema.maybe(x, None)
    by_schema.maybe(x, y)
    return x + y


def nothing_to_write(x, y):
    """Neither a tensor that may be left out nor one of a list."""
    z = x * 2
    by_schema.noted(z, None)
    ops.add_to_all([], z)
    by_schema.noted(z, y)
    return z + y


def in_order(x, y):
    z = x * 1
    ops.clear_and_add(z, y)
    a = z + 1
    ops.scale(z)
    b = z + 1
    ops.clear_and_add(z, a)
    return a, b, z


def nobody_reads(x, y):
    ops.scale(x.clone())
    return y + 1


def written_twice_alike(x, y):
    a, b = torch.zeros_like(x), torch.zeros_like(x)
    ops.clear_and_add(a, x)
    ops.clear_and_add(b, x)
    return a, b


def result_written_in_part(x, y):
    """Through views of what an operator returned besides its writes."""
    made = ops.both(x.clone(), y.clone())
    made[0] = 5.0
    made[2:4].mul_(3)
    return made, made[1:].view(-1)


PROGRAMS = [
    copy_and_source, two_copies_of_one, two_copies_both_written, equal_values_both_written,
    equal_zeros_both_written, inputs, halves_of_one, columns_of_one, views_of_inputs, optional_and_default, a_list,
    a_list_of_inputs, returns_what_it_writes, optional_written, nothing_to_write, in_order, nobody_reads, written_twice_alike,
    result_written_in_part,
]  # fmt: skip


def make() -> list[Tensor]:
    return [numbers(6), numbers(6, seed=1)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_custom_write_is_compiled_and_right(program: Callable[..., Any], backend: str) -> None:
    compiled = braze.compile(program, backend=backend, fullgraph=True, options={"verify": 2})
    with logged() as said:
        for _ in range(2):
            hold_to_eager(compiled, program, make)
    assert not [m for m in said if "as captured" in m]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_custom_operator_runs_as_often_as_in_eager(program: Callable[..., Any]) -> None:
    """None is dropped, merged with another or run out of order."""
    with torch.no_grad():
        program(*make())
        theirs = CALLS.copy()
        compiled = braze.compile(program, fullgraph=True)
        compiled(*make())
        CALLS.clear()
        compiled(*make())
    assert theirs == CALLS


def same_twice(x, y):
    b = x * 2
    return ops.both(b, b), b


def overlapping(x, y):
    b = x * 2
    return ops.both(b[:4], b[2:]), b


def written_and_read(x, y):
    b = x * 2
    ops.clear_and_add(b, b)
    return b


@pytest.mark.parametrize("program", [same_twice, overlapping, written_and_read], ids=lambda p: p.__name__)
def test_arguments_that_share_memory_run_as_captured(program: Callable[..., Any]) -> None:
    """What such an operator does depends on its order of reads and writes, which is its own."""
    compiled = braze.compile(program, fullgraph=True)
    with logged() as said:
        hold_to_eager(compiled, program, make)
    assert [m for m in said if "BZ2027" in m]


def test_gradients_flow_around_a_custom_write():
    def step(x, y):
        z = torch.zeros_like(x)
        with torch.no_grad():
            ops.clear_and_add(z, y.detach())
        return (x * z).sum()

    compiled = braze.compile(step, fullgraph=True)
    hold_to_eager(compiled, step, make, grad=True)
