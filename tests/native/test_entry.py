"""Entry: binds as Python does, looks up its variants, and adds and drops them safely."""

import copy
import gc
import inspect
import sys
import threading
import weakref

from braze.native import DEFAULT, Entry, GuardProgram, native_available, pure
from tests.native.hooked import raised

KINDS = (
    ((Entry, GuardProgram), (pure.Entry, pure.GuardProgram)) if native_available else ((Entry, GuardProgram),)
)


def locals_of(entry, function, locals):
    """An on_miss whose residual answers with the argument slots."""
    return (lambda inputs, *slots: slots), ()


def plain(a, b):
    return a, b


def defaulted(a, b=2, *, c, d=4):
    return a, b, c, d


def spread(a, /, b=2, *args, c=3, **kwargs):
    return a, b, c, args, kwargs


def positional_only(a, b=5, /, **kwargs):
    return a, b, kwargs


def nothing():
    return ()


CALLS = [
    (plain, [((1, 2), {}), ((1,), {"b": 2}), ((), {"b": 2, "a": 1})]),
    (defaulted, [((1,), {"c": 3}), ((1, 9), {"c": 3, "d": 5}), ((), {"c": 1, "a": 0})]),
    (spread, [((1,), {}), ((1, 2, 3, 4), {}), ((1,), {"z": 0, "c": 9}), ((1, 2, 3), {"a": 7, "y": 8})]),
    (positional_only, [((1,), {}), ((1, 2), {"a": 3, "b": 4})]),
    (nothing, [((), {})]),
]
BAD_CALLS = [
    (plain, [((), {}), ((1, 2, 3), {}), ((1,), {"c": 2}), ((1, 2), {"a": 3})]),
    (defaulted, [((1,), {}), ((1, 2, 3), {"c": 1}), ((), {"c": 1})]),
    (spread, [((), {"a": 1}), ((1, 2), {"b": 3})]),
    (positional_only, [((), {"a": 1})]),
    (nothing, [((1,), {}), ((), {"x": 1})]),
]


def test_arguments_are_bound_as_python_binds_them():
    for kind, _ in KINDS:
        for function, calls in CALLS:
            entry = kind(function, locals_of)
            for args, kwargs in calls:
                assert entry(*args, **kwargs) == function(*args, **kwargs), (function, args, kwargs)


def test_bad_arguments_raise_pythons_own_error():
    for kind, _ in KINDS:
        for function, calls in BAD_CALLS:
            entry = kind(function, locals_of)
            for args, kwargs in calls:
                theirs = raised(TypeError, lambda: function(*args, **kwargs))
                assert str(raised(TypeError, lambda: entry(*args, **kwargs))) == str(theirs)


def test_many_arguments():
    names = ", ".join(f"a{i}" for i in range(60))
    space = {}
    exec(f"def wide({names}, *rest): return ({names}, rest)", space)
    for kind, _ in KINDS:
        entry = kind(space["wide"], locals_of)
        assert entry(*range(60)) == (*range(60), ())
        assert entry(*range(65)) == (*range(60), tuple(range(60, 65)))
        assert entry(*range(59), a59=1) == (*range(59), 1, ())


def test_defaults_are_those_at_the_time_of_the_call():
    def function(a=1, *, b=2):
        return a, b

    for kind, _ in KINDS:
        function.__defaults__, function.__kwdefaults__ = (1,), {"b": 2}
        entry = kind(function, locals_of)
        assert entry() == (1, 2)
        function.__defaults__, function.__kwdefaults__ = (10,), {"b": 20}
        assert entry() == (10, 20)


def test_the_first_variant_that_matches_runs():
    for kind, program in KINDS:
        entry = kind(plain, lambda *args: ((lambda inputs, *slots: ("miss", *slots)), ()))
        one = program([(-1, "local", 0)], [(0, "equal", 1)], [0])
        any_int = program([(-1, "local", 0)], [(0, "type", int)], [0])
        entry.add(one, lambda inputs, a, b: ("one", inputs, a, b))
        entry.add(any_int, lambda inputs, a, b: ("int", inputs, a, b))
        assert entry(1, 2) == ("one", (1,), 1, 2)
        assert entry(7, b=2) == ("int", (7,), 7, 2)
        assert entry("s", 2) == ("miss", "s", 2)
        assert (entry.hits, entry.misses) == (2, 1)
        entry.remove(one)
        assert entry(1, 2)[0] == "int"
        assert [row[0] for row in entry.variants] == [any_int]
        entry.clear()
        assert entry(1, 2)[0] == "miss"
        assert entry.variants == ()


def test_a_variant_hit_again_and_again_moves_to_the_front():
    if not native_available:
        return
    entry = Entry(nothing.__class__(nothing.__code__, {}), lambda *args: None)
    never = GuardProgram([], [(-1, "range", lambda s: False)], [])
    always = GuardProgram([], [], [])
    entry.add(never, lambda inputs: "never")
    entry.add(always, lambda inputs: "always")
    for _ in range(100):
        assert entry() == "always"
    assert [row[0] for row in entry.variants] == [always, never]


def test_on_miss_may_decline():
    for kind, _ in KINDS:
        seen = []
        entry = kind(plain, lambda *args: seen.append(args))
        assert entry(1, b=2) == (1, 2)
        assert seen == [(entry, plain, (1, 2))]
        assert entry.call_with(plain, (1, 2)) is (DEFAULT if kind is Entry else pure.DEFAULT)


def test_exceptions_pass_through():
    def fail(*args):
        raise KeyError("mine")

    for kind, program in KINDS:
        for entry in (kind(plain, fail), kind(plain, lambda *args: (fail, ()))):
            assert raised(KeyError, lambda: entry(1, 2)).args == ("mine",)
        entry = kind(plain, lambda *args: None)
        entry.add(program([], [], []), fail)
        raised(KeyError, lambda: entry(1, 2))


def test_an_entry_is_a_method_in_a_class():
    for kind, _ in KINDS:

        class Thing:
            def method(self, x, y=1):
                """Say."""
                return self, x, y

        function = Thing.method
        Thing.method = kind(function, locals_of)
        thing = Thing()
        assert thing.method(3) == (thing, 3, 1)
        assert Thing.method(thing, 3, y=4) == (thing, 3, 4)
        assert Thing.method.__wrapped__ is function
        assert thing.method.__self__ is thing
        assert (Thing.method.__name__, Thing.method.__doc__) == ("method", "Say.")
        assert Thing.method.__module__ == __name__
        assert str(inspect.signature(Thing.method)) == "(self, x, y=1)"


def test_an_entry_over_a_bound_method():
    class Thing:
        def method(self, x, *rest, y=1):
            return self, x, y, rest

    thing = Thing()
    for kind, _ in KINDS:
        entry = kind(thing.method, locals_of)
        assert entry(3) == (thing, 3, 1, ())
        assert entry(3, 4, 5, y=6) == (thing, 3, 6, (4, 5))
        assert entry(x=3) == (thing, 3, 1, ())
        assert entry.function is Thing.method
        assert entry.__wrapped__ == thing.method
        theirs = raised(TypeError, lambda: thing.method(1, z=2))
        assert str(raised(TypeError, lambda: entry(1, z=2))) == str(theirs)
        declining = kind(thing.method, lambda *args: None)
        assert declining(3) == thing.method(3)


def test_of_a_bound_method_without_a_name_for_it_self_is_the_first_of_the_rest():
    """As decorators write methods: the entry is asked, the call does not go by it."""

    class Thing:
        def method(*args, y=1, **words):
            return args, y, words

    thing = Thing()
    for kind, _ in KINDS:
        entry = kind(thing.method, locals_of)
        assert entry() == (1, (thing,), {})
        assert entry(3, z=4, y=6) == (6, (thing, 3), {"z": 4})


def test_entries_copy_as_functions_do():
    for kind, _ in KINDS:
        entry = kind(plain, locals_of)
        entry.note = 5
        assert copy.copy(entry) is entry and copy.deepcopy([entry])[0] is entry
        assert entry.__dict__["note"] == 5
        assert weakref.ref(entry)() is entry
        assert "plain" in repr(entry)


def test_entries_refuse_what_is_no_function():
    for kind, _ in KINDS:
        assert "Python function" in str(raised(TypeError, lambda: kind(len, locals_of)))


def test_a_wrong_answer_of_on_miss_is_named():
    if native_available:
        assert "on_miss must return" in str(raised(TypeError, lambda: Entry(plain, lambda *args: 3)(1, 2)))


def test_calls_keep_reference_counts():
    values = [object() for _ in range(3)]
    entry = Entry(spread, lambda *args: None)
    entry.add(GuardProgram([(-1, "local", 0)], [], [0]), lambda inputs, *slots: None)

    def call_all():
        for _ in range(2000):
            entry(values[0], values[1], values[2], c=values[0], other=values[1])
            entry(values[0], b=values[1])
            raised(TypeError, lambda: entry(b=values[0]))

    call_all()
    gc.collect()
    before = [sys.getrefcount(value) for value in values]
    call_all()
    gc.collect()
    assert [sys.getrefcount(value) for value in values] == before


def test_entries_are_collected():
    def make():
        def function(x):
            return x

        entry = Entry(function, lambda *args: entry)
        entry.add(GuardProgram([(-1, "constant", entry)], [], []), lambda *args: entry)
        entry(1) is entry
        return weakref.ref(entry)

    gone = make()
    gc.collect()
    assert gone() is None


def test_variants_change_while_others_call():
    entry = Entry(plain, lambda *args: ((lambda inputs, a, b: (a, b)), ()))
    stop, wrong = [], []

    def call():
        while not stop:
            if entry(1, 2) != (1, 2):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(500):
        program = GuardProgram([(-1, "local", 0)], [(0, "equal", 1)], [0])
        entry.add(program, lambda inputs, a, b: (a, b))
        entry.remove(program)
    stop.append(1)
    for thread in threads:
        thread.join()
    assert not wrong
