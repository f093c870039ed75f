"""What tensors hold that a trace can know: those computed from constants, and from small tensors that a model keeps.

Where the program reads a number out of a tensor, or decides by one, the nodes that lead to it are run on real tensors.
What was taken from a tensor of the model (a buffer with a stride in it) is compared before each run of the graph; where
it is another, the function runs as it is and is captured anew.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from braze import native
from braze.capture.facts.purity import computes, memory_of, writes, written_by
from braze.capture.facts.records import Source, Step
from braze.capture.facts.values import MISSING, NUMBER_OF
from braze.capture.outside import lists_of_numbers
from braze.capture.outside.given_texts import ValueMatters
from braze.capture.state.sources import Node
from braze.capture.state.trace import Recording
from braze.graph.fakes.fakes import PLAIN
from braze.graph.private import torch_compat, torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC

#: what reads a tensor -> what does so for real
READERS: dict[str, Any] = {
    "item": torch.Tensor.item,
    "tolist": torch.Tensor.tolist,
    "__bool__": bool,
    "is_nonzero": torch.Tensor.is_nonzero,
    "__int__": int,
    "__float__": float,
    "__index__": operator.index,
}
#: elements of a tensor that is computed, and of one of the model's that is compared at each call; nodes that lead to a number;
#: numbers read in one trace (a loop that is decided by them is unrolled)
LARGEST, KEPT, LONGEST, OFTEN = 1 << 16, 16, 512, 1000
WRITES_BY_INDEX = frozenset({operator.setitem, torch.Tensor.__setitem__})
INDEXES = WRITES_BY_INDEX | {operator.getitem, torch.Tensor.__getitem__}
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class Unknown(Exception):
    """A number that the trace cannot know."""


class Known:
    """The real values of nodes of one graph, as far as they were asked for."""

    def __init__(self, recorder: Recording) -> None:
        self.recorder = recorder
        self.values: dict[torch.fx.Node, Any] = {}
        self.reads = 0
        self.seen: torch.fx.Node = recorder.graph._root
        self.hidden_writes = False
        #: storages that a node writes: fakes that share one count their versions apart
        self.written: set[int] = set()

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The real tensor that a fake stands for; None where it is not known."""
        found = self.recorder.nodes.get(id(tensor))
        self.reads += 1
        if self.reads > OFTEN:
            return None
        try:
            self._look_for_writes()
            if found is None:
                place = self.recorder.t.outside.tree.node_of(tensor)
                return None if place is None else contents(self, place)
            waiting = self._ancestors(found[1])
            with torch_compat.disable_functions(), torch_compat.outside_modes(), torch.no_grad():
                for node in waiting:
                    self.values[node] = native.unhooked(self._run, node)
        except Unknown:
            if found is not None and (lists := self._lists_behind(found[1])):
                raise ValueMatters(lists) from None
            return None
        real = self.values[found[1]]
        return real if isinstance(real, torch.Tensor) else None

    def symbol(self, tensor: torch.Tensor) -> Any:
        """The number that changes from call to call of which a tensor without dimensions is made (``literals.made``); MISSING for any other tensor."""
        found = self.recorder.nodes.get(id(tensor))
        if found is None or tensor.dtype is not torch.int64 or not is_filled(found[1]):
            return MISSING
        try:
            self._look_for_writes()
            check(self, found[1])
        except Unknown:
            return MISSING
        filled: Any = found[1].args[1]
        return filled.meta["val"] if isinstance(filled, torch.fx.Node) else MISSING

    def _look_for_writes(self) -> None:
        """Note what new nodes write, and a read of ``x.data``: what is written through it counts no version."""
        node = self.seen.next
        while node.op != "root":
            if node.target is getattr and node.args[1] == "data":
                self.hidden_writes = True
            elif writes(node):
                self.written |= memory_of(*written_by(node))
            self.seen, node = node, node.next
        if self.hidden_writes:
            raise Unknown

    def is_written(self, fake: torch.Tensor) -> bool:
        """Whether the program has written to a tensor, or to another in its memory."""
        return self.recorder.is_written(fake) or torch_compat.storage_key(fake) in self.written

    def _ancestors(self, last: torch.fx.Node) -> list[torch.fx.Node]:
        """All nodes to run, each after those that it needs."""
        order: dict[torch.fx.Node, None] = {}
        path: list[tuple[torch.fx.Node, Iterator[torch.fx.Node]]] = [(last, iter(last.all_input_nodes))]
        while path:
            node, needed = path[-1]
            following = next((n for n in needed if n not in order), None)
            if following is not None:
                check(self, following)  # also of what is known: it may have been written since
                path.append((following, iter(() if following in self.values else following.all_input_nodes)))
            else:
                order[node] = None
                path.pop()
            if len(order) + len(path) > LONGEST:
                raise Unknown
        check(self, last)
        return [node for node in order if node not in self.values]

    def _lists_behind(self, last: torch.fx.Node) -> frozenset[Source]:
        """The lists of numbers of which all is computed that a node needs; none where it needs anything else from outside."""
        places = dict(self.recorder.placeholders)
        found: set[Source] = set()
        seen, waiting = {last}, [last]
        while waiting:
            node = waiting.pop()
            if node.op == "placeholder":
                place = places.get(node)
                if place is None or place.step is not Step.TENSOR_OF_NUMBERS:
                    return frozenset()
                found.add(lists_of_numbers.whole(place.parent.source))
            elif not computes(node) or writes(node) or len(seen) > LONGEST:
                return frozenset()
            waiting += [n for n in node.all_input_nodes if n not in seen]
            seen.update(node.all_input_nodes)
        return frozenset(found)

    def _run(self, node: torch.fx.Node) -> Any:
        """The value of a node whose inputs are known. A number that changes is taken for what it is in this call, and guarded."""
        symbol = node.meta.get("val")
        if type(symbol) in SYMBOLIC:
            return NUMBER_OF[type(symbol)](symbol)
        if node.op == "placeholder":
            place = next((p for n, p in self.recorder.placeholders if n is node), None)
            real = None if place is None else contents(self, place)
            if real is None:
                raise Unknown
            return real
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        try:
            if node.op == "call_method":
                made = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                made = node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # whatever the operator raises for these values, the program's own call raises it
            raise Unknown from None
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and not same_kind(made, fake):
            raise Unknown
        return made


def is_filled(node: torch.fx.Node) -> bool:
    """Whether a node fills a tensor of no dimensions."""
    return node.target is torch.full and node.args[:1] == ((),)


#: what reads a number out of a tensor -> what it gives of a symbol
OF_SYMBOLS: dict[str, Any] = {
    "item": lambda n: n,
    "__int__": lambda n: n,
    "__index__": lambda n: n,
    "__float__": torch.sym_float,
}


def check(known: Known, node: torch.fx.Node) -> None:
    """Raise where a node does more than to compute something small."""
    if not computes(node) or writes(node):
        raise Unknown
    if any(map(writes, node.users)):  # statistics of norms, which count no version
        raise Unknown
    value = node.meta.get("val")
    for part in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(part, torch.Tensor):
            symbol = type(part) in SYMBOLIC and not torch_symbols.is_unbacked(part)
            if not symbol and type(part) not in (int, float, bool, torch.Size, type(None)):
                raise Unknown
        elif not is_small(known, part):
            raise Unknown


def is_small(known: Known, fake: torch.Tensor) -> bool:
    """Whether a fake stands for a tensor that may be computed here, and that nothing has written."""
    if fake.device.type != "cpu" or fake.layout is not torch.strided or known.is_written(fake):
        return False
    return all(type(n) is int for n in fake.shape) and fake.numel() <= LARGEST


def same_kind(made: Any, fake: torch.Tensor) -> bool:
    """Whether what was computed is what the trace has said that it is."""
    return (
        isinstance(made, torch.Tensor)
        and made.dtype is fake.dtype
        and tuple(made.shape) == tuple(fake.shape)
        and made.device == fake.device
    )


def contents(known: Known, place: Node) -> torch.Tensor | None:
    """A copy of a small tensor that the program's arguments do not hold, whose contents are compared from now on."""
    t, real, fake = known.recorder.t, place.real, place.value
    if (
        not t.outside.trusting
        or type(real) not in PLAIN
        or isinstance(real, torch.nn.Parameter)
        or not stays(place)
    ):
        return None
    if real.requires_grad or real.dtype.is_complex or real.numel() > KEPT or not is_small(known, fake):
        return None
    for _, other in known.recorder.placeholders:
        if issubclass(type(other.real), torch.Tensor) and issubclass(type(other.value), torch.Tensor):
            if torch_compat.storage_key(other.real) == torch_compat.storage_key(real):
                if known.is_written(other.value):
                    return None
    with torch_compat.disable_functions(), torch_compat.outside_modes():
        made = real.clone()
        held = frozen(made.tolist())
    if held != held or "nan" in repr(held):
        return None
    t.outside.contents[place] = held
    return made


def stays(place: Node) -> bool:
    """Whether what is there belongs to a module, or to the surroundings of the function: most often the same at each call."""
    at: Node | None = place
    while at is not None:
        if issubclass(type(at.real), torch.nn.Module) or at.step in (Step.GLOBAL, Step.CELL, Step.CONSTANT):
            return True
        at = at.parent
    return False


def frozen(value: Any) -> Any:
    """Lists as tuples."""
    return tuple(map(frozen, value)) if type(value) is list else value


def known_of(recorder: Recording) -> Known:
    """What is known of a graph's tensors."""
    if recorder.known is None:
        recorder.known = Known(recorder)
    known: Known = recorder.known
    return known


def symbol_in(recorder: Recording, tensor: torch.Tensor) -> Any:
    """The number that changes of which a tensor is made; else MISSING."""
    return known_of(recorder).symbol(tensor)


def read(recorder: Recording, name: str, tensor: torch.Tensor) -> Any:
    """What ``tensor.name()`` gives, where the trace can know it; else MISSING."""
    reader = READERS.get(name)
    if reader is None:
        return MISSING
    symbol = symbol_in(recorder, tensor) if name in OF_SYMBOLS else MISSING
    if symbol is not MISSING:
        return OF_SYMBOLS[name](symbol)
    real = known_of(recorder).value(tensor)
    if real is None:
        return MISSING
    with torch_compat.disable_functions(), torch_compat.outside_modes():
        return native.unhooked(reader, real)


def with_numbers(
    recorder: Recording, func: Any, args: Any, kwargs: Any, whole: bool = False
) -> tuple[Any, Any] | None:
    """Arguments with known numbers in place of integer tensors of no dimensions, as PyTorch takes them for sizes, and of truth values as it takes
    them for masks; None where none is."""
    found = False
    kinds = INTEGERS | {torch.bool} if func in INDEXES else INTEGERS

    def number(value: Any) -> Any:
        nonlocal found
        if isinstance(value, torch.Tensor):
            read_out = read(recorder, "item", value) if value.dim() == 0 and value.dtype in kinds else MISSING
            found = found or read_out is not MISSING
            return value if read_out is MISSING else read_out
        if type(value) is slice:
            return slice(number(value.start), number(value.stop), number(value.step))
        return type(value)(map(number, value)) if type(value) in (list, tuple) else value

    first = args[:1] if args and isinstance(args[0], torch.Tensor) and not whole else ()
    given = (*first, *map(number, args[len(first) :]))
    if func in WRITES_BY_INDEX and type(given[1]) is bool and given[1] is not args[1]:
        # of False alone PyTorch writes nothing, and counts no write
        given = (given[0], (given[1],), *given[2:])
    named = {k: number(v) for k, v in kwargs.items()}
    return (given, named) if found else None


def call_with_numbers(recorder: Recording, func: Any, args: Any, kwargs: Any) -> Any:
    """The call, which failed since what tensors hold was not known; MISSING where it cannot be made with numbers."""
    given = with_numbers(recorder, func, args, kwargs)
    if (
        given is None
    ):  # the first argument is most often what is computed with, and else a size (``torch.zeros(k, 2)``)
        given = with_numbers(recorder, func, args, kwargs, whole=True)
    if given is not None:
        # the program is told of the call as it has made it
        with contextlib.suppress(RuntimeError, TypeError, ValueError, IndexError):
            return recorder.call(func, *given)
    return MISSING


def holds(tensor: torch.Tensor, expected: Any) -> bool:
    """Whether a tensor holds these numbers, each with its sign."""
    found = tensor.tolist()
    if type(found) is int or type(found) is bool:
        return bool(found == expected)
    return repr(frozen(found)) == repr(expected)
