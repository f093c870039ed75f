"""The frame hook in TRACE mode: which frames are handed over, with what, and what becomes of them."""

import ctypes
import inspect
import sys
import traceback

from braze import native
from braze.native import DEFAULT, OFF, TRACE
from tests.native.hooked import add, failing, needs_hook, raised, traced


@needs_hook
def test_trace_hands_over_bound_arguments():
    seen = []

    def handler(function, locals):
        seen.append((function, locals, native.mode()))
        return "instead"

    assert traced(handler, add, 1, 5, 6, c=7, z=8) == "instead"
    assert seen == [(add, (1, 5, 7, (6,), {"z": 8}), OFF)]
    assert native.mode() == OFF


@needs_hook
def test_trace_default_evaluates_and_traces_beneath():
    names = []

    def handler(function, locals):
        names.append(function.__name__)
        return DEFAULT

    def outer(x):
        return inner(x) + sum(map(inner, [1, 2]))

    def inner(x):
        return x * 10

    assert traced(handler, outer, 1) == 40
    assert names == ["outer", "inner", "inner", "inner"]


@needs_hook
def test_frames_that_c_starts_are_handed_over():
    class Key:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            return self.value < other.value

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self.value == other.value

        def __getattr__(self, name):
            return 5

    names = []

    def handler(function, locals):
        names.append(function.__name__)
        return DEFAULT

    keys = [Key(3), Key(1)]
    assert traced(handler, sorted, keys, key=lambda key: key.value) == [keys[1], keys[0]]
    assert names == ["<lambda>", "<lambda>"]
    names.clear()
    assert traced(handler, sorted, keys) == [keys[1], keys[0]]
    assert names == ["__lt__"]
    names.clear()
    table = {keys[0]: 1}
    assert traced(handler, table.get, Key(3)) == 1
    assert names == ["__hash__", "__eq__"]
    names.clear()
    assert traced(handler, getattr, keys[0], "missing") == 5
    assert names == ["__getattr__"]


@needs_hook
def test_exceptions_of_the_handler_leave_the_frame():
    def handler(function, locals):
        raise ValueError("mine")

    error = raised(ValueError, lambda: traced(handler, add, 1))
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[-1] == "handler" and "add" not in names
    assert native.mode() == OFF


@needs_hook
def test_exceptions_of_evaluated_frames_keep_their_traceback():
    for call in (lambda: traced(lambda f, l: DEFAULT, failing), lambda: native.run_hooked(failing)):
        error = raised(KeyError, call)
        assert traceback.extract_tb(error.__traceback__)[-1].name == "failing"
        assert error.args == ("original",)


@needs_hook
def test_a_handled_exception_is_still_current_in_the_handler():
    def body():
        try:
            raise KeyError("first")
        except KeyError:
            return called()

    def called():
        return sys.exc_info()[1]

    def handler(function, locals):
        return DEFAULT if function is body else sys.exc_info()[1]

    assert traced(handler, body).args == ("first",)


@needs_hook
def test_generators_reach_the_tracer_before_they_start():
    def numbers(n):
        yield from range(n)

    async def coroutine(x):
        return x

    seen = []

    def handler(function, locals):
        seen.append((function, locals))
        return DEFAULT

    assert traced(handler, list, []) == []
    generator = traced(handler, numbers, 3)
    assert inspect.isgenerator(generator)
    assert list(generator) == [0, 1, 2]
    awaitable = traced(handler, coroutine, 4)
    assert raised(StopIteration, lambda: awaitable.send(None)).value == 4
    assert seen == [(numbers, (3,)), (coroutine, (4,))]
    assert traced(lambda f, l: iter("ab"), lambda: list(numbers(3))) is not None


@needs_hook
def test_resumed_generators_are_evaluated_as_they_are():
    def numbers():
        yield helper(1)
        yield helper(2)

    def helper(x):
        return x

    generator = numbers()
    assert next(generator) == 1
    names = []

    def handler(function, locals):
        names.append(function.__name__)
        return 20

    assert traced(handler, next, generator) == 20
    assert names == ["helper"]


@needs_hook
def test_a_generator_replaced_by_the_handler():
    def numbers():
        yield 1

    assert traced(lambda f, l: [7] if f is numbers else DEFAULT, lambda: list(numbers())) == [7]


@needs_hook
def test_class_bodies_and_exec_are_evaluated_as_they_are():
    names = []

    def handler(function, locals):
        if function.__code__.co_filename in (
            __file__,
            "<string>",
        ):  # not what a library listens to classes and exec with
            names.append(function.__name__)
        return DEFAULT

    def build():
        class Made:
            size = 3

        space = {}
        exec("value = 5", space)
        return Made.size + space["value"]

    assert traced(handler, build) == 8
    assert names == ["build"]


@needs_hook
def test_cells_and_free_variables_arrive_raw():
    def outer(x, y):
        def inner():
            return x

        return inner() + y

    def handler(function, locals):
        if function is outer:
            assert locals == (5, 6)
        return DEFAULT

    assert traced(handler, outer, 5, 6) == 11


@needs_hook
def test_traces_nest():
    def inner_handler(function, locals):
        return ("inner", locals)

    def outer_handler(function, locals):
        assert native.mode() == OFF
        value = native.call_traced(inner_handler, add, (1,))
        assert native.mode() == OFF
        return ("outer", value)

    def body():
        return add(1), add(2)

    def first(function, locals):
        return DEFAULT if function is body else outer_handler(function, locals)

    answer = ("outer", ("inner", (1, 2, 3, (), {})))
    assert traced(first, body) == (answer, answer)


@needs_hook
def test_untraced_code_and_unhooked_calls():
    names = []

    def handler(function, locals):
        names.append(function.__name__)
        return DEFAULT

    def hidden():
        return visible(), native.mode()

    def visible():
        return native.mode()

    def body():
        return hidden(), visible(), native.unhooked(visible)

    native.untraced_code(hidden.__code__)
    assert traced(handler, body) == ((OFF, OFF), TRACE, OFF)
    assert names == ["body", "visible"]
    native.forget_code(hidden.__code__)
    assert traced(handler, body) == ((TRACE, TRACE), TRACE, OFF)


@needs_hook
def test_specialised_instructions_give_way_to_the_hook():
    """CPython inlines Python calls of hot instructions; with an evaluator in place it must not."""

    class Items:
        def __getitem__(self, index):
            return index

        @property
        def size(self):
            return 1

    def loop(items):
        total = 0
        for i in range(100):
            total += items[i] + items.size
        return total

    items = Items()
    for _ in range(5):
        assert loop(items) == 5050
    names = []

    def handler(function, locals):
        names.append(function.__name__)
        return DEFAULT

    assert traced(handler, loop, items) == 5050
    assert (names.count("__getitem__"), names.count("size")) == (100, 100)


@needs_hook
def test_a_frame_that_ends_with_neither_a_result_nor_an_exception_is_named():
    """Somebody's evaluator beneath ours does that here: a function of C that always gives NULL."""
    api = ctypes.pythonapi
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    put, state = api._PyInterpreterState_SetEvalFrameFunc, ctypes.c_void_p(api.PyInterpreterState_Get())
    usual = ctypes.cast(api._PyEval_EvalFrameDefault, ctypes.c_void_p)
    silent = ctypes.cast(api.PyErr_Occurred, ctypes.c_void_p)
    native.skip_code(silenced.__code__)
    error = None
    put(state, silent)
    try:
        native.run_hooked(silenced)
    except SystemError as raised:
        error = raised
    finally:
        put(state, usual)
    assert str(error).startswith("BZ9015: <code object silenced at ")


def silenced():
    return 1
