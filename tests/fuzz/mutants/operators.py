"""The bugs that a file can get: small edits of its text, as slips of a hand would make them, found in its syntax tree.

An edit replaces a stretch of text and leaves every line where it is. Only code inside functions is edited, since whether a
test runs it can be seen.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fuzz.failures import ROOT
from tests.fuzz.mutants import places

COMPARED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"),
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
#: functions of two arguments whose order does not matter
ALIKE = {"mul", "add", "max", "min", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or"}
#: in text that is to be code
WRITTEN = (
    (" < ", " <= "),
    (" <= ", " < "),
    (" + ", " - "),
    (" - ", " + "),
    (" * ", " + "),
    (" && ", " || "),
    (" >= ", " > "),
)
_TEXTUAL = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.Set, ast.Dict)


@dataclass(frozen=True)
class Mutant:
    """One seeded bug. ``start`` to ``end``: the bytes it replaces; ``node``: those of the expression or statement around it."""

    stage: str
    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    start: int
    end: int
    text: str
    node: tuple[int, int]
    statement: bool = False
    nth: int = 0

    @property
    def id(self) -> str:
        """Stays as it is while other code changes."""
        parts = (Path(self.file).name, self.function, self.operator, self.before, self.after, str(self.nth))
        return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(stage: str, file: str, root: Path = ROOT) -> list[Mutant]:
    """Every bug that the file can get; some are no Python (:func:`parses`)."""
    source = (root / file).read_bytes()
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for mutant in _Finder(stage, file, source).found():
        key = (mutant.function, mutant.operator, mutant.before, mutant.after)
        mutant = replace(mutant, nth=seen[key])
        seen[key] += 1
        found.append(mutant)
    return found


class _Finder:
    """Walks one file."""

    def __init__(self, stage: str, file: str, source: bytes) -> None:
        self.stage, self.file, self.source = stage, file, source
        self.starts = [0, *(m.end() for m in re.finditer(b"\n", source))]
        self.function: tuple[str, ...] = ()
        self.codegen = "codegen" in file

    def found(self) -> Iterator[Mutant]:
        return self.walk(ast.parse(self.source), inside=False)

    def walk(self, node: ast.AST, inside: bool) -> Iterator[Mutant]:
        """The edits of a node and of what is in it."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from self.defined(node)
            return
        if isinstance(
            node, (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.match_case)
        ):
            if isinstance(node, ast.JoinedStr) and self.codegen and inside:
                yield from self.written(node)
            if isinstance(node, ast.match_case):
                for statement in node.body:
                    yield from self.walk(statement, inside)
            return
        if isinstance(node, ast.Call) and places.words(node):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if isinstance(node, ast.If) and (
            places.only_raises(node.body) or "TYPE_CHECKING" in ast.dump(node.test)
        ):
            return
        if inside:
            yield from self.edits(node)
        for child in parts(node):
            yield from self.walk(child, inside or isinstance(node, ast.Lambda))

    def defined(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Mutant]:
        if places.unseen(node.name):
            return
        outer, self.function = self.function, (*self.function, node.name)
        for statement in node.body:
            yield from self.walk(statement, inside=not isinstance(node, ast.ClassDef))
        self.function = outer

    def edits(self, node: ast.AST) -> Iterator[Mutant]:
        """The edits of this node."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARED:
                yield from self.between("comparison", node, left, right, *COMPARED[type(op)])
            case ast.BoolOp(op=op, values=[*_, left, right]):
                names = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield from self.between("and/or", node, left, right, *names)
                yield self.edit("operand dropped", node, "", self.span(left)[1], self.span(right)[1])
                yield self.edit("operand dropped", node, "", self.span(left)[0], self.span(right)[0])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self.edit("negation", node, f"({self.text(operand)})")
            case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
                yield self.edit("sign", node, f"({self.text(operand)})")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
                if not isinstance(left, _TEXTUAL) and not isinstance(right, _TEXTUAL[1:]):
                    yield from self.between("arithmetic", node, left, right, *ARITHMETIC[type(op)])
            case ast.Constant(value=bool(value)):
                yield self.edit("constant", node, str(not value))
            case ast.Constant(value=int(value)) if value < 100:
                yield self.edit("constant", node, str(value + 1))
                if value > 1:
                    yield self.edit("constant", node, str(value - 1))
            case ast.Constant(value=str()) if self.codegen:
                yield from self.written(node)
            case ast.Call():
                yield from self.calls(node)
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield from self.conditions(node, test)
            case ast.Expr(value=ast.Call(func=function)) if not places.words(node.value):
                if not isinstance(function, ast.Name) or not function.id.startswith(("require", "check")):
                    yield self.edit("statement dropped", node, "pass", statement=True)
            case ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
                yield self.edit("statement dropped", node, "pass", statement=True)
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self.edit("statement dropped", node, "pass", statement=True)

    def conditions(self, node: ast.AST, test: ast.expr) -> Iterator[Mutant]:
        if not isinstance(test, (ast.Compare, ast.BoolOp)) and not isinstance(node, ast.While):
            yield self.edit("condition negated", test, f"not ({self.text(test)})")
        if isinstance(node, ast.If):
            yield self.edit("branch dropped", test, f"False and ({self.text(test)})")

    def calls(self, node: ast.Call) -> Iterator[Mutant]:
        if isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
            start, end = self.span(node.func)
            yield self.edit("min/max", node, SWAPPED[node.func.id], start, end)
        alike = bool(ALIKE & set(ast.unparse(node.func).split(".")))
        if (
            len(node.args) == 2
            and not alike
            and all(isinstance(a, (ast.Name, ast.Attribute)) for a in node.args)
        ):
            first, second = node.args
            start, end = self.span(first)[0], self.span(second)[1]
            text = self.source[start:end].decode()
            if self.text(first) != self.text(second):
                swapped = (
                    self.text(second)
                    + text[len(self.text(first)) : len(text) - len(self.text(second))]
                    + self.text(first)
                )
                yield self.edit("arguments swapped", node, swapped, start, end)

    def between(
        self, operator: str, node: ast.expr, left: ast.expr, right: ast.expr, old: str, new: str
    ) -> Iterator[Mutant]:
        """An operator's sign, which stands between its operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end].decode()
        sign = re.escape(old).replace(r"\ ", r"\s+")
        found = re.search(rf"\b{sign}\b" if old[0].isalpha() else sign, gap)
        if found is not None:
            at = start + len(gap[: found.start()].encode())
            yield self.edit(operator, node, new, at, at + len(found[0].encode()))

    def written(self, node: ast.expr) -> Iterator[Mutant]:
        """Edits of text that will be code, outside the braces of an f-string."""
        start, _ = self.span(node)
        text, depth = self.text(node), 0
        for at, letter in enumerate(text):
            depth += (letter == "{") - (letter == "}")
            for old, new in WRITTEN:
                if depth == 0 and text.startswith(old, at):
                    place = start + len(text[:at].encode())
                    yield self.edit("generated text", node, new, place, place + len(old))

    def edit(
        self,
        operator: str,
        node: ast.AST,
        text: str,
        start: int | None = None,
        end: int | None = None,
        statement: bool = False,
    ) -> Mutant:
        first, last = whole = self.span(node)
        start, end = (first, last) if start is None or end is None else (start, end)
        before = self.source[first:last].decode()
        after = (self.source[first:start] + text.encode() + self.source[end:last]).decode()
        line = self.source.count(b"\n", 0, start) + 1
        return Mutant(
            self.stage, self.file, line, ".".join(self.function), operator, before, after, start, end, text, whole, statement
        )  # fmt: skip

    def text(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def span(self, node: ast.AST) -> tuple[int, int]:
        at = node
        return self.starts[at.lineno - 1] + at.col_offset, self.starts[at.end_lineno - 1] + at.end_col_offset  # type: ignore[attr-defined]


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a node and runs when it runs: no annotations, no defaults of arguments."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg == "strict"):
                yield child


def parses(mutant: Mutant, root: Path = ROOT) -> bool:
    """Whether the file is still Python with this bug in it."""
    try:
        ast.parse(mutant.applied((root / mutant.file).read_bytes()))
    except SyntaxError:
        return False
    return True
