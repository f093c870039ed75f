"""The machine of large tensors: its programs have some, in odd sizes that change, and what it compares is fair and sharp at these."""

from __future__ import annotations

import ast
import math
import random
import re

import pytest
import torch

from tests.fuzz.machine import MACHINES
from tests.fuzz.tensors import check, extents, generate, large, sketch
from tests.fuzz.tensors.program import Given, Line, TensorProgram, parsed


def test_arguments_are_large_odd_and_change_by_orders_of_magnitude():
    made = [TensorProgram(extents.make(random.Random(seed), True), (), ()) for seed in range(30)]
    sizes = [[math.prod(shape_of(text)) for text in program.given[0].calls] for program in made]
    assert max(map(max, sizes)) > 1 << 18 and sum(max(each) >= 1 << 12 for each in sizes) > 20
    assert any(min(each) * 100 < max(each) for each in sizes)
    assert any(each[0] < each[-1] for each in sizes) and any(each[0] > each[-1] for each in sizes)
    near = {extents.near(random.Random(seed), 4096.0) for seed in range(40)}
    assert {4095, 4096, 4097, extents.prime(4096)} <= near


def shape_of(text: str) -> tuple[int, ...]:
    """That of the memory of an argument."""
    return ast.literal_eval(text[text.index("(") + 1 : text.index(")") + 1])


def test_every_row_has_a_place_and_the_usual_programs_are_those_of_their_seeds():
    assert all(
        re.search(r"\{\w\}", row) for tables in large.TABLES.values() for table in tables[1:] for row in table
    )
    assert generate.generate(11) == generate.generate(11) != large.generate(11)


@pytest.mark.parametrize(
    ("text", "larger"),
    [
        ("v0 = (x0[:, None] - x0).sum()", True),
        ("v0 = x0.expand(9999, 9999) * 0", True),
        ("v0 = x0 * 2", False),
    ],
)
def test_what_would_take_more_memory_than_there_is_is_not_computed(text, larger):
    """On the way to a small result, too; views take none."""
    scope = {"x0": torch.ones(()).expand(9999), "torch": torch}
    assert sketch.is_larger(compile(text, "", "exec"), Line(("v0",), text), scope, 100_000) is larger


def test_one_element_that_a_sum_of_a_million_leaves_out_is_seen():
    """The sum of quarters is exact in any order, so that nothing of it is rounding."""
    program = parsed(
        "def program(x0):\n    v0 = x0.sum()\n    return (v0,)\n",
        (Given("x0", ("numbers((1048573,), 'float32', 7)",)),),
    )
    theirs = check.seen(program, program.function(), 0)
    for left_out, passes in ((0.0, True), (0.25, False)):
        ours = check.seen(program, lambda x: (x.sum() - left_out,), 0)
        assert (check.differs(program, 0, ours, theirs) is None) is passes


@pytest.mark.parametrize(("apart", "is_open"), [(1, True), (40, False)])
def test_which_of_two_comes_first_is_open_where_a_function_is_off_by_two_units(apart, is_open):
    """Of many numbers some are neighbours, two units apart when they are raised (`large` 16800000026, on a GPU)."""
    pairs = f"torch.tensor([0, {apart}], dtype=torch.int32)"
    neighbours = f"(torch.arange(4.0, 3.0, -1 / 6000, dtype=torch.float32)[:, None].view(torch.int32) - {pairs}).flatten().view(torch.float32)"
    program = parsed(
        "def program(x0):\n    v0 = x0.exp().sort(0).values\n    return (v0,)\n",
        (Given("x0", (f"{neighbours}.to(t_float32)",), "leaf"),),
        backward=True,
    )
    theirs = check.seen(program, program.function(), 0)

    def ours_first(x):
        order = x.sort().indices.view(-1, 2)
        order[:3] = order[:3].flip(1)
        return (x.exp()[order.flatten()],)

    ours = check.seen(program, ours_first, 0)
    ours.values["result 0"] = theirs.values["result 0"]
    assert (check.differs(program, 0, ours, theirs) is None) is is_open


def test_its_kernels_have_more_threads_than_one():
    assert int(MACHINES["large"].environment["OMP_NUM_THREADS"]) > 3


@pytest.mark.parametrize("seed", [730000003, 730000008])
def test_a_program_does_compiled_what_it_does_in_eager(seed):
    assert check.check(large.generate(seed)) is None
