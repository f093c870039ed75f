"""The frame of the machines, on a machine with planted failures: what is planted is found, made small, and fails alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import failures, ledger, runner, toy
from tests.fuzz.known import KNOWN
from tests.fuzz.machine import MACHINES, Finding, Row
from tests.fuzz.minimise import apart, minimised, shorter
from tests.fuzz.runner import Asked, Worker, run


@pytest.fixture(scope="module")
def tally(tmp_path_factory):
    """Ten programs of the toy machine, of which one is wrong and one dies."""
    return run(Asked("toy", 0, 60, 2, tmp_path_factory.mktemp("found"), count=8, minimise=20))


def test_what_is_planted_is_found_and_all_is_counted(tally):
    assert tally.programs == 8
    assert {(seed, found.kind) for seed, found in tally.found} == {(3, "wrong"), (5, "crash")}
    assert tally.tags["even"] == sum(toy.generate(seed).tags() == ("even",) for seed in range(8))


def test_few_programs_are_dealt_so_that_processes_end_together_and_many_by_the_score():
    def dealt(count, jobs, seconds=60.0):
        return list(runner.chunks_of(Asked("toy", 7, seconds, jobs, Path(), count=count)))

    assert [len(seeds) for seeds in dealt(60, 2)] == [6] * 10 and dealt(60, 2)[0][0] == 7
    assert [len(seeds) for seeds in dealt(5, 2)] == [1] * 5
    assert {len(seeds) for seeds in dealt(4000, 2)} == {runner.CHUNK}
    assert [seed for seeds in dealt(64, 2) for seed in seeds] == list(range(7, 71))
    assert len(next(runner.chunks_of(Asked("toy", 7, 60, 2, Path())))) == runner.CHUNK


def test_a_failure_has_a_file_that_fails_alone(tally):
    wrong, crash = (
        Path(tally.files[found.signature()][0]) for _, found in sorted(tally.found, key=lambda f: f[0])
    )
    assert "toy.Numbers((7, 13))" in wrong.read_text()
    assert "toy.Numbers((66,))" in crash.read_text()
    for file, status in ((wrong, 1), (crash, -6)):
        assert (
            subprocess.run([sys.executable, str(file)], capture_output=True, check=False).returncode == status
        )


def test_seeds_that_are_known_to_fail_are_told_and_do_not_fail(tmp_path, monkeypatch, capsys):
    """One that is known and passes is a failure: it is to be taken from the list."""
    monkeypatch.setattr(runner, "KNOWN", {("toy", 3): "thirteens", ("toy", 4): "nothing"})
    tally = run(Asked("toy", 2, 60, 1, tmp_path, count=3, minimise=1))
    assert tally.known == [3] and "toy 3: known: thirteens" in capsys.readouterr().out
    assert [(seed, found.kind) for seed, found in tally.found] == [(4, "passes")]


def test_known_seeds_are_of_machines_and_have_reasons():
    assert all(machine in MACHINES and len(why) > 20 for (machine, _), why in KNOWN.items())


def test_a_program_that_hangs_is_a_finding():
    found = apart(toy.check, toy.generate(8), 0.3)
    assert found is not None and found.kind == "hang"


def test_forks_that_check_have_threads_though_making_the_program_took_some():
    text = """
import torch
from tests.fuzz.minimise import apart, made_apart

torch.set_num_threads(2)
busy = lambda seed: float(torch.ones(1 << 20).sin().sum())
made = made_apart(busy, 1)
assert apart(lambda program: None if busy(program) == made else 1 / 0, made, 60) is None
"""
    assert subprocess.run([sys.executable, "-c", text], cwd=failures.ROOT, check=False).returncode == 0


def test_a_process_that_dies_is_no_hang_though_its_pipe_closes_before(tmp_path):
    ours, theirs = os.pipe()
    worker = Worker.__new__(Worker)
    worker.log, worker.pipe, worker.rest, worker.gone = tmp_path / "log", ours, b"", False
    worker.log.touch()
    text = f"import os, time; os.close({theirs}); time.sleep(0.2); os.abort()"
    worker.process = subprocess.Popen([sys.executable, "-S", "-c", text], pass_fds=[theirs])
    os.close(theirs)
    assert worker.heard(60) is None
    assert worker.end().startswith("died of SIGABRT")


def test_what_passes_alone_is_not_made_smaller():
    assert minimised(toy.check, toy.generate(1), 5, 5) is None


def test_shorter_rows_leave_out_halves_and_each_item():
    assert list(shorter((1, 2, 3, 4))) == [(1, 2), (3, 4), (1, 2, 3), (1, 2, 4), (1, 3, 4), (2, 3, 4)]
    assert list(shorter((1,))) == [()]


def test_a_signature_leaves_out_numbers():
    assert (
        Finding("values", "output 3: 1.5e-3 off").signature()
        == Finding("values", "output 4: 2 off").signature()
    )


def test_the_page_shows_the_ledger(tmp_path, tally):
    asked = Asked("toy", 0, 60, 2, tmp_path, count=8)
    ledger.append(ledger.entry(asked, tally, 1.0), tmp_path / "ledger.json")
    page = ledger.with_table("a <!-- ledger -->\n<!-- end --> b", ledger.read(tmp_path / "ledger.json"))
    assert "| toy | 8 |" in page and page.startswith("a ") and page.endswith(" b")
    assert ledger.with_table(page, ledger.read(tmp_path / "ledger.json")) == page


def test_the_published_page_is_that_of_the_ledger():
    assert ledger.with_table(ledger.PAGE.read_text(), ledger.read()) == ledger.PAGE.read_text()


@pytest.mark.parametrize("name", MACHINES)
def test_a_seed_gives_one_program(name):
    row: Row = MACHINES[name]
    machine = row.load()
    assert machine.generate(11).source() == machine.generate(11).source()
    assert "def check(" in machine.generate(12).source()
    assert failures.text(name, machine.generate(12), None, "x")
