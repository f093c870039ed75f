"""What a trace knows of its sizes: answers without PyTorch, and what guards teach."""

from __future__ import annotations

import operator
import random

import pytest
import torch

from braze.graph.fakes import fakes
from braze.graph.sizes.learned_sizes import SettledSizes
from braze.support import trace


@pytest.fixture
def sized():
    """A mode, and two sizes with the hints 224 and 448."""
    mode = fakes.new_mode(dynamic=True)
    fake = mode.fake(torch.empty(224, 448), symbolic_dims={0, 1}, source="x")
    return mode, *fake.shape


def asked(mode):
    """How many guards there are."""
    return len(mode.env.guards)


def test_what_bounds_tell_is_not_asked(sized):
    mode, s, _ = sized
    assert s > 0 and s + 3 >= 5 and not s // 2 < 1 and (s * 2 + 1) != 0
    assert asked(mode) == 0


def test_what_the_normal_form_tells_is_not_asked(sized):
    mode, s, _ = sized
    padded = s + (7 - s % 7) % 7
    assert (padded // 7) * 7 == padded and padded % 7 == 0 and (-s) % 7 <= 6
    assert asked(mode) == 0


def test_a_guard_on_a_remainder_answers_for_quotients(sized):
    mode, s, _ = sized
    assert not s % 4 != 0
    before = asked(mode)
    assert before == 1
    assert s // 4 * 4 == s and (s + 3) // 4 == s // 4 and s % 2 == 0
    assert asked(mode) == before
    half = s // 4
    assert half % 7 == 0
    assert asked(mode) == before + 1
    assert (half + 6) // 7 * 7 == half and s % 28 == 0
    assert asked(mode) == before + 1
    assert mode.ground.residues == {str(s.node.expr): (28, 0)}


@pytest.mark.parametrize("size", [6, 7, 13, 224])
@pytest.mark.parametrize(
    ("k", "q", "c"), [(4, 1, 0), (4, 3, 1), (6, 4, 2), (7, 5, 3), (2, 3, 1), (10, -3, 4)]
)
def test_what_is_learned_of_a_remainder_is_so(size, k, q, c):
    mode = fakes.new_mode(dynamic=True)
    s = mode.fake(torch.empty(size), symbolic_dims={0}, source="x").shape[0]
    held = bool((s * q + c) % k == (size * q + c) % k)
    assert held
    mode.ground.refresh()
    for modulus, residue in mode.ground.residues.values():
        assert size % modulus == residue
        # and of each size that the guard lets in
        let_in = [n for n in range(2, 200) if (n * q + c) % k == (size * q + c) % k]
        assert let_in and all(n % modulus == residue for n in let_in)


def test_bounds_that_meet_make_a_number(sized):
    mode, s, t = sized
    assert s % 224 == 0
    assert s // 32 <= 7
    mode.ground.refresh()
    assert s.node.maybe_as_int() == 224
    assert t.node.maybe_as_int() is None


def test_a_power_that_is_known_makes_a_number(sized):
    mode, s, _ = sized
    assert s % 32 == 0
    side = s // 32
    assert side * side == 49
    mode.ground.refresh()
    assert s.node.maybe_as_int() == 224


def test_a_guard_on_the_remainder_of_a_quotient_answers_for_others(sized):
    mode, s, t = sized
    rows, columns = (s + 7) // 8, (t + 15) // 16
    assert rows % 2 == 0 and not columns != 4 * ((t + 63) // 64)
    before = asked(mode)
    assert before == 2
    assert rows // 2 * 2 == rows and rows % 2 == 0
    assert columns % 4 == 0 and columns == (t + 63) // 64 * 4
    assert asked(mode) == before
    mode.ground.refresh()
    for quotient, other in mode.ground.equals.items():
        for size in (224, 240, 448, 512):
            at = dict.fromkeys((*quotient.symbols(), *other.symbols()), size)
            lets_in = ((size + 7) // 8) % 2 == 0 and ((size + 15) // 16) % 4 == 0
            assert not lets_in or quotient.evaluate(at) == other.evaluate(at)


def test_a_guard_on_a_multiple_of_a_remainder_answers_for_the_quotient(sized):
    mode, s, t = sized
    rows = (s + 15) // 16
    assert 4 * rows % 8 == 0 and 6 * t % 8 == 0
    before = asked(mode)
    assert before == 2
    assert rows == (s + 15) // 32 * 2 and 4 * rows // ((s + 15) // 32) == 8
    assert t % 4 == 0 and t // 4 * 4 == t
    assert asked(mode) == before
    for quotient, other in mode.ground.equals.items():
        for size in (18, 32, 49, 224):
            at = dict.fromkeys((*quotient.symbols(), *other.symbols()), size)
            assert ((size + 15) // 16) % 2 or quotient.evaluate(at) == other.evaluate(at)


def test_arithmetic_is_in_normal_form_and_has_hints(sized):
    mode, s, t = sized
    missing = mode.ground.combined(operator.mod, mode.ground.combined(operator.sub, 7, s), 7)
    padded = mode.ground.combined(operator.add, s, missing)
    assert str(padded.node.expr) == f"7*((({s.node.expr} + 6)//7))"
    assert padded.node.hint == 224
    assert mode.ground.combined(operator.sub, s, s) == 0
    assert mode.ground.combined(operator.floordiv, s * t, t).node.expr == s.node.expr


def test_divisors_that_may_be_negative_are_left_to_pytorch(sized):
    mode, s, _ = sized
    assert mode.ground.combined(operator.floordiv, s, -4).node.hint == 224 // -4
    assert mode.ground.combined(operator.mod, s, -5).node.hint == 224 % -5
    with pytest.raises(ZeroDivisionError):
        mode.ground.combined(operator.mod, s, 0)


def test_floats_are_left_to_pytorch():
    mode = fakes.new_mode(dynamic=True)
    x = mode.float_symbol(2.5, "x")
    assert x * 2 > 4.5
    assert asked(mode) == 1


def test_sizes_are_made_once_and_questions_are_counted(sized):
    mode, s, _ = sized
    made = [mode.ground.combined(operator.add, s, 3) for _ in range(5)]
    assert len({id(m) for m in made}) == 1
    before = trace.snapshot()[0]["size_questions"]
    assert s > 1 and s + 3 != s
    assert trace.snapshot()[0]["size_questions"] == before
    assert s > 100
    assert trace.snapshot()[0]["size_questions"] == before + 1


def made_of(rng, sizes, depth=0):
    """A random number made of sizes."""
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(sizes)
    a, b = made_of(rng, sizes, depth + 1), made_of(rng, sizes, depth + 1)
    return rng.choice((a + b, a - b, a // 2, a // 3, a * 3, a % 4, a % 2, a * b))


@pytest.mark.parametrize("seed", range(40))
def test_what_was_asked_to_be_one_is_one_for_the_loops(seed):
    """Whatever was asked before and after: a dim of that size is broadcast."""
    rng = random.Random(seed)
    mode = fakes.new_mode(dynamic=True)
    hints = [rng.choice((4, 6, 8, 9, 12, 15, 16, 24, 36)) for _ in range(3)]
    sizes = list(mode.fake(torch.empty(hints), symbolic_dims={0, 1, 2}, source="x").shape)
    ones = []
    for _ in range(rng.randint(1, 4)):
        number = made_of(rng, sizes)
        k = rng.choice((2, 3, 4))
        if type(number) is int:
            continue
        if rng.random() < 0.5:
            assert number % k == number.node.hint % k
        else:
            ones.append(number - (number.node.hint - 1))
            assert ones[-1] == 1
    assert all(SettledSizes().expr(number).value == 1 for number in ones)


def test_an_even_size_whose_half_is_known_by_another_is_one_for_the_loops(sized):
    _, s, t = sized
    assert s % 2 == 0 and t - s // 2 - 335 == 1
    assert SettledSizes().expr(t - s // 2 - 335).value == 1


def test_what_was_asked_of_a_size_that_came_to_be_a_number_since_is_known():
    mode = fakes.new_mode(dynamic=True)
    s, t = mode.fake(torch.empty(9, 24), symbolic_dims={0, 1}, source="x").shape
    assert (3 * t + s) // 2 - 39 == 1 and s % 2 == 1 and t - 23 == 1
    assert SettledSizes().expr(s // 2 - 3).value == 1
