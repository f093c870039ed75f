"""Sizes named up front: what ``braze.compile(f, shapes={"x": ("B", "S<=4096 %8")})`` says of each dimension.

::

    sizes     = tuple of dimension, at the end perhaps ... (the rest as given)
    dimension = int | None | "rule"          None: as given, like an unnamed size
    rule      = [int relation] name {relation int | "%" int} | int | "_" | "..."
    relation  = "<" | "<=" | ">" | ">="

A name makes the size a symbol; the same name is the same size everywhere. ``%8``: a multiple of 8.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from braze.support.errors import UserError
from braze.support.record import record


@record
class SizeRule:
    """What one dimension may be. No name and no bounds: anything, as given."""

    name: str = ""
    low: int | None = None
    high: int | None = None
    multiple: int = 1
    text: str = ""

    @property
    def bounds(self) -> tuple[int | None, int | None, int]:
        """What it asks of a size, whatever its name."""
        return self.low, self.high, self.multiple

    def allows(self, size: int) -> bool:
        """Whether a size obeys the rule by itself."""
        return (
            (self.low is None or size >= self.low)
            and (self.high is None or size <= self.high)
            and size % self.multiple == 0
        )


@record
class ShapeRules:
    """The rules of one argument; ``open_ended``: more dimensions may follow, as given."""

    argument: str
    dims: tuple[SizeRule, ...]
    open_ended: bool = False


_TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)|(?P<sign><=|>=|<|>|%))")
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def parse_shapes(shapes: Mapping[str, Any]) -> tuple[ShapeRules, ...]:
    """The rules of every argument named; refused with a caret where one cannot be read."""
    if not isinstance(shapes, Mapping):
        raise UserError("BZ0020", f"shapes= takes a dict of argument names, not {shapes!r}", hints=[_EXAMPLE])
    return joined([_argument(name, dims) for name, dims in shapes.items()])


def joined(rules: Sequence[ShapeRules]) -> tuple[ShapeRules, ...]:
    """The same rules, in which each name has the bounds that all of its dimensions were given; refused where none is left."""
    found: dict[str, tuple[SizeRule, str]] = {}
    for argument in rules:
        for d, rule in enumerate(argument.dims):
            where = f"{argument.argument}, dimension {d}"
            known = found.get(rule.name)
            if rule.name:
                found[rule.name] = (rule, where) if known is None else (_join(*known, rule, where), where)
    return tuple(
        dataclasses.replace(
            argument,
            dims=tuple(found[rule.name][0] if rule.name else rule for rule in argument.dims),
        )
        for argument in rules
    )


def _join(one: SizeRule, place: str, other: SizeRule, where: str) -> SizeRule:
    """What obeys two rules of one name."""
    lows = [n for n in (one.low, other.low) if n is not None]
    highs = [n for n in (one.high, other.high) if n is not None]
    rule = SizeRule(
        one.name, max(lows, default=None), min(highs, default=None), math.lcm(one.multiple, other.multiple)
    )
    for given in (one, other):
        if given.bounds == rule.bounds:
            return given
    rule = dataclasses.replace(rule, text=_text(rule))
    if not _obeyed(rule):
        raise UserError(
            "BZ0020",
            f"shapes= says {one.text!r} ({place}) and {other.text!r} ({where}), and one name is one size",
            why="no size obeys both",
            hints=["give the two sizes names of their own, or bounds that leave a size"],
        )
    return rule


def _text(rule: SizeRule) -> str:
    """A rule as one would write it."""
    low = f"{rule.low}<=" if rule.low is not None else ""
    high = f"<={rule.high}" if rule.high is not None else ""
    return f"{low}{rule.name}{high}" + (f" %{rule.multiple}" if rule.multiple > 1 else "")


def _obeyed(rule: SizeRule) -> bool:
    """Whether there is a size that obeys a rule."""
    top = rule.high if rule.high is not None else (rule.low or 0) + rule.multiple
    return any(rule.allows(n) for n in range(max(rule.low or 0, top - rule.multiple), top + 1))


_EXAMPLE = 'shapes={"x": ("B", "S<=4096 %8"), "y": ("B", None)}'


def _argument(name: Any, dims: Any) -> ShapeRules:
    if not isinstance(name, str) or not name.isidentifier():
        raise UserError("BZ0020", f"shapes= names an argument by {name!r}", hints=[_EXAMPLE])
    if isinstance(dims, str | int) or not isinstance(dims, Sequence):
        raise UserError(
            "BZ0020", f"the sizes of {name} are given as {dims!r}, not as a tuple", hints=[_EXAMPLE]
        )
    dims = tuple(dims)
    open_ended = bool(dims) and dims[-1] in (..., "...")
    rules = tuple(_dimension(name, i, d) for i, d in enumerate(dims[: len(dims) - open_ended]))
    return ShapeRules(name, rules, open_ended)


def _dimension(argument: str, dim: int, given: Any) -> SizeRule:
    if given is None or given in ("_", "None"):
        return SizeRule()
    if type(given) is int and given >= 0:
        return SizeRule("", given, given, text=str(given))
    if isinstance(given, str):
        return parse_rule(given, f"{argument}, dimension {dim}")
    if given is ...:
        raise UserError("BZ0020", f"'...' stands for the last sizes of {argument} only", hints=[_EXAMPLE])
    raise UserError("BZ0020", f"{argument}, dimension {dim}: {given!r} is no size", hints=[_EXAMPLE])


def parse_rule(text: str, where: str = "shapes") -> SizeRule:
    """One dimension's rule."""
    tokens = _tokens(text, where)
    kinds = [kind for kind, _, _ in tokens]
    if kinds == ["number"]:
        return SizeRule("", int(tokens[0][1]), int(tokens[0][1]), text=text)
    low, high, multiple, at = None, None, 1, 0
    relations: list[tuple[str, int, int]] = []
    if kinds[:2] == ["number", "sign"] and tokens[1][1] in _TURNED:
        relations.append((_TURNED[tokens[1][1]], int(tokens[0][1]), tokens[0][2]))
        at = 2
    if at >= len(tokens) or kinds[at] != "name":
        raise _refusal(text, where, tokens[at][2] if at < len(tokens) else len(text), "a name belongs here")
    name = tokens[at][1]
    rest = tokens[at + 1 :]
    for i in range(0, len(rest), 2):
        kind, sign, place = rest[i]
        if kind != "sign":
            raise _refusal(text, where, place, "<, <=, >, >= or % belongs here")
        if i + 1 >= len(rest) or rest[i + 1][0] != "number":
            place = rest[i + 1][2] if i + 1 < len(rest) else len(text)
            raise _refusal(text, where, place, "a number belongs here")
        relations.append((sign, int(rest[i + 1][1]), rest[i + 1][2]))
    for sign, number, place in relations:
        if sign == "%":
            if number < 1:
                raise _refusal(text, where, place, "sizes are multiples of 1 or more")
            multiple = number
        elif sign.startswith("<"):
            high = min(number - (sign == "<"), high) if high is not None else number - (sign == "<")
        else:
            low = max(number + (sign == ">"), low) if low is not None else number + (sign == ">")
    rule = SizeRule(name, low, high, multiple, text.strip())
    if not _obeyed(rule):
        raise _refusal(text, where, 0, "no size obeys this")
    return rule


def _tokens(text: str, where: str) -> list[tuple[str, str, int]]:
    """(kind, text, position) of each word."""
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise _refusal(text, where, at, _advice(text[at:]))
        kind = str(match.lastgroup)
        found.append((kind, match[kind], match.start(kind)))
        at = match.end()
    if not found:
        raise _refusal(text, where, 0, "a name or a number belongs here; None leaves a size as given")
    return found


def _advice(rest: str) -> str:
    for wrong, right in (("==", 'an exact size is a number: "8"'), ("=", "did you mean '<=' or '>='?")):
        if rest.startswith(wrong):
            return right
    if rest.startswith(("*", "/")):
        return "did you mean '%', as in \"S %8\"?"
    return "only names, numbers, <, <=, >, >= and % may stand here"


def _refusal(text: str, where: str, at: int, why: str) -> UserError:
    return UserError(
        "BZ0020",
        f"{where}: cannot read the size rule\n    {text}\n    {' ' * at}^",
        why=why,
        hints=['a rule is a name, bounds and a divisor: "B", "S<=4096", "2<=S<64 %8"'],
    )
