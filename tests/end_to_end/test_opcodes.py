"""The corpus meets every instruction that this version's compiler writes into functions."""

from __future__ import annotations

import dis
import inspect
import opcode
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

#: instructions that no function of the corpus can hold, and why
NOT_IN_FUNCTIONS = {
    "CACHE": "room for the interpreter's own notes",
    "RESERVED": "not an instruction",
    "INTERPRETER_EXIT": "only in the interpreter's own entry frame",
    "ENTER_EXECUTOR": "put there by CPython's optimizer as code runs",
    "EXTENDED_ARG": "decoded as a part of the instruction that follows; a_long_function needs it",
    "PRINT_EXPR": "only typed at a prompt",
    "IMPORT_STAR": "not allowed in a function",
    "SETUP_ANNOTATIONS": "only in bodies of classes and modules",
    "LOAD_CLASSDEREF": "only in bodies of classes",
    "LOAD_FROM_DICT_OR_DEREF": "only in bodies of classes",
    "LOAD_FROM_DICT_OR_GLOBALS": "only in scopes of type parameters inside classes",
    "LOAD_LOCALS": "only in bodies of classes",
    "LOAD_NAME": "only in bodies of classes and modules",
    "STORE_NAME": "only in bodies of classes and modules",
    "DELETE_NAME": "only in bodies of classes and modules",
    "EXIT_INIT_CHECK": "only in a frame that CPython makes for __init__",
    "BINARY_OP_INPLACE_ADD_UNICODE": "a specialised form of BINARY_OP",
    # a coroutine is made, never interpreted (BZ1009): what drives one stands in no captured frame
    "ASYNC_GEN_WRAP": "only in asynchronous generators",
    "BEFORE_ASYNC_WITH": "only in coroutines",
    "END_ASYNC_FOR": "only in coroutines",
    "GET_AITER": "only in coroutines",
    "GET_ANEXT": "only in coroutines",
    "GET_AWAITABLE": "only in coroutines",
}
HERE = Path(__file__).parent


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions in a code object, however deep."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & inspect.CO_OPTIMIZED:
                yield constant
            yield from functions_of(constant)


def instructions_of_the_corpus() -> set[str]:
    names: set[str] = set()
    for path in sorted(HERE.glob("corpus_*.py")):
        module = compile(path.read_text(), str(path), "exec", dont_inherit=True)
        for code in functions_of(module):
            names.update(instruction.opname for instruction in dis.get_instructions(code))
    return names


def instructions_of_this_version() -> set[str]:
    specialised = set(
        getattr(opcode, "_specialized_opmap", None) or getattr(opcode, "_specialized_instructions", ())
    )
    known = {name for name, number in opcode.opmap.items() if number < 256}
    return {n for n in known if n not in specialised and not n.startswith(("INSTRUMENTED_", "<"))}


def test_every_instruction_is_in_the_corpus() -> None:
    missing = instructions_of_this_version() - instructions_of_the_corpus() - NOT_IN_FUNCTIONS.keys()
    assert not missing, sorted(missing)


def test_what_is_excluded_is_not_there() -> None:
    there = instructions_of_the_corpus() & NOT_IN_FUNCTIONS.keys()
    assert not there - {"EXTENDED_ARG"}, sorted(there)
