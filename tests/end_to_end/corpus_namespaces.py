"""The names of modules and frames: ``globals()``, ``vars()``, ``dir()``."""

from __future__ import annotations

import math
import types

import torch

from tests.end_to_end.conformance import attempt, scenario, whole

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
KNOB = 2
ITEMS = [1, 2]


def double(x):
    return x * 2


def triple(x):
    return x * 3


@whole
def globals_read_by_name(c):
    @c
    def f(x, name):
        space = globals()
        found = space[name](x), space.get("nothing", 5), space.get("KNOB"), "COMING" in space
        return found, globals() is space, space["ITEMS"] is ITEMS, space["X"] + x

    global KNOB
    KNOB = 2
    for name in ("double", "triple", "double"):
        yield f(X, name)
    KNOB = 3
    yield f(X, "double")
    globals()["COMING"] = 1
    yield f(X, "double")
    del globals()["COMING"]
    yield f(X, "double")


@whole
def globals_written_before(c):
    @c
    def f(x):
        global KNOB
        KNOB = KNOB + 1
        a = globals()["KNOB"]
        KNOB = KNOB + 1
        return x * a, globals().get("KNOB")

    global KNOB
    KNOB = 0
    for _ in range(3):
        yield f(X), KNOB


@scenario
def globals_taken_otherwise(c):
    @c
    def f(x, how):
        space = globals()
        if how == 0:
            space["KNOB"] = 7
        elif how == 1:
            return x + KNOB, len(space) > 5
        elif how == 2:
            space["FRESH"] = x.sum()
            del space["FRESH"]
        elif how == 3:
            return x, sorted(k for k in space if k.startswith("KN"))
        elif how == 4:
            space.update(KNOB=9)
        return x * KNOB, space["KNOB"], "FRESH" in space

    global KNOB
    for how in range(6):
        KNOB = 2
        yield f(X, how), KNOB
        yield attempt(f, Y, how), KNOB
    g = c(lambda x: globals()["NOWHERE"] + x)
    yield attempt(g, X)


@whole
def names_of_a_frame(c):
    @c
    def f(x, k=3):
        y = x * k
        found = sorted(vars()), dir(), vars()["y"] is y
        z = 1
        return y + z, found, dir()

    yield f(X)
    yield f(Y)


@scenario
def names_of_modules(c):
    made = types.ModuleType("made_for_a_test")
    made.a, made.b = 1, 2

    @c
    def f(x):
        return x, dir(math)[-1], "sin" in dir(torch), [n for n in dir(made) if not n.startswith("_")]

    yield f(X)
    yield f(X)
    made.c = 3
    yield f(X)
    del made.a
    yield f(X)
    made.__dir__ = lambda: ["z"]
    yield f(X)
    yield c(lambda x: (x, dir(ITEMS)[-1], "a" in dir(made)))(X)


TOOLS = types.ModuleType("tools")


@scenario
def the_dict_of_a_module_is_written_once(c):
    """By the call, and not while it is traced."""

    @c
    def f(x, how):
        space = TOOLS.__dict__ if how % 2 else vars(TOOLS)
        if how < 2:
            space["count"] += 1
        elif how < 4:
            del space["count"]
        else:
            space.update(count=how)
        return x * 2, "count" in space

    for how in (0, 1, 0, 4, 5, 1, 2, 3):
        TOOLS.count = 10
        yield f(X, how), vars(TOOLS).get("count")


@whole
def the_dict_of_a_module_read_by_name(c):
    @c
    def f(x, name):
        space = TOOLS.__dict__
        return x * space[name], name in space, space.get("nothing", 3), space is vars(TOOLS)

    TOOLS.one, TOOLS.two = 1, 2
    for name in ("one", "two", "one"):
        yield f(X, name)
    TOOLS.one = 5
    yield f(X, "one")
