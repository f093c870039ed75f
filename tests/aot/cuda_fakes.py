"""Graphs over fakes of GPU tensors, made on a machine without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze import pipeline
from braze.aot.facts.records import Partition
from braze.context import CompileContext
from braze.graph.fakes import fakes
from braze.graph.nodes.facts import InputRole, set_facts
from braze.graph.private import torch_compat
from braze.options import Options
from braze.target import cuda_target
from tests.aot.recording import Recorder

CTX = CompileContext(Options(verify=2), cuda_target((9, 0), 132), "g")


class _OnGPU(Recorder):
    """Fakes on a GPU for the inputs."""

    def __init__(self, mode: fakes.FakeMode, parameters: Sequence[int]) -> None:
        super().__init__(mode)
        self.parameters = parameters

    def input(self, value: torch.Tensor, name: str, **options: Any) -> Any:
        if options:
            value = self.mode.fake(value, source=name, **options)
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        device = torch.device("cuda:0")
        fake = torch_compat.assemble_fake(self.mode.dispatch, meta, device, False)
        node = self.graph.placeholder(name)
        node.meta["val"] = fake
        role = InputRole.PARAMETER if len(self.known) in self.parameters else InputRole.USER
        set_facts(node, role=role, source=name)
        self.known[id(fake)] = (fake, node)
        return fake


def partition_on_gpu(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    parameters: Sequence[int] = (),
    ctx: CompileContext = CTX,
    *,
    dynamic: bool = False,
) -> Partition:
    """The Partition of ``function`` over such tensors on a GPU, in inference; ``parameters``: which of them are a module's; ``dynamic``: all sizes are symbols."""
    mode = fakes.new_mode(dynamic)
    recorder = _OnGPU(mode, parameters)
    sizes = [{"symbolic_dims": set(range(value.dim()))} if dynamic else {} for value in inputs]
    made = [recorder.input(value, f"x{i}", **sizes[i]) for i, value in enumerate(inputs)]
    with torch.no_grad(), mode, recorder:
        out = function(*made)
    outputs = out if isinstance(out, (tuple, list)) else (out,)
    recorder.graph.output(tuple(recorder.argument(o) for o in outputs))
    gm = torch.fx.GraphModule(torch.nn.Module(), recorder.graph)
    with torch.no_grad():
        return pipeline.partition_graph(gm, made, ctx)
