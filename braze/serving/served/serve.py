"""One call that serves any module: ``m = braze.serve(model)``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from braze.options import near
from braze.serving.policy.config import CompilationConfig, contradiction
from braze.serving.policy.data_parallel import Reduce, alone
from braze.serving.policy.engine_config import Config
from braze.serving.policy.fields import BY_NAME, one_of, refuse, switch
from braze.serving.policy.modes import AttentionCGSupport
from braze.serving.served.compiled import compiled
from braze.serving.served.inputs import Inputs
from braze.serving.served.model import ServedModel
from braze.serving.step.slots import Extent, Slot
from braze.support.errors import UserError


def serve(
    model: nn.Module,
    *,
    level: Any = None,
    cudagraph_mode: Any = None,
    capture_sizes: Any = None,
    capture: str | None = None,
    memory_budget: Any = None,
    dynamic: Mapping[str, int] | None = None,
    slots: Mapping[str, Slot] | None = None,
    split_ops: Sequence[str] | None = None,
    verify: Any = None,
    pool: str | None = None,
    outputs: str = "own",
    attention: AttentionCGSupport = AttentionCGSupport.ALWAYS,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    num_speculative_tokens: int = 0,
    variants: Sequence[Hashable] = (None,),
    reduce: Reduce = alone,
    evaluate_guards: bool = False,
    **fields: Any,
) -> ServedModel:
    """``model`` under compilation and CUDA graphs: each call is dispatched, padded, replayed and sliced.

    What is None the environment says (``BRAZE_SERVING_LEVEL``...), else the level's preset, else the default.

    ``level``: 0 to 3, a name, or O0 to O3; by default O2. ``cudagraph_mode``: a mode, or ``{"decode": "full", "mixed": "breakable"}``.
    ``capture_sizes``: ``"auto"``, a list, or ``"traffic:<file>"``. ``capture``: ``"eager"``, all at the first call or at ``m.capture(...)``; ``"lazy"``, those that
    steps ask for, at ``m.idle()``. ``memory_budget``: bytes of all recordings, as ``"2GiB"``. ``dynamic``: argument -> its dimension of tokens (by default the
    first of every tensor). ``slots``: how arguments and fields of the metadata are padded. ``split_ops``: operators between pieces.
    ``verify``: ``"off"``, ``"sample:1/256"`` or ``"always"``: replays are compared with eager. ``outputs``: ``"own"``, or ``"borrow"``, valid until the next
    call. ``attention``: what the attention in the model can be recorded with. ``reduce``: gathers rows from data-parallel ranks. ``evaluate_guards``: at levels 2 and 3,
    where a kind of call is captured once, refuse a step for which something that was taken for granted does not hold (BZ7217); else that is told of, once. ``fields``: others of
    :class:`CompilationConfig`. UserError (BZ71xx) for what cannot be.
    """
    if not isinstance(model, nn.Module):
        raise refuse("model", model, "a module, whose forward is served")
    said = {
        "level": level,
        "cudagraph_mode": cudagraph_mode,
        "cudagraph_capture_sizes": capture_sizes,
        "capture": capture,
        "memory_budget": memory_budget,
        "splitting_ops": split_ops,
        "verify": verify,
        "pool": pool,
    }
    config = Config(
        type(model).__name__,
        compilation_config=_compilation_config(said, fields),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_speculative_tokens=num_speculative_tokens,
        variants=variants,
    )
    outputs = one_of("own", "borrow")("outputs", outputs)
    evaluate_guards = switch("evaluate_guards", evaluate_guards)
    if not callable(reduce):
        raise refuse("reduce", reduce, "what gathers a row of numbers from every rank, as gloo() does")
    limits = Extent(max_num_batched_tokens, max_num_seqs)
    inputs = Inputs(model.forward, dynamic, {} if slots is None else slots, limits)
    resolution = config.resolve(attention)
    return ServedModel(
        model,
        config,
        resolution,
        compiled(model, config, resolution.mode, inputs, evaluate_guards),
        inputs,
        outputs=outputs,
        reduce=reduce,
        query_lens=(1,) if num_speculative_tokens else (),
    )


def _compilation_config(said: Mapping[str, Any], fields: Mapping[str, Any]) -> CompilationConfig:
    """The configuration of what was said; ``fields``: by the names that the configuration has for them."""
    given = {name: value for name, value in said.items() if value is not None}
    for name in fields:
        if name not in BY_NAME:
            known = {*BY_NAME, *inspect.signature(serve).parameters} - {"model", "fields"}
            raise UserError("BZ7101", f"serve has no argument {name!r}", hints=[near(name, known)])
        if name in given:
            short = "split_ops" if name == "splitting_ops" else "capture_sizes"
            raise contradiction(f"{short}=", f"{name}=", "they are two names of one: leave one of them out")
    if "level" not in given and not os.environ.get(BY_NAME["level"].variable):
        given["level"] = "O2"
    return CompilationConfig(**given, **fields)
