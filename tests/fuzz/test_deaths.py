"""Deaths where memory ends: PyTorch's own are told from braze's and from Python's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz import deaths, runner
from tests.fuzz.runner import Asked, Tally

SITE = "/usr/lib/python3/site-packages"
TOLD = f"""died of SIGABRT
[braze.recompiles] what was printed before
terminate called after throwing an instance of 'python_error'
  what():
SIGABRT(6), PID: 16920, Thread 16921:
frame #0: c10::FatalSignalHandler::stacktraceSignalHandler(bool) + 0x8f (0x7f45b6184d4f in {SITE}/torch/lib/libc10.so)
frame #1: <unknown function> + 0x3c050 (0x7f45b76f5050 in /lib/libc.so.6)
frame #2: <unknown function> + 0xd307 (0x7f45b5cb6307 in {SITE}/braze/native/_native.cpython-312-x86_64-linux-gnu.so)
SIGABRT(6), PID: 16920, Thread 16920:
 frame #0: c10::FatalSignalHandler::stacktraceSignalHandler(bool) + 0x8f (0x7f45b6184d4f in {SITE}/torch/lib/libc10.so)
frame #1: c10::FatalSignalHandler::fatalSignalHandler(int, siginfo_t*) + 0x2da (0x7f45b618539a in {SITE}/torch/lib/libc10.so)
frame #2: <unknown function> + 0x3c050 (0x7f45b76f5050 in /lib/x86_64-linux-gnu/libc.so.6)
frame #5: abort + 0xd3 (0x7f45b76df472 in /lib/x86_64-linux-gnu/libc.so.6)
frame #6: <unknown function> + 0x9d919 (0x7f458c09d919 in /lib/x86_64-linux-gnu/libstdc++.so.6)
frame #10: <unknown function> + 0x16934 (0x7f45b667e934 in /lib/x86_64-linux-gnu/libgcc_s.so.1)
{{}}
<omitting python frames>
frame #30: <unknown function> + 0xd307 (0x7f45b5cb6307 in {SITE}/braze/native/_native.cpython-312-x86_64-linux-gnu.so)
"""
PYTORCHS = TOLD.format(
    f"frame #12: at::_ops::t::call(at::Tensor const&) + 0x2 (0x7f451f9cb7cf in {SITE}/torch/lib/libtorch_cpu.so)"
)
OURS = TOLD.format(
    f"frame #12: <unknown function> + 0xd307 (0x7f4 in {SITE}/braze/native/_native.cpython-312-x86_64-linux-gnu.so)"
)
PYTHONS = TOLD.format("<omitting python frames>")


def test_a_death_by_cpp_of_pytorchs_is_its_own_where_memory_ended() -> None:
    assert deaths.innermost(PYTORCHS).endswith("libtorch_cpu.so")
    assert deaths.is_pytorchs(("memory",), PYTORCHS)
    assert not deaths.is_pytorchs(("late",), PYTORCHS)


@pytest.mark.parametrize("said", [OURS, PYTHONS, "died of SIGABRT\nterminate called after throwing", ""])
def test_no_other_death_is(said: str) -> None:
    assert not deaths.is_pytorchs(("memory",), said)


def test_a_fault_of_memory_in_pytorchs_kernels_may_be_ours() -> None:
    """Only what binds Python to it writes to objects that were not made."""
    fault = PYTORCHS.replace("SIGABRT", "SIGSEGV").replace(
        "terminate called after throwing an instance of", ""
    )
    assert not deaths.is_pytorchs(("memory",), fault)
    assert deaths.is_pytorchs(("memory",), fault.replace("libtorch_cpu", "libtorch_python"))


def test_a_kernel_that_dies_in_eager_may_die_compiled() -> None:
    said = PYTORCHS.replace("SIGABRT", "SIGSEGV").replace("at::_ops::t::call(", deaths.DIES_IN_EAGER)
    assert deaths.is_pytorchs((), said)
    assert not deaths.is_pytorchs((), said.replace("SIGSEGV", "SIGABRT"))


def test_a_process_tells_in_which_frames_it_died() -> None:
    text = "import os, torch; from tests.fuzz import deaths; deaths.tell(); os.abort()"
    died = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert died.returncode == -6
    assert deaths.innermost(died.stderr) not in ("", None), died.stderr
    assert not deaths.is_pytorchs(("memory",), f"died of SIGABRT\n{died.stderr}")


@pytest.mark.parametrize(("said", "failed"), [(PYTORCHS, 0), (OURS, 1)])
def test_programs_that_die_in_pytorch_are_counted_apart(
    said: str, failed: int, tmp_path, monkeypatch
) -> None:
    class Dead:
        """A process that dies of its first program."""

        programs = 0

        def __init__(self) -> None:
            self.lines = [{"begin": 7}, {"made": ["memory"]}]

        def tell(self, *words: object) -> None:
            assert words == ("run", 7, 20)

        def heard(self, seconds: float) -> dict[str, object] | None:
            return self.lines.pop(0) if self.lines else None

        def end(self) -> str:
            return said

    monkeypatch.setattr(runner, "write_file", lambda *asked: True)
    tally = Tally()
    asked = Asked("faults", 7, 60, 1, tmp_path)
    assert runner.run_seeds(asked, tally, Dead(), range(7, 27)) == (range(8, 27), False)  # type: ignore[arg-type]
    assert (tally.programs, len(tally.found), tally.tags["memory"]) == (1, failed, 1)
    assert tally.tags["died in PyTorch"] == 1 - failed
