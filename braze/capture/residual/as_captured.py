"""Graphs that run as captured: whether one that fails has written an input, which PyTorch counts, and what an error leaves set.

So what the data make it raise can be raised by Python, in the program's own lines and handlers, as with compiled graphs
(``support/unwritten.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx

from braze.capture.facts.purity import Again, may_run_again, name_of, writes
from braze.capture.facts.records import Capture, Constant, Effect, EffectKind
from braze.graph.private.torch_settings import SETTERS
from braze.support.unwritten import note_unwritten


def settings_left(capture: Capture) -> list[Effect]:
    """What sets PyTorch's settings as they are once blocks are left that a function was in at a break: an error leaves them, too."""
    targets = ((effect, capture.recipes[effect.args[0]]) for effect in capture.effects if effect.args)
    return [
        effect
        for effect, target in targets
        if effect.kind is EffectKind.CALL
        and isinstance(target, Constant)
        and any(target.value is setter for setter in SETTERS)
    ]


def told_of_writes(graph: torch.fx.GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, with a note on what it raises before an input is written, where it is the graph itself and each write is counted."""
    if getattr(run, "__self__", run) is not graph or may_run_again(graph.graph) is not Again.UNWRITTEN:
        return run
    if not all(_is_counted(node) for node in graph.graph.nodes):
        return run

    @functools.wraps(run)
    def told(*args: Any) -> Any:
        seen = _versions(args)
        try:
            return run(*args)
        except Exception as error:
            if seen is not None and seen == _versions(args):
                note_unwritten(error)
            raise

    return told


def _is_counted(node: torch.fx.Node) -> bool:
    """Whether a node writes nothing, or in a way that moves the version of what it writes."""
    if node.op == "get_attr" or (
        node.op == "call_function" and node.target is getattr and node.args[1] == "data"
    ):
        return False  # a tensor that is no input; the same memory under another counter
    return (
        not writes(node)
        or name_of(node) == "setitem"
        or (name_of(node).endswith("_") and name_of(node) != "set_")
    )


def _versions(values: Iterable[Any]) -> list[int] | None:
    """How often each tensor was written; None where that is not counted."""
    if torch.is_inference_mode_enabled():
        return None
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return None if any(t.is_inference() for t in tensors) else [t._version for t in tensors]
