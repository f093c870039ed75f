"""The border to C code: what must be true of values that go out, and what comes back in."""

from __future__ import annotations

import collections
import contextlib
import decimal
import fractions
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze import native
from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import (
    BY_VALUE,
    CONSTANTS,
    CONTAINERS,
    MISSING,
    NULL,
    Identity,
    UnknownText,
    is_identity_type,
    lookup_in_mro,
)
from braze.capture.outside.definitions import written
from braze.capture.python.attributes import special_method
from braze.graph import fakes
from braze.graph.torch_compat import DISPATCHER_FILES, disable_functions

if TYPE_CHECKING:
    from braze.capture.trace.tracer import Tracer

#: code of our own that C code starts, not to be interpreted
OURS: set[types.CodeType] = {torch.Tensor.__hash__.__code__}
#: the methods of symbolic sizes: they only compute with sizes and note what was found out about them
_SYMBOLIC_FILE = torch.SymInt.__eq__.__code__.co_filename
_SYMBOLIC_CLASSES = ("SymInt.", "SymFloat.", "SymBool.")


def is_symbolic_code(code: types.CodeType) -> bool:
    """Whether this is the code of a method of symbolic sizes."""
    return code.co_filename == _SYMBOLIC_FILE or (
        code.co_filename == torch.__file__ and code.co_qualname.startswith(_SYMBOLIC_CLASSES)
    )


def is_dispatcher_code(code: types.CodeType) -> bool:
    """Whether PyTorch's dispatcher starts this code, which is no part of the program."""
    return code.co_filename.startswith((*DISPATCHER_FILES, fakes.__file__)) and not code.co_flags & (
        inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    )


#: what C code calls to write a symbol as text: to the program it is a number
SYMBOLS_AS_TEXT = frozenset(c.__repr__.__code__ for c in (torch.SymInt, torch.SymFloat, torch.SymBool))


def text_of_symbol(kind: type, value: Any) -> str:
    """A symbol's number as text; the number is guarded."""
    return repr(kind(value))


def fill(t: Tracer, value: Any) -> None:
    """Read all of a lazily filled dict."""
    node = t.tree.known.get(id(value))
    if node is not None and node.value is value:
        if node.container is not None and not node.container.filled:
            node.container.fill(t)
        return
    shadow = t.dict_views.get(id(value))
    if shadow is not None and shadow.view is value:
        shadow.fill(t)


#: types of most arguments: they hold nothing
LEAVES = CONSTANTS | {FakeTensor, torch.dtype, torch.device, slice}


def fill_arguments(t: Tracer, values: Iterable[Any], depth: int = 0) -> None:
    """Read all of the lazily filled dicts among values that C code gets, however deep."""
    for value in values:
        kind = type(value)
        if kind in LEAVES:
            continue
        if not issubclass(kind, CONTAINERS):
            if kind is UnknownText:
                graph_break("BZ1007", "a tensor is formatted", "format outside the compiled function")
            continue
        if isinstance(value, dict):
            fill(t, value)
            if depth < 4:
                fill_arguments(t, dict.values(value), depth + 1)
        elif depth < 4 and isinstance(value, list | tuple | collections.deque):
            fill_arguments(t, value, depth + 1)


def canonical(t: Tracer, value: Any) -> Any:
    """What stands for an outside object that C code has handed us."""
    found = t.tree.known.get(id(value))
    if found is not None and found.real is value:
        return found.value
    if isinstance(value, torch.Tensor) and not t.recorder.knows(value) and found is None:
        graph_break("BZ1011", "a tensor that C code made where braze could not see it")
    return value


def called_from_c(t: Tracer, function: Any, localsplus: tuple[Any, ...]) -> Any:
    """A Python frame that C code starts while it runs for the program: interpret it."""
    code = function.__code__
    if code in OURS:
        return native.DEFAULT
    if code in SYMBOLS_AS_TEXT:
        kind = {"SymInt": int, "SymFloat": float, "SymBool": bool}[code.co_qualname.partition(".")[0]]
        return native.unhooked(text_of_symbol, kind, localsplus[0])
    if is_symbolic_code(code) or is_dispatcher_code(code):  # with all that it calls
        return native.unhooked(function, *localsplus[: code.co_argcount])
    if code.co_name == "__init_subclass__":
        t.claim(localsplus[0])
    elif code.co_name == "__set_name__":
        t.claim(localsplus[1])
    if any(isinstance(value, torch.autograd.function.FunctionCtx) for value in localsplus):
        # autograd's own C code runs the forward: its results get their history where no graph sees it
        graph_break("BZ1019", "an autograd function is called by C code", "call it by its apply")
    if localsplus:
        guard_special_method(t, function, type(localsplus[0]))
    with t.entered_from_c():
        slots = [NULL] * len(t.decoded(code).slots)
        for index, value in enumerate(localsplus[: len(slots) - len(code.co_freevars)]):
            if value is not NULL:
                slots[index] = canonical(t, value)
        f: Frame = t.enter(function, slots, False)
        if code.co_flags & 0x2A0:
            return t.start_generator(f)
        return t.run(f)


def guard_special_method(t: Tracer, function: Any, cls: type) -> None:
    """Where C code found a function in a class (``list(x)`` calls ``__iter__``), guard that it is there."""
    name = function.__name__
    if lookup_in_mro(cls, name)[0] is not function:
        held = (n for owner in cls.__mro__ for n, v in vars(owner).items() if v is function)
        name = next(held, "")
    if name:
        special_method(t, cls, name)


@contextlib.contextmanager
def entered_from_c(t: Tracer) -> Iterator[None]:
    """Back in the interpreter: no function mode sees what it does itself."""
    with disable_functions() if t.modes_on else contextlib.nullcontext():
        modes, t.modes_on = t.modes_on, 0
        try:
            yield
        finally:
            t.modes_on = modes


@contextlib.contextmanager
def outside_applied(t: Tracer) -> Iterator[None]:
    """Around C code that may look at outside objects: pending attribute writes are there while it runs."""
    undo: list[tuple[dict[str, Any], str, Any]] = []
    for shadow in t.dirty.values():
        if shadow.filled:
            continue
        for key, value in shadow.view.items():
            if shadow.original.get(key, MISSING) is not value:
                undo.append((shadow.real, key, shadow.real.get(key, MISSING)))
                shadow.real[key] = value
    pending = [(owner, name, value, vars(owner).get(name, MISSING)) for owner, name, value in written(t)]
    for owner, name, value, _ in pending:
        setattr(owner, name, value)
    t.modes_on += 1
    try:
        yield
    finally:
        t.modes_on -= 1
        for owner, name, _, before in reversed(pending):
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        for real, key, value in reversed(undo):
            if value is MISSING:
                real.pop(key, None)
            else:
                real[key] = value


def refuse_opaque(t: Tracer, values: Iterable[Any], depth: int = 0) -> None:
    """Break where C code would look into an outside object whose contents no guard can see."""
    for value in values:
        kind = type(value)
        if kind in TRANSPARENT:
            continue
        if kind is list or kind is tuple:
            if depth == 0 and len(value) < 64:
                refuse_opaque(t, value, 1)
        elif is_opaque(kind):
            node = t.tree.node_of(value)
            if node is None or node.step is Step.CONSTANT:
                continue
            if issubclass(kind, IMMUTABLE):
                node.guard(Check.IS, value)
            else:
                graph_break("BZ1014", f"C code looks into a {kind.__name__} that comes from outside")


TRANSPARENT = CONSTANTS | {
    Identity,  # see identities.check_call
    dict,
    weakref.ref,
    torch.SymInt,
    type,
    torch.dtype,
    torch.device,
    torch.Size,
    slice,
    range,
}
#: outside objects of these are guarded whole, or are copied with guards for what they hold
_SEEN_WHOLE = (
    torch.Tensor,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    torch.SymInt,
    functools.partial,
)


#: what instances of subclasses keep beside their attributes never changes
IMMUTABLE = (int, float, complex, str, bytes, decimal.Decimal, fractions.Fraction, torch.qscheme)


def _is_opaque(cls: type) -> bool:
    """Whether instances keep something that is no attribute: subclasses of int, arrays, iterators."""
    if is_identity_type(cls) or issubclass(cls, _SEEN_WHOLE) or cls in BY_VALUE or cls in _FIXED:
        return False
    solid = next(b for b in cls.__mro__ if not b.__flags__ & (1 << 9))
    return solid is not object


is_opaque: Callable[[type], bool] = functools.cache(_is_opaque)
_FIXED = frozenset({types.MethodType, torch.finfo, torch.iinfo})
