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


def leave(frames: int) -> None:
    """Leave the program so many frames more than the least that Python lets be."""
    limit = 1
    while True:
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:
            limit += 1
        else:
            break
    sys.setrecursionlimit(limit + frames)


def without_end(n: int) -> int:
    try:
        return without_end(n + 1) + 1
    finally:
        n = 0


def at_the_limit() -> list[str]:
    """Leaves itself a few frames, and goes on."""
    before, found = sys.getrecursionlimit(), []
    try:
        leave(15)
        for name in ("first", "second"):
            try:
                without_end(0)
            except RecursionError:
                found.append(name)
    finally:
        sys.setrecursionlimit(before)
    return found


def test_a_program_that_leaves_itself_a_few_frames_goes_on_in_them() -> None:
    """Compiling what follows needs more than these: it runs as it is."""
    assert braze.compile(at_the_limit, backend="eager")() == at_the_limit() == ["first", "second"]


def test_a_compiled_function_that_calls_itself_without_end_meets_the_limit() -> None:
    def again(n: int) -> int:
        braze.graph_break()
        return compiled(n + 1) + 1

    compiled = braze.compile(again, backend="eager")
    for _ in range(2):
        with pytest.raises(RecursionError):
            compiled(0)
