"""Prove that a graph without writes computes what the graph with writes did.

Both are run on *terms* instead of numbers: an element is a 64-bit name for how it was computed. An operator is an
unknown function of all elements it is given; views, copies and scatters move names about. The program with
writes runs on memory, where each tensor is a window of its storage as its strides say: nothing of how
``functionalize`` reasons is used. The program without writes runs operator by operator. All results and the last contents
of all inputs must have the same names; that they do by chance has odds of about 2^-61 for each element.

Only memory that is written in parts is looked at element by element; any other tensor is one name. Graphs with symbolic sizes, with
windows of other element sizes over one memory, or with more than ``LIMIT`` elements to follow are left unproved (``trace``
counts them).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.facts.overlap import is_symbolic
from braze.aot.facts.shared import Shared
from braze.aot.facts.views import has_overlap, root_of
from braze.aot.facts.writes import is_write, written_arguments
from braze.aot.functional.functionalize import Functional
from braze.aot.functional.proof_terms import LIMIT, Held, Names, Term, Unproved, name_of, reach_of, strided
from braze.graph.nodes.facts import facts
from braze.graph.operators.functional_ops import original_of
from braze.graph.operators.operators import SCATTERS, Family, functional_form, operator_facts
from braze.graph.private import torch_compat
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.runtime.operators.purity import is_known, may_draw
from braze.support import trace
from braze.support.errors import InternalError, Unsupported

aten = torch.ops.aten
Node = torch.fx.Node
Tensor = torch.Tensor


def _item(source: Any, index: Any) -> Any:
    return source[index] if isinstance(source, (tuple, list)) else name_of("item", source, index)


class _Run:
    """What both runs do alike: calls of unknown operators."""

    def __init__(self, names: Names) -> None:
        self.names = names
        #: draws so far: each has numbers of its own, and their order matters
        self.draws = 0

    def call(self, node: Node, term: Callable[[Node], Term]) -> int:
        """The name of a call, by its operator and arguments."""
        op = node.target
        made = original_of(op)
        op = made.original if made is not None else op
        if not isinstance(op, OpOverload):
            return name_of("size", str(op), self._plain((node.args, node.kwargs), term))
        names, defaults, outs = _signature(made.op if made is not None else op)
        given = {**defaults, **node.kwargs, **dict(zip(names, node.args, strict=False))}
        for name in outs:
            given.pop(name, None)
        drawn = ""
        if may_draw(node.target) or made is not None or _is_custom_write(op):
            drawn, self.draws = f"draw {self.draws}", self.draws + 1
        return name_of(_canonical(op), self._plain(sorted(given.items()), term), drawn)

    def result(self, node: Node, term: Callable[[Node], Term]) -> int:
        """The name of what an unknown operator gives, or of its tuple of results."""
        call = name_of("empty", node.name) if _is_empty(node) else self.call(node, term)
        return name_of("item", call, 0) if isinstance(node.meta.get("val"), Tensor) else call

    def moved(self, node: Node, term: Callable[[Node], Any]) -> Any:
        """A view, or a scatter of one tensor into another, on the names of elements."""
        if node.target is aten.view.dtype:
            seen: Any = node.args[0]
            same = seen.meta["val"].itemsize == node.meta["val"].itemsize
            # parts of elements, or several as one, are what an unknown operator makes
            return term(seen) if same else self.result(node, term)

        def held(n: Node) -> Held:
            if not isinstance(n.meta["val"], Tensor):
                raise Unproved("symbolic")
            shape = tuple(n.meta["val"].shape)
            return Held(n, self.names.elements(term(n), shape).contiguous())

        args: Any = torch.fx.node.map_arg(node.args, held)  # type: ignore[arg-type]
        kwargs: Any = torch.fx.node.map_arg(node.kwargs, held)  # type: ignore[arg-type]
        if node.target in (aten.as_strided.default, aten.as_strided_scatter.default):
            root = root_of(node.args[0])  # type: ignore[arg-type]
            if root.meta["val"].itemsize != node.meta["val"].itemsize:
                return strided(args[0], *args, **kwargs)
            return strided(held(root), *args, known=self.memory_of(root), **kwargs)
        plain: Any = torch.fx.node.map_aggregate(args, Held.open)
        named: Any = torch.fx.node.map_aggregate(kwargs, Held.open)
        return node.target(*plain, **named)  # type: ignore[operator]

    def memory_of(self, root: Node) -> Tensor | None:
        """All that is known of the memory that a node lies in, if that is more than what the node sees."""
        return None

    def _plain(self, value: Any, term: Callable[[Node], Term]) -> Any:
        if isinstance(value, Node):
            found = value.meta.get("val")
            shape = tuple(found.shape) if isinstance(found, Tensor) else ()
            return "term", 0 if 0 in shape else self.names.name(term(value)), shape
        if isinstance(value, (tuple, list)):
            return tuple([self._plain(v, term) for v in value])
        if isinstance(value, dict):
            return tuple([(k, self._plain(v, term)) for k, v in value.items()])
        if isinstance(value, (bool, int)):
            return repr(float(value) if abs(value) < 1 << 53 else value)
        return repr(value)


@functools.cache
def _signature(op: OpOverload) -> tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]:
    """Names of an operator's parameters, defaults, and which are ``out=``."""
    parameters = op._schema.arguments
    defaults = {p.name: p.default_value for p in parameters if p.has_default_value() and not p.is_out}
    return tuple(p.name for p in parameters), defaults, tuple(p.name for p in parameters if p.is_out)


def _is_custom_write(op: OpOverload) -> bool:
    return not is_known(op) and op._schema.is_mutable


@functools.cache
def _canonical(op: OpOverload) -> str:
    """One word for an operator and its in-place and out= forms."""
    found = functional_form(op) if op._schema.is_mutable else None
    return (found or op)._schema.name.removesuffix("_functional")


def _constant(node: Node) -> Any:
    """The number that a node fills a tensor with, or None."""
    if node.target is aten.zero_.default:
        return 0j
    if node.target not in (aten.full.default, aten.fill_.Scalar, aten.copy_.default, aten.fill_.Tensor):
        return None
    value = node.args[1]
    return complex(value) if isinstance(value, (bool, int, float, complex)) else None


class Program(_Run):
    """The graph with writes, run on memory. Made before the writes are removed."""

    def __init__(self, graph: torch.fx.Graph, wanted: Iterable[Node], limit: int = LIMIT) -> None:
        super().__init__(Names(limit))
        nodes = [n for n in graph.nodes if n.op != "output"]
        writes = [n for n in nodes if is_write(n)]
        followed = {_key(target) for n in writes for target in written_arguments(n)}
        self.known = {n.name for n in nodes}
        #: storages that are only ever seen whole: one name stands for all elements
        wholes = followed - _seen_in_parts(nodes, writes, followed)
        self.single = {n.name for n in nodes if _key(n) in wholes}
        self.value: dict[int, Any] = {}
        self.inside = {n.name for n in nodes if _key(n) in followed - wholes}
        #: those whose elements are followed: windows of written memory, and what is moved or copied out of them
        self.near = self._near(nodes)
        #: what reads written memory, at any remove; all else is the same node in both graphs
        self.touched = self._touched(nodes)
        self.as_is: dict[str, tuple[Any, Any, Any]] = {}
        #: views of written memory; a scatter, which moves elements too, has memory of its own
        self.windows: set[str] = set()
        self.memory: dict[int, Tensor] = {}
        self.terms: dict[Node, Any] = {}
        #: what inputs held at first, by name
        self.first: dict[str, Term] = {}
        self._require_plain(nodes)
        #: memory -> how many elements of it are seen
        self.reach: dict[int, int] = {}
        for node in nodes:
            if node.name in self.inside:
                self.reach[_key(node)] = max(self.reach.get(_key(node), 0), reach_of(node.meta["val"]))
        inputs = [n for n in nodes if n.op == "placeholder"]
        for node in inputs:
            if node.name in self.inside:
                self._enter(node, name_of("memory", node.name))
            elif node.name in self.single:
                self.value[_key(node)] = name_of(node.op, str(node.target))
        self.first = {n.name: self._last(n) for n in inputs if n.name in self.inside | self.single}
        self.at_first = {key: memory.clone() for key, memory in self.memory.items()}
        for node in nodes:
            self._step(node)
        self.results = {node: self._last(node) for node in wanted}
        self.contents = {n.name: self._last(n) for n in inputs if n.name in self.first and not _is_nothing(n)}

    def _touched(self, nodes: Sequence[Node]) -> set[str]:
        found = self.inside | self.single | self.near
        for node in nodes:
            # other names of memory (.data) are gone from the other graph
            if node.target is aten.alias.default or any(n.name in found for n in node.all_input_nodes):
                found.add(node.name)
        return found

    def _near(self, nodes: Sequence[Node]) -> set[str]:
        found = set(self.inside)
        for node in nodes:
            if moves(node.target) or node.target in SAME or node.target is operator.getitem:
                if any(n.name in found for n in node.all_input_nodes):
                    found.add(node.name)
        return found

    def _require_plain(self, nodes: Sequence[Node]) -> None:
        widths: dict[int, int] = {}
        for node in nodes:
            val = node.meta.get("val")
            if isinstance(val, SYMBOLIC):
                raise Unproved("symbolic")
            if not isinstance(val, Tensor):
                continue
            if is_symbolic(val):
                raise Unproved("symbolic")
            if node.name in self.inside and widths.setdefault(_key(node), val.itemsize) != val.itemsize:
                raise Unproved("element sizes")

    def window(self, node: Node) -> Tensor:
        """What a node's tensor is in memory by now."""
        val, memory = node.meta["val"], self.memory[_key(node)]
        return memory.as_strided(tuple(val.shape), val.stride(), val.storage_offset())

    def _enter(self, node: Node, name: int) -> None:
        """Memory for a storage that is met for the first time; what several inputs see is entered once."""
        val, key = node.meta["val"], _key(node)
        # a window of as_strided reaches beyond the input, and beyond what a fake of symbols says of its storage
        size = max(self.reach[key], val.untyped_storage().nbytes() // val.itemsize)
        if key not in self.memory:
            self.memory[key] = self.names.elements(name_of("storage", name), (int(size),)).clone()

    def _last(self, node: Node) -> Any:
        return self.window(node).clone() if node.name in self.inside else self._term(node)

    def _term(self, node: Node) -> Any:
        if node.name in self.inside:
            return self.window(node)
        return self.value[_key(node)] if node.name in self.single else self.terms[node]

    def _set(self, node: Node, term: Any, shape: Sequence[int] | None = None) -> None:
        """Write to a node's memory."""
        if node.name in self.single:
            self.value[_key(node)] = term.clone() if isinstance(term, Tensor) else term
            return
        if has_overlap(node.meta["val"]):
            raise Unproved("overlap")
        window = self.window(node)
        window.copy_(self.names.elements(term, tuple(window.shape if shape is None else shape)).clone())

    def _step(self, node: Node) -> None:
        if node.op != "call_function":
            if node.op == "get_attr" and node.name in self.inside | self.single:
                raise Unproved("constant")  # a write that is refused
            self.terms[node] = name_of(node.op, str(node.target))
            return
        if is_write(node):
            self._write(node)
            return
        if node.name not in self.touched and not may_draw(node.target):
            self.terms[node] = name_of("node", node.name)
            self.as_is[node.name] = node.target, node.args, node.kwargs
            return
        mine = node.name in self.inside or node.name in self.single
        if mine and (_key(node) in self.memory or _key(node) in self.value):
            if not moves(node.target) and node.target not in SAME and node.target is not operator.getitem:
                raise Unproved("view")
            self.windows.add(node.name)
            return  # a view: the window of its memory
        if node.target in SAME:
            term = self._term(node.args[0])  # type: ignore[arg-type]
        elif node.target is operator.getitem:
            term = _item(self.terms[node.args[0]], node.args[1])  # type: ignore[index]
        elif moves(node.target) and node.name in self.near:
            term = self.moved(node, self._term)
        else:
            term = self._made(node)
        self.terms[node] = term.clone() if isinstance(term, Tensor) else term
        self._hold(node)

    def _hold(self, node: Node) -> None:
        """Put a fresh result into memory of its own, if that is written later."""
        if node.name in self.inside and _key(node) not in self.memory:
            self._enter(node, name_of("fresh", node.name))
            self._set(node, self.terms[node])
        elif node.name in self.single and _key(node) not in self.value:
            self.value[_key(node)] = self.terms[node]

    def _made(self, node: Node) -> Term:
        value = _constant(node)
        if value is not None:
            return self.names.constant(value)
        return self.result(node, self._term)

    def _write(self, node: Node) -> None:
        targets = written_arguments(node)
        if any(has_overlap(target.meta["val"]) for target in targets):
            raise Unproved("overlap")
        value = _constant(node)
        self.terms[node] = 0
        if value is not None:
            self._set(targets[0], self.names.constant(value))
        elif node.target in (aten.copy_.default, aten.fill_.Tensor):
            source = node.args[1]
            shape = tuple(source.meta["val"].shape)  # type: ignore[union-attr]
            self._set(targets[0], self._term(source), shape)  # type: ignore[arg-type]
        else:
            call = self.call(node, self._term)
            own = sum(r.alias_info is None for r in node.target._schema.returns)  # type: ignore[union-attr]
            for k, target in enumerate(targets):
                self._set(target, name_of("item", call, own + k))
            self.terms[node] = name_of("item", call, 0) if own == 1 else call
            if own == 1:
                self._hold(node)


def _key(node: Node) -> int:
    val = node.meta.get("val")
    return torch_compat.storage_key(val) if isinstance(val, Tensor) else 0


def _seen_in_parts(nodes: Sequence[Node], writes: Sequence[Node], followed: set[int]) -> set[int]:
    """Written storages of which the program sees windows, or that several inputs see, or are written by broadcasting."""
    layouts: dict[int, Any] = {}
    found: set[int] = set()
    for node in nodes:
        key = _key(node)
        if key not in followed:
            continue
        val = node.meta["val"]
        layout = tuple(val.shape), val.stride(), val.storage_offset(), val.dtype
        known = layouts.setdefault(key, layout)
        if known != layout or (node.op == "placeholder" and known is not layout):
            found.add(key)
    for node in writes:
        if node.target in (aten.copy_.default, aten.fill_.Tensor):
            target, source = node.args[:2]
            if not isinstance(source, Node) or source.meta["val"].shape != target.meta["val"].shape:  # type: ignore[union-attr]
                found.add(_key(target))  # type: ignore[arg-type]
    return found


def _is_empty(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.name in (
        "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::empty_permuted",
    )  # fmt: skip


# -- the graph without writes --------------------------------------------------------------------


class _Functional(_Run):
    """The graph without writes, run operator by operator."""

    def __init__(self, graph: torch.fx.Graph, program: Program, given: Mapping[str, Term]) -> None:
        super().__init__(program.names)
        self.program = program
        self.values: dict[Node, Any] = {}
        for node in graph.nodes:
            if node.op == "output":
                continue
            if node.name in given:
                self.values[node] = given[node.name]
            elif node.op != "call_function":
                self.values[node] = name_of(node.op, str(node.target))
            else:
                value = self._value(node)
                if (
                    isinstance(value, int)
                    and node.name in program.near
                    and isinstance(node.meta["val"], Tensor)
                ):
                    value = self.names.elements(value, tuple(node.meta["val"].shape))
                self.values[node] = value

    def memory_of(self, root: Node) -> Tensor | None:
        return self.program.at_first.get(_key(root)) if root.name in self.program.first else None

    def _uncopied(self, arguments: Any) -> Any:
        """The arguments of a node, of copies that were put before it for how they lie what they are copies of."""

        def source(n: Node) -> Node:
            return n.args[0] if n.target in SAME and n.name not in self.program.known else n  # type: ignore[return-value]

        return torch.fx.node.map_arg(arguments, source)

    def _value(self, node: Node) -> Any:
        target, own = node.target, node.name in self.program.known
        if self.program.as_is.get(node.name) == (
            target,
            self._uncopied(node.args),
            self._uncopied(node.kwargs),
        ):
            return name_of("node", node.name)
        if target is operator.getitem:
            return _item(self.values[node.args[0]], node.args[1])  # type: ignore[index]
        if target in SAME or (not own and target is aten._to_copy.default):
            return self.values[node.args[0]]  # type: ignore[index]
        value = _constant(node)
        if value is not None:
            return self.names.constant(value)
        if moves(target) and node.name in self.program.windows & self.program.single:
            return self.values[node.args[0]]  # type: ignore[index]
        if moves(target) and (not own or node.name in self.program.near):
            return self.moved(node, self.values.__getitem__)
        return self.result(node, self.values.__getitem__)


#: operators that give the elements they are given
SAME = frozenset({aten.clone.default, aten.alias.default})
#: views whose elements are others
_OTHER_ELEMENTS = frozenset({aten.view_as_real.default, aten.view_as_complex.default})


def moves(op: Any) -> bool:
    """Whether an operator only moves elements."""
    known = operator_facts(op)
    if known is None or op in SAME or op in _OTHER_ELEMENTS:
        return False
    return known.family is Family.VIEW or op in _SCATTERS


_SCATTERS = frozenset(SCATTERS.values())


def observe(graph: torch.fx.Graph, wanted: Iterable[Node], limit: int = LIMIT) -> Program | None:
    """What a graph with writes does; None where it has none, or is not of the kind that is proved."""
    if not any(is_write(n) for n in graph.nodes):
        return None
    try:
        with torch_compat.outside_modes():
            return Program(graph, wanted, limit)
    except Unproved as error:
        trace.count(f"writes_unproved_{error}")
        return None


def check(
    program: Program | None, graph: torch.fx.Graph, functional: Functional, *, strict: bool = True
) -> None:
    """Raise InternalError BZ9024 where the graph without writes does not do what the program did.

    Not ``strict``: Unsupported instead, so that the graph runs as captured, and the user is told.
    """
    if program is None:
        return
    try:
        with torch_compat.outside_modes():
            _compare(program, graph, functional)
    except InternalError as error:
        trace.count("writes_disproved")
        if strict:
            raise
        hints = ["please report the program with its dump (BRAZE_DUMP=dir)"]
        raise Unsupported(error.code, error.what, why=error.why, hints=hints, origin=error.origin) from error
    except Unproved as error:
        trace.count(f"writes_unproved_{error}")
        return
    trace.count("writes_proved")


def _compare(program: Program, graph: torch.fx.Graph, functional: Functional) -> None:
    given = dict(program.first)
    for each in functional.shared:
        given[each.base.name] = _stretch(program.at_first, each)
    values = _Functional(graph, program, given).values
    name = program.names.name
    for node, term in program.results.items():
        if not _is_nothing(node) and name(term) != name(values[functional.latest[node]]):
            raise _wrong(f"the value of {node.name}, which is output,", node, functional.latest[node])
    mutated = {node.name: value for node, value, _ in functional.mutated}
    for each in functional.shared:
        last = _stretch(program.memory, each)
        now = mutated.get(each.base.name, each.base)  # that which nobody writes stays
        if name(last) != name(given[each.base.name] if now is each.base else values[now]):
            raise _wrong("the memory that several inputs share", each.base, now)
    apart = set(program.contents) - {n.name for each in functional.shared for n in each.views}
    for label in sorted(apart):
        value = values[mutated[label]] if label in mutated else program.first[label]
        if name(program.contents[label]) != name(value):
            raise InternalError(
                "BZ9024", f"removing writes changed the last contents of the input {label}", why=_WHY
            )


def _stretch(memory: Mapping[int, Tensor], shared: Shared) -> Tensor:
    """What several inputs share, of the program's memory."""
    start = shared.inputs.offset
    return memory[_key(shared.base)][start : start + shared.inputs.size]


def _is_nothing(node: Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, Tensor) and val.numel() == 0


_WHY = "a write is lost, out of order, or seen by a reader that came before it"


def _wrong(what: str, node: Node, value: Node) -> InternalError:
    return InternalError(
        "BZ9024",
        f"removing writes changed {what} now {value.name}",
        why=_WHY,
        origin=facts(node).origin,
    )
