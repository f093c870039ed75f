"""Vectors of each second, third or fourth element: read as neighbours, and mixed in registers. Lane by lane they would be as many instructions as there are lanes, twice.

Only what lies between the first and the last element is read: the last of the vectors of neighbours ends with that one.
"""

from __future__ import annotations

import re

#: elements from one lane to the next, at most: so many vectors are read for one
MOST = 4
#: bytes of a vector from which instructions mix two
_LEAST_BYTES = 8


def mixed(vector: str) -> bool:
    """Whether vectors of a type are mixed by the processor's instructions."""
    raw, _, lanes = vector.partition("x")
    return _bytes(raw) * int(lanes) >= _LEAST_BYTES


def every(raw: str, w: int, step: int) -> str:
    """``bz_every``: lane l is p[l*step]; ``raw``: of what the vectors of memory are."""
    t, index = f"{raw}x{w}", f"i{8 * _bytes(raw)}x{w}"
    starts = [min(k * w, (w - 1) * (step - 1)) for k in range(step)]
    lines = [f"static inline {t} bz_every{step}_{t}(const void *p) {{"]
    lines += [
        f"  const {t} v{k} = *(const {t}u *)((const char *)p + {start * _bytes(raw)});"
        for k, start in enumerate(starts)
    ]
    found = "v0"
    for k in range(1, step):
        lanes = []
        for lane in range(w):
            place = lane * step
            if place < starts[k - 1] + w:
                lanes.append(place if k == 1 else lane)  # in what is found so far
            else:  # what this one has not got either is anything
                lanes.append(min(w + place - starts[k], 2 * w - 1))
        lines.append(f"  const {t} m{k} = BZ_MIX({found}, v{k}, {index}, {', '.join(map(str, lanes))});")
        found = f"m{k}"
    return "\n".join([*lines, f"  return {found};", "}"])


def _bytes(raw: str) -> int:
    return int(re.sub(r"\D", "", raw)) // 8
