"""BRAZE_LOGS has the grammar of TORCH_LOGS; BRAZE_DUMP writes numbered files."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from braze.support import log
from braze.support.errors import UserError
from tests import processes

PROGRAM = """
import torch, braze

@braze.compile(backend="eager")
def f(x):
    x = x + 1
    braze.graph_break()
    return x * 2

f(torch.ones(3))
"""


def run(program: str = PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    return processes.run(program, **environment)


@pytest.fixture(autouse=True)
def _levels():
    """Levels as they were."""
    before = {name: log.logger(name).level for name in log.SUBJECTS}
    yield
    for name, level in before.items():
        log.logger(name).setLevel(level)


def test_names_turn_subjects_on_up_and_off():
    log.configure("guards,+graph_breaks,-kernels")
    assert log.logger("guards").level == logging.INFO
    assert log.logger("graph_breaks").level == logging.DEBUG
    assert log.logger("kernels").level == logging.CRITICAL


def test_a_module_is_heard_whatever_the_subject():
    heard = run(BRAZE_LOGS="braze.capture.dispatch.announce").stderr
    assert "[braze.guards]" in heard and "[braze.graph_breaks]" in heard
    assert "[braze.bytecode]" not in heard  # logged in capture.residual
    assert "[braze.bytecode]" in run(BRAZE_LOGS="braze.capture").stderr
    both = run(BRAZE_LOGS="bytecode,braze.capture,-braze.capture.dispatch.announce").stderr
    assert "[braze.bytecode]" in both and "[braze.guards]" not in both


def test_an_unknown_module_is_refused():
    with pytest.raises(UserError):
        log.configure("+braze.capture.nothing")


def test_all_means_every_subject():
    log.configure("+all,-memory")
    assert {n for n in log.SUBJECTS if log.logger(n).level == logging.DEBUG} == set(log.SUBJECTS) - {"memory"}


def test_an_unknown_name_is_refused_with_a_near_miss():
    with pytest.raises(UserError) as refused:
        log.configure("gaurds")
    assert refused.value.code == "BZ0004"
    assert refused.value.hints == ("did you mean 'guards'?",)


def test_help_lists_the_names():
    err = run("import braze; braze.compile", BRAZE_LOGS="help").stderr
    for name in log.SUBJECTS:
        assert name in err


def test_quiet_without_the_variable():
    assert run().stderr == ""


def test_graph_breaks_are_logged_with_their_line():
    err = run(BRAZE_LOGS="graph_breaks").stderr
    assert "[braze.graph_breaks]" in err
    assert ":7" in err


def test_guards_are_logged():
    assert "[braze.guards]" in run(BRAZE_LOGS="guards").stderr


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files that a process with BRAZE_DUMP leaves, by their names."""
    folder = tmp_path_factory.mktemp("dumped")
    assert run(BRAZE_DUMP=str(folder)).returncode == 0
    return sorted(folder.iterdir())


def test_dump_writes_numbered_files(dumped: list[Path]):
    assert dumped
    assert [int(path.name.split("_")[0]) for path in dumped] == list(range(1, len(dumped) + 1))


def test_dumped_python_compiles(dumped: list[Path]):
    sources = [path for path in dumped if path.suffix == ".py"]
    assert sources
    for path in sources:
        compile(path.read_text(), str(path), "exec")


def test_what_is_told_goes_to_stderr_as_it_is_by_then(monkeypatch, capsys):
    """A program that puts another stream in its place, as notebooks and test runners do, is told there, and never by a closed one."""
    root = logging.getLogger("braze")
    monkeypatch.setattr(root, "handlers", [])
    first = io.StringIO()
    with contextlib.redirect_stderr(first):
        log.configure("")
    first.close()
    log.warn("told")
    assert capsys.readouterr().err == "[braze.capture] told\n"
    monkeypatch.setattr(sys, "stderr", None)  # a program without a console
    log.warn("nobody listens")
