"""Entries, walks, resets and new variants of the C core from many threads at once, without PyTorch: also for a sanitizer of threads."""

import sys
import threading
import weakref

from braze.native import Entry, GuardProgram
from tests.native.hooked import needs_hook

THREADS, SHAPES, TURNS = 32, 20, 40


def all_at_once(work, count=THREADS):
    """Start all threads together, as often in turn as Python allows; the first error of any is the test's."""
    barrier, errors = threading.Barrier(count), []

    def one(number):
        try:
            barrier.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


class Shape:
    """What is guarded: an attribute that says which variant is for it."""

    def __init__(self, number):
        self.number = number
        self.parts = {"n": number, "twice": [2 * number]}


def program(number):
    """Guards of one shape, the first element of the list as the graph's input."""
    nodes = [
        (-1, "local", 0),
        (0, "attr", "number"),
        (0, "attr", "parts"),
        (2, "item", "twice"),
        (3, "item", 0),
    ]
    checks = [(0, "type", Shape), (1, "equal", number), (3, "length", 1), (4, "int", ("sym", 0))]
    return GuardProgram(nodes, [*checks, (-1, "range", lambda s: s[0] % 2 == 0)], [4], 1)


def residual(inputs, shape):
    return inputs[0]


def user(shape):
    raise AssertionError("never run as it is")


class Site:
    """Makes a variant at each miss, as the compiler does."""

    def __init__(self):
        self.lock = threading.RLock()
        self.entry = Entry(user, self.on_miss)

    def on_miss(self, entry, function, locals):
        with self.lock:
            made = program(locals[0].number)
            inputs = made.match(function, locals)
            entry.add(made, residual)
            return residual, inputs


def test_calls_and_new_variants_while_all_is_forgotten():
    """Each call is served by a variant for its shape, whoever makes, moves, removes or forgets variants meanwhile."""
    site, shapes = Site(), [Shape(n) for n in range(SHAPES)]

    def work(number):
        for turn in range(TURNS):
            shape = shapes[(number * 7 + turn) % SHAPES]
            assert site.entry(shape) == 2 * shape.number
            if number == 0 and turn % 5 == 0:
                site.entry.clear()
            if number == 1 and turn % 3 == 0:
                for made, _ in site.entry.variants:
                    site.entry.remove(made)
                    break

    all_at_once(work)


def test_objects_change_while_others_walk_over_them():
    """A call sees the object as it was before or after a write, and takes nothing from another thread's walk."""
    site, shared = Site(), Shape(1)

    def work(number):
        own = Shape(number)
        for turn in range(TURNS):
            if number % 4 == 0:
                shared.parts = {"n": turn, "twice": [2 * shared.number]}
            assert site.entry(shared) == 2
            assert site.entry(own) == 2 * number

    all_at_once(work, 16)


class Name(str):
    """A key that Python hashes and compares, while other threads run."""

    def __hash__(self):
        return str.__hash__(self)

    def __eq__(self, other):
        return str.__eq__(self, other)


def test_what_is_read_stays_while_keys_are_compared():
    """Others put new objects in the place of those that a walk has read."""
    sizes = Shape(1)
    places = [None]

    def put():
        made = Shape(1)
        made.inner = Shape((1.5, "x"))
        made.table = {Name("k"): 3, "other": Shape(0)}
        places[0] = made

    def work(number):
        nodes = [
            (-1, "local", 0),
            (0, "item", 0),
            (1, "dict", "table"),
            (2, "item", "k"),
            (2, "item", "other"),
        ]
        nodes += [(1, "dict", "inner"), (5, "dict", "number")]
        checks = [(3, "equal", 3), (4, "type", Shape), (6, "equal", (1.5, "x"))]
        program = GuardProgram(nodes, checks, [1, 5])
        for _ in range(10 * TURNS):
            if number % 4 == 0:
                put()
            else:
                found = program.match(work, (places, sizes))
                assert found is not None and found[0].inner is found[1]

    put()
    all_at_once(work, 8)


def test_entries_that_die_while_others_are_made():
    """What an entry holds goes with it, in whichever thread that is."""
    gone = []

    def work(number):
        for turn in range(TURNS):
            site = Site()
            assert site.entry(Shape(turn)) == 2 * turn
            gone.append(weakref.ref(site.entry))
            site.entry.clear()
            del site

    all_at_once(work, 8)
    assert len(gone) == 8 * TURNS


@needs_hook
def test_frames_are_taken_over_in_each_thread_for_itself():
    """The mode is a thread's own: others run as they are meanwhile."""
    from braze import native

    def callee(a):
        return a + 1

    def caller(a):
        return callee(a)

    def handler(function, locals):
        return ("taken", locals[0]) if function is callee else native.DEFAULT

    def work(number):
        for turn in range(TURNS):
            if number % 2:
                assert native.call_traced(handler, caller, (turn,)) == ("taken", turn)
            else:
                assert caller(turn) == turn + 1
            assert native.mode() == native.OFF

    all_at_once(work)
