"""``numbers[i]`` of an ``i`` that changes from call to call, and of what is computed of it: few captures for all of them, and each call has its own number."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import braze

X = torch.arange(3.0, dtype=torch.float64)
FLOATS = [0.5 * k + 0.25 for k in range(40)]
INTS = tuple(range(3, 43))
BELOW = [-7 * k - 2 for k in range(40)]
TABLE = {k: 1.5 * k + 1 for k in range(40)}
NESTED = [[1.0, 2.0], FLOATS, "ab"]


class Held:
    """Numbers as an object and its class hold them."""

    shared = FLOATS

    def __init__(self) -> None:
        self.betas = list(FLOATS)
        self.step = 0


def alike(ours: Any, theirs: Any) -> bool:
    """Whether two results are of the same types and bits."""
    if isinstance(theirs, torch.Tensor):
        same = type(ours) is type(theirs) and ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return same and torch.allclose(ours, theirs, rtol=0, atol=0, equal_nan=True)
    if isinstance(theirs, tuple | list):
        return type(ours) is type(theirs) and len(ours) == len(theirs) and all(map(alike, ours, theirs))
    return type(ours) is type(theirs) and repr(ours) == repr(theirs)


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    """What a call gives or raises."""
    try:
        return f(*args)
    except Exception as error:
        return type(error).__name__, str(error)


def told(f: Callable[..., Any], calls: Any, backend: str = "eager") -> int:
    """How often a function is compiled over calls, each of which gives or raises what eager's does."""
    compiled = braze.compile(f, backend=backend)
    for args in calls:
        assert alike(outcome(compiled, X, *args), outcome(f, X, *args)), args
    return int(compiled.misses)


def closed(numbers: Any) -> Callable[..., Any]:
    return lambda x, i: (x * numbers[i], numbers[i])


def written_before(x: Any, i: int) -> Any:
    numbers = list(FLOATS)
    numbers[3] = 99.0
    numbers.append(2.0)
    return x * numbers[i], numbers


def read_twice(x: Any, i: int) -> Any:
    a = FLOATS[i]
    return x * a + FLOATS[i], a == FLOATS[i], INTS[i] + 1


def broken(x: Any, i: int) -> Any:
    a = FLOATS[i]
    y = x * a
    braze.graph_break()
    return y + BELOW[i], a


def among(x: Any, i: int) -> Any:
    return x * (0.5, 2.5, 4.5, 8.5)[i], [7, 5, 9, 8][i]


def by_default(x: Any, i: int, numbers: Any = FLOATS) -> Any:
    return x + numbers[i]


HOLDERS: dict[str, Callable[..., Any]] = {
    "global list": lambda x, i: (x * FLOATS[i], FLOATS[i]),
    "global tuple": lambda x, i: (x * INTS[i], INTS[i] * 2),
    "closure": closed(FLOATS),
    "closure over ints": closed(list(INTS)),
    "below zero": lambda x, i: (x * BELOW[i], BELOW[i], [BELOW[i] - 1]),
    "dict": lambda x, i: (x * TABLE[i], TABLE[i]),
    "default": by_default,
    "class": lambda x, i: x * Held.shared[i],
    "inner list": lambda x, i: x * NESTED[1][i],
    "made inside": lambda x, i: x * [2.0 * k + 1 for k in range(40)][i],
    "written before": written_before,
    "read twice": read_twice,
    "in arithmetic": lambda x, i: x * (FLOATS[i] + INTS[i] * i),
    "as a size": lambda x, i: x.new_zeros(INTS[i], 2),
}


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", HOLDERS)
def test_a_number_chosen_by_an_integer_that_changes_is_compiled_for_three_times_at_most(name, backend):
    assert told(HOLDERS[name], [(i,) for i in range(40)], backend) <= 3


@pytest.mark.parametrize("name", sorted(HOLDERS.keys() - {"dict"}))
def test_places_counted_from_the_end_are_too(name):
    assert told(HOLDERS[name], [(-i,) for i in range(2, 40)]) <= 2


def test_two_lists_made_alike_are_two():
    def f(x: Any, i: int) -> Any:
        a, b = [7, 5, 9, 8, 11][i], [17, 15, 9, 18, 12][i]
        c, d = [1.5, 2.5, 3.5, 4.5, 2.5][i], [7.5, 2.25, 3.5, 4.25, 2.5][i]
        return x * a + b * c - d, a, b, c, d

    assert told(f, [(i,) for i in (0, 1, 2, 3, 4, 2, 3)]) == 3


def test_a_few_numbers_may_stand_in_the_code():
    assert told(among, [(i % 4,) for i in range(40)]) <= 3


@pytest.mark.parametrize("kind", [list, tuple])
def test_numbers_may_be_an_argument(kind):
    assert told(lambda x, i, numbers: x * numbers[i], [(i, kind(FLOATS)) for i in range(40)]) <= 3


def test_both_may_be_attributes_of_which_one_is_counted():
    ours, theirs = Held(), Held()

    def step(x: Any, held: Held) -> Any:
        beta = held.betas[held.step]
        held.step += 1
        return x * beta, beta

    compiled = braze.compile(step, backend="eager")
    for _ in range(40):
        assert alike(compiled(X, ours), step(X, theirs))
    assert compiled.misses <= 3


def test_a_number_is_carried_over_a_break():
    compiled = braze.compile(broken, backend="eager")
    for i in range(40):
        assert alike(compiled(X, i), outcome(lambda x, i: (x * FLOATS[i] + BELOW[i], FLOATS[i]), X, i))
    assert compiled.misses <= 3


def test_flags_and_words_have_a_variant_for_each_that_differs():
    flags, words = [k % 3 == 0 for k in range(40)], ["add", None, "mul", "sub"] * 10
    assert told(lambda x, i: (x + 1 if flags[i] else x * 2, flags[i]), [(i,) for i in range(40)]) <= 4
    assert told(lambda x, i: (x * len(words[i] or "none"), words[i]), [(i,) for i in range(40)]) <= 6


# -- what is computed of integers and sizes

COMPUTED: dict[str, Callable[..., Any]] = {
    "of few": lambda x, i: (x * FLOATS[i % 4], FLOATS[i % 4]),
    "of few ints": lambda x, i: (x * INTS[i % 7], INTS[i % 7] + 1),
    "below zero": lambda x, i: (x * BELOW[i // 3], BELOW[i // 3]),
    "before": lambda x, i: x * FLOATS[i - 1],
    "from the end": lambda x, i: x * FLOATS[-i] + FLOATS[-i - 1],
    "from the end, counted": lambda x, i: x * FLOATS[len(FLOATS) - 1 - i],
    "half": lambda x, i: (x * FLOATS[i // 2 + 1], INTS[(3 * i) // 4]),
    "in a dict": lambda x, i: x * TABLE[39 - i],
    "by a number of another": lambda x, i: x * FLOATS[INTS[i % 5] % 6],
    "made inside": lambda x, i: x * [2.0 * k + 1 for k in range(40)][i % 5],
    "in the code": lambda x, i: (x * (0.5, 2.5, 4.5, 8.5)[i % 4], [7, 5, 9, 8][3 - i % 4]),
    "at most": lambda x, i: x * FLOATS[min(i, 12)],
    "at least": lambda x, i: x * FLOATS[max(i, 3)],
    "bits": lambda x, i: x * FLOATS[i & 3],
    "as a size": lambda x, i: x.new_zeros(INTS[i % 4], 2),
}


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", COMPUTED)
def test_a_number_chosen_by_what_is_computed_of_an_integer_is_compiled_for_few_times(name, backend):
    assert told(COMPUTED[name], [(i,) for i in range(40)], backend) <= 4


@pytest.mark.parametrize("name", COMPUTED)
def test_integers_of_both_signs_and_large_ones_are_counted_as_python_does(name):
    calls = [3, 5, -2, -3, -7, 0, 1, -1, -40, -41, 39, 40, 41, 2**31, -(2**31), 2**62, 2**63, -(2**64), 6, -5]
    assert told(COMPUTED[name], [(i,) for i in (*calls, True, False, 4)]) <= 23


@pytest.mark.parametrize(
    "f", [lambda x, i, j: x * FLOATS[i + j], lambda x, i, j: (x, INTS[i * j % 11], FLOATS[j - i])]
)
def test_a_number_may_be_chosen_by_two_integers(f):
    assert told(f, [(2 + k % 9, 3 + k * 5 % 13) for k in range(40)]) <= 4


def test_an_index_that_divides_by_another_raises_as_uncompiled():
    def f(x: Any, i: int, j: int) -> Any:
        try:
            return x * FLOATS[i % j] + INTS[i // j]
        except (ZeroDivisionError, IndexError) as error:
            return x - 1, str(error)

    told(f, [(7, 3), (8, 4), (9, 5), (9, 0), (12, 5), (-9, 4), (9, -4), (0, 0), (3, 7), (90, 2), (9, 4)])


@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_a_number_may_be_chosen_by_a_size(backend):
    def f(x: Any) -> Any:
        return x * FLOATS[x.size(0) % 10], FLOATS[x.shape[0] - x.shape[-1]], INTS[len(x)]

    compiled = braze.compile(f, backend=backend)
    for n in range(2, 40):
        x = torch.arange(float(n * (1 + n % 3)), dtype=torch.float64).view(n, 1 + n % 3)
        assert alike(compiled(x), f(x))
    assert compiled.misses <= 6


def test_sizes_are_those_from_before_the_program_changed_them():
    def turned(x: Any) -> Any:
        n = x.size(0)
        x.t_()
        return FLOATS[n], FLOATS[x.size(0)], x * FLOATS[x.size(1) - 1]

    def cut(x: Any) -> Any:
        y = x[1:]
        return y * FLOATS[y.size(0)], INTS[y.size(0) * y.size(1) % 9]

    for f in (turned, cut):
        compiled = braze.compile(f, backend="eager")
        for n in range(2, 20):
            mine, own = torch.ones(n, n * 3 % 17 + 2), torch.ones(n, n * 3 % 17 + 2)
            assert alike(compiled(mine), f(own)) and mine.shape == own.shape
        assert compiled.misses <= 4


def test_a_counter_is_computed_with_before_it_is_counted_and_behind():
    ours, theirs = Held(), Held()

    def step(x: Any, held: Held) -> Any:
        before = held.betas[held.step % 6]
        held.step += 1
        return x * before, before, held.betas[held.step % 6], held.betas[39 - held.step]

    compiled = braze.compile(step, backend="eager")
    for _ in range(38):
        assert alike(compiled(X, ours), step(X, theirs)) and ours.step == theirs.step
    assert compiled.misses <= 4


def test_an_index_that_only_the_data_tell_is_as_in_eager():
    def f(x: Any, y: Any) -> Any:
        return x * FLOATS[y.item() % 4], FLOATS[int(y) + 1], FLOATS[y.nonzero().size(0)]

    for options in ({}, {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}):
        compiled = braze.compile(f, backend="eager", options=options)
        for i in (3, 4, 1, 0, 7, 12):
            y = torch.tensor(i)
            assert alike(compiled(X, y), f(X, y))


@pytest.mark.parametrize("kind", [list, tuple])
def test_lists_that_change_and_items_of_all_kinds_are_read_anew_at_a_computed_index(kind):
    def f(x: Any, i: int, numbers: Any) -> Any:
        value = numbers[(i + 1) % 5]
        return (x * value if isinstance(value, int | float) else x), value, numbers[-1 - i % 2]

    kinds = [1.5, 2, None, "a", True, 2.5, 2**70, -3, 0, b"b", [1], 9.5]
    calls = [(i, kind(kinds[i % 7 :] + kinds[: i % 5])) for i in range(2, 40)]
    assert told(f, [*calls, (3, kind([1.5])), (4, kind([])), (5, Shifted(FLOATS)), (6, calls[3][1])]) <= 45


def test_a_break_is_crossed_by_what_was_computed():
    def f(x: Any, i: int) -> Any:
        j = i % 5 + 1
        a = FLOATS[j]
        y = x * a
        braze.graph_break()
        return y + BELOW[j], a, INTS[j + i]

    assert told(f, [(i,) for i in range(33)]) <= 8


# -- what is no such number, or another one than at the last call


SUBJECTS: dict[str, Any] = {
    "mixed": [1.5, 2, None, "a", True, 2.5, 7, False, 3.5, 8, "b", 9.5] * 3,
    "odd floats": [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-320, 1.5, 2.5, -3.5],
    "large": [2**62, 2**63, -(2**63), 2**64 + 1, 3, 10**30, 5, 6, -(2**62), 2**62 - 1, 2**61],
    "around zero": [3, 2, 1, 0, -1, -2, -3, 4, 5, -4],
    "tensors": [torch.full((3,), float(k), dtype=torch.float64) for k in range(9)],
    "rows": [[k, k + 1.5] for k in range(9)],
    "tuples of rows": tuple((k, k + 1.5) for k in range(9)),
    "none at all": [],
    "bytes": [b"a", b"b", b"c", b"d"],
    "complex": [1j, 2j, 3j, 4 + 1j],
    "a dict with odd keys": {1.0: 2.5, False: 3.5, "a": 4.5, 3: 6.5, 4: 7.5, None: 1.5},
    "text": "abcdefgh",
    "range": range(3, 30, 2),
    "size": torch.Size([3, 4, 5, 6, 7]),
    "deque": collections.deque([1.5, 2.5, 3.5, 4.5, 5.5]),
    "named": collections.namedtuple("Named", "a b c d e")(1.5, 2.5, 3.5, 4.5, 5.5),
    "ordered": collections.OrderedDict((k, k + 0.5) for k in range(9)),
    "defaults": collections.defaultdict(float, {3: 1.5, 4: 2.5}),
    "counted": collections.Counter({3: 5, 4: 6, 5: 7}),
}


class Shifted(list[float]):
    """A list that gives its items by code of its own."""

    def __getitem__(self, i: Any) -> Any:
        return list.__getitem__(self, i) + 100.0


class Filled(dict[int, float]):
    """A dict that makes what is missing."""

    def __missing__(self, key: int) -> float:
        return key + 0.125


SUBJECTS["own list"] = Shifted(FLOATS[:9])
SUBJECTS["own dict"] = Filled({3: 2.5})
SUBJECTS["a list's heir"] = type("Heir", (list,), {})(FLOATS[:9])


def used(x: Any, i: int, numbers: Any) -> Any:
    value = numbers[i]
    return (x * value if isinstance(value, int | float | torch.Tensor) else x), value


@pytest.mark.parametrize("name", SUBJECTS)
def test_other_things_and_places_that_are_not_there_are_as_in_eager(name):
    indexes = [
        0,
        3,
        4,
        1,
        2,
        5,
        -1,
        -2,
        -3,
        8,
        9,
        40,
        -40,
        6,
        True,
        7,
        -9,
        2**40,
        -(2**40),
        2**63,
        2**70,
        3,
        False,
    ]
    numbers = SUBJECTS[name]
    have, want = [], []
    compiled = braze.compile(used, backend="eager")
    for i in indexes:
        have.append(outcome(compiled, X, i, numbers))
        want.append(outcome(used, X, i, numbers))
    assert [*map(alike, have, want)] == [True] * len(indexes)


def test_an_index_out_of_range_raises_inside_the_function():
    def guarded(x: Any, i: int) -> Any:
        try:
            return x * FLOATS[i]
        except IndexError as error:
            return x - 1, str(error)

    assert told(guarded, [(i,) for i in (0, 5, 6, 39, 40, 7, -40, -41, 41, 8, 10**20)]) <= 9


def test_lists_that_change_between_calls_are_read_anew():
    numbers: list[Any] = list(FLOATS)

    def call(x: Any, i: int) -> Any:
        return x * numbers[i], numbers[i]

    compiled = braze.compile(call, backend="eager")
    for i in range(2, 38):
        if i % 5 == 0:
            numbers[i] = -1.5 * i
        if i % 7 == 0:
            numbers[i + 1] = i
        if i % 11 == 0:
            numbers.append(0.5)
        if i % 13 == 0:
            numbers.pop(0)
        assert alike(compiled(X, i), call(X, i))


def test_what_the_call_writes_is_what_it_reads_behind_that():
    def one(x: Any, i: int, j: int, numbers: list[Any]) -> Any:
        before = numbers[i]
        numbers[2] = before + 1
        after = numbers[i]
        numbers[j] = 5.5
        last = numbers[i]
        return x * before, before, after, last, numbers

    def counted(x: Any, i: int, j: int, numbers: list[Any]) -> Any:
        numbers[i] += 1
        return x * numbers[i], numbers[j]

    def cleared(x: Any, i: int, j: int, numbers: list[Any]) -> Any:
        below, kept = -numbers[i], numbers[i]
        numbers.clear()
        return x + below, below, kept, len(numbers)

    def swapped(x: Any, i: int, j: int, numbers: list[Any]) -> Any:
        numbers[i], numbers[j] = numbers[j], numbers[i]
        return x + numbers[i], numbers

    for f in (one, counted, cleared, swapped):
        compiled = braze.compile(f, backend="eager")
        for scale in (1.5, 3, -4):
            for k in range(12):
                i, j = k % 6 - 1, (k * 5) % 7
                mine, own = [scale * n for n in range(1, 9)], [scale * n for n in range(1, 9)]
                assert alike(compiled(X, i, j, mine), f(X, i, j, own))
                assert alike(mine, own)


def test_a_dict_that_the_call_writes_is_read_as_written():
    def f(x: Any, i: int, table: dict[int, Any]) -> Any:
        a = table[i]
        table[4] = 9.5
        b = table[i]
        table.pop(5, None)
        try:
            return x * a, a, b, table[i]
        except KeyError as error:
            return x + a, a, b, error.args

    compiled = braze.compile(f, backend="eager")
    for i in (2, 3, 4, 5, 6, 7, 4, 5, 8):
        mine, own = ({k: k + 0.5 for k in range(2, 9)} for _ in range(2))
        assert alike(compiled(X, i, mine), f(X, i, own)) and mine == own


def test_two_names_of_one_list_are_one_list():
    def f(x: Any, i: int, a: list[float], b: list[float]) -> Any:
        a[3] = 7.5
        return x * b[i], b[i]

    compiled = braze.compile(f, backend="eager")
    for i in (2, 3, 4, 3, 5, 6):
        mine, own = list(FLOATS), list(FLOATS)
        assert alike(compiled(X, i, mine, mine), f(X, i, own, own))
        assert alike(compiled(X, i, mine, list(FLOATS)), f(X, i, own, list(FLOATS)))


def test_what_a_number_decides_is_decided_by_each_calls_own():
    def f(x: Any, i: int) -> Any:
        return x * 2 if INTS[i] > 20 else x + (1 if FLOATS[i] > 3.0 else 2)

    assert told(f, [(i,) for i in [2, 3, 4, 30, 5, 31, 6, 22, 16, 17, 18]]) <= 8


NUMBERS = st.one_of(
    st.integers(-5, 9),
    st.floats(allow_nan=False, width=32),
    st.booleans(),
    st.sampled_from([None, "a", 2**63, -(2**64), 0.0, -0.0]),
)


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.lists(st.integers(2, 9), min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(-10, 10), st.integers(-3, 12)), min_size=4, max_size=12),
    st.data(),
    st.sampled_from([list, tuple, lambda v: dict(enumerate(v))]),
)
def test_any_numbers_at_any_places_are_those_of_eager(first, places, data, kind):
    other = data.draw(st.lists(NUMBERS, min_size=1, max_size=9))

    def f(x: Any, i: int, numbers: Any, more: Any) -> Any:
        a, b = numbers[i], more[i]
        return x + (a if isinstance(a, int | float) else 0), a, b

    compiled = braze.compile(f, backend="eager")
    for i, j in places:
        for a, b in ((kind(first), list(other)), (list(other), kind(first))):
            assert alike(outcome(compiled, X, i, a, b), outcome(f, X, i, a, b))
            assert alike(outcome(compiled, X, j, a, a), outcome(f, X, j, a, a))


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    st.lists(st.floats(2, 9, width=32), min_size=1, max_size=9),
    st.lists(st.tuples(st.integers(-10, 10), st.integers(-3, 12)), min_size=4, max_size=10),
    st.lists(st.tuples(st.sampled_from("+-*%/mM"), st.integers(-4, 6)), min_size=1, max_size=4),
)
def test_any_arithmetic_finds_the_places_of_eager(numbers, places, steps):
    def f(x: Any, i: int, j: int) -> Any:
        k = i
        for sign, by in steps:
            other = j if by == 0 else by
            if sign == "+":
                k = k + other
            elif sign == "-":
                k = other - k
            elif sign == "*":
                k = k * other
            elif sign == "%":
                k = k % other
            elif sign == "/":
                k = k // other
            else:
                k = min(k, other) if sign == "m" else max(k, other)
        return x * numbers[k], k

    compiled = braze.compile(f, backend="eager")
    for i, j in places:
        assert alike(outcome(compiled, X, i, j), outcome(f, X, i, j))


# -- keys of sets and dicts that an integer is, or is not

SPARSE: dict[Any, float] = {4: 1.5, 9: 2.5, "a": 3.5, 11.0: 4.5, None: 0.25}
MIXED: frozenset[Any] = frozenset({4, 9.0, 10.5, True, "a", None})


def in_a_set(x: Any, i: int) -> Any:
    return x * 2 if i in {4, 9, 30} else x, i not in MIXED


def in_a_dict(x: Any, i: int) -> Any:
    return x * 2 if i in SPARSE else x, (i + 1) in SPARSE


def asked_for(x: Any, i: int) -> Any:
    return x * SPARSE.get(i, 0.5), SPARSE.get(i * 2), TABLE.get(i, 7.0)


def in_its_own(x: Any, i: int) -> Any:
    own = {4: x, 5: x + 1}
    own[6] = x * 3
    return own.get(i, x - 1), i in own, own.get(i + 1, None) is None


@pytest.mark.parametrize(
    ("function", "most"),
    [(in_a_set, 9), (in_a_dict, 8), (asked_for, 10), (in_its_own, 8)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_a_key_that_an_integer_is_or_is_not_has_a_variant_for_each_key(function: Any, most: int) -> None:
    assert told(function, [(i,) for i in range(2, 42)]) <= most
    assert told(function, [(i,) for i in (*range(6, -12, -1), 2**70, -(2**70), True, 9, 10, 11)]) <= 24


def test_a_dict_that_changes_between_calls_is_asked_anew() -> None:
    table: dict[Any, float] = {4: 1.5, 9: 2.5}

    def function(x: Any, i: int) -> Any:
        return x * table.get(i, 0.5), i in table

    compiled = braze.compile(function, backend="eager")
    for i in (2, 3, 5, 4, 9, 6):
        assert alike(compiled(X, i), function(X, i))
    table[6] = 8.0
    for i in (5, 6, 4):
        assert alike(compiled(X, i), function(X, i))
    del table[4]
    table["new"] = 1.0
    for i in (5, 6, 4):
        assert alike(compiled(X, i), function(X, i))


def test_a_key_of_a_class_of_the_programs_is_compared_by_its_own_code() -> None:
    class Key:
        def __hash__(self) -> int:
            return 5

        def __eq__(self, other: object) -> bool:
            return bool(other == 5)

    keys = {Key(), 3}

    def function(x: Any, i: int) -> Any:
        return x * 2 if i in keys else x

    told(function, [(i,) for i in (2, 3, 4, 5, 6)])
