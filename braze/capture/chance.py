"""Numbers drawn from the generator of Python's ``random``: nobody knows them while tracing.

A draw is noted, and done anew at each call before the graph runs, in the order of the program: nothing else that a graph
does moves that generator. The number itself is a symbol that only the call tells. Where it goes into the graph, it goes
there in a tensor; a decision by it ends the graph, as one by any number that only the data tell.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from braze import native
from braze.capture.breaks import HINT_MOVE, graph_break
from braze.capture.records import Build, Constant, Draw, Drawn, Recipe
from braze.capture.values import words
from braze.graph import torch_compat

if TYPE_CHECKING:
    import torch.fx

    from braze.capture.building import RecipeTable
    from braze.capture.recorder import Recorder
    from braze.capture.tracer import Tracer

#: methods of generators that give one number and change nothing but the generator
DRAWS = frozenset(
    words(
        """random uniform triangular randint randrange getrandbits gauss normalvariate lognormvariate expovariate
    betavariate gammavariate vonmisesvariate paretovariate weibullvariate"""
    )
)
#: the generator whose methods the module's functions are
GENERATOR: Any = random._inst  # type: ignore[attr-defined]
#: integers beyond this do not fit into a tensor
LARGEST = 1 << 62


def draw(t: Tracer, name: str, owner: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """``random.name(...)``: a symbol for the number; a break where it is no number, or of another generator."""
    given = tuple(map(number, args))
    named = {k: number(v) for k, v in (kwargs or {}).items()}
    numbers = all(type(v) in (int, float) and math.isfinite(v) for v in (*given, *named.values()))
    if name not in DRAWS or owner is not GENERATOR or not numbers:
        refuse(name)
    try:
        kind = native.unhooked(example, name, given, named)
    except Exception:  # whatever it raises, the program is to get it from its own call, after what was drawn
        refuse(name)
    if kind is None:
        refuse(name)
    value = t.mode.unknown(kind)
    t.draws.append((Draw(name, given, tuple(named.items())), value, t.here()))
    return value


def number(value: Any) -> Any:
    """A symbol as the number that it is in this call, which is guarded."""
    return (
        int(value)
        if type(value) is torch.SymInt
        else float(value)
        if type(value) is torch.SymFloat
        else value
    )


def example(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> type | None:
    """The kind of number that such a draw gives; None where it may fit into no tensor."""
    found = getattr(random.Random(0), name)(*args, **kwargs)
    if type(found) is float:
        return float
    largest = 1 << args[0] if name == "getrandbits" and args else max(map(abs, (*args, *kwargs.values())))
    return int if type(found) is int and largest <= LARGEST else None


def refuse(name: str) -> NoReturn:
    """Break before a function of ``random``, of whose steps none may be taken while tracing."""
    graph_break("BZ1017", f"random.{name} draws a random number outside torch", HINT_MOVE)


def index_of(t: Tracer, symbol: Any) -> int | None:
    """Which draw of the trace a symbol stands for."""
    for index, (_, drawn, _) in enumerate(t.draws):
        if drawn.node._expr == symbol:
            return index
    return None


def recipe(table: RecipeTable, value: Any) -> Recipe | None:
    """How residual code gets a drawn number, or what one compares to: no graph is needed for that. None for anything else."""
    expr = value.node._expr
    if type(value) is not torch.SymBool:
        index = index_of(table.t, expr)
        return None if index is None else Drawn(index)
    if not expr.is_Relational:
        return None
    sides = []
    for side in expr.args:
        index = index_of(table.t, side)
        if index is None and not side.is_Float and not side.is_Integer:
            return None
        number = Constant(int(side) if side.is_Integer else float(side)) if index is None else Drawn(index)
        sides.append(table.add(number))
    question = torch_compat.SYMBOLIC_QUESTIONS[expr.func.__name__]
    return Build("call", (table.add(Constant(question)), *sides))


def node_of(recorder: Recorder, symbol: Any) -> torch.fx.Node | None:
    """The node of a drawn number, made when the graph first wants it: it is read out of an input of no dimensions."""
    index = index_of(recorder.t, symbol)
    if index is None or recorder is not recorder.t.recorder or hasattr(recorder, "outer"):
        return None  # in a graph within the graph numbers are drawn at each run of it
    what, drawn, here = recorder.t.draws[index]
    dtype = torch.float64 if type(drawn) is torch.SymFloat else torch.int64
    with torch_compat.disable_functions(), recorder.t.mode:
        fake = torch.empty((), dtype=dtype, device="cpu")
    given = recorder.given(f"random_{what.name}_{index}", fake)
    recorder.drawn[given] = index
    with recorder.graph.inserting_after(given):
        node = recorder.graph.create_node("call_method", "item", (given,), {})
    node.meta.update(val=drawn, origin=here)
    recorder.calls += 1
    recorder.symbols[symbol] = node
    return node


def inputs_of(recorder: Recorder) -> list[tuple[int, torch.fx.Node]]:
    """The draws that the graph uses, as its last inputs; those that it does not use after all are taken out."""
    used = []
    for given, index in recorder.drawn.items():
        (read,) = given.users
        if read.users:
            recorder.mode.let_read()
            used.append((index, given))
            continue
        recorder.graph.erase_node(read)
        recorder.graph.erase_node(given)
    return used
