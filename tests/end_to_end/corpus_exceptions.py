"""Exceptions, and ``with``."""

from __future__ import annotations

import contextlib
import functools
import time
import traceback

import torch

from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
whole = functools.partial(case, whole=True)


# -- exceptions


@whole((X, 0), (X, 1), (X, 2), (X, 3))
def the_paths_of_try(x, how):
    log = []
    for _ in range(2):
        try:
            log.append("try")
            if how == 1:
                raise KeyError("k")
            if how == 2:
                continue
            if how == 3:
                break
        except (KeyError, ValueError) as e:
            log.append(e.args)
        else:
            log.append("else")
        finally:
            log.append("finally")
        x = x + 1
    else:
        log.append("for else")
    return x, log


@whole((X,))
def errors_of_python(x):
    def error(f):
        try:
            return f()
        except Exception as e:
            return type(e).__name__, str(e)

    return (
        x * 2,
        error(lambda: 1 // 0),
        error(lambda: {}["missing"]),
        error(lambda: [1][5]),
        error(lambda: int("x")),
        error(lambda: None.attribute),
        error(lambda: next(iter([]))),
        error(lambda: (1, 2) + [3]),
        error(lambda: "a" < 1),
        error(lambda: [].remove(1)),
        error(lambda: dict([1])),
        error(lambda: "".join([1])),
        error(lambda: float("y")),
        error(lambda: range(1, 2, 0)),
        error(lambda: hash([])),
        error(lambda: iter(5)),
        error(lambda: 2**-1),
        error(lambda: [1, 2].index(3)),
        error(lambda: max([])),
        error(lambda: object().a),
        error(lambda: setattr(object(), "a", 1)),
    )


@case((X,))
def nested_handlers(x):
    log = []

    def deep(n):
        try:
            if n == 0:
                raise ValueError("deep")
            deep(n - 1)
        except ValueError as e:
            log.append((n, str(e), e.__context__ is None))
            raise RuntimeError(n) from e
        finally:
            log.append(("left", n))

    try:
        deep(1)
    except RuntimeError as e:
        chain = [
            type(e).__name__,
            e.args,
            type(e.__cause__).__name__,
            type(e.__cause__.__cause__).__name__ if e.__cause__.__cause__ else None,
        ]
    return x + 1, log, chain


class Refused(Exception):
    def __init__(self, code, *, why="because"):
        super().__init__(code, why)
        self.code = code
        self.why = why

    def __str__(self):
        return f"{self.code}: {self.why}"


class RefusedAgain(Refused, LookupError):
    pass


@whole((X,))
def exception_classes(x):
    try:
        raise RefusedAgain(5, why="testing")
    except LookupError as e:
        a = (str(e), e.code, e.args, isinstance(e, Refused), repr(e))
    try:
        raise Refused
    except TypeError as e:
        b = "missing" in str(e)
    try:
        raise KeyError
    except KeyError as e:
        c = e.args
    try:
        raise ValueError("a", 1) from None
    except ValueError as e:
        d = (e.args, e.__cause__, e.__suppress_context__)
    return x, a, b, c, d


@case((X,))
def exceptions_that_are_returned(x):
    def fail():
        raise Refused(3)

    try:
        fail()
    except Refused as e:
        kept = e
    return (
        x + 1,
        kept,
        kept.__traceback__ is not None,
        [f.name for f in traceback.extract_tb(kept.__traceback__)],
    )


@whole((X,))
def return_in_finally(x):
    def a():
        try:
            raise ValueError
        finally:
            return 1  # noqa: B012

    def b():
        for i in range(3):
            try:
                continue
            finally:
                if i == 1:
                    break  # noqa: B012
        return i

    def c():
        try:
            return 1
        finally:
            log.append("late")

    log = []
    return x + a(), b(), c(), log


@case((X,))
def exception_groups(x):
    log = []
    try:
        raise ExceptionGroup("several", [ValueError("v"), KeyError("k"), TypeError("t")])
    except* ValueError as g:
        log.append([str(e) for e in g.exceptions])
    except* (KeyError, TypeError) as g:
        log.append([str(e) for e in g.exceptions])
    try:
        try:
            raise OSError("single")
        except* OSError as g:
            log.append(type(g).__name__)
    except ExceptionGroup:
        log.append("never")
    return x + 1, log


# -- with


class Scope:
    def __init__(self, log, name, swallow=False):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append(("enter", self.name))
        return self.name

    def __exit__(self, kind, value, tb):
        self.log.append(("exit", self.name, kind, str(value), tb is None))
        return self.swallow


@whole((X, 0), (X, 1), (X, 2))
def with_of_every_form(x, how):
    log = []
    with Scope(log, "a") as a, Scope(log, "b", swallow=True) as (b):
        x = x + len(a + b)
        if how == 1:
            raise KeyError("inside")
        if how == 2:
            return x, log
    with (
        Scope(log, "c") as log[0],
        Scope(log, "d"),
    ):
        for i in range(2):
            with Scope(log, i):
                if i:
                    break
    return x, log


@case((X,))
def with_that_fails_on_the_way(x):
    log = []

    class Bad:
        def __enter__(self):
            raise ValueError("entering")

        def __exit__(self, *exc):
            log.append("never")

    class Worse:
        def __enter__(self):
            return 1

        def __exit__(self, *exc):
            raise RuntimeError("leaving")

    def use(*managers):
        with Scope(log, "outer"):
            with managers[0]:
                log.append("body")
                raise KeyError("body")

    def none():
        with 5:
            pass

    return x + 1, said(lambda: use(Bad())), said(lambda: use(Worse())), said(none), log


@whole((X, False), (X, True))
def managers_of_contextlib(x, fail):
    log = []

    @contextlib.contextmanager
    def logged(name):
        log.append(name)
        try:
            yield name
        except ValueError as e:
            log.append(str(e))
        finally:
            log.append("left " + name)

    with logged("a") as a, contextlib.nullcontext(5) as n, contextlib.suppress(KeyError):
        x = x + n
        if fail:
            raise ValueError("v")
        raise KeyError
    with contextlib.closing(Countdown2()) as c:
        pass
    return x, a, log, c.closed


class Countdown2:
    closed = False

    def close(self):
        self.closed = True


@whole((X,))
def exit_stacks(x):
    log = []
    with contextlib.ExitStack() as stack:
        for name in "ab":
            stack.enter_context(Scope(log, name))
        stack.callback(log.append, "called back")
        x = x * 2
    return x, log


class Repeated(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


@whole((X,))
def managers_as_decorators(x):
    @Repeated()
    def f(y):
        return y + 1

    @torch.no_grad()
    def g(y):
        return y * 2, torch.is_grad_enabled()

    return f(x), g(x)


@scenario
def locks_around_a_graph(c):
    import threading

    lock = threading.Lock()

    @c
    def f(x):
        with lock:
            held = lock.locked()
            y = x + 1
        return y, held, lock.locked()

    yield f(X), f(X), lock.locked()


# -- contexts


def chain(error):
    """The exception, and the contexts behind it."""
    found = []
    while error is not None:
        found.append((type(error).__name__, str(error)))
        error = error.__context__
    return found


def raises_while_handling():
    time.time()  # no part of a graph
    try:
        raise KeyError("inner")
    except KeyError:
        raise TypeError("second")


@case((X,))
def error_of_an_uncaptured_call_keeps_its_own_context(x):
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raises_while_handling()
    except TypeError as e:
        return x + 1, chain(e)


@case((X,))
def error_of_an_uncaptured_call_leaves_with_its_own_context(x):
    y = x + 1
    try:
        raise ValueError("first")
    except ValueError:
        raises_while_handling()
    return y


def yields_twice(x, log):
    try:
        yield x
        yield x + 1
    except KeyError:
        log.append("key")
        yield x + 2
    finally:
        log.append("finally")


def yields_through_another(x, log):
    yield from yields_twice(x, log)


@whole((X,))
def error_thrown_into_a_generator_has_no_context_of_its_caller(x):
    log = []
    try:
        raise ValueError("first")
    except ValueError:
        waiting = yields_twice(x, log)
        y = next(waiting)
        try:
            waiting.throw(TypeError("thrown"))
        except TypeError as e:
            log.append(chain(e))
    return y, log


@whole((X,))
def error_thrown_into_a_generator_that_handles_another_has_it_for_context(x):
    log = []
    waiting = yields_twice(x, log)
    y = next(waiting) + waiting.throw(KeyError("handled"))
    try:
        raise ValueError("first")
    except ValueError:
        try:
            waiting.throw(TypeError("thrown"))
        except TypeError as e:
            log.append(chain(e))
    return y, log


@case((X,))
def error_thrown_through_a_generator_while_another_is_handled(x):
    log = []
    try:
        raise ValueError("first")
    except ValueError:
        waiting = yields_through_another(x, log)
        y = next(waiting)
        try:
            waiting.throw(TypeError("thrown"))
        except TypeError as e:
            log.append(chain(e))
    return y, log


def throws_into_what_has_not_begun(x):
    yields_twice(x, []).throw(TypeError("thrown"))


@whole((X,))
def error_thrown_into_a_generator_that_has_not_begun_has_no_context(x):
    try:
        raise ValueError("first")
    except ValueError:
        try:
            throws_into_what_has_not_begun(x)
        except TypeError as e:
            return x + 1, chain(e)


def fails_behind_a_break_and_breaks_in_its_handler(items):
    try:
        time.time()
        items[0].append(1)
    except Exception as error:
        time.time()
        return chain(error)


@case((X,))
def error_between_two_breaks_has_what_a_caller_handles_for_context(x):
    try:
        raise ValueError("first")
    except ValueError:
        return x + 1, fails_behind_a_break_and_breaks_in_its_handler(())


def raises(given):
    time.time()  # no part of a graph
    if given is None:
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise KeyError(given) from error
    raise KeyError(given)


@scenario
def what_an_error_from_outside_tells_is_asked_at_each_call(c):
    @c
    def told(x, given):
        try:
            raises(given)
        except KeyError as error:
            return (
                x + 1,
                error.args[0],
                type(error.__context__),
                type(error.__cause__),
                error.__suppress_context__,
            )

    async def answer(value):
        return value

    @c
    def awaited(coroutine):
        try:
            coroutine.send(None)
        except StopIteration as end:
            return (end.value, end.args)

    for given in (1, 2, None, "a", None, 3):
        yield told(X, given), awaited(answer(given))


@case((X, X[:, :2]))
def error_of_an_operator_has_no_context(x, y):
    try:
        x.add_(y)
    except RuntimeError as error:
        return chain(error), error.__cause__, error.__suppress_context__


@scenario
def error_of_a_condition_is_on_its_line(c):
    @c
    def f(x, n):
        if n == x:
            if True:

                def one():
                    return 1

            n = one()
        return n

    yield attempt(f, X, 1)
