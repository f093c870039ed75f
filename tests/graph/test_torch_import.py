"""The stand-in for Dynamo."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from torch.utils import _config_module

from braze.graph.private.torch_import import DYNAMO, IgnoredKeys, LoadedParts, load_settings


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


SETTINGS = """
from torch.utils._config_module import install_config_module
import sys

counts = 1
# @compile_ignored: nothing hangs on it
ignored = 2

install_config_module(sys.modules[__name__])
"""


@pytest.fixture
def settings(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "settings_of_a_test.py").write_text(SETTINGS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "settings_of_a_test"
    sys.modules.pop("settings_of_a_test", None)


def test_settings_are_hashed_as_pytorch_hashes_them_though_their_source_is_read_only_then(
    settings: str, monkeypatch
) -> None:
    find, reads = _config_module.get_assignments_with_compile_ignored_comments, []
    monkeypatch.setattr(
        _config_module, find.__name__, lambda module: reads.append(module.__name__) or find(module)
    )
    wanted = importlib.import_module(settings)
    assert wanted._compile_ignored_keys == {"ignored"} and reads == [settings]
    del sys.modules[settings]
    load_settings(settings)
    module = sys.modules[settings]
    assert isinstance(module._compile_ignored_keys, IgnoredKeys) and len(reads) == 1
    assert module.get_hash() == wanted.get_hash() and len(reads) == 2
    module.ignored = 3
    assert module.get_hash() == wanted.get_hash() and len(reads) == 2
    module.counts = 3
    assert module.get_hash() != wanted.get_hash()
