"""What is remembered of code and classes is bounded, and goes with ``braze.reset``."""

from __future__ import annotations

import gc
import weakref

import torch

import braze
from braze.capture.python.opcodes import decoded
from braze.support import caches


def test_a_table_keeps_the_last_results_and_is_emptied():
    calls = []

    @caches.remembered(2)
    def double(n: int) -> int:
        calls.append(n)
        return 2 * n

    assert [double(n) for n in (1, 2, 1, 3, 1, 2)] == [2, 4, 2, 6, 2, 4]
    assert calls == [1, 2, 3, 2]
    caches.forget()
    assert double(2) == 4 and calls == [1, 2, 3, 2, 2]


def test_reset_lets_go_of_the_code_of_functions_that_are_gone():
    space: dict = {}
    exec("def f(x):\n    y = x + 1\n    return y * 2", space)
    code = weakref.ref(space["f"].__code__)
    compiled = braze.compile(space.pop("f"), backend="eager")
    compiled(torch.ones(2))
    assert decoded.cache_info().currsize
    del compiled
    braze.reset()
    gc.collect()
    assert not decoded.cache_info().currsize
    assert code() is None


def test_reset_lets_go_of_the_classes_of_objects_that_are_gone():
    space: dict = {}
    exec("class Point:\n    def __init__(self):\n        self.x = 2", space)
    kind = weakref.ref(space["Point"])
    compiled = braze.compile(lambda x, p: x * p.x, backend="eager")
    compiled(torch.ones(2), space.pop("Point")())
    del compiled
    braze.reset()
    gc.collect()
    assert kind() is None
