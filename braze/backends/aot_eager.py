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
from braze.backends.training import training_runs_eagerly
from braze.options import Options
from braze.support import trace


@register_backend(needs_options=True)
def aot_eager(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Options) -> Callable[..., Any]:
    """The partition's forward, with its mutations and aliases carried out around it."""
    context = context_for(gm, example_inputs, options)
    if training_runs_eagerly(gm, context.name):
        return gm.forward
    with trace.stage("aot"):
        partition = aot.partition(gm, example_inputs, context)
    return aot.wrap(partition, aot.eager_forward(partition), eager=gm)
