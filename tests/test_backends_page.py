"""The programs of docs/backends.md run, in order, in one namespace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import braze
from braze.backends import registry

PAGE = Path(__file__).parent.parent / "docs" / "backends.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def _backends_restored(monkeypatch):
    monkeypatch.setattr(registry, "_backends", dict(registry._backends))


@pytest.mark.usefixtures("_backends_restored")
def test_the_programs_run(capsys):
    assert len(PROGRAMS) == 6
    torch.manual_seed(0)
    names: dict = {"__name__": "backends_page"}
    for program in PROGRAMS:
        exec(compile(program, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert re.search(r"kept \d+ bytes", printed)
    assert "gelu" in printed


def test_every_public_name_of_the_page_exists():
    for module, name in set(re.findall(r"\b(aot|braze)\.([a-z_]+)\b", PAGE.read_text())):
        owner = braze if module == "braze" else braze.aot
        if name not in ("aot", "decomp"):
            assert hasattr(owner, name), f"{module}.{name}"
