"""What the pages show is so: their programs run as written, their messages are told word by word, what they name is there."""

from __future__ import annotations

import linecache
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.cli.main import main
from braze.support.errors import BrazeError
from tests.helpers import logged

ROOT = Path(__file__).parent.parent
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text()
    for page in sorted(ROOT.rglob("*.md"))
    if ".venv" not in page.parts
}
FILES = [path for top in ("braze", "tests", "benchmarks", "docs") for path in (ROOT / top).rglob("*.*")] + [
    *ROOT.glob("*.*")
]
PROGRAMS = {
    name: re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE) for name, text in PAGES.items()
}
#: pages whose programs a test of their own runs, since it asks more of them
ELSEWHERE = {
    "docs/backends.md": "tests/test_backends_page.py",
    "docs/serving.md": "tests/serving/test_page.py",
}
HERE = [name for name in PROGRAMS if PROGRAMS[name] and name not in {*ELSEWHERE, "docs/codes.md"}]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    braze.set_stance("default")
    braze.reset()


def ran(name: str) -> dict[str, Any]:
    """The names after a page's programs have run, from top to bottom, as a reader would paste them."""
    names: dict[str, Any] = {"__name__": "page"}
    for number, program in enumerate(PROGRAMS[name]):
        file = f"<{name} {number}>"
        linecache.cache[file] = (len(program), None, program.splitlines(True), file)
        exec(compile(program, file, "exec"), names)
    return names


@pytest.mark.parametrize("name", HERE)
def test_the_programs_of_a_page_run_as_they_stand(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    ran(name)
    if name == "README.md":
        assert "f: 1 graph, 0 graph breaks, 2 operations" in capsys.readouterr().out


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_pages_have_a_test_that_runs_them(name: str) -> None:
    assert PROGRAMS[name]
    assert Path(name).name in (ROOT / ELSEWHERE[name]).read_text()


def test_a_size_that_breaks_a_rule_is_told_as_the_page_says() -> None:
    shown = re.search(r"```\n(BZ0021: .*?)```", PAGES["docs/dynamic_shapes.md"], re.DOTALL)
    model, tokens = ran("docs/dynamic_shapes.md")["model"], torch.zeros(2, 1001, dtype=torch.int64)
    with pytest.raises(BrazeError, match="BZ0021") as told:
        model(tokens, tokens)
    assert shown
    assert str(told.value).strip() == shown[1].strip()


def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    return y.relu()


def test_a_compile_for_another_size_is_told_as_the_page_says(caplog: pytest.LogCaptureFixture) -> None:
    """But for the file, the line's number and the seconds."""
    shown = re.search(r"```\n(\[braze.recompiles\] .*?)```", PAGES["docs/recompilation.md"], re.DOTALL)
    compiled, w = braze.compile(f), torch.randn(3, 3)
    with caplog.at_level(logging.INFO, "braze.recompiles"), logged() as said:
        compiled(torch.randn(4, 3), w), compiled(torch.randn(7, 3), w)
    assert shown
    assert plain("\n".join(said)) == plain(shown[1])


def plain(text: str) -> list[str]:
    text = re.sub(r"[^\s(]+\.py:\d+", "FILE", text).replace("[braze.recompiles] ", "")
    return [line.strip() for line in re.sub(r"\d+\.\d+ s", "SECONDS", text).strip().splitlines()]


#: what stands in a page as words of a shell or of a program
CODE = {
    name: "\n".join(
        re.findall(r"^```\n(.*?)^```", text, re.DOTALL | re.MULTILINE) + re.findall(r"`([^`\n]+)`", text)
    )
    for name, text in PAGES.items()
}
LINKS = sorted(
    {(name, link) for name, text in PAGES.items() for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)}
)


def test_commands_and_their_options_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in CODE.items():
        for command, rest in re.findall(r"^braze ([a-z-]+)(.*)", text, re.MULTILINE):
            with pytest.raises(SystemExit) as end:
                main([command, "--help"])
            assert end.value.code == 0, f"{name}: braze {command}"
            options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
            assert options.issuperset(re.findall(r"(?<!\S)--[a-z-]+", rest.split("#")[0])), name


#: files of Python's, and of models
OF_OTHERS = {"copy.py", "config.json", "generation_config.json", "tokenizer.json"}


#: files by their names alone, and by as much before these as a page may say
ENDS = {"/".join(path.parts[i:]) for path in FILES for i in range(len(path.parts))}


@pytest.mark.parametrize("name", PAGES)
def test_a_file_that_a_page_names_is_there(name: str) -> None:
    named = set(re.findall(r"`([\w/.-]+\.(?:py|c|h|toml|txt|json))`", PAGES[name])) - OF_OTHERS
    assert not sorted(named - ENDS)


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name, text in PAGES.items():
        assert targets.issuperset(
            re.findall(r"(?:^|`)make ([a-z-]+)(?=`|  | #| [A-Z])", text, re.MULTILINE)
        ), name


@pytest.mark.parametrize(("page", "link"), LINKS)
def test_a_link_leads_somewhere(page: str, link: str) -> None:
    assert (ROOT / page).parent.joinpath(link).exists()
