"""The pause of the garbage collector nests, survives errors, and leaves a collector that was off alone.

``test_collector.py`` runs these in a process of their own.
"""

from __future__ import annotations

import gc
import threading

import pytest

from braze.support import collector
from braze.support.collector import PROMOTIONS, collector_paused


@pytest.fixture(autouse=True, scope="module")
def thawed() -> None:
    """A process that has frozen nothing: pytest's has frozen what it had loaded."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has found objects frozen."""
    monkeypatch.setattr(collector, "_found_frozen", [-collector.HELD])


def test_it_is_off_inside_and_on_after() -> None:
    with collector_paused:
        with collector_paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_turns_it_on_again() -> None:
    with pytest.raises(KeyError), collector_paused:
        raise KeyError
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_last_of_two_threads_turns_it_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with collector_paused:
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_what_was_made_inside_is_old_and_can_still_be_collected() -> None:
    gc.collect()
    with collector_paused:
        ring: list[object] = []
        ring.append(ring)
    assert any(o is ring for o in gc.get_objects(generation=2))
    del ring
    assert gc.collect() >= 1


def test_frozen_objects_stay_frozen() -> None:
    gc.freeze()
    try:
        with collector_paused:
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_pauses_without_end_do_not_keep_the_collector_from_its_work() -> None:
    gc.collect()
    for _ in range(PROMOTIONS):
        with collector_paused:
            pass
    with collector_paused:
        young: list[object] = [[]]
    assert any(o is young for o in gc.get_objects(generation=0))


def test_objects_that_the_program_froze_are_not_counted_at_each_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    gc.freeze()
    counted: list[int] = []
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counted.append(count()) or counted[-1])
    try:
        for _ in range(5):
            gc.collect()
            with collector_paused:
                pass
        assert gc.get_freeze_count() > 0
        assert len(counted) <= 2  # once by the pauses, and just now
    finally:
        gc.unfreeze()


def test_objects_that_the_program_thawed_again_are_seen_after_some_collections() -> None:
    gc.freeze()
    try:
        assert collector.objects_are_frozen(3)
    finally:
        gc.unfreeze()
    gc.collect()
    assert collector.objects_are_frozen(3)
    assert not collector.objects_are_frozen()
    gc.collect()
    gc.collect()
    assert not collector.objects_are_frozen(3)
