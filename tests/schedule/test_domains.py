"""Indices of which it is known that no two points have one, beside all points' numbers."""

from __future__ import annotations

import random

import pytest

from braze.loops.ir import Axis
from braze.schedule.facts.domains import injective
from braze.symbolic.expr import Integer, axis_symbol, floor_div, modulo


def axis(name: str, extent: int) -> Axis:
    return Axis(axis_symbol(name, Integer(extent)), Integer(extent))


def test_quotients_and_remainders_of_an_axis_are_axes():
    i, j = axis("i", 5), axis("j", 42)
    three, fourteen = floor_div(j.symbol, Integer(3)), modulo(j.symbol, Integer(3))
    assert injective(42 * i.symbol + three + 14 * fourteen, [i, j])
    assert injective(42 * i.symbol + 3 * three + 42 * 5 * fourteen, [i, j])
    assert not injective(42 * i.symbol + three + 13 * fourteen, [i, j])
    assert not injective(three, [j])


def test_those_of_a_quotient_are_too():
    j = axis("j", 60)
    middle = modulo(floor_div(j.symbol, Integer(3)), Integer(4))
    assert injective(12 * floor_div(j.symbol, Integer(12)) + middle + 4 * modulo(j.symbol, Integer(3)), [j])


@pytest.mark.parametrize("seed", range(8))
def test_no_two_points_have_an_index_that_is_said_to_be_theirs_alone(seed):
    draw = random.Random(seed)
    told = 0
    for _ in range(300):
        part = draw.choice([2, 3, 4, 6])
        j, k = axis("j", part * draw.choice([2, 3, 5])), axis("k", 3)
        index = draw.randint(0, 20) * floor_div(j.symbol, Integer(part)) + draw.choice([0, 0, 1]) * j.symbol
        index = index + draw.randint(0, 20) * modulo(j.symbol, Integer(part)) + draw.randint(0, 60) * k.symbol
        if injective(index, [k, j]):
            told += 1
            points = [(a, b) for a in range(j.extent.value or 0) for b in range(3)]
            assert len({index.evaluate({j.symbol: a, k.symbol: b}) for a, b in points}) == len(points)
    assert told
