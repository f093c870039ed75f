"""``backend="aot_eager"``: trace to ATen, functionalize, then run the ATen graph by ATen.

Tells whether a difference comes from the ahead-of-time stage or from the stages after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from braze import aot
from braze.backends.default import context_for
from braze.backends.registry import register_backend
from braze.backends.uncompiled import compiled_or_as_captured
from braze.options import Options
from braze.support import trace


@register_backend(needs_options=True)
def aot_eager(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Options
) -> Callable[..., Any]:
    """The partition's graphs, with mutations and aliases carried out around them."""
    context = context_for(gm, example_inputs, options)

    def compile() -> Callable[..., Any]:
        with trace.stage("aot"):
            partition = aot.partition(gm, example_inputs, context, between=True)
        call = aot.with_own_results(partition, aot.eager_forward(partition.forward))
        backward = partition.backward
        if backward is not None:
            call = aot.differentiable(
                partition, call, lambda part: aot.eager_forward(part.graph), by_tangents=True
            )
        return aot.wrap(partition, call, eager=gm.forward, verify=options.verify)

    return compiled_or_as_captured(gm, context.name, compile, strict=options.verify > 0)
