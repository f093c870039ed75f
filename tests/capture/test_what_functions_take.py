"""Functions of capture take what they use: a whole trace only where they need more than one of its records."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from braze import capture
from braze.capture.state.trace import Interpreter

ROOM = Path(capture.__file__).parent
TREES = {path: ast.parse(path.read_text()) for path in sorted(ROOM.rglob("*.py"))}
VERBS = frozenset(Interpreter.__abstractmethods__)


def values() -> set[str]:
    """Names of functions that stand in tables or are handed on: what these take is said there."""
    found = set()
    for tree in TREES.values():
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in called:
                found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Those that take a trace: of modules where nobody names them but to call them, and methods."""
    named = values()
    for path, tree in TREES.items():
        methods = [node for group in tree.body if isinstance(group, ast.ClassDef) for node in group.body]
        for node in [*tree.body, *methods]:
            if isinstance(node, ast.FunctionDef) and (node in methods or node.name not in named):
                plain = all("contextmanager" in ast.unparse(row) for row in node.decorator_list)
                if plain and trace_of(node) is not None:
                    yield f"{path.relative_to(ROOM)}:{node.lineno} {node.name}", node


def trace_of(function: ast.FunctionDef) -> str | None:
    """The name of the trace that a function takes, first or behind ``self``."""
    for argument in function.args.args[:2]:
        if argument.annotation is not None and ast.unparse(argument.annotation) == "Trace":
            return argument.arg
    return None


def used(function: ast.FunctionDef) -> set[str]:
    """What a function reads of its trace; "all" where it hands it on to another."""
    name, found, parts = trace_of(function), set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            found.add(node.attr)
            parts.add(id(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.name:
            parts.add(id(node.args[0]))
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and id(node) not in parts:
            return {"all"}
    return found - {"frames"} if "done" in found else found  # a ledger knows the frames


def test_a_function_takes_the_record_that_it_uses():
    few = {where: used(node) for where, node in functions()}
    assert len(few) > 50
    assert [f"{where} uses {uses}" for where, uses in few.items() if uses != {"all"} and len(uses) < 2] == []


def test_a_function_that_asks_verbs_alone_takes_the_interpreter():
    asks = [where for where, node in functions() if used(node) <= VERBS]
    assert asks == []
