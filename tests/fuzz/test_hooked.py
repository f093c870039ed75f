"""An error in each place where the program's own code is called, at its first call, of two kinds: one that is handled, one that ends the program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.fuzz import hooked
from tests.fuzz.fault_hooks import PLACES, Strike
from tests.fuzz.hooked import Hooked, check


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", ["Planted", "Ending"])
def test_an_error_of_the_programs_own_code_reaches_the_caller(place: str, error: str) -> None:
    program = Hooked(place, 0, error, warm=False)
    assert check(program) is None
    # these are called at the first call only; warm, one kind of error is enough: the gate draws both
    if error == "Planted" and place not in ("fw_compiler", "bw_compiler", "partition_fn", "backend"):
        assert check(replace(program, warm=True)) is None


def test_an_error_that_is_swallowed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def swallowing(strike: Strike, compile: Any) -> Any:
        def by(gm: Any, examples: Any) -> Any:
            try:
                strike()
            except hooked.BY_NAME["Planted"]:
                pass
            return gm.forward

        call = compile(lambda x: x * 2, backend=by)
        return lambda: [call(torch.ones(2))]

    monkeypatch.setitem(PLACES, "backend", swallowing)
    found = check(Hooked("backend", 0, "Planted", warm=False))
    assert found is not None and "became" in found.text


def test_a_mode_that_is_left_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaving(strike: Strike, compile: Any) -> Any:
        def step() -> list[torch.Tensor]:
            torch.set_grad_enabled(not strike.armed)
            strike()
            return [torch.ones(2)]

        return step

    monkeypatch.setitem(PLACES, "backend", leaving)
    try:
        found = check(Hooked("backend", 0, "Planted", warm=False))
    finally:
        torch.set_grad_enabled(True)
    assert found is not None and found.kind == "left" and "grad mode" in found.text
