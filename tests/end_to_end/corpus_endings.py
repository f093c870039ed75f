"""When what a function has left suspended ends: with the exception that holds its frame, and in which order."""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback

import torch

import braze
from tests.end_to_end.conformance import case

X = torch.arange(3.0)
whole = functools.partial(case, whole=True)


def noting(log, x, name="left"):
    try:
        while True:
            yield x
    finally:
        log.append(name)


def raising(log, x, name="left"):
    left = noting(log, x, name)
    next(left)
    raise ValueError(name)


@whole((X, []))
def what_a_function_that_raised_has_left_ends_behind_the_handler(x, log):
    for name in ("first", "second"):
        try:
            raising(log, x, name)
        except ValueError as error:
            log.append(("handles", str(error)))
        log.append("after")
    try:
        raising(log, x)
    except ValueError:
        log.append(sys.exc_info()[0].__name__)
    log.append("after all")
    return x + 1


@whole((X, []))
def what_a_frame_has_left_ends_when_its_exception_is_let_go_of(x, log):
    kept = []
    for name in ("first", "second"):
        try:
            raising(log, x, name)
        except ValueError as error:
            kept.append(error)
    log.append("kept")
    kept.pop(0)
    log.append("one is gone")
    held = kept.pop()
    log.append("one is held")
    del held
    log.append("after")
    return x + 1


@whole((X, []))
def what_a_frame_has_left_ends_with_the_traceback(x, log):
    try:
        raising(log, x)
    except ValueError as error:
        log.append("handles")
        error.__traceback__ = None
        log.append("no traceback")
    try:
        raising(log, x)
    except ValueError as error:
        log.append("handles")
        error.with_traceback(None)
        log.append("no traceback")
    return x + 1


@whole((X, []))
def what_a_frame_has_left_ends_when_the_error_that_came_of_it_does(x, log):
    def another():
        try:
            raising(log, x)
        except ValueError as error:
            log.append("first")
            raise KeyError(1) from error

    def onwards():
        try:
            another()
        finally:
            log.append("finally")

    try:
        onwards()
    except KeyError as error:
        log.append(type(error.__cause__).__name__)
    log.append("after")
    with contextlib.suppress(ValueError):
        raising(log, x)
    log.append("suppressed")
    return x * 2


@whole((X, []))
def what_a_loop_draws_from_ends_before_the_handler(x, log):
    def loops():
        for y in noting(log, x):
            raise ValueError(y.shape)

    try:
        loops()
    except ValueError:
        log.append("handles")
    return x * 2


@case((X, []))
def what_a_group_of_errors_holds_ends_with_the_group(x, log):
    try:
        try:
            raising(log, x)
        except ValueError as error:
            raise ExceptionGroup("several", [error]) from None
    except* ValueError:
        log.append("handles")
    log.append("after")
    return x


@case((X, []))
def what_a_returned_error_holds_does_not_end_with_the_call(x, log):
    try:
        raising(log, x)
    except ValueError as error:
        kept = error
    log.append("after")
    return x + 1, kept, list(log)


@case((X, []))
def frames_of_a_traceback_that_are_cleared_let_go_of_what_they_held(x, log):
    try:
        raising(log, x)
    except ValueError as error:
        log.append("handles")
        traceback.clear_frames(error.__traceback__)
        log.append("cleared")
    log.append("after")
    return x + 1


@whole((X, []))
def managers_that_an_error_leaves_open_end_from_the_last(x, log):
    @contextlib.contextmanager
    def managed(name):
        log.append(f"in {name}")
        try:
            yield x
        finally:
            log.append(f"out of {name}")

    def enters():
        stack = contextlib.ExitStack()
        stack.enter_context(managed("first"))
        stack.enter_context(managed("second"))
        raise ValueError(3)

    try:
        enters()
    except ValueError:
        log.append("handles")
    log.append("after")
    return x


@whole((X, []))
def generators_end_in_the_order_of_what_held_them(x, log):
    def variables():
        first, second = noting(log, x, "first"), noting(log, x, "second")
        return next(first) + next(second)

    def several():
        made = [noting(log, x, k) for k in range(3)]
        return [next(m) for m in made] and made

    def outer(name):
        inner = noting(log, x, f"in {name}")
        next(inner)
        yield from noting(log, x, name)

    y = variables()
    log.append("variables")
    made = several()
    made.clear()
    log.append("list")
    made = dict(enumerate(several()))
    made.clear()
    log.append("dict")
    one, other = outer("one"), outer("other")
    y = y + next(one) + next(other)
    del one, other
    log.append("nested")
    return y


@case((X, []))
def what_a_frame_has_left_ends_with_the_exception_behind_a_break(x, log):
    try:
        raising(log, x)
    except ValueError as error:
        braze.graph_break()
        log.append(("handles", str(error)))
    log.append("after")
    try:
        raising(log, x)
    except ValueError:
        braze.graph_break()
        log.append("handles")
    log.append("after all")
    try:
        raising(log, x)
    except ValueError as error:
        kept = error
    braze.graph_break()
    log.append("kept")
    del kept
    log.append("let go of")
    return x + 1


class Noting:
    def __init__(self, log):
        self.log = log

    def __del__(self):
        self.log.append("ends")


def raising_with_an_object(log):
    held = Noting(log)
    raise KeyError(type(held).__name__)


@case((X, []))
def an_object_that_a_frame_holds_ends_with_the_exception_that_left_it(x, log):
    try:
        raising_with_an_object(log)
    except KeyError as error:
        log.append(("handles", str(error)))
    log.append("after")
    try:
        raising_with_an_object(log)
    except KeyError:
        log.append("handles")
    log.append("after all")
    return x + 1


@case((X, []))
def variables_of_a_frame_end_from_the_first_behind_a_break(x, log):
    first = noting(log, x, "first")
    y = next(first)
    second = noting(log, x, "second")
    y = y + next(second)
    braze.graph_break()
    log.append("returns")
    return y


@case((X, []))
def what_variables_lead_to_ends_in_their_order_behind_a_break(x, log):
    held = {"list": [noting(log, x, "in a list")]}
    stack = contextlib.ExitStack()
    y = next(held["list"][0]) + stack.enter_context(contextlib.contextmanager(noting)(log, x, "in a stack"))
    braze.graph_break()
    log.append("returns")
    return y


@case((X, []))
def managers_in_a_frame_of_an_exception_end_with_it_behind_a_break(x, log):
    def enters():
        stack = contextlib.ExitStack()
        stack.enter_context(contextlib.contextmanager(noting)(log, x, "first"))
        stack.enter_context(contextlib.contextmanager(noting)(log, x, "second"))
        raise ValueError(3)

    for _ in range(2):
        try:
            enters()
        except ValueError:
            braze.graph_break()
            log.append("handles")
        log.append("after")
    return x + 1


@case((X, []))
def what_a_cell_holds_ends_with_the_frame_behind_breaks_in_a_function_that_uses_it(x, log):
    inner = noting(log, x, "in a cell")

    def within():
        y = next(inner)
        braze.graph_break()
        return y

    other = noting(log, x, "other")
    y = next(other) + within()
    braze.graph_break()
    log.append("returns")
    return y + within()


def loops(x, log):
    for k in range(2):
        left = noting(log, x, k)
        y = next(left)
        braze.graph_break()
        log.append(("round", k))
    return y


@case((X, []))
def a_generator_that_an_inlined_frame_was_given_at_a_break_ends_where_its_variable_gets_another(x, log):
    y = loops(x, log)
    log.append("between")
    return y + loops(x, log)


class Holder:
    pass


@case((X, []))
def what_an_object_or_a_container_holds_ends_with_it_behind_a_break(x, log):
    def made(name):
        left = noting(log, x, name)
        next(left)
        return left

    holder, other = Holder(), Holder()
    holder.first, other.second = made("first"), made("second")
    several, called = {"list": [made("third")]}, functools.partial(next, made("fourth"))
    nested = [[made("fifth")], [made("sixth")]]
    braze.graph_break()
    nested[0] = None
    log.append("element")
    nested.clear()
    log.append("elements")
    del holder.first
    log.append("attribute")
    other = None
    log.append("object")
    del several
    log.append("dict")
    y = called()
    called = None
    log.append("partial")
    return y


@case((X, []))
def what_a_cell_of_a_function_that_a_broken_call_runs_holds_ends_with_the_frame(x, log):
    inner = noting(log, x, "in a cell")
    next(inner)

    def within():
        return x if inner.gi_frame is None else x + 1

    def drawing():
        yield within()
        yield within()

    drawn = drawing()
    braze.graph_break()
    y = next(drawn)
    braze.graph_break()
    log.append("returns")
    return y
