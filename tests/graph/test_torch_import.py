"""The stand-in for Dynamo."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from braze.graph.torch_import import DYNAMO, LoadedParts


def test_a_part_that_came_with_the_whole_is_not_loaded_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{DYNAMO}.a_part"
    part, finder = ModuleType(name), LoadedParts()
    part.__spec__ = own = ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, part)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert finder.find_spec(f"{DYNAMO}.another_part") is None
    spec = finder.find_spec(name)
    assert spec is not None and finder not in sys.meta_path
    found = importlib.util.module_from_spec(spec)
    finder.exec_module(found)
    assert found is part and part.__spec__ is own
