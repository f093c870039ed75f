"""Hooks that the program puts on tensors: they are put there when the graph has run, in the order of the program.

A tensor from outside gets its hook as it would in eager: its gradient comes out of the compiled backward, and autograd hands
it to the hook. A tensor that the graph makes may get one where nothing else of the graph reads it: then all of its gradient
comes from those to whom it is returned. Elsewhere the gradient exists inside the compiled backward only: a hook that does
nothing but compute becomes a part of the graph (:mod:`braze.graph.hooked`), any other ends it.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from braze.capture.facts.breaks import BreakSignal, Unrebuildable
from braze.capture.facts.records import Build, Constant, Effect, EffectKind
from braze.capture.facts.replay import AfterGiven, WhereGiven
from braze.capture.state.ledger import Hooked
from braze.capture.state.recipes import Recipes
from braze.capture.state.trace import Trace

HINT = "put the hook on a tensor that comes into the function, or use torch.autograd.Function"
#: the methods of a tensor that take a hook and give a handle
REGISTER: tuple[Any, ...] = (torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)


class Inside(BaseException):
    """The hook that an instruction puts on a tensor must become a part of the graph: trace again, knowing that."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def effects(t: Trace, table: Recipes) -> list[Effect]:
    """The hooks that stay."""
    found = []
    for hooked in t.done.hooks.values():
        if hooked.removed:
            continue
        check(t, hooked)
        if hooked.inside:
            continue
        found.append(Effect(EffectKind.MADE, (table.id_of(hooked.handle),)))
    return found


def recipe(table: Recipes, handle: Any) -> Build | None:
    """How residual code gets a handle: it puts the hook on the tensor. None for a handle from elsewhere."""
    found = table.t.done.hooks.get(id(handle))
    if found is None or found.handle is not handle:
        return None
    if found.removed or found.inside:
        raise Unrebuildable(handle)
    guarded = WhereGiven if found.register is torch.Tensor.register_hook else AfterGiven
    hook = table.add(Build("call", (table.add(Constant(guarded)), table.id_of(found.hook))))
    return Build("call", (table.add(Constant(found.register)), table.id_of(found.tensor), hook))


def check(t: Trace, hooked: Hooked) -> None:
    """Go back to before the hook where eager's would see another gradient than the one that comes in afterwards."""
    tensor = hooked.tensor
    place = t.outside.tree.node_of(tensor)
    if place is not None and place.real.is_leaf and tensor.requires_grad:
        return  # a leaf stays one: it is written under no_grad only
    reason = ""
    if not tensor.requires_grad:
        reason = "a hook is put on a tensor that is cut off from its history afterwards"
    elif tensor._version != hooked.version:
        reason = "a hook is put on a tensor that is written in place afterwards"
    elif hooked.inside and changes(t, hooked):
        reason = "a hook is put on a tensor in the middle of the graph, and uses variables that may change"
    elif place is None and not hooked.inside and t.graph.recorder.nodes[id(tensor)][1].users:
        raise Inside(hooked.step)
    if reason:
        t.frames.break_at = BreakSignal("BZ1010", reason, (HINT,))
        raise Unrebuildable(hooked.handle)


def verify(t: Trace, table: Recipes) -> None:
    """Go back to before a hook in the middle of the graph whose tensor is handed out: others may put hooks there, after it."""
    for hooked in t.done.hooks.values():
        if hooked.inside and t.graph.recorder.nodes[id(hooked.tensor)][1] in table.output_index:
            reason = "a hook is put on a tensor in the middle of the graph that is handed out, too"
            t.frames.break_at = BreakSignal("BZ1010", reason, (HINT,))
            raise Unrebuildable(hooked.handle)


def changes(t: Trace, hooked: Hooked) -> bool:
    """Whether a variable that the hook uses has changed since, or somebody may change it before the backward."""
    if hooked.cells and t.frames.live:
        return True  # the frame goes on after a break
    for cell, held in hooked.cells:
        if cell.cell_contents is not held:
            return True
        for value, _ in t.done.made.values():
            if type(value) is types.FunctionType and value is not hooked.hook:
                if any(c is cell for c in value.__closure__ or ()):
                    return True
    return False
