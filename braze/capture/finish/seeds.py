"""``torch.manual_seed`` while tracing: a graph draws all of its random numbers between what runs before it and what runs after.

A seed that is set before the graph draws anything is set before the graph runs; one that is set when it has drawn is set
afterwards. Where the graph draws on both sides the graph ends at the seed.
"""

from __future__ import annotations

import torch
import torch.fx

from braze.capture.facts.breaks import HINT_MOVE, BreakSignal, Unrebuildable
from braze.capture.facts.purity import is_random
from braze.capture.facts.records import Constant, Effect, EffectKind
from braze.capture.state.recipes import Recipes
from braze.capture.state.trace import Trace

#: stands among what is done before the graph for a seed of PyTorch's generators
SEED = "manual_seed"


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
