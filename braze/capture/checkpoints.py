"""``torch.utils.checkpoint``: one node over a subgraph, whose values the backward computes again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint

from braze.capture.breaks import graph_break
from braze.capture.foreign import MODULES, whole
from braze.capture.rules import rule
from braze.capture.subgraphs import flatten, note, region, traced, union
from braze.graph import checkpoints

if TYPE_CHECKING:
    from braze.capture.tracer import Tracer

SETTINGS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


@rule(torch.utils.checkpoint.checkpoint)
def checkpoint(t: Tracer, args: Any, kwargs: Any, tail: bool) -> Any:
    """Without gradients nothing is kept, so there is nothing to run again: the function is simply called."""
    function, *given = args
    named = {k: v for k, v in kwargs.items() if k not in SETTINGS}
    if not torch.is_grad_enabled() and "context_fn" not in kwargs:
        return t.call(function, tuple(given), named or None, tail)
    reentrant = kwargs.get("use_reentrant")
    if type(reentrant) is not bool or "context_fn" in kwargs or kwargs.get("debug"):
        whole(MODULES["torch.utils.checkpoint"])
    leaves, _ = flatten(t, (given, named))
    wants = any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)
    if reentrant and (named or not wants):  # eager refuses the first, and warns of the second
        whole(MODULES["torch.utils.checkpoint"])
    with region(t, "checkpoint", (function,), tensors=False):
        part = traced(t, function, tuple(given), (), named)
        if not all(isinstance(x, torch.Tensor) or x is None for x in part.leaves):
            graph_break("BZ1019", "its function gives something else than tensors")
        known = {id(x) for x in leaves}
        inputs = sorted(union(part), key=lambda x: id(x) not in known)
        count = sum(id(x) in known for x in inputs)
        places = [i for i, x in enumerate(part.leaves) if x is not None]
        results = tuple([part.leaves[i] for i in places])
        part.leaves = list(results)
        number = 1 + sum(n.target is checkpoints.checkpointed for n in t.recorder.graph.nodes)
        settings = (
            number,
            kwargs.get("preserve_rng_state", True),
            kwargs.get("determinism_check", "default"),
        )
        modules = {"region": part.module(inputs)}
        note(
            t,
            checkpoints.checkpointed,
            (),
            modules,
            (*settings, tuple(inputs[:count]), tuple(inputs[count:])),
            results,
        )
    return part.result


class Chain:
    """Functions to be called one after the other. It lives in the trace only."""

    def __init__(self, functions: list[Any]) -> None:
        self.functions = functions

    def __call__(self, value: Any) -> Any:
        raise AssertionError("only called in a trace")


@rule(Chain.__call__)
def call_chain(t: Tracer, args: Any, kwargs: Any, tail: bool) -> Any:
    """The last one's result."""
    chain, value = args
    for function in chain.functions:
        value = t.call(function, (value,), None)
    return value


@rule(torch.utils.checkpoint.checkpoint_sequential)
def checkpoint_sequential(t: Tracer, args: Any, kwargs: Any, tail: bool) -> Any:
    """Equal segments, each a checkpoint but the last."""
    settings = dict(kwargs)
    given = list(args)
    given += [settings.pop(k) for k in ("functions", "segments", "input")[len(given) :] if k in settings]
    functions, segments, value, *rest = given
    if rest:
        settings["use_reentrant"] = rest[0]
    if (
        len(rest) > 1
        or type(segments) is not int
        or not set(settings) <= {"use_reentrant", "preserve_rng_state"}
    ):
        whole(MODULES["torch.utils.checkpoint"])
    if isinstance(functions, torch.nn.Sequential):
        functions = t.call(t.attr(functions, "children"), ())
    steps = list(t.elements(functions))
    size = len(steps) // segments
    for k in range(segments - 1):
        segment = Chain(steps[k * size : (k + 1) * size])
        value = checkpoint(t, (segment, value), dict(settings), False)
    return call_chain(t, (Chain(steps[(segments - 1) * size :]), value), {}, False)
