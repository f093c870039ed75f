"""C functions that run a stretch of kernels in one call from Python.

``int64_t segment_N(void **b, const int64_t *s)``: ``b`` holds the tensors that the host passes, then the
arena; ``s`` the size symbols, and where those decide, the places in the arena.
"""

from __future__ import annotations

import dataclasses

from braze.codegen.c.expr import to_c
from braze.codegen.host.homes import Home, Homes
from braze.codegen.host.text import identifier
from braze.support.record import record
from braze.symbolic.expr import Expr, Symbol

#: what a segment gives that meets an index out of range behind a write to an input; 1 where it is before
WRITTEN = 2


@record
class Launch:
    """One kernel of a segment: its function, arguments and sizes, and the host's variables of packed weights.

    ``late``: an input has been written before it.
    """

    function: str
    args: tuple[str, ...]
    sizes: tuple[str, ...]
    packed: dict[str, str]
    late: bool = False


#: kernels of a segment whose names a profiler is told
NAMED = 3


@dataclasses.dataclass(slots=True)
class Segment:
    """Kernels that run one after another without the host."""

    name: str
    launches: list[Launch] = dataclasses.field(default_factory=list)
    before: list[str] = dataclasses.field(default_factory=list)  # statements of the host
    after: list[str] = dataclasses.field(default_factory=list)
    tensors: dict[str, int] = dataclasses.field(default_factory=dict)  # host expression -> position
    uses_arena: bool = False
    reports: bool = False

    @property
    def kernels(self) -> str:
        """The names of its kernels, of many the first ones."""
        names = [launch.function for launch in self.launches]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more

    def slot(self, expression: str) -> str:
        """The C expression for a tensor that the host passes."""
        return f"b[{self.tensors.setdefault(expression, len(self.tensors))}]"


def segment_text(segment: Segment, homes: Homes, sizes: tuple[Symbol, ...]) -> str:
    """The C function of a segment."""
    lines: list[str] = []
    for launch in segment.launches:
        args = [
            segment.slot(launch.packed[a]) if a in launch.packed else _argument(a, segment, homes)
            for a in launch.args
        ]
        lines.append("  {")
        lines.append(f"    void *a[] = {{{', '.join(args) or '0'}}};")
        values = ", ".join(map(identifier, launch.sizes))
        lines.append(f"    const int64_t z[] = {{{values or '0'}}};")
        lines.append(f"    {launch.function}(a, z);")
        if "status" in launch.args:
            told = WRITTEN if launch.late else "status"
            lines.append(f"    if (status) return {told};  /* what follows may write to an input */")
        lines.append("  }")
    head = [f"int64_t {segment.name}(void **b, const int64_t *s) {{", "  int64_t status = 0;"]
    if segment.uses_arena:
        head.append(f"  char *const arena = (char *)b[{len(segment.tensors)}];")
    head += [f"  const int64_t {identifier(x.name)} = s[{k}];" for k, x in enumerate(sizes)]
    if segment.uses_arena and not homes.static:
        head.append(f"  const int64_t *const o = s + {len(sizes)};")
    return "\n".join([*head, *lines, "  return status;", "}", ""])


def _argument(name: str, segment: Segment, homes: Homes) -> str:
    if name == "status":
        segment.reports = True
        return "&status"
    if homes.of(name) is Home.ARENA:
        segment.uses_arena = True
        offset = homes.offset(name)
        return f"arena + {to_c(offset) if isinstance(offset, Expr) else f'o[{offset}]'}"
    return segment.slot(identifier(name))


def declarations(functions: set[str]) -> str:
    """Kernels that stand in other translation units."""
    return "".join(f"void {name}(void **, const int64_t *);\n" for name in sorted(functions))


#: sums over a few words of each weight, so that writes that no version counter shows are noticed
SAMPLER = """\
typedef uint64_t __attribute__((aligned(1), may_alias)) bz_word;
int64_t sample_weights(void **b, const int64_t *s) {
  const int64_t write = s[0], n = s[1];
  int64_t *const sums = (int64_t *)b[n];
  int64_t differ = 0;
  for (int64_t k = 0; k < n; ++k) {
    const bz_word *const p = (const bz_word *)b[k];
    const int64_t words = s[2 + k] / 8;
    uint64_t sum = (uint64_t)p;
    for (int64_t j = 0; j < 8 && j < words; ++j) {
      sum = (sum ^ p[j * (words / 8) + (j < words % 8 ? j : words % 8)]) * 0x9e3779b97f4a7c15ul;
      sum ^= sum >> 32; /* or sign changes of an even number of samples would cancel */
    }
    if ((int64_t)sum != sums[k]) { ++differ; if (write) sums[k] = (int64_t)sum; }
  }
  return differ;
}
"""
