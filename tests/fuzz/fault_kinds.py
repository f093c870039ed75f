"""The faults: each a context in which the n-th chance goes wrong, and the exceptions that may then reach the caller."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import braze
from braze.runtime.libraries import build

try:
    import _testcapi
except ImportError:  # not in every build of Python
    _testcapi = None  # type: ignore[assignment]

Expected = type[BaseException] | tuple[type[BaseException], ...]
Context = Callable[[int, Path, Any], AbstractContextManager[Expected]]


@dataclass(frozen=True)
class Fault:
    """``places``: the binary logarithm of how many chances there are, about. ``kernels``: what it strikes is building; ``warm``: a call of what is compiled."""

    context: Context
    places: float
    kernels: bool = False
    warm: bool = False


class Planted(Exception):
    """What a hook of the program raises."""


#: identity of a code object -> references to it; equal ones are others
held: dict[int, list[types.CodeType]] = {}


def hold_codes() -> None:
    """Keep all code that functions of this process make functions of.

    CPython 3.12 and 3.13 give such a code object back twice where memory ends while the function is made; it is freed sooner or later,
    and the process dies of the next call.
    """
    if sys.version_info < (3, 12):
        return
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    found = [f.__code__ for f in gc.get_objects() if type(f) is types.FunctionType]
    if frozen:
        gc.freeze()
    while found:
        code = found.pop()
        if id(code) not in held:
            held[id(code)] = [code] * 100
            found += [value for value in code.co_consts if type(value) is types.CodeType]


@contextlib.contextmanager
def no_memory(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """Python's allocators fail, once."""
    hold_codes()
    _testcapi.set_nomemory(at, at + 1)
    try:
        yield MemoryError
    finally:
        _testcapi.remove_mem_hooks()


@contextlib.contextmanager
def interrupted(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """Ctrl-C at the n-th call or return in a Python function of braze's or PyTorch's.

    Not before a call into C, which would not take place: no signal is between that a lock is to be released, and that it is.
    """
    left = [at]
    spent: list[int] = []

    def event(frame: Any, kind: str, arg: Any) -> None:
        if "/torch/" in frame.f_code.co_filename or "/braze/" in frame.f_code.co_filename:
            left[0] -= 1
            if left[0] <= -1 and not spent and kind != "c_call":
                spent.append(1)
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(event)
    try:
        yield KeyboardInterrupt
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def timed_out(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """An alarm whose handler raises an ordinary exception: what programs give themselves time limits with."""

    def late(number: int, frame: Any) -> None:
        if model.at_work:
            model.raised = True
            raise Planted("late")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 1e-5 * (at + 1))
    try:
        yield Planted
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def late(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """A handler of a signal raises at the n-th call or return in a Python function, but for calls into C (see above)."""
    left = [at]
    spent: list[int] = []

    def handler(number: int, frame: Any) -> None:
        model.raised = True
        raise Planted("late")

    def event(frame: Any, kind: str, arg: Any) -> None:
        left[0] -= 1
        if left[0] <= -1 and not spent and kind != "c_call":
            spent.append(1)
            if model.at_work:
                signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sys.setprofile(event)
    try:
        yield Planted
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    before = os.environ.get("BRAZE_CACHE_DIR")
    os.environ["BRAZE_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("BRAZE_CACHE_DIR")
        if before is not None:
            os.environ["BRAZE_CACHE_DIR"] = before


@contextlib.contextmanager
def full_disk(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """No file grows beyond n bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with cache_in(folder):
        resource.setrlimit(resource.RLIMIT_FSIZE, (at, hard))
        try:
            yield ()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def free_descriptor(n: int) -> int:
    """The n-th number that no open file has: below it there are n more."""

    def is_free(number: int) -> bool:
        try:
            os.fstat(number)
        except OSError:
            return True
        return False

    return next(itertools.islice(filter(is_free, itertools.count()), n, None))


@contextlib.contextmanager
def no_descriptors(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """The process may open n files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with cache_in(folder):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free_descriptor(at), hard))
        try:
            yield ()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def bad_compiler(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """The C compiler is killed, gone, slow, silent, or says it has no room."""
    does = [
        "kill -9 $$", "kill -15 $$", "exit 0", "exit 1", "echo 'No space left on device' >&2; exit 1",
        "sleep 0.3; exec gcc \"$@\"", "echo 'out of memory' >&2; exit 1", "kill -11 $$", "",
    ][at % 9]  # fmt: skip
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    before = os.environ.get("CC")
    os.environ["CC"] = str(path)
    build.compiler.cache_clear()
    build._works.cache_clear()
    build.compiler()
    if not does:
        path.unlink()
    try:
        with cache_in(folder / "cache"):
            yield ()
    finally:
        os.environ.pop("CC")
        if before is not None:
            os.environ["CC"] = before
        build.compiler.cache_clear()
        build._works.cache_clear()


@contextlib.contextmanager
def flipped_bits(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """The kernels are in the cache, and a bit of each file is wrong."""
    with cache_in(folder):
        twin = type(model)(model.by, lambda: None)
        braze.compile(twin)(torch.ones(2, 3), 3)
        for number, path in enumerate(
            sorted(p for p in folder.rglob("*") if p.is_file() and p.stat().st_size)
        ):
            data = bytearray(path.read_bytes())
            data[(at * 7919 + number) % len(data)] ^= 1 << at % 8
            # a library in use is not written to: another file takes its place
            path.unlink()
            path.write_bytes(bytes(data))
            path.chmod(0o600)
        braze.reset()
        yield ()


@contextlib.contextmanager
def raising_hook(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """One of the program's hooks raises: of a module, of a gradient, of torch functions, a handler of logs."""

    def hook(*args: Any, **kwargs: Any) -> None:
        if not spent:
            spent.append(1)
            model.raised = True
            raise Planted("planted")

    spent: list[int] = []
    put: Callable[[], Any] = [
        lambda: model.layer.register_forward_hook(hook),
        lambda: model.layer.register_forward_pre_hook(hook),
        lambda: model.register_forward_hook(hook),
        lambda: model.layer.weight.register_hook(hook),
        lambda: model.layer.register_full_backward_hook(hook),
        lambda: setattr(model, "hook", hook),
    ][at % 6]
    handle = put()
    try:
        yield Planted
    finally:
        if handle is not None:
            handle.remove()
        model.hook = model.hook if model.hook is not hook else (lambda: None)


@contextlib.contextmanager
def forked(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """At the program's hook, in the midst of a call, the process forks; the child ends there."""

    def fork() -> None:
        model.hook = nothing
        child = os.fork()
        if not child:
            try:
                result = braze.compile(lambda x: x * (2 + at))(torch.ones(3))
                os._exit(0 if torch.equal(result, torch.full((3,), 2.0 + at)) else 1)
            except BaseException:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemError(f"the child left with {status}")

    def nothing() -> None:
        return None

    model.hook = fork
    yield ()


@contextlib.contextmanager
def reset_beside(at: int, folder: Path, model: Any) -> Iterator[Expected]:
    """Another thread forgets everything again and again, and compiles."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for k in range(10_000):
                if stop.is_set():
                    return
                braze.reset()
                braze.compile(lambda x: x * k, backend="eager")(torch.ones(1 + k % 20))
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5 * (1 + at))
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield ()
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
        if errors:
            raise errors[0]


KINDS: dict[str, Fault] = {
    "interrupt": Fault(interrupted, 14.5),
    "time limit": Fault(timed_out, 15),
    "late": Fault(late, 8.5, warm=True),
    "full disk": Fault(full_disk, 16, kernels=True),
    "no descriptors": Fault(no_descriptors, 5, kernels=True),
    "compiler": Fault(bad_compiler, 4, kernels=True),
    "cache bits": Fault(flipped_bits, 12, kernels=True),
    "hook": Fault(raising_hook, 4),
    "fork": Fault(forked, 3),
    "threads": Fault(reset_beside, 6),
}
if _testcapi is not None:
    KINDS["memory"] = Fault(no_memory, 17.5)
