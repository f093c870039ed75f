"""The machine that seeds bugs, on a toy package: it finds slips in code that runs, and knows which test notices which."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.fuzz.failures import ROOT
from tests.fuzz.mutants import choose, places, reach, tree
from tests.fuzz.mutants.__main__ import unnoticed
from tests.fuzz.mutants.judge import Judge
from tests.fuzz.mutants.operators import Mutant, mutants_of, parses
from tests.fuzz.mutants.processes import Place

TOY = '''"""A docstring with 1 < 2."""

from __future__ import annotations


def clipped(x: int, low: int, high: int = 7) -> int:
    """Another, 3 + 4."""
    if x < low:
        return low
    assert low <= high, "not 5"
    return min(x, high)


def refused(x: int) -> None:
    if x == 3:
        raise ValueError(f"{x} is not 4")


def asleep(x: int) -> int:
    return x + 1
'''
TESTS = """import subprocess
import sys

from braze.lower.toy import clipped


def test_of_a_number_between():
    assert clipped(3, 1, 5) == 3


def test_in_another_process():
    subprocess.run([sys.executable, "-c", "from braze.lower.toy import clipped; assert clipped(0, 1, 5) == 1"], check=True)


def test_that_fails_in_any_case():
    assert clipped(9, 1, 5) == 4


def test_at_the_edge():
    assert clipped(1, 1, 5) == 1
"""


INI = "[tool.pytest.ini_options]\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with one module and its tests; the plugin is found in the real one."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    root = tmp_path / "root"
    files = {"braze/lower/toy.py": TOY, "tests/lower/test_toy.py": TESTS, "pyproject.toml": INI}
    for name, text in {**files, "braze/__init__.py": "", "braze/lower/__init__.py": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def found(toy: Path) -> dict[tuple[str, str], Mutant]:
    return {(m.before, m.after): m for m in mutants_of("lowering", "braze/lower/toy.py", toy)}


def test_slips_are_found_in_what_runs_and_not_in_words(toy):
    assert set(found(toy)) == {
        ("x < low", "x <= low"),
        ("x < low", "False and (x < low)"),
        ("min(x, high)", "max(x, high)"),
        ("x == 3", "x != 3"),
        ("x == 3", "False and (x == 3)"),
        ("3", "4"),
        ("3", "2"),
        ("x + 1", "x - 1"),
        ("1", "2"),
    }


def test_a_bug_keeps_its_name_while_other_code_changes(toy):
    before = {m.id for m in found(toy).values()}
    (toy / "braze/lower/toy.py").write_text(TOY.replace("\n\ndef clipped", "\nNEW = 1\n\n\ndef clipped"))
    assert {m.id for m in found(toy).values()} == before


def names(tests: list[str]) -> set[str]:
    return {test.partition("::")[2] for test in tests}


def test_who_notices_which_bug(toy, tmp_path):
    bugs = [
        found(toy)[pair]
        for pair in (("min(x, high)", "max(x, high)"), ("x < low", "x <= low"), ("x + 1", "x - 1"))
    ]
    pristine, ours = tree.copied(tmp_path / "pristine", toy), tree.copied(tmp_path / "ours", toy)
    (tmp_path / "work").mkdir()
    known = reach.reached(bugs, tmp_path / "work", 1, ["tests/lower/test_toy.py"], root=toy)
    assert names(known.tests_of(bugs[0].id)) == {
        "test_of_a_number_between",
        "test_at_the_edge",
        "test_that_fails_in_any_case",
    }
    assert known.passing[bugs[1].id] == 4 and names(known.tests_of(bugs[1].id)) == {"test_at_the_edge"}
    assert not known.passing.get(bugs[2].id) and known.tests_of(bugs[2].id) == []
    judge = Judge(
        known, Place(ours, tmp_path / "job", tmp_path / "pool"), pristine, 60, 0, time.monotonic() + 100
    )
    noticed, equal = judge.judged(bugs[0]), judge.judged(bugs[1])
    assert noticed["noticed"] and names([noticed["by"]]) <= {"test_of_a_number_between", "test_at_the_edge"}
    assert "-    return min(x, high)" in noticed["diff"]
    assert not equal["noticed"] and equal["met"] == ["tests/lower/test_toy.py::test_at_the_edge"]
    assert (ours / "braze/lower/toy.py").read_text() == TOY


def test_small_files_share_a_process_with_those_of_their_folder():
    """Where a package is not there, a conftest that asks for it must not keep others from running."""
    files = reach.test_files(ROOT)
    batches = reach.batches(ROOT, files)
    assert sorted(f for batch in batches for f in batch) == sorted(files)
    assert all(len({Path(f).parent for f in batch}) == 1 for batch in batches)
    assert len(batches) < len(files) / 2


def test_the_files_that_get_bugs_are_there():
    """A module that moves is not forgotten without a word."""
    of = {stage: [file for s, file in places.files() if s == stage] for stage in places.STAGES}
    assert all(len(files) >= 9 for files in of.values()), of
    for _, patterns in places.STAGES.values():
        assert all(any(ROOT.glob(pattern)) for pattern in patterns)
    assert all(any(Path(f).match(p) for f in ROOT.glob("braze/**/*.py")) for p in places.LEFT_OUT)


def test_the_same_seed_chooses_the_same_bugs_and_they_are_python():
    some = choose.of_stage(mutants_of("scheduling", "braze/schedule/fusion/legality.py"), 1, 4, ROOT)
    assert len(some) == 4 and all(parses(m) for m in some)
    assert some == choose.of_stage(
        mutants_of("scheduling", "braze/schedule/fusion/legality.py")[::-1], 1, 4, ROOT
    )


def test_bugs_that_nobody_noticed_are_found_again_whichever_would_be_chosen_now(tmp_path):
    some = mutants_of("scheduling", "braze/schedule/fusion/legality.py")[:3]
    lines = [{"id": m.id, "noticed": k == 0} for k, m in enumerate(some)] + [{"id": "gone", "noticed": False}]
    (tmp_path / "results-0-of-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "results-again-0-of-1.jsonl").write_text(
        json.dumps({"id": some[1].id, "noticed": True}) + "\n"
    )
    assert [m.id for m in unnoticed(tmp_path)] == [some[2].id]
