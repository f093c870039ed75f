"""C kernels that take one step for all parameters of a table.

``void step(void **b, const int64_t *s)`` with ``b`` = table, steps' table, scratch (two doubles a row), numbers, and
``s`` = rows, width of a row of the table. A row is (elements, start, address of the parameter, of its gradient, of each
state, flag). Threads share the elements of all rows in spans, wherever rows begin and end.

What is done to each element programs.py says.
"""

from __future__ import annotations

from braze.codegen.c.body import Body, Storage
from braze.codegen.c.operations import Representations, Value
from braze.codegen.c.prelude import REP_BYTES, STORAGE, assemble
from braze.loops.ir import Node
from braze.loops.ranges import Varying
from braze.optim.programs import ROW, registers, update
from braze.optim.rules import ADAM, BYTES, DECOUPLED, L2, NO_DECAY, Kind
from braze.symbolic.expr import ZERO, Symbol
from braze.target import Target

#: elements that a thread takes at a time, a multiple of the rounding of rows' starts
SPAN = 16384
#: bytes that are asked for ahead: rows are short for the processor's own guesses, and a tenth slower without
AHEAD = 2048
#: along which vectors lie
LANES = Symbol("lane")


def step_source(kind: Kind, target: Target) -> str:
    """The translation unit with ``step`` for a kind."""
    writer = _Writer(kind, lanes_of(kind.dtype, target))
    return assemble([*writer.walks(), writer.entry()])


def lanes_of(dtype: str, target: Target) -> int:
    """Elements of a vector, in the type that is computed in."""
    return max(4, target.vector_bytes // REP_BYTES[STORAGE[dtype][1]])


def tasks(before: str, each: str, after: str = "", name: str = "bz_tasks") -> str:
    """C of a function that does the elements of tasks lo..hi.

    It finds the row where they start and walks on from there; ``each`` does elements ``from`` to ``to`` of ``row``.
    """
    return f"""\
static void {name}(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t thread) {{
  const int64_t *const table = (const int64_t *)b[0], rows = s[0], width = s[1];
  const int64_t at = lo * {SPAN}, end = hi * {SPAN};
  int64_t first = 0, last = rows;
  while (last - first > 1) {{
    const int64_t middle = (first + last) / 2;
    if (table[middle * width + 1] <= at) first = middle; else last = middle;
  }}
{before}
  for (int64_t r = first; r < rows; ++r) {{
    const int64_t *const row = table + r * width;
    if (row[1] >= end) break;
    const int64_t from = at > row[1] ? at - row[1] : 0, to = row[0] < end - row[1] ? row[0] : end - row[1];
    if (from >= to) continue;
{each}
  }}
{after}
}}"""


def elementwise(
    dtype: str,
    width: int,
    tensors: tuple[str, ...],
    numbers: dict[str, str],
    row: dict[str, str],
    variants: dict[str, dict[str, Node]],
    name: str = "bz_tasks",
) -> str:
    """:func:`tasks` that do the same to each element.

    ``variants``: what is done, by the tensor that it is written to, where C's condition holds of a row. ``tensors`` stand in a row in this
    order; ``numbers`` and those of a ``row`` are doubles, as C finds them.
    """  # fmt: skip
    body = Body(width, LANES, Varying(LANES, tensors), Representations(), Storage({}))
    body.forward |= {(each, ZERO): Value(text, "f64", False, 0) for each, text in numbers.items()}
    body.open("")  # the walk over rows: what stays the same stands before it
    body.forward |= {(each, ZERO): Value(text, "f64", False, 1) for each, text in row.items()}
    for j, tensor in enumerate(tensors):
        body.line(f"{STORAGE[dtype][0]} *const {tensor} = ({STORAGE[dtype][0]} *)row[{2 + j}];")
    for condition, results in variants.items():
        body.open(condition)
        _elements(body, dtype, [each for each in tensors if each in registers(results)], results)
        body.close()
    inner = body.scopes.pop()
    return tasks("\n".join(body.scope.lines), "\n".join(inner.lines[1:]), name=name)


def _elements(body: Body, dtype: str, reads: list[str], results: dict[str, Node]) -> None:
    """Vectors, and the elements that are left."""
    body.line("int64_t i = from;")
    body.open(f"for (; i + {body.lanes} <= to; i += {body.lanes}) ")
    for tensor in reads:
        body.line(f"__builtin_prefetch({tensor} + i + {AHEAD // BYTES[dtype]});")
    _vectors(body, dtype, reads, results, "")
    body.close()
    body.open("if (i < to) ")
    _vectors(body, dtype, reads, results, ", to - i")
    body.close()


def _vectors(body: Body, dtype: str, reads: list[str], results: dict[str, Node], count: str) -> None:
    """One vector of each tensor, or its first elements: read, done, written."""
    some, form = "n" if count else "", f"{dtype}x{body.lanes}"
    for tensor in reads:
        text = f"bz_load{some}_{form}({tensor} + i{count})"
        body.forward[tensor, ZERO] = body.define(None, text, STORAGE[dtype][1], True, body.scope.depth)
    for tensor, value in [(tensor, body.vector(node)) for tensor, node in results.items()]:
        body.line(f"bz_store{some}_{form}({tensor} + i, {value.text}{count});")


class _Writer:
    """The parts of one kernel's text."""

    def __init__(self, kind: Kind, width: int) -> None:
        self.kind = kind
        self.w = width
        self.adam = kind.algorithm == ADAM
        #: weight decay's modes
        self.modes = (NO_DECAY, L2, DECOUPLED) if self.adam else (NO_DECAY, L2)

    def walks(self) -> list[str]:
        """The tasks of each mode, and which is meant."""
        numbers = {name: f"((const double *)b[3])[{i}]" for i, name in enumerate(self.kind.numbers)}
        row = {name: f"((const double *)b[2])[2 * r + {i}]" for i, name in enumerate(ROW)}
        walks = [
            elementwise(
                self.kind.dtype, self.w, self.kind.names, numbers, row, self.variants(mode), f"bz_tasks{mode}"
            )
            for mode in self.modes
        ]
        cases = [f"    case {mode}: bz_tasks{mode}(b, s, lo, hi, thread); break;" for mode in self.modes]
        head = "static void bz_tasks(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t thread) {"
        return [*walks, "\n".join([head, f"  switch ((int){numbers['decay']}) {{", *cases, "  }", "}"])]

    def variants(self, mode: int) -> dict[str, dict[str, Node]]:
        """For momentum it matters whether the buffer is new."""
        if self.adam or not self.kind.states:
            return {"": update(self.kind, mode, False)}
        flag = 2 + self.kind.columns
        return {f"if (row[{flag}]) ": update(self.kind, mode, True), "else ": update(self.kind, mode, False)}

    def entry(self) -> str:
        size = BYTES[self.kind.dtype]
        # the gradient is read; all else is read and written
        work = size * (2 * self.kind.columns - 1)
        return f"""\
{ADVANCE if self.adam else ""}
void step(void **b, const int64_t *s) {{
  const int64_t *const last = (const int64_t *)b[0] + (s[0] - 1) * s[1];
  const int64_t all = last[1] + last[0];
{"  bz_advance((const int64_t *)b[1], (double *)b[2], (const double *)b[3], s[0], (int)s[2]);" if self.adam else ""}
  bz_run_free(bz_tasks, b, s, (all + {SPAN - 1}) / {SPAN}, all * {work});
}}"""


def advance_source() -> str:
    """The translation unit with ``advance(b, s)``: ``b`` = steps' table, scratch, numbers, ``s`` = rows, wide."""
    entry = """\
void advance(void **b, const int64_t *s) {
  bz_advance((const int64_t *)b[0], (double *)b[1], (const double *)b[2], s[0], (int)s[1]);
}"""
    return assemble([ADVANCE, entry])


#: step += 1 for each row, then (-lr / (1 - beta1^step), sqrt(1 - beta2^step)); equal steps are computed once
ADVANCE = """\
double pow(double, double); double sqrt(double);
static void bz_advance(const int64_t *steps, double *scratch, const double *x, int64_t rows, int wide) {
  double t = -1, size = 0, root = 0;
  for (int64_t r = 0; r < rows; ++r) {
    void *const at = (void *)steps[3 * r + 2];
    const double now = wide ? (*(double *)at += 1) : (double)(*(float *)at += 1);
    if (now != t) {
      t = now;
      size = -(x[0] / (1.0 - pow(x[1], t)));
      root = pow(1.0 - pow(x[2], t), 0.5);
    }
    scratch[2 * r] = size;
    scratch[2 * r + 1] = root;
  }
}"""
