"""Symbols that only the data tell, between the captured graph and its ATen graph.

An operator that is run again makes a new symbol; it is let be known as the one that capture made, so that all that capture
assumed and checked of it holds here too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.graph.private import torch_compat, torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.graph.sizes.numbers import FOLDED, QUESTIONS
from braze.symbolic import names

if TYPE_CHECKING:
    from braze.aot.facts.symbols import SymbolNodes

aten = torch.ops.aten
READ = aten._local_scalar_dense.default
CHECK = aten._assert_scalar.default

#: functions of a captured condition that are copied as they stand
COPIED = frozenset(
    {
        *QUESTIONS.values(),
        *FOLDED.values(),
        operator.floordiv,
        operator.mod,
        operator.sub,
        operator.truediv,
    }
)
#: what a fake remembers of its data: not to be trusted below autograd, where writes are not counted
MEMOS = ("item_memo", "nonzero_memo", "unique_memo", "unique_consecutive_memo")


def forget(args: Any) -> None:
    """Let an operator make new symbols, as each call of it does."""
    for value in args:
        if isinstance(value, torch.Tensor):
            for name in MEMOS:
                if hasattr(type(value), name):
                    setattr(value, name, None)
        elif isinstance(value, (list, tuple)):
            forget(value)


def settle(env: Any, captured: Any, value: Any, symbols: SymbolNodes | None = None) -> None:
    """Let the symbols that a run has made be known as those that an earlier one made in the same places."""
    if env is None:
        return
    if isinstance(captured, SYMBOLIC) and isinstance(value, SYMBOLIC):
        _same(env, captured.node._expr, value.node._expr, symbols)
    elif isinstance(captured, torch.Tensor) and isinstance(value, torch.Tensor):
        for a, b in zip(captured.shape, value.shape, strict=False):
            if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and a.node.shape_env is env:
                _same(env, a.node._expr, b.node._expr, symbols)
    elif isinstance(captured, (tuple, list)) and isinstance(value, (tuple, list)):
        for a, b in zip(captured, value, strict=False):
            settle(env, a, b, symbols)


def _same(env: Any, known: Any, made: Any, symbols: SymbolNodes | None) -> None:
    if names.name_of(known) == names.name_of(made) == names.EQUALITY:
        known, made = names.number_of(known), names.number_of(made)
    if known == made or not (known.is_Symbol and made.is_Symbol):
        return
    if torch_symbols.is_unbacked_symbol(known) and torch_symbols.is_unbacked_symbol(made):
        known = torch_symbols.first_name(env, known)
        if made != known and made not in env.replacements:
            torch_symbols.rename_unbacked(env, made, known)
            if symbols is not None:
                symbols.rename(made, known)


def check(symbols: SymbolNodes, graph: torch.fx.Graph, node: torch.fx.Node, env: Mapping[Any, Any]) -> Any:
    """A captured check, with its condition as it was written: the trace's own would be that it holds."""
    holds, message = node.args
    made = graph.call_function(CHECK, (_copied(symbols, graph, holds, env), message))
    made.meta["val"] = None
    return made


def _copied(symbols: SymbolNodes, graph: torch.fx.Graph, part: Any, env: Mapping[Any, Any]) -> Any:
    if not isinstance(part, torch.fx.Node):
        return part
    if part.op == "call_function" and part.target in COPIED:
        args = tuple(_copied(symbols, graph, a, env) for a in part.args)
        made = graph.call_function(part.target, args)  # type: ignore[arg-type]
        made.meta["val"] = part.meta["val"]
        return made
    return symbols.raw(env[part])


def sizes_of_views(inputs: Iterable[Any], outputs: Sequence[Any]) -> list[torch.SymInt]:
    """The symbols that only the data tell, by which outputs that are views are to be rebuilt: one number each."""
    taken = {torch_compat.storage_key(v) for v in inputs if isinstance(v, torch.Tensor)}
    shared: set[int] = set(taken)
    for value in outputs:
        if isinstance(value, torch.Tensor):
            key = torch_compat.storage_key(value)
            (shared if key in taken else taken).add(key)
    found: dict[Any, torch.SymInt] = {}
    for value in outputs:
        if isinstance(value, torch.Tensor) and torch_compat.storage_key(value) in shared:
            for extent in (*value.shape, *value.stride(), value.storage_offset()):
                if isinstance(extent, torch.SymInt) and torch_symbols.is_unbacked(extent):
                    env = extent.node.shape_env
                    for symbol in extent.node.expr.free_symbols:
                        if torch_symbols.is_unbacked_symbol(symbol):
                            found.setdefault(symbol, env.create_symintnode(symbol, hint=None))
    return list(found.values())
