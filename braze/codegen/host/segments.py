"""C functions that run a stretch of kernels in one call from Python.

``int64_t segment_N(void **b, const int64_t *s)``: ``b`` holds the tensors that the host passes, then the
arena; ``s`` the size symbols. Places in the arena are computed here.
"""

from __future__ import annotations

import dataclasses

from braze.codegen.host.homes import Home, Homes
from braze.codegen.host.text import c_text, identifier
from braze.codegen.records import KernelText
from braze.symbolic.expr import Symbol


@dataclasses.dataclass(slots=True)
class Segment:
    """Kernels that run one after another without the host."""

    name: str
    kernels: list[tuple[KernelText, str]] = dataclasses.field(default_factory=list)  # kernel, its function
    before: list[str] = dataclasses.field(default_factory=list)  # statements of the host
    after: list[str] = dataclasses.field(default_factory=list)
    tensors: dict[str, int] = dataclasses.field(default_factory=dict)  # host expression -> position
    uses_arena: bool = False
    reports: bool = False

    def slot(self, expression: str) -> str:
        """The C expression for a tensor that the host passes."""
        return f"b[{self.tensors.setdefault(expression, len(self.tensors))}]"


def segment_text(segment: Segment, homes: Homes, sizes: tuple[Symbol, ...]) -> str:
    """The C function of a segment."""
    lines: list[str] = []
    for kernel, function in segment.kernels:
        args = [_argument(a, segment, homes) for a in kernel.args]
        lines.append("  {")
        lines.append(f"    void *a[] = {{{', '.join(args) or '0'}}};")
        values = ", ".join(map(identifier, kernel.sizes))
        lines.append(f"    const int64_t z[] = {{{values or '0'}}};")
        lines.append(f"    {function}(a, z);")
        lines.append("  }")
    head = [f"int64_t {segment.name}(void **b, const int64_t *s) {{", "  int64_t status = 0;"]
    if segment.uses_arena:
        head.append(f"  char *const arena = (char *)b[{len(segment.tensors)}];")
    head += [f"  const int64_t {identifier(x.name)} = s[{k}];" for k, x in enumerate(sizes)]
    return "\n".join([*head, *lines, "  return status;", "}", ""])


def _argument(name: str, segment: Segment, homes: Homes) -> str:
    if name == "status":
        segment.reports = True
        return "&status"
    if name.startswith("packed:"):
        return segment.slot(packed_name(name.removeprefix("packed:")))
    if homes.of(name) is Home.ARENA:
        segment.uses_arena = True
        return f"arena + {c_text(homes.slots[name].offset)}"
    return segment.slot(identifier(name))


def packed_name(buffer: str) -> str:
    """The host's variable for the packed copy of a buffer."""
    return f"{identifier(buffer)}_packed"


def declarations(functions: set[str]) -> str:
    """Kernels that stand in other translation units."""
    return "".join(f"void {name}(void **, const int64_t *);\n" for name in sorted(functions))
