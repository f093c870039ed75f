"""Globals and helpers that change between calls."""

from __future__ import annotations

import builtins
import fileinput
from typing import Any

import torch

from tests.end_to_end.conformance import attempt, scenario

X = torch.arange(6.0).reshape(2, 3)
SCALE = 2.0
TABLE: dict[str, Any] = {"k": 3}
SEEN: list[Any] = []


@scenario
def globals_change(c):
    global SCALE
    SCALE = 2.0
    f = c(lambda x: x * SCALE)
    yield f(X)
    for value in (3.0, 3, True, None, X, 2.0):
        SCALE = value
        yield attempt(f, X)


@scenario
def a_global_dict_changes(c):
    TABLE.clear()
    TABLE["k"] = 3
    f = c(lambda x: (x * TABLE["k"], "z" in TABLE, len(TABLE), list(TABLE)))
    yield f(X)
    TABLE["k"] = 4
    yield f(X)
    TABLE["z"] = 1
    yield f(X)
    del TABLE["k"]
    yield attempt(f, X)


@scenario
def a_global_appears_and_goes(c):
    f = c(lambda x: x + COMING)  # noqa: F821
    yield attempt(f, X)
    globals()["COMING"] = 2
    yield attempt(f, X)
    del globals()["COMING"]
    yield attempt(f, X)


@scenario
def a_builtin_is_shadowed(c):
    f = c(lambda x: (x, len([1, 2])))
    yield f(X)
    globals()["len"] = lambda v: 99
    yield f(X)
    del globals()["len"]
    yield f(X)


@scenario
def a_helper_is_replaced(c):
    global _helper
    _helper = lambda x: x + 1
    f = c(lambda x: _helper(x))
    yield f(X)
    _helper = lambda x: x - 1
    yield f(X)


@scenario
def the_code_of_a_helper_is_replaced(c):
    def helper(x):
        return x + 1

    def other(x):
        return x - 1

    f = c(lambda x: helper(x))
    yield f(X)
    helper.__code__ = other.__code__
    yield f(X)


@scenario
def a_global_list_is_appended(c):
    SEEN.clear()

    @c
    def f(x):
        SEEN.append(x.sum())
        SEEN.append(len(SEEN))
        return x + len(SEEN)

    for _ in range(3):
        yield f(X), SEEN


@scenario
def a_global_is_written(c):
    global SCALE
    SCALE = 1.0

    @c
    def f(x):
        global SCALE
        SCALE = SCALE + 1
        return x * SCALE

    for _ in range(3):
        yield f(X), SCALE


class Opener:
    def __init__(self):
        self.count = 0

    def __call__(self, *args, **kwargs):
        self.count += 1
        return kwargs


@scenario
def a_builtin_is_replaced_that_a_library_calls(c):
    @c
    def f(x, opener):
        before = builtins.open
        builtins.open = opener
        try:
            found = fileinput.hook_compressed("name", "rb")
        finally:
            builtins.open = before
        return x + 1, found, opener.count

    opener = Opener()
    yield f(X, opener), f(X, opener), opener.count
