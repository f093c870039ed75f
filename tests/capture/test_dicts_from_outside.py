"""Dicts that a program was given: what C code takes out of one that was read whole, and keys that run code."""

from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import braze
from braze.capture.finish.effects import reordered
from braze.capture.outside.looked_into import fill
from braze.support import trace


def cleared(x, d):
    count = len(list(d))
    d.clear()
    d["new"] = x + 1
    return x * count, list(d)


def last_taken(x, d):
    list(d.items())
    _, value = d.popitem()
    return x * value, list(d), len(d)


def one_taken(x, d):
    list(d)
    value = d.pop("a")
    return x * value, list(d)


def updated(x, d):
    list(d.values())
    dict.update(d, {"a": 9.0})
    return x * d["a"], list(d.values())


def joined(x, d):
    list(d)
    d |= {"a": 5.0, "n": x}
    return x * len(d), sorted(d)


def added(x, d):
    count = len(sorted(d))
    return x * d.setdefault("n", 3.0) * count, sorted(d)


def put_last(x, d):
    list(d)
    del d["a"]
    d["a"] = 1.5
    return x * 2, list(d)


@pytest.mark.parametrize(
    "program", [cleared, last_taken, one_taken, updated, joined, added, put_last], ids=lambda f: f.__name__
)
def test_a_dict_that_was_read_whole_is_changed_as_in_eager(program: Any) -> None:
    compiled = braze.compile(program)
    for _ in range(2):
        theirs, ours = {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}
        x = torch.ones(2)
        (wanted, *told), (found, *seen) = program(x, theirs), compiled(x, ours)
        assert torch.equal(found, wanted) and str(seen) == str(told)
        assert str(list(ours.items())) == str(list(theirs.items()))


def test_a_key_that_compares_by_code_is_compared_as_often_as_in_eager() -> None:
    """It is not the key that is looked up, but has its hash."""
    compared = []

    class Number:
        def __hash__(self):
            return hash(3)

        def __eq__(self, other):
            compared.append(other)
            return other == 3

    def program(x, d):
        return x * d.get(3, 7.0)

    d, x = {Number(): 2.0, "a": 3.0}, torch.ones(2)
    compiled, counts = braze.compile(program), []
    for call in (program, compiled, compiled):
        compared.clear()
        assert call(x, d).tolist() == [2.0, 2.0]
        counts.append(len(compared))
    assert counts == [1, 1, 1]


class Counted(int):
    asked = 0

    def __eq__(self, other):
        Counted.asked += 1
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def test_the_order_of_many_keys_is_compared_in_time_that_grows_with_them():
    """Each key was looked for among all: 0.7 s for 5,000 integers, and four times that for twice as many."""
    real = {Counted(i): i for i in range(200)}
    view = {Counted(i): i for i in range(200)}
    shadow = SimpleNamespace(filled=True, real=real, view=view, original=dict(real), deleted=set())
    Counted.asked = 0
    assert not reordered(shadow)
    assert Counted.asked <= 2_000
    moved = dict([*list(view.items())[1:], (Counted(0), 0)])
    shadow.view = moved
    assert reordered(shadow)
    shadow.deleted = {0}
    assert not reordered(shadow)
    shadow.view = {Counted(i): i for i in range(199, -1, -1)}
    assert reordered(shadow)


def test_a_node_found_by_the_id_of_what_has_died_since_is_not_a_dicts_own() -> None:
    """The dict of an instance that lies where that lay is read whole all the same."""
    view: dict[str, Any] = {}
    filled: list[Any] = []
    other = SimpleNamespace(value=object(), container=None)
    shadow = SimpleNamespace(view=view, fill=filled.append)
    outside: Any = SimpleNamespace(
        tree=SimpleNamespace(known={id(view): other}), dict_views={id(view): shadow}
    )
    fill(outside, view)
    assert filled == [outside]


class Key:
    pass


def by_functions(x, d, key):
    return x * d[(key, 1)]


def by_what_was_made_here(x, d, key):
    return x + (Key() in d) + ((Key(), 1) in d)


@pytest.mark.parametrize("program", [by_functions, by_what_was_made_here], ids=lambda f: f.__name__)
def test_a_key_of_which_guards_tell_what_it_is_made_of_is_looked_up_in_one_graph(program: Any) -> None:
    """Functions are known by identity, and an object that the program makes is in no dict that it was given."""
    d, x = {(torch.relu, 1): 2.0, (torch.sin, 1): 4.0}, torch.ones(2)
    compiled = braze.compile(program, fullgraph=True)
    for key in (torch.relu, torch.sin, torch.relu):
        assert torch.equal(compiled(x, d, key), program(x, d, key))


@pytest.mark.parametrize("wrap", [lambda k: k, lambda k: (k, 2), lambda k: frozenset([k])])
def test_an_object_from_outside_ends_the_graph_where_it_is_looked_up_however_deep(wrap: Any) -> None:
    """No guard tells it from the one that stands in its place at a later call."""
    one, other, x = Key(), Key(), torch.ones(2)

    def program(x, d, key):
        return x * d[wrap(key)]

    compiled = braze.compile(program)
    d = {wrap(one): 2.0, wrap(other): 3.0}
    assert [compiled(x, d, key)[0].item() for key in (one, other, one)] == [2.0, 3.0, 2.0]
    assert "a Key from outside is looked up" in str(braze.explain(program)(x, d, one))


def under_a_number(x, d, k):
    d[k] = x.sum()
    return x * 2


def under_text(x, d, k):
    d[f"loss/{k}"] = x.sum()
    d[f"step/{k}"] = k
    d["last"] = k
    return x, d["last"]


def seen_by_the_same_key(x, d, k):
    d["last"] = x
    d[k + 1] = k
    d[k + 1] = x
    return d[1 + k] + 1


def of_keys_that_may_be_one(x, d, k):
    d[k % 3] = "first"
    d[0] = "second"
    d[k % 3] = "third"
    return x


def of_the_dict_itself(x, d, k):
    inner = {"x": x, "outer": d}
    d[-k] = inner
    return inner


def around_a_break(x, d, k):
    d[k] = x
    braze.graph_break()
    d[k + 100] = x + 1
    return x


WAITING = (under_a_number, under_text, seen_by_the_same_key, of_the_dict_itself, around_a_break)


def looked_up(x, d, k):
    d[k] = x
    return x, k - 1 in d, d.get(k + 1), len(d)


def gone_through(x, d, k):
    d[k] = 1
    d[k - 1] = 2
    d[k] = 3
    return x, list(d.items())


def deleted_again(x, d, k):
    d[k] = x
    del d[k]
    d[k] = 2
    return d.pop(k - 1, None)


def in_an_error(x, d, k):
    d[k] = x
    try:
        return d["missing"]
    except KeyError as error:
        d[str(error)] = k
    return bool(d)


def of_equal_keys(x, d, k):
    d[1] = "int"
    d[True] = "bool"
    d[float(k)] = "float"
    d[k] = "int"
    return x


def plain(value: Any, depth: int = 3) -> Any:
    """A value as one that compares; a dict may hold itself."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict) and depth:
        return [type(value), *((plain(k), plain(v, depth - 1)) for k, v in value.items())]
    if isinstance(value, list | tuple):
        return [plain(v, depth) for v in value]
    return type(value), len(value) if isinstance(value, dict) else value


@pytest.mark.parametrize("make", [dict, collections.OrderedDict, lambda: collections.defaultdict(int)])
@pytest.mark.parametrize(
    "program",
    [*WAITING, of_keys_that_may_be_one, looked_up, gone_through, deleted_again, in_an_error, of_equal_keys],
    ids=lambda f: f.__name__,
)
def test_a_dict_gets_a_new_key_at_each_call_as_in_eager(program: Any, make: Any) -> None:
    theirs, ours, x = make(), make(), torch.arange(3.0)
    compiled = braze.compile(program, backend="eager")
    for k in (0, 1, 2, 5, 6, 7, -1, -5, -6, 1 << 40, 1 << 63, -(1 << 62), 5, 0):
        assert plain(compiled(x, ours, k)) == plain(program(x, theirs, k))
        assert plain(ours) == plain(theirs)


@pytest.mark.parametrize("program", WAITING, ids=lambda f: f.__name__)
def test_a_new_key_at_each_call_is_no_new_variant(program: Any) -> None:
    compiled, d = braze.compile(program, backend="eager"), {"kept": 1}
    trace.reset_counters()
    for k in range(5, 30):
        compiled(torch.arange(3.0), d, k)
    assert trace.COUNTERS["captures"] <= 2 * (1 + (program is around_a_break))
    assert trace.COUNTERS["calls_as_they_are"] == 0


def test_a_dict_that_is_given_twice_gets_its_new_keys_in_order() -> None:
    def program(x: Any, a: Any, b: Any, k: int) -> Any:
        a[k] = "a"
        b[k] = "b"
        a[k + 1] = x
        return x

    compiled, x = braze.compile(program, backend="eager"), torch.ones(2)
    one, two = {}, {}
    for k in range(3, 9):
        compiled(x, one, two, k)
        compiled(x, one, one, k + 50)
    assert [one[k] for k in (3, 5, 53, 55)] == ["a", "a", "b", "b"] and two[8] == "b"


def test_what_ends_with_code_in_a_dict_ends_before_what_follows_it() -> None:
    told: list[str] = []

    class Ends:
        def __del__(self) -> None:
            told.append("ended")

    def program(x: Any, d: Any, k: int) -> Any:
        d[k] = x
        told.append("written")
        return x

    compiled = braze.compile(program, backend="eager")
    for k in (4, 5, 6):
        compiled(torch.ones(2), {k: Ends()}, k)
    assert told == ["ended", "written"] * 3


def test_many_items_written_over_and_over_leave_the_last_of_each() -> None:
    def program(x: Any, d: Any, k: int) -> Any:
        for i in range(40):
            d["last"] = x * i
        d[k] = d["last"]
        return x

    compiled, d = braze.compile(program, backend="eager"), dict[Any, Any]()
    for k in range(3, 6):
        compiled(torch.ones(2), d, k)
    assert list(d) == ["last", 3, 4, 5] and d["last"] is d[5] and d[3].tolist() == [39.0, 39.0]


def test_what_a_module_keeps_is_read_as_it_was_written_last() -> None:
    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Any, by: str) -> Any:
            before = self.seen
            if by == "attribute":
                self.seen = self.seen + 1
            else:
                self._buffers["seen"] = self.seen + 1
            return x * self.seen - before, self._buffers["seen"] + getattr(self, "seen")

    theirs, ours = Counted(), Counted()
    compiled = braze.compile(ours, backend="eager")
    for by in ("attribute", "dict", "attribute", "dict"):
        assert plain(compiled(torch.ones(2), by)) == plain(theirs(torch.ones(2), by))
        assert ours.seen.item() == theirs.seen.item()


def scaled(x, *, by=1.0):
    return x * by


def set_item(x, by):
    scaled.__kwdefaults__["by"] = by
    return scaled(x)


def updated_between(x, by):
    before = scaled(x)
    held = scaled.__kwdefaults__
    held.update(by=by)
    return before + scaled(x)


def of_a_tensor(x, by):
    scaled.__kwdefaults__["by"] = x + by
    return scaled(x)


def taken_away(x, by):
    scaled.__kwdefaults__.pop("by")
    try:
        return scaled(x)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("program", [set_item, updated_between, of_a_tensor, taken_away])
def test_defaults_of_keywords_are_those_that_the_program_has_written(program: Any, monkeypatch: Any) -> None:
    def outcomes(fn: Any) -> list[Any]:
        monkeypatch.setattr(scaled, "__kwdefaults__", {"by": 1.0})
        found = []
        for by in (2.0, 3.0, 3.0, -0.5):
            found.append((plain(fn(torch.ones(2), by)), plain(scaled.__kwdefaults__)))
            scaled.__kwdefaults__.setdefault("by", 7.0)
        return found

    theirs = outcomes(program)
    assert outcomes(braze.compile(program, backend="eager")) == theirs


class Told:
    """A key that tells when it is hashed and compared."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def __hash__(self) -> int:
        self.told.append(f"hash {self.name}")
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        self.told.append(f"compare {self.name}")
        return isinstance(other, Told) and self.name == other.name


def test_a_comprehension_over_breaks_writes_its_dict_as_a_loop_does() -> None:
    metrics = braze.compile(lambda given: {k: v.item() for k, v in given}, backend="eager")
    trace.reset_counters()
    for names in ("abcdefga", "hgfedcba", "ijklmnop"):
        given = [(name, torch.tensor(float(i))) for i, name in enumerate(names)]
        assert list(metrics(given).items()) == list({k: v.item() for k, v in given}.items())
    assert trace.COUNTERS["captures"] < 12

    def by_key(compile: Any) -> list[str]:
        told: list[str] = []
        compile(lambda given: {Told(k, told): v.item() for k, v in given})(given[:2] * 2)
        return told

    assert by_key(lambda f: braze.compile(f, backend="eager")) == by_key(lambda f: f)


def set_and_deleted(x: Any, held: Any, items: dict[Any, Any]) -> Any:
    held.name = items["name"] = x * 2
    found = held.name + items["name"]
    del held.name, items["name"]
    return found


def set_for_a_while(x: Any, held: Any, items: dict[Any, Any]) -> Any:
    setattr(held, "name", x)
    before = hasattr(held, "name")
    delattr(held, "name")
    items["other"] = x
    return before, hasattr(held, "name")


@pytest.mark.parametrize("program", [set_and_deleted, set_for_a_while])
def test_what_a_call_replaces_and_deletes_need_not_be_there_at_the_next(program: Any) -> None:
    compiled = braze.compile(program, backend="eager")
    held, items = SimpleNamespace(name=1, last=2), {"name": 1, "last": 2}
    for call in range(4):
        x = torch.ones(2)
        theirs = SimpleNamespace(**vars(held)), dict(items)
        want = program(x, *theirs)
        assert str(compiled(x, held, items)) == str(want)
        assert str((held, items)) == str(theirs)
        if call == 2:
            held.name = items["name"] = torch.ones(3)  # type: ignore[assignment]


class Attributes(dict[str, Any]):
    """Whose items are its attributes."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__ = self


def test_an_item_that_was_just_set_is_an_attribute_where_the_dict_is_the_object_s_own() -> None:
    def program(x: Any, held: Any, name: str) -> Any:
        held["new"] = x * 2
        held[name] = x * 3
        return getattr(held, "new", 5), getattr(held, name, 5), hasattr(held, "new"), hasattr(held, "other")

    compiled = braze.compile(program, backend="eager")
    for call in range(6):
        x, theirs, ours = torch.ones(2), Attributes(old=1), Attributes(old=1)
        assert str(compiled(x, ours, f"name_{call}")) == str(program(x, theirs, f"name_{call}"))
        assert str(ours) == str(theirs)


@pytest.mark.parametrize("program", [set_and_deleted, set_for_a_while])
def test_what_a_call_replaces_and_deletes_may_have_been_anything(program: Any) -> None:
    compiled = braze.compile(program, backend="eager")
    trace.reset_counters()
    for before in ([1], [1, 2], [], None, "a", 2, 3.5, (4,), {"b": 5}, torch.sin):
        x, held, items = torch.ones(2), SimpleNamespace(name=before), {"name": before}
        theirs = SimpleNamespace(**vars(held)), dict(items)
        assert str(compiled(x, held, items)) == str(program(x, *theirs))
        assert str((held, items)) == str(theirs)
    assert trace.COUNTERS["captures"] == 1


class Shown:
    """Whose ``__dict__`` is not where its attributes are."""

    a = 0.5

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return {"a": 10.0, "b": 20.0, "c": 30.0}


def test_attributes_are_not_looked_up_in_what_a_property_gives_as_the_dict() -> None:
    def program(x: Any, held: Any, i: int) -> Any:
        held.d = i
        name = "abc"[i % 3]
        return x * held.a, getattr(held, name, None), hasattr(held, f"n{i}"), held.d, sorted(held.__dict__)

    compiled, theirs, ours = braze.compile(program, backend="eager"), Shown(), Shown()
    for i in range(4):
        assert str(compiled(torch.ones(2), ours, i)) == str(program(torch.ones(2), theirs, i))
        theirs.b = ours.b = i * 2  # type: ignore[attr-defined]
        setattr(theirs, f"n{i + 2}", 1)
        setattr(ours, f"n{i + 2}", 1)


class Elsewhere(list):  # type: ignore[type-arg]
    """Its iteration gives something else than what it holds."""

    def __iter__(self) -> Any:
        return iter([1, 2, 3])


class ElsewhereToo(collections.deque):  # type: ignore[type-arg]
    __iter__ = Elsewhere.__iter__


@pytest.mark.parametrize("cls", [Elsewhere, ElsewhereToo])
def test_what_is_written_to_a_list_whose_class_iterates_otherwise_stays_beside_what_it_held(cls: Any) -> None:
    def f(x: torch.Tensor, held: Any, i: int) -> torch.Tensor:
        held.append(i)
        held[0] = 2 * i
        return x

    compiled, x = braze.compile(f, backend="eager"), torch.ones(2)
    for i in range(3):
        found = []
        for call in (f, compiled):
            held = cls([7, 8])
            call(x, held, i)
            found.append([held[k] for k in range(len(held))])
        assert found[0] == found[1] == [2 * i, 8, i]


class Plain:
    n: int


def reads(x: Any, o: Any) -> Any:
    return vars(o).get(7), 8 in vars(o), list(vars(o))


def writes(x: Any, o: Any) -> Any:
    vars(o)[7], vars(o)[8, 9] = 5, 6
    return len(vars(o)), o.n


def takes_away(x: Any, o: Any) -> Any:
    return vars(o).pop(7, None), vars(o).pop(8, None)


@pytest.mark.parametrize("program", [reads, writes, takes_away])
def test_keys_of_an_objects_dict_may_be_no_names(program: Any) -> None:
    compiled = braze.compile(program, backend="eager")
    for there in ((7,), (), (7, 8), (8,)):
        found = []
        for call in (program, compiled):
            o = Plain()
            o.n = 1
            vars(o).update(dict.fromkeys(there, 3))
            found.append((call(torch.ones(2), o), list(vars(o).items())))
        assert found[0] == found[1]
