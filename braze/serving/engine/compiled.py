"""A decoder compiled for the runner: in pieces between its attention operators, or whole."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from braze.api import compile as braze_compile
from braze.products import RULED_ROWS
from braze.serving.engine.kept import Rows
from braze.serving.engine.models.decoder import Decoder
from braze.serving.pieces.backend import ServingBackend
from braze.serving.pieces.pools import GraphPools
from braze.serving.policy.config import CompilationConfig
from braze.serving.policy.fields import refuse
from braze.serving.policy.levels import ATTENTION_OPS
from braze.serving.policy.modes import CUDAGraphMode

#: the operator that is one kernel on a GPU
_OF_A_KERNEL = "braze::rope_attention_with_output"


def compile_decoder(
    model: Decoder,
    mode: CUDAGraphMode = CUDAGraphMode.NONE,
    split: str = "graph",
    pools: GraphPools | None = None,
    **fields: Any,
) -> Callable[..., torch.Tensor]:
    """The decoder's ``forward`` compiled for any number of tokens; its pieces record themselves in steps whose mode is PIECEWISE.

    ``mode``: what the runner records. ``split``: "graph", "schedule" or "capture", as ``CompilationConfig.split``; ``pools``: where its pieces are recorded; ``fields``: others of its; ``custom_ops`` says of
    ``rope_attention_with_output`` and ``chosen_experts`` whether the model calls them, or has ordinary code in their place, as it has of the former on the CPU by default.
    On a GPU the pieces are compiled apart for so few tokens that their products are kernels of our own, which read their weights while the kernel ahead of
    them ends, attention's too: weights are loaded anew between steps alone, which begin with an ordinary kernel. What it returns is valid until the next step.
    """
    if not isinstance(model, Decoder):
        raise refuse("model", model, "a decoder, as load_model gives it; braze.serve takes any module")
    on_gpu = next(model.parameters()).device.type == "cuda"
    if on_gpu:
        options = {
            "early_launches": "between" if split == "graph" else "products",
            **fields.pop("inductor_compile_config", {}),
        }
        few = {"compile_ranges_endpoints": (RULED_ROWS,)} if split == "graph" else {}
        fields = few | {"inductor_compile_config": options, **fields}
    config = CompilationConfig(
        level=3, cudagraph_mode=mode, splitting_ops=list(ATTENTION_OPS), split=split, **fields
    )
    # where there is no kernel of it, compiled parts are faster than the operator's
    model.choose(lambda op: config.uses_custom_op(op, default=on_gpu or op != _OF_A_KERNEL))
    backend = ServingBackend(config, pools=pools, own_outputs=False, model=model, keeps=True)
    return braze_compile(
        model, fullgraph=True, dynamic=True, backend=backend, options={"keep_captures": True}
    )


#: up to so many rows of 151,936 logits an H200 took less time to order them than to search (8 rows: 0.68 and 0.98 ms; 64: 2.04 and 1.19)
_ORDERED = 16


@functools.cache
def compiled_rows() -> Rows:
    """What draws tokens, compiled for any number of rows from two on."""

    def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        names = [name for name in inspect.signature(function).parameters if name != "step"]
        return braze_compile(function, fullgraph=True, shapes=dict.fromkeys(names, ("rows", None)))

    return Rows(compiled, few=_ORDERED)
