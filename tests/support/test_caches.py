"""What is remembered of code and classes is bounded, and goes with ``braze.reset``."""

from __future__ import annotations

import gc
import weakref

import torch

import braze
from braze.capture.dispatch import session
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


def test_of_what_is_entered_the_oldest_makes_room_and_is_told():
    gone: list[int] = []
    table = caches.Latest(2, gone.append)
    assert [table.enter(key, 10 * key) for key in (1, 2, 1, 3, 1)] == [True, True, False, True, True]
    assert gone == [10, 20]
    caches.forget()
    assert gone == [10, 20, 30, 10] and table.enter(3, 30)


def test_functions_of_broken_calls_that_made_room_for_others_are_captured_anew(monkeypatch):
    monkeypatch.setattr(session._answered, "_most", 4)
    functions = [eval("lambda x: x.sin() + 1") for _ in range(6)]

    def each(f, x):
        yield f(x)

    def outer(f, x):
        exec("pass")
        return list(each(f, x))

    captured: list[object] = []
    compiled = braze.compile(outer, backend=lambda gm, examples: captured.append(gm) or gm.forward)
    braze.reset()
    for f, graphs in zip((*functions, functions[5], functions[0]), (1, 2, 3, 4, 5, 6, 6, 7), strict=True):
        assert torch.equal(compiled(f, torch.ones(2))[0], torch.ones(2).sin() + 1)
        assert len(captured) == graphs


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


def test_reset_lets_go_of_the_classes_of_optimizers_that_are_gone():
    space: dict = {}
    exec("class Own(Adam):\n    pass", {"Adam": torch.optim.Adam}, space)
    kind = weakref.ref(space["Own"])
    optimizer = braze.compile_optimizer(space.pop("Own")([torch.ones(2, requires_grad=True)]))
    del optimizer
    braze.reset()
    gc.collect()
    assert kind() is None
