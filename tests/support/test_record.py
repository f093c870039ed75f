"""Records compare by value; interned ones are the same object when equal."""

import copy
import dataclasses
import enum
import gc
import inspect
import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from braze.support.errors import Origin
from braze.support.record import interned, record


@interned
class Pair:
    left: object
    right: object = 0


@record
class Point:
    x: int
    y: int


def test_equal_interned_records_are_identical():
    """Two calls with the same fields give one object, however the fields were given."""
    assert Pair(1, 2) is Pair(right=2, left=1)
    assert Pair(1) is Pair(1, 0)
    assert Pair(1, 2) is not Pair(2, 1)


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), (0j, complex(0, -0.0))]
)
def test_interning_tells_values_apart_that_merely_compare_equal(one, other):
    """1, True and 1.0 compare equal and are different constants."""
    assert one == other
    assert Pair(one) is not Pair(other)


def test_numbers_of_other_types_than_a_field_says_are_told_apart_too():
    """A field of ints that is given what merely equals one keeps it as its own record."""

    @interned
    class Count:
        key: int

    class One(enum.IntEnum):
        ONE = 1

    made = [Count(one) for one in (1, True, 1.0, One.ONE, np.int64(1))]
    assert len({id(count) for count in made}) == len(made)
    assert [type(count.key) for count in made] == [int, bool, float, One, np.int64]


def test_nan_is_interned_too():
    """A nan is not equal to itself, yet one record holds it."""
    assert Pair(math.nan) is Pair(float("nan"))


def test_copies_and_pickles_keep_identity():
    """deepcopy and a pickle round trip give the interned object back."""
    pair = Pair((1, 2), "x")
    assert copy.deepcopy(pair) is pair
    assert pickle.loads(pickle.dumps(Point(1, 2))) == Point(1, 2)


def test_interned_records_are_frozen_and_strict():
    """Fields cannot be written, and wrong arguments are refused."""
    with pytest.raises(AttributeError):
        Pair(1, 2).left = 3
    with pytest.raises(TypeError, match="missing"):
        Pair()
    with pytest.raises(TypeError, match="unexpected keyword"):
        Pair(1, wrong=2)


def test_the_table_does_not_keep_records_alive():
    """A record that nobody holds is forgotten."""

    class Token:
        pass

    token = Token()
    Pair(token)
    gc.collect()
    assert not [o for o in gc.get_referrers(token) if isinstance(o, Pair)]


def test_threads_agree_on_one_object():
    """The same record made by many threads at once is one object."""
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: [Pair("t", k) for k in range(200)], range(16)))
    assert all(a is b for row in made for a, b in zip(row, made[0], strict=True))


def test_threads_that_ask_a_class_first_agree_too():
    """Many threads make the first records of a class at once: there is one table."""
    for _ in range(20):

        @interned
        class New:
            key: int

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(New, [1] * 32))
        assert len({id(each) for each in made}) == 1


def test_what_is_made_when_asked_for_is_as_if_it_had_always_been_there():
    """The signature, the fields and the parameters of a record that nobody has made yet."""

    @record
    class Late:
        x: int
        y: str = dataclasses.field(default="y", repr=False, compare=False, metadata={"said": True})

    assert str(inspect.signature(Late)) == "(x: int, y: str = 'y')"
    assert dataclasses.fields(Late)[1].metadata["said"] and not Late.__dataclass_params__.frozen
    assert Late(1) == Late(1, "z") and repr(Late(1)).endswith("Late(x=1)")


def test_origin_points_at_the_expression():
    """Carets stand under the expression, with columns in UTF-8 bytes."""
    line = 'def f(x): return "é" + g(x)\n'
    import linecache

    linecache.cache["<made>"] = (len(line), None, [line], "<made>")
    start = len(line[: line.index("g(x)")].encode())
    text = Origin("<made>", 1, start, 1, start + 4).excerpt().splitlines()
    assert text[1][text[0].index("g(x)") :] == "^^^^"
    assert set(text[1]) == {" ", "^"}


@record
class Named(Point):
    name: str = "p"

    def __repr__(self) -> str:
        return self.name


def test_records_are_dataclasses_in_all_that_is_seen():
    """Repr, fields, replace, defaults, inheritance and match patterns are those of a frozen dataclass."""
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
    assert [field.name for field in dataclasses.fields(Named)] == ["x", "y", "name"]
    assert dataclasses.replace(Named(1, 2), y=5) == Named(x=1, y=5, name="p")
    assert repr(Named(1, 2, "q")) == "q"
    assert hash(Point(1, 2)) == hash(Point(1, 2)) and Point(1, 2) != Point(1, 3)
    assert Named(1, 2) != Point(1, 2)
    match Point(3, 4):
        case Point(x, y):
            assert (x, y) == (3, 4)
    with pytest.raises(TypeError, match=r"Point.__init__\(\) missing 1 required"):
        Point(1)


def test_records_are_frozen_and_have_no_dict():
    point = Point(1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.other = 1
    assert not hasattr(point, "__dict__")
    assert copy.copy(point) == point and copy.deepcopy(point) == point
