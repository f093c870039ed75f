"""Memory that ends, or a Ctrl-C, at any stage of a compile: the function runs on in eager, and compiles later."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze import pipeline
from braze.capture.dispatch import shared, variants
from braze.capture.dispatch.session import Session
from braze.capture.outside import reads
from braze.runtime.libraries import build
from braze.support import trace
from tests import processes
from tests.helpers import logged

CPU_MESSAGE = "[enforce fail at alloc_cpu.cpp:124] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
ERRORS = {
    "python": lambda: MemoryError("no memory"),
    "device": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "allocator": lambda: RuntimeError(CPU_MESSAGE),
}
#: (module or class, name) of a function of each stage, in order
STAGES: dict[str, tuple[Any, str]] = {
    "capture": (Session, "trace"),
    "capture, inside": (reads, "make_fake"),
    "aot": (pipeline, "partition_graph"),
    "lower": (pipeline, "lower_graph"),
    "schedule": (pipeline, "schedule_program"),
    "codegen": (pipeline, "generate_code"),
    "build": (build, "build_c"),
    "load": (pipeline, "load_code"),
    "residual": (variants, "build_residual"),
    "guards": (variants, "build_table"),
}
COUNT = itertools.count(1)
ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("fresh")


def failing(monkeypatch: pytest.MonkeyPatch, stage: str, error: Callable[[], BaseException]) -> None:
    """Let a stage do its work, and then run out of memory."""
    owner, name = STAGES[stage]
    whole = getattr(owner, name)

    def fail(*args: Any, **kwargs: Any) -> Any:
        whole(*args, **kwargs)
        raise error()

    monkeypatch.setattr(owner, name, fail)


def model() -> nn.Module:
    """One that no cache knows: its kernels are built."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Scale(1 + next(COUNT) / 7), nn.Linear(8, 3))


class Scale(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return torch.sin(x * self.by) * self.by


X = torch.linspace(-1, 1, 24).reshape(4, 6)


def step(call: Callable[..., torch.Tensor], m: nn.Module) -> list[torch.Tensor]:
    m.zero_grad()
    loss = call(X).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in m.parameters())]


def sane() -> None:
    """What compiling sets for the process is as it was."""
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert not getattr(shared.this_thread, "busy", False)
    assert type(torch.ones(2) + 1) is torch.Tensor
    assert torch.equal(braze.compile(lambda x: x * 3)(torch.ones(2)), torch.full((2,), 3.0))


@pytest.mark.parametrize(
    ("stage", "kind"),
    [*((stage, "python") for stage in STAGES), ("aot", "device"), ("capture, inside", "allocator")],
)
def test_a_model_trains_on_where_memory_ends_while_compiling(
    stage: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    m = model()
    eager = step(m, m)
    compiled = braze.compile(m, fullgraph=True)
    with logged() as said:
        with monkeypatch.context() as patch:
            failing(patch, stage, ERRORS[kind])
            for _ in range(3):
                torch.testing.assert_close(step(compiled, m), eager)
        assert sum("BZ6014" in message for message in said) == 1, said
        assert sum("ran out of memory after" in message for message in said) == 1
        sane()
        for _ in range(8):
            torch.testing.assert_close(step(compiled, m), eager)
    assert m[2].seen == 12.0
    assert compiled_variants(m) == 1


def compiled_variants(m: nn.Module) -> int:
    """How many variants the module's entry has by now."""
    return sum(len(s.variants) for s in variants.all_sites() if s.name == type(m).__name__)


@pytest.mark.parametrize("stage", ["lower", "build", "load"])
def test_memory_that_ends_in_the_backward(stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """It is compiled when it first runs: the gradients come all the same, and it is compiled later."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    m = model()
    eager = step(m, m)
    compiled = braze.compile(m, fullgraph=True)
    loss = compiled(X).square().sum()
    with logged() as said:
        with monkeypatch.context() as patch:
            failing(patch, stage, ERRORS["python"])
            m.zero_grad()
            loss.backward()
        torch.testing.assert_close([p.grad for p in m.parameters()], eager[1:])
        with trace.collect() as events:
            for _ in range(2):
                torch.testing.assert_close(step(compiled, m), eager)
    assert sum("BZ6014" in message for message in said) == 1
    names = [info.name for kind, info in events if kind == "compiled"]
    assert len(names) == 1 and names[0].endswith("_backward")
    sane()


@pytest.mark.parametrize("stage", ["capture", "capture, inside", "aot", "schedule", "load", "guards"])
def test_an_interrupt_while_compiling_reaches_the_user_and_leaves_no_trace(
    stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    m = model()
    eager = step(m, m)
    compiled = braze.compile(m, fullgraph=True)
    with monkeypatch.context() as patch:
        failing(patch, stage, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            compiled(X)
    sane()
    assert m[2].seen == 1.0
    with logged() as said:
        torch.testing.assert_close(step(compiled, m), eager)
    assert not said and compiled_variants(m) == 1


def test_tries_become_rare_while_memory_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def out_of_memory(gm: Any, inputs: Any) -> Any:
        tries.append(calls)
        raise MemoryError

    compiled = braze.compile(lambda x: x + 1, backend=out_of_memory)
    with logged() as said:
        for calls in range(16):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert tries == [0, 1, 3, 7, 15]
    assert len(said) == 1 and "uncompiled; the next try is at the next call" in said[0]


@pytest.mark.parametrize(
    "message",
    [
        "Failed to allocate a Tensor object",
        "Could not allocate list object!",
        "Could not allocate weak reference!",
        "cpp_function::cpp_function(): Could not allocate instance method object",
        "DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_errors_of_memory_of_pytorchs_that_have_no_type_are_known(message: str) -> None:
    def short(gm: Any, inputs: Any) -> Any:
        raise RuntimeError(message)

    with logged() as said:
        assert torch.equal(
            braze.compile(lambda x: x + 1, backend=short)(torch.ones(2)), torch.full((2,), 2.0)
        )
    assert "BZ6014" in said[0]


#: in a process of its own, whose modules are loaded when they are wanted
WITHOUT_FILES = """
import resource, sys
import torch, braze
from tests.end_to_end.test_out_of_memory import compiled_variants, model, step
from tests.fuzz.fault_kinds import free_descriptor
from tests.helpers import logged

m = model()
eager, compiled = step(m, m), braze.compile(m)
if sys.argv[1] == "compiler":  # what captures is there already
    braze.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
before = resource.getrlimit(resource.RLIMIT_NOFILE)
with logged() as said:
    resource.setrlimit(resource.RLIMIT_NOFILE, (free_descriptor(0), before[1]))
    found = step(compiled, m)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    torch.testing.assert_close(found, eager)
    for _ in range(4):
        torch.testing.assert_close(step(compiled, m), eager)
print([m.partition(":")[0] for m in said], "ran out of files to open" in said[0], compiled_variants(m))
"""


@pytest.mark.parametrize("missing", ["capture", "compiler"])
def test_a_model_trains_on_where_no_file_more_may_be_opened_while_compiling(
    missing: str, tmp_path: Path
) -> None:
    done = processes.run(WITHOUT_FILES, missing, folder=ROOT, BRAZE_CACHE_DIR=str(tmp_path))
    assert done.stdout.strip() == "['BZ6014'] True 1", done.stdout + done.stderr


def test_an_error_about_files_from_the_programs_own_backend_is_the_programs() -> None:
    def short(gm: Any, inputs: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(OSError, match="Too many open files"):
        braze.compile(lambda x: x + 1, backend=short)(torch.ones(2))


def test_an_error_of_another_kind_is_not_taken_for_one_of_memory() -> None:
    def broken(gm: Any, inputs: Any) -> Any:
        raise RuntimeError("memory is fine")

    with pytest.raises(RuntimeError, match="memory is fine"):
        braze.compile(lambda x: x + 1, backend=broken)(torch.ones(2))


def test_a_compiler_that_was_killed_had_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for message, status in (("cc1: out of memory allocating 65536 bytes", 1), ("", -9)):

        class Process:
            returncode = status

            def communicate(self, timeout: float | None = None, text: str = message) -> tuple[bytes, None]:
                return text.encode(), None

            def poll(self) -> int:
                return self.returncode

        monkeypatch.setattr(build, "_start", lambda command: Process())
        with pytest.raises(MemoryError, match="ran out of memory"):
            build._run([("cc", "x.c")], ["int x;"])


@pytest.mark.provokes("BZ9002")
@pytest.mark.unverified
def test_a_broken_invariant_of_a_stage_is_told_and_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from braze.support.errors import InternalError

    def broken(*args: Any) -> Any:
        raise InternalError("BZ9002", "malformed on purpose")

    m = model()
    eager = step(m, m)
    monkeypatch.setattr(pipeline, "schedule_program", broken)
    with logged() as said:
        torch.testing.assert_close(step(braze.compile(m), m), eager)
    assert any("BZ9002" in message and "as captured" in message for message in said)
    braze.reset()
    with pytest.raises(InternalError, match="BZ9002"):
        braze.compile(m, options={"verify": 1})(X)
