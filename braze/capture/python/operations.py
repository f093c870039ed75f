"""Operators on the interpreter's values: by Python code of the operands' classes, by the recorder, or by C."""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.facts.breaks import HINT_FORMAT, graph_break
from braze.capture.facts.libraries import is_library_class
from braze.capture.facts.operators import COMPARE_METHODS, METHODS, NOT_IN_PLACE, UNARY_METHODS, named
from braze.capture.facts.policy import is_found_by_c
from braze.capture.facts.values import CONSTANTS, MISSING, NUMBER_OF, UnknownText, lookup_in_mro
from braze.capture.graph import floats, places, unbacked
from braze.capture.graph.sizes import HASHED, as_key
from braze.capture.outside import chosen, texts, told_apart
from braze.capture.outside.class_values import in_class_dict
from braze.capture.outside.held import dropped, looked_at, may_end_with_code, replaced
from braze.capture.outside.looked_into import fill_arguments
from braze.capture.outside.opaque import says_by_code
from braze.capture.outside.shadows import DictShadow, guard_keys, keys_of
from braze.capture.outside.unread import (
    counts,
    element,
    last_elements,
    number_of_elements,
    read_whole,
    written_at,
)
from braze.capture.python.attributes import special_method
from braze.capture.python.calls import call_c
from braze.capture.python.tensors import require_own
from braze.capture.state.ledger import Ledger
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Interpreter, Trace
from braze.graph.private.torch_symbols import SYMBOLIC

TEXT = frozenset({str, UnknownText})
SAFE = CONSTANTS | {slice, range, torch.dtype, torch.device, torch.Size, type, *SYMBOLIC}

#: what the second operand is compared with where Python may refuse it: nothing is divided by 0, or shifted by less
REFUSALS = {named(f"{i}{n}"): operator.ne for n in ("floordiv", "mod", "truediv") for i in ("", "i")}
REFUSALS |= {named(f"{i}{n}"): operator.ge for n in ("lshift", "rshift") for i in ("", "i")}
WHOLE_QUOTIENTS = frozenset({operator.floordiv, operator.ifloordiv})
POWERS = frozenset({operator.pow, operator.ipow})


def python_method(t: Trace, value: Any, name: str) -> Any:
    """A special method written in Python, or MISSING."""
    found = special_method(t, type(value), name)
    return found if type(found) is types.FunctionType else MISSING


def binary(t: Trace, function: Any, a: Any, b: Any, tail: bool = False) -> Any:
    """``a + b`` and the like, and their in-place forms."""
    if issubclass(type(a), torch.Tensor) or issubclass(type(b), torch.Tensor):
        return tensor_operator(t, function, a, b)
    if type(a) in TEXT or type(b) is UnknownText:
        later = text_of_two(t.done, function, a, b)
        if later is not None:
            return later
        a, b = texts.written(a), texts.written(b)
    if type(a) in SAFE and type(b) in SAFE:
        a, b = without_truths(function, a, b)
        a, b = defined(t, function, a, b)
        if type(a) is torch.SymFloat or type(b) is torch.SymFloat:
            return floats.combine(t.graph, function, a, b)
        if type(a) is torch.SymInt or type(b) is torch.SymInt:
            made = on_numbers(t.graph.mode.ground.combined, function, a, number(b) if type(a) is str else b)
            return (
                made
                if type(made) is torch.SymInt
                else floats.noted_as_written(t.graph, floats.TOTAL.get(function), (a, b), made)
            )
        return on_numbers(function, a, number(b) if type(a) is str else b)
    *own, reflected = METHODS[function]
    return by_classes(t, function, a, b, own, reflected)


def defined(t: Trace, function: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Operands of which it is guarded that Python computes with them, or refuses to: the algebra of symbols raises nothing for others."""
    if function in POWERS:
        return of_power(t, a, b)
    asked = REFUSALS.get(function)
    if asked is not None and (type(b) in (int, float) or is_told(b)) and not t.truth(compare(t, asked, b, 0)):
        return number(a), number(b)  # which Python refuses in its own words
    if function in WHOLE_QUOTIENTS and is_below_zero(t, b):
        return unary(t, operator.neg, a), unary(t, operator.neg, b)
    return a, b


def is_below_zero(t: Trace, divisor: Any) -> bool:
    """Whether an integer is, where PyTorch's algebra is not to see it: it takes ``n // a // b`` for ``n // (a * b)``, which holds above zero."""
    if type(divisor) is int or (type(divisor) is torch.SymInt and is_told(divisor)):
        return t.truth(compare(t, operator.lt, divisor, 0))
    return False


def of_power(t: Trace, a: Any, b: Any) -> tuple[Any, Any]:
    """The operands of a power, as numbers where one of the base, or a root, may be refused or be complex."""
    if type(b) is int and b >= 0:
        return a, b
    if is_told(a):
        positive = t.truth(compare(t, operator.gt, a, 0))
    elif type(a) is int and a < 0 and type(b) is torch.SymInt and is_told(b):
        positive = t.truth(compare(t, operator.ge, b, 0))
    else:
        positive = type(a) not in (int, float) or a > 0
    return (a, b) if positive else (number(a), number(b))


def is_told(value: Any) -> bool:
    """Whether a number changes, and may be asked what it is in this call."""
    return type(value) in SYMBOLIC and not unbacked.is_unbacked(value)


def text_of_two(done: Ledger, function: Any, a: Any, b: Any) -> Any:
    """``a + b`` and ``a % b`` where symbols stand in text; None where there are none, or the text must be known now."""
    if function in (operator.mod, operator.imod) and type(a) is str:
        return texts.percent(done, a, b)
    if UnknownText in (type(a), type(b)) and function in (operator.add, operator.iadd):
        return texts.joined(done, (a, b))
    return None


def by_classes(t: Trace, function: Any, a: Any, b: Any, own: Sequence[str], reflected: str) -> Any:
    """An operator by the methods of its operands' classes. C asks them, in its order and each once; they are guarded here."""
    if len(own) == 2 and type(special_method(t, type(a), own[0])) is types.WrapperDescriptorType:
        refuse_written(t.outside, a, f"a {type(a).__name__} from outside is computed with in place")
    for name in own:
        special_method(t, type(a), name)
    special_method(t, type(b), reflected)
    return call_c(t, function, (a, b), None)


def on_numbers(function: Any, *args: Any) -> Any:
    """A function in C of plain values; where it does not take the symbols among them, of the numbers that they stand for."""
    try:
        return function(*args)
    except TypeError:
        if not any(type(v) in SYMBOLIC for v in args):
            raise
    if issubclass(type(function), types.MethodType):  # the ground's, of an operator and its operands
        function, *args = args  # type: ignore[assignment]
    return function(*map(number, args))


#: what of two truth values is one, which PyTorch's symbols know
OF_TRUTHS = frozenset({operator.and_, operator.or_, operator.iand, operator.ior})
TRUTHS = frozenset({bool, torch.SymBool})


def without_truths(function: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Operands with their truth values as numbers where a symbol is among them: SymPy's truth values are no numbers, Python's are."""
    kinds = type(a), type(b)
    if (
        TRUTHS.isdisjoint(kinds)
        or kinds == (bool, bool)
        or (function in OF_TRUTHS and TRUTHS.issuperset(kinds))
    ):
        return a, b
    if torch.SymBool not in kinds and not any(kind in SYMBOLIC for kind in kinds):
        return a, b
    if TRUTHS.issuperset(kinds):
        return number(a), number(b)
    return (int(number(a)), b) if kinds[0] in TRUTHS else (a, int(number(b)))


def number(value: Any) -> Any:
    """A symbol as the number that it stands for, which is guarded from here on; anything else as it is."""
    kind = type(value)
    if kind is torch.Size:  # writes its symbols by C code of its own
        return torch.Size(map(number, value))
    return NUMBER_OF[kind](value) if kind in SYMBOLIC else value


def as_integer(value: Any) -> Any:
    """A truth value as the number that it is in Python; anything else as it is."""
    return int(number(value)) if type(value) in TRUTHS else value


def tensor_operator(t: Trace, function: Any, a: Any, b: Any) -> Any:
    """An operator with a tensor: one node, unless the other side has Python code for it."""
    require_own(t.outside, *(METHODS.get(function) or COMPARE_METHODS[function]))
    other = b if issubclass(type(a), torch.Tensor) else a
    if not issubclass(type(other), torch.Tensor) and type(other) not in SAFE:
        names: tuple[str, ...] = METHODS.get(function) or COMPARE_METHODS.get(function) or ()
        for name in names:
            special_method(t, type(other), name)
        return call_c(t, function, (a, b), None)
    if not issubclass(type(a), torch.Tensor):
        function = NOT_IN_PLACE.get(function, function)
    return t.graph.recorder.call(function, (a, b), {})


def compare(t: Trace, function: Any, a: Any, b: Any, tail: bool = False) -> Any:
    """``a < b`` and the like."""
    if issubclass(type(a), torch.Tensor) or issubclass(type(b), torch.Tensor):
        if (a is None or b is None or issubclass(type(a), str) or issubclass(type(b), str)) and function in (
            operator.eq,
            operator.ne,
        ):
            require_own(t.outside, *COMPARE_METHODS[function])
            return function is operator.ne
        return tensor_operator(t, function, a, b)
    if UnknownText in (type(a), type(b)):
        a, b = texts.written(a), texts.written(b)
    if type(a) in SAFE and type(b) in SAFE:
        if torch.SymFloat in (type(a), type(b)):
            decided = floats.decided(t.graph, function, a, b)
            if decided is not MISSING:
                return decided
        return on_numbers(function, *without_truths(function, a, b))
    own, reflected = COMPARE_METHODS[function]
    return by_classes(t, function, a, b, (own,), reflected)


def unary(t: Trace, function: Any, a: Any) -> Any:
    """``-a`` and the like."""
    if issubclass(type(a), torch.Tensor):
        require_own(t.outside, UNARY_METHODS[function])
        return t.graph.recorder.call(function, (a,), {})
    if type(a) is torch.SymFloat:
        return floats.combine(t.graph, function, a)
    if type(a) is torch.SymInt and function is operator.invert:
        return t.graph.mode.ground.combined(operator.sub, -1, a)
    if type(a) in SYMBOLIC:
        return on_numbers(function, a)
    method = python_method(t, a, UNARY_METHODS[function])
    if method is not MISSING:
        return t.call(method, (a,), None)
    return call_c(t, function, (a,), None)


def unfilled(outside: Outside, obj: Any) -> DictShadow | None:
    """The lazily filled shadow that a dict is the view of."""
    node = outside.tree.known.get(id(obj))
    if node is not None and node.value is obj:
        shadow = node.container
    else:
        shadow = outside.dict_views.get(id(obj))
        if shadow is not None and shadow.view is not obj:
            shadow = None
    return shadow if isinstance(shadow, DictShadow) and not shadow.filled else None


def shadow_with(outside: Outside, obj: Any, key: Any) -> DictShadow | None:
    """The lazily filled shadow in which a key is looked up past the interpreter; none of the program's code runs there."""
    shadow = unfilled(outside, obj)
    if shadow is not None:
        shadow.refuse_code(key)
    else:
        told_apart.compared(outside, (key,))
    return shadow


#: keys of which each is compared with an integer that changes, and types of such keys
FEW, PLAIN_KEYS = 32, frozenset({int, bool, float, str, bytes, type(None)})


#: types of keys by which an item is written that nothing has looked for
KEYS_OF_LATER = frozenset({int, str, torch.SymInt, UnknownText})


def key_among(t: Trace, holder: Any, key: Any) -> Any:
    """The key of a set or dict that an integer that changes is, or MISSING: guarded by comparisons with each, rather than by its value.

    The number that it is where there are many keys, or others than numbers and text.
    """
    if type(key) is not torch.SymInt or unbacked.is_unbacked(key) or type(holder) not in HASHED:
        return as_key(key)
    shadow = unfilled(t.outside, holder)
    keys = list(holder) if shadow is None else keys_of(shadow.real)
    if len(keys) > FEW or not PLAIN_KEYS.issuperset(map(type, keys)):
        return as_key(key)
    if shadow is not None:
        if shadow.changed():
            return as_key(key)
        guard_keys(t.outside, shadow, keys)
    numbers = [k for k in keys if type(k) in (int, bool, float)]
    return next((k for k in numbers if t.truth(compare(t, operator.eq, key, k))), MISSING)


def contains(t: Trace, container: Any, item: Any) -> bool:
    """``item in container``."""
    kind = type(container)
    if issubclass(type(container), HASHED):
        if chosen.is_key(item) and (told := chosen.holds(t, container, item)) is not MISSING:
            return told  # type: ignore[no-any-return]
        item = key_among(t, container, item)
        if item is MISSING:
            return False
        told_apart.compared(t.outside, (item,))
    if kind is dict:
        shadow = shadow_with(t.outside, container, item)
        if shadow is not None:
            return shadow.get(t.outside, item) is not MISSING
        if is_found_by_c(container, item):
            return item in container
    if issubclass(type(container), torch.Tensor):
        graph_break("BZ1003", "membership in a tensor depends on what it holds")
    method = python_method(t, container, "__contains__")
    if method is not MISSING:
        return t.truth(t.call(method, (container, item), None))
    if lookup_in_mro(kind, "__contains__")[0] is MISSING:
        iterator = t.iterate(container)
        end = object()
        while (value := t.advance(iterator, end)) is not end:
            if value is item or t.truth(compare(t, operator.eq, value, item)):
                return True
        return False
    return call_c(t, operator.contains, (container, item), None)


def get_item(t: Trace, obj: Any, key: Any, tail: bool = False) -> Any:
    """``obj[key]``."""
    kind = type(obj)
    if kind in (list, tuple) and (type(key) is int or (type(key) is slice and not asked_for_bounds(key))):
        if t.outside.unread and type(key) is int and (found := element(t.outside, obj, key)) is not MISSING:
            return found
        if (
            t.outside.unread
            and type(key) is slice
            and (found := last_elements(t.outside, obj, key)) is not MISSING
        ):
            return found
        return obj[key]
    if kind in chosen.HOLDERS and chosen.is_key(key):
        value = chosen.item(t, obj, key)
        if value is not MISSING:
            return value
        if t.outside.unread and (waits := written_at(t.outside, obj, key)) is not MISSING:
            return waits
    if issubclass(type(obj), torch.Tensor):
        require_own(t.outside, "__getitem__")
        part, rest = place_of(t, obj, key)
        return (
            part
            if part is not obj and rest is ...
            else t.graph.recorder.call(operator.getitem, (part, rest), {})
        )
    generic = hasattr(kind, "__mro_entries__")
    if generic and is_library_class(kind):  # typing's, whose makers look at the call stack
        return obj[key]
    method = python_method(t, obj, "__getitem__")
    if method is MISSING and (generic or issubclass(type(obj), type)):
        return of_class(t, obj, key)
    if method is not MISSING:
        return t.call(method, (obj, key), None, tail)
    if issubclass(type(obj), dict):
        shadow = unfilled(t.outside, obj)
        if shadow is not None and (value := shadow.later.last(key)) is not MISSING:
            return value
        if kind in chosen.DICTS and chosen.is_key(key) and chosen.holds(t, obj, key) is False:
            if kind in MAKING:
                return made_for(t, obj, key)
            raise t.call(KeyError, (key,), None)
        key = as_key(key)
        shadow = shadow_with(t.outside, obj, key)
        if shadow is not None:
            value = shadow.get(t.outside, key)
            if value is not MISSING:
                return value
        elif is_found_by_c(obj, key):
            return obj[key]
        missing = python_method(t, obj, "__missing__")
        if missing is not MISSING:
            asked = (obj, key, MISSING)
            plain = type(key) in CONSTANTS
            found = dict.get(*asked) if plain else call_c(t, dict.get, asked, None)
            return t.call(missing, (obj, key), None, tail) if found is MISSING else found
        if kind is collections.defaultdict and type(obj.default_factory) is functools.partial:
            # what it holds may have a meaning here, as `getattr`
            found = call_c(t, dict.get, (obj, key, MISSING), None)
            return made_for(t, obj, key) if found is MISSING else found
    found = call_c(t, operator.getitem, (obj, number(key) if type(key) is torch.SymBool else key), None)
    return in_class_dict(t, key, found) if kind is types.MappingProxyType else found


#: dicts that have something for a key that is missing
MAKING = frozenset({collections.defaultdict, collections.Counter})


def made_for(t: Trace, obj: Any, key: Any) -> Any:
    """What such a dict has for a key that it does not hold."""
    if type(obj) is collections.Counter:
        return t.call(python_method(t, obj, "__missing__"), (obj, key), None)
    if obj.default_factory is None:
        raise KeyError(as_key(key))
    value = t.call(obj.default_factory, (), None)
    set_item(t, obj, key, value)
    return value


def asked_for_bounds(key: slice) -> bool:
    """Whether taking a slice runs Python code, of an object that stands for a number."""
    return any(type(p) not in CONSTANTS and says_by_code(type(p)) for p in (key.start, key.stop, key.step))


def of_class(t: Interpreter, obj: Any, key: Any) -> Any:
    """``Class[key]``."""
    if issubclass(type(obj), type) and not is_library_class(obj):
        maker, owner = lookup_in_mro(obj, "__class_getitem__")
        if isinstance(maker, classmethod) and type(maker.__func__) is types.FunctionType:
            if not is_library_class(owner):
                return t.call(t.attribute(obj, "__class_getitem__"), (key,))
    return obj[key]


def place_of(t: Trace, tensor: torch.Tensor, key: Any) -> tuple[torch.Tensor, Any]:
    """What is indexed, and by which key: a part of ``tensor`` and ``...`` where numbers that are symbols name that part."""
    fill_arguments(t.outside, (key,))
    key = unbacked.as_index(t, key)
    if unbacked.selects(key):
        return unbacked.selected(t.graph, tensor, key), ...
    return places.selected(t.graph, tensor, key)


def set_item(t: Trace, obj: Any, key: Any, value: Any) -> None:
    """``obj[key] = value``."""
    if issubclass(type(obj), torch.Tensor):
        require_own(t.outside, "__setitem__")
        obj, key = place_of(t, obj, key)
        t.graph.recorder.call(operator.setitem, (obj, key, value), {})
        return
    method = python_method(t, obj, "__setitem__")
    if method is not MISSING:
        t.call(method, (obj, key, value), None)
        return
    if issubclass(type(obj), dict):
        if written_later(t, obj, key, value):
            return
        key = as_key(key)
        shadow = shadow_with(t.outside, obj, key)
        if shadow is not None:
            replaced(t, shadow.peek(t.outside, key))
            shadow.put(t.done, key, value)
            return
    if type(key) is torch.SymInt:
        if element_written_later(t, obj, key, value):
            return
        read_whole(t.outside, obj)
    refuse_written(t.outside, obj, f"an item of a {type(obj).__name__} from outside is assigned")
    dropped(t, obj, "__setitem__", (key,))
    if (type(obj) is list and type(key) is int) or is_found_by_c(obj, key):
        obj[key] = value
    else:
        call_c(t, operator.setitem, (obj, key, value), None)


def written_later(t: Trace, obj: Any, key: Any, value: Any) -> bool:
    """Whether an item of a dict from outside is written when the graph has run: its key, a number or text, may change from call to call."""
    waits = type(key) in KEYS_OF_LATER or (type(key) is tuple and chosen.is_key(key))
    shadow = unfilled(t.outside, obj) if waits else None
    if shadow is None:
        return False
    if type(key) in PLAIN_KEYS:
        replaced(t, shadow.peek(t.outside, key))
    elif not chosen.is_told_later(key) or any(
        may_end_with_code(t, v) for v in looked_at(t.outside, dict.values(shadow.real))
    ):
        return False  # which of them it takes the place of is not known
    return shadow.put_later(key, value)


def element_written_later(t: Trace, obj: Any, key: torch.SymInt, value: Any) -> bool:
    """The same of a list that nothing has looked into, at a place that it had when the call began, which is guarded."""
    if not counts(t.outside, obj) or unbacked.is_unbacked(key):
        return False
    shadow = t.outside.unread[id(obj)]
    if any(may_end_with_code(t, v) for v in looked_at(t.outside, shadow.node.real)):
        return False
    number = number_of_elements(t.outside, obj)
    below = key.node.hint < 0
    if below and shadow.view:  # it is told from the end of what was added
        return False
    first = unary(t, operator.neg, number) if below else 0
    inside = t.truth(compare(t, operator.ge, key, first)) and t.truth(compare(t, operator.lt, key, number))
    return inside and shadow.later.put(key, value)


def refuse_written(outside: Outside, obj: Any, what: str) -> None:
    """Break before C writes to an object from outside that has no shadow: it would be written now, by no call."""
    node = outside.tree.node_of(obj)
    if node is not None and node.container is None:
        graph_break("BZ1010", what)


def delete_item(t: Trace, obj: Any, key: Any) -> None:
    """``del obj[key]``."""
    method = python_method(t, obj, "__delitem__")
    if method is not MISSING:
        t.call(method, (obj, key), None)
        return
    if issubclass(type(obj), dict):
        key = as_key(key)
        shadow = shadow_with(t.outside, obj, key)
        if shadow is not None:
            replaced(t, shadow.peek(t.outside, key))
            if not shadow.drop(t.outside, key):
                raise KeyError(key)
            return
    elif issubclass(type(obj), torch.Tensor):
        raise TypeError("'Tensor' object does not support item deletion")
    refuse_written(t.outside, obj, f"an item of a {type(obj).__name__} from outside is deleted")
    dropped(t, obj, "__delitem__", (key,))
    if is_found_by_c(obj, key):
        del obj[key]
    else:
        call_c(t, operator.delitem, (obj, key), None)


#: (floating point, complex) -> a number of such a tensor's
_NUMBERS: dict[tuple[bool, bool], Any] = {(True, False): 1.0, (False, True): 1j}


def _takes(value: torch.Tensor, spec: Any) -> bool:
    """Whether a tensor can be formatted so: one without dims as its number can, any other without a specification alone."""
    if type(spec) is not str or not spec:
        return True
    if value.dim():
        return False
    try:
        format(
            _NUMBERS.get((value.is_floating_point(), value.is_complex()), value.dtype is torch.bool or 1),
            spec,
        )
    except (ValueError, TypeError):
        return False
    return True


def text(t: Trace, value: Any, conversion: Any, spec: str) -> str:
    """What an f-string makes of a value."""
    if issubclass(type(value), torch.Tensor):
        if conversion is None and not _takes(value, spec):
            graph_break(
                "BZ1007",
                "a tensor is formatted in a way that it refuses",
                HINT_FORMAT,
            )
        return t.done.claim(UnknownText())  # most often the message of a check that holds
    if unbacked.is_unbacked(value):
        return t.done.claim(UnknownText())
    if texts.is_told_later(value) and (later := texts.formatted(t.done, value, conversion, spec)) is not None:
        return later  # type: ignore[no-any-return]
    value, spec = texts.written(number(value)), texts.written(spec)
    if type(value) in CONSTANTS:
        return format(conversion(value) if conversion is not None else value, spec)
    if conversion is not None:
        value = call_c(t, conversion, (value,), None)
    return call_c(t, format, (value, spec), None)
