"""What the program makes and does in a trace, to be done when the graph has run."""

from __future__ import annotations

import types
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from braze.capture.facts.breaks import BreakSignal
from braze.capture.facts.records import Draw
from braze.capture.state.frames import Frames
from braze.capture.state.sources import Node
from braze.support.errors import Origin


class Raised:
    """An exception that was raised in the trace. ``before``: what an outside one looked like before.

    ``alone``: raised where nothing of the trace's is handled; its context is what the caller of the function handles.
    ``trail``: the lines at which the frames stood when it left the first. The exception and its traceback are held only until
    that has an entry of the trace, from where this is found again: with an exception of the program's ends what its frames held.
    """

    __slots__ = ("alone", "before", "error", "traceback", "trail")

    error: BaseException | None

    def __init__(self, error: BaseException, outside: bool) -> None:
        self.error = error
        self.alone = False
        self.traceback: types.TracebackType | None = None
        self.trail: tuple[Origin, ...] = ()
        self.before = state_of(error) if outside else None

    def is_still(self, name: str, now: Any) -> bool:
        """Whether a field is an outside exception's own, as its raiser left it."""
        if self.before is None or name == "__traceback__":
            return False
        return name not in self.before or self.before[name] is now

    def restore(self) -> None:
        """Give an outside exception back as it was."""
        for name, value in (self.before or {}).items():
            setattr(self.error, name, value)


class Left:
    """What a frame of the program's held when an exception left it, and what is known of that exception."""

    __slots__ = ("__weakref__", "raised", "variables")

    def __init__(self, raised: Raised, variables: list[Any]) -> None:
        self.raised: Raised | None = raised
        self.variables = variables

    def end(self) -> None:
        """The trace is over: let go of its values."""
        self.raised, self.variables = None, []


def state_of(error: BaseException) -> dict[str, Any]:
    """What raising an exception changes of it, in an order in which it can be set."""
    return {
        name: getattr(error, name)
        for name in ("__traceback__", "__cause__", "__context__", "__suppress_context__")
    }


@dataclass(slots=True, eq=False)
class Hooked:
    """One hook on a tensor. ``version``: how often its tensor had been written when it came."""

    register: Any
    tensor: Any
    hook: Any
    handle: Any
    version: int
    removed: bool = False
    #: the variables of functions around that a part of the graph uses, and what they held
    cells: list[tuple[types.CellType, Any]] = field(default_factory=list)
    #: whether it is a part of the graph, and the instruction that put it there
    inside: bool = False
    step: int = 0


@dataclass(slots=True, eq=False)
class LaterSeed:
    """A seed that is set after the graph. ``last``: the graph's last node by then."""

    seed: int
    last: torch.fx.Node


@dataclass(slots=True, eq=False)
class Cached:
    """What a function with a cache gave once. ``position``: the instruction before which the graph ends if that cannot be told."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int
    result: Any = None
    #: whether the cache itself is asked when the graph has run, so that it keeps and counts as in eager
    counted: bool = False
    #: tensors in it, and the graph's last node when they were made
    tensors: list[torch.Tensor] = field(default_factory=list)
    last: torch.fx.Node | None = None
    #: objects and containers in it that the trace made, and what each held then
    objects: list[tuple[Any, list[Any]]] = field(default_factory=list)


class Ledger:
    """The deeds of one trace, and what it made."""

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        #: errors that are taken not to be raised: the breaks where that cannot be
        self.granted: list[BreakSignal] = []
        self.cells_written: dict[int, tuple[types.CellType, Any]] = {}
        #: objects made in the trace that the final state must know of: functions, generators
        self.made: dict[int, tuple[Any, int]] = {}
        #: generators made in the trace, by identity: closed as soon as the program drops them, so not held
        self.loose: dict[int, tuple[weakref.ref[Any], int]] = {}
        #: the code of the program's that each of these runs
        self.codes: dict[int, types.CodeType] = {}
        self.made_classes = False
        #: exceptions that the trace raises, and those from outside that it has raised, by identity
        self.raised: dict[int, Raised] = {}
        #: what the entries of tracebacks hold that the trace has made, by the entry's identity
        self.left: dict[int, weakref.ref[Left]] = {}
        #: calls to replay after the graph: (callable, args, kwargs)
        self.replays: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        #: hooks put on tensors, by identity of what stands for their handles, in order
        self.hooks: dict[int, Hooked] = {}
        #: seeds of PyTorch's generators that are set when the graph has run, in order
        self.seeds: list[LaterSeed] = []
        #: functions from outside, and attributes written there, by identity of the function
        self.function_fields: dict[int, tuple[Any, dict[str, Any]]] = {}
        #: numbers drawn from Python's random, in order: (call, what stands for the number, where)
        self.draws: list[tuple[Draw, Any, Any]] = []
        #: which of these a symbol stands for
        self.drawn: dict[Any, int] = {}
        #: instance dicts written, by identity of the shadow (outside.shadows)
        self.dirty: dict[int, Any] = {}
        #: dicts that the program has made the ``__dict__`` of an object, by identity
        self.namespaces: dict[int, Any] = {}
        #: instance dicts of the trace's own objects that the program has asked for, by identity, each with its object
        self.asked_dicts: dict[int, tuple[Any, Any]] = {}
        #: outside objects with slots written
        self.slotted: list[Node] = []
        #: leaves of autograd that the trace made (parameters, ``requires_grad_``), by identity: they are claimed
        self.leaves: set[int] = set()
        #: attributes that the program put on tensors of the graph
        self.tensor_fields: dict[int, tuple[Any, dict[str, Any]]] = {}
        #: lru_cache'd functions called in this trace, and what they gave (features.cached_functions)
        self.caches: dict[Any, list[Cached]] = {}

    def left_by(self, entry: types.TracebackType) -> Left | None:
        """What an entry that the trace has made holds; None once the program has cleared its frame."""
        found = self.left.get(id(entry))
        return found() if found is not None else None

    def is_ours(self, value: Any) -> bool:
        """Whether the trace made this function or generator."""
        key = id(value)
        return (key in self.made or key in self.loose) and self.birth(value) is not None

    def birth(self, value: Any) -> int | None:
        """The step at which the trace made this; None for what it did not make."""
        found = self.made.get(id(value))
        if found is not None and found[0] is value:
            return found[1]
        loose = self.loose.get(id(value))
        return loose[1] if loose is not None and loose[0]() is value else None

    def claim(self, value: Any) -> Any:
        """Remember that the trace made this."""
        self.made[id(value)] = (value, self.frames.steps)
        return value

    def claim_class(self, made: type) -> type:
        """Remember that the trace made this class."""
        self.made_classes = True
        return self.claim(made)

    def claim_loosely(self, value: Any, code: types.CodeType) -> weakref.ref[Any]:
        """Remember that the trace made this generator, for as long as the program has it."""
        made = weakref.ref(value)
        self.loose[id(value)] = made, self.frames.steps
        self.codes[id(value)] = code
        return made

    def code_of(self, value: Any) -> types.CodeType | None:
        """The code that a generator of the trace runs; None for any other."""
        return self.codes.get(id(value)) if self.is_ours(value) else None

    def make_leaf(self, value: torch.Tensor) -> None:
        """Remember that gradients may be asked for a tensor of the trace: one that gets out is made by the program."""
        self.leaves.add(id(value))
        self.claim(value)
