"""The table of what has a meaning of its own while tracing."""

from __future__ import annotations

import importlib
import math
import pkgutil

import pytest

from braze.capture import features as room
from braze.capture.state.handlers import Handlers
from braze.capture.trace.tracer import features


def test_every_feature_is_listed():
    """A file of the room that enters rows, and that nothing loads, would be silently without effect."""
    listed = {module.__name__ for module in features()}
    names = [f"{room.__name__}.{found.name}" for found in pkgutil.iter_modules(room.__path__)]
    entering = {n for n in names if {"HANDLERS", "rule"} & vars(importlib.import_module(n)).keys()}
    assert entering <= listed
    assert listed <= set(names)


def test_a_callable_has_one_meaning():
    handlers = Handlers()
    handlers.call(math.sqrt)(lambda t, args, kwargs, tail: 1)
    with pytest.raises(KeyError, match="two rules"):
        handlers.call(math.sqrt)(lambda t, args, kwargs, tail: 2)


def test_a_function_of_the_programs_own_gets_no_row():
    """What the program puts in the place of a library's function means what it says."""
    handlers = Handlers()
    handlers.call(None, lambda x: x)(lambda t, args, kwargs, tail: 1)
    assert not handlers.calls
