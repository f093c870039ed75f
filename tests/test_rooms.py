"""The page that leads a newcomer through the rooms names places that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = re.findall(r"`(braze/[\w/]+\.(?:py|c))` `([\w.]+)`", (ROOT / "docs" / "rooms.md").read_text())


def names(tree: ast.AST, within: str = "") -> set[str]:
    """Functions and classes, methods as Class.method."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found |= {within + node.name} | names(node, f"{within}{node.name}.")
    return found


@pytest.mark.parametrize(("file", "name"), PLACES, ids=[f"{file}-{name}" for file, name in PLACES])
def test_a_place_on_the_way_of_a_call_is_there(file: str, name: str):
    text = (ROOT / file).read_text()
    if file.endswith(".c"):
        assert re.search(rf"^{name}\(", text, re.M)
    else:
        assert name in names(ast.parse(text))


def test_the_page_has_a_way():
    assert len(PLACES) > 40
