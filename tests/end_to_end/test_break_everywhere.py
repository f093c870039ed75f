"""Every function of break_everywhere.py with a graph break before each statement, and around each name read in it."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from tests.end_to_end import break_everywhere as cases
from tests.end_to_end.test_breaks import equal

LOG: list[Any] = []


def mark(place: int) -> None:
    LOG.append(place)


def opaque(value: Any) -> Any:
    LOG.append(type(value).__name__)
    return value


HELPERS = {"mark": braze.disable(mark), "opaque": braze.disable(opaque)}


class Statements(ast.NodeTransformer):
    """Puts ``mark(n)`` before the n-th statement."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.seen = -1

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list) and not isinstance(node, ast.Module):
                setattr(node, field, [new for old in body for new in self.with_mark(old)])
        return node

    def with_mark(self, statement: ast.stmt) -> list[ast.stmt]:
        self.seen += 1
        if self.seen != self.place or isinstance(statement, (ast.Nonlocal, ast.Global)):
            return [statement]
        return [*ast.parse(f"mark({self.place})").body, statement]


class Reads(ast.NodeTransformer):
    """Puts ``opaque(...)`` around the n-th variable that is read."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.seen = -1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.body = [self.visit(s) for s in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if not isinstance(node.ctx, ast.Load):
            return node
        self.seen += 1
        if self.seen != self.place:
            return node
        return ast.Call(ast.Name("opaque", ast.Load()), [node], [])


def rewritten(function: Callable[..., Any], how: Any) -> Callable[..., Any] | None:
    """The function with one break put in; None past the last place."""
    tree = how.visit(ast.parse(textwrap.dedent(inspect.getsource(function))))
    if how.seen < how.place:
        return None
    scope = vars(cases)
    scope.update(HELPERS)
    before = scope[function.__name__]
    exec(compile(ast.fix_missing_locations(tree), cases.__file__, "exec"), scope)
    made, scope[function.__name__] = scope[function.__name__], before
    return made


pytestmark = pytest.mark.usefixtures("fresh")


X = torch.arange(6.0).reshape(2, 3)


def run(function: Callable[..., Any]) -> tuple[Any, list[Any]]:
    cases.restart()
    LOG.clear()
    return function(X.clone()), copy.copy(LOG)


def check(function: Callable[..., Any], how: Any) -> int:
    """Compare at every place; the number of places."""
    place = 0
    while (changed := rewritten(function, how(place))) is not None:
        expected = run(changed)
        compiled = braze.compile(changed, backend="eager")
        for _ in range(2):
            found = run(compiled)
            assert equal(found[0], expected[0]), (function.__name__, how.__name__, place, found, expected)
            assert found[1] == expected[1], (function.__name__, how.__name__, place, found, expected)
        place += 1
    return place


@pytest.mark.parametrize("function", cases.FUNCTIONS, ids=lambda f: f.__name__)
def test_a_break_before_every_statement(function: Callable[..., Any]) -> None:
    assert check(function, Statements) >= 5


@pytest.mark.parametrize("function", cases.FUNCTIONS, ids=lambda f: f.__name__)
def test_a_break_in_every_expression(function: Callable[..., Any]) -> None:
    assert check(function, Reads) >= 5
