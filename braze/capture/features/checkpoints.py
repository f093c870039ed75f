"""``torch.utils.checkpoint``: one node over a subgraph, whose values the backward computes again."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
import torch.utils.checkpoint
from torch._ops import OpOverload

from braze.capture.facts.breaks import graph_break
from braze.capture.features.subgraphs import flatten, note, region, traced, union
from braze.capture.python.higher_order import MODULES, break_around
from braze.capture.python.iteration import elements
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace
from braze.graph.calls import checkpoints

FEATURE = Feature()
rule = FEATURE.call

SETTINGS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")


@rule(torch.utils.checkpoint.checkpoint)
def checkpoint(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Without gradients nothing is kept, so there is nothing to run again: the function is simply called."""
    function, *given = args
    named = {k: v for k, v in kwargs.items() if k not in SETTINGS}
    if not torch.is_grad_enabled() and "context_fn" not in kwargs:
        return t.call(function, tuple(given), named or None, tail)
    reentrant = kwargs.get("use_reentrant")
    chooses = "context_fn" in kwargs
    if type(reentrant) is not bool or kwargs.get("debug") or (chooses and reentrant):
        break_around(MODULES["torch.utils.checkpoint"])
    policy = _policy(t, kwargs["context_fn"]) if chooses else None
    if not torch.is_grad_enabled():
        return t.call(function, tuple(given), named or None, tail)
    leaves, _ = flatten(t, (given, named))
    wants = any(isinstance(x, torch.Tensor) and x.requires_grad for x in leaves)
    if reentrant and (named or not wants):  # eager refuses the first, and warns of the second
        break_around(MODULES["torch.utils.checkpoint"])
    with region(t, "checkpoint", (function,), tensors=False):
        t.graph.saving += not reentrant
        try:
            part = traced(t, function, tuple(given), (), named)
        finally:
            t.graph.saving -= not reentrant
        if not all(isinstance(x, torch.Tensor) or x is None for x in part.leaves):
            graph_break("BZ1019", "its function gives something else than tensors")
        known = {id(x) for x in leaves}
        inputs = sorted(union(part), key=lambda x: id(x) not in known)
        count = sum(id(x) in known for x in inputs)
        places = [i for i, x in enumerate(part.leaves) if x is not None]
        results = tuple([part.leaves[i] for i in places])
        part.leaves = list(results)
        number = 1 + sum(n.target is checkpoints.checkpointed for n in t.graph.recorder.graph.nodes)
        settings: tuple[Any, ...] = (
            number,
            kwargs.get("preserve_rng_state", True),
            kwargs.get("determinism_check", "default"),
        )
        modules: dict[str, Any] = {"region": part.module(inputs)}
        if policy is not None:
            modules["policy"] = policy
        else:
            settings = (None, *settings)
        note(
            t.graph,
            checkpoints.checkpointed,
            (),
            modules,
            (*settings, tuple(inputs[:count]), tuple(inputs[count:])),
            results,
        )
    return part.result


class Context:
    """One of the two contexts of a checkpoint that keeps what a policy says. It lives in the trace only."""

    lives_in_trace = True

    def __init__(self, policy: checkpoints.Policy) -> None:
        self.policy = policy


@rule(torch.utils.checkpoint.create_selective_checkpoint_contexts)
def selective(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Two contexts that stand for the policy: a function of the program's, or a list of operators to keep."""
    words = dict(zip(("policy_fn_or_list", "allow_cache_entry_mutation"), args, strict=False)) | dict(kwargs)
    given = words.get("policy_fn_or_list")
    if isinstance(given, list):
        ops = list(elements(t, given))
        if not all(isinstance(op, OpOverload) for op in ops):
            break_around(MODULES["torch.utils.checkpoint"])  # eager says what is wrong
        function: Any = checkpoints.saving(ops)
    elif isinstance(given, FunctionType):
        function = given
    else:
        break_around(MODULES["torch.utils.checkpoint"])
    made = Context(checkpoints.Policy(function, bool(words.get("allow_cache_entry_mutation", False))))
    return (t.done.claim(made), t.done.claim(Context(made.policy)))


def _policy(t: Trace, context_fn: Any) -> checkpoints.Policy:
    """The policy of the contexts that a program's ``context_fn`` gives; of others nothing is known."""
    with region(t, "checkpoint", (context_fn,), pure=False):
        made = t.call(context_fn, ())
        if not (isinstance(made, tuple) and len(made) == 2 and all(type(x) is Context for x in made)):
            graph_break("BZ1019", "its context_fn gives contexts of another kind than the selective ones")
        first, second = made
        if first.policy is not second.policy:
            graph_break("BZ1019", "its context_fn gives contexts of two policies")
    return first.policy  # type: ignore[no-any-return]


class Chain:
    """Functions to be called one after the other. It lives in the trace only."""

    def __init__(self, functions: list[Any]) -> None:
        self.functions = functions

    def __call__(self, value: Any) -> Any:
        raise AssertionError("only called in a trace")


@rule(Chain.__call__)
def call_chain(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The last one's result."""
    chain, value = args
    for function in chain.functions:
        value = t.call(function, (value,), None)
    return value


@rule(torch.utils.checkpoint.checkpoint_sequential)
def checkpoint_sequential(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
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
        break_around(MODULES["torch.utils.checkpoint"])
    if issubclass(type(functions), torch.nn.Sequential):
        functions = t.call(t.attribute(functions, "children"), ())
    steps = list(elements(t, functions))
    size = len(steps) // segments
    for k in range(segments - 1):
        segment = Chain(steps[k * size : (k + 1) * size])
        value = checkpoint(t, (segment, value), dict(settings), False)
    return call_chain(t, (Chain(steps[(segments - 1) * size :]), value), {}, False)
