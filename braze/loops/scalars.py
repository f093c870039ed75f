"""What scalar operations are: how many operands they take, of which types, what they cost, how exact they are.

One table for all who ask: constructors, the verifier, lowerings, the scheduler and the generators. How an operation is written in C and
in Triton stands in the generators' own tables, one row for each; where both and Python write it with the same sign, the sign is here.
"""

from __future__ import annotations

from braze.loops.ir import RELATIONS, Op
from braze.support.record import record


@record
class Scalar:
    """One operation on computed operands.

    ``cost``: what an evaluation takes beyond an addition's time, a division being 3: nanoseconds by lane of float32, AVX-512,
    over 0.06, measured 2026-11 on a Sapphire Rapids; where C's library computes lane by lane, at most 60, for vectors of GPUs
    know no such thing. ``floats``: defined on floating-point numbers only. ``test``: gives a bool. ``whole``: gives a number without
    a fraction. ``steps``: makes a large difference of the least one. ``coarse``: GPUs have cheap forms that are good to 17 bits and more.
    ``library``: done lane by lane by C's library, in "f32" and "f64", or only in "f64". ``ulps``: the error of the
    C generator's float32 form, at most, in units of the last place, where it is ours.
    """

    arity: int
    cost: int = 0
    sign: str = ""
    floats: bool = False
    test: bool = False
    whole: bool = False
    steps: bool = False
    coarse: bool = False
    library: tuple[str, ...] = ()
    ulps: float | None = None


def _function(
    cost: int, ulps: float | None = None, library: tuple[str, ...] = (), arity: int = 1, coarse: bool = False
) -> Scalar:
    return Scalar(arity, cost, floats=True, ulps=ulps, library=library, coarse=coarse)


_BOTH, _DOUBLE = ("f32", "f64"), ("f64",)

SCALARS: dict[Op, Scalar] = {
    Op.ADD: Scalar(2, sign="+"),
    Op.SUB: Scalar(2, sign="-"),
    Op.MUL: Scalar(2, sign="*"),
    Op.DIV: Scalar(2, 3, "/", floats=True, coarse=True),
    Op.FLOORDIV: Scalar(2, 60, steps=True),
    Op.TRUNCDIV: Scalar(2, 40, steps=True),
    Op.REMAINDER: Scalar(2, 60, steps=True),
    Op.FMOD: Scalar(2, 60, steps=True, library=_BOTH),
    Op.NEG: Scalar(1),
    Op.ABS: Scalar(1),
    Op.SIGN: Scalar(1, 1, steps=True),
    Op.MAXIMUM: Scalar(2, 1),
    Op.MINIMUM: Scalar(2, 1),
    Op.FMA: Scalar(3),
    Op.POW: Scalar(2, 60, library=_BOTH),
    Op.SQRT: _function(4, 0.5001, coarse=True),
    Op.RSQRT: _function(7, 1.6),
    Op.RECIPROCAL: _function(3),
    Op.EXP: _function(8, 1.1, _DOUBLE, coarse=True),
    Op.EXP2: _function(9, 1.1, _DOUBLE),
    Op.EXPM1: _function(12, 1.6, _DOUBLE),
    Op.LOG: _function(17, 1.1, _DOUBLE),
    Op.LOG2: _function(20, 2.0, _DOUBLE),
    Op.LOG10: _function(20, 2.1, _DOUBLE),
    Op.LOG1P: _function(25, 1.6, _DOUBLE),
    Op.SIN: _function(13, 1.6, _DOUBLE),
    Op.COS: _function(13, 1.6, _DOUBLE),
    Op.TANH: _function(21, 1.6, _DOUBLE, coarse=True),
    Op.ERF: _function(23, 1.6, _DOUBLE),
    Op.SIGMOID: _function(12, 2.6, coarse=True),
    Op.TAN: _function(16, 2.1, _DOUBLE),
    Op.ASIN: _function(16, 2.1, _DOUBLE),
    Op.ACOS: _function(16, 1.6, _DOUBLE),
    Op.ATAN: _function(16, 1.6, _DOUBLE),
    Op.SINH: _function(16, 2.1, _DOUBLE),
    Op.COSH: _function(16, 1.6, _DOUBLE),
    Op.ASINH: _function(40, 1.6, _DOUBLE),
    Op.ACOSH: _function(40, 1.6, _DOUBLE),
    Op.ATANH: _function(25, 1.6, _DOUBLE),
    Op.ERFC: _function(25, 3.1, _DOUBLE),
    Op.ATAN2: _function(18, 1.6, _DOUBLE, arity=2),
    Op.HYPOT: _function(16, 0.76, _DOUBLE, arity=2),
    **dict.fromkeys((Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND), Scalar(1, whole=True, steps=True)),
    Op.COPYSIGN: Scalar(2, floats=True),
    **{Op(name): Scalar(2, sign=sign, test=True, steps=True) for name, sign in RELATIONS.items()},
    **dict.fromkeys((Op.ISNAN, Op.ISINF, Op.SIGNBIT), Scalar(1, test=True, steps=True)),
    Op.AND: Scalar(2, sign="&"),
    Op.OR: Scalar(2, sign="|"),
    Op.XOR: Scalar(2, sign="^"),
    Op.NOT: Scalar(1),
    Op.SHL: Scalar(2),
    Op.SHR: Scalar(2),
    Op.BITCAST: Scalar(1, steps=True),
    Op.RANDOM: Scalar(2, 40),
}


def cost(op: Op) -> int:
    """What one evaluation takes beyond an addition's time; leaves and choices nothing."""
    row = SCALARS.get(op)
    return 0 if row is None else row.cost


#: operations that cost tens of cycles an element
COSTLY = frozenset(op for op, row in SCALARS.items() if row.cost >= 8)
TESTS = frozenset(op for op, row in SCALARS.items() if row.test)
#: how an operation is written between its operands, in Python, C and Triton
SIGNS = {op: row.sign for op, row in SCALARS.items() if row.sign}
