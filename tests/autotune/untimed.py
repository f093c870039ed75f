"""A machine on which nobody has measured anything, and that a test may measure on without a GPU."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from braze.autotune import device_times


def as_if_measuring(module: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Choices are kept in ``folder``, where none is yet; ``module`` may measure, and builds nothing."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(folder))
    monkeypatch.setattr(device_times, "_KEPT", {})
    monkeypatch.setattr(module, "can_measure", lambda: True)
    monkeypatch.setattr(device_times, "build", lambda *rest: None)
