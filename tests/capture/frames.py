"""Look into live frames: localsplus and stack, NULLs included. For tests of the resume layer; needs no torch."""

from __future__ import annotations

import ctypes
import sys
from types import FrameType

#: offset of localsplus in _PyInterpreterFrame; the same in 3.11, 3.12 and 3.13
_LOCALSPLUS = 72
_STACKTOP = 64
#: offset of f_frame in PyFrameObject
_FRAME = 24

assert sys.version_info[:2] in ((3, 11), (3, 12), (3, 13))


class Null:
    """Stands for NULL."""

    def __repr__(self) -> str:
        return "NULL"


NULL = Null()


def read_slots(frame: FrameType, start: int, count: int) -> list[object]:
    """Objects of localsplus[start : start + count], NULL where there is none."""
    inner = ctypes.c_void_p.from_address(id(frame) + _FRAME).value
    assert inner is not None
    found: list[object] = []
    for i in range(start, start + count):
        address = ctypes.c_void_p.from_address(inner + _LOCALSPLUS + 8 * i).value
        found.append(NULL if address is None else ctypes.cast(address, ctypes.py_object).value)
    return found


def stack_depth(frame: FrameType, localsplus: int) -> int:
    """How many slots the suspended frame's stack has (3.11 keeps the number while tracing; others may not)."""
    inner = ctypes.c_void_p.from_address(id(frame) + _FRAME).value
    assert inner is not None
    return ctypes.c_int.from_address(inner + _STACKTOP).value - localsplus
