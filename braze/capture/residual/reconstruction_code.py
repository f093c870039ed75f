"""Write the Python that rebuilds values from the recipe table, each value at most once.

``Rebuilder.value(i)`` gives an expression for recipe ``i`` and writes what must come before it. Shared
values get a name, cycles are broken at objects that can be filled after they exist (lists, dicts,
objects, cells, functions).
"""

from __future__ import annotations

import builtins
import collections
import functools
import keyword
import math
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from braze.capture.facts.records import (
    Build,
    Capture,
    Check,
    Constant,
    Drawn,
    FromSource,
    GraphOutput,
    Recipe,
    Source,
    Step,
    computed_text,
    joined_text,
    part_text,
)
from braze.capture.facts.replay import (
    class_attribute,
    item,
    iterator_at,
    make_function,
    native_new,
    nth_key,
    set_attribute,
)
from braze.capture.facts.resume import CannotResume
from braze.capture.facts.values import held
from braze.support.errors import InternalError

#: kinds whose instances can be made empty and filled later
FILLABLE = frozenset({"list", "dict", "set", "deque", "object", "attributes", "cell", "function"})

#: those of generated code, whatever the program deletes or replaces among its own
BUILTINS = dict(vars(builtins))


class Namespace:
    """The globals of one generated function: objects under readable, unique names."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.values: dict[str, Any] = {}
        self._by_identity: dict[int, str] = {}
        self._reserved = set(reserved)

    def name_of(self, value: Any, hint: str = "") -> str:
        """The name under which generated code finds this very object."""
        found = self._by_identity.get(id(value))
        if found is not None and self.values[found] is value:
            return found
        hint = hint or held(value, "__name__", "") or f"a_{type(value).__name__}"
        stem = "".join(c if c.isalnum() or c == "_" else "_" for c in str(hint)).strip("_") or "value"
        if stem[0].isdigit() or keyword.iskeyword(stem):
            stem = f"k_{stem}"
        if BUILTINS.get(stem, self) is value:
            return stem
        name, number = stem, 1
        while name in self.values or name in self._reserved or name in BUILTINS:
            name, number = f"{stem}_{number}", number + 1
        self.values[name] = value
        self._by_identity[id(value)] = name
        return name


class SourceText:
    """Sources as Python expressions over the residual function's arguments."""

    def __init__(self, function: Any, capture: Capture, names: Namespace) -> None:
        self.function = function
        self.names = names
        self.types = {g.source: g.expected for g in capture.guards if g.check is Check.TYPE}
        self.inputs = {source: f"inputs[{i}]" for i, source in enumerate(capture.inputs)}

    def text(self, source: Source) -> str:
        """An expression that reads the object at ``source`` now."""
        if source in self.inputs:
            return self.inputs[source]
        key, name = source.key, self.names.name_of
        match source.step:
            case Step.LOCAL:
                return f"l{key}"
            case Step.GLOBAL:
                if key in self.function.__globals__:
                    return f"{name(self.function.__globals__, 'module_globals')}[{key!r}]"
                return name(getattr(builtins, key), key)
            case Step.CELL:
                return f"{name(self.function.__closure__[key], f'cell_{key}')}.cell_contents"
            case Step.CONSTANT:
                return name(getattr(key, "value", key))
        assert source.parent is not None, f"{source.step} needs a parent"
        if source.step is Step.ITEM and self.types.get(source.parent) in (list, tuple, dict):
            return f"{self.text(source.parent)}[{literal(key) or name(key)}]"
        if source.step is Step.ITEM_AT:
            above, at = self.text(source.parent), self.text(key)
            plain = self.types.get(source.parent, list) in (list, tuple, dict)
            return f"{above}[{at}]" if plain else f"{name(item)}({above}, {at})"
        if source.step is Step.COMPUTED:
            return computed_text(key[0], (self.text(source.parent), *map(self.text, key[1])))
        if source.step in (Step.JOINED, Step.TUPLE):
            parts = (self.text(source.parent), *map(self.text, key[1]))
            return joined_text(key[0], parts, lambda value: literal(value) or name(value))
        below = _BELOW.get(source.step)
        if below is None:
            raise InternalError("BZ9010", f"residual code cannot read a source of step {source.step}")
        return below(self.text(source.parent), key, name)


#: a source as text, of the text of the one above it, its key, and what names objects
_BELOW: dict[Step, Callable[[str, Any, Callable[..., str]], str]] = {
    Step.GLOBALS_OF: lambda at, key, name: f"{at}.__globals__[{key!r}]",
    Step.ATTR: lambda at, key, name: f"{at}.{key}" if can_be_written(str(key)) else f"getattr({at}, {key!r})",
    Step.DICT: lambda at, key, name: f"{at}.__dict__[{key!r}]",
    Step.ITEM: lambda at, key, name: f"{name(item)}({at}, {literal(key) or name(key)})",
    Step.KEY: lambda at, key, name: f"{name(nth_key)}({at}, {key})",
    Step.TYPE: lambda at, key, name: f"type({at})",
    Step.CLASS_ATTR: lambda at, key, name: f"{name(class_attribute)}({at}, {key!r})",
    Step.DEFAULTS: lambda at, key, name: f"{at}.__defaults__[{key}]",
    Step.KWDEFAULTS: lambda at, key, name: f"{at}.__kwdefaults__[{key!r}]",
    Step.CLOSURE: lambda at, key, name: f"{at}.__closure__[{key}].cell_contents",
    Step.FUNC: lambda at, key, name: f"{at}.__{key}__",
    Step.TENSOR_OF: lambda at, key, name: f"{name(torch.from_numpy)}({at})",
    Step.LENGTH: lambda at, key, name: f"{name(len)}({at})",
    Step.SIZE: lambda at, key, name: f"{at}.size({key})",
    Step.PART: lambda at, key, name: f"{at}[{part_text(key)}]",
    Step.NEGATIVE: lambda at, key, name: f"(-{at})",
    Step.FORMATTED: lambda at, key, name: f"{name(format)}({at}, {key!r})",
}


class Rebuilder:
    """Writes statements into ``lines``; gives expressions for recipe ids."""

    def __init__(
        self, recipes: tuple[Recipe, ...], sources: SourceText, lines: list[str], roots: Iterable[int]
    ) -> None:
        self.recipes = recipes
        self.sources = sources
        self.names = sources.names
        self.lines = lines
        self.done: dict[int, str] = {}
        self.uses: collections.Counter[int] = collections.Counter()
        self.cyclic: set[int] = set()
        #: those that are being made
        self.making: set[int] = set()
        self._to_fill: list[int] = []
        self._survey(roots)

    # -- what is shared, what is cyclic

    def children(self, index: int) -> tuple[int, ...]:
        """The recipes that recipe ``index`` is made of."""
        recipe = self.recipes[index]
        return recipe.args if isinstance(recipe, Build) else ()

    def _survey(self, roots: Iterable[int]) -> None:
        """Count uses, and mark every recipe that lies on a cycle (Tarjan's components)."""
        order: dict[int, int] = {}
        low: dict[int, int] = {}
        stack: list[int] = []

        def visit(index: int) -> None:
            order[index] = low[index] = len(order)
            stack.append(index)
            for child in self.children(index):
                self.uses[child] += 1
                if child not in order:
                    visit(child)
                    low[index] = min(low[index], low[child])
                elif child in stack:
                    low[index] = min(low[index], order[child])
            if low[index] == order[index]:
                component = stack[stack.index(index) :]
                del stack[stack.index(index) :]
                if len(component) > 1 or index in self.children(index):
                    self.cyclic.update(component)

        for root in roots:
            self.uses[root] += 1
            if root not in order:
                visit(root)

    # -- expressions

    def value(self, index: int) -> str:
        """An expression for a recipe; a shared or cyclic one is named first. May be evaluated once only."""
        text = self._value(index)
        self._fill_pending()
        return text

    def atom(self, index: int) -> str:
        """As :meth:`value`, but of no effect and stable: a name, a literal, an item of inputs or outputs."""
        text = self.value(index)
        recipe = self.recipes[index]
        stable = isinstance(recipe, GraphOutput | Constant | Drawn) or text in self.done.values()
        if isinstance(recipe, FromSource):
            stable = stable or recipe.source in self.sources.inputs or recipe.source.step is Step.LOCAL
        return text if stable else self._assign(index, text)

    def assigned(self) -> list[str]:
        """The names given so far."""
        return list(self.done.values())

    def _assign(self, index: int, text: str) -> str:
        name = f"v{index}"
        self.lines.append(f"{name} = {text}")
        self.done[index] = name
        return name

    def _value(self, index: int) -> str:
        if index in self.done:
            return self.done[index]
        recipe = self.recipes[index]
        match recipe:
            case GraphOutput():
                return f"out[{recipe.index}]"
            case Drawn():
                return f"d{recipe.index}"
            case Constant():
                text = literal(recipe.value) if type(recipe.value) not in (str, bytes) else None
                return text or self.names.name_of(recipe.value)
            case FromSource():
                text = self.sources.text(recipe.source)
                simple = recipe.source in self.sources.inputs or recipe.source.step is Step.LOCAL
                return text if simple or self.uses[index] == 1 else self._assign(index, text)
        if index in self.cyclic:
            return self._on_cycle(index, recipe)
        return self._made(index, recipe)

    def _on_cycle(self, index: int, recipe: Build) -> str:
        """What reaches itself through its parts: made empty and filled later, where its kind can be."""
        if index in self.making or recipe.kind == "walk":
            raise CannotResume("a value is needed to make itself, as in error.args = (error,)")
        self.making.add(index)
        if recipe.kind in FILLABLE:
            text = self._assign(index, _empty(self, recipe))
            self._to_fill.append(index)
        else:
            text = self._made(index, recipe)
        self.making.remove(index)
        return text

    def _made(self, index: int, recipe: Build) -> str:
        if not _needs_fill(recipe):
            text = _WRITE[recipe.kind](self, recipe, [self._value(a) for a in recipe.args])
            return text if self.uses[index] == 1 and index not in self.cyclic else self._assign(index, text)
        args = [self._value(a) for a in recipe.args]
        name = self._assign(index, _empty(self, recipe))
        self._write_fill(name, recipe, args)
        return name

    def _fill_pending(self) -> None:
        while self._to_fill:
            index = self._to_fill.pop(0)
            recipe = self.recipes[index]
            assert isinstance(recipe, Build)
            args = [self._value(a) for a in recipe.args]
            self._write_fill(self.done[index], recipe, args)

    def _write_fill(self, name: str, recipe: Build, args: list[str]) -> None:
        """Statements that give an empty container or object its items and attributes."""
        split = len(args) - len(recipe.names)
        self.lines += _FILL[recipe.kind](self, name, recipe, args[:split])
        if recipe.kind in ("cell", "deque"):
            return
        setattr_ = self.names.name_of(set_attribute)
        pairs = zip(recipe.names, args[split:], strict=True)
        self.lines += [f"{setattr_}({name}, {attribute!r}, {value})" for attribute, value in pairs]


# -- one writer per kind: an expression from the expressions of the arguments


def _plain(opening: str, closing: str) -> Callable[[Rebuilder, Build, list[str]], str]:
    return lambda _, recipe, args: f"{opening}{', '.join(args)}{closing}"


def _tuple(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    text = f"({', '.join(args)}{',' if len(args) == 1 else ''})"
    if recipe.cls in (None, tuple):
        return text
    cls = to.names.name_of(recipe.cls)
    if hasattr(recipe.cls, "n_sequence_fields"):  # a struct sequence, as torch.return_types are
        return f"{cls}({text})"
    return f"{to.names.name_of(native_new(recipe.cls), 'new')}({cls}, {text})"


def _set(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    return "{" + ", ".join(args) + "}" if args else "set()"


def _deque(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    return f"{to.names.name_of(collections.deque)}([{', '.join(args[1:])}], {args[0]})"


def _frozenset(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    made = "frozenset(" + (f"({', '.join(args)},)" if args else "") + ")"
    if recipe.cls in (None, frozenset):
        return made
    return f"frozenset.__new__({to.names.name_of(recipe.cls)}, {made})"


def _dict(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    return "{" + ", ".join(f"{k}: {v}" for k, v in zip(args[::2], args[1::2], strict=True)) + "}"


def _called(callable_: Any) -> Callable[[Rebuilder, Build, list[str]], str]:
    """``callable_(args)``; the last ``len(names)`` arguments are keywords."""

    def write(to: Rebuilder, recipe: Build, args: list[str]) -> str:
        return f"{to.names.name_of(callable_)}({', '.join(_with_keywords(args, recipe.names))})"

    return write


def _call(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    return f"{args[0]}({', '.join(_with_keywords(args[1:], recipe.names))})"


def _walk(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    """The container has its contents before an iterator stands in it."""
    to._fill_pending()
    return _call(to, recipe, args)


def _function(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    owner, name, defaults, kwdefaults = args[:4]
    code = to.names.name_of(recipe.cls, f"code_{recipe.cls.co_name}")
    cells = "".join(f"{a}, " for a in args[4 : len(args) - len(recipe.names)])
    make = to.names.name_of(make_function)
    return f"{make}({code}, {owner}, {name}, {defaults}, {kwdefaults}, ({cells}))"


def _cell(to: Rebuilder, recipe: Build, args: list[str]) -> str:
    return f"{to.names.name_of(types.CellType)}({', '.join(args)})"


_WRITE: dict[str, Callable[[Rebuilder, Build, list[str]], str]] = {
    "tuple": _tuple,
    "namedtuple": _tuple,
    "list": _plain("[", "]"),
    "set": _set,
    "frozenset": _frozenset,
    "dict": _dict,
    "deque": _deque,
    "slice": _plain("slice(", ")"),
    "range": _plain("range(", ")"),
    "function": _function,
    "cell": _cell,
    "method": _called(types.MethodType),
    "partial": _called(functools.partial),
    "super": _plain("super(", ")"),
    "call": _call,
    "walk": _walk,
    "iterator": lambda to, recipe, args: f"{to.names.name_of(iterator_at)}({', '.join(args)})",
    "object": lambda to, recipe, args: _empty(to, recipe),
}


def _needs_fill(recipe: Build) -> bool:
    """Whether an instance is made first and filled by statements, rather than written as one expression."""
    if recipe.kind in ("object", "attributes") or (recipe.kind == "function" and recipe.names):
        return True
    return recipe.kind in ("list", "dict", "set") and (
        recipe.cls not in (None, list, dict, set) or bool(recipe.names)
    )


def _empty(to: Rebuilder, recipe: Build) -> str:
    """An instance without its contents."""
    match recipe.kind, recipe.cls:
        case "attributes", _:
            return to._value(recipe.args[0])
        case "cell", _:
            return f"{to.names.name_of(types.CellType)}()"
        case "function", code:
            # a cell on the cycle is made empty here and filled later, as defaults are
            owner, name = (to._value(a) for a in recipe.args[:2])
            cells = [to._value(a) for a in recipe.args[4 : 4 + len(code.co_freevars)]]
            return _function(to, recipe, [owner, name, "None", "None", *cells, *("",) * len(recipe.names)])
        case "list" | "dict" | "set" as kind, cls if cls in (None, list, dict, set):
            return {"list": "[]", "dict": "{}", "set": "set()"}[kind]
        case "deque", None:
            return _deque(to, recipe, [to._value(recipe.args[0])])
        case _, cls:
            return f"{to.names.name_of(native_new(cls), 'new')}({to.names.name_of(cls)})"


def _filled_by(method: str) -> Callable[[Rebuilder, str, Build, list[str]], list[str]]:
    return lambda to, name, recipe, items: [f"{method}({name}, [{', '.join(items)}])"] if items else []


def _fill_dict(to: Rebuilder, name: str, recipe: Build, items: list[str]) -> list[str]:
    ordered = recipe.cls is not None and issubclass(recipe.cls, collections.OrderedDict)
    base = to.names.name_of(collections.OrderedDict) if ordered else "dict"
    pairs = zip(items[::2], items[1::2], strict=True)
    return [f"{base}.__setitem__({name}, {k}, {v})" for k, v in pairs]


_FILL: dict[str, Callable[[Rebuilder, str, Build, list[str]], list[str]]] = {
    "list": _filled_by("list.extend"),
    "dict": _fill_dict,
    "set": _filled_by("set.update"),
    "deque": lambda to, name, recipe, items: [f"{name}.extend([{', '.join(items[1:])}])"],
    "object": lambda to, name, recipe, items: [],
    "attributes": lambda to, name, recipe, items: [],
    "cell": lambda to, name, recipe, items: [f"{name}.cell_contents = {items[0]}"] if items else [],
    "function": lambda to, name, recipe, items: [
        f"{name}.__defaults__ = {items[2]}",
        f"{name}.__kwdefaults__ = {items[3]}",
    ],
}


def literal(value: Any) -> str | None:
    """Python text that makes exactly this value, or None where a name must stand for it."""
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, str, bytes):
        return repr(value)
    if kind is int:
        text = str(value) if abs(value) < 1 << 64 else hex(value)  # Python writes no number of 4,300 digits
        return f"({text})" if value < 0 else text
    if kind is float:
        return repr(value) if math.isfinite(value) and (value > 0 or value.hex() == "0x0.0p+0") else None
    if kind is tuple:
        parts = [literal(v) for v in value]
        if None not in parts:
            return f"({', '.join(p for p in parts if p)}{',' if len(parts) == 1 else ''})"
    return None


def can_be_written(name: str) -> bool:
    """Whether text may stand for itself behind a dot and before a value; others are Python's own, or would be normalised."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


def _with_keywords(args: list[str], names: tuple[str, ...]) -> list[str]:
    split = len(args) - len(names)
    named = list(zip(names, args[split:], strict=True))
    if all(map(can_be_written, names)):
        return args[:split] + [f"{n}={a}" for n, a in named]
    return [
        *args[:split],
        f"**{{{', '.join(f'{n!r}: {a}' for n, a in named)}}}",
    ]  # a dict's keys may be any text
