"""A pytest plugin: runs the tests that it is told, writes one line of JSON for each, and which seeded places each came by.

``MUTANTS_PLAN`` names a file of JSON: ``record`` (where lines go), and either ``tests`` (node id -> seconds it may take, in
the order to run) or ``claims`` (a folder through which processes share out the tests of a file).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutants import hits

#: tests that a process claims at once
CLAIM = 8


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(
        Plan(json.loads(Path(os.environ["MUTANTS_PLAN"]).read_text())), "mutants-plan"
    )


class Plan:
    """What this process is to run."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.record = open(plan["record"], "a", buffering=1)
        self.tests: dict[str, float] | None = plan.get("tests")
        self.claims: str | None = plan.get("claims")
        self.probing = "MUTANTS_HITS" in os.environ
        self.spent: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        hits.in_test_process = True

    def say(self, **facts: Any) -> None:
        self.record.write(json.dumps(facts) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        began = time.monotonic()
        report: Any = yield
        if isinstance(collector, pytest.Module):
            self.say(module=collector.nodeid, seconds=round(time.monotonic() - began, 2), outcome=report.outcome,
                     hits=self.taken(), why=str(report.longrepr or "")[-1500:])  # fmt: skip
        return report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.tests is None:
            return
        place = {test: k for k, test in enumerate(self.tests)}
        items[:] = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(self.tests[item.nodeid]), append=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """As pytest's own loop, over the tests that this process gets."""
        if session.testsfailed and not self.claims:
            raise session.Interrupted("errors during collection")
        ours = self.claimed(session.items) if self.claims else iter(session.items)
        item = next(ours, None)
        while item is not None:
            following = next(ours, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            item = following
        return True

    def claimed(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        for k in range(0, len(items), CLAIM):
            try:
                os.close(os.open(f"{self.claims}-{k}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            yield from items[k : k + CLAIM]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.taken()
        self.say(begin=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[report.nodeid] = self.spent.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.setdefault(report.nodeid, str(report.longrepr)[-1500:])
        elif report.skipped:
            self.failed.setdefault(report.nodeid, "skipped")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        why = self.failed.get(nodeid, "")
        outcome = "skipped" if why == "skipped" else "failed" if why else "passed"
        self.say(
            test=nodeid,
            seconds=round(self.spent.get(nodeid, 0.0), 3),
            outcome=outcome,
            hits=self.taken(),
            why=why,
        )

    def taken(self) -> list[int]:
        """Places seen since the last time."""
        found = sorted(hits.seen)
        hits.seen.clear()
        return found
