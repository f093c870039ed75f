"""The stance: whether calls of compiled functions may compile, or run compiled code at all.

The words are those of ``torch.compiler.set_stance``. A stance holds for the process; ``BRAZE_STANCE`` in the
environment is the one to begin with. The native entry asks about one of them, ``force_eager``, which is a flag of its
own there; the others matter only where no variant fits, which is slow anyway.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from braze import native
from braze.capture.facts.markers import DISABLED, opaque
from braze.options import near
from braze.support.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


class Stance(enum.Enum):
    """What a call of a compiled function does."""

    DEFAULT = "default"  # compile where no variant fits
    FORCE_EAGER = "force_eager"  # run as it is, whatever has been compiled
    EAGER_ON_RECOMPILE = "eager_on_recompile"  # run as it is where no variant fits
    FAIL_ON_RECOMPILE = "fail_on_recompile"  # raise BZ1102 where no variant fits
    #: run the first call as it is; what changes by the second is symbolic
    EAGER_THEN_COMPILE = "eager_then_compile"


class _Stances:
    """The stance of the process: the last ``with`` that is open, or else what was last set."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.set = Stance.DEFAULT
        self.open: list[set_stance] = []
        self.now = Stance.DEFAULT

    @contextlib.contextmanager
    def changing(self) -> Any:
        """Change ``set`` or ``open`` inside the block."""
        with self.lock:
            yield
            self.now = self.open[-1].stance if self.open else self.set
            native.force_eager(self.now is Stance.FORCE_EAGER)


_stances = _Stances()


def stance() -> Stance:
    """The stance that holds now."""
    return _stances.now


class set_stance:
    """``braze.set_stance("force_eager")``: set the stance, from now on, for a block, or for a function's calls.

    ::

        braze.set_stance("fail_on_recompile")       # from now on
        with braze.set_stance("force_eager"):       # in this block; then as before
            model(x)
        @braze.set_stance("force_eager")            # while the function runs
        def check(x): ...

    Stances: "default"; "force_eager": compiled functions run as they were written; "eager_on_recompile": they do so
    where nothing compiled fits, a first call included; "fail_on_recompile": that raises
    ``braze.RecompileError`` (a RuntimeError) which names the guard; "eager_then_compile": the first call runs as it
    is, and sizes that differ at the second are symbolic from the start. A stance holds in all threads.
    """

    @opaque
    def __init__(self, stance: str = "default") -> None:
        self.stance = parse(stance, "braze.set_stance")
        with _stances.changing():
            self.before = _stances.set
            _stances.set = self.stance

    @opaque
    def __enter__(self) -> None:
        with _stances.changing():
            _stances.set = self.before
            _stances.open.append(self)

    @opaque
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: TracebackType | None
    ) -> None:
        with _stances.changing():
            # the innermost of this very object: it may be entered again inside itself
            last = len(_stances.open) - 1 - _stances.open[::-1].index(self)
            del _stances.open[last]

    def __call__(self, fn: F) -> F:
        with _stances.changing():
            _stances.set = self.before

        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance.value):
                return fn(*args, **kwargs)

        setattr(wrapper, DISABLED, "braze.set_stance")
        return wrapper  # type: ignore[return-value]


def parse(word: str, where: str) -> Stance:
    """The stance of a word."""
    known = {s.value: s for s in Stance}
    if word in known:
        return known[word]
    if word == "aot_eager_then_compile":
        raise UserError(
            "BZ0011",
            f"the stance {word!r} of {where} is torch.compile's alone",
            why="braze has no ahead-of-time run of a first call",
            hints=["did you mean 'eager_then_compile'?"],
        )
    raise UserError("BZ0011", f"unknown stance {word!r} in {where}", hints=[near(str(word), known)])


def read_environment() -> None:
    """Take the stance that BRAZE_STANCE names."""
    word = os.environ.get("BRAZE_STANCE", "")
    if word:
        set_stance(parse(word, "BRAZE_STANCE").value)
