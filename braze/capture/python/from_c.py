"""Python frames that C code starts while it runs for the program: they are interpreted."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from typing import Any

import torch

from braze import native
from braze.capture.facts.breaks import graph_break
from braze.capture.facts.bytecode import GENERATORS
from braze.capture.facts.frame import Frame
from braze.capture.facts.operators import COMPARE_METHODS, OF_SYMBOLS
from braze.capture.facts.policy import OURS
from braze.capture.facts.values import NULL, UnknownText, lookup_in_mro
from braze.capture.graph.sizes import as_key
from braze.capture.outside import texts
from braze.capture.python import generators
from braze.capture.python.attributes import special_method
from braze.capture.python.c_border import canonical, entered_from_c
from braze.capture.python.entering import enter
from braze.capture.state.handlers import HANDLERS
from braze.capture.state.trace import Trace
from braze.graph.fakes import fake_dispatch
from braze.graph.private.torch_compat import DISPATCHER_FILES
from braze.graph.private.torch_symbols import SYMBOLIC

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
    return code.co_filename.startswith((*DISPATCHER_FILES, fake_dispatch.__file__)) and not code.co_flags & (
        inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    )


#: what C code calls to write a symbol as text: to the program it is a number
SYMBOLS_AS_TEXT = frozenset(c.__repr__.__code__ for c in SYMBOLIC)


def of_numbers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a method of a symbolic number is given: of truth values the numbers, which SymPy does not compute with."""
    if bool not in map(type, args) or type(args[0]) not in (torch.SymInt, torch.SymFloat):
        return args
    return tuple([int(v) if type(v) is bool else v for v in args])


#: with which symbols compute
OPERANDS = frozenset({int, float, bool, *SYMBOLIC})


#: comparisons of truth values that are symbols, which SymPy does not compare with Python's
TRUTHS_COMPARED = {
    vars(torch.SymBool)[name]: function
    for function, (name, _) in COMPARE_METHODS.items()
    if name in vars(torch.SymBool)
}


def computed(t: Trace, function: Any, operands: tuple[Any, ...]) -> Any:
    """What a symbol's method gives to C code: what the program's own operator gives, which asks what Python refuses."""
    operation, turned = OF_SYMBOLS[function]
    return t.call(operation, operands[::-1] if turned else operands)


def in_python(function: Any, /, *args: Any) -> Any:
    """A call that the interpreter sees, though C code makes it."""
    return function(*args)


ATTRIBUTES = frozenset({"__getattribute__", "__setattr__", "__delattr__"})
UNBOUND = (types.WrapperDescriptorType, types.MethodDescriptorType)
NUMBERS_IN_C = (int, float, bool, complex)
#: functions that only compute, of symbols too, and what looks up attributes
COMPUTING = frozenset({len, abs, sum, any, all, sorted, max, min, divmod, chr, round, pow, hex, oct, bin}) | {
    f for f in vars(operator).values() if type(f) is types.BuiltinFunctionType
}
BY_NAME = (operator.attrgetter, operator.methodcaller)


def as_called(value: Any, symbols: bool) -> Any:
    """What C code is given to call for ``value``: for what has a meaning of its own in a trace, as ``getattr`` has, a call in Python.

    Among symbols that is also what tells them from numbers, as ``type`` and ``int.__add__`` do.
    """
    kind = type(value)
    if kind is types.BuiltinFunctionType:
        blind = value in HANDLERS.calls and value not in COMPUTING
        blind = blind or (symbols and type(value.__self__) in NUMBERS_IN_C)
    elif kind is types.MethodWrapperType:
        blind = value.__name__ in ATTRIBUTES or (symbols and type(value.__self__) in NUMBERS_IN_C)
    elif kind in UNBOUND:
        blind = value.__name__ in ATTRIBUTES or (symbols and value.__objclass__ in NUMBERS_IN_C)
    elif kind is functools.partial:
        blind = as_called(value.func, symbols) is not value.func
    else:
        blind = kind in BY_NAME or (symbols and value is type)
    return functools.partial(in_python, value) if blind else value


def called_from_c(t: Trace, function: Any, localsplus: tuple[Any, ...]) -> Any:
    """A Python frame that C code starts while it runs for the program: interpret it."""
    code = function.__code__
    if code in OURS:
        return native.DEFAULT
    if code in SYMBOLS_AS_TEXT:
        return repr(native.unhooked(as_key, localsplus[0]))  # the number is guarded
    if OPERANDS.issuperset(map(type, localsplus[:2])):
        if function in OF_SYMBOLS:
            return native.unhooked(computed, t, function, localsplus[:2])
        if function in TRUTHS_COMPARED:
            return TRUTHS_COMPARED[function](*native.unhooked(map, as_key, localsplus[:2]))
    if is_symbolic_code(code) or is_dispatcher_code(code):  # with all that it calls
        return native.unhooked(function, *of_numbers(localsplus[: code.co_argcount]))
    if code.co_name == "__init_subclass__":
        t.done.claim_class(localsplus[0])
    elif code.co_name == "__set_name__":
        t.done.claim_class(localsplus[1])
    if any(issubclass(type(value), torch.autograd.function.FunctionCtx) for value in localsplus):
        # autograd's own C code runs the forward: its results get their history where no graph sees it
        graph_break("BZ1019", "an autograd function is called by C code", "call it by its apply")
    if localsplus:
        guard_special_method(t, function, type(localsplus[0]))
    with entered_from_c(t.graph):
        slots = [NULL] * len(t.frames.decoded(code).slots)
        for index, value in enumerate(localsplus[: len(slots) - len(code.co_freevars)]):
            if value is not NULL:
                slots[index] = canonical(t, value)
        f: Frame = enter(t, function, slots, False)
        if code.co_flags & GENERATORS:
            return generators.start(t, f)
        return for_c(function.__name__, t.run(f))


#: methods whose results C code takes for numbers of Python's
NUMBERS = frozenset(
    {"__index__", "__len__", "__length_hint__", "__hash__", "__int__", "__float__", "__complex__", "__bool__"}
)


def for_c(name: str, result: Any) -> Any:
    """What a Python function gives to the C code that has called it: text is written, and so are numbers where C code wants their digits."""
    if type(result) is UnknownText:
        return texts.written(result)
    return as_key(result) if name in NUMBERS else result


def guard_special_method(t: Trace, function: Any, cls: type) -> None:
    """Where C code found a function in a class (``list(x)`` calls ``__iter__``), guard that it is there."""
    name = function.__name__
    if lookup_in_mro(cls, name)[0] is not function:
        held = (n for owner in cls.__mro__ for n, v in vars(owner).items() if v is function)
        name = next(held, "")
    if name:
        special_method(t, cls, name)
