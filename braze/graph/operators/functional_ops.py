"""Operators that write to their arguments, as operators that give what they would have written.

For a custom operator ``lib::op(Tensor(a!) out, Tensor x) -> Tensor`` one ``braze::lib_op_...(Tensor out, Tensor x) ->
(Tensor, Tensor)`` is registered when first wanted: it runs ``op`` on copies and gives its results, then the copies. Each
argument that may be written has a copy of its own, so that what the operator reads is never what it writes.
They are tagged as random operators are: nobody knows what else a custom operator does, so none is dropped, repeated,
merged with another or run out of order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from braze.graph.operators.operators import written_parameters
from braze.support.record import record

#: of each written parameter: -1 for a tensor, a number for a list of so many, None for one not given
Given = tuple[int | None, ...]


@record
class Functional:
    """``op`` is the functional form of ``original``, which writes ``written``: (position, name, Given)."""

    op: OpOverload
    original: OpOverload
    written: tuple[tuple[int, str, int | None], ...]
    results: int

    def with_copies(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], copy: Any
    ) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """The arguments with ``copy(value)`` for each value that is written, and those copies in order."""
        given, named = list(args), dict(kwargs)
        copies: list[Any] = []
        for position, name, count in self.written:
            if count is None:
                continue
            place: Any = (given, position) if position < len(given) and name not in named else (named, name)
            value = place[0][place[1]]
            made = copy(value) if count < 0 else [copy(v) for v in value]
            copies += [made] if count < 0 else made
            place[0][place[1]] = made
        return given, named, copies


_made: dict[tuple[OpOverload, Given], Functional] = {}
_by_op: dict[OpOverload, Functional] = {}


def functional_of(op: OpOverload, given: Given) -> Functional | None:
    """The functional form of a custom operator; None where it returns other memory that it was given than the first it writes."""
    returned = [r.alias_info for r in op._schema.returns if r.alias_info is not None]
    if returned and (
        len(op._schema.returns) > 1
        or returned[0].before_set != written_parameters(op)[0][1].alias_info.before_set
    ):
        return None
    found = _made.get((op, given))
    if found is None:
        found = _made[op, given] = _register(op, given)
        _by_op[found.op] = found
    return found


def original_of(op: Any) -> Functional | None:
    """What a functional form made here stands for."""
    return _by_op.get(op)


def _register(op: OpOverload, given: Given) -> Functional:
    name = "_".join((*op._schema.name.split("::"), op._overloadname, *map(str, given)))
    name = re.sub(r"\W", "_", name)
    signature = str(op._schema).partition("(")[2]  # the overload before it may be "Tensor", too
    text = re.sub(r"Tensor\([^)]*\)", "Tensor", signature)
    arguments = text[: text.rindex(") -> ")]
    own = not any(r.alias_info is not None for r in op._schema.returns) and op._schema.returns
    returns = text[text.rindex(") -> ") + 5 :].strip("()").split(", ") if own else []
    copies = sum(abs(n) for n in given if n is not None)
    returns += ["Tensor"] * copies
    qualified = f"braze::{name}"
    torch.library.define(
        qualified, f"({arguments}) -> ({', '.join(returns)})", tags=(torch.Tag.nondeterministic_seeded,)
    )
    written = tuple((i, p.name, n) for (i, p), n in zip(written_parameters(op), given, strict=True))
    results = len(returns) - copies

    def run(*args: Any, **kwargs: Any) -> Any:
        values, named, made = found.with_copies(args, kwargs, torch.clone)
        own = op(*values, **named)
        everything = (*((), (own,), own)[min(results, 2)], *made)
        return everything[0] if len(everything) == 1 else everything or None  # of nothing: PyTorch wants None

    torch.library.impl(qualified, "CompositeExplicitAutograd")(run)
    torch.library.register_fake(qualified)(run)
    overload = getattr(torch.ops.braze, name).default
    found = Functional(overload, op, written, results)
    return found
