"""What PyTorch's fakes and decompositions get wrong of whole torch functions, and what its fakes let pass that eager refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten
#: functions for which the CPU has kernels of its own, where nobody asks for a gradient: their results are row by row, those of
#: fakes as what they are made of there says (pictures, comparisons)
_ROW_BY_ROW_ON_CPU = frozenset(
    {torch.nn.functional.max_pool1d, torch.max_pool1d, torch.nn.functional.one_hot}
)


def as_in_eager(func: Any, args: Sequence[Any], result: Any) -> Any:
    """The result of a call with the sizes and strides that it has in eager."""
    if func in _ROW_BY_ROW_ON_CPU and isinstance(result, torch.Tensor):
        wanted = result.requires_grad or result.device.type != "cpu"
        return result if wanted else result.contiguous()
    if func is torch.lstm:
        # before 2.12 its end states have a dimension too many; ``args``: (input, states, ...) or (data, batch_sizes, states, ...)
        starts = args[1] if isinstance(args[1], (tuple, list)) else args[2]
        out, *ends = result
        pairs = zip(ends, starts, strict=True)
        return (out, *(e if e.dim() == s.dim() else e.reshape(s.shape) for e, s in pairs))
    return result


#: operators that write, of which PyTorch's meta functions do not ask whether the target's type holds the result, with how many of their
#: arguments are computed with; of these, those that compute in floats
_UNASKED = {aten.mul_.Tensor: 2, aten.mul_.Scalar: 2, aten.ldexp_.default: 2, aten.logit_.default: 1}
_IN_FLOATS = frozenset({aten.ldexp_.default, aten.logit_.default})


def refuse_unfit(func: Any, args: Sequence[Any]) -> None:
    """Raise eager's RuntimeError for ``ints.mul_(0.5)``: a float is not written into an integer, nor a number into a truth value."""
    operands = args[: _UNASKED.get(func, 0)]
    if not operands:
        return
    target = args[0].dtype
    computed = torch.result_type(*operands) if len(operands) == 2 else target
    if func in _IN_FLOATS and not (computed.is_floating_point or computed.is_complex):
        computed = torch.get_default_dtype()
    if not torch.can_cast(computed, target):
        raise RuntimeError(f"result type {computed} can't be cast to the desired output type {target}")
