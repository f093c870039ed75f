"""Callables with a meaning of their own while tracing: one row each in the table of handlers."""

from __future__ import annotations

import copyreg
import inspect
import operator
import sys
import threading
import types
import typing
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze import native
from braze.capture.facts import markers
from braze.capture.facts.breaks import FORMATTED, HINT_FORMAT, HINT_MOVE, LOOKS_AT_THE_STACK, graph_break
from braze.capture.facts.libraries import is_library_class
from braze.capture.facts.operators import METHODS
from braze.capture.facts.values import (
    MISSING,
    NULL,
    NUMBER_OF,
    Identity,
    UnknownText,
    held,
    is_immutable,
    lookup_in_mro,
    missing,
)
from braze.capture.graph import constant_evaluation, floats, overloads, unbacked
from braze.capture.outside import identities, texts
from braze.capture.outside.class_values import class_value, is_programs, trust_class_value
from braze.capture.outside.looked_into import fill
from braze.capture.outside.unread import handed_on
from braze.capture.python import calls, named_attributes, operations, raised
from braze.capture.python.attributes import (
    class_lookup,
    generic_attr,
    instance_value,
    load_attr,
    note_absent,
    tell,
)
from braze.capture.python.from_c import as_called
from braze.capture.python.iteration import (
    SEQUENCES,
    advance,
    elements,
    iterate,
    length,
    refuse_outside_iterator,
)
from braze.capture.python.stores import delete_attr, generic_delete, generic_store, store_attr
from braze.capture.state.handlers import Feature
from braze.capture.state.ledger import Ledger
from braze.capture.state.trace import Trace
from braze.graph.private.torch_symbols import SYMBOLIC

FEATURE = Feature()
rule = FEATURE.call

GETATTR_STATIC: Any = inspect.getattr_static
#: how deep tuples of classes are looked into while tracing
NESTED = 20


def always(value: Any, *targets: Any) -> None:
    """Callables that give one answer while tracing."""
    rule(*{id(f): f for f in targets}.values(), unless_known=True)(lambda t, args, kwargs, tail: value)


def named(home: Any, *names: str) -> list[Any]:
    """The functions that a module has under these names; versions differ."""
    return [getattr(home, n) for n in names if hasattr(home, n)]


# -- attributes


def with_name(args: Any) -> Any:
    """The arguments of a function of attributes: which name it is asked for is looked at, if it is text of a number that changes."""
    name = texts.written(args[1]) if len(args) > 1 else ""
    if not issubclass(type(name), str):
        raise TypeError(f"attribute name must be string, not {type(texts.now(name)).__name__!r}")
    return (args[0], name, *args[2:]) if len(args) > 1 else args


@rule(getattr)
def getattr_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    found = handed_on(t, named_attributes.named, *args[:2]) if len(args) in (2, 3) else MISSING
    if found is named_attributes.ABSENT and len(args) == 3:
        return args[2]
    if found is not MISSING and found is not named_attributes.ABSENT:
        return found
    args = with_name(args)
    if len(args) == 2:
        return handed_on(t, load_attr, args[0], args[1], tail)
    obj, name, default = args
    try:
        return handed_on(t, load_attr, obj, name)
    except AttributeError:
        return default


@rule(hasattr)
def hasattr_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    found = handed_on(t, named_attributes.named, *args) if len(args) == 2 else MISSING
    if found is not MISSING:
        return found is not named_attributes.ABSENT
    try:
        handed_on(t, load_attr, *with_name(args))
    except AttributeError:
        return False
    return True


@rule(GETATTR_STATIC)
def getattr_static(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """What an object or its class holds; protocols look so from Python 3.12 on."""
    obj, name, *default = texts.look_into(args)
    cls = type(obj)
    if kwargs or issubclass(cls, type | types.ModuleType | torch.Tensor) or type(name) is not str:
        return calls.interpret(t, GETATTR_STATIC, args, kwargs, tail)
    found, owner, data = class_lookup(cls, name)
    value = MISSING if data else instance_value(t.outside, obj, name)
    if value is not MISSING:
        return value
    note_absent(t, cls, name, owner)
    if found is not MISSING:
        return class_value(t, owner, name, found)
    if default:
        return default[0]
    raise AttributeError(name)


FEATURE.rows(
    {
        setattr: lambda t, args, kwargs, tail: store_attr(t, *with_name(args)),
        delattr: lambda t, args, kwargs, tail: delete_attr(t, *with_name(args)),
        object.__setattr__: lambda t, args, kwargs, tail: generic_store(t, *with_name(args)),
        object.__delattr__: lambda t, args, kwargs, tail: generic_delete(t, *with_name(args)),
        # does nothing, but for refusing arguments
        object.__init__: lambda t, args, kwargs, tail: object.__init__(*args, **kwargs),
        type.__call__: lambda t, args, kwargs, tail: calls.make(t, args[0], args[1:], kwargs),
        len: lambda t, args, kwargs, tail: length(t, args[0]),
        bool: lambda t, args, kwargs, tail: t.truth(args[0]) if args else False,
        next: lambda t, args, kwargs, tail: advance(t, args[0], *(args[1:] or (None, True))),
        # good for comparisons and as a key; that two objects are not one is guarded
        id: lambda t, args, kwargs, tail: identities.identity(t, args[0]),
        # in front of a resumed frame's code: its residual function empties the state when it has read it
        native.emptied: lambda t, args, kwargs, tail: None,
        # in front of a resumed frame's code: there is no frame to show in a traceback
        native.taken_over: lambda t, args, kwargs, tail: args[0],
    }
)


@rule(object.__getattribute__)
def object_getattribute(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    obj, name = with_name(args)
    value = generic_attr(t, obj, name)
    if value is MISSING:
        error = missing(obj, name)
        tell(error, obj, name)
        raise error
    return value


@rule(object.__reduce_ex__)
def object_reduce(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """How ``copy`` takes a plain object apart: a new one of its class, and its attributes."""
    obj, cls = args[0], type(args[0])
    plain = "__reduce__ __getstate__ __getnewargs_ex__ __getnewargs__ __slots__"
    found = {name: lookup_in_mro(cls, name)[1] for name in plain.split()}
    if cls is types.SimpleNamespace and t.outside.tree.node_of(obj) is None:
        return cls, (), vars(obj)
    told = held(cls, "__dict__").get("__slotnames__")  # copyreg notes here that there are none
    if told or any(owner not in (None, object) for owner in found.values()) or calls.is_native(cls):
        calls.refuse(object.__reduce_ex__)
    state = load_attr(t, obj, "__dict__")
    fill(t.outside, state)
    return copyreg.__newobj__, (cls,), state or None, None, None  # type: ignore[attr-defined]


@rule(super)
def super_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if args:
        return super(*map(operations.number, args))
    f = t.frames.stack[-1]
    if not f.code.co_argcount:
        raise RuntimeError("super(): no arguments")
    if "__class__" not in f.code.co_freevars:
        raise RuntimeError("super(): __class__ cell not found")
    cell = f.locals[f.decoded.slots.index("__class__", len(f.locals) - len(f.code.co_freevars))]
    first = f.locals[0]
    try:
        if type(first) is types.CellType and f.code.co_varnames[0] in f.code.co_cellvars:
            first = first.cell_contents
        owner = cell.cell_contents
    except ValueError:
        graph_break("BZ1006", "super() without a class, or without its first argument")
    if first is NULL:
        graph_break("BZ1006", "super() without its first argument")
    return super(owner, first)


@rule(isinstance)
def isinstance_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    value, kinds = args
    refuse_deep_tuples(kinds)
    if asks_python(kinds, "__instancecheck__"):
        return calls.call_c(t, isinstance, args, kwargs)
    if tells_its_class(t, type(value)) or (
        # which looks at attributes: those of these never come and go
        is_protocol(kinds) and not is_immutable(type(value)) and not issubclass(type(value), torch.Tensor)
    ):
        return calls.call_c(t, isinstance, args, kwargs, True)
    if type(value) in SYMBOLIC:  # of any kind of which the number is that it stands for
        return isinstance(NUMBER_OF[type(value)](), kinds)
    told = isinstance(value, kinds)
    if told and type(value) is FakeTensor:  # a stand-in to us alone
        return isinstance(value, tuple(kind for kind in _each_kind(kinds) if kind is not FakeTensor))
    return told


def _each_kind(kinds: Any) -> list[Any]:
    """The classes that ``isinstance`` is asked for, one by one."""
    if type(kinds) is types.UnionType:
        kinds = kinds.__args__
    return [found for kind in kinds for found in _each_kind(kind)] if type(kinds) is tuple else [kinds]


@rule(issubclass)
def issubclass_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    refuse_deep_tuples(args[-1])
    if asks_python(args[-1], "__subclasscheck__"):
        return calls.call_c(t, issubclass, args, kwargs)
    return issubclass(*args)


def refuse_deep_tuples(kinds: Any) -> None:
    """Tuples in tuples of classes go as deep as the program's recursion limit lets them, which is not the tracer's."""
    depth = 0
    while type(kinds) is tuple and kinds:
        kinds, depth = kinds[0], depth + 1
        if depth > NESTED:
            graph_break("BZ1006", "a class is looked for in tuples that are nested deeply", HINT_MOVE)


def tells_its_class(t: Trace, cls: type) -> bool:
    """Whether Python code of the program's says what the class of an object is."""
    told, owner = lookup_in_mro(cls, "__class__")
    if owner is not object and not is_library_class(owner):
        trust_class_value(t, owner, "__class__", told)
        return True
    return is_programs(cls, "__getattribute__")


def asks_python(kinds: Any, method: str) -> bool:
    """Whether a class, or one of a tuple of classes, has Python code of the program's that says what its instances are."""
    if type(kinds) is tuple:
        return any(asks_python(kind, method) for kind in kinds)
    return type(kinds) is not type and is_programs(type(kinds), method)


def is_protocol(kinds: Any) -> bool:
    """Whether a class, or one of a tuple of classes, looks at the attributes of an object to say that it is an instance."""
    if type(kinds) is tuple:
        return any(map(is_protocol, kinds))
    return isinstance(kinds, type(typing.Protocol)) and bool(vars(kinds).get("_is_protocol"))


# -- iteration


@rule(iter)
def iter_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if len(args) == 2:
        function, last = args  # which is called when an item is asked for
        return iter(as_called(function, t.graph.mode.env is not None), last)
    return iterate(t, args[0])


#: classes that do not look at the elements that they get
HANDING_ON = (list, tuple, enumerate)


@FEATURE.each(list, tuple, set, frozenset, enumerate, sum, any, all, sorted)
def over_elements(cls: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Classes and functions of C that iterate over their first argument only."""
    if args:
        first = own_iterable(t, args[0])
        args = (along(first) if cls in HANDING_ON else first, *args[1:])
    return calls.call_c(t, cls, args, kwargs)


@FEATURE.each(zip, map, filter)
def over_all(cls: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``zip`` and ``map``: each argument is iterated, but for a function in front."""
    given = tuple(own_iterable(t, a) for a in args)
    return calls.call_c(t, cls, tuple(map(along, given)) if cls is zip else given, kwargs)


def own_iterable(t: Trace, value: Any) -> Any:
    """A value that C code may iterate: but for tensors as it is, so that its class is asked for what C asks for, once."""
    if issubclass(type(value), calls.CONTAINER_BASES) or (
        callable(value) and not issubclass(type(value), torch.nn.Module)
    ):
        return value
    if isinstance(value, torch.Tensor):
        return iterate(t, value)
    refuse_outside_iterator(t, value)
    return value


def along(value: Any) -> Any:
    """An iterator over a list or tuple with arrays from outside, for C code that does nothing but hand them on."""
    if type(value) in SEQUENCES and any(type(v) is np.ndarray for v in value):
        return iter(value)
    return value


@rule(reversed)
def reversed_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    method = operations.python_method(t, args[0], "__reversed__") if len(args) == 1 else MISSING
    if method is not MISSING:
        return t.call(method, args, None, tail)
    if len(args) == 1 and not kwargs and along(args[0]) is not args[0]:
        return reversed(args[0])
    return calls.call_c(t, reversed, args, kwargs)


@FEATURE.each(max, min)
def extreme(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``max`` and ``min``: of numbers that only the data tell, a number like them."""
    if len(args) == 1 and not kwargs and t.options.capture_dynamic_output_shape_ops:
        args = (elements(t, args[0]),)
    values = args if len(args) > 1 else args[0] if args and type(args[0]) in (list, tuple) else ()
    if not kwargs and any(map(unbacked.is_unbacked, values)):
        if all(type(a) in (int, torch.SymInt) for a in values):
            return unbacked.extreme(t.graph, values, torch.sym_max if function is max else torch.sym_min)
    if (
        not kwargs
        and values
        and torch.SymFloat in map(type, values)
        and NUMBERS.issuperset(map(type, values))
    ):
        found, *others = values
        for value in others:
            if t.truth(operations.compare(t, operator.gt if function is max else operator.lt, value, found)):
                found = value
        return found
    if len(args) == 1:
        args = (own_iterable(t, args[0]),)
    return calls.call_c(t, function, args, kwargs)


NUMBERS = frozenset({int, float, bool, torch.SymInt, torch.SymFloat})


@rule(operator.index)
def index_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if issubclass(type(args[0]), torch.Tensor):
        read = constant_evaluation.read(t.graph.recorder, "__index__", args[0])
        if read is not MISSING:
            return read
        graph_break("BZ1004", "a tensor is used as an index into a Python sequence")
    return calls.call_c(t, operator.index, args, kwargs) if type(args[0]) is not torch.SymInt else args[0]


@FEATURE.each(int, float)
def number(kind: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``int`` and ``float`` of a tensor or a symbolic size."""
    if args and issubclass(type(args[0]), torch.Tensor):
        read = constant_evaluation.read(t.graph.recorder, f"__{kind.__name__}__", args[0])
        if read is MISSING:
            read = unbacked.read(t.graph.recorder, f"__{kind.__name__}__", args[0])
        if read is not MISSING:
            return read
        hints = "keep the value in a tensor", unbacked.HINT_SCALARS
        graph_break("BZ1004", f"{kind.__name__}() reads what a tensor holds", *hints)
    if kind is int and (whole := floats.asked(t.graph, int, args, kwargs)) is not MISSING:
        return whole  # no size is made of it
    if kind is int and len(args) == 1 and floats.is_computed(t.graph, args[0]):
        return int(args[0])
    if args and type(args[0]) in SYMBOLIC:
        return torch.sym_int(args[0]) if kind is int else torch.sym_float(operations.as_integer(args[0]))
    return calls.call_c(t, kind, args, kwargs)


@rule(divmod)
def divmod_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``divmod`` of a symbolic number: its two halves, which raise what it raises."""
    if (
        len(args) == 2
        and not kwargs
        and not {torch.SymInt, torch.SymFloat}.isdisjoint(map(type, args))
        and all(type(a) in (int, float, torch.SymInt, torch.SymFloat) for a in args)
    ):
        return operations.binary(t, operator.floordiv, *args), operations.binary(t, operator.mod, *args)
    return calls.call_c(t, divmod, tuple(map(operations.number, args)), kwargs)


#: functions of C that take symbols where they have so many arguments. Else a symbol must be the number that it stands for, which is guarded
OF_NUMBERS = {chr: 0, round: 1}


@FEATURE.each(*OF_NUMBERS)
def of_numbers(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if function is round and (whole := floats.asked(t.graph, round, args, kwargs)) is not MISSING:
        return whole
    if function is round and (made := floats.rounded(t.graph, args, kwargs)) is not MISSING:
        return made
    if len(args) + len(kwargs) != OF_NUMBERS[function] or any(floats.is_computed(t.graph, a) for a in args):
        args = tuple(map(operations.number, args))
        kwargs = {k: operations.number(v) for k, v in kwargs.items()}
    return calls.call_c(t, function, args, kwargs)


@FEATURE.each(*METHODS, pow)
def of_operators(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Operators that are called: of symbols what is written with the operator gives."""
    if len(args) == 2 and not kwargs and not {*map(type, args)}.isdisjoint(SYMBOLIC):
        return operations.binary(t, operator.pow if function is pow else function, *args)
    if function is pow:  # of three
        args = tuple(map(operations.number, args))
        kwargs = {k: operations.number(v) for k, v in kwargs.items()}
    return calls.call_c(t, function, args, kwargs)


@rule(hash)
def hash_(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Of what is hashed by its address a number like that of ``id``; the hash of a value is a constant."""
    if len(args) == 1 and identities.is_hashed_by_address(args[0]):
        return identities.identity(t, args[0], hash)
    if len(args) == 1 and identities.hides_addresses(args[0]):
        identities.refuse("is mixed into a hash")
    return calls.call_c(t, hash, tuple(map(operations.number, args)), kwargs)


# -- what must not run while tracing


def refuse(code: str, reason: str, *targets: Any) -> None:
    """Callables that end the graph."""

    def run(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
        graph_break(code, reason, HINT_MOVE)

    rule(*targets)(run)


refuse("BZ1001", "braze.graph_break() was called", markers.graph_break)
refuse("BZ1007", "input() and open() talk to the outside", input, open)
refuse("BZ1006", "eval, exec and compile are not interpreted", eval, exec, compile)
refuse("BZ1006", LOOKS_AT_THE_STACK, *named(sys, "_getframe", "_getframemodulename"))
refuse("BZ1013", "a quantized tensor is made, which graphs do not hold", torch.quantize_per_tensor)


@rule(threading.get_ident)
def get_ident(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Which thread this is: good as a key, as ids are."""
    t.outside.identities[-1] = None
    return t.done.claim(Identity(threading.get_ident()))


@rule(sys.exc_info)
def exc_info(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    error = exception(t, args, kwargs, tail)
    return (type(error), error, error.__traceback__) if error is not None else (None, None, None)


@rule(sys.exception)
def exception(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if t.frames.handled is None and t.outside.settings.is_handling():
        graph_break("BZ1012", "the exception that a caller handles is asked for")
    return t.frames.handled


@rule(native.throw)
def throw(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """What an operation outside the graph has raised goes on in the frame."""
    (error,) = args
    raised.about_to_raise(t, error)
    if not isinstance(error, Exception):
        graph_break("BZ1012", f"{type(error).__name__} is raised")
    native.throw(error)


# -- torch: what a capture answers

always(
    True,
    markers.is_compiling,
    *named(torch.compiler, "is_compiling", "is_dynamo_compiling"),
    *named(torch._utils, "is_compiling"),
)
always(False, *named(torch.compiler, "is_exporting"), *named(torch.jit, "is_scripting", "is_tracing"))
always(False, *named(torch._jit_internal, "is_scripting"))
# the modes that are on while tracing are ours: a guard says that the program has none
always(0, *named(torch._C, "_len_torch_dispatch_stack", "_len_torch_function_stack"))
always(None, *named(torch._C, "_log_api_usage_once"))
# a step begins for PyTorch's own recordings; ours need not be told
always(None, markers.mark_step_begin, *named(torch.compiler, "cudagraph_mark_step_begin"))
_ASKING = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@rule(*{*named(torch._C, *(f"_{name}" for name in _ASKING)), *named(torch.overrides, *_ASKING)})
def has_torch_function(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Whether an argument stands for a tensor by rules of its own."""
    return bool(overloads.overloaded(args))


@rule(torch.overrides.handle_torch_function)
def handle_torch_function(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A function of PyTorch's written in Python asks such arguments."""
    function, relevant, *given = args
    return overloads.ask(t, overloads.overloaded(relevant), function, tuple(given), kwargs)


# -- text of numbers that are symbols is written when the graph has run


@FEATURE.each(str, repr, ascii, format, hex, oct, bin)
def written_by(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A function of C that writes text of a number, whichever it is."""
    if function is str and args and issubclass(type(args[0]), torch.Tensor):
        graph_break(*FORMATTED, HINT_FORMAT)
    if args and not kwargs and texts.is_told_later(args[0]):
        found = told_later(t.done, function, args)
        if found is not None:
            return found
    return calls.call_c(t, function, tuple(map(operations.number, args)), kwargs)


def told_later(done: Ledger, function: Any, args: Any) -> Any:
    """The text of one symbol, or of other such text; None where it must be known now."""
    if function is format:
        return texts.formatted(done, args[0], None, args[1] if len(args) == 2 else "")
    if function is str and type(args[0]) is UnknownText:
        return args[0] if len(args) == 1 else None
    return texts.later(done, function, *args) if len(args) == 1 else None


def join(t: Trace, owner: str, args: Any, kwargs: Any, tail: bool) -> Any:
    """``", ".join(parts)``."""
    if (
        len(args) != 1
        or kwargs
        or type(args[0]) not in (list, tuple)
        or UnknownText not in map(type, args[0])
    ):
        return MISSING
    found = texts.joined(t.done, args[0], owner)
    return MISSING if found is None else found


FEATURE.methods[str, "join"] = join


# -- calls with more or fewer arguments than a function takes


#: functions of C that take no keywords, and how many arguments each takes
COUNTS: dict[Any, tuple[int, int]] = {
    getattr: (2, 3),
    isinstance: (2, 2),
    issubclass: (2, 2),
    iter: (1, 2),
    next: (1, 2),
    len: (1, 1),
    bool: (0, 1),
    id: (1, 1),
    operator.index: (1, 1),
    sys.exc_info: (0, 0),
    sys.exception: (0, 0),
}


def counted(function: Any, meaning: Any) -> Any:
    """What a call means that has as many arguments as the function takes; any other raises the function's own error."""
    least, most = COUNTS[function]

    def run(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
        if kwargs or not least <= len(args) <= most:
            return function(*args, **kwargs)
        return meaning(t, args, kwargs, tail)

    return run


FEATURE.calls = [
    (targets, counted(targets[0], meaning) if targets[0] in COUNTS else meaning, weak)
    for targets, meaning, weak in FEATURE.calls
]
