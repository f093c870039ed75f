"""Element types: their torch names, computation types, limits and rounding, without importing torch."""

from __future__ import annotations

import struct

from braze.loops.ir import DType, ReduceKind
from braze.support.dtypes import LONG
from braze.support.errors import Unsupported

#: name of a torch.dtype (without "torch.") -> element type
BY_TORCH_NAME: dict[str, DType] = {LONG[dtype.label]: dtype for dtype in DType}
TORCH_NAME: dict[DType, str] = {dtype: name for name, dtype in BY_TORCH_NAME.items()}

_found: dict[object, DType] = {}


def from_torch(dtype: object) -> DType:
    """The element type of a torch.dtype; refused for types that the compiler cannot even pass through."""
    found = _found.get(dtype)
    if found is None:
        found = BY_TORCH_NAME.get(str(dtype).removeprefix("torch."))
        if found is None:
            raise Unsupported(
                "BZ3004", f"a tensor of {dtype}", why="no loop program holds elements of that type"
            )
        _found[dtype] = found
    return found


#: the types that are stored, and not computed in
HALVES = (DType.F16, DType.BF16)


def compute_type(dtype: DType) -> DType:
    """The type that eager computes in: float32 for the half types, the type itself otherwise."""
    return DType.F32 if dtype in HALVES else dtype


def integer_range(dtype: DType) -> tuple[int, int]:
    """Least and greatest value of an integer type (or bool)."""
    if dtype is DType.BOOL:
        return 0, 1
    bits = 8 * dtype.itemsize
    return (0, (1 << bits) - 1) if dtype is DType.U8 else (-(1 << bits - 1), (1 << bits - 1) - 1)


def wrap_integer(value: int, dtype: DType) -> int:
    """An integer reduced to the type, as two's complement arithmetic does."""
    low, high = integer_range(dtype)
    return (value - low) % (high - low + 1) + low


def truncated_to(dtype: DType) -> DType:
    """The type whose low bits a float becomes in eager when it is cast to an integer type: its least value where that holds no such number."""
    return DType.I64 if dtype in (DType.I64, DType.U8) else DType.I32


def round_float(value: float, dtype: DType) -> float:
    """A Python float rounded to a float type (to nearest, ties to even; overflow to inf)."""
    if dtype is DType.F64 or value != value or value in (float("inf"), float("-inf")):
        return value
    if dtype is DType.BF16:
        return _round_bf16(round_float(value, DType.F32))
    code = "e" if dtype is DType.F16 else "f"
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _round_bf16(value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        return value
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


#: lowest and highest finite value
FLOAT_LIMITS: dict[DType, tuple[float, float]] = {
    DType.F16: (-65504.0, 65504.0),
    DType.BF16: (-3.3895313892515355e38, 3.3895313892515355e38),
    DType.F32: (-3.4028234663852886e38, 3.4028234663852886e38),
    DType.F64: (-1.7976931348623157e308, 1.7976931348623157e308),
}


def neutral(kind: ReduceKind, dtype: DType) -> float | int:
    """What leaves a reduction as it is; of one that looks for a place, what every element is better than."""
    if kind.extreme is None and kind is not ReduceKind.ONLINE_SOFTMAX:
        return 1 if kind in (ReduceKind.PROD, ReduceKind.ALL) else 0
    smallest = kind.extreme is ReduceKind.MIN
    return float("inf" if smallest else "-inf") if dtype.is_float else integer_range(dtype)[smallest]
