"""What capture hands down, as data: sources, guards, recipes, effects, breaks."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch.fx

from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.native.vocabulary import Check, Step
from braze.support.errors import Origin
from braze.support.record import interned, record
from braze.support.spoken import spoken

#: an int of which a computed one is made, by its place among them
_NUMBER = re.compile(r"\bn(\d+)\b")


class IdentityKey:
    """An object as a key: equal only to a key of the very same object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value) >> 4

    def __repr__(self) -> str:
        return spoken(self.value, "__qualname__", "__name__") or f"<{type(self.value).__name__}>"


@interned
class Source:
    """Where a value comes from. ``key`` is hashable (an object in ``IdentityKey`` for CONSTANT)."""

    step: Step
    key: Any
    parent: Source | None = None

    def __str__(self) -> str:
        return text_of(self, {})

    __repr__ = __str__


def text_of(source: Source, known: dict[Source, str]) -> str:
    """A source as text; ``known`` remembers those above it."""
    found = known.get(source)
    if found is None:
        at = text_of(source.parent, known) if source.parent is not None else ""
        found = known[source] = _below(at, source.step, source.key)
    return found


def computed_text(text: str, numbers: Sequence[str]) -> str:
    """What ints come to, of the text of each."""
    return _NUMBER.sub(lambda found: numbers[int(found[1])], text)


def joined_text(pieces: Sequence[Any], parts: Sequence[str], told: Callable[[Any], str] = repr) -> str:
    """Text or a tuple of several parts, of the text of each, as an expression; ``told``: of what stands around them."""
    of_tuple = type(pieces[0]) is tuple
    inside: list[str] = []
    for piece, part in zip(pieces, (*parts, None), strict=True):
        inside += map(told, piece if of_tuple else filter(None, (piece,)))
        inside += () if part is None else (part,)
    between, end = (", ", "," if len(inside) == 1 else "") if of_tuple else (" + ", "")
    return f"({between.join(inside)}{end})"


def part_text(bounds: tuple[int | None, int | None]) -> str:
    """The bounds of a part of a list, as they stand between brackets."""
    return ":".join("" if bound is None else str(bound) for bound in bounds)


def _below(at: str, step: Step, key: Any) -> str:
    match step:
        case Step.DICT:
            return f"{at}.__dict__[{key!r}]"
        case Step.ITEM | Step.ITEM_AT:
            return f"{at}[{key!r}]"
        case Step.HAS_AT | Step.CLASS_HAS_AT:
            return f"({key!r} in {at if step is Step.HAS_AT else f'dir(type({at}))'})"
        case Step.PART:
            return f"{at}[{part_text(key)}]"
        case Step.FORMATTED:
            return f"format({at}, {key!r})"
        case Step.JOINED | Step.TUPLE:
            return joined_text(key[0], (at, *map(str, key[1])))
        case Step.ATTR:
            return f"{at}.{key}"
        case Step.LOCAL:
            return f"L[{key}]"
        case Step.GLOBAL:
            return f"G[{key!r}]"
        case Step.CELL:
            return f"C[{key}]"
        case Step.TYPE:
            return f"type({at})"
        case Step.COMPUTED:
            return computed_text(key[0], (at, *map(str, key[1])))
        case _:
            return f"{at}.<{step.value} {key}>" if at else f"<{step.value} {key}>"


@record
class Guard:
    """``check`` must hold of the object at ``source``. ``origin``: the user's line that read it."""

    source: Source | None
    check: Check
    expected: Any
    origin: Origin | None = None


@record
class ShapeRelation:
    """``expression`` (Python text over symbol names) must be true."""

    expression: str
    symbols: tuple[str, ...]


# -- recipes: how residual code rebuilds a Python value ---------------------------------------------


@record
class FromSource:
    """The object at a source, read when the graph has run."""

    source: Source


@record
class GraphOutput:
    """Output ``index`` of the graph."""

    index: int


@record
class Constant:
    """A value known when tracing: a literal, or an object kept by identity (function, class, module)."""

    value: Any


@record
class Build:
    """A new object. ``kind``: "tuple" "list" "set" "frozenset" "dict" (args k, v, k, v...; ``cls`` for
    subclasses), "slice", "range", "object" (cls.__new__(cls), then attributes ``names``), "namedtuple",
    "function" (code; args: globals-owner function, name, defaults, kwdefaults, closure cells...),
    "cell" (args: contents or nothing), "method" (func, self), "partial", "iterator" (args: what
    makes it, its arguments, its state), "super", "attributes" (args: an object, then values of its attributes ``names``),
    "deque" (args: maxlen, items...), "call" (args[0] called with the others), "walk" (the same: an iterator over a dict or set).
    """

    kind: str
    args: tuple[int, ...]  # ids in the recipe table
    cls: Any = None
    names: tuple[str, ...] = ()


@record
class Drawn:
    """The number that draw ``index`` of this call gave."""

    index: int


Recipe = FromSource | GraphOutput | Constant | Build | Drawn


#: draws that are none: a number of an earlier draw, which gave a list, as (which draw, which number), and a seed of PyTorch's generators
ITEM, SEED = "item", "manual_seed"


@record
class Draw:
    """A call of a function of Python's ``random``, done before the graph runs. The arguments are plain numbers, or tuples of
    such. ``item``: number ``args[1]`` of the list that draw ``args[0]`` gave.
    """

    name: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()


class EffectKind(enum.Enum):
    SETATTR = "setattr"  # (object, name, value)
    DELATTR = "delattr"  # (object, name)
    SETITEM = "setitem"  # (object, key, value)
    DELITEM = "delitem"  # (object, key)
    SET_CONTENTS = "set_contents"  # (list|dict|set|deque object, new contents as a fresh container): in place
    EXTEND = "extend"  # (list|deque object, elements as a fresh list): added at its end
    SET_GLOBAL = "set_global"  # (function whose globals, name, value)
    SET_CELL = "set_cell"  # (cell, value)
    CALL = "call"  # (callable, args...): e.g. torch._C._set_grad_enabled(value) that outlives the frame
    MADE = "made"  # (value): it is made, also where nobody takes it: a hook's handle


@record
class Effect:
    """A write to the outside, replayed after the graph has run, in order. ``args`` are recipe ids."""

    kind: EffectKind
    args: tuple[int, ...]
    name: str = ""


@record
class FrameState:
    """One suspended frame of the user's: all that a resume function needs.

    ``offset``: the instruction (byte offset in ``code``) to go on at. ``stack``: recipe ids bottom to
    top, -1 for a NULL. ``locals``: per localsplus slot a recipe id, or -1 where unbound.
    ``function``: recipe id of the function (its closure and globals).
    ``pushes``: values that the pending call will push (1) before going on at ``offset``.
    """

    code: CodeType
    offset: int
    stack: tuple[int, ...]
    locals: tuple[int, ...]
    function: int
    pushes: int = 1


class BreakKind(enum.Enum):
    """The instruction that capture could not carry, in the terms of the residual code."""

    CALL = "call"  # operands: callable, positional..., then keyword values (names in ``detail``)
    CALL_EX = "call_ex"  # operands: callable, tuple, dict or nothing
    BRANCH = "branch"  # operand: condition; detail: the two offsets (if false, if true), and pops
    NEXT = "next"  # operand: an iterator; detail: the two offsets (if exhausted: it is dropped; else: it and its item pushed)
    #: operands; detail: a function of module operator, or "getattr"/"setattr"/... by name
    OPERATOR = "operator"
    STATEMENT = "statement"  # as OPERATOR but pushes nothing (setattr, setitem, delattr, delitem)
    RUN = "run"  # no operand: the resume function starts *at* the instruction and runs it uncaptured
    RAISE = "raise"  # operand: the exception to raise in the innermost frame


@record
class GraphBreak:
    """Where and why the trace stopped, and what to run there."""

    kind: BreakKind
    operands: tuple[int, ...]
    detail: Any
    code: str  # "BZ1012"
    reason: str
    hints: tuple[str, ...]
    origin: Origin | None
    trail: tuple[Origin, ...]
    frames: tuple[FrameState, ...]  # innermost first; state after the instruction, its result not pushed
    handled: tuple[int, ...] = ()  # the exception that each frame handles there; -1


@record
class Capture:
    """All that came out of tracing one frame.

    ``inputs[i]`` is the source of graph input i. ``recipes`` is the table that ids refer to; the recipe of an
    id is built at most once per call, so identity is kept. ``result``: recipe id of the return value (None
    with a break). ``graph`` is None where there was nothing to compute.
    """

    code: CodeType
    name: str
    graph: torch.fx.GraphModule | None
    inputs: tuple[Source, ...]
    specs: tuple[TensorSpec | SymbolSpec | FloatSpec, ...]
    guards: tuple[Guard, ...]
    recipes: tuple[Recipe, ...]
    effects: tuple[Effect, ...]
    result: int | None
    graph_break: GraphBreak | None = None
    instructions: int = 0
    examples: tuple[Any, ...] = ()  # fake inputs, for the backend
    inlined: tuple[Any, ...] = ()  # functions that were interpreted along: on whose files all this depends
    #: what tensors must hold, numbers in tuples: else nothing here is true
    contents: tuple[tuple[Source, Any], ...] = ()
    draws: tuple[Draw, ...] = ()  # done in this order, before the graph runs
    #: which of them are inputs of the graph, after ``inputs``, as tensors of no dimensions
    drawn: tuple[int, ...] = ()
    #: inputs over arrays' memory, which shares nothing with other inputs: else nothing here is true
    apart: tuple[int, ...] = ()
    digest: str = ""  # of what is kept of this on disk
    call: Any = None  # what the backend kept, in place of the graph, which is not there then
    #: of that graph: whether it may run again where it fails (``purity.Again``); what it draws from
    traits: tuple[str, str] = ("no", "")
