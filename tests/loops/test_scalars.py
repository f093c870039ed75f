"""Every scalar operation has one row, and every generator writes each that has one."""

from __future__ import annotations

from braze.codegen.c import ops as c
from braze.codegen.triton import ops as triton
from braze.loops.ir import Op
from braze.loops.scalars import COSTLY, SCALARS, cost

#: leaves, conversions and choices, which the emitters write themselves
APART = {Op.LOAD, Op.CONST, Op.INDEX, Op.REDUCED, Op.CAST, Op.WHERE, Op.CHECK_INDEX, Op.MASKED}


def test_every_operation_has_a_row():
    assert set(SCALARS) == set(Op) - APART
    assert cost(Op.CONST) == 0 and cost(Op.DIV) == 3 and {Op.EXP, Op.FMOD} <= COSTLY and Op.SQRT not in COSTLY


def test_each_generator_writes_each_operation():
    themselves = {Op.BITCAST, Op.RANDOM}
    tests = {op for op, row in SCALARS.items() if row.test}
    in_c = {*c.FLOAT, *c.INTEGER, *c.MASK, *tests}
    assert set(SCALARS) - themselves <= in_c
    assert set(SCALARS) - themselves <= {*triton.FLOATS, *triton.INTEGERS}
    assert set(triton.COARSE) == {op for op, row in SCALARS.items() if row.coarse}


def test_functions_of_floats_are_written_for_both_precisions():
    functions = {op for op, row in SCALARS.items() if row.floats}
    assert functions <= set(c.FLOAT) and functions <= set(triton.FLOATS)
    assert not functions & set(c.INTEGER)
