"""Squares that are read along memory and turned in registers: for loads that run across the vectors.

Both axes are walked in squares of W x W; each such load is read as W contiguous vectors and turned once
per square, and the steps then read rows of the turned square.
"""

from __future__ import annotations

import re

#: bytes of the largest elements that are turned in registers
_WIDEST = 4


def turn(storage: str, c: str, raw: str, w: int) -> str:
    """C of ``bz_turn``: tile[k][l] = p[l*step + k] for k < rows, l < columns; ``raw``: of what the vectors of memory are."""
    name = f"bz_turn_{storage}x{w}"
    head = f"static __attribute__((noinline)) void {name}({c} *tile, const {c} *p, int64_t step, int64_t rows, int64_t columns) {{"
    loop = f"  for (int64_t l = 0; l < columns; ++l)\n    for (int64_t k = 0; k < rows; ++k) tile[k*{w} + l] = p[l*step + k];"
    size = int(re.sub(r"\D", "", raw)) // 8
    if size > _WIDEST:
        return "\n".join((head, loop, "}"))
    t, index = f"{raw}x{w}", f"i{8 * size}x{w}"
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
                lines.append(f"    const {t} {a}_ = BZ_MIX({a}, {b}, {index}, {low});")
                lines.append(f"    const {t} {b}_ = BZ_MIX({a}, {b}, {index}, {high});")
                names[r], names[r + distance] = f"{a}_", f"{b}_"
        distance //= 2
    lines += [f"    *({t}u *)(tile + {r * w}) = {n};" for r, n in enumerate(names)]
    return "\n".join([*lines, "    return;", "  }", loop, "}"])
