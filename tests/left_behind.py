"""What a test leaves of itself in its process, where a later one would meet it: as a test found these, so it has to leave them."""

from __future__ import annotations

import contextlib
import ctypes
import decimal
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

#: how long a thread that the test has begun may still be on its way out of compiled code, in seconds
PATIENCE = 20.0

EVALUATOR = ctypes.pythonapi._PyInterpreterState_GetEvalFrameFunc
EVALUATOR.restype, EVALUATOR.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
INTERPRETER = ctypes.pythonapi.PyInterpreterState_Get
INTERPRETER.restype = ctypes.c_void_p


def evaluator() -> int:
    """The address of what evaluates frames: beneath another than CPython's own, a caller holds its arguments once more."""
    return EVALUATOR(INTERPRETER()) or 0


class Place(ctypes.Structure):
    """What dladdr says of an address."""

    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    ]


def is_dynamos(address: int) -> bool:
    """Whether PyTorch has this evaluator."""
    place = Place()
    ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(place))
    return b"torch_python" in (place.file or b"")


OF_PYTHON: dict[str, Callable[[], Any]] = {
    "frame evaluator": evaluator,
    "trace function": sys.gettrace,
    "profile function": sys.getprofile,
    "trace function of threads": lambda: threading._trace_hook,  # type: ignore[attr-defined]
    "profile function of threads": lambda: threading._profile_hook,  # type: ignore[attr-defined]
    "whether the collector runs": gc.isenabled,
    "flags of the collector": gc.get_debug,
    "thresholds of the collector": gc.get_threshold,
    "recursion limit": sys.getrecursionlimit,
    "switch interval": sys.getswitchinterval,
    "working directory": os.getcwd,
    "decimal places": lambda: decimal.getcontext().prec,
}


def nesting_of_autocast(torch: Any) -> int:
    """How many blocks of autocast have begun and not ended: it is told where one more begins."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


OF_TORCH: dict[str, Callable[[Any], Any]] = {
    "grad mode": lambda torch: torch.is_grad_enabled(),
    "autocast": lambda torch: torch.is_autocast_enabled("cpu"),
    "nesting of autocast": nesting_of_autocast,
    "default type": lambda torch: torch.get_default_dtype(),
    "deterministic algorithms": lambda torch: torch.are_deterministic_algorithms_enabled(),
    "number of threads": lambda torch: torch.get_num_threads(),
    "function modes": lambda torch: torch._C._len_torch_function_stack(),
    "dispatch modes": lambda torch: torch._C._len_torch_dispatch_stack(),
}


def found() -> dict[str, Any]:
    """The state of the process; of PyTorch's only where somebody has imported it."""
    state = {name: ask() for name, ask in OF_PYTHON.items()}
    if (torch := sys.modules.get("torch")) is not None:
        state |= {name: ask(torch) for name, ask in OF_TORCH.items()}
    return state


def put_evaluator(before: int) -> None:
    """Have frames evaluated as before. Where a backend fails, Dynamo leaves its evaluator in place, also in eager where torch.cond,
    which compiles itself, meets an error: that is put away. A thread in compiled code is waited for."""
    until = time.monotonic() + PATIENCE
    while (now := evaluator()) != before and time.monotonic() < until:
        if is_dynamos(now):
            ctypes.pythonapi._PyInterpreterState_SetEvalFrameFunc(
                ctypes.c_void_p(INTERPRETER()), ctypes.c_void_p(before)
            )
        else:
            time.sleep(0.01)


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    """Fail where the block changes the state for good."""
    before = found()
    yield
    put_evaluator(before["frame evaluator"])
    now = found()
    left = [f"{name}: {now[name]!r}, was {was!r}" for name, was in before.items() if now[name] != was]
    assert not left, f"left behind in the process: {'; '.join(left)}"
