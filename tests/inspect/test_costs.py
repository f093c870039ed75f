"""braze.explain tells what guards and breaks cost, what was recompiled before, and all of it as data."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

import braze
from braze.inspect.explain import Explanation

X = torch.ones(3)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def inner(x: torch.Tensor) -> torch.Tensor:
    braze.graph_break()
    return x + 1


def broken(x: torch.Tensor, mode: str = "a") -> torch.Tensor:
    for _ in range(3):
        x = inner(x * 2)
    return x * len(mode)


def explained() -> Explanation:
    return braze.explain(broken, backend="eager")(X)


def test_guards_have_nanoseconds_as_a_whole_and_by_block() -> None:
    found = explained()
    first = found.walks[0]
    assert first.name == "broken" and first.guards > 0 and 0 < first.nanoseconds < 1e6
    about = {title: guards for title, guards, _ in first.blocks}
    assert about["arguments"] >= 2 and "modes of torch" in about
    assert sum(about.values()) <= first.guards


def test_more_parameters_cost_more_guards() -> None:
    def walk(n: int) -> float:
        model = torch.nn.Sequential(*[torch.nn.Linear(3, 3) for _ in range(n)])
        (report,) = braze.explain(model, backend="eager")(X).walks
        return report.nanoseconds

    assert walk(40) > walk(1)


def test_a_break_tells_its_seconds_and_how_often_it_was_passed() -> None:
    (found,) = explained().breaks
    assert found.code == "BZ1001" and found.seconds > 0
    assert found.passed >= 3  # once a turn of the loop
    assert f"passed {found.passed} times in this run" in str(explained())


def test_recompiles_before_the_run_are_told_with_their_guard() -> None:
    compiled = braze.compile(broken, backend="eager")
    compiled(X), compiled(X, "bb")
    for target in (broken, compiled):
        found = braze.explain(target, backend="eager")(X)
        assert any("guard: mode == 'a'" in text and "now:   'bb'" in text for text in found.history)
        assert "Recompiles before this run" in str(found)


def test_it_is_plain_data_too() -> None:
    found = explained()
    data = json.loads(found.to_json())
    assert data == json.loads(json.dumps(found.as_dict()))
    assert data["breaks"][0]["code"] == "BZ1001"
    assert data["walks"][0]["guards"] == found.walks[0].guards
    assert {name for name, _ in data["seconds"]} == {name for name, _ in found.seconds}
