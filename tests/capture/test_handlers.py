"""The table of what has a meaning of its own while tracing."""

from __future__ import annotations

import importlib
import math
import pkgutil

import pytest
import torch

import braze
from braze.capture import features as room
from braze.capture.facts.records import Constant, Effect, EffectKind
from braze.capture.state.handlers import HANDLERS, Feature, Handlers
from braze.capture.trace.tracer import features


def test_every_feature_is_listed():
    """A feature of a file of the room that nobody hands in would be silently without effect."""
    names = [f"{room.__name__}.{found.name}" for found in pkgutil.iter_modules(room.__path__)]
    found = [vars(importlib.import_module(name)).get("FEATURE") for name in names]
    assert [f for f in found if f is not None and f not in features()] == []
    assert len(set(map(id, features()))) == len(features()) > sum(f is not None for f in found) > 10


def test_a_feature_takes_part_from_when_it_is_handed_in():
    feature = Feature()
    feature.call(math.cosh)(math.sinh)
    feature.fields[frozenset] = math.tan
    feature.finish.append(math.sin)
    feature.nodes.append(math.cos)
    assert math.sinh not in HANDLERS.calls.values()
    handlers = Handlers(feature)
    assert (handlers.calls, handlers.fields) == ({math.cosh: math.sinh}, {frozenset: math.tan})
    assert (handlers.finish, handlers.nodes, handlers.effects) == ([math.sin], [math.cos], [])


def test_a_feature_says_what_is_done_when_the_graph_has_run(monkeypatch):
    """Its effects come in their place among the others', at each call; its checks are asked when all of them are known."""
    told: list[str] = []
    feature = Feature()

    def effects(t, table):
        return [Effect(EffectKind.CALL, (table.add(Constant(told.append)), table.id_of("done")))]

    feature.effects.append(effects)
    feature.checks.append(lambda t, table: told.append("checked"))
    monkeypatch.setattr(HANDLERS, "effects", [*HANDLERS.effects, *feature.effects])
    monkeypatch.setattr(HANDLERS, "checks", [*HANDLERS.checks, *feature.checks])
    compiled = braze.compile(lambda x: x + 1, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert told == ["checked", "done", "done"]


def test_a_callable_has_one_meaning():
    one, other = Feature(), Feature()
    one.call(math.sqrt)(lambda t, args, kwargs, tail: 1)
    other.call(math.sqrt)(lambda t, args, kwargs, tail: 2)
    with pytest.raises(KeyError, match="two rules"):
        Handlers(one, other)
    one.methods[str, "x"] = other.methods[str, "x"] = math.sin
    with pytest.raises(KeyError, match="two rules"):
        Handlers(one).enter(other)


def test_what_is_said_of_many_yields_to_what_is_said_of_one():
    one, many = Feature(), Feature()
    one.call(math.sqrt)(math.sin)
    many.call(math.sqrt, math.cbrt, unless_known=True)(math.cos)
    assert Handlers(one, many).calls == {math.sqrt: math.sin, math.cbrt: math.cos}


def test_a_function_of_the_programs_own_gets_no_row():
    """What the program puts in the place of a library's function means what it says."""
    feature = Feature()
    feature.call(None, lambda x: x)(lambda t, args, kwargs, tail: 1)
    assert not Handlers(feature).calls
