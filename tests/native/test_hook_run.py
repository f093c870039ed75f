"""The frame hook in RUN mode, and what must hold in every mode: threads, recursion, nothing left behind."""

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

from braze import native
from braze.native import DEFAULT, OFF, RUN, TRACE, Entry, GuardProgram
from tests.native.hooked import add, needs_hook, raised, traced


def with_callback(callback, call, *args):
    """``run_hooked(call, *args)`` with a frame callback for the time."""
    native.set_frame_callback(callback)
    try:
        return native.run_hooked(call, *args)
    finally:
        native.set_frame_callback(None)


@needs_hook
def test_run_asks_once_and_remembers():
    asked = []

    def target(x):
        return x + 1

    def other(x):
        return target(x) * 2

    entry = Entry(target, lambda *args: None)
    entry.add(GuardProgram([(-1, "local", 0)], [(0, "type", int)], [0]), lambda inputs, x: inputs[0] + 100)

    def callback(code, function):
        assert native.mode() == OFF
        asked.append(function.__name__)
        return entry if code is target.__code__ else None

    def body():
        return [other(1), other(2), other(2.5)]

    assert with_callback(callback, body) == [202, 204, 7.0]
    assert asked == ["body", "other", "target"]
    assert (entry.hits, entry.misses) == (2, 1)
    native.forget_code(target.__code__)
    native.skip_code(target.__code__)
    assert with_callback(callback, body) == [4, 6, 7.0]
    assert asked == ["body", "other", "target"]


@needs_hook
def test_run_uses_the_frames_own_function():
    def make(n):
        def closure(x):
            return x + n

        return closure

    first, second = make(1), make(2)
    program = GuardProgram([(-1, "cell", 0), (-1, "local", 0)], [(0, "equal", 1)], [0, 1])
    entry = Entry(first, lambda *args: None)
    entry.add(program, lambda inputs, x: ("captured", *inputs))

    def callback(code, function):
        return entry if code is first.__code__ else None

    assert with_callback(callback, lambda: (first(5), second(5))) == (("captured", 1, 5), 7)


@needs_hook
def test_residuals_run_with_the_mode_off():
    def target():
        return None

    modes = []
    entry = Entry(target, lambda *args: ((lambda inputs: modes.append(native.mode())), ()))
    with_callback(lambda code, function: entry if function is target else None, lambda: target())
    assert modes == [OFF]


@needs_hook
def test_run_asks_of_generators_and_takes_none_over():
    asked = []

    def numbers():
        yield helper()

    def helper():
        return 3

    def callback(code, function):
        asked.append(function.__name__)

    assert with_callback(callback, lambda: list(numbers())) == [3]
    assert asked == ["<lambda>", "numbers", "helper"]


@needs_hook
def test_an_entry_that_declines_lets_nested_frames_be_captured():
    def nested(x):
        return x

    def target(x):
        return nested(x)

    inner = Entry(nested, lambda *args: ((lambda inputs, x: -x), ()))
    outer = Entry(target, lambda *args: None)
    asked = []

    def callback(code, function):
        asked.append(function.__name__)
        return inner if function is nested else None

    native.set_frame_callback(callback)
    try:
        assert outer(3) == -3
    finally:
        native.set_frame_callback(None)
    assert asked == ["nested"]
    assert native.mode() == OFF
    native.forget_code(nested.__code__)
    native.forget_code(target.__code__)
    assert outer(3) == 3


@needs_hook
def test_errors_of_the_callback_surface():
    def callback(code, function):
        raise LookupError("no")

    for bad, kind in ((callback, LookupError), (lambda code, function: 3, TypeError)):
        raised(kind, lambda: with_callback(bad, lambda: None))


@needs_hook
def test_the_evaluator_is_there_only_while_needed():
    calls = []

    def callback(code, function):
        calls.append(function.__name__)

    def fresh():
        return 1

    native.set_frame_callback(callback)
    fresh()
    assert calls == []
    native.run_hooked(fresh)
    fresh()
    assert calls == ["fresh"]
    native.uninstall()
    native.run_hooked(lambda: None)
    assert calls == ["fresh"]


@needs_hook
def test_modes_belong_to_threads():
    inside, seen = threading.Event(), []
    release = threading.Event()

    def body():
        inside.set()
        release.wait(10)
        return native.mode()

    def handler(function, locals):
        seen.append(threading.get_ident())
        return DEFAULT

    answers = []
    thread = threading.Thread(target=lambda: answers.append(native.call_traced(handler, body)))
    thread.start()
    inside.wait(10)
    assert native.mode() == OFF
    add(1, 2)
    release.set()
    thread.join()
    assert answers == [TRACE]
    assert set(seen) == {thread.ident}


@needs_hook
def test_many_threads_trace_and_run():
    def leaf(x):
        return x + 1

    def body(x):
        return leaf(x) + leaf(x)

    entry = Entry(leaf, lambda *args: None)
    entry.add(GuardProgram([(-1, "local", 0)], [(0, "type", int)], [0]), lambda inputs, x: inputs[0] + 1)
    wrong = []

    def work():
        for i in range(300):
            if traced(lambda f, l: l[0] * 5 if f is leaf else DEFAULT, body, i) != i * 10:
                wrong.append(1)
            if native.run_hooked(body, i) != 2 * i + 2:
                wrong.append(2)

    native.set_frame_callback(lambda code, function: entry if code is leaf.__code__ else None)
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        native.set_frame_callback(None)
    assert not wrong


@needs_hook
def test_recursion_ends_in_recursion_error():
    def down(n):
        return down(n + 1)

    for call in (lambda: traced(lambda f, l: DEFAULT, down, 0), lambda: native.run_hooked(down, 0)):
        raised(RecursionError, call)
        assert native.mode() == OFF

    def handler(function, locals):
        return native.call_traced(handler, down, (locals[0] + 1,))

    raised(RecursionError, lambda: traced(handler, down, 0))
    assert add(1) == 3


def count_down(n):
    return 0 if n == 0 else count_down(n - 1) + 1


def recurse_deeply():
    """50,000 calls deep beneath the hook, and a trace that starts down there."""

    def bottom(n):
        return traced(lambda f, l: "caught", add, 1) if n == 0 else bottom(n - 1)

    sys.setrecursionlimit(200_000)
    for n in (900, 5000, 50_000):
        assert native.run_hooked(count_down, n) == n
        assert native.run_hooked(bottom, n) == "caught"
    assert traced(lambda f, l: DEFAULT, count_down, 600) == 600
    raised(RecursionError, lambda: traced(lambda f, l: DEFAULT, count_down, 50_000))
    assert traced(lambda f, l: "caught", add, 1) == "caught"


@needs_hook
def test_deep_recursion_is_python_s_own():
    """As deep as without the hook. In a process of its own: another hook that lies beneath ours may not be."""
    path = sys.modules["braze.native._native"].__file__  # run_plain builds its own
    script = f"from tests.native.run_plain import load; load({path!r})"
    script += "; from tests.native.test_hook_run import recurse_deeply; recurse_deeply()"
    root = str(Path(__file__).parents[2])
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    assert found.returncode == 0, found.stderr


@needs_hook
def test_replaced_frames_leave_nothing_behind():
    class Token:
        pass

    def target(a, b, *rest, key=None, **more):
        local = a
        return local

    def call(value):
        return traced(lambda f, l: l[0], target, value, value, value, key=value, other=value)

    token = Token()
    gone = weakref.ref(token)
    call(token)
    before = sys.getrefcount(token), sys.getrefcount(target), sys.getrefcount(target.__code__)
    for _ in range(1000):
        assert call(token) is token
    after = sys.getrefcount(token), sys.getrefcount(target), sys.getrefcount(target.__code__)
    assert after == before
    del token
    gc.collect()
    assert gone() is None


@needs_hook
def test_a_hundred_thousand_replaced_calls_do_not_grow():
    def target(a, b=(1,)):
        return a

    def handler(function, locals):
        return None

    def many():
        for i in range(1000):
            target(i)

    def first(function, locals):
        return DEFAULT if function is many else handler(function, locals)

    traced(first, many)
    gc.collect()
    before = len(gc.get_objects()), sys.getallocatedblocks()
    for _ in range(100):
        traced(first, many)
    gc.collect()
    after = len(gc.get_objects()), sys.getallocatedblocks()
    assert after[0] - before[0] < 50 and after[1] - before[1] < 500, (before, after)


@needs_hook
def test_facts_beside_code_die_with_it():
    space = {}
    exec("def target(x): return x", space)
    entries = [Entry(add, lambda *args: None)]
    gone = weakref.ref(entries[0])
    native.set_frame_callback(lambda code, function: entries[0] if function.__name__ == "target" else None)
    native.run_hooked(space["target"], 1)
    native.set_frame_callback(None)
    entries.clear()
    gc.collect()
    assert gone() is not None
    space.clear()
    gc.collect()
    assert gone() is None


@needs_hook
def test_a_tracer_of_the_user_still_works():
    events = []

    def tracer(frame, event, arg):
        if frame.f_code is add.__code__:
            events.append(event)
        return tracer

    old = sys.gettrace()
    sys.settrace(tracer)
    try:
        traced(lambda f, l: DEFAULT, add, 1)
        traced(lambda f, l: 5, add, 1)
        native.run_hooked(add, 1)
    finally:
        sys.settrace(old)
    assert events.count("call") == 2 and events.count("return") == 2


@needs_hook
def test_arguments_of_call_traced_are_checked():
    for args in ((), (print,), (print, print, 5), (print, print, (), 5)):
        raised(TypeError, lambda: native.call_traced(*args))


@needs_hook
def test_mode_constants():
    assert (OFF, RUN, TRACE) == (0, 1, 2)
    assert native.run_hooked(native.mode) == RUN
    assert native.call_traced(print, native.mode) == TRACE


@needs_hook
def test_other_interpreters_are_refused():
    """Their frames are not ours to evaluate; braze goes on there in plain Python.

    In a process of its own: once a process has had a second interpreter, CPython answers every question whether a
    thread holds the GIL with yes, and PyTorch's autograd refuses to run.
    """
    script = f"""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
inner = '''
import importlib.util
spec = importlib.util.spec_from_file_location("_native", {sys.modules["braze.native._native"].__file__!r})
try:
    importlib.util.module_from_spec(spec)
except ImportError:
    pass
else:
    raise SystemExit("loaded in a subinterpreter")
'''
other = interpreters.create()
try:
    problem = interpreters.run_string(other, inner)  # 3.11 and 3.12 raise, 3.13 returns
finally:
    interpreters.destroy(other)
assert problem is None, problem
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@needs_hook
def test_audit_hooks_do_not_see_the_hooks_own_work():
    """Giving up a frame makes a code object on some versions, which is an audited event."""
    script = """
import sys
from braze import native
names = []
def audit(event, args):
    if event.startswith("code."):
        names.append(native.mode())
sys.addaudithook(audit)
def handler(function, locals):
    names.append(function.__name__)
    return 1
def target():
    return 0
assert native.call_traced(handler, target) == 1
assert [name for name in names if name != 0] == ["target"], names
"""
    build = (
        "import importlib.util as u, sys\n"
        f"spec = u.spec_from_file_location('braze.native._native', {sys.modules['braze.native._native'].__file__!r})\n"
        "sys.modules['braze.native._native'] = module = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
    )
    root = str(Path(native.__file__).parents[2])
    subprocess.run([sys.executable, "-c", build + script], check=True, cwd=root)
