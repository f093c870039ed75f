"""What scalar operations are: how many operands they take, of which types, what they cost, how exact they are, how they are written.

One table for all who ask: constructors, the verifier, lowerings, the scheduler, the generators and the interpreter. An operation
is one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from braze.loops.ir import RELATIONS, Op


class Scalar(NamedTuple):
    """One operation on computed operands.

    ``cost``: what an evaluation takes beyond an addition's time, a division being 3: nanoseconds by lane of float32, AVX-512,
    over 0.06, measured 2026-11 on a Sapphire Rapids; where C's library computes lane by lane, at most 60, for vectors of GPUs
    know no such thing. ``sign``: between its operands in Python, C and Triton. ``floats``: defined on floating-point numbers only;
    ``bits``: on integers and bools only. ``test``: gives a bool. ``whole``: gives a number without a fraction. ``steps``: makes a
    large difference of the least one. ``library``: done lane by lane by C's library, in "f32" or "f64".
    ``ulps``, ``wide``: the error of the C generator's float32 and float64 forms, at most, in units of the last place, where they are ours.

    ``text``: how it is written, by language, of the operands ``{a} {b} {c}`` (``{args}``: all), where :func:`_written` does not say it.

    - ``c``: floats of a representation whose vector type is ``{t}``; ``c_int``: i32 and i64 (narrower ones are wrapped after);
      ``c_mask``: -1 or 0 by lane. With ``_1`` behind: one number, of type ``{s}`` (a mask's is 1 or 0), where that is written otherwise;
      what names ``{t}`` is otherwise done in lane 0 of a vector. ``{f}`` is C's suffix of floats.
    - ``triton``; ``triton_int`` for integers and bools; ``triton_f32`` where the plain form is an approximation on a GPU; ``triton_f64`` where
      it is a polynomial for single; ``triton_coarse``: a cheap form for f32, good to 17 bits and more, where all results are half types
      (``KernelPlan.coarse``). ``{type}`` is the result's, ``{bits}`` its width; ``bz_*`` stand in codegen/triton/prelude.py. ``libdevice`` runs on a GPU
      only: Triton's interpreter has none.
    - ``numpy``, for the interpreter, which knows some functions of its own.
    """

    arity: int
    cost: int = 0
    sign: str = ""
    floats: bool = False
    bits: bool = False
    test: bool = False
    whole: bool = False
    steps: bool = False
    library: tuple[str, ...] = ()
    ulps: float | None = None
    wide: float | None = None
    text: Mapping[str, str] = MappingProxyType({})


def _function(
    cost: int,
    ulps: float | None = None,
    library: tuple[str, ...] = (),
    arity: int = 1,
    wide: float | None = None,
    **text: str,
) -> Scalar:
    return Scalar(arity, cost, floats=True, ulps=ulps, wide=wide, library=library, text=text)


def _test(relation: str, mask: str, mask_1: str) -> Scalar:
    return Scalar(2, sign=RELATIONS[relation], test=True, steps=True, text=dict(c_mask=mask, c_mask_1=mask_1))


def _rounding(name: str, **text: str) -> Scalar:
    builtin = f"__builtin_{name}{{f}}({{a}})"
    return Scalar(1, whole=True, steps=True, text={"c_1": builtin, "c_int": "{a}", **text})


def _extremum(sign: str, name: str, mask: str) -> Scalar:
    pick, pick_1 = "bz_sel_{t}(bz_mask_{t}(%s), {a}, {b})", "(%s ? {a} : {b})"
    better = f"{{a}} {sign} {{b}}"
    return Scalar(
        2,
        1,
        text={
            "c": pick % f"({better}) | ({{a}} != {{a}})", "c_1": pick_1 % f"{better} || {{a}} != {{a}}",
            "c_int": pick % better, "c_int_1": pick_1 % better, "c_mask": mask,
            "triton": f"tl.{name}({{a}}, {{b}}, propagate_nan=tl.PropagateNan.ALL)", "triton_int": f"tl.{name}({{a}}, {{b}})",
        },
    )  # fmt: skip


_DOUBLE = ("f64",)

_ROWS: dict[Op, Scalar] = {
    Op.ADD: Scalar(2, sign="+", text=dict(c_mask="{a} | {b}")),
    Op.SUB: Scalar(2, sign="-", text=dict(c_mask="{a} ^ {b}")),
    Op.MUL: Scalar(2, sign="*", text=dict(c_mask="{a} & {b}")),
    Op.DIV: Scalar(
        2, 3, "/", floats=True, text=dict(triton_f32="tl.div_rn({a}, {b})", triton_coarse="bz_coarse_div({a}, {b})")
    ),  # coarse: by one number for many
    Op.FLOORDIV: Scalar(
        2, 60, steps=True,
        text=dict(
            c_int="bz_floordiv_{t}({args})", c_int_1="bz_floordiv_s({args})",
            triton="bz_floordiv({args})", triton_int="bz_int_floordiv({args})", numpy="floor_divide({args})",
        ),
    ),
    Op.TRUNCDIV: Scalar(
        2, 40, steps=True,
        text=dict(
            c="bz_trunc_{t}({a} / {b})", c_int="bz_truncdiv_{t}({args})", c_int_1="bz_truncdiv_s({args})",
            triton="bz_trunc(bz_div({args}))", triton_int="{a} // {b}", numpy="trunc_divide({args})",
        ),
    ),
    Op.REMAINDER: Scalar(
        2, 60, steps=True,
        text=dict(
            c_int="bz_remainder_{t}({args})", c_int_1="bz_remainder_s({args})",
            triton="bz_remainder({args})", triton_int="bz_int_remainder({args})", numpy="remainder({args})",
        ),
    ),
    Op.FMOD: Scalar(
        2, 60, steps=True,
        text=dict(c_int="bz_fmod_{t}({args})", c_int_1="bz_fmod_s({args})", triton_int="{a} % {b}"),
    ),
    Op.NEG: Scalar(1, text=dict(c="-{a}", c_int="-{a}", triton="bz_neg({a})", triton_int="-({a})", numpy="-{a}")),
    Op.ABS: Scalar(
        1,
        text=dict(
            c_1="__builtin_fabs{f}({a})", c_int="bz_sel_{t}(bz_mask_{t}({a} < 0), -{a}, {a})", c_int_1="({a} < 0 ? -{a} : {a})",
            c_mask="{a}",
        ),
    ),
    Op.SIGN: Scalar(
        1, 1, steps=True,
        text=dict(
            c="bz_sel_{t}(bz_mask_{t}({a} > {zero}), bz_splat_{t}(1), bz_sel_{t}(bz_mask_{t}({a} < {zero}), bz_splat_{t}(-1), ({t}){{}}))",
            c_1="(({s})(({a} > 0) - ({a} < 0)))", c_int="(({a} < 0) - ({a} > 0))", c_int_1="(({a} > 0) - ({a} < 0))", c_mask="{a}",
            triton="bz_sign({a})", triton_int="({a} > 0).to({type}) - ({a} < 0).to({type})", numpy="sign({a})",
        ),
    ),
    Op.MAXIMUM: _extremum(">", "maximum", "{a} | {b}"),
    Op.MINIMUM: _extremum("<", "minimum", "{a} & {b}"),
    Op.FMA: Scalar(3, text=dict(c_1="bz_fma{f}_s({args})", c_int="{a} * {b} + {c}", numpy="{a} * {b} + {c}")),
    Op.POW: Scalar(
        2, 60, ulps=0.6, wide=1.2, text=dict(c_int="bz_pow_{t}({args})", c_int_1="bz_pow_s({args})", numpy="np.power({args})")
    ),
    Op.SQRT: _function(
        4, 0.5001, c_1="__builtin_sqrt{f}({a})", triton_f32="tl.sqrt_rn({a})", triton_coarse="tl.sqrt({a})"
    ),
    Op.RSQRT: _function(
        7, 1.6, c="{one} / bz_sqrt_{t}({a})", c_1="{one} / __builtin_sqrt{f}({a})", numpy="1 / np.sqrt({a})"
    ),
    Op.RECIPROCAL: _function(
        3, c="{one} / {a}", triton="1.0 / {a}", triton_f32="tl.div_rn(tl.zeros_like({a}) + 1.0, {a})", numpy="1 / {a}"
    ),
    Op.EXP: _function(8, 1.1, wide=1.0, triton_f32="bz_exp({a})", triton_coarse="tl.exp({a})"),
    Op.EXP2: _function(9, 1.1, _DOUBLE),
    Op.EXPM1: _function(12, 1.6, wide=1.8, triton="bz_expm1({a})", triton_f64="libdevice.expm1({a})"),
    Op.LOG: _function(17, 1.1, wide=0.9),
    Op.LOG2: _function(20, 2.0, _DOUBLE),
    Op.LOG10: _function(20, 2.1, _DOUBLE),
    Op.LOG1P: _function(25, 1.6, wide=0.9, triton="bz_log1p({a})", triton_f64="libdevice.log1p({a})"),
    Op.SIN: _function(13, 1.6, wide=0.9),
    Op.COS: _function(13, 1.6, wide=0.9),
    Op.TAN: _function(16, 2.1, _DOUBLE),
    Op.ASIN: _function(16, 2.1, _DOUBLE, numpy="np.arcsin({a})"),
    Op.ACOS: _function(16, 1.6, _DOUBLE, numpy="np.arccos({a})"),
    Op.ATAN: _function(16, 1.6, _DOUBLE, numpy="np.arctan({a})"),
    Op.ATAN2: _function(18, 1.6, _DOUBLE, arity=2, numpy="np.arctan2({args})"),
    Op.SINH: _function(16, 2.1, _DOUBLE),
    Op.COSH: _function(16, 1.6, _DOUBLE),
    Op.TANH: _function(
        21, 1.6, wide=2.1, triton="bz_tanh({a})", triton_f64="libdevice.tanh({a})", triton_coarse="bz_coarse_tanh({a})"
    ),
    Op.ASINH: _function(40, 1.6, _DOUBLE, numpy="np.arcsinh({a})"),
    Op.ACOSH: _function(40, 1.6, _DOUBLE, numpy="np.arccosh({a})"),
    Op.ATANH: _function(25, 1.6, _DOUBLE, numpy="np.arctanh({a})"),
    Op.ERF: _function(23, 1.6, wide=1.9, triton_coarse="bz_coarse_erf({a})", numpy="erf({a})"),
    Op.ERFC: _function(25, 3.1, _DOUBLE, numpy="erfc({a})"),
    Op.SIGMOID: _function(
        12, 2.6, wide=2.3, triton="1.0 / (1.0 + tl.exp(-({a})))", triton_f32="1.0 / (1.0 + bz_exp(-({a})))",
        triton_coarse="bz_coarse_sigmoid({a})", numpy="1 / (1 + np.exp(-{a}))",
    ),
    Op.FLOOR: _rounding("floor"),
    Op.CEIL: _rounding("ceil"),
    Op.TRUNC: _rounding("trunc", triton="bz_trunc({a})"),
    Op.ROUND: _rounding("rint", triton="bz_round({a})", numpy="np.rint({a})"),
    Op.HYPOT: _function(16, 0.76, _DOUBLE, arity=2),
    Op.COPYSIGN: Scalar(
        2, floats=True, text=dict(c_1="__builtin_copysign{f}({args})", triton="libdevice.copysign({args})")
    ),
    Op.EQ: _test("eq", "~({a} ^ {b})", "{a} == {b}"),
    Op.NE: _test("ne", "{a} ^ {b}", "{a} ^ {b}"),
    Op.LT: _test("lt", "~{a} & {b}", "{a} < {b}"),
    Op.LE: _test("le", "~{a} | {b}", "{a} <= {b}"),
    Op.GT: _test("gt", "{a} & ~{b}", "{a} > {b}"),
    Op.GE: _test("ge", "{a} | ~{b}", "{a} >= {b}"),
    Op.ISNAN: Scalar(
        1, test=True, steps=True,
        text=dict(c="{a} != {a}", c_int="{a} != {a}", triton="{a} != {a}", triton_int="{a} != {a}"),
    ),
    Op.ISINF: Scalar(
        1, test=True, steps=True,
        text=dict(
            c="({a} > {most}) | ({a} < -{most})", c_int="{a} != {a}",
            triton='tl.abs({a}) == float("inf")', triton_int="{a} != {a}",
        ),
    ),
    Op.SIGNBIT: Scalar(
        1, test=True, steps=True,
        text=dict(
            c="({i}){a} < 0", c_1="__builtin_signbit({a}) != 0", c_int="{a} < 0",
            triton="libdevice.signbit({a}) != 0", triton_int="{a} < 0",
        ),
    ),
    Op.AND: Scalar(2, sign="&", bits=True, text=dict(c_mask="{a} & {b}")),
    Op.OR: Scalar(2, sign="|", bits=True, text=dict(c_mask="{a} | {b}")),
    Op.XOR: Scalar(2, sign="^", bits=True, text=dict(c_mask="{a} ^ {b}")),
    Op.NOT: Scalar(1, bits=True, text=dict(c_int="~{a}", c_mask="~{a}", c_mask_1="!{a}", triton_int="~({a})", numpy="~{a}")),
    Op.SHL: Scalar(2, bits=True, text=dict(c_int="{a} << {b}", triton_int="bz_shl({args}, {bits})", numpy="{a} << {b}")),
    Op.SHR: Scalar(2, bits=True, text=dict(c_int="{a} >> {b}", triton_int="bz_shr({args}, {bits})", numpy="{a} >> {b}")),
    # written by the generators themselves
    Op.BITCAST: Scalar(1, steps=True),
    Op.RANDOM: Scalar(2, 40),
}  # fmt: skip


#: functions that Triton's language has; the others are CUDA's library's
IN_TRITON = frozenset(
    (
        Op.ABS, Op.FMA, Op.SQRT, Op.RSQRT, Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS, Op.ERF, Op.FLOOR,
        Op.CEIL,
    )
)  # fmt: skip


def _written(op: Op, row: Scalar) -> dict[str, str]:
    """An operation's texts: signs are the same everywhere, functions have each language's name, and the row says what is otherwise."""
    args = ", ".join(["{a}", "{b}", "{c}"][: row.arity])
    if row.sign:
        plain = dict.fromkeys(("c", "c_int", "triton", "triton_int", "numpy"), f"{{a}} {row.sign} {{b}}")
    else:
        where = "tl" if op in IN_TRITON else "libdevice"
        plain = {"c": f"bz_{op.value}_{{t}}({args})", "triton": f"{where}.{op.value}({args})"}
        plain["numpy"] = f"np.{op.value}({args})"
    without = ("c_int", "triton_int") if row.floats else ("c", "triton") if row.bits else ()
    own = {kind: text.replace("{args}", args) for kind, text in row.text.items()}
    return {kind: text for kind, text in plain.items() if kind not in without} | own


SCALARS: dict[Op, Scalar] = {
    op: row if op in (Op.BITCAST, Op.RANDOM) else row._replace(text=_written(op, row))
    for op, row in _ROWS.items()
}


def cost(op: Op) -> int:
    """What one evaluation takes beyond an addition's time; leaves and choices nothing."""
    row = SCALARS.get(op)
    return 0 if row is None else row.cost


#: operations that cost tens of cycles an element
COSTLY = frozenset(op for op, row in SCALARS.items() if row.cost >= 8)
TESTS = frozenset(op for op, row in SCALARS.items() if row.test)
#: operations of which GPUs have cheap forms
COARSE = frozenset(op for op, row in SCALARS.items() if "triton_coarse" in row.text)
#: how an operation is written between its operands
SIGNS = {op: row.sign for op, row in SCALARS.items() if row.sign}
