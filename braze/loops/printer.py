"""A LoopProgram as Python text that runs: one function, plain loops over flat buffers.

`replay.py` has the names that the text uses; running it so is the meaning of the program, one element at a
time. A masked value prints as a conditional expression, for its loads happen only where it is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from braze.loops.build import nodes_of
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    ExternCall,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    Reduction,
    Step,
    Store,
    StoreMode,
    TemplateCall,
    Window,
)
from braze.loops.scalars import SIGNS
from braze.symbolic.expr import Expr, Symbol

_LEAVES = (Op.CONST, Op.INDEX, Op.REDUCED)
#: operations within operations that are written in one line: Python reads 200 pairs of parentheses, and who reads it, fewer
_DEEP = 40
#: Python words that are names of operations
_RENAMED = {"not": "invert"}


def print_program(program: LoopProgram) -> str:
    """The text of ``def program(...)``."""
    lines = [f"def {identifier(program.name)}({', '.join(_parameters(program))}):"]
    body = [f"{s.symbol} = size_of({_parameters(program)[s.input]}, {s.dim})" for s in program.sizes]
    inputs = set(program.inputs)
    known = {s.symbol for s in program.sizes}
    waiting = [b for b in program.buffers if b.name not in inputs]
    waiting = _buffers(waiting, frozenset(program.made), body)
    body += _checks(program, set(), known)
    for step in program.steps:
        body += ["", _heading(step), *print_step(step)]
        if isinstance(step, ExternCall) and step.makes:
            before = set(known)
            known.update(made.symbol for made in step.makes)
            body += _checks(program, before, known)
            waiting = [b for b in waiting if b.name not in step.outputs]
            waiting = _buffers(waiting, frozenset(program.made) - known, body)
    body += ["", f"return {_tuple(_argument(o) for o in program.outputs)}"]
    return "\n".join(lines + [f"    {line}" if line else "" for line in body]) + "\n"


def print_step(step: Step) -> list[str]:
    """The lines of one step."""
    if isinstance(step, ExternCall):
        args = [
            repr(step.target),
            *map(_argument, step.args),
            *(f"{k}={_argument(v)}" for k, v in step.kwargs),
        ]
        names = _tuple(repr(name) for name in step.outputs)
        bound = ", ".join(name or "_" for name in step.outputs)
        made = [f"{m.symbol} = size_of({step.outputs[m.output] or '_'}, {m.dim})" for m in step.makes]
        return [f"{bound}{',' if len(step.outputs) == 1 else ''} = extern({names}, {', '.join(args)})", *made]
    if isinstance(step, TemplateCall):
        at = ", ".join(str(a.symbol) for a in step.axes)
        left, rights = _argument(step.args[0]), [_argument(v) for v in step.rights]
        results = ["product" if not k else f"product{k}" for k in range(len(rights))]
        before = [line for n in step.prologue for line in print_step(n)]
        words = f", {_window(step.window)}" if step.window is not None else ""
        words += f", {_argument(step.args[-1])}" if step.kind == "grouped" else ""
        products = [f"{n} = {step.kind}({left}, {r}{words})" for n, r in zip(results, rights, strict=True)]
        taken = [f"red{k} = {name}[{at}]" for k, name in enumerate(results)]
        return [*before, *products, *_loops(step.axes, [*taken, *_stores(step.epilogue)])]
    return _loops(step.axes, [*_reductions(step), *_stores(step.stores)])


def _window(w: Window) -> str:
    return f"stride={w.stride}, padding={w.padding}, dilation={w.dilation}"


def print_node(node: Node) -> str:
    """One scalar expression on one line."""
    return _Text({}).of(node)


def identifier(name: str) -> str:
    """A name that Python takes."""
    made = "".join(c if c.isalnum() else "_" for c in name)
    return made if made and not made[0].isdigit() else f"p_{made}"


def _parameters(program: LoopProgram) -> list[str]:
    return [name or f"n{k}" for k, name in enumerate(program.inputs)]


def _buffer(b: Buffer) -> str:
    kind = "" if b.kind is BufferKind.TEMPORARY else f"  # {b.kind.value}"
    return f"{b.name} = buffer({b.dtype.label!r}, {_tuple(map(str, b.sizes))}, {_tuple(map(str, b.strides))}){kind}"


def _checks(program: LoopProgram, before: set[Symbol], now: set[Symbol]) -> list[str]:
    """The checks whose last symbol has just become known."""
    first = not before
    ready = [
        c
        for c in program.checks
        if (first or not c.condition.symbols() <= before) and c.condition.symbols() <= now
    ]
    return [f"check({c.condition}, {c.message!r})" for c in ready]


def _buffers(waiting: list[Buffer], unknown: frozenset[Symbol], body: list[str]) -> list[Buffer]:
    """Print the buffers whose sizes are known by now; the others."""
    late = [b for b in waiting if any(e.symbols() & unknown for e in (*b.sizes, *b.strides))]
    body += [_buffer(b) for b in waiting if b not in late]
    return late


def _heading(step: Step) -> str:
    where = f"  at {step.origin}" if step.origin is not None else ""
    return f"# {step.name}: {', '.join(step.ops)}{where}"


def _loops(axes: Sequence[Axis], inside: list[str]) -> list[str]:
    lines = [f"{'    ' * k}for {a.symbol} in range({a.extent}):" for k, a in enumerate(axes)]
    return lines + [f"{'    ' * len(axes)}{line}" for line in inside]


def _reductions(nest: LoopNest) -> list[str]:
    if not nest.reductions:
        return []
    rows = [f"row{k}" for k in range(len(nest.reductions))]
    text = _Text(_shared([r.value for r in nest.reductions]))
    values = [f"{row}.append({text.of(r.value)})" for row, r in zip(rows, nest.reductions, strict=True)]
    lines = [f"{row} = []" for row in rows]
    lines += _loops(nest.reduce_axes, [*text.lines, *values])
    first = 0
    for row, r in zip(rows, nest.reductions, strict=True):
        lines.append(f"{_results(first, r)} = reduce_{r.kind.value}({r.dtype.label}, {row})")
        first += r.kind.results
    return lines


def _results(first: int, r: Reduction) -> str:
    return ", ".join(f"red{first + k}" for k in range(r.kind.results)) + ("," if r.kind.results == 1 else "")


def _stores(stores: Sequence[Store]) -> list[str]:
    """All values first, then all writes."""
    text = _Text(_shared([v for s in stores for v in (s.value, *s.args)]))
    values = [text.of(s.value) for s in stores]
    places = [text.place(s.index, s.args) for s in stores]
    if len(stores) > 1:
        text.lines += [f"v{k} = {value}" for k, value in enumerate(values)]
        values = [f"v{k}" for k in range(len(stores))]
    lines = []
    for s, value, place in zip(stores, values, places, strict=True):
        sign = {StoreMode.PLAIN: "=", StoreMode.OVER: ":=", StoreMode.ADD: "+="}[s.mode]
        lines.append(f"{s.buffer}[{place}] {sign} {value}")
    return [*text.lines, *lines]


def _shared(roots: Sequence[Node]) -> dict[Node, str]:
    """Names for the nodes that are evaluated at every point and used more than once, or have much under them."""
    uses: Counter[Node] = Counter(roots)
    always: set[Node] = set()
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node in always:
            continue
        always.add(node)
        waiting.extend(node.args[:1] if node.op is Op.MASKED else node.args)
    for node in nodes_of(*roots):
        uses.update(node.args)
    names: dict[Node, str] = {}
    depths: dict[Node, int] = {}
    for node in nodes_of(*roots):
        depths[node] = 1 + max((depths[a] for a in node.args), default=0)
        if (uses[node] > 1 or depths[node] > _DEEP) and node in always and node.op not in _LEAVES:
            names[node] = f"t{len(names)}"
            depths[node] = 0
    return names


class _Text:
    """Renders nodes; the definitions of named ones are collected in ``lines``."""

    def __init__(self, names: dict[Node, str]) -> None:
        self.names = names
        self.lines: list[str] = []
        for node, name in names.items():
            self.lines.append(f"{name} = {self.expression(node)}")

    def of(self, node: Node) -> str:
        return self.names.get(node) or self.expression(node)

    def place(self, at: Expr, args: Sequence[Node]) -> str:
        """An index, its computed parts written out."""
        if not args:
            return str(at)
        mapping = {
            s: Symbol(f"int({self.of(args[s.place])})", s.low, s.high, s.limit)
            for s in at.symbols()
            if s.place is not None
        }
        return str(at.subs(mapping))

    def expression(self, node: Node) -> str:
        if node.op is Op.CONST:
            return f"{node.dtype.label}({_number(node.attr)})"
        if node.op is Op.INDEX:
            return f"{node.dtype.label}({node.attr})"
        if node.op is Op.REDUCED:
            return f"red{node.attr}"
        if node.op is Op.LOAD:
            return f"{node.attr[0]}[{self.place(node.attr[1], node.args)}]"
        if node.op is Op.CAST:
            return f"{node.dtype.label}({self.of(node.args[0])})"
        args = [self.of(a) for a in node.args]
        if node.op is Op.MASKED:
            return f"({args[1]} if {args[0]} else {args[2]})"
        if node.op in SIGNS:
            return f"({args[0]} {SIGNS[node.op]} {args[1]})"
        if node.op is Op.NEG:
            return f"(-{args[0]})"
        if node.op is Op.CHECK_INDEX:
            args.append(str(node.attr))
        if node.op is Op.BITCAST:
            args += [node.args[0].dtype.label, node.dtype.label]
        name = node.op.value
        return f"{_RENAMED.get(name, name)}({', '.join(args)})"


def _number(value: object) -> str:
    text = repr(value)
    return text if text.lstrip("-") not in ("inf", "nan") else f"float({text!r})"


def _argument(a: object) -> str:
    if isinstance(a, BufferView):
        return f"view({a.buffer}, {_tuple(map(str, a.sizes))}, {_tuple(map(str, a.strides))}, {a.offset}, {a.dtype.label!r})"
    if isinstance(a, tuple):
        return _tuple(map(_argument, a))
    return str(a) if isinstance(a, Expr) or not _is_plain(a) else repr(a)


def _is_plain(a: object) -> bool:
    return a is None or isinstance(a, (bool, int, float, complex, str))


def _tuple(items: Iterator[str] | Sequence[str]) -> str:
    made = list(items)
    return f"({made[0]},)" if len(made) == 1 else f"({', '.join(made)})"
