"""``functools.lru_cache``: what it wraps is interpreted where nobody could tell that from the cache; else the cache itself is asked, behind a break.

A cache gives what the function gave once: the same object, as it was written since, made of what outside objects held then. So what
is interpreted takes numbers, text and the like, reads no state, and gives such values, or new tensors, lists and objects that stay inside the graph and
that nobody writes.
"""

from __future__ import annotations

import itertools
import logging
import types
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from braze import native
from braze.capture.facts.breaks import BreakSignal, Retry, graph_break
from braze.capture.facts.libraries import is_library_function
from braze.capture.facts.purity import is_random, memory_written
from braze.capture.facts.records import Check
from braze.capture.facts.values import (
    BUILTIN_METHODS,
    LRU_CACHE,
    MISSING,
    NUMBER_OF,
    UnknownText,
    is_constant,
    is_identity_type,
)
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.graph import unbacked
from braze.capture.graph.replays import replay
from braze.capture.outside import changes
from braze.capture.outside.cells import is_empty
from braze.capture.outside.class_values import runs_code_as_key
from braze.capture.python.unwinding import resumable_step
from braze.capture.state.handlers import HANDLERS, Feature
from braze.capture.state.ledger import Cached
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Recording, Trace
from braze.graph.private.torch_compat import storage_key
from braze.graph.private.torch_symbols import SYMBOLIC

FEATURE = Feature()

HINT = "make what it gives outside and hand it in"
#: what is a key by what it holds, symbols among that
TUPLES = (tuple, torch.Size)
#: by the types of numbers and text in them, the calls of functions that some trace has met
GIVEN: weakref.WeakKeyDictionary[Any, dict[Any, set[Any]]] = weakref.WeakKeyDictionary()
#: numbers and text that interpreted functions have read, when the first trace met them
READ: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def call_cached(t: Trace, fn: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """An ``lru_cache``: what it wraps, with a cache that lives as long as the trace."""
    kwargs = kwargs or {}
    rule = HANDLERS.calls.get(fn)
    if rule is not None:
        return rule(t, args, kwargs, False)
    if type(fn.__wrapped__) is not types.FunctionType:
        graph_break("BZ1010", "a cache of what is no function in Python is called", HINT)
    of_library = is_library_function(fn.__wrapped__)
    if of_library and fn.__wrapped__.__name__.startswith("is_") and not kwargs and is_constant(tuple(args)):
        return native.unhooked(fn, *args)  # it tells what is installed: a fact that holds for the process
    values = (*args, *kwargs.values())
    if any(map(runs_code_as_key, values)):
        graph_break("BZ1010", f"the cached function {fn.__name__} asks an argument's __hash__ or __eq__")
    known = t.done.caches.setdefault(fn, [])
    typed = fn.cache_parameters()["typed"]
    for row in known:
        if is_same_call(row.args, row.kwargs, args, kwargs, typed):
            if row.counted:
                t.done.replays.append((fn, row.args, row.kwargs))
            return row.result
    if was_given_other_types(fn, args, kwargs, typed):
        graph_break(
            "BZ1010", f"the cached function {fn.__name__} was given equal numbers of another type", HINT
        )
    if not of_library:
        refuse_state(t.outside, fn, values)
    row = Cached(tuple(args), kwargs, position=resumable_step(t.frames))
    seen, asked = len(t.outside.tree.order), len(t.outside.settings.asked)
    row.result = interpreted(t, fn, row)
    known.append(row)
    if of_library:
        row.counted = False
        return row.result
    read = t.outside.tree.order[seen:]
    if any(map(may_change, read)) or is_changed(fn, values_read(t.outside, read, asked)):
        refuse(fn, "reads what has changed", row.position)
    row.tensors, row.last = list(new_tensors(t, fn, row, row.result)), last_node(t.graph.recorder.graph)
    if row.objects and is_shared(fn, row):
        refuse(fn, "gives an object that is written or handed out", row.position)
    most = fn.cache_parameters()["maxsize"]
    if row.tensors and most is not None and len(known) > most:
        refuse(fn, "is given more arguments than it keeps", row.position)
    # the cache itself is not given what the trace has made
    own = row.objects or any(is_own_object(t.outside, v) for v in values)
    row.counted = row.counted and not row.tensors and not own
    if row.counted:
        t.done.replays.append((fn, row.args, row.kwargs))
    return row.result


def is_same_call(known: Any, named: dict[str, Any], args: Any, kwargs: dict[str, Any], typed: bool) -> bool:
    """Whether a call before had these arguments; symbols are guarded to be equal, or not to be.

    ``f(True)`` and ``f(1.0)`` are one call, unless the cache is ``typed``. One number or text alone is its own key, which no other kind of key equals.
    """
    if len(known) != len(args) or list(named) != list(kwargs):
        return False
    pairs = [*zip(known, args, strict=True), *zip(named.values(), kwargs.values(), strict=True)]
    if typed and any(number_type(a) is not number_type(b) for a, b in pairs):
        return False
    if len(args) == 1 and not kwargs and is_own_key(known[0]) != is_own_key(args[0]):
        return False
    return all(is_same(a, b) for a, b in pairs)


def was_given_other_types(fn: Any, args: Any, kwargs: dict[str, Any], typed: bool) -> bool:
    """Whether some trace gave a function equal numbers of other types: its cache may hold what was made of those."""
    given = GIVEN.setdefault(fn, {})
    call = (tuple(args), tuple(kwargs.items()))
    types_now = types_in(call)
    for types_then, calls in given.items():
        if types_then != types_now and any(is_same_call(a, dict(k), args, kwargs, typed) for a, k in calls):
            return True
    if is_constant(call):
        given.setdefault(types_now, set()).add(call)
    return False


def types_in(values: Any) -> tuple[Any, ...]:
    """The types of values, of a tuple those of what is in it."""
    return tuple(types_in(v) if type(v) in TUPLES else number_type(v) for v in values)


def number_type(value: Any) -> type:
    """The type of a value, of a symbol that of the numbers that it stands for."""
    return NUMBER_OF.get(type(value), type(value))


def is_own_key(value: Any) -> bool:
    """Whether a cache takes an argument that stands alone for the key."""
    return number_type(value) in (int, str)


def is_same(a: Any, b: Any, typed: bool = False) -> bool:
    """Whether two arguments are one key; ``typed``: and of one type, as what is in them."""
    if a is b:
        return True
    if type(a) in SYMBOLIC or type(b) in SYMBOLIC:
        numbers = all(number_type(v) in (int, float, bool) for v in (a, b))
        return numbers and not any(map(unbacked.is_unbacked, (a, b))) and bool(as_number(a) == as_number(b))
    if type(a) in TUPLES and type(b) in TUPLES:
        return len(a) == len(b) and all(is_same(x, y, typed) for x, y in zip(a, b, strict=True))
    return (type(a) is type(b) or not typed) and is_constant(a) and is_constant(b) and bool(a == b)


def as_number(value: Any) -> Any:
    """A truth value as the number that it equals."""
    return int(value) if number_type(value) is bool else value


def interpreted(t: Trace, fn: Any, row: Cached) -> Any:
    """What the function gives, if it changes nothing outside and draws nothing: a later call would find the result and do nothing."""
    before, said = changes.so_far(t), len(t.done.replays)
    last = last_node(t.graph.recorder.graph)
    result = t.call(fn.__wrapped__, row.args, row.kwargs or None)
    if all(type(target) is LRU_CACHE for target, _, _ in t.done.replays[said:]):
        del t.done.replays[said:]  # what it asks of other caches is asked by the call that counts
        row.counted = t.graph.recorder.outer is None
    elif result is None:
        # it warns once: the cache itself is to tell whether it has
        only_said, replays = t.done.replays[:said], t.done.replays
        t.done.replays = only_said
        if changes.so_far(t) != before or not replay(t.done, fn, row.args, row.kwargs):
            t.done.replays = replays
        else:
            return result
    if changes.so_far(t) != before:
        refuse(fn, "writes to the outside", row.position)
    if any(map(is_random, nodes_after(t.graph.recorder.graph, last))):
        refuse(fn, "draws random numbers", row.position)
    return result


def last_node(graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The graph's last node so far."""
    return next(iter(reversed(graph.nodes)), None)


def nodes_after(graph: torch.fx.Graph, last: torch.fx.Node | None) -> Iterator[torch.fx.Node]:
    """The graph's nodes behind one, the last one first."""
    for node in reversed(graph.nodes):
        if node is last:
            return
        yield node


def refuse(fn: Any, what: str, position: int) -> NoReturn:
    """End the graph before the call of a cached function."""
    signal = BreakSignal("BZ1010", f"the cached function {fn.__name__} {what}", (HINT,))
    signal.position = position
    raise signal


# -- what a function reads


def refuse_state(outside: Outside, fn: Any, values: Any) -> None:
    """Break before a function that is given, or names, what may hold something else by a later call; what the trace has made itself is nobody else's."""
    known = (*SYMBOLIC, UnknownText)
    if any(is_state(v) for v in leaves(values) if type(v) not in known and not is_own_object(outside, v)):
        graph_break(
            "BZ1010", f"the cached function {fn.__name__} is given an object whose state may change", HINT
        )
    constants: dict[Any, Any] = {}
    name = named_state(fn.__wrapped__, constants, set())
    if name is not None:
        graph_break("BZ1010", f"the cached function {fn.__name__} reads {name}, which may change", HINT)
    if is_changed(fn, constants):
        graph_break("BZ1010", f"the cached function {fn.__name__} reads what has changed", HINT)


def leaves(values: Any) -> Iterator[Any]:
    """Values, and for tuples and shapes what is in them."""
    for value in values:
        if type(value) in TUPLES:
            yield from leaves(value)
        else:
            yield value


def is_changed(fn: Any, values: dict[Any, Any]) -> bool:
    """Whether a function reads another value than one that was first read at some place: its cache may hold what was made of that."""
    before = READ.setdefault(fn, {})
    return any(not is_same(before.setdefault(key, now), now, typed=True) for key, now in values.items())


def may_change(place: Node) -> bool:
    """Whether what is at a place outside is a symbol, which is another number or text at each call."""
    return type(place.value) in SYMBOLIC or type(place.value) is UnknownText


def values_read(outside: Outside, read: list[Node], asked: int) -> dict[Any, Any]:
    """The values at places outside that have been read, and what the trace was told of settings since it had been of ``asked``.

    By the places' texts: the places themselves may hold the function.
    """
    found: dict[Any, Any] = {"default dtype": torch.get_default_dtype()}
    for node in read:
        place = str(node.source)
        for check, expected in node.guards:
            if check is Check.EQUAL:
                found[place] = node.real
            elif check is Check.HAS_KEY and not expected[1]:
                found[f"{place}[{expected[0]!r}]"] = MISSING
        for name in node.absent or ():
            found[f"{place}.__dict__[{name!r}]"] = MISSING
    found.update(itertools.islice(outside.settings.asked.items(), asked, None))
    return found


#: of functions whose objects some trace has written or handed out, what they were given: another one finds what has become of them
SHARED: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()
#: what a trace makes of these is what they hold
CONTAINERS = (list, dict, set)
#: what has a __dict__, and is more than that
NO_OBJECTS: tuple[Any, ...] = (
    *CONTAINERS, tuple, torch.Tensor, torch.nn.Module, type, types.FunctionType, types.ModuleType,
)  # fmt: skip
#: what holds nothing that changes what is computed of it
STATELESS: tuple[Any, ...] = (types.ModuleType, *BUILTIN_METHODS, logging.Logger)


def is_state(value: Any) -> bool:
    """Whether an object may hold something else by a later call: any that is not a value, a module or what libraries define."""
    if isinstance(value, types.FunctionType):
        return not is_library_function(value)
    if isinstance(value, type):
        return False  # what it defines
    return not (is_constant(value) or isinstance(value, STATELESS) or is_identity_type(type(value)))


def is_own_object(outside: Outside, value: Any) -> bool:
    """Whether an object of a class of the program's, or a container, was made by the trace: nothing outside holds it yet."""
    kind = type(value)
    plain = kind in CONTAINERS or (hasattr(value, "__dict__") and not issubclass(kind, NO_OBJECTS))
    return plain and outside.tree.node_of(value) is None


def held_by(value: Any) -> list[Any]:
    """What an object or a container holds now."""
    if type(value) is list:
        return list(value)
    if type(value) in (dict, set):
        return [*value, *(value.values() if type(value) is dict else ())]
    held = object.__getattribute__(value, "__dict__")
    return [*held, *held.values()]


def is_record(cls: type) -> bool:
    """Whether a class is one of named tuples."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def named_state(function: types.FunctionType, constants: dict[Any, Any], seen: set[Any]) -> str | None:
    """The name by which a function, or one of the program's that it names, may read state; ``constants`` takes the values that they name."""
    seen.add(function)
    for name, value in named_by(function):
        while type(value) is LRU_CACHE:
            value = value.__wrapped__
        if isinstance(value, types.FunctionType) and not is_library_function(value):
            found = named_state(value, constants, seen) if value not in seen else None
            if found is not None:
                return found
        elif is_state(value):
            return name
        elif is_constant(value):
            constants[function, name] = value
    return None


def named_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function finds under names: in variables of functions around, defaults and globals."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if not is_empty(cell):
            yield name, cell.cell_contents
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield "a default", value
    for name in dict.fromkeys(names_in(function.__code__)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def names_in(code: types.CodeType) -> Iterator[str]:
    """All names in a function's code and in that of functions in it."""
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_in(part)


# -- what a function gives


def new_tensors(t: Trace, fn: Any, row: Cached, value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a cached function has given, all made by it; what a program may write otherwise is refused."""
    if type(value) in SYMBOLIC or type(value) is UnknownText:
        return
    if type(value) is tuple or is_record(type(value)):
        for part in value:
            yield from new_tensors(t, fn, row, part)
    elif issubclass(type(value), torch.Tensor) and t.outside.tree.node_of(value) is None:
        if value.requires_grad:
            refuse(fn, "gives a tensor that gradients are asked of", row.position)
        yield value
    elif is_own_object(t.outside, value):
        if all(known is not value for known, _ in row.objects):
            row.objects.append((value, held_by(value)))
            for part in row.objects[-1][1]:
                yield from new_tensors(t, fn, row, part)
    elif t.done.is_ours(value) or is_state(value):
        refuse(fn, f"gives a {type(value).__name__}, which is the same object in each call", row.position)


def verify(t: Trace, table: RecipeTable) -> None:
    """Go back to before a cached function whose tensors were written, or get out of the graph: they are the cache's."""
    rows = [(fn, row) for fn, known in t.done.caches.items() for row in known if row.tensors or row.objects]
    if not rows:
        return
    given = set(map(storage_key, handed_out(t.graph.recorder, table)))
    for fn, row in rows:
        kept = set(map(storage_key, row.tensors))
        if kept & memory_written(nodes_after(t.graph.recorder.graph, row.last)):
            what = "gives a tensor that is written"
        elif kept & given:
            what = "gives a tensor that leaves the graph"
        elif any(id(value) in table.ids or not holds_still(value, held) for value, held in row.objects):
            what = "gives an object that is written or leaves the graph"
            SHARED.setdefault(fn, []).append(key_of(row))
        else:
            continue
        t.frames.break_at = BreakSignal("BZ1010", f"the cached function {fn.__name__} {what}", (HINT,))
        raise Retry(row.position)


def key_of(row: Cached) -> Any:
    """What a function was given, or None where symbols or objects are among that: any other call may be given the same."""
    key = (*row.args, *row.kwargs.items())
    return key if is_constant(key) else None


def is_shared(fn: Any, row: Cached) -> bool:
    """Whether what a function gives for some arguments may have been written or handed out by another trace."""
    shared, key = SHARED.get(fn, []), key_of(row)
    return bool(shared) and (key is None or None in shared or key in shared)


def holds_still(value: Any, before: list[Any]) -> bool:
    """Whether an object holds the very same as before."""
    now = held_by(value)
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def handed_out(recorder: Recording, table: RecipeTable) -> Iterator[torch.Tensor]:
    """What the graph hands out."""
    for value, node in recorder.nodes.values():
        if node in table.output_index and isinstance(value, torch.Tensor):
            yield value


FEATURE.objects[LRU_CACHE] = call_cached
FEATURE.checks.append(verify)
