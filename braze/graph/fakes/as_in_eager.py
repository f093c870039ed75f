"""What PyTorch's fakes and decompositions get wrong of whole torch functions, and what its fakes let pass that eager refuses."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from braze.graph.operators.operators import functional_form
from braze.graph.private import torch_compat, torch_symbols

aten = torch.ops.aten
#: functions for which the CPU has kernels of its own, where nobody asks for a gradient: their results are row by row, those of
#: fakes as what they are made of there says (pictures, comparisons)
_ROW_BY_ROW_ON_CPU = frozenset(
    {torch.nn.functional.max_pool1d, torch.max_pool1d, torch.nn.functional.one_hot}
)

#: products, whose results are tensors of their own: PyTorch's composite in Python gives views of what it has made
_PRODUCTS = frozenset(
    {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, operator.matmul}
)

_ATTENTION = aten._native_multi_head_attention.default
#: at which place it is told whether weights are needed
_NEEDED = 10


def _one_hot(input: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    """``F.one_hot``, which asks of fakes that each class exists only in some versions of PyTorch, and there not above autograd."""
    if input.dtype is not torch.int64 or num_classes <= 0:
        return torch.nn.functional.one_hot(input, num_classes)
    aten._assert_async.msg((input >= 0).all(), "Class values must be non-negative.")
    aten._assert_async.msg((input < num_classes).all(), "Class values must be smaller than num_classes.")
    return (input.unsqueeze(-1) == torch.arange(num_classes, device=input.device)).to(torch.int64)


def stand_in(func: Any) -> Any:
    """What asks of fakes what ``func`` asks of tensors; mostly ``func`` itself."""
    return _one_hot if func is torch.nn.functional.one_hot else func


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
    if func in _PRODUCTS and isinstance(result, torch.Tensor) and torch_compat.is_view(result):
        return aten._unsafe_view.default(result, result.shape)
    return result


def left_out(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Any) -> Any:
    """An operator's results, with None for attention's weights where eager makes none: nobody needs them, or there is no query."""
    if func is not _ATTENTION:
        return results
    needed = args[_NEEDED] if len(args) > _NEEDED else kwargs.get("need_weights", True)
    return results if needed and args[0].numel() else (results[0], None)


#: operators that write, of which PyTorch's meta functions do not ask whether the target's type holds the result, with how many of their
#: arguments are computed with; of these, those that compute in floats
_UNASKED = {
    aten.add_.Tensor: 2,
    aten.sub_.Tensor: 2,
    aten.mul_.Tensor: 2,
    aten.mul_.Scalar: 2,
    aten.ldexp_.default: 2,
    aten.logit_.default: 1,
}
_IN_FLOATS = frozenset({aten.ldexp_.default, aten.logit_.default})


#: operators that compute each element, without PyTorch's tag
_UNTAGGED = frozenset({aten.floor_divide.default, aten.floor_divide.Scalar})


def refuse_unfit(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's RuntimeError for a write that it refuses.

    ``x.expand(4, 3).add_(1)``: elements that share memory are not computed in place. ``ones(1).atan2_(ones(4))``: a tensor has no room
    for more elements than its own. ``ints.mul_(0.5)``: a float is not written into an integer, nor a number into a truth value.
    """
    written = args[0] if _computes_in_place(func) else kwargs.get("out") if _computes(func) else None
    if written is not None and _shares_elements(written):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    if _computes_in_place(func):
        _refuse_more_elements((*args, *kwargs.values()))
    operands = args[: _UNASKED.get(func, 0)]
    if not operands:
        return
    target = args[0].dtype
    computed = torch.result_type(*operands) if len(operands) == 2 else target
    if func in _IN_FLOATS and not (computed.is_floating_point or computed.is_complex):
        computed = torch.get_default_dtype()
    if not torch.can_cast(computed, target):
        raise RuntimeError(f"result type {computed} can't be cast to the desired output type {target}")


#: operators that pick a place of a dim -> where among their arguments the two are
PICKING = {aten.select.int: (1, 2), aten.select_scatter.default: (2, 3)}


def refuse_no_place(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's IndexError for a place that a dim does not have: PyTorch's fakes of 2.11 pick it, and memory beyond would be read.

    Where sizes vary a guard keeps the answer; of what only data tell nothing is asked.
    """
    x = args[0]
    dim, index = (
        args[k] if len(args) > k else kwargs.get(name, 0)
        for k, name in zip(PICKING[func], ("dim", "index"), strict=True)
    )
    if not -x.dim() <= dim < x.dim():
        return  # which the operator says
    size = x.shape[dim]
    if any(isinstance(n, torch.SymInt) and torch_symbols.is_unbacked(n) for n in (size, index)):
        return
    if not -size <= index < size:
        told = f"select(): index {index} out of range for tensor of size {list(x.shape)}"
        raise IndexError(f"{told} at dimension {dim % x.dim()}")


def _refuse_more_elements(args: Sequence[Any]) -> None:
    """Raise where operands broadcast beyond what they are written into, for which meta functions make room."""
    target, *others = (tuple(x.shape) for x in args if isinstance(x, torch.Tensor))
    if not any(_repeats(target, other) for other in others):
        return
    try:
        wide = torch.broadcast_shapes(target, *others)
    except RuntimeError:
        return  # these do not broadcast at all, which the operator says
    raise RuntimeError(f"output with shape {list(target)} doesn't match the broadcast shape {list(wide)}")


def _repeats(target: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether one shape has other dims, or more elements in a dim where the other has one; of sizes that only data tell none is."""
    if len(other) > len(target):
        return True
    pairs = zip(reversed(target), reversed(other), strict=False)
    return any(_is_one(n) is True and _is_one(m) is False for n, m in pairs)


def _is_one(size: Any) -> bool | None:
    """Whether a dim has one element in this trace; no guard comes of it. None where only the data tell."""
    if not isinstance(size, torch.SymInt):
        return bool(size == 1)
    return None if torch_symbols.is_unbacked(size) else bool(size.node.hint == 1)


@functools.cache
def _computes(func: Any) -> bool:
    """Whether an operator computes each element once; ``fill_`` and others that move elements write each as often as it stands there.

    Of those that compute, eager lets conjugates and powers of one number be written so.
    """
    return torch.Tag.pointwise in func.tags and not func.__name__.startswith(("conj_physical", "pow.Scalar"))


@functools.cache
def _computes_in_place(func: Any) -> bool:
    """Whether it is ``add_`` or the like. PyTorch's tag is not on all of these (``eq_``, ``gcd_``), but on what they compute."""
    if not func.__name__.partition(".")[0].endswith("_"):
        return False
    computed = functional_form(func) if func.namespace == "aten" else None
    return _computes(func) or (computed is not None and (_computes(computed) or computed in _UNTAGGED))


def _shares_elements(x: torch.Tensor) -> bool:
    """Whether some dim is known to have the same place for its elements, and nothing is known to be empty."""
    if any(type(n) is int and not n for n in x.shape):
        return False
    return any(type(step) is int and not step and n > 1 for n, step in zip(x.shape, x.stride(), strict=True))
