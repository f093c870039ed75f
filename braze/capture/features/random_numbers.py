"""Numbers drawn from the generator of Python's ``random``, and seeds of PyTorch's: nobody knows the numbers while tracing.

A draw is noted, and done anew at each call before the graph runs, in the order of the program: nothing else that a graph
does moves that generator. The number itself is a symbol that only the call tells. Where it goes into the graph, it goes
there in a tensor; a decision by it ends the graph, as one by any number that only the data tell.

A graph draws all of its random numbers between what runs before it and what runs after. A seed that is set (``torch.manual_seed``) before the
graph draws anything is set before the graph runs; one that is set when it has drawn is set afterwards. Where the graph draws on
both sides it ends at the seed.
"""

from __future__ import annotations

import math
import random
from typing import Any, NoReturn

import torch
import torch.fx

from braze import native
from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, Unrebuildable, graph_break
from braze.capture.facts.purity import is_random
from braze.capture.facts.records import ITEM, SEED, Constant, Draw, Drawn, Effect, EffectKind, Recipe
from braze.capture.facts.replay import GENERATOR
from braze.capture.facts.values import words
from braze.capture.features import rules
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.outside.looked_into import fill_arguments
from braze.capture.python.operations import number
from braze.capture.state.handlers import Feature
from braze.capture.state.ledger import LaterSeed, Ledger
from braze.capture.state.trace import Recording, Trace
from braze.graph.nodes.facts import set_facts
from braze.graph.private import torch_compat
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.graph.sizes.numbers import QUESTIONS

FEATURE = Feature()

#: methods of generators that give a number or numbers; of what they are given, ``shuffle`` alone changes something
DRAWS = frozenset(
    words(
        """random uniform triangular randint randrange getrandbits gauss normalvariate lognormvariate expovariate
    betavariate gammavariate vonmisesvariate paretovariate weibullvariate choice choices sample shuffle"""
    )
)
#: numbers to choose from, and numbers in a list that is given, at most
MOST, MOST_GIVEN = 4096, 64
#: what generators do of their own; a program may have put something else there
_ITS_OWN = dict(vars(random.Random))
#: integers beyond this do not fit into a tensor
LARGEST = 1 << 62


def draw(t: Trace, name: str, owner: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    """``random.name(...)``: symbols for its numbers; a break where it gives others, or is of another generator."""
    fill_arguments(t.outside, (*args, *(kwargs or {}).values()))
    if name == "shuffle" and owner is GENERATOR and len(args) == 1 and not kwargs and type(args[0]) is list:
        args[0][:] = draw_numbers(t, name, (elements(name, args[0]),), {})
        return None
    named = {k: plain(name, v) for k, v in (kwargs or {}).items()}
    if owner is not GENERATOR:
        refuse(name)
    return draw_numbers(t, name, tuple([plain(name, v) for v in args]), named)


def draw_numbers(t: Trace, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Note a draw from Python's generator: a symbol for the number that it gives, or a list of such."""
    if name not in DRAWS or is_replaced():
        refuse(name)
    try:
        kinds = native.unhooked(example, name, args, kwargs)
    except Exception:  # whatever it raises, the program is to get it from its own call, after what was drawn
        refuse(name)
    what = Draw(name, args, tuple(kwargs.items()))
    if kinds is None:
        refuse(name)
    if type(kinds) is not list:
        return note(t.done, what, unknown(t, kinds, what))
    if len(kinds) > MOST_GIVEN:
        refuse(name)
    first = len(t.done.draws)
    note(t.done, what, None)
    return [note(t.done, Draw(ITEM, (first, i)), unknown(t, kind, what)) for i, kind in enumerate(kinds)]


def unknown(t: Trace, kind: type, what: Draw) -> Any:
    """A symbol for a number of a draw."""
    return t.graph.mode.unknown(kind, bounds(what) if kind is int else None)


def bounds(what: Draw) -> tuple[int, int] | None:
    """Between which integers those of a draw lie, so that what holds of all of them is no decision by what was drawn.

    None where an argument that decides it has its name: nobody says ``randint(a=1, b=4)``.
    """
    among: Any = ()
    integers = not what.kwargs and all(type(n) is int for n in what.args)
    if what.args and type(what.args[0]) is tuple:
        among = what.args[0]
    elif what.name == "getrandbits" and integers:
        among = range(1 << what.args[0])
    elif what.name == "randint" and integers:
        among = range(what.args[0], what.args[1] + 1)
    elif what.name == "randrange" and integers:
        among = range(*what.args)
    if not among:
        return None
    ends = (among[0], among[-1]) if type(among) is range else among
    return min(ends), max(ends)


def is_replaced() -> bool:
    """Whether methods of generators are the program's: an example of a draw would run these."""
    now = vars(random.Random)
    return len(now) != len(_ITS_OWN) or any(now.get(name) is not value for name, value in _ITS_OWN.items())


def note(done: Ledger, what: Draw, value: Any) -> Any:
    """Enter a draw, and what stands for its number."""
    if value is not None:
        done.drawn[value.node._expr] = len(done.draws)
    done.draws.append((what, value, done.frames.here()))
    return value


def plain(name: str, value: Any) -> Any:
    """An argument as a constant: a number, None, or a tuple of numbers."""
    if value is None:
        return None
    if type(value) in (list, tuple, range):
        return elements(name, value)
    value = number(value)
    if type(value) not in (int, float) or not math.isfinite(value):
        refuse(name)
    return value


def elements(name: str, values: Any) -> tuple[int | float, ...]:
    """Numbers to choose from, or to put in another order: all of them integers, or all of them floats."""
    if len(values) > MOST:
        refuse(name)
    found = tuple(map(number, values))
    kinds = set(map(type, found))
    if len(kinds) != 1 or not kinds <= {int, float} or not all(map(math.isfinite, found)):
        refuse(name)
    return found


def example(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kind of number that such a draw gives, or a list of such; None where one may fit into no tensor."""
    if name == "shuffle":
        found: Any = list(args[0])
    else:
        found = getattr(random.Random(0), name)(*args, **kwargs)
    kinds = set(map(type, found)) if type(found) is list else {type(found)}
    if kinds == {float} or not kinds:
        return [float] * len(found) if type(found) is list else float
    given = [v for a in (*args, *kwargs.values()) for v in (a if type(a) is tuple else (a,)) if v is not None]
    largest = 1 << args[0] if name == "getrandbits" and args else max(map(abs, given))
    if kinds != {int} or largest > LARGEST:
        return None
    return [int] * len(found) if type(found) is list else int


def refuse(name: str) -> NoReturn:
    """Break before a function of ``random``, of whose steps none may be taken while tracing."""
    graph_break("BZ1017", f"random.{name} draws a random number outside torch", HINT_MOVE)


def recipe(table: RecipeTable, value: Any) -> Recipe | None:
    """How residual code gets a drawn number, or what one compares to: no graph is needed for that. None for anything else."""
    if not table.t.done.draws:
        return None
    expr = value.node._expr
    if type(value) is not torch.SymBool:
        index = table.t.done.drawn.get(expr)
        return None if index is None else Drawn(index)
    if not expr.is_Relational:
        return None
    sides = []
    for side in expr.args:
        index = table.t.done.drawn.get(side)
        if index is None and not side.is_Float and not side.is_Integer:
            return None
        known = Constant(int(side) if side.is_Integer else float(side)) if index is None else Drawn(index)
        sides.append(table.add(known))
    return table.call(QUESTIONS[expr.func.__name__], *sides)


def node_of(recorder: Recording, symbol: Any) -> torch.fx.Node | None:
    """The node of a drawn number, made when the graph first wants it: it is read out of an input of no dimensions."""
    index = recorder.t.done.drawn.get(symbol)
    if index is None or recorder is not recorder.t.graph.recorder or recorder.outer is not None:
        return None  # in a graph within the graph numbers are drawn at each run of it
    what, drawn, here = recorder.t.done.draws[index]
    dtype = torch.float64 if type(drawn) is torch.SymFloat else torch.int64
    with torch_compat.disable_functions(), recorder.t.graph.mode:
        fake = torch.empty((), dtype=dtype, device="cpu")
    given = recorder.given(f"random_{what.name}_{index}", fake)
    recorder.drawn[given] = index
    with recorder.graph.inserting_after(given):
        node = recorder.graph.create_node("call_method", "item", (given,), {})
    node.meta["val"] = drawn
    set_facts(node, place=here)
    recorder.calls += 1
    recorder.symbols[symbol] = node
    return node


def module_function(t: Trace, fn: Any, args: Any, kwargs: Any) -> Any:
    """A function of the module, or a method of a generator, that is written in Python."""
    return draw(t, fn.__name__, args[0] if args else None, args[1:], kwargs)


@FEATURE.each(random.random, random.getrandbits)
def in_c(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A function of the module that is written in C."""
    return draw(t, function.__name__, GENERATOR, args, kwargs)


FEATURE.modules["random"] = module_function
FEATURE.nodes.append(node_of)
FEATURE.recipes |= dict.fromkeys(SYMBOLIC, recipe)


# -- seeds of PyTorch's generators


def effects(t: Trace, table: RecipeTable) -> list[Effect]:
    """The seeds that are set after the graph; back to before one that the graph draws after."""
    found = []
    for later in t.done.seeds:
        node = later.last.next
        while node.op != "root":
            if is_random(node):
                t.frames.break_at = BreakSignal(
                    "BZ1017", "a seed is set between operations that draw random numbers", (HINT_MOVE,)
                )
                raise Unrebuildable(later)
            node = node.next
        target = table.add(Constant(torch.manual_seed))
        found.append(Effect(EffectKind.CALL, (target, table.id_of(later.seed))))
    return found


FEATURE.effects.append(effects)


@FEATURE.call(torch.manual_seed)
def manual_seed(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Before the graph where it has drawn nothing by now, else after it."""
    seed = kwargs.get("seed") if kwargs else args[0] if args else None
    if type(seed) is not int or len(args) + len(kwargs) != 1 or t.graph.recorder.outer is not None:
        graph_break(
            "BZ1017", "a seed is set that is no plain number, or in a graph within the graph", HINT_MOVE
        )
    nodes = list(t.graph.recorder.graph.nodes)
    if not t.done.seeds and not any(map(is_random, nodes)):
        t.done.draws.append((Draw(SEED, (seed,)), None, t.frames.here()))
    else:
        t.done.seeds.append(t.done.claim(LaterSeed(seed, nodes[-1])))
    return t.outside.tree.constant(torch.default_generator).value


rules.refuse(
    "BZ1017",
    "a seed is drawn, or a generator's state is touched",
    torch.seed,
    torch.initial_seed,
    *rules.named(
        torch.Generator,
        "get_state",
        "set_state",
        "manual_seed",
        "seed",
        "initial_seed",
        "clone_state",
        "graphsafe_set_state",
    ),
)
