"""Triton kernels that take one step for all parameters of a table on a GPU.

``step(table, places, scratch, numbers, found, scale, width, ...)``: a program does ``CHUNK`` elements of one row, which
``places`` names (row, chunk). ``table`` and ``numbers`` are those of the C kernels; ``scratch`` has two doubles a row.
``advance(table, ...)`` counts the steps that live on the device, and fills ``scratch`` from them.

``found`` is a float that is not zero if the step is to be skipped, ``scale`` one to divide gradients by: what a
GradScaler gives to optimizers that were made with ``fused=True``.
"""

from __future__ import annotations

from braze.codegen.triton.emit import NOTHING, Emitter, Scope, Value
from braze.loops.rewrite import walk
from braze.optim.programs import ROW, registers, update
from braze.optim.rules import ADAM, Kind
from braze.support.dtypes import LONG
from braze.symbolic.expr import ZERO

#: elements of a program, and of one turn of its loop
CHUNK, BLOCK = 8192, 1024
#: rows of a program of ``advance``
ROWS = 128
WARPS = 4


def step_source(kind: Kind) -> str:
    """The module with ``step`` (and ``advance``, where parameters count their steps)."""
    adam, names, element = kind.algorithm == ADAM, kind.names, f"tl.{LONG[kind.dtype]}"
    emitter = Emitter({}, {}, ("x",))
    known = _row_numbers(kind, emitter)
    lines = [
        "import triton",
        "import triton.language as tl",
        "",
        f"CHUNK, BLOCK, ROWS, WARPS = {CHUNK}, {BLOCK}, {ROWS}, {WARPS}",
        "",
    ]
    if adam:
        lines += [ADVANCE, ""]
    lines += [
        "@triton.jit",
        "def step(table, places, scratch, numbers, found, scale, width, SCALED: tl.constexpr, FOUND: tl.constexpr, "
        "ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):",
        "    if FOUND:",
        "        if tl.load(found) != 0:",
        "            return",
        "    place = tl.program_id(0).to(tl.int64) * 2",
        "    row = tl.load(places + place)",
        "    at = table + row * width",
        "    count = tl.load(at)",
        *(f"    {n}_ = tl.load(at + {2 + i}).to(tl.pointer_type({element}))" for i, n in enumerate(names)),
        "    if ALIGNED:",
        *(f"        {n}_ = tl.multiple_of({n}_, 16)" for n in names),
        f"    flag = tl.load(at + {2 + len(names)})",
        *(f"    {name} = tl.load(numbers + {i})" for i, name in enumerate(kind.numbers)),
        *(f"    {name} = tl.load(scratch + 2 * row + {i})" for i, name in enumerate(ROW if adam else ())),
        *known.lines,
        "    if SCALED:",
        f"        divisor = tl.load(scale).to({_compute(kind)})",
        "    first = tl.load(places + place + 1) * CHUNK",
        # a mask known to hold lets a thread load several elements at once
        "    if first + CHUNK <= count:",
        *_loop(kind, emitter, known, ""),
        "    else:",
        *_loop(kind, emitter, known, ", mask=i < count"),
    ]
    return "\n".join([*lines, ""])


def _loop(kind: Kind, emitter: Emitter, known: Scope, mask: str) -> list[str]:
    """A program's turns, indented for a branch."""
    element, compute = f"tl.{LONG[kind.dtype]}", _compute(kind)
    other = ", other=0.0" if mask else ""
    scope = Scope([], "    ", outer=known)
    scope.stored = {(name, ZERO): Value(name, frozenset("x")) for name in kind.names}
    values = {name: emitter.value(node, scope).name for name, node in update(kind).items()}
    lines = [
        "for start in range(0, CHUNK, BLOCK):",
        "    i = first + start + tl.arange(0, BLOCK)",
        *(f"    {n} = tl.load({n}_ + i{mask}{other}).to({compute})" for n in kind.names),
        "    if SCALED:",
        "        g = g / divisor",
        f"        tl.store(g_ + i, g.to({element}){mask})",
        *scope.lines,
        *(f"    tl.store({n}_ + i, {value}.to({element}){mask})" for n, value in values.items()),
    ]
    return [f"        {line}" for line in lines]


def _row_numbers(kind: Kind, emitter: Emitter) -> Scope:
    """What is computed once for a row: all that no element is in."""
    scope = Scope([], "    ")
    numbers = {name: Value(name, NOTHING) for name in (*kind.numbers, *ROW)}
    scope.stored = {
        (name, ZERO): value for name, value in {**numbers, "new": Value("(flag != 0)", NOTHING)}.items()
    }
    elements = set(kind.names)
    for name, result in update(kind).items():
        for node in walk(result):
            if not registers({name: node}) & elements:
                emitter.value(node, scope)
    return scope


def _compute(kind: Kind) -> str:
    return "tl.float64" if kind.dtype == "f64" else "tl.float32"


#: steps += 1 for each row, then (-lr / (1 - beta1^step), sqrt(1 - beta2^step)); logarithms of the betas are given
ADVANCE = """\
@triton.jit
def advance(steps, scratch, numbers, logs, found, rows, FOUND: tl.constexpr, ROWS: tl.constexpr):
    if FOUND:
        if tl.load(found) != 0:
            return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    at = tl.load(steps + 3 * row + 2, mask=inside, other=0).to(tl.pointer_type(tl.float32))
    now = tl.load(at, mask=inside, other=0.0) + 1.0
    tl.store(at, now, mask=inside)
    t = now.to(tl.float64)
    lr = tl.load(numbers)
    one = 1.0 - tl.exp(t * tl.load(logs))
    two = 1.0 - tl.exp(t * tl.load(logs + 1))
    tl.store(scratch + 2 * row, -(lr / one), mask=inside)
    tl.store(scratch + 2 * row + 1, tl.sqrt(two), mask=inside)
"""
