"""Guards as the tables that the native walker runs, as text, and as the explanation of a miss.

Each source is one node however many guards read it, so shared prefixes are read once. Checks are
ordered by how soon they are likely to settle the matter: global state, then what the arguments
lead to, then the rest, each in the order capture read it (a parent is checked before its child is
read); relations between sizes come last.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

import torch

from braze import native
from braze.capture.facts.records import Capture, Check, Guard, IdentityKey, ShapeRelation, Source, Step
from braze.capture.guards.guard_text import ranked, unwrapped
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.native import torch_state
from braze.native.relation import NUMBERS, Relation, postfix
from braze.support.record import record

MISSING = native.walk.MISSING
#: what a relation's text may call
RELATION_NAMES = {
    "min": min,
    "max": max,
    "abs": abs,
    "math": math,
    "int": int,
    "bool": bool,
    "float": float,
    "round": round,
    "float_of": native.walk.float_of,
    "int_of": int,
}


#: values compared by their attributes
PARTS = {range: ("start", "stop", "step"), slice: ("start", "stop", "step"), torch.device: ("type", "index")}
_EQUAL, _PLAIN = Check.EQUAL, Check.EQUAL.sure
#: checks that the walker takes as they are
_SIMPLE = frozenset(check for check in Check if check.sure) - {_EQUAL}


#: steps of which the key is a source
BY_KEY = frozenset({Step.ITEM_AT, Step.HAS_AT, Step.CLASS_HAS_AT})
#: and those that are made of what is at several
OF_SEVERAL = frozenset({Step.COMPUTED, Step.JOINED, Step.TUPLE})


@record
class GuardTable:
    """The walker's tables, and which source and guard each row stands for."""

    nodes: tuple[tuple[int, str, Any], ...]
    checks: tuple[tuple[int, str, Any], ...]
    inputs: tuple[int, ...]
    symbols: int
    sources: tuple[Source, ...]  # per node
    guards: tuple[Guard, ...]  # per check
    symbol_names: tuple[str, ...]

    def program(self) -> Any:
        """A fresh native guard program."""
        return native.GuardProgram(list(self.nodes), list(self.checks), list(self.inputs), self.symbols)


def build_table(capture: Capture, function: Any = None, locals: Sequence[Any] = ()) -> GuardTable:
    """Compile a capture's guards. With the frame at hand, tensors' dispatch keys are guarded too."""
    return _Builder(capture, function, locals).build()


class _Builder:
    def __init__(self, capture: Capture, function: Any, locals: Sequence[Any]) -> None:
        self.capture = capture
        self.frame = (function, locals) if function is not None else None
        self.nodes: list[tuple[int, str, Any]] = []
        self.sources: list[Source] = []
        self.index: dict[Source, int] = {}
        self.checks: list[tuple[int, str, Any]] = []
        self.guards: list[Guard] = []
        self.symbols: dict[str, int] = {}
        self.relations: list[tuple[str, Guard]] = []
        #: what was read of the frame
        self.objects: dict[Source, Any] = {}

    def build(self) -> GuardTable:
        index, checks, guards, made = self.index, self.checks, self.guards, self._made
        for guard in ranked(self.capture.guards):
            expected, check, source = guard.expected, guard.check, guard.source
            if source is None or not (check in _SIMPLE or (check is _EQUAL and type(expected) in _PLAIN)):
                self._add(guard)
                continue
            row = index.get(source)
            checks.append((made(source) if row is None else row, check._value_, expected))
            guards.append(guard)
        for source, spec in zip(self.capture.inputs, self.capture.specs, strict=True):
            if isinstance(spec, SymbolSpec):
                origin = next((g.origin for g in self.capture.guards if g.source is source), None)
                self._bind(source, spec, Guard(source, Check.TYPE, int, origin))
        inputs = tuple(self.node(source) for source in self.capture.inputs)
        for text, guard in self.relations:
            self.checks.append((-1, "range", self._relation(text)))
            self.guards.append(guard)
        return GuardTable(
            tuple(self.nodes),
            tuple(self.checks),
            inputs,
            len(self.symbols),
            tuple(self.sources),
            tuple(self.guards),
            tuple(self.symbols),
        )

    def node(self, source: Source) -> int:
        """The row of a source, made (after its parents') at its first use."""
        found = self.index.get(source)
        return self._made(source) if found is None else found

    def _made(self, source: Source) -> int:
        above, key, parent = source.parent, source.key, -1
        if above is not None:
            row = self.index.get(above)
            parent = self._made(above) if row is None else row
        if type(key) is IdentityKey:
            key = key.value
        elif source.step in BY_KEY:
            key = self.node(key)
        elif source.step in OF_SEVERAL:
            key = made_by(source), (parent, *map(self.node, key[1]))
        made = self.index[source] = len(self.nodes)
        self.nodes.append((parent, source.step._value_, key))
        self.sources.append(source)
        return made

    def symbol(self, name: str) -> int:
        return self.symbols.setdefault(name, len(self.symbols))

    def _check(self, source: Source | None, check: str, expected: Any, guard: Guard) -> None:
        self.checks.append((-1 if source is None else self.node(source), check, expected))
        self.guards.append(guard)

    def _bind(self, source: Source | None, spec: SymbolSpec | FloatSpec, guard: Guard) -> None:
        """The int or float at a source is the symbol's value."""
        kind = "int" if isinstance(spec, SymbolSpec) else "float"
        row = (self.node(source) if source is not None else -1, kind, ("sym", self.symbol(spec.name)))
        if row not in self.checks:
            self.checks.append(row)
            self.guards.append(guard)

    def _add(self, guard: Guard) -> None:
        expected = guard.expected
        match guard.check:
            case Check.TENSOR:
                expected = self._tensor(guard)
            case Check.ALIAS:
                expected = self.node(expected)
            case Check.DISTINCT:
                expected = tuple(self.node(s) for s in expected)
            case Check.RANGE:
                self.relations.append((expected.expression, guard))
                return
            case Check.EQUAL if isinstance(expected, SymbolSpec | FloatSpec):
                self._bind(guard.source, expected, guard)
                return
            case Check.EQUAL if not is_plain(expected):
                self._parts(guard)
                return
        self._check(guard.source, guard.check._value_, expected, guard)

    def _parts(self, guard: Guard) -> None:
        """An EQUAL of a value that the walker does not compare itself, as checks of its parts."""
        value, source = guard.expected, guard.source
        kind = type(value)
        if kind in PARTS:
            self._check(source, "type", kind, guard)
            for name in PARTS[kind]:
                part = Guard(Source(Step.ATTR, name, source), Check.EQUAL, getattr(value, name), guard.origin)
                self._add(part)
        elif isinstance(value, tuple):
            self._check(source, "type", kind, guard)
            self._check(source, "length", len(value), guard)
            for i, element in enumerate(value):
                self._add(Guard(Source(Step.ITEM, i, source), Check.EQUAL, element, guard.origin))
        else:
            self._check(source, "is", value, guard)

    def _tensor(self, guard: Guard) -> tuple[Any, ...]:
        spec: TensorSpec = guard.expected
        kind = torch.nn.Parameter if spec.is_parameter else torch.Tensor
        keys = None
        if self.frame is not None and guard.source is not None:
            real = self._read(guard.source)
            if isinstance(real, torch.Tensor):
                kind, keys = type(real), torch_state.keys(real)
        sizes = tuple(self._extent(s, guard) for s in spec.sizes)
        strided = spec.layout is torch.strided
        strides = tuple(self._extent(s, guard) for s in spec.strides) if strided else None
        return kind, spec.dtype, spec.device, sizes, strides, spec.requires_grad, keys

    def _read(self, source: Source) -> Any:
        """The object at a source now; those above it are read once."""
        if source not in self.objects:
            assert self.frame is not None
            above = self._read(source.parent) if source.parent is not None else None
            self.objects[source] = MISSING if above is MISSING else read_step(source, above, *self.frame)
        return self.objects[source]

    def _extent(self, extent: int | str, guard: Guard) -> Any:
        """A size or stride: a number, or the symbol it binds (an expression gets a symbol of its own)."""
        if isinstance(extent, int):
            return extent
        if extent.isidentifier():
            return ("sym", self.symbol(extent))
        if extent not in self.symbols:
            names = tuple(sorted(names_in(extent)))
            relation = Guard(None, Check.RANGE, ShapeRelation(f"{{}} == {extent}", names), guard.origin)
            self.relations.append((extent, relation))
        return ("sym", self.symbol(extent))

    def _relation(self, text: str) -> Relation:
        if text in self.symbols:  # a derived extent: must equal its expression
            own = self.symbols[text]
            expression = compile_relation(text, self.symbols)
            code = None
            if expression.code is not None:
                symbol, equal = NUMBERS["symbol"], NUMBERS["eq"]
                code = (*expression.code, (symbol, own), (equal, 0))
            return Relation(f"a size == {text}", lambda values: values[own] == expression(values), code)
        return compile_relation(text, self.symbols)


def is_plain(value: Any) -> bool:
    """Whether the walker's ``equal`` takes the value."""
    if native.walk.is_numpy_number(value):
        return True
    return type(value) in _PLAIN or (type(value) is tuple and all(map(is_plain, value)))


def read_source(source: Source, function: Any, locals: Sequence[Any]) -> Any:
    """The object at a source now, or ``native.walk.MISSING``."""
    chain = [source]
    while chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    value: Any = None
    for step in reversed(chain):
        value = read_step(step, value, function, locals)
        if value is MISSING:
            break
    return value


def read_step(source: Source, above: Any, function: Any, locals: Sequence[Any]) -> Any:
    """The object at a source, given the one that it is read from, or ``native.walk.MISSING``."""
    key = unwrapped(source)
    if source.step in BY_KEY:
        key = read_source(key, function, locals)
    elif source.step in OF_SEVERAL:
        key = made_by(source), [above, *(read_source(other, function, locals) for other in key[1])]
    try:
        return native.walk.read(source.step._value_, key, above, function, locals)
    except (native.walk.Mismatch, AttributeError, LookupError, TypeError, ValueError):
        return MISSING


def made_by(source: Source) -> Any:
    """What makes one of several parts: a program over ints, or what stands around them."""
    return program_of(source.key) if source.step is Step.COMPUTED else source.key[0]


def program_of(key: tuple[str, tuple[Source, ...]]) -> Relation:
    """What computes the int at a place of ``Step.COMPUTED``."""
    text, others = key
    return compile_relation(text, {f"n{i}": i for i in range(1 + len(others))})


def names_in(text: str) -> set[str]:
    """The symbols that an expression mentions."""
    names = {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)}
    return names - set(RELATION_NAMES)


def compile_relation(text: str, symbols: dict[str, int]) -> Relation:
    """A function of all symbol values from an expression over their names."""

    class Indexed(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            if node.id in RELATION_NAMES:
                return node
            index = symbols.setdefault(node.id, len(symbols))
            item = ast.Subscript(ast.Name("values", ast.Load()), ast.Constant(index), ast.Load())
            return ast.copy_location(item, node)

    tree = Indexed().visit(ast.parse(text, mode="eval"))
    code = ast.Expression(
        ast.Lambda(
            ast.arguments(
                posonlyargs=[], args=[ast.arg("values")], kwonlyargs=[], kw_defaults=[], defaults=[]
            ),
            tree.body,
        )
    )
    function = eval(
        compile(ast.fix_missing_locations(code), f"<braze guard {text}>", "eval"), dict(RELATION_NAMES)
    )
    return Relation(text, function, postfix(ast.parse(text, mode="eval").body, symbols))
