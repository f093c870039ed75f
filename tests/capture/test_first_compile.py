"""What the first compile of a process does beside compiling."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import pytest

from braze.capture.dispatch.session import Session
from braze.options import Options
from braze.support.errors import Unsupported


def test_the_interpreter_is_loaded_without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Interpreter(types.ModuleType):
        @property
        def trace_frame(self) -> Any:
            seen.append(gc.isenabled())

            def refuse(*args: Any, **words: Any) -> Any:
                seen.append(gc.isenabled())
                raise Unsupported("BZ1014", "nothing is captured here")

            return refuse

    monkeypatch.setitem(sys.modules, "braze.capture.trace.tracer", Interpreter("braze.capture.trace.tracer"))
    assert gc.isenabled()
    entry = Session(lambda gm, examples: gm.forward, Options()).entry(lambda x: x + 1, "plus")
    assert entry(1) == 2
    assert seen == [False, False] and gc.isenabled()
