"""A user's keyword argument never meets a parameter of ours, whatever its name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import braze

ROOT = Path(__file__).parent.parent
#: their keywords are those of an operator's schema
OF_OPERATORS = ("lower", "decomp", "loops", "graph/rules/rules.py", "graph/rules/dynamic_ops.py")
#: their keywords are parameters of ours
OUR_OWN = {"braze/aot/stage/functions.py: aot_module"}


def forwarding() -> list[tuple[str, list[str]]]:
    """Each function that takes any arguments to hand them on, and its parameters that a keyword can meet."""
    found = []
    for path in sorted((ROOT / "braze").rglob("*.py")):
        if str(path.relative_to(ROOT / "braze")).startswith(OF_OPERATORS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.Lambda) and node.args.vararg and node.args.kwarg:
                named = [a.arg for a in (*node.args.args, *node.args.kwonlyargs)]
                found.append((f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'lambda')}", named))
    return found


def test_what_hands_arguments_on_has_no_named_parameter() -> None:
    functions = forwarding()
    assert len(functions) > 15
    assert {where: named for where, named in functions if named and where not in OUR_OWN} == {}


NAMES = (
    "self",
    "target",
    "function",
    "args",
    "kwargs",
    "t",
    "fn",
    "inputs",
    "state",
    "failed",
    "run",
    "cls",
    "callable",
    "tail",
)


def take(*args: object, **kwargs: object) -> tuple[object, ...]:
    braze.graph_break()
    return args, list(kwargs.items())


@pytest.mark.parametrize("how", ["names", "dict"])
def test_a_call_that_breaks_the_graph_keeps_keywords_of_all_names_and_their_order(how: str) -> None:
    words = dict.fromkeys(reversed(NAMES), 3)

    def spread(x: torch.Tensor) -> object:
        return take(x + 1, **words)

    def named(x: torch.Tensor) -> object:
        return take(x + 1, target=1, self=2, function=3, args=4, kwargs=5, t=6, fn=7)

    fn = spread if how == "dict" else named
    x = torch.ones(2)
    (mine,), pairs = braze.compile(fn, backend="eager")(x)
    assert torch.equal(mine, x + 1)
    assert pairs == fn(x)[1]
