"""Stages are timed by their own time; events and dumps reach who asked for them."""

import logging
from types import SimpleNamespace

import pytest

from braze.support import log, trace
from braze.support.errors import BrazeError, Origin, UserError


def test_a_nested_stage_is_taken_out_of_the_outer_one(monkeypatch):
    """The seconds of all stages add up to the wall time."""
    now = [100.0]
    monkeypatch.setattr(trace, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    _, before = trace.snapshot()
    with trace.stage("outer-test"):
        with trace.stage("inner-test"):
            now[0] += 5
        now[0] += 2
    spent = trace.snapshot()[1] - before
    assert (spent["inner-test"], spent["outer-test"]) == (5, 2)


def test_listeners_hear_start_and_end():
    """A progress line learns when a stage starts and how long it took."""
    heard = []
    with trace.listen(lambda name, seconds: heard.append((name, seconds))), trace.stage("heard"):
        pass
    with trace.stage("unheard"):
        pass
    assert [n for n, _ in heard] == ["heard", "heard"]
    assert heard[0][1] == -1.0
    assert heard[1][1] >= 0


def test_collectors_get_only_their_events():
    """Nested collectors with equal contents stay apart."""
    with trace.collect() as outer:
        with trace.collect() as inner:
            trace.emit("k", 1)
        trace.emit("k", 2)
    assert inner == [("k", 1)]
    assert outer == [("k", 1), ("k", 2)]


def test_dumps_are_numbered_in_order(tmp_path, monkeypatch):
    """BRAZE_DUMP gets one file per stage, in order; without it nothing is written."""
    monkeypatch.delenv("BRAZE_DUMP", raising=False)
    assert trace.dump("graph", "py", "x") is None
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path / "new"))
    first, second = trace.dump("graph", "py", "a"), trace.dump("loops", "py", "b")
    assert first.read_text() == "a"
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [first.name, second.name]
    assert first.name < second.name


def test_log_subjects_follow_the_grammar():
    """name is INFO, +name is DEBUG, -name is off."""
    log.configure("guards,+fusion,-kernels")
    try:
        assert [log.logger(n).level for n in ("guards", "fusion", "kernels")] == [20, 10, 50]
    finally:
        log.configure("-guards,-fusion,-kernels")
        for name in ("guards", "fusion", "kernels"):
            log.logger(name).setLevel(0)


def test_an_unknown_subject_is_refused_with_a_near_miss():
    """A typo in BRAZE_LOGS is named, with what was likely meant."""
    with pytest.raises(UserError, match="guards") as caught:
        log.configure("gaurds")
    assert caught.value.code == "BZ0004"


def test_help_lists_every_subject(capsys):
    """BRAZE_LOGS=help prints the table."""
    log.configure("help")
    shown = capsys.readouterr().err
    assert all(name in shown for name in log.SUBJECTS)


def test_a_warning_is_given_once_per_cause():
    """The second call with the same cause is silent, until the causes are forgotten."""
    heard = []
    handler = logging.Handler()
    handler.emit = lambda r: heard.append(r.getMessage())
    log.logger("capture").addHandler(handler)
    try:
        assert log.warn_once("cause-1", "first")
        assert not log.warn_once("cause-1", "again")
        log.forget_warnings()
        assert log.warn_once("cause-1", "third")
    finally:
        log.logger("capture").removeHandler(handler)
    assert heard == ["first", "third"]


def test_an_error_reads_what_where_why_and_what_to_do():
    """The text has the code, the place, the cause and the remedy, and the callers innermost first."""
    here = Origin("model.py", 7, function="forward")
    error = BrazeError("BZ1012", "call of x", why="it is opaque", hints=["move it"], origin=here,
                       trail=[Origin("main.py", 1), Origin("mid.py", 2), here])  # fmt: skip
    text = str(error)
    assert (
        text.index("BZ1012: call of x")
        < text.index("model.py:7 in forward")
        < text.index("why: it is opaque")
    )
    assert text.index("move it") < text.index("mid.py:2") < text.index("main.py:1")
