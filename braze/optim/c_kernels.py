"""C kernels that take one step for all parameters of a table.

``void step(void **b, const int64_t *s)`` with ``b`` = table, steps' table, scratch (two doubles a row), numbers, and
``s`` = rows, width of a row of the table. A row is (elements, start, address of the parameter, of its gradient, of each
state, flag). Threads share the elements of all rows in spans, wherever rows begin and end.

The arithmetic of each element is that of PyTorch's loop over single tensors, operation by operation, but done in
one pass and, for half precision, in float.
"""

from __future__ import annotations

from braze.codegen.c.prelude import REP_BYTES, SCALAR, STORAGE, assemble, rep_vector
from braze.optim.rules import ADAM, BYTES, DECOUPLED, L2, NO_DECAY, NUMBERS, Kind
from braze.target import Target

#: elements that a thread takes at a time, a multiple of the rounding of rows' starts
SPAN = 16384
#: bytes that are asked for ahead: rows are short for the processor's own guesses, and a tenth slower without
AHEAD = 2048


def step_source(kind: Kind, target: Target) -> str:
    """The translation unit with ``step`` for a kind."""
    rep = STORAGE[kind.dtype][1]
    width = max(4, target.vector_bytes // REP_BYTES[rep])
    writer = _Writer(kind, rep, width)
    return assemble([writer.scalars(), *writer.spans(), writer.body(), writer.entry()])


def tasks(before: str, each: str, after: str = "") -> str:
    """C of ``bz_tasks``, which does the elements of tasks lo..hi.

    It finds the row where they start and walks on from there; ``each`` does elements ``from`` to ``to`` of ``row``.
    """
    return f"""\
static void bz_tasks(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t thread) {{
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


class _Writer:
    """The parts of one kernel's text."""

    def __init__(self, kind: Kind, rep: str, width: int) -> None:
        self.kind = kind
        self.rep = rep
        self.w = width
        self.vector = rep_vector(rep, width)
        self.scalar = SCALAR[rep]
        self.element = STORAGE[kind.dtype][0]
        self.names = ("p", "g", *(f"s{i}" for i in range(len(kind.states))))
        self.adam = kind.algorithm == ADAM
        #: the variants of the span: weight decay's modes, and for momentum whether the buffer is new
        self.modes = (NO_DECAY, L2, DECOUPLED) if self.adam else (NO_DECAY, L2)

    def scalars(self) -> str:
        """The run-time numbers, rounded as PyTorch rounds them."""
        names = (
            ("shrink", "decay", "sign", "w1", "w1c", "beta2", "w2", "eps", "step", "root")
            if self.adam
            else ("decay", "sign", "momentum", "fresh", "step")
        )
        return f"typedef struct {{ {self.scalar} {', '.join(names)}; int small; }} bz_numbers;"

    def splat(self, name: str) -> str:
        return f"bz_splat_{self.vector}(k->{name})"

    def spans(self) -> list[str]:
        """One function per variant that steps elements lo..hi of a row."""
        made = [self.span(mode, False) for mode in self.modes]
        if not self.adam and self.kind.states:
            made += [self.span(mode, True) for mode in self.modes]
        return made

    def span(self, mode: int, new: bool) -> str:
        steps = self.adam_steps(mode) if self.adam else self.sgd_steps(mode, new)
        reads = [n for n in self.names if not (new and n == "s0")]
        writes = [n for n in self.names if n != "g"]
        f, t = f"{self.kind.dtype}x{self.w}", self.vector

        def block(load: str, store: str, tail: str) -> list[str]:
            return [
                *(f"    {t} {n} = bz_{load}_{f}({n}_ + i{tail});" for n in reads),
                *([f"    {t} s0;"] if new else []),
                *(f"    {line}" for line in steps),
                *(f"    bz_{store}_{f}({n}_ + i, {n}{tail});" for n in writes),
            ]

        return "\n".join(
            [
                f"static void {span_name(mode, new)}(const int64_t *row, const bz_numbers *k, int64_t i, int64_t hi) {{",
                *(
                    f"  {self.element} *const {n}_ = ({self.element} *)row[{2 + j}];"
                    for j, n in enumerate(self.names)
                ),
                f"  for (; i + {self.w} <= hi; i += {self.w}) {{",
                *(f"    __builtin_prefetch({n}_ + i + {AHEAD // BYTES[self.kind.dtype]});" for n in reads),
                *block("load", "store", ""),
                "  }",
                "  if (i < hi) {",
                "    const int64_t n = hi - i;",
                *block("loadn", "storen", ", n"),
                "  }",
                "}",
            ]
        )

    def adam_steps(self, mode: int) -> list[str]:
        v, fma = self.splat, f"bz_fma_{self.vector}"
        lines = [f"g *= {v('sign')};"]
        if mode == DECOUPLED:
            lines.append(f"p *= {v('shrink')};")
        elif mode == L2:
            lines.append(f"g = {fma}(p, {v('decay')}, g);")
        lines += [
            f"s0 = k->small ? {fma}({v('w1')}, g - s0, s0) : {fma}({v('w1c')}, g - s0, g);",
            f"s1 = {fma}({v('w2')} * g, g, s1 * {v('beta2')});",
        ]
        second = "s1"
        if len(self.kind.states) > 2:
            # the larger; nan if either is
            lines.append(f"s2 = bz_sel_{self.vector}({self.mask('(s2 > s1) | (s2 != s2)')}, s2, s1);")
            second = "s2"
        lines += [
            f"const {self.vector} d = bz_sqrt_{self.vector}({second}) / {v('root')} + {v('eps')};",
            f"p += {v('step')} * s0 / d;",
        ]
        return lines

    def mask(self, condition: str) -> str:
        return f"bz_mask_{self.vector}({condition})"

    def sgd_steps(self, mode: int, new: bool) -> list[str]:
        v, fma = self.splat, f"bz_fma_{self.vector}"
        lines = [f"g *= {v('sign')};"]
        if mode == L2:
            lines.append(f"g = {fma}(p, {v('decay')}, g);")
        if self.kind.states:
            lines.append("s0 = g;" if new else f"s0 = {fma}(g, {v('fresh')}, s0 * {v('momentum')});")
            lines.append(f"g = {fma}(s0, {v('momentum')}, g);" if self.kind.nesterov else "g = s0;")
        return [*lines, f"p = {fma}(g, {v('step')}, p);"]

    def body(self) -> str:
        flag = 2 + self.kind.columns
        cases = [f"      case {mode}: {self.choose(mode, flag)} break;" for mode in self.modes]
        fixed = [
            "  const double *const scratch = (const double *)b[2], *const x = (const double *)b[3];",
            "  bz_numbers k;",
            self.fixed_numbers(),
        ]
        each = [
            self.row_numbers(),
            f"    switch ((int)x[{len(NUMBERS[self.kind.algorithm]) - 1}]) {{",
            *cases,
            "    }",
        ]
        return tasks("\n".join(fixed), "\n".join(each))

    def choose(self, mode: int, flag: int) -> str:
        call = "(row, &k, from, to);"
        if self.adam or not self.kind.states:
            return f"{span_name(mode, False)}{call}"
        return f"if (row[{flag}]) {span_name(mode, True)}{call} else {span_name(mode, False)}{call}"

    def fixed_numbers(self) -> str:
        """C that rounds the numbers that all rows share. ``x`` is in the order of rules.NUMBERS."""
        if self.adam:
            return """\
  k.shrink = 1.0 - x[0] * x[4]; k.decay = x[4]; k.sign = x[5]; k.eps = x[3];
  k.w1 = 1.0 - x[1]; k.w1c = k.w1 - 1; k.small = k.w1 < 0.5; k.beta2 = x[2]; k.w2 = 1.0 - x[2];"""
        return "  k.decay = x[3]; k.sign = x[4]; k.momentum = x[1]; k.fresh = 1.0 - x[2]; k.step = -x[0];"

    def row_numbers(self) -> str:
        return "    k.step = scratch[2 * r]; k.root = scratch[2 * r + 1];" if self.adam else ""

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


def span_name(mode: int, new: bool) -> str:
    return f"bz_span{mode}{'n' if new else ''}"


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
