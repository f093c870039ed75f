"""Types in Triton, and which of its texts an operation has on operands of a type."""

from __future__ import annotations

from braze.loops.dtypes import TORCH_NAME
from braze.loops.ir import DType, Op
from braze.loops.scalars import SCALARS

TYPES = {
    dtype: "tl.int1" if dtype is DType.BOOL else f"tl.{TORCH_NAME[dtype]}"
    for dtype in DType
    if dtype.is_computable
}

#: types in a kernel's signature, for compiling without a GPU
POINTERS = {
    dtype: "*i1" if dtype is DType.BOOL else "*" + dtype.label.replace("f", "fp").replace("bfp", "bf")
    for dtype in TYPES
}


def row(op: Op, operand: DType, coarse: bool = False) -> str | None:
    """The text of ``op`` on operands of a type; None where Triton has none. ``coarse``: a cheap form will do."""
    if op is Op.WHERE:
        return "tl.where({a}, {b}, {c})"
    text = SCALARS[op].text
    kinds = ["triton"]
    if operand in (DType.F32, DType.F64):
        kinds.insert(0, f"triton_{operand.label}")
    if operand is DType.F32 and coarse:
        kinds.insert(0, "triton_coarse")
    if not operand.is_float:
        kinds.insert(0, "triton_int")
    return next((text[kind] for kind in kinds if kind in text), None)
