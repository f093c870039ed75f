"""C kernels over a table of gradients: their norm, their scaling, their clamping.

``void f(void **b, const int64_t *s)`` with ``b`` = table, numbers, and ``s`` = rows, width of a row. A norm writes one
double per task behind the numbers' first; their sum or maximum is the caller's to take.
"""

from __future__ import annotations

from braze.codegen.c.prelude import SCALAR, STORAGE, assemble, rep_vector
from braze.loops.build import cast, lt, mul, register, unary, where
from braze.loops.ir import DType, Node, Op
from braze.optim.c_kernels import SPAN, elementwise, lanes_of, tasks
from braze.optim.rules import BYTES
from braze.target import Target

SQUARES, LARGEST, SCALE, CLAMP = "squares", "largest", "scale", "clamp"
#: vectors whose squares are summed in their own precision before the sum goes on in double
_CHAIN = 16


def clip_source(function: str, dtype: str, target: Target) -> str:
    """The translation unit with one function, under the name ``run``."""
    writer = {SQUARES: _squares, LARGEST: _largest, SCALE: _scale, CLAMP: _clamp}[function]
    # a norm reads, the others read and write
    work = BYTES[dtype] * (1 if function in (SQUARES, LARGEST) else 2)
    entry = f"""\
void run(void **b, const int64_t *s) {{
  const int64_t *const last = (const int64_t *)b[0] + (s[0] - 1) * s[1];
  const int64_t all = last[1] + last[0];
  bz_run_free(bz_tasks, b, s, (all + {SPAN - 1}) / {SPAN}, all * {work});
}}"""
    return assemble([*writer(dtype, lanes_of(dtype, target)), entry])


def _pointer(dtype: str) -> str:
    element = STORAGE[dtype][0]
    return f"    {element} *const g = ({element} *)row[2];"


def _squares(dtype: str, w: int) -> list[str]:
    t, f = rep_vector(STORAGE[dtype][1], w), f"{dtype}x{w}"
    each = f"""\
{_pointer(dtype)}
    int64_t i = from;
    while (i < to) {{
      const int64_t stop = i + {_CHAIN * w} < to ? i + {_CHAIN * w} : to;
      {t} a = {{}};
      for (; i + {w} <= stop; i += {w}) {{ const {t} v = bz_load_{f}(g + i); a += v * v; }}
      if (i < stop) {{ const {t} v = bz_loadn_{f}(g + i, stop - i); a += v * v; i = stop; }}
      total += __builtin_convertvector(a, f64x{w});
    }}"""
    after = f"""\
  double sum = 0;
  for (int l = 0; l < {w}; ++l) sum += total[l];
  ((double *)b[1])[1 + lo] = sum;"""
    return [_one_task_each(tasks(f"  f64x{w} total = {{}};", each, after))]


def _largest(dtype: str, w: int) -> list[str]:
    rep = STORAGE[dtype][1]
    t, f, scalar = rep_vector(rep, w), f"{dtype}x{w}", SCALAR[rep]
    # nan stays: nothing compares as larger than it
    step = f"v = bz_abs_{t}(v); m = bz_sel_{t}(bz_mask_{t}((v > m) | (v != v)), v, m);"
    each = f"""\
{_pointer(dtype)}
    int64_t i = from;
    for (; i + {w} <= to; i += {w}) {{ {t} v = bz_load_{f}(g + i); {step} }}
    if (i < to) {{ {t} v = bz_loadn_{f}(g + i, to - i); {step} }}"""
    after = f"""\
  {scalar} most = 0;
  for (int l = 0; l < {w}; ++l) if (m[l] > most || m[l] != m[l]) most = m[l];
  ((double *)b[1])[1 + lo] = most;"""
    return [_one_task_each(tasks(f"  {t} m = {{}};", each, after))]


def _one_task_each(text: str) -> str:
    """A reduction has one result a task, however many tasks a thread is given at once."""
    whole = text.replace("bz_tasks", "bz_one_task")
    return f"""\
{whole}
static void bz_tasks(void **b, const int64_t *s, int64_t lo, int64_t hi, int64_t thread) {{
  for (int64_t i = lo; i < hi; ++i) bz_one_task(b, s, i, i + 1, thread);
}}"""


def _elementwise(dtype: str, w: int, result: Node) -> list[str]:
    """Each gradient becomes ``result``, of ``g`` and of the number ``k``."""
    return [elementwise(dtype, w, ("g",), {"k": "*(const double *)b[1]"}, {}, {"": {"g": result}})]


def _leaves(dtype: str) -> tuple[Node, Node]:
    computing = DType.F64 if dtype == "f64" else DType.F32
    return register("g", computing), cast(register("k", DType.F64), computing)


def _scale(dtype: str, w: int) -> list[str]:
    return _elementwise(dtype, w, mul(*_leaves(dtype)))


def _clamp(dtype: str, w: int) -> list[str]:
    g, k = _leaves(dtype)
    low = unary(Op.NEG, k)
    g = where(lt(g, low), low, g)
    return _elementwise(dtype, w, where(lt(k, g), k, g))
