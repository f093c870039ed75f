"""What braze assumes of PyTorch's private parts: each assumption has a name, a test, and what follows where it fails.

The versions that braze is tested with need no test. On any other, each assumption is tried once, before it is first relied on:
where it fails, a slower way that takes public names alone does the same, or nothing is compiled, and the user is told which.
``braze env`` tries all of them, whatever the version.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator

import torch

from braze.graph.private import torch_import
from braze.support.errors import Unsupported, UserError
from braze.support.log import warn_once
from braze.support.record import record

#: what is written in the metadata of the package
WANTED = "torch>=2.11,<2.16"

#: what follows for those without which results could be wrong
NOTHING = "nothing is compiled: functions run as they are"

#: test -> what it said: "" where the assumption holds
_said: dict[Callable[[], None], str] = {}
_trying = threading.local()


@record
class Assumption:
    """Something that is true of PyTorch, by no promise of it."""

    name: str
    #: raises where it is not true
    test: Callable[[], None]
    #: what braze does then
    otherwise: str
    #: whether that is to compile nothing
    refuses: bool

    def holds(self) -> bool:
        """Whether it may be relied on. While something is tried, all may: else no trial would come to an end."""
        return torch_import.tested() or getattr(_trying, "depth", 0) > 0 or not self.fault()

    def fault(self) -> str:
        """What is not as assumed, tried now or before; "" where all is."""
        if self.test not in _said:
            _trying.depth = getattr(_trying, "depth", 0) + 1
            try:
                self.test()
            except Exception as error:
                _said[self.test] = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                _said[self.test] = ""
            finally:
                _trying.depth -= 1
        return _said[self.test]


#: in the order in which they are told
ASSUMPTIONS: list[Assumption] = []


def assumption(
    name: str, otherwise: str, *, refuses: bool = False
) -> Callable[[Callable[[], None]], Assumption]:
    """Enter a test as that of an assumption, which takes its place."""

    def enter(test: Callable[[], None]) -> Assumption:
        made = Assumption(name, test, otherwise, refuses)
        ASSUMPTIONS.append(made)
        return made

    return enter


def broken() -> Iterator[Assumption]:
    """Those that do not hold; tried on every version."""
    for known in ASSUMPTIONS:  # trying the first loads modules that enter more
        if known.fault():
            yield known


def refusal() -> Unsupported | None:
    """Why nothing can be compiled with this PyTorch, if so: all is tried. What is merely slower is told, once."""
    grave = []
    for known in broken():
        if known.refuses:
            grave.append(known)
        else:
            warn_once(
                ("assumption", known.name),
                f"PyTorch {torch.__version__} is not as braze knows it ({known.name}: {known.fault()}): "
                f"{known.otherwise}",
            )
    return unknown("; ".join(f"{known.name}: {known.fault()}" for known in grave)) if grave else None


def require(*entering: str) -> None:
    """A UserError where nothing can be compiled with this PyTorch, for the faces beside capture.

    ``entering`` are modules of rooms above this one, which enter assumptions of their own when they are loaded.
    """
    if not torch_import.tested():
        for name in entering:
            importlib.import_module(name)
        error = refusal()
        if error is not None:
            raise UserError(error.code, error.what, why=error.why, hints=error.hints) from error


WHAT = f"PyTorch {torch.__version__} is not one that braze can compile with"
HINTS = (f"pip install '{WANTED}'", "or use a newer braze; braze env lists what is not as it was")


def unknown(why: str) -> Unsupported:
    """That this PyTorch is another than braze was written for."""
    return Unsupported("BZ6004", WHAT, why=why, hints=HINTS)


def impossible(error: Exception) -> UserError:
    """That not even braze's own modules can be loaded with it."""
    return UserError("BZ6004", WHAT, why=f"{type(error).__name__}: {error}", hints=HINTS)


def forget() -> None:
    """Try each assumption again when it is next asked for."""
    _said.clear()
