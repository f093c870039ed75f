"""What all variants of one ``compile_callable`` share, as those know it who trace, compile and tell of one of them."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable
from types import FunctionType
from typing import Any, Protocol

from braze.capture.facts.records import Capture
from braze.capture.residual.residual import Resumes
from braze.options import Options

Backend = Callable[[Any, Any], Callable[..., Any]]
#: per thread: ``busy`` while compiling, ``session`` whose broken call is running
this_thread = threading.local()


class Shared(Resumes, Protocol):
    """A session (``session.py``)."""

    backend: Backend
    options: Options
    #: code and place of the breaks that have been logged
    told: set[tuple[str, str]]

    @abstractmethod
    def trace(
        self,
        function: FunctionType,
        locals: tuple[Any, ...],
        symbolic: Any,
        named: Any = None,
        trusting: bool = True,
    ) -> Capture:
        """Interpret a frame."""
