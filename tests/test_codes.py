"""Every code that the package uses is documented, and the page of codes is the table's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from braze.support.codes import CODES
from docs.make_codes import TITLES, text

ROOT = Path(__file__).parent.parent


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "codes.md").read_text() == text(), "run make docs"


def used_codes() -> dict[str, str]:
    """Codes written in the package's sources, each with a file that has it."""
    found: dict[str, str] = {}
    for path in (ROOT / "braze").rglob("*"):
        if path.suffix in (".py", ".c", ".h") and path.name != "codes.py":
            for code in re.findall(r"""["'(\[ ](BZ\d{4})\b""", path.read_text()):
                found.setdefault(code, str(path.relative_to(ROOT)))
    return found


def test_every_code_in_use_is_documented():
    examples = {"BZ1012", "BZ9999"}  # of docstrings and help texts
    missing = {
        code: path for code, path in used_codes().items() if code not in CODES and code not in examples
    }
    assert not missing, missing


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_says_what_why_and_what_to_do(code):
    found = CODES[code]
    assert re.fullmatch(r"BZ\d{4}", code)
    assert code[:4] in TITLES
    assert found.title
    assert not found.title.endswith(".")
    assert found.cause.endswith(".")
    assert found.remedy.rstrip("'`)").endswith((".", "]"))
