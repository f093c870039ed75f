"""Control flow in graphs: what the nodes of ``torch.cond``, ``while_loop``, ``scan`` and ``map`` call.

Subgraphs are modules that the graph holds, and give tuples. They take what the operator hands them, then what they use from outside.
PyTorch's own operators trace their functions anew for each gradient; these run the subgraph that was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from braze.graph.calls.checkpoints import checkpointed
from braze.graph.private import torch_compat

Subgraph = Callable[..., tuple[Any, ...]]


def cond(pred: torch.Tensor, if_true: Subgraph, if_false: Subgraph, operands: Sequence[Any]) -> Any:
    """The results of one of two subgraphs, as a tensor says."""
    if is_fake(pred):
        if_false(*operands)
        return connected(if_true(*operands), operands)
    return connected((if_true if pred else if_false)(*operands), operands)


def while_loop(
    go_on: Subgraph, body: Subgraph, carried: Sequence[Any], others: Sequence[Any]
) -> tuple[Any, ...]:
    """The carried values after as many rounds as a tensor asks for."""
    values = tuple(carried)
    if is_fake(values[0]):
        go_on(*values, *others)
        values = body(*values, *others)
    elif not go_on(*values, *others)[0]:
        values = tuple([x.clone() for x in values])
    else:
        values = body(*values, *others)
        while go_on(*values, *others)[0]:
            values = body(*values, *others)
    return connected(values, (*carried, *others))


def scan(
    step: Subgraph, carried: Sequence[Any], rows: Sequence[torch.Tensor], others: Sequence[Any]
) -> tuple[Any, ...]:
    """The last carried values, then per result of a step all of its values, along a new first dimension."""
    count = len(carried)
    values = tuple(carried)
    made: list[tuple[Any, ...]] = []
    if is_fake(rows[0]):
        out = step(*values, *[x.select(0, 0) for x in rows], *others)
        columns = [x.expand(rows[0].shape[0], *x.shape).contiguous() for x in out[count:]]
        return connected((*out[:count], *columns), (*carried, *rows, *others))
    for taken in zip(*[x.unbind(0) for x in rows], strict=True):
        out = step(*values, *taken, *others)
        values = out[:count]
        made.append(out[count:])
    columns = [torch.stack(column) for column in zip(*made, strict=True)]
    return connected((*values, *columns), (*carried, *rows, *others))


def is_fake(x: Any) -> bool:
    """Whether a tensor, under the wrappers of transforms that differentiate, has no data to decide by."""
    return isinstance(torch_compat.without_wrappers(x), FakeTensor)


def no_gradient(shape: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that change no number that they are added to, nor the sign of a zero."""
    return torch.full(shape, complex(-0.0, -0.0) if dtype.is_complex else -0.0, dtype=dtype, device=device)


class _Connected(torch.autograd.Function):
    """Results that depend on all operands: those that a branch makes no use of get gradients of zeros.

    Negative ones, which leave each number that they are added to as it is: ``0.0 + -0.0`` is ``0.0``.
    """

    @staticmethod
    def forward(ctx: Any, count: int, *values: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)  # zeros for one that does not come in would be added
        ctx.count = count
        ctx.unused = [(x.shape, x.dtype, x.device) for x in values[count:]]
        return tuple([x.detach() for x in values[:count]])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        nothing = [no_gradient(shape, dtype, device) for shape, dtype, device in ctx.unused]
        return None, *grads, *nothing


def connected(results: tuple[Any, ...], operands: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a branch, with a path to each operand that wants a gradient."""
    if not torch.is_grad_enabled() or torch_compat.transforming():
        return results
    wanting = [x for x in operands if isinstance(x, torch.Tensor) and x.requires_grad]
    places = [i for i, x in enumerate(results) if isinstance(x, torch.Tensor) and is_differentiable(x.dtype)]
    if not wanting or not places:
        return results
    made = _Connected.apply(len(places), *[results[i] for i in places], *wanting)
    values = list(results)
    for i, value in zip(places, made, strict=True):
        values[i] = value
    return tuple(values)


def is_differentiable(dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype may have gradients."""
    return dtype.is_floating_point or dtype.is_complex


#: those that choose by data
CHOOSING: frozenset[Any] = frozenset({cond, while_loop, scan})
#: what nodes over subgraphs call that each stage treats in its own way
OPERATORS = CHOOSING | {checkpointed}


def holds_control_flow(module: torch.fx.GraphModule) -> bool:
    """Whether a subgraph, or one of its own, chooses by data: on fakes it would choose nothing."""
    return any(
        node.target in CHOOSING
        for part in module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
    )
