"""Calling the compilers that users write: ``compiler(graph_module, example_inputs) -> callable``.

What a compiler returns is called with one argument per input, or, where it has a true attribute ``boxed`` (or
``_boxed_call``, as functions made for functorch have), with one list that it may empty. It returns a list or tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from braze.aot.facts.roles import placeholders
from braze.graph.operators.modes import with_modes
from braze.runtime.call.boxed import Boxed, boxed, is_boxed
from braze.support.errors import UserError
from braze.support.spoken import name_of_callable

#: (graph module of ATen operators, example inputs: fakes and sizes) -> what computes the graph's tuple
Compiler = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def make_boxed_func(fn: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
    """``fn(*inputs)`` as a boxed callable."""
    return boxed(lambda inputs: fn(*inputs))


def make_boxed_compiler(compiler: Compiler) -> Compiler:
    """A compiler whose callables take their inputs one by one, as one that returns boxed callables."""

    def compile(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        return make_boxed_func(compiler(module, example_inputs))

    return compile


def nop(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A compiler that leaves the graph to PyTorch."""
    return module.forward


def compiled_by(compiler: Compiler, module: torch.fx.GraphModule, which: str) -> Boxed:
    """What the compiler makes of one graph, as ``f(inputs) -> the graph's tuple``; its answers are checked.

    It runs without gradients, and without autocast, whose casts stand in the graph. ``which`` names the graph in errors: "forward", "backward".
    """
    module.recompile()
    name = name_of_callable(compiler)
    made = compiler(module, [n.meta["val"] for n in placeholders(module)])
    if not callable(made):
        raise UserError(
            "BZ0040",
            f"the compiler {name} gave {type(made).__name__} for the {which}",
            why="it must give a callable, with one argument per input or, with an attribute boxed = True, one list",
            hints=["return module.forward to leave a graph to PyTorch"],
        )
    takes_list = is_boxed(made)
    wanted = len(module.graph.output_node().args[0])  # type: ignore[arg-type]

    @boxed
    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        if takes_list:
            results = made(inputs if type(inputs) is list else list(inputs))
        else:
            results = made(*inputs)
        if type(results) not in (list, tuple) or len(results) != wanted:
            raise _miscounted(name, which, results, wanted)
        return results  # type: ignore[no-any-return]

    return with_modes(call)


def _miscounted(name: str, which: str, results: Any, wanted: int) -> UserError:
    have = f"{len(results)} results" if isinstance(results, (list, tuple)) else type(results).__name__
    return UserError(
        "BZ0040",
        f"what the compiler {name} made of the {which} returned {have}, not a list or tuple of {wanted}",
        why="it returns what the graph does: for a forward the user's results and then what is saved, for a backward the gradients",
        hints=["module.meta['output_roles'] tells what each item is"],
    )
