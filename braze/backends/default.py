"""``backend="braze"``, the default: the whole pipeline down to kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from braze.backends.registry import register_backend
from braze.backends.uncompiled import compiled_or_as_captured
from braze.context import CompileContext
from braze.options import Options
from braze.pipeline import compile_graph
from braze.runtime.gpu.device_costs import costs_of
from braze.target import Target, cpu_target, cuda_target


@register_backend(needs_options=True)
def braze(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Options) -> Callable[..., Any]:
    """Kernels for the graph; where gradients are needed, the graph itself (see uncompiled.py)."""
    context = context_for(gm, example_inputs, options)
    return compiled_or_as_captured(
        gm, context.name, lambda: compile_graph(gm, example_inputs, context), strict=options.verify > 0
    )


def context_for(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Options) -> CompileContext:
    """Options, device and name of one compile."""
    name, alone = str(gm.meta.get("name", "graph")), bool(gm.meta.get("raises_alone", False))
    label, fixed = str(gm.meta.get("label", name)), torch.are_deterministic_algorithms_enabled()
    return CompileContext(
        options, target_of(example_inputs), name, raises_alone=alone, deterministic=fixed, label=label
    )


def target_of(example_inputs: Sequence[Any]) -> Target:
    """The device to generate code for: the first GPU among the inputs, else this machine's processor."""
    for value in example_inputs:
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            facts = torch.cuda.get_device_properties(value.device)
            index = torch.cuda.current_device() if value.device.index is None else value.device.index
            cores, costs = facts.multi_processor_count, costs_of(index)
            if torch.version.hip is not None:  # its numbers say another thing: (9, 0) is no Hopper
                return Target("cuda", facts.gcnArchName.split(":")[0], (), 16, cores, costs=costs)
            return cuda_target((facts.major, facts.minor), cores, costs)
    return cpu_target()
