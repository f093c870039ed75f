"""A few of CPython's own tests behave compiled as they do uncompiled; ``make test-cpython`` runs them all."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.fuzz.cpython import Outcome, Report, complaints, target
from tests.fuzz.cpython_modules import MAY_DIFFER, MODULES


@pytest.mark.skipif(
    importlib.util.find_spec("test.test_raise") is None, reason="this Python comes without its tests"
)
def test_some_modules_behave_as_uncompiled() -> None:
    words = [sys.executable, "-m", "tests.fuzz.cpython", "--jobs", "1", "test_keywordonlyarg", "test_raise"]
    said = subprocess.run(words, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "(100.00%)" in said.stdout


def test_an_exception_that_behaves_as_uncompiled_is_a_complaint() -> None:
    found = [listed for versions, listed in MAY_DIFFER if f"{sys.version_info.minor}" in versions.split()]
    if not found:
        pytest.skip("no test of this Python's may differ")
    listed = found[0]
    test, other = f"test.{listed}", "test.test_dict.DictTest.test_none"
    ran = dict.fromkeys((test, other), Outcome("ok"))
    report = Report("test", ran, dict(ran))
    assert [line.partition(":")[0] for line in complaints(report)] == [test]
    report.compiled = {test: Outcome("failure"), other: Outcome("error")}
    assert [line.partition(":")[0] for line in complaints(report)] == [other]
    report.compiled = {test: Outcome("failure")}
    assert [line.partition(":")[2].strip() for line in complaints(report)] == ["ok -> never reached"]


def test_words_name_modules_and_tests() -> None:
    assert target("test_dict") == ("test.test_dict", [])
    name = "test.test_importlib.test_abc.Loader.test_module"
    assert target(name) == ("test.test_importlib.test_abc", [name])
    assert all(why for why in MAY_DIFFER.values()) and len(set(MODULES)) == len(MODULES) > 100
