"""Frames are stopped at every instruction and go on in resume functions (this interpreter).

For the other versions, and without pytest: ``python tests/capture/resume_check.py``.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FunctionType

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import resume_cases
import resume_check
from hypothesis import given, settings
from hypothesis import strategies as st

from braze.capture.facts import bytecode
from braze.capture.facts.resume import CannotResume, cannot_resume, resume_code


@pytest.mark.parametrize("index", range(len(resume_cases.CASES)))
def test_every_instruction_can_be_resumed(index: int) -> None:
    # an exception injected before PUSH_EXC_INFO leaves CPython's own exc_info of the thread off balance
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(resume_check.check_case, index).result() > 20


def test_generators_are_refused() -> None:
    def generator() -> object:
        yield 1

    with pytest.raises(CannotResume, match="generator"):
        resume_code(generator.__code__, 0, (), ())


def all_codes() -> list[CodeType]:
    """Code objects of a few modules of the standard library, nested ones too."""
    import argparse
    import contextlib
    import inspect
    import logging
    import tempfile

    found: list[CodeType] = []
    todo = [
        f.__code__
        for m in (argparse, contextlib, inspect, logging, tempfile)
        for f in vars(m).values()
        if isinstance(f, FunctionType)
    ]
    while todo:
        code = todo.pop()
        found.append(code)
        todo += [c for c in code.co_consts if isinstance(c, CodeType)]
    return found


def test_exception_tables_survive_the_round_trip() -> None:
    tables = [c.co_exceptiontable for c in all_codes() if c.co_exceptiontable]
    assert len(tables) > 20
    for table in tables:
        assert bytecode.encode_exceptions(bytecode.decode_exceptions(table)) == table


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(*[st.integers(0, 1 << 20)] * 3, st.integers(0, 200), st.booleans()), max_size=5))
def test_exception_tables_of_any_size_survive(rows: list[tuple[int, int, int, int, bool]]) -> None:
    handlers = tuple(bytecode.Handler(2 * a, 2 * (a + b), 2 * c, d, e) for a, b, c, d, e in rows)
    assert bytecode.decode_exceptions(bytecode.encode_exceptions(handlers)) == handlers


def test_every_instruction_keeps_its_line() -> None:
    for code in all_codes():
        if cannot_resume(code):
            continue
        slots = bytecode.slots_of(code)
        bound = [True] * (len(slots.names) - len(slots.free))
        for raises in (False, True):
            starts = bytecode.instruction_starts(code)
            offset = starts[len(starts) // 2]
            made = resume_code(code, offset, (), bound, pushes=0, raises=raises, carry_free=True)
            old, new = list(code.co_positions()), list(made.code.co_positions())
            skip = made.prologue // 2
            assert new[skip:] == old
            assert all(p[0] in (None, code.co_firstlineno, made.line) for p in new[:skip])


def test_a_function_of_more_than_255_slots_resumes() -> None:
    lines = [f"    v{i} = a + {i}" for i in range(300)]
    text = "def wide(a):\n" + "\n".join(lines) + f"\n    return [{', '.join(f'v{i}' for i in range(300))}]\n"
    scope: dict[str, object] = {}
    exec(text, scope)
    wide = scope["wide"]
    assert isinstance(wide, FunctionType)
    code = wide.__code__
    offset = next(s for s in bytecode.instruction_starts(code) if bytecode.place_at(code, s).line == 290)
    bound = [i < 289 for i in range(301)]
    made = resume_code(code, offset, (), bound, pushes=0)
    state = (5, *(5 + i for i in range(288)))
    assert FunctionType(made.code, {})(state) == wide(5)
