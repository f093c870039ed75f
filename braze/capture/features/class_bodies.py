"""Classes defined while tracing: the body is interpreted, the class is a real one that lives as long as the trace.

A class that gets out (returned, written outside, alive at a break) cannot be made again by residual code: the graph
ends before it is made, and the program makes it itself.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import types
from typing import Any

import torch

from braze import native
from braze.capture.facts import values
from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, Retry, Stopped, graph_break
from braze.capture.facts.libraries import is_library_class
from braze.capture.facts.values import NULL, NUMBER_OF, Lookups
from braze.capture.features.library import is_plain_data
from braze.capture.finish import reconstruction
from braze.capture.graph import overloads
from braze.capture.outside import opaque, reads
from braze.capture.python import attributes, calls
from braze.capture.python.entering import enter
from braze.capture.state.handlers import Feature
from braze.capture.state.ledger import Ledger
from braze.capture.state.trace import Interpreter, Trace

FEATURE = Feature()
rule = FEATURE.call

#: what is remembered of classes, to be forgotten with those of a trace
CACHES: tuple[Any, ...] = (
    attributes.reader_of,
    attributes._class_lookup,
    reads.wrapper_of,
    opaque.is_opaque,
    overloads.speaks_for_itself,
    values.is_identity_type,
    reconstruction.can_be_made,
)


def forget_classes(t: Trace) -> None:
    """Let go of the classes that a trace or the calls before it have made, when it has ended."""
    if t.done.made_classes or t.outside.passing_classes:
        for cache in CACHES:
            cache.cache_clear()


FEATURE.finish.append(forget_classes)


@rule(builtins.__build_class__)
def build_class(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A ``class`` statement."""
    Lookups.end()
    body, name, *given = args
    bases = resolved(t, tuple(given))
    meta, namespace, keywords = prepare(name, bases, kwargs)
    if len(bases) != len(given) or any(a is not b for a, b in zip(bases, given, strict=False)):
        namespace["__orig_bases__"] = tuple(given)
    f = enter(t, body, [NULL] * len(t.frames.decoded(body.__code__).slots), False)
    f.names = namespace
    t.run(f)
    return make(t, meta, name, bases, namespace, keywords)


def resolved(t: Interpreter, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The bases that the given ones stand for."""
    bases: list[Any] = []
    for base in given:
        if isinstance(base, type) or not hasattr(base, "__mro_entries__"):
            bases.append(base)
            continue
        library = is_library_class(type(base))  # typing's, whose makers look at the call stack
        made = (
            base.__mro_entries__(given) if library else t.call(t.attribute(base, "__mro_entries__"), (given,))
        )
        if not isinstance(made, tuple):
            raise TypeError("__mro_entries__ must return a tuple")
        bases += made
    return tuple(bases)


def metaclass_of(bases: tuple[Any, ...], given: Any) -> Any:
    """The most derived of the metaclasses; no code of theirs runs."""
    meta = given
    if not isinstance(meta, type):
        graph_break("BZ1006", "a metaclass that is no class", HINT_MOVE)
    for kind in map(type, bases):
        if issubclass(kind, meta):
            meta = kind
        elif not issubclass(meta, kind):
            raise TypeError(
                "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the metaclasses of all its bases"
            )
    return meta


def prepare(name: str, bases: Any, keywords: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """(metaclass, namespace, the other keywords)."""
    meta = metaclass_of(bases, keywords.get("metaclass", type(bases[0]) if bases else type))
    rest = {k: v for k, v in keywords.items() if k != "metaclass"}
    if isinstance(getattr(meta.__prepare__, "__func__", None), types.FunctionType) and not is_library_class(
        meta
    ):
        graph_break("BZ1006", "a metaclass with __prepare__ of its own", HINT_MOVE)
    return meta, meta.__prepare__(name, bases, **rest), rest


def make(t: Trace, meta: Any, name: str, bases: Any, namespace: Any, keywords: dict[str, Any]) -> Any:
    """Call the metaclass."""
    Lookups.end()
    trusted = meta is type or is_library_class(meta)
    if trusted and not has_hooks(bases, namespace):
        made = native.unhooked(meta, name, bases, namespace, **keywords)
    elif meta is type:
        made = create(t, type, (name, bases, namespace), keywords)
    elif not trusted:
        made = t.call(meta, (name, bases, namespace), keywords)
    else:
        graph_break("BZ1006", f"a class of {meta.__name__} with hooks of its own is defined", HINT_MOVE)
    return own(t.done, made)


def create(t: Trace, maker: Any, args: Any, kwargs: Any) -> Any:
    """``type(...)``, which hides what ends a trace in a ``__set_name__`` behind an error of its own."""
    try:
        return calls.call_c(t, maker, args, kwargs)
    except RuntimeError as error:
        if isinstance(error.__cause__, BreakSignal | Stopped | Retry):
            raise error.__cause__ from None
        raise


def own(done: Ledger, made: type) -> type:
    """A class that the trace made, and the functions that its maker wrote."""
    for value in vars(made).values():
        if type(value) is types.FunctionType:
            done.claim(value)
    return done.claim_class(made)


def has_hooks(bases: Any, namespace: Any) -> bool:
    """Whether making the class calls functions of the user's."""
    for base in bases:
        found, owner = values.lookup_in_mro(base, "__init_subclass__")
        if type(getattr(found, "__func__", None)) is types.FunctionType and not is_library_class(owner):
            return True
    kinds = {type(value) for value in namespace.values()}
    return any(
        type(values.lookup_in_mro(k, "__set_name__")[0]) is types.FunctionType
        for k in kinds
        if not is_library_class(k)
    )


@rule(type)
def type_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``type(value)``, or a class by name, bases and contents."""
    if len(args) == 3:
        if not all(issubclass(type(base), type) for base in args[1]):
            return calls.call_c(t, type, args, kwargs)  # says that it replaces no bases
        meta = types.prepare_class(args[0], args[1])[0]
        return make(t, meta, args[0], args[1], dict(args[2]), kwargs)
    if len(args) != 1:
        graph_break("BZ1006", "type() is called with odd arguments")
    if issubclass(type(args[0]), torch.Tensor):
        return attributes.load_attr(t, args[0], "__class__")
    return NUMBER_OF.get(type(args[0])) or type(args[0])


FEATURE.rows({type.__init__: lambda t, args, kwargs, tail: None})  # all is done by ``__new__``


@rule(type.__new__)
def type_new(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``super().__new__(meta, name, bases, namespace)`` in a metaclass."""
    return own(t.done, create(t, type.__new__, args, kwargs))


# -- makers of classes in the standard library


@rule(dataclasses._process_class)  # type: ignore[attr-defined]
def process_class(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``@dataclass`` writes functions and compiles them: done for real, on a class of the trace."""
    if not t.done.is_ours(args[0]):
        graph_break("BZ1010", f"a dataclass is made of the class {args[0].__name__} from outside")
    return own(t.done, native.unhooked(dataclasses._process_class, *args, **kwargs))  # type: ignore[attr-defined]


@rule(collections.namedtuple)
def namedtuple(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A class of named tuples; its module is that of the caller."""
    if not all(map(is_plain_data, (*args, *kwargs.values()))):
        graph_break("BZ1006", "a class of named tuples is made of values that only the call tells")
    module = t.frames.stack[-1].globals.get("__name__", "__main__")
    return own(t.done, native.unhooked(collections.namedtuple, *args, **{"module": module, **kwargs}))
