"""``backend="aot_eager"``: trace to ATen, functionalize, then run the ATen graph by ATen.

Tells whether a difference comes from the ahead-of-time stage or from the stages after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from braze.aot import partition
from braze.aot.records import OutputKind, OutputRole, Partition
from braze.backends.registry import register_backend
from braze.backends.training import training_runs_eagerly
from braze.context import CompileContext
from braze.graph.specs import SymbolSpec, TensorSpec
from braze.options import Options
from braze.support import trace
from braze.target import cpu_target


@register_backend(needs_options=True)
def aot_eager(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: Options
) -> Callable[..., Any]:
    """The partition's forward, with its mutations and aliases carried out around it."""
    context = CompileContext(options, cpu_target(), "aot_eager")

    if training_runs_eagerly(gm):
        return gm.forward
    with trace.stage("aot"):
        return run_partition(partition(gm, example_inputs, context))


def run_partition(part: Partition) -> Callable[..., Any]:
    """A callable over real inputs that runs ``part.forward`` and then does what its roles say."""
    forward = part.forward.forward
    symbols = [(i, s.name) for i, s in enumerate(part.inputs) if isinstance(s, SymbolSpec)]
    tensors = [(i, s) for i, s in enumerate(part.inputs) if isinstance(s, TensorSpec)]

    def call(*inputs: Any) -> list[Any]:
        sizes = _bind_sizes(inputs, symbols, tensors)
        computed = list(forward(*inputs))
        for role, value in zip(part.mutations, computed):
            inputs[role.input].copy_(value)
        values = iter(computed[len(part.mutations) :])
        outputs: list[Any] = []
        for role in part.outputs:
            outputs.append(_output(role, inputs, outputs, values, sizes))
        return outputs

    return call


def _output(
    role: OutputRole, inputs: Sequence[Any], done: list[Any], values: Any, sizes: dict[str, int]
) -> Any:
    match role.kind:
        case OutputKind.VALUE:
            return next(values)
        case OutputKind.CONSTANT:
            return role.value
        case OutputKind.ALIAS:
            return _view(inputs[role.input], role.spec, sizes)
        case OutputKind.ALIAS_OF_OUTPUT:
            return _view(done[role.output], role.spec, sizes)
    raise AssertionError(role.kind)


def _bind_sizes(
    inputs: Sequence[Any], symbols: list[tuple[int, str]], tensors: list[tuple[int, TensorSpec]]
) -> dict[str, int]:
    """The values of the size symbols that this call's inputs give."""
    sizes = {name: inputs[i] for i, name in symbols}
    for i, spec in tensors:
        for name, value in zip((*spec.sizes, *spec.strides), (*inputs[i].shape, *inputs[i].stride())):
            if isinstance(name, str):
                sizes.setdefault(name, value)
    return sizes


def _view(base: torch.Tensor, spec: TensorSpec | None, sizes: dict[str, int]) -> torch.Tensor:
    assert spec is not None, "an alias says what it looks like"
    shape = [_size(s, sizes) for s in spec.sizes]
    strides = [_size(s, sizes) for s in spec.strides]
    return base.as_strided(shape, strides, _size(spec.offset, sizes))


def _size(size: int | str, sizes: dict[str, int]) -> int:
    return size if isinstance(size, int) else int(eval(size, {"__builtins__": {}}, dict(sizes)))
