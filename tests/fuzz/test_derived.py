"""The machine of derivatives and control flow: its rows are met, its loops ask what PyTorch's ask, and the other machines' programs stay as they were."""

from __future__ import annotations

import re

import pytest
import torch

from tests.fuzz.tensors import calculus, check, derived, generate
from tests.fuzz.tensors.program import Given, parsed


def test_rows_of_derivatives_and_of_control_flow_are_met():
    text = "\n".join(line.text for seed in range(40) for line in derived.generate(seed).lines)
    for word in (
        "torch.func.",
        "autograd.grad(",
        "register_hook(",
        "cond(",
        "while_loop(",
        "scan(",
        "mapped(",
    ):
        assert word in text, word


def test_no_row_stands_in_both_tables():
    assert not [row for usual, more in derived.TABLES.values() for row in more if row in usual]
    assert all(re.search(r"\{\w\}", row) for _, more in derived.TABLES.values() for row in more)


def test_programs_of_the_other_machine_are_those_of_their_seeds():
    assert generate.generate(11) == generate.generate(11) != derived.generate(11)


@pytest.mark.parametrize("seed", [730000003, 730000017])
def test_a_program_does_compiled_what_it_does_in_eager(seed):
    assert check.check(derived.generate(seed)) is None


def test_loops_in_eager_carry_values_of_one_kind():
    x = torch.ones(2, 3)
    with pytest.raises(ValueError, match="another kind"):
        calculus.while_loop(lambda i, t: i < 2, lambda i, t: (i + 1, t.mT), (torch.tensor(0), x))
    with pytest.raises(ValueError, match="another kind"):  # PyTorch's loops ask it of no rounds, too
        calculus.while_loop(lambda i, t: i < 0, lambda i, t: (i + 1, t * 2), (torch.tensor(0), x > 0))
    last, rows = calculus.scan(lambda c, t: (c + t, c * 2), x[0], x, reverse=True)
    assert torch.equal(last, torch.full((3,), 3.0)) and torch.equal(rows[:, 0], torch.tensor([4.0, 2.0]))


def test_an_operand_that_is_written_may_be_refused_where_a_branch_is_computed_again():
    assert check.OVER_DATA.search("v1 = cond(v0.sum() > 0, f, g, (v0,))")
    assert not check.OVER_DATA.search("v1 = v0.cos() * second(v0)")


def test_what_pytorch_cannot_compile_behind_a_break_is_not_compared():
    text = """\
def program(x):
    v0 = cond(x.any(), lambda t: Cube.apply(t), lambda t: Clipped.apply(t), (x[::2],))
    return (v0,)
"""
    given = (Given("x", ("numbers((2,), 'float64', 0, 'small')",), "made"),)
    assert check.check(parsed(text, given, backend="eager")) is None


def test_results_in_float64_are_known_where_copies_of_what_is_saved_are_refused():
    text = """\
def program(x):
    v0 = (x * 1).sum()
    v1 = torch.float_power(v0, 2)
    v0.sub_(0)
    v2 = torch.func.grad(lambda t: t.sin().sum())(x)
    return (v1, v2,)
"""
    given = (Given("x", ("numbers((3, 4), 'float16', 0, 'small')",), "leaf"),)
    program = parsed(text, given, backward=True)
    exact = check.in_double(program, 0, torch.float16).exact
    assert exact["result 0"].dtype is torch.float64
