"""A few faults of each kind, where they have done harm: the process died, a mode stayed, braze blamed itself."""

from __future__ import annotations

import gc
import os
import signal
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.fx.immutable_collections import immutable_list

import braze
from braze.aot.trace.recorder import Recorder
from braze.graph.fakes.fakes import FakeMode
from braze.graph.private.torch_compat import RandomWatch, dispatch_modes, is_out_of_memory, leave_modes
from braze.support.interrupts import deferring
from braze.support.shortage import lost_by_python
from tests.fuzz import faults
from tests.fuzz.fault_kinds import KINDS
from tests.fuzz.minimise import apart
from tests.helpers import logged

PLACES = {
    # between a mode's being entered and the `with`; in C++ that lets no exception through
    "interrupt": [700, 1500],
    # where a code object gets its first note; early in the capture; in the midst of it
    "memory": [10, 300, 9000],
    "time limit": [200],
    "late": [20, 90],
    "full disk": [0, 1000],
    "no descriptors": [0, 5],
    "compiler": [0, 4, 8, 17],
    "cache bits": [4000],
    "hook": list(range(6)),
    "fork": [1],
    "threads": [3],
}


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_fault_the_model_computes_as_before(kind: str) -> None:
    if kind == "interrupt" and torch.accelerator.is_available():
        pytest.skip("a fork has no backward where autograd has a thread for a device")
    for at in PLACES[kind]:
        backend = "braze" if KINDS[kind].kernels else "eager"
        program = faults.Struck(kind, at, backend, at % 2 == 0, 1.25 + at / 8192)
        # of an interrupt the process may die
        found = apart(faults.check, program, 60) if kind == "interrupt" else faults.check(program)
        assert found is None, program


def test_a_compiler_that_is_gone_is_no_fault_of_braze(tmp_path, monkeypatch) -> None:
    """So is a full disk: the message names the machine, and the graph runs as captured."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    with KINDS["full disk"].context(10, tmp_path, None), logged() as said:
        assert torch.equal(braze.compile(lambda x: x * 2.625)(torch.ones(3)), torch.full((3,), 2.625))
    assert any("BZ5004" in message and os.strerror(27) in message for message in said), said


def outcomes(call: Callable[[], object], places: int) -> list[BaseException | None]:
    """What becomes of a call when memory fails at each of its first chances in turn; none of them is a collection's."""
    found: list[BaseException | None] = []
    gc.disable()
    try:
        for at in range(places):
            error: BaseException | None = None
            with KINDS["memory"].context(at, Path(), None):
                try:
                    call()
                except BaseException as raised:
                    error = raised
            found.append(error)
    finally:
        gc.enable()
    return found


def test_an_exception_that_python_loses_is_told_from_ours() -> None:
    """CPython alone, without a compiler, ends so where the caller's frame cannot be made for a traceback."""

    def inner() -> None:
        try:
            raise ValueError
        except ValueError as error:
            kept.append(error)
            raise

    def outer() -> None:
        try:
            inner()
        except ValueError:
            kept.clear()

    kept: list[BaseException] = []
    lost = [error for error in outcomes(outer, 60) if isinstance(error, SystemError)]
    assert lost and all(map(lost_by_python, lost))
    assert is_out_of_memory(lost[0])  # a compile that ends by it is tried again later
    assert not lost_by_python(
        SystemError("BZ9015: <code object f> ended without a result and without an exception")
    )
    assert not lost_by_python(
        SystemError("<method 'm' of 'C' objects> returned NULL without setting an exception")
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("Failed to allocate a Tensor object"), None),
        (
            RuntimeError(
                '0 INTERNAL ASSERT FAILED at "/torch/csrc/utils/python_arg_parser.cpp":462, please report a bug'
            ),
            None,
        ),
        (
            RuntimeError(
                "Defining your mode's `__torch_dispatch__` as a classmethod is not supported, please make it a plain method"
            ),
            None,
        ),
        (RuntimeError("Failed to allocate a torch.storage.UntypedStorage object"), None),
        (
            TypeError(
                "Unable to convert function return value to a Python type! The signature was\n\t(self: torch._C.DispatchKeySet) -> int"
            ),
            None,
        ),
        (
            TypeError(
                "Unable to convert function return value to a Python type! The signature was\n\t(self: torch._C.DispatchKeySet) -> Key"
            ),
            "error",
        ),
        (RuntimeError('0 INTERNAL ASSERT FAILED at "/aten/src/ATen/core.cpp":1'), "error"),
        (RuntimeError("no"), "error"),
    ],
)
def test_memory_may_end_in_words_of_pytorchs(error: Exception, told: str | None, monkeypatch) -> None:
    def step(model: object, call: object, training: bool) -> list[torch.Tensor]:
        if call is not model and not struck:
            struck.append(1)
            raise error
        return usual(model, call, training)

    struck: list[int] = []
    usual = faults.step
    monkeypatch.setattr(faults, "step", step)
    found = faults.check(faults.Struck("memory", 10**7, "eager", False, 1.75))
    assert (found and found.kind) == told


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.ops.aten.sum.dim_IntList(x, immutable_list([0])),
        lambda x: torch.ops.aten.sum.dim_IntList(x, (0, -1)),
        lambda x: torch.ops.aten.cat.default([x, x], 1),
        lambda x: torch.ops.aten.index.Tensor(x, [None, x.long()]),
    ],
)
def test_pytorch_says_that_a_list_is_none_where_memory_ends(call) -> None:
    x = torch.ones(2, 3)
    said = [error for error in outcomes(lambda: call(x), 60) if "Expected a value" in str(error)]
    assert said and all(map(is_out_of_memory, said))


@pytest.mark.parametrize("dim", [["a"], [0.5], (0, None), [torch.ones(2)]])
def test_a_list_of_other_things_is_no_lack_of_memory(dim) -> None:
    with pytest.raises(RuntimeError, match="Expected a value") as told:
        torch.ops.aten.sum.dim_IntList(torch.ones(2, 3), dim)
    assert not is_out_of_memory(told.value)


@pytest.mark.parametrize("at", ["entered", "left"])
@pytest.mark.parametrize(("mode", "times"), [(FakeMode, 1), (Recorder, 1), (Recorder, 3)])
def test_a_mode_that_is_not_left_at_the_end_of_a_trace_is_left_by_it(
    mode: type, times: int, at: str, monkeypatch
) -> None:
    """Memory may end when PyTorch has entered the mode and the `with` has not begun, or before it is left, the n-th time."""
    name = {"entered": "__enter__", "left": "__exit__"}[at]
    usual, left = getattr(mode, name), [times]

    def short_of_memory(entered: object, *args: object) -> object:
        left[0] -= 1
        if left[0]:
            return usual(entered, *args)
        if at == "entered":
            usual(entered)
        monkeypatch.setattr(mode, name, usual)
        raise MemoryError

    before = dispatch_modes()
    monkeypatch.setattr(mode, name, short_of_memory)
    compiled = braze.compile(
        lambda x: x.sin() * 2.25, backend="eager" if mode is FakeMode else "aot_eager", dynamic=False
    )
    for _ in range(2):
        x = torch.ones(3, requires_grad=True)
        compiled(x).sum().backward()
        assert torch.allclose(x.grad, torch.ones(3).cos() * 2.25)
        assert dispatch_modes() == before
    assert getattr(mode, name) is usual


@pytest.mark.parametrize("times", [1, 2])
def test_modes_are_left_where_memory_ends_as_they_are(times: int, monkeypatch) -> None:
    """Once more is tried, not twice."""
    usual, left = torch._C._pop_torch_dispatch_stack, [times]

    def short_of_memory(key: object) -> object:
        if left[0]:
            left[0] -= 1
            raise MemoryError
        return usual(key)

    before = dispatch_modes()
    torch._C._push_on_torch_dispatch_stack(RandomWatch())
    monkeypatch.setattr(torch._C, "_pop_torch_dispatch_stack", short_of_memory)
    with pytest.raises(MemoryError):
        leave_modes(before)
    monkeypatch.setattr(torch._C, "_pop_torch_dispatch_stack", usual)
    assert (dispatch_modes() == before) == (times == 1)
    leave_modes(before)
    assert dispatch_modes() == before


def test_handlers_of_signals_are_asked_for_without_an_exception_that_python_could_lose() -> None:
    """`signal.getsignal` raises and catches a ValueError for each handler that is a function; Ctrl-C's is one."""

    def around() -> None:
        with deferring:
            pass

    errors = [error for error in outcomes(around, 400) if error is not None]
    assert errors and all(type(error) is MemoryError for error in errors), errors
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("kind", ["interrupt", "late"])
def test_no_signal_keeps_a_lock_from_being_released(kind: str) -> None:
    """Python looks for signals behind a call into C, not before it; the profiler that gives them is asked before it, too."""
    lock, raised = threading.Lock(), []
    for at in range(8):
        model = types.SimpleNamespace(at_work=True, raised=False)
        try:
            with KINDS[kind].context(at, Path(), model):
                held_for_a_moment(lock)
        except (KeyboardInterrupt, Exception) as error:
            raised.append(error)
        assert not lock.locked(), at
    assert len(raised) > 2


def held_for_a_moment(lock: threading.Lock) -> None:
    with lock:
        pass


# where Ctrl-C strikes: the file of what it interrupts
held_for_a_moment.__code__ = held_for_a_moment.__code__.replace(co_filename="/braze/held.py")


@pytest.mark.parametrize(("file", "eagers"), [("program.py", True), (braze.__file__, False)])
def test_where_the_programs_own_switch_of_grad_mode_is_struck_it_is_eagers(file, eagers, monkeypatch) -> None:
    """PyTorch turns gradients off before Python is in the block that would turn them on again; braze's own code has to see to that."""
    code = compile("with torch.no_grad(): pass", file, "exec")
    switch = torch._C._set_grad_enabled

    def struck(on: bool) -> None:
        switch(on)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch._C, "_set_grad_enabled", struck)
        with pytest.raises(KeyboardInterrupt) as caught:
            exec(code, {"torch": torch})
    assert faults.changed_settings() == "grad mode is off"
    assert faults.in_eagers_switch(caught.value) is eagers
    assert not faults.in_eagers_switch([]), "nothing was raised"


def test_what_python_itself_ignores_was_not_swallowed_by_braze() -> None:
    """A handler that runs while a generator that nobody holds ends: Python says what it raised, and goes on."""

    def unfinished() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise ValueError

    with faults.ignored_by_python() as ignored:
        next(unfinished())
    assert ValueError in ignored
    with faults.ignored_by_python() as ignored, pytest.raises(ValueError):
        list(unfinished())
    assert ValueError not in ignored
