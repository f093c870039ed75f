"""The program on each code's page provokes that code, and every break that capture can make is provoked by some test."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze
from braze.cli.explain import explain_code
from braze.support import trace
from braze.support.codes import CODES
from braze.support.errors import BrazeError
from braze.support.examples import EXAMPLES
from tests.helpers import logged

RUN = sorted(code for code in EXAMPLES if code > "BZ1000")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)  # an example raises it
    braze.set_stance("default")
    braze.reset()


def provoked(code: str) -> tuple[set[str], list[Any], str]:
    """(codes seen, break events, everything said) of a run of the code's example."""
    text, file = EXAMPLES[code].text, f"<example {code}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names = {"torch": torch, "braze": braze}
    with logged() as said, trace.collect() as events:
        try:
            exec(compile(text, file, "exec"), names)
        except BrazeError as error:
            said.append(str(error))
    breaks: list[Any] = [payload for kind, payload in events if kind == "break"]
    return {found.code for found in breaks}, breaks, "\n".join(said)


@pytest.mark.parametrize("code", RUN)
def test_an_example_provokes_its_code(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    codes, breaks, said = provoked(code)
    assert code in codes or code in said + capsys.readouterr().out
    for found in breaks:
        if found.code == code:
            assert found.origin.file == f"<example {code}>"
            assert "^" in found.origin.excerpt()
            assert found.reason
            assert found.hints


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("BZ1003", "if x.sum() > 0:"),
        ("BZ1004", "x.max().item()"),
        ("BZ1005", "return log(x + 1) * 2"),
        ("BZ1012", "raise ValueError("),
        ("BZ1017", "time.time()"),
    ],
)
def test_a_break_points_at_the_users_line(code: str, line: str) -> None:
    _, breaks, _ = provoked(code)
    (found,) = [b for b in breaks if b.code == code]
    assert line in found.origin.excerpt()


def test_a_break_inside_a_library_shows_the_users_line_first() -> None:
    def hook(module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        if out.sum() > 0:
            return out
        return out * 2

    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    model[0].register_forward_hook(hook)
    with trace.collect() as events:
        braze.compile(model, backend="eager")(torch.ones(3))
    (found,) = [p for kind, p in events if kind == "break"]
    assert found.origin.line == hook.__code__.co_firstlineno + 1
    assert all("torch/nn" not in place.file for place in found.trail)


@pytest.mark.parametrize("code", sorted(CODES))
def test_each_page_prints(code: str) -> None:
    page = explain_code(code)
    assert page.startswith(f"{code}: {CODES[code].title}\n")
    if code in EXAMPLES:
        assert "for example" in page


def test_examples_are_of_codes() -> None:
    assert set(EXAMPLES) <= set(CODES)
