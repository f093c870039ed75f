"""How each scalar operation is written in Triton: one row per Op.

``{0} {1} {2}`` are the operands, ``{type}`` the result's Triton type, ``{bits}`` its width. The functions named ``bz_*`` stand in
``prelude.py``; ``libdevice`` ones run on a GPU only, since Triton's interpreter has no libdevice.
"""

from __future__ import annotations

from braze.loops.dtypes import TORCH_NAME
from braze.loops.ir import DType, Op
from braze.loops.scalars import SIGNS

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

#: signs that floats have not
_BITS = (Op.AND, Op.OR, Op.XOR)

#: operations on floats; integers have a row of their own in INTEGERS where they differ
FLOATS: dict[Op, str] = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in SIGNS.items() if op not in _BITS},
    Op.FLOORDIV: "bz_floordiv({0}, {1})",
    Op.TRUNCDIV: "bz_trunc(bz_div({0}, {1}))",
    Op.REMAINDER: "bz_remainder({0}, {1})",
    Op.FMOD: "libdevice.fmod({0}, {1})",
    Op.NEG: "bz_neg({0})",
    Op.ABS: "tl.abs({0})",
    Op.SIGN: "bz_sign({0})",
    Op.MAXIMUM: "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    Op.MINIMUM: "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    Op.FMA: "tl.fma({0}, {1}, {2})",
    Op.POW: "libdevice.pow({0}, {1})",
    Op.SQRT: "tl.sqrt({0})",
    Op.RSQRT: "tl.rsqrt({0})",
    Op.RECIPROCAL: "1.0 / {0}",
    Op.EXP: "tl.exp({0})",
    Op.EXP2: "tl.exp2({0})",
    Op.EXPM1: "bz_expm1({0})",
    Op.LOG: "tl.log({0})",
    Op.LOG2: "tl.log2({0})",
    Op.LOG10: "libdevice.log10({0})",
    Op.LOG1P: "bz_log1p({0})",
    Op.SIN: "tl.sin({0})",
    Op.COS: "tl.cos({0})",
    Op.TAN: "libdevice.tan({0})",
    Op.ASIN: "libdevice.asin({0})",
    Op.ACOS: "libdevice.acos({0})",
    Op.ATAN: "libdevice.atan({0})",
    Op.ATAN2: "libdevice.atan2({0}, {1})",
    Op.SINH: "libdevice.sinh({0})",
    Op.COSH: "libdevice.cosh({0})",
    Op.TANH: "bz_tanh({0})",
    Op.ASINH: "libdevice.asinh({0})",
    Op.ACOSH: "libdevice.acosh({0})",
    Op.ATANH: "libdevice.atanh({0})",
    Op.ERF: "tl.erf({0})",
    Op.ERFC: "libdevice.erfc({0})",
    Op.SIGMOID: "1.0 / (1.0 + tl.exp(-({0})))",
    Op.FLOOR: "tl.floor({0})",
    Op.CEIL: "tl.ceil({0})",
    Op.TRUNC: "bz_trunc({0})",
    Op.ROUND: "bz_round({0})",
    Op.HYPOT: "libdevice.hypot({0}, {1})",
    Op.COPYSIGN: "libdevice.copysign({0}, {1})",
    Op.ISNAN: "{0} != {0}",
    Op.ISINF: 'tl.abs({0}) == float("inf")',
    Op.SIGNBIT: "libdevice.signbit({0}) != 0",
    Op.WHERE: "tl.where({0}, {1}, {2})",
}

#: operations on integers and bools
INTEGERS: dict[Op, str] = {
    **{op: f"{{0}} {SIGNS[op]} {{1}}" for op in _BITS},
    Op.FLOORDIV: "bz_int_floordiv({0}, {1})",
    Op.TRUNCDIV: "{0} // {1}",
    Op.REMAINDER: "bz_int_remainder({0}, {1})",
    Op.FMOD: "{0} % {1}",
    Op.NEG: "-({0})",
    Op.SIGN: "({0} > 0).to({type}) - ({0} < 0).to({type})",
    Op.MAXIMUM: "tl.maximum({0}, {1})",
    Op.MINIMUM: "tl.minimum({0}, {1})",
    Op.NOT: "~({0})",
    Op.SHL: "bz_shl({0}, {1}, {bits})",
    Op.SHR: "bz_shr({0}, {1}, {bits})",
    Op.ISNAN: "{0} != {0}",
    Op.ISINF: "{0} != {0}",
    Op.SIGNBIT: "{0} < 0",
}


#: single precision, where the plain operators are approximations on a GPU
SINGLE: dict[Op, str] = {
    Op.DIV: "tl.div_rn({0}, {1})",
    Op.SQRT: "tl.sqrt_rn({0})",
    Op.EXP: "bz_exp({0})",
    Op.SIGMOID: "1.0 / (1.0 + bz_exp(-({0})))",
    Op.RECIPROCAL: "tl.div_rn(tl.zeros_like({0}) + 1.0, {0})",
}

#: double precision, where the plain functions are polynomials for single
DOUBLE: dict[Op, str] = {
    Op.TANH: "libdevice.tanh({0})",
    Op.EXPM1: "libdevice.expm1({0})",
    Op.LOG1P: "libdevice.log1p({0})",
}


#: single precision in a kernel whose results are half or bfloat16 (KernelPlan.coarse)
COARSE: dict[Op, str] = {
    Op.DIV: "bz_coarse_div({0}, {1})",  # by one number for many
    Op.TANH: "bz_coarse_tanh({0})",
    Op.EXP: FLOATS[Op.EXP],
    Op.SIGMOID: FLOATS[Op.SIGMOID],
    Op.SQRT: FLOATS[Op.SQRT],
}


def row(op: Op, operand: DType, coarse: bool = False) -> str | None:
    """The format string of ``op`` on operands of a type; None where Triton has none."""
    if coarse and operand is DType.F32 and op in COARSE:
        return COARSE[op]
    if operand is DType.F32 and op in SINGLE:
        return SINGLE[op]
    if operand is DType.F64 and op in DOUBLE:
        return DOUBLE[op]
    if not operand.is_float and op in INTEGERS:
        return INTEGERS[op]
    return FLOATS.get(op)
