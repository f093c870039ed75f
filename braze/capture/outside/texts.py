"""Text of numbers that are symbols: written when the graph has run, or at once for whoever looks at it.

Text that is only passed on (returned, put into containers, printed) leaves no guard on its numbers. C code that looks into
text gets it written: the numbers that stand in it are guarded from there on.
"""

from __future__ import annotations

import collections
import operator
import re
from collections.abc import Iterable
from typing import Any

import torch

from braze.capture.facts.breaks import FORMATTED, HINT_FORMAT, graph_break
from braze.capture.facts.values import CONSTANTS, NUMBER_OF, UnknownText
from braze.capture.state.ledger import Ledger
from braze.graph.private import torch_symbols

#: format specifications that all numbers of a kind take alike
PLAIN_SPEC = re.compile(r"[<>=^]?[+\- ]?#?0?\d*[,_]?(\.\d+)?[dxXobneEfFgG%]?", re.ASCII)
#: formats of ``%`` of which the same holds
PLAIN_FORMAT = re.compile(r"([^%]|%%|%[#0\- +]*\d*(\.\d+)?[diouxXeEfFgGrsa])*", re.ASCII | re.DOTALL)
#: formats of ``str.format``, likewise
PLAIN_FIELDS = re.compile(
    rf"([^{{}}]|{{{{|}}}}|{{\d*(![rsa])?(:{PLAIN_SPEC.pattern})?}})*", re.ASCII | re.DOTALL
)
#: a number of each kind whose text shows whether text of its kind can be written at all
LIKE = {torch.SymInt: 3, torch.SymFloat: 1.5}
#: methods and functions of C that store what they are given, and look at nothing
STORING = frozenset({"append", "appendleft", "insert", "setitem", "__setitem__", "setdefault"})


def later(done: Ledger, function: Any, *args: Any) -> Any:
    """Text that ``function`` writes of symbols and other text when the graph has run; None where it refuses their kinds."""
    try:
        function(*map(_like, args))
    except (TypeError, ValueError, OverflowError, LookupError):
        return None
    made = done.claim(UnknownText())
    made.made = (function, args)
    return made


def _like(value: Any) -> Any:
    """A number or text as good as the one that is meant, to try a function on."""
    if type(value) is tuple:
        return tuple(map(_like, value))
    return "" if type(value) is UnknownText else LIKE.get(type(value), value)


def is_told_later(value: Any) -> bool:
    """Whether a value is a number that is a symbol, or text of such."""
    if type(value) is UnknownText:
        return value.made is not None
    return type(value) in LIKE and not torch_symbols.is_unbacked(value)


def can_stand(values: Iterable[Any]) -> bool:
    """Whether text can be written of these later: of constants, symbols, and other such text."""
    return all(type(v) in CONSTANTS or is_told_later(v) for v in values)


def written(value: Any) -> Any:
    """Text that is looked at now, its numbers guarded; anything else as it is."""
    kind = type(value)
    if kind is tuple and UnknownText in map(type, value):
        return tuple(map(written, value))
    if kind is not UnknownText:
        return value
    if value.made is None:
        graph_break(*FORMATTED, HINT_FORMAT)
    function, args = value.made
    return function(*map(now, args))


def now(value: Any) -> Any:
    """The same, and numbers that are symbols, also in tuples."""
    if type(value) is tuple:
        return tuple(map(now, value))
    return NUMBER_OF[type(value)](value) if type(value) in LIKE else written(value)


def look_into(values: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments of C code, text among them written."""
    return tuple(map(written, values))


def stores(fn: Any, args: Any) -> bool:
    """Whether C code only keeps what it is given."""
    name = getattr(fn, "__name__", "")
    owner = args[0] if args else None
    return name in STORING and isinstance(owner, (list, dict, collections.deque))


# -- how text comes about


def formatted(done: Ledger, value: Any, conversion: Any, spec: Any) -> Any:
    """What an f-string makes of a symbol or of other text; None where that must be known now."""
    if type(spec) is not str or not PLAIN_SPEC.fullmatch(spec):
        return None
    if conversion is None and not spec and type(value) is UnknownText:
        return value
    if conversion is not None:
        value = later(done, conversion, value)
        if value is None:
            return None
    return later(done, format, value, spec) if spec or type(value) is not UnknownText else value


def percent(done: Ledger, text: str, values: Any) -> Any:
    """``text % values`` with symbols or such text among the values; None where that must be known now."""
    given = values if type(values) is tuple else (values,)
    if not any(map(is_told_later, given)) or not can_stand(given) or not PLAIN_FORMAT.fullmatch(text):
        return None
    return later(done, operator.mod, text, values)


def fields(done: Ledger, text: str, values: tuple[Any, ...]) -> Any:
    """``text.format(*values)`` likewise."""
    if not any(map(is_told_later, values)) or not can_stand(values) or not PLAIN_FIELDS.fullmatch(text):
        return None
    return later(done, str.format, text, *values)


def joined(done: Ledger, parts: Iterable[Any], between: str = "") -> Any:
    """Parts of text put together; None where some of them must be known now."""
    parts = tuple(parts)
    if not all(type(p) is str or type(p) is UnknownText for p in parts):
        return None
    if any(type(p) is UnknownText and p.made is None for p in parts):
        return None
    return later(done, together, between, *parts)


def together(between: str, *parts: str) -> str:
    """``between.join(parts)``, as residual code calls it."""
    return between.join(parts)


#: fields of formats; what has two signs stands for one, and a sign alone for a field of another kind
_FIELD, _PERCENT = re.compile(r"{\d*}|{{|}}|[{}]", re.ASCII), re.compile("%[sd]|%%|%")


def parts_of(value: UnknownText) -> list[Any] | None:
    """The texts that one is put together of, in order: constants, and such text; None where it comes about otherwise."""
    function, args = value.made or (None, ())
    if function is together:
        between, *parts = args
        return [each for part in parts for each in (between, part)][1:]
    if function is operator.mod:
        given = args[1] if type(args[1]) is tuple else (args[1],)
        return _filled(_PERCENT, args[0], given)
    return _filled(_FIELD, args[0], args[1:]) if function is str.format else None


def _filled(fields_of: re.Pattern[str], text: str, given: tuple[Any, ...]) -> list[Any] | None:
    """What stands in a format and between its fields, which are in order and take each value as it is."""
    parts: list[Any] = []
    end = count = 0
    for found in fields_of.finditer(text):
        field, before, end = found[0], text[end : found.start()], found.end()
        if field in ("{{", "}}", "%%"):
            parts += before, field[0]
            continue
        in_order = len(field) > 1 and count < len(given) and field[1:-1] in ("", str(count))
        part = _as_text(given[count], field) if in_order else None
        if part is None:
            return None
        parts += before, part
        count += 1
    return [*parts, text[end:]]


def _as_text(value: Any, field: str) -> Any:
    """A text, or an integer's, as it stands in other text; None of other values."""
    kind = type(value)
    if kind is str or kind is UnknownText:
        return value if field != "%d" else None
    if kind is int:
        return str(value)
    if kind is not torch.SymInt:
        return None
    made = UnknownText()
    made.made = (str, (value,))
    return made
