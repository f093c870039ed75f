"""Every scalar operation has one row, which says how each generator writes it."""

from __future__ import annotations

from string import Formatter

from braze.codegen.c.operations import templates
from braze.codegen.triton.ops import row
from braze.loops.ir import DType, Op
from braze.loops.scalars import COSTLY, SCALARS, cost

#: leaves, conversions and choices, which the emitters write themselves
APART = {Op.LOAD, Op.CONST, Op.INDEX, Op.REDUCED, Op.CAST, Op.WHERE, Op.CHECK_INDEX, Op.MASKED}


def test_every_operation_has_a_row():
    assert set(SCALARS) == set(Op) - APART
    assert cost(Op.CONST) == 0 and cost(Op.DIV) == 3 and {Op.EXP, Op.FMOD} <= COSTLY and Op.SQRT not in COSTLY


#: which the generators write themselves
THEMSELVES = {Op.BITCAST, Op.RANDOM}
#: a representation's type in C, and one like it in Triton
OPERANDS = {"f32": DType.F32, "f64": DType.F64, "i32": DType.I32, "i64": DType.I64}


def test_each_operation_is_written_in_each_language():
    for op in set(SCALARS) - THEMSELVES:
        assert any(templates(op, rep) for rep in OPERANDS), op
        assert any(row(op, dtype) for dtype in OPERANDS.values()), op
        assert "numpy" in SCALARS[op].text, op


def test_functions_of_floats_are_written_for_both_precisions_and_no_integers():
    for op in {op for op, known in SCALARS.items() if known.floats}:
        assert all(bool(templates(op, rep)) is (rep[0] == "f") for rep in OPERANDS), op
        assert row(op, DType.F32) and row(op, DType.F64), op


def test_texts_are_of_kinds_that_somebody_reads():
    """A misspelt kind would leave an operation as it is by default."""
    c = {kind + one for kind in ("c", "c_int", "c_mask") for one in ("", "_1")}
    triton = {"triton", "triton_int", "triton_f32", "triton_f64", "triton_coarse"}
    assert {kind for known in SCALARS.values() for kind in known.text} == c | triton | {"numpy"}


def test_what_a_text_names_is_what_its_language_fills_in():
    fields = {
        "c": {"t", "s", "f", "one", "zero", "most", "i"},
        "triton": {"type", "bits"},
        "numpy": set(),
    }
    for op, known in SCALARS.items():
        for kind, text in known.text.items():
            named = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
            assert named <= set("abc"[: known.arity]) | fields[kind.split("_")[0]], (op, kind)


def test_the_sign_of_a_number_of_one_lane_is_found_without_a_vector():
    assert templates(Op.SIGNBIT, "f32") == ("({i}){a} < 0", "__builtin_signbit({a}) != 0")
    assert templates(Op.ADD, "i64") == ("{a} + {b}", "{a} + {b}")
    assert templates(Op.EXP, "f32") == ("bz_exp_{t}({a})", "")
