"""The page that leads a newcomer through the rooms names places that are there."""

from __future__ import annotations

import ast
import re
import tomllib
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


def test_a_lower_row_of_the_house_never_imports_a_higher_one():
    """The README's house has all layers, in an order to which the table of who may import whom keeps; stages are told by their work."""
    house = re.findall(r"^├── (.*?)(?:  |$)|^└── (\w+)/", (ROOT / "README.md").read_text(), re.M)
    rows = [re.findall(r"(\w+)(?:\.py|/)", first or f"{last}/") for first, last in house]
    row_of = {layer: row for row, layers in enumerate(rows) for layer in layers}
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["braze"]
    assert row_of.keys() == table["layers"].keys() - {"__init__", "__main__"}
    row_of |= dict.fromkeys(table["stages"], row_of["capture"])
    for layer, row in row_of.items():
        for group in table["layers"][layer]:
            for other in table["base"] if group == "base" else [group]:
                assert other == layer or row_of[other] >= row, f"{layer} imports {other}"
