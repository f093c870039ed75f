"""The programs of docs/serving.md run, its tests exist, and its table names every field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braze import serving
from braze.serving.policy.fields import FIELDS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "serving.md").read_text()


@pytest.mark.usefixtures("simulated")
def test_the_programs_run(capsys):
    names: dict = {"__name__": "serving_page"}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(program, "docs/serving.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "3 tokens replay FULL" in printed
    assert names["y"].shape == (3, 100)
    assert list(map(len, names["tokens"])) == [5, 5]
    assert names["runner"].stats()["steps_full"] > 3


def test_the_tests_of_the_table_exist():
    found = re.findall(r"`([a-z_/]+\.py)(?:::(\w+))?`", "".join(PAGE.split("its test, in")[1:]))
    assert len(found) > 20
    for file, name in found:
        path = ROOT / "tests" / "serving" / file
        if not path.exists():  # a file of the package
            assert (ROOT / "braze" / "serving" / file).exists(), file
            continue
        assert not name or f"def {name}(" in path.read_text(), f"{file}::{name}"


def test_every_field_is_on_the_page():
    for field in FIELDS:
        assert f"`{field.name}`" in PAGE, field.name


def test_every_public_name_can_be_fetched():
    for name in serving.__all__:
        assert getattr(serving, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Dispacher'"):
        serving.Dispacher
