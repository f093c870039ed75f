"""Triton kernels built side by side by workers, for a GPU that this machine need not have."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

import triton.runtime.driver  # noqa: F401
from triton.backends.compiler import GPUTarget

from braze.runtime.triton import triton_build, triton_load
from braze.runtime.triton.triton_build import Ahead, Builders, Job, build

KERNEL = """
import triton
import triton.language as tl


@triton.jit
def {name}(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * {factor}, mask=i < n)
"""
TARGET = "cuda", 90, 32


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(triton_build, "IDLE", 0.05)

    def job(factor, sizes=(100,), text=KERNEL):
        path = tmp_path / f"k{factor}.py"
        path.write_text(text.format(name=f"k{factor}", factor=factor))
        return Job(str(path), f"k{factor}", ("*bf16", "*fp32"), sizes, (("BLOCK", 128),), 4, 2)

    return job


def kept(folder):
    """What Triton has kept: a folder for each kernel."""
    return {path.parent.name for path in folder.rglob("*.cubin")}


def test_workers_build_and_say_what_went_wrong(kernels, tmp_path):
    jobs = [kernels(k) for k in range(3)]
    broken = kernels(9, text="def nothing(): pass\n")
    failed = build([*jobs, broken], Builders(TARGET, 2), seconds=100)
    assert set(failed) == {broken} and "k9" in failed[broken]
    assert len(kept(tmp_path / "triton")) == 3


def test_a_first_launch_finds_what_a_worker_built(kernels, tmp_path):
    """Sizes of the same kind (not one, no multiple of 16), with PyTorch's own types, as launches have them."""
    assert build([kernels(5), kernels(6), kernels(7)], Builders(TARGET, 1), seconds=100) == {}
    before = kept(tmp_path / "triton")
    launch = f"""
        import sys
        from pathlib import Path
        import torch
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver
        from braze.runtime.triton.triton_worker import Elsewhere, asked, load_module
        driver.set_active(Elsewhere(GPUTarget(*{TARGET})))
        kernel = load_module(Path({str(tmp_path / "k5.py")!r})).k5
        kernel.warmup(torch.bfloat16, torch.float32, 99, grid=(1,), num_warps=4, num_stages=2, BLOCK=128, **asked(()))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(launch)], check=True, env=os.environ)
    assert len(before) == 3 and kept(tmp_path / "triton") == before


def test_a_worker_loads_neither_pytorch_nor_braze_and_triton_cannot_either(kernels, tmp_path):
    """Triton 3.6 imports PyTorch, where it can, with the first kernel that it builds: seconds for each worker."""
    code = f"""
        import importlib, os, runpy, sys, io
        sys.stdin, sys.argv = io.StringIO({kernels(0).line()!r}), ["worker", str(os.getppid()), str(1 << 40), "cuda", "90", "32"]
        runpy.run_path({triton_build.triton_worker.__file__!r}, run_name="__main__")
        print("torch" in sys.modules, "braze" in sys.modules, file=sys.__stdout__)
        try:
            importlib.import_module("torch")
        except ModuleNotFoundError:
            print("none", file=sys.__stdout__)
    """
    ran = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ['"ready"', '""', "False", "False", "none"]


class Slow:
    """Workers that build nothing before they are told to."""

    def __init__(self, monkeypatch):
        self.go, self.asked = threading.Event(), []
        monkeypatch.setattr(triton_build, "_start", lambda target: None)
        monkeypatch.setattr(triton_build, "_end", lambda process: None)
        monkeypatch.setattr(triton_build, "_ask", self.ask)

    def ask(self, process, job):
        self.asked.append(job.name)
        self.go.wait(20)
        return triton_build.Said("")


@pytest.fixture
def slow(monkeypatch):
    made = Slow(monkeypatch)
    yield made
    made.go.set()
    for thread in threading.enumerate():
        if thread.name == "braze-triton":
            thread.join(20)


def test_who_launches_builds_what_nobody_began_and_waits_for_the_rest(kernels, slow):
    builders = Builders(TARGET, 1)
    first, *_, last = builders.submit([kernels(k) for k in range(4)])
    while not slow.asked:
        pass
    assert slow.asked == ["k3"], "the one that is wanted last"
    assert builders.take(first) and first.why != ""
    threading.Timer(0.2, slow.go.set).start()
    assert not builders.take(last) and last.why == ""
    assert not builders.take(last), "who asks again is told the same"


def test_a_worker_that_is_not_ready_keeps_nobody_waiting(kernels, slow, monkeypatch):
    monkeypatch.setattr(triton_build, "_start", lambda target: slow.go.wait(20))
    builders = Builders(TARGET, 2)
    tickets = builders.submit([kernels(k) for k in range(6)])
    assert all(builders.take(ticket) for ticket in tickets)
    assert not slow.asked


def test_workers_get_ready_for_a_graph_that_is_new(slow, monkeypatch, tmp_path):
    """None for a small graph, and none for a graph whose kernels a process has begun before."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))
    hired = []
    builders = Builders(TARGET, 4)
    monkeypatch.setattr(builders, "_hire", hired.append)
    monkeypatch.setattr(triton_load, "builders", lambda: builders)
    triton_load.expect("return x + 1", 3)
    assert hired == []
    for graph in ("a", "b", "a"):
        triton_load.expect(graph, 40)
    assert hired == [3, 3]
    triton_load.expect("c", 10_000)
    assert hired == [3, 3, 4]


def test_the_key_of_what_triton_keeps_is_read_while_its_driver_starts(monkeypatch):
    reading = threading.Event()

    def known_key():
        reading.set()
        return "key"

    class Driver:
        @property
        def active(self):
            assert reading.wait(20)
            return triton_build.triton_worker.Elsewhere(GPUTarget(*TARGET))

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_load.triton_key, "known_key", known_key)
    monkeypatch.setattr(sys.modules["triton.runtime.driver"], "driver", Driver())
    found, why = triton_load._started.__wrapped__()
    assert why == ""
    assert found._arguments == ("cuda", "90", "32", "key")


def test_a_gpu_that_triton_has_no_driver_for_is_not_usable(monkeypatch):
    class Driver:
        @property
        def active(self):
            raise OSError("libcuda.so cannot be found")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_load.triton_key, "known_key", str)
    monkeypatch.setattr(sys.modules["triton.runtime.driver"], "driver", Driver())
    triton_load._started.cache_clear()
    try:
        assert "libcuda.so cannot be found" in triton_load.unusable("sm_90")
        assert triton_load.builders() is None
    finally:
        triton_load._started.cache_clear()


def test_ranks_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(triton_build.os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(triton_build.os, "sysconf", lambda name: 1 << 20)  # memory for all of them
    assert triton_build._workers() == 7
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert triton_build._workers() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert triton_build._workers() == 7


def test_where_no_process_can_be_started_launches_build(kernels, slow, monkeypatch):
    def none_left(target):
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(triton_build, "_start", none_left)
    builders = Builders(TARGET, 2)
    assert all(builders.take(ticket) for ticket in builders.submit([kernels(k) for k in range(6)]))


def test_few_kernels_are_not_worth_a_worker(kernels, slow):
    builders = Builders(TARGET, 4)
    tickets = builders.submit([kernels(k) for k in range(triton_build.WORTH - 1)])
    assert all(builders.take(ticket) for ticket in tickets) and not slow.asked


def test_a_worker_that_dies_is_replaced(kernels, monkeypatch):
    jobs = [kernels(k) for k in range(4)]
    died = []

    def start(target):
        process = real(target)
        if not died:
            died.append(process)
            process.kill()
        return process

    real = triton_build._start
    monkeypatch.setattr(triton_build, "_start", start)
    assert build(jobs, Builders(TARGET, 1), seconds=100) == {}, "somebody else has ended it: all are built"
    assert len(died) == 1


ENDLESS = "import time\n\n\ntime.sleep(1000)\n"
#: one that wants more and more memory, which it does not touch; and one that does so where nobody raises an error
GREEDY = "held = []\nwhile True:\n    held.append(bytearray(1 << 28))\n"
DEADLY = "import os\n\nos.abort()\n"


def test_a_build_that_does_not_end_is_ended_and_nobody_else_tries_it(kernels, monkeypatch):
    """A process that built it itself would hang, too."""
    monkeypatch.setattr(triton_build, "LONGEST", 3.0)
    monkeypatch.setattr(triton_build.Builders.take, "__defaults__", (60.0,))
    builders = Builders(TARGET, 1)
    ahead = Ahead(builders, lambda path: path.with_suffix(".built"))
    jobs = [kernels(0), kernels(1), kernels(2, text=ENDLESS)]
    ahead.add([(job, ()) for job in jobs])
    while any(ticket.job is jobs[2] for ticket in builders._queue):
        time.sleep(0.01)
    assert "not built within 3 seconds" in ahead.before(jobs[2].path, (), ())
    assert all(ahead.before(job.path, (), ()) == "" for job in jobs[:2]), "the worker has a successor"


@pytest.mark.parametrize(
    ("text", "why"),
    [(GREEDY, "not built in 2 GB of memory"), (DEADLY, "its worker died")],
    ids=["without end", "the compiler dies"],
)
def test_a_build_that_takes_too_much_memory_or_kills_is_refused_and_nobody_else_tries_it(
    kernels, monkeypatch, text, why
):
    """A process that built it itself would take the memory from all others, or die."""
    monkeypatch.setattr(triton_build, "MOST", 2 << 30)
    builders = Builders(TARGET, 1)
    ahead = Ahead(builders, lambda path: path.with_suffix(".built"))
    jobs = [kernels(0), kernels(1), kernels(2, text=text)]
    ahead.add([(job, ()) for job in jobs])
    while any(ticket.job is jobs[2] for ticket in builders._queue):
        time.sleep(0.01)
    assert why in ahead.before(jobs[2].path, (), ())
    assert all(ahead.before(job.path, (), ()) == "" for job in jobs[:2]), "the worker has a successor"


def test_what_a_worker_starts_has_no_more_memory_than_it(kernels, monkeypatch):
    """ptxas, which is a process of its own."""
    text = """
        import subprocess, sys
        greedy = "held = [bytearray(1 << 28) for _ in range(64)]"
        ran = subprocess.run([sys.executable, "-c", greedy], capture_output=True, text=True)
        raise ValueError(ran.stderr.strip().splitlines()[-1])
    """
    job = kernels(3, text=textwrap.dedent(text))
    monkeypatch.setattr(triton_build, "MOST", 2 << 30)
    failed = build([job, kernels(0), kernels(1)], Builders(TARGET, 1), seconds=100)
    assert list(failed) == [job] and "not built in 2 GB" in failed[job]


def test_workers_end_with_their_parent_in_the_middle_of_a_build(kernels, tmp_path):
    path = tmp_path / "endless.py"
    path.write_text(f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n{ENDLESS}")
    parent = f"""
        import os, time
        from braze.runtime.triton.triton_build import Builders, Job
        builders = Builders({TARGET}, 1)
        builders.submit([Job({str(path)!r}, "k", (), (), (), 4, 2)] * 3)
        while not os.path.exists({str(tmp_path / "pid")!r}) or not open({str(tmp_path / "pid")!r}).read():
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(parent)], timeout=120)
    worker = Path("/proc") / (tmp_path / "pid").read_text()
    ends = time.monotonic() + 20
    while worker.exists() and (worker / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < ends, "it lives on"
        time.sleep(0.05)


def test_no_time(kernels):
    jobs = [kernels(k) for k in range(5)]
    assert set(build(jobs, Builders(TARGET, 1), seconds=0)) == set(jobs)


def test_kernels_of_varying_sizes_are_built_when_a_launch_tells_them(kernels, slow):
    slow.go.set()
    ahead = Ahead(Builders(TARGET, 1), lambda path: path.with_suffix(".built"))
    jobs = [kernels(k, sizes=()) for k in range(5)]
    ahead.add([(job, ("s0",)) for job in jobs])
    assert not slow.asked
    ahead.before(jobs[0].path, ("s0",), (48,))
    for job in jobs[1:]:
        ahead.before(job.path, ("s0",), (48,))
        ahead.after(job.path)
    assert "k0" not in slow.asked and set(slow.asked) <= {"k1", "k2", "k3", "k4"}
    again = Ahead(Builders(TARGET, 1), lambda path: path.with_suffix(".built"))
    slow.asked.clear()
    again.add([(job, ()) for job in jobs])
    assert not slow.asked, "all but one are known to be built"
