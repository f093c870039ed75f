"""What an operator does to metadata, remembered: key of the arguments -> how to build the result.

A recipe says for each result whether it is fresh, a view of an argument, of an earlier result, the argument itself or a plain
value, so a hit reproduces sharing of storage too. Not remembered: fakes that carry a known constant, results
whose storage is larger than themselves, those that are of two arguments at once (``broadcast_tensors(x, x)``): of which one
another call's are, the key does not tell.

Sizes that are symbols stand in keys as their expressions. What came of such a call holds in its own trace alone, where the
guards that it asked for are in force already, and is kept by the mode. A hit makes no symbolic arithmetic at
all: a fresh tensor is told its sizes and its storage's, where ``torch.empty`` would derive them (0.2 ms).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph.private import torch_compat, torch_nodes
from braze.support import trace
from braze.support.layouts import span

MISS = object()
#: entries kept before the table is emptied
LIMIT = 50_000

#: types of constants that may stand in a key as they are
_BY_VALUE = frozenset(
    {str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None), type(...)}
)
_NUMBERS = frozenset({int, bool, float, complex})

_NEW, _VIEW, _ARGUMENT, _SIBLING, _PLAIN, _TUPLE, _LIST, _SYMBOLIC = range(8)
#: recipes of results that share no memory with an argument
ALONE = frozenset({_NEW, _PLAIN, _SYMBOLIC})

#: sizes and numbers that may be expressions over symbols
_SYMBOLS = frozenset({torch.SymInt, torch.SymBool})


class OfTrace(tuple[Any, ...]):
    """A key in which symbols stand: it means something in one trace only."""

    __slots__ = ()


class Memo:
    """One table: at torch-function level or at ATen level."""

    def __init__(self) -> None:
        self._table: dict[Any, Any] = {}
        self.hits = 0

    def clear(self) -> None:
        self._table.clear()

    def key(
        self,
        mode: Any,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        state: Any,
        *,
        constants: bool = False,
    ) -> Any:
        """The key of a call, or None if it cannot be remembered.

        ``constants``: as if nobody knew what a known constant holds, to tell what kind of call it is, not to remember it.
        """
        if not torch_compat.made_fakes.holds():
            return None
        parts: list[Any] = [func, state]
        if not _add_all(parts, mode, args, constants):
            return None
        if kwargs:
            for name, value in kwargs.items():
                parts.append(name)
                if not _add(parts, mode, value, constants):
                    return None
        if len(parts) == 2 or FakeTensor not in parts:
            # factories: the default device counts too
            parts.append(torch.get_default_device())
        return tuple(parts) if mode.shape_env is None or torch.SymInt not in parts else OfTrace(parts)

    def _entries(self, mode: Any, key: Any) -> dict[Any, Any]:
        """The table that a key belongs in."""
        return mode.symbolic_memos.setdefault(id(self), {}) if type(key) is OfTrace else self._table

    def recipe(self, mode: Any, key: Any) -> Any:
        """How the result is made, or None where that is not known."""
        try:
            return self._entries(mode, key).get(key)
        except TypeError:  # an argument of unhashable type
            return None

    def made(self, mode: Any, recipe: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result by recipe."""
        self.hits += 1
        if recipe[0] == _NEW:
            return _build_new(mode, recipe)
        if recipe[0] == _SYMBOLIC:
            return _build_symbolic(mode, recipe)
        return _rebuild(mode, recipe, fakes_in(args, kwargs) if recipe[0] != _PLAIN else (), [])

    def recall(self, mode: Any, key: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result by recipe, or MISS."""
        recipe = self.recipe(mode, key)
        return self.made(mode, recipe, args, kwargs) if recipe is not None else MISS

    def store(
        self, mode: Any, key: Any, args: Any, kwargs: dict[str, Any], result: Any, *, mutates: bool
    ) -> None:
        """Remember what came out, unless it cannot be said by a recipe."""
        if mutates or key[0] in torch_nodes.BY_MEMORY:
            return
        try:
            hash(key)
        except TypeError:
            return
        symbols = _symbols_of(key) if type(key) is OfTrace else _NONE
        recipe = _describe(result, _Places(fakes_in(args, kwargs)), symbols)
        if recipe is None:
            return
        table = self._entries(mode, key)
        if len(table) >= LIMIT:
            table.clear()
            trace.count("memo_emptied")
        table[key] = recipe


def _add_all(parts: list[Any], mode: Any, values: Any, constants: bool) -> bool:
    return False not in [
        _add(parts, mode, value, constants) for value in values
    ]  # a generator would be slower


def _add(parts: list[Any], mode: Any, value: Any, constants: bool) -> bool:
    """Append what the metadata of the result may depend on; False where that cannot be said."""
    kind = type(value)
    if kind is FakeTensor:
        if value.fake_mode is not mode or (value.constant is not None and not constants):
            return False
        geometry = (value.shape, value.stride(), value.storage_offset())
        if mode.shape_env is not None and not _static(value):
            parts.append(torch.SymInt)
            geometry = tuple([_expression(n) for n in (*geometry[0], *geometry[1], geometry[2])])
            if None in geometry:
                return False
        parts += (
            FakeTensor,
            geometry,
            value.dtype,
            torch_compat.device_of_fake(value),
            value.requires_grad,
            value.is_conj(),
            value.is_neg(),
        )
        return True
    if kind in _NUMBERS:
        # the type tells True from 1 and 1.0; the sign matters in -0.0
        parts += (kind, value if kind is not float else value.hex())
        return True
    if kind in _BY_VALUE:
        parts.append(value)
        return True
    if kind is tuple or kind is list or kind is torch.Size:
        parts += (kind, len(value))
        return _add_all(parts, mode, value, constants)
    if kind is slice:
        parts.append(slice)
        return _add_all(parts, mode, (value.start, value.stop, value.step), constants)
    if kind in _SYMBOLS:
        expression = _expression(value)
        parts += (torch.SymInt, kind, (expression,))  # a tuple is unequal to a class without asking SymPy
        return expression is not None
    return False


def _expression(size: Any) -> Any:
    """What a size is, for a key: a number or the expression over symbols; None where neither says it."""
    if type(size) is int:
        return size
    return getattr(size.node, "_expr", None)


def _symbols_of(key: Any) -> frozenset[Any]:
    """The symbols in a key."""
    found: set[Any] = set()
    pending = list(key)
    while pending:
        part = pending.pop()
        if type(part) is tuple:
            pending += part
        elif hasattr(part, "free_symbols"):
            found |= part.free_symbols
    return frozenset(found)


def _static(fake: Any) -> bool:
    return all(type(n) is int for n in (*fake.shape, *fake.stride(), fake.storage_offset()))


def fakes_in(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The fakes among the arguments, in order."""
    found: list[Any] = []
    _collect(args, found)
    if kwargs:
        _collect(kwargs.values(), found)
    return found


def _collect(values: Any, found: list[Any]) -> None:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            found.append(value)
        elif kind is tuple or kind is list:
            _collect(value, found)


_NONE: frozenset[Any] = frozenset()


def _follows(size: Any, symbols: frozenset[Any]) -> bool:
    """Whether a size in a result is decided by the arguments: no symbol that the call made."""
    if type(size) is int:
        return True
    expression = _expression(size)
    return expression is not None and expression.free_symbols <= symbols


class _Places:
    """Which arguments a tensor may be, or share its memory with, and which results were made before: found at once, lists may be long."""

    def __init__(self, arguments: list[Any]) -> None:
        self.itself: dict[int, list[int]] = {}
        self.sharing: dict[int, list[int]] = {}
        self.made: dict[int, int] = {}
        for i, argument in enumerate(arguments):
            self.itself.setdefault(id(argument), []).append(i)
            self.sharing.setdefault(torch_compat.storage_key(argument), []).append(i)


def _describe(result: Any, places: _Places, symbols: frozenset[Any]) -> Any:
    """The recipe of a result, or None."""
    kind = type(result)
    if kind is FakeTensor:
        return _describe_tensor(result, places, symbols)
    if kind is tuple or kind is list:
        parts = [_describe(value, places, symbols) for value in result]
        if None in parts:
            return None
        return (_TUPLE if kind is tuple else _LIST, tuple(parts))
    if (
        kind is int
        or kind is bool
        or kind is float
        or result is None
        or kind is torch.dtype
        or kind is torch.Size
        or kind in _SYMBOLS
    ):
        numbers = result if kind is torch.Size else (result,) if kind in _SYMBOLS else ()
        return (_PLAIN, result) if all(_follows(n, symbols) for n in numbers) else None
    return None


def _describe_tensor(fake: Any, places: _Places, symbols: frozenset[Any]) -> Any:
    if itself := places.itself.get(id(fake)):
        return (_ARGUMENT, *itself) if len(itself) == 1 else None
    if fake.constant is not None or fake.is_conj() or fake.is_neg():
        return None
    static = not symbols or _static(fake)
    shape, strides, offset = tuple(fake.shape), fake.stride(), fake.storage_offset()
    if not all(_follows(n, symbols) for n in (*shape, *strides, offset)):
        return None
    if fake.requires_grad or fake.layout is not torch.strided or getattr(fake, "_is_param", False):
        return None
    storage = torch_compat.storage_key(fake)
    geometry = (shape, strides, offset, fake.dtype)
    if shared := places.sharing.get(storage):
        return (_VIEW, *shared, *geometry) if len(shared) == 1 else None
    if (sibling := places.made.get(storage)) is not None:
        return (_SIBLING, sibling, *geometry)
    places.made[storage] = len(places.made)
    if not static:
        # the storage's size is stored with the tensor, whatever it is
        nbytes = fake.untyped_storage().nbytes()
        kept = _follows(nbytes, symbols)
        return (_SYMBOLIC, *geometry, torch_compat.device_of_fake(fake), nbytes) if kept else None
    if offset or fake.untyped_storage().nbytes() != span(shape, strides) * fake.dtype.itemsize:
        return None
    return (_NEW, *geometry, torch_compat.device_of_fake(fake))


def _build_new(mode: Any, recipe: Any) -> Any:
    with torch_compat.outside_modes():
        meta = torch.empty_strided(recipe[1], recipe[2], dtype=recipe[4], device="meta")
        return torch_compat.assemble_fake(mode, meta, recipe[5], False)


def _build_symbolic(mode: Any, recipe: Any) -> Any:
    with torch_compat.outside_modes():
        _, shape, strides, offset, dtype, device, nbytes = recipe
        meta = torch_compat.told(shape, strides, offset, dtype, nbytes)
        return torch_compat.assemble_fake(mode, meta, device, False)


def _view(mode: Any, base: Any, shape: Any, strides: Any, offset: Any, dtype: torch.dtype) -> Any:
    device = torch_compat.device_of_fake(base)
    with torch_compat.outside_modes():
        if mode.shape_env is not None and base.dtype is dtype:
            # set_ would ask whether the storage is large enough
            return torch_compat.assemble_fake(
                mode, torch_compat.strided_view(base, shape, strides, offset), device, False
            )
        meta = torch_compat.empty_like_inference(base, dtype)
        meta.set_(base.untyped_storage(), offset, shape, strides)
        return torch_compat.assemble_fake(mode, meta, device, False)


def _rebuild(mode: Any, recipe: Any, arguments: Any, made: list[Any]) -> Any:
    what = recipe[0]
    if what in (_NEW, _SYMBOLIC):
        fake = _build_new(mode, recipe) if what == _NEW else _build_symbolic(mode, recipe)
        made.append(fake)
        return fake
    if what in (_VIEW, _SIBLING):
        return _view(mode, (arguments if what == _VIEW else made)[recipe[1]], *recipe[2:])
    if what == _ARGUMENT:
        return arguments[recipe[1]]
    if what == _PLAIN:
        return recipe[1]
    parts = [_rebuild(mode, part, arguments, made) for part in recipe[1]]
    return tuple(parts) if what == _TUPLE else parts
