"""What is known of a compiled graph's call before it is recorded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from braze.support.record import record


@record
class Refusal:
    """Why a graph is not recorded: a stable code, and the cause in words."""

    code: str
    why: str


@record
class Batch:
    """Where a call has the rows of its batch.

    ``inputs``: (place, dimension) of tensors of so many rows, the outermost in memory; ``numbers``: places of inputs that are the number of
    rows; ``outputs``: (place, dimension, entries for each row).
    """

    inputs: tuple[tuple[int, int], ...]
    numbers: tuple[int, ...]
    outputs: tuple[tuple[int, int, int], ...]


@record
class Plan:
    """A call ``call(inputs) -> outputs`` of one device, by places among its inputs.

    ``tensors``: the tensors; the others are whole numbers, which a recording holds as they are. ``sizes``: where the sizes
    that vary are found, as (input, dimension), or (input, -1) for a number. ``varying``: tensors whose
    layout varies. ``constants``: parameters, buffers, and what the graph holds itself, which keep their addresses as a rule.
    ``fixed``: those that the graph writes or sees memory around, so that no copy can stand for them; ``written``: whether
    it writes any. ``draws``: the graph draws random numbers, or calls the program's operators. ``consumes``: the call empties its list
    of inputs. ``kernels``: tensors that only kernels of ours read. ``products``: libraries may multiply matrices in it. ``values``: bytes of
    its larger intermediate values at most at once, as far as that is known.
    """

    name: str
    device: str
    tensors: tuple[int, ...]
    sizes: tuple[tuple[int, int], ...] = ()
    varying: tuple[int, ...] = ()
    constants: frozenset[int] = frozenset()
    fixed: frozenset[int] = frozenset()
    written: bool = False
    draws: bool = False
    consumes: bool = False
    kernels: frozenset[int] = frozenset()
    products: bool = True
    values: int = 0


@record
class Plans:
    """What of a graph's call is recorded: the whole, or its parts by their numbers."""

    whole: Plan | None = None
    parts: tuple[tuple[int, Plan], ...] = ()


_SETS = ("constants", "fixed", "kernels")


def as_data(plans: Plans) -> dict[str, Any]:
    """Plans as JSON has them."""
    whole = None if plans.whole is None else _plan_as_data(plans.whole)
    return {"whole": whole, "parts": [[number, _plan_as_data(plan)] for number, plan in plans.parts]}


def plans_of(data: Mapping[str, Any]) -> Plans:
    """What :func:`as_data` was given. KeyError, TypeError or ValueError for anything else."""
    whole = None if data["whole"] is None else _plan_of(data["whole"])
    return Plans(whole, tuple((int(number), _plan_of(plan)) for number, plan in data["parts"]))


def _plan_as_data(plan: Plan) -> dict[str, Any]:
    return {**dataclasses.asdict(plan), **{name: sorted(getattr(plan, name)) for name in _SETS}}


def _plan_of(data: Mapping[str, Any]) -> Plan:
    sets = {name: frozenset(data[name]) for name in _SETS}
    sizes = tuple((int(i), int(dim)) for i, dim in data["sizes"])
    tuples = {"tensors": tuple(data["tensors"]), "varying": tuple(data["varying"]), "sizes": sizes}
    return Plan(**{**data, **sets, **tuples})
