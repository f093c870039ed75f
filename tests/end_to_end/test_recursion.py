"""Recursion without end, and Python's limit of it: a compiled function meets that limit, and the process lives on."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import braze

pytestmark = pytest.mark.usefixtures("fresh")


class AsksForItself:
    @property
    def __bases__(self) -> Any:
        return self.__bases__


class HasMoreAndMore:
    def __getattr__(self, name: str) -> Any:
        return (HasMoreAndMore(), HasMoreAndMore())


@pytest.mark.parametrize("kind", [AsksForItself, HasMoreAndMore])
def test_what_c_code_calls_back_without_end_is_a_recursion_error(kind: type) -> None:
    """While tracing the limit is higher, but not as high as the stack of C."""

    def program() -> str:
        try:
            issubclass(kind(), int)  # type: ignore[arg-type]
        except RecursionError:
            return "caught"
        return "nothing"

    assert braze.compile(program, backend="eager")() == program() == "caught"


def test_the_limit_that_a_program_sees_is_its_own() -> None:
    def program() -> int:
        return sys.getrecursionlimit()

    compiled = braze.compile(program, backend="eager")
    before = sys.getrecursionlimit()
    try:
        assert compiled() == before
        sys.setrecursionlimit(before + 100)
        assert compiled() == before + 100
    finally:
        sys.setrecursionlimit(before)


def test_calls_are_inlined_as_deep_as_before() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    assert braze.compile(lambda: down(150), backend="eager", fullgraph=True)() == 150
