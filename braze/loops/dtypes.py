"""Element types: their torch names, computation types, limits and rounding, without importing torch."""

from __future__ import annotations

import struct

from braze.loops.ir import DType
from braze.support.errors import Unsupported

#: name of a torch.dtype (without "torch.") -> element type
BY_TORCH_NAME: dict[str, DType] = {
    "bool": DType.BOOL,
    "uint8": DType.U8,
    "int8": DType.I8,
    "int16": DType.I16,
    "int32": DType.I32,
    "int64": DType.I64,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "float32": DType.F32,
    "float64": DType.F64,
    "complex32": DType.C32,
    "complex64": DType.C64,
    "complex128": DType.C128,
    "uint16": DType.U16,
    "uint32": DType.U32,
    "uint64": DType.U64,
    "float8_e4m3fn": DType.F8E4M3,
    "float8_e5m2": DType.F8E5M2,
    "float8_e4m3fnuz": DType.F8E4M3FNUZ,
    "float8_e5m2fnuz": DType.F8E5M2FNUZ,
    "float8_e8m0fnu": DType.F8E8M0,
}
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


def compute_type(dtype: DType) -> DType:
    """The type that eager computes in: float32 for the half types, the type itself otherwise."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


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


def greatest(dtype: DType) -> float | int:
    """Neutral element of a minimum: inf for floats."""
    return float("inf") if dtype.is_float else integer_range(dtype)[1]


def least(dtype: DType) -> float | int:
    """Neutral element of a maximum: -inf for floats."""
    return float("-inf") if dtype.is_float else integer_range(dtype)[0]
