"""What is known of integers before the program runs: ranges hold every value, and no narrower type is taken than they need."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from braze.codegen.c.kernel import work_text
from braze.loops.ir import DType, Node, Op
from braze.loops.ranges import Ranges
from braze.schedule.cpu.processors import Work
from braze.symbolic.expr import Symbol

I64 = DType.I64
NUMBERS = st.integers(-(2**33), 2**33) | st.integers(-5, 5)
BINARY = [Op.ADD, Op.SUB, Op.MUL, Op.MAXIMUM, Op.MINIMUM]


def leaf(ends: tuple[int, int], k: int) -> tuple[Node, list[int]]:
    low, high = min(ends), max(ends)
    return Node(Op.INDEX, I64, (), Symbol(f"i{k}", low, high)), sorted({low, high, (low + high) // 2})


@given(
    op=st.sampled_from([*BINARY, Op.NEG, Op.ABS]),
    ends=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=2),
)
def test_a_range_holds_every_value(op: Op, ends: list[tuple[int, int]]) -> None:
    leaves = [leaf(e, k) for k, e in enumerate(ends)][: 2 if op in BINARY else 1]
    node = Node(op, I64, tuple(n for n, _ in leaves))
    found = Ranges().of(node)
    results = [python(op, values) for values in itertools.product(*(v for _, v in leaves))]
    if found is not None:
        assert found[0] <= min(results) and max(results) <= found[1]
        assert found[0] >= -(2**31) and found[1] < 2**31


def python(op: Op, values: tuple[int, ...]) -> int:
    return {Op.ADD: sum, Op.SUB: lambda v: v[0] - v[1], Op.MUL: lambda v: v[0] * v[1], Op.MAXIMUM: max, Op.MINIMUM: min,
            Op.NEG: lambda v: -v[0], Op.ABS: lambda v: abs(v[0])}[op](values)  # fmt: skip


def test_a_choice_is_in_the_range_of_both() -> None:
    narrow, wide = leaf((-3, 5), 0)[0], leaf((10, 70), 1)[0]
    either = Node(Op.LOAD, DType.BOOL, (), ("x", Symbol("i", 0)))
    assert Ranges().of(Node(Op.WHERE, I64, (either, narrow, wide))) == (-3, 70)
    assert Ranges().of(Node(Op.MASKED, I64, (either, wide, narrow))) == (-3, 70)
    assert Ranges().of(Node(Op.NEG, I64, (narrow,))) == (-5, 3)
    assert Ranges().of(Node(Op.ADD, I64, (wide, leaf((0, 2**31 - 1), 2)[0]))) is None


@given(
    counts=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 99)), max_size=4),
    static=st.integers(0, 10**6),
    threads=st.integers(0, 8),
    n=st.integers(0, 10**9),
)
def test_the_work_of_a_kernel_is_all_that_it_does(
    counts: list[tuple[int, int]], static: int, threads: int, n: int
) -> None:
    """Each of its loops by what a point costs, and what is of no size: as many threads as that is worth, or may be."""
    size = Symbol("n", 0)
    work = Work(tuple((size * k + k, each) for k, each in counts), static)
    text = work_text(work, threads).replace("L", "")
    found = eval(text, {"n": n, "bz_min_s": min})
    every = sum((n * k + k) * each for k, each in counts) + static
    assert found == (min(every, threads << 16) if threads else every)
