"""Wrong arguments fail as in eager code; a poor machine makes braze slower, and it says so once with what to do."""

from __future__ import annotations

import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import braze
from braze.capture.facts import bytecode
from braze.support.errors import UserError
from tests import processes
from tests.helpers import logged

ROOT = Path(__file__).parent.parent.parent


pytestmark = pytest.mark.usefixtures("fresh")


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) + 1


def raised(call: Callable[..., Any], args: tuple[Any, ...]) -> BaseException:
    with torch.no_grad():
        try:
            call(*args)
        except Exception as error:
            return error
    pytest.fail("nothing was raised")


GOOD = (torch.ones(2, 3), torch.ones(3, 5))
BAD = {
    "shapes": (torch.ones(2, 3), torch.ones(4, 5)),
    "dimensions": (torch.ones(2, 3), torch.ones(2, 2, 2, 2)),
    "dtypes": (torch.ones(2, 3), torch.ones(3, 5, dtype=torch.float64)),
    "no tensor": (torch.ones(2, 3), "weights"),
    "None": (None, torch.ones(3, 5)),
    "too few": (torch.ones(2, 3),),
    "too many": (*GOOD, 3),
}


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_wrong_arguments_raise_what_eager_raises(case: str, warm: bool, backend: str) -> None:
    compiled = braze.compile(layer, backend=backend)
    if warm:
        with torch.no_grad():
            compiled(*GOOD)
    theirs, ours = raised(layer, BAD[case]), raised(compiled, BAD[case])
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)
    with torch.no_grad():
        assert torch.equal(compiled(*GOOD), layer(*GOOD))


@pytest.mark.parametrize("wrong", ["input", "target", "nan"])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("inside", ["function", "region", "transform"])
def test_probabilities_beyond_one(wrong: str, grad: bool, inside: str) -> None:
    """A sigmoid that was forgotten: eager looks at each element, and so do kernels."""
    F = torch.nn.functional

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if inside == "region":
            return checkpoint(F.binary_cross_entropy, x * 1, y, use_reentrant=False)
        return F.binary_cross_entropy(x * 1, y)

    call = torch.func.grad(loss) if inside == "transform" else loss
    compiled = braze.compile(call)
    good = torch.linspace(0, 1, 5, requires_grad=grad), torch.linspace(1, 0, 5)
    bad = list(good)
    bad[wrong == "target"] = torch.tensor(
        [float("nan") if wrong == "nan" else 1.5, 0, 0, 0, 0]
    ).requires_grad_(grad)

    def message(call: Callable[..., Any]) -> str:
        """Without the error itself, whose traceback holds a checkpoint's hooks in place."""
        try:
            call(*bad)
        except RuntimeError as error:
            return str(error)
        return ""

    with torch.set_grad_enabled(grad):
        torch.testing.assert_close(compiled(*good), call(*good))
        theirs = message(call)
        assert "should be between 0 and 1" in theirs
        assert message(compiled) == theirs


def test_a_wrong_device_raises_what_eager_raises() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, y]) + y

    args = torch.ones(2), torch.ones(2, device="meta")
    compiled = braze.compile(add, backend="eager")
    assert type(raised(compiled, args)) is type(raised(add, args))


def test_a_wrong_shape_prints_nothing_of_torchs_own(capfd: pytest.CaptureFixture[str]) -> None:
    raised(braze.compile(layer), BAD["shapes"])
    assert capfd.readouterr() == ("", "")


class Mine(Exception):
    pass


def helper(x: torch.Tensor) -> torch.Tensor:
    raise Mine("wrong in my own way")


def calls_helper(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return helper(y) * 2


def test_an_exception_of_the_users_code_is_itself_with_its_traceback() -> None:
    error = raised(braze.compile(calls_helper, backend="eager"), (torch.ones(2),))
    assert type(error) is Mine and error.args == ("wrong in my own way",)
    own = [frame.name for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
    assert own[-2:] == ["calls_helper", "helper"]
    assert error.__cause__ is None and error.__context__ is None


def test_an_unknown_python_runs_everything_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode, "VERSION", (3, 99))
    first, second = braze.compile(layer), braze.compile(lambda x: x + 1)
    with logged() as said, torch.no_grad():
        assert torch.equal(first(*GOOD), layer(*GOOD)) and torch.equal(second(GOOD[0]), GOOD[0] + 1)
    (message,) = said
    assert "BZ6003" in message and "Python 3.99" in message and "3.11 to 3.13" in message
    with pytest.raises(UserError, match="BZ6003"):
        braze.compile(layer, fullgraph=True)(*GOOD)


# -- a poor machine ---------------------------------------------------------------------------------

PROGRAM = """
import torch, braze

@braze.compile
def f(x): return torch.softmax(x * 2, -1)

@braze.compile
def g(x): return (x + 1).relu()

with torch.inference_mode():
    x = torch.rand(8, 8)
    for _ in range(2):
        assert torch.allclose(f(x), torch.softmax(x * 2, -1)) and torch.equal(g(x), (x + 1).relu())
print("right")
"""


def run(program: str = PROGRAM, **environment: str) -> str:
    """What a process that computes right says on stderr."""
    done = processes.run(program, folder=ROOT, **environment)
    assert done.stdout == "right\n", done.stderr
    return done.stderr


def test_without_a_compiler(tmp_path: Path) -> None:
    said = run(PATH=str(tmp_path), CC="", BRAZE_CACHE_DIR=str(tmp_path / "cache"))
    assert said.count("BZ5001") == 1 and "no C compiler found" in said and "apt install gcc" in said


def test_with_a_compiler_that_does_not_work(tmp_path: Path) -> None:
    broken = tmp_path / "gcc"
    broken.write_text("#!/bin/sh\necho cannot execute cc1 >&2\nexit 1\n")
    broken.chmod(0o755)
    said = run(CC=str(broken), BRAZE_CACHE_DIR=str(tmp_path / "cache"))
    assert said.count("BZ5001") == 1 and "cannot build even an empty file" in said


def test_with_a_cache_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = run(BRAZE_CACHE_DIR=str(tmp_path / "file"))
    assert said.count("BZ6010") == 1 and "Set BRAZE_CACHE_DIR" in said


def test_with_a_full_cache_folder(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs rights")
    try:
        said = run(BRAZE_CACHE_DIR=str(folder))
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert said.count("BZ6010") == 1 and "No space left" in said and "Set BRAZE_CACHE_DIR" in said


def test_with_damaged_cache_entries(tmp_path: Path) -> None:
    assert run(BRAZE_CACHE_DIR=str(tmp_path)) == ""
    entries = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".bin", ".so")]
    assert entries
    whole = {path: path.stat().st_size for path in entries}
    for path in entries:
        path.write_bytes(path.read_bytes()[:40])
    said = run(BRAZE_CACHE_DIR=str(tmp_path))
    assert "BZ6011" in said and "rebuilt" in said
    assert {path: path.stat().st_size for path in entries} == whole


def test_a_script_with_two_breaks_names_both_lines(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import time, torch, braze\n\n@braze.compile\ndef f(x):\n    x = x + 1\n    time.time()\n    x = x * 2\n"
        "    if x.sum() > 0:\n        return x\n    return -x\n\nf(torch.ones(3))\n"
    )
    as_a_command = "import runpy; runpy.run_module('braze', run_name='__main__', alter_sys=True)"
    done = processes.run(as_a_command, "explain", str(script), folder=ROOT)
    assert done.returncode == 0
    assert "script.py:6 in f" in done.stdout and "script.py:8 in f" in done.stdout
    assert "2 graph breaks" in done.stdout and "cost:" in done.stdout


@pytest.mark.provokes("BZ6013")
def test_a_graph_that_fails_where_the_program_goes_on_is_told():
    """The program handles what its data raise: eager's answer, and a word about what such a call costs."""

    def chosen(x, i):
        try:
            return x[i] * 2
        except IndexError:
            return x * 0

    x = torch.randn(4)
    compiled = braze.compile(chosen)
    with logged() as told:
        assert torch.equal(compiled(x, torch.tensor([1, 2])), x[1:3] * 2)
        assert not [m for m in told if "BZ6013" in m]
        for _ in range(3):
            assert torch.equal(compiled(x, torch.tensor([1, 9])), x * 0)
    assert len([m for m in told if m.startswith("BZ6013") and "IndexError" in m]) == 1
