"""Loads that run across the vectors: square tiles, read along memory and turned in registers.

Applies to a pointwise group where some loads are contiguous along another axis than the stores are.
Both axes are walked in squares of W x W; each such load is read as W contiguous vectors and turned once
per square, and the steps then read rows of the turned square.
"""

from __future__ import annotations

from collections.abc import Iterable

from braze.codegen.c.expr import stride
from braze.loops.ir import Axis, Node, Op
from braze.support.record import record

#: an axis shorter than this is not worth squares
_LEAST = 8


@record
class TilePlan:
    """The axis that the turned loads run along, and those loads."""

    across: Axis
    loads: tuple[Node, ...]


def tile_plan(axes: tuple[Axis, ...], vector: Axis | None, nodes: Iterable[Node]) -> TilePlan | None:
    """How to tile a group whose vectors lie along ``vector``; None where that gains nothing."""
    if vector is None or _short(vector):
        return None
    found: dict[Axis, list[Node]] = {}
    nodes = list(nodes)
    guarded = _under_masks(nodes)
    for node in nodes:
        if node.op is not Op.LOAD or node.args or node in guarded:
            continue
        if stride(node.attr[1], vector.symbol) in (0, 1, None):
            continue
        for axis in axes:
            if axis is not vector and not _short(axis) and stride(node.attr[1], axis.symbol) == 1:
                found.setdefault(axis, []).append(node)
    if not found:
        return None
    across = max(found, key=lambda a: len(found[a]))
    return TilePlan(across, tuple(found[across]))


def _short(axis: Axis) -> bool:
    return axis.extent.value is not None and axis.extent.value < _LEAST


def _under_masks(nodes: Iterable[Node]) -> set[Node]:
    """Nodes inside the values of MASKED nodes: their loads may not be moved out."""
    inside: set[Node] = set()
    for node in nodes:
        if node.op is Op.MASKED:
            stack = [node.args[1]]
            while stack:
                n = stack.pop()
                if n not in inside:
                    inside.add(n)
                    stack.extend(n.args)
    return inside


def turn(storage: str, c: str, w: int) -> str:
    """C of ``bz_turn``: tile[k][l] = p[l*step + k] for k < rows, l < columns."""
    name = f"bz_turn_{storage}x{w}"
    head = f"static __attribute__((noinline)) void {name}({c} *tile, const {c} *p, int64_t step, int64_t rows, int64_t columns) {{"
    loop = f"  for (int64_t l = 0; l < columns; ++l)\n    for (int64_t k = 0; k < rows; ++k) tile[k*{w} + l] = p[l*step + k];"
    if storage not in ("f32", "i32"):
        return "\n".join((head, loop, "}"))
    t = f"{storage}x{w}"
    lines = [head, f"  if (rows == {w} && columns == {w}) {{"]
    lines += [f"    {t} v{r} = *(const {t}u *)(p + {r}*step);" for r in range(w)]
    names = [f"v{r}" for r in range(w)]
    distance = w // 2
    while distance:
        low = ", ".join(str(l if not l & distance else w + l - distance) for l in range(w))
        high = ", ".join(str(l + distance if not l & distance else w + l) for l in range(w))
        for r in range(w):
            if not r & distance:
                a, b = names[r], names[r + distance]
                lines.append(f"    const {t} {a}_ = BZ_MIX({a}, {b}, i32x{w}, {low});")
                lines.append(f"    const {t} {b}_ = BZ_MIX({a}, {b}, i32x{w}, {high});")
                names[r], names[r + distance] = f"{a}_", f"{b}_"
        distance //= 2
    lines += [f"    *({t}u *)(tile + {r * w}) = {n};" for r, n in enumerate(names)]
    return "\n".join([*lines, "    return;", "  }", loop, "}"])
