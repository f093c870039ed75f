"""Tests of this folder run with the processor as a device that can record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from braze.cudagraphs.device import NotRecordable
from braze.serving.engine import recordings
from tests.cudagraphs.conftest import simulated
from tests.helpers import threads

__all__ = ["simulated"]


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tiny models are quicker without a team of threads, by far where others use the processor too."""
    with threads(1):
        yield


@pytest.fixture
def unrecordable(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets whole recordings of so many rows fail from here on."""
    plain = recordings.record

    def refuse(rows: int) -> None:
        def record(device: Any, pool: Any, run: Any) -> Any:
            made = plain(device, pool, run)
            if made[1].shape[0] == rows:
                raise NotRecordable("no memory for this one")
            return made

        monkeypatch.setattr(recordings, "record", record)

    return refuse
