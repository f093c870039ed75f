"""``torch.manual_seed`` while tracing: a graph draws all of its random numbers between what runs before it and what runs after.

A seed that is set before the graph draws anything is set before the graph runs; one that is set when it has drawn is set
afterwards. Where the graph draws on both sides the graph ends at the seed.
"""

from __future__ import annotations

from typing import Any

import torch

from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, Unrebuildable, graph_break
from braze.capture.facts.purity import is_random
from braze.capture.facts.records import SEED, Constant, Draw, Effect, EffectKind
from braze.capture.features.rules import named, refuse
from braze.capture.state.handlers import Feature
from braze.capture.state.ledger import LaterSeed
from braze.capture.state.recipes import Recipes
from braze.capture.state.trace import Trace

FEATURE = Feature()


def effects(t: Trace, table: Recipes) -> list[Effect]:
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


refuse(
    "BZ1017",
    "a seed is drawn, or a generator's state is touched",
    torch.seed,
    torch.initial_seed,
    *named(
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
