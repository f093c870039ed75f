"""Metadata of operators of which PyTorch knows no fake, a wrong one, or none of varying sizes: those that only the data tell are fresh symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from braze.graph.private import torch_compat, torch_symbols
from braze.graph.rules.view_rules import window_of_diagonal

aten = torch.ops.aten


def ctc_loss(
    env: Any, log_probs: torch.Tensor, *others: Any, **words: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each sample, and what its gradient needs: as wide as the longest target."""
    steps, samples, _ = log_probs.shape
    width = env.create_unbacked_symint()
    torch._check(width >= 1)
    return log_probs.new_empty((samples,)), log_probs.new_empty((samples, steps, width))


def ctc_loss_backward(env: Any, grad: torch.Tensor, log_probs: torch.Tensor, *others: Any) -> torch.Tensor:
    """A gradient of the shape of what it is the gradient of."""
    return log_probs.new_empty(log_probs.shape)


def unique(env: Any, *args: Any) -> Any:
    """The gradient of ``index_fill`` asks for it; before 2.12 PyTorch's fake has one element, whatever the data."""
    raise DynamicOutputShapeException(aten._unique.default)


def rrelu_with_noise(env: Any, x: torch.Tensor, *others: Any, **words: Any) -> torch.Tensor:
    """A new tensor in the usual order, whatever the operand's; PyTorch's fake keeps that."""
    return x.new_empty(x.shape)


def native_batch_norm_legit(env: Any, *args: Any) -> Any:
    """The kernel of native_batch_norm, by the name that tells what it writes."""
    return aten.native_batch_norm.default(*args)


def dead_zone_backward(env: Any, grad: torch.Tensor, x: torch.Tensor, *others: Any) -> torch.Tensor:
    """Elementwise in both; PyTorch's own knows no sizes that vary."""
    return torch.mul(grad, x)


def copied(env: Any, like: torch.Tensor, source: torch.Tensor, *others: Any) -> Any:
    """As the first lies; of sizes that vary PyTorch asks more than it has to know, and takes one for a number then."""
    if env is None or tuple(map(str, like.shape)) != tuple(map(str, source.shape)):
        return NotImplemented
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def diagonal(env: Any, x: torch.Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """One without elements begins where the whole does, also where nobody can say whether it has some; PyTorch's fakes may be beyond that."""
    row, column = dim1 % max(x.dim(), 1), dim2 % max(x.dim(), 1)
    if row == column or (type(offset) is int and offset == 0):
        return NotImplemented
    sizes, strides, length, start = window_of_diagonal(x, row, column, offset, torch.sym_min)
    length = torch.sym_max(length, 0)
    start = torch.sym_min(length, 1) * start
    return aten.as_strided.default(x, [*sizes, length], strides, x.storage_offset() + start)


def view(env: Any, x: torch.Tensor, sizes: Any) -> Any:
    """PyTorch's fakes join dims across one of one element, however they lie. Eager has a view where there is one without such dims."""
    numbers = [*x.shape, *x.stride(), *sizes]
    if any(isinstance(n, torch.SymInt) and torch_symbols.is_unbacked(n) for n in numbers):
        return NotImplemented
    between = [d for d in range(1, x.dim() - 1) if _is_one(x.shape[d])]
    if between:
        try:
            aten.view.default(aten.squeeze.dims(x, between), sizes)
        except ValueError as error:
            raise RuntimeError(
                "view size is not compatible with input tensor's size and stride (at least one dimension spans "
                "across two contiguous subspaces). Use .reshape(...) instead."
            ) from error
    return NotImplemented


def _is_one(size: Any) -> bool:
    """Whether a dim has one element, of which a guard comes."""
    return bool((size.node.hint if isinstance(size, torch.SymInt) else size) == 1 and size == 1)


def difference(env: Any, a: Any, b: Any, **words: Any) -> Any:
    """Eager subtracts no bools, PyTorch's fakes do: the error is eager's own."""
    if torch.bool in (getattr(a, "dtype", None), getattr(b, "dtype", None)):
        with torch_compat.outside_modes():
            torch.sub(*(torch.ones((), dtype=t.dtype) if isinstance(t, torch.Tensor) else t for t in (a, b)))
    return NotImplemented


def _of_whole_numbers(op: Any) -> Callable[..., Any]:
    """Eager's kernels take whole numbers alone, and some no bools; PyTorch's fakes take all: the error is eager's own."""

    def rule(env: Any, a: Any, b: Any) -> Any:
        with torch_compat.outside_modes():
            given: list[Any] = [
                torch.ones((), dtype=t.dtype)
                if isinstance(t, torch.Tensor)
                else 1.5
                if type(t) is float
                else 1
                for t in (a, b)
            ]
            dtype = torch.result_type(*given)
            if (
                dtype.is_floating_point
                or dtype.is_complex
                or (dtype is torch.bool and op is aten.gcd.default)
            ):
                op(torch.ones((), dtype=dtype), torch.ones((), dtype=dtype))
        return NotImplemented

    return rule


#: operators on the bits of whole numbers, and on their factors: what refuses, and all forms that do
_WHOLE = {
    aten.bitwise_and.Tensor: (aten.bitwise_and, aten.bitwise_and_),
    aten.bitwise_or.Tensor: (aten.bitwise_or, aten.bitwise_or_),
    aten.bitwise_xor.Tensor: (aten.bitwise_xor, aten.bitwise_xor_),
    aten.bitwise_left_shift.Tensor: (aten.bitwise_left_shift, aten.bitwise_left_shift_),
    aten.bitwise_right_shift.Tensor: (aten.bitwise_right_shift, aten.bitwise_right_shift_),
    aten.gcd.default: (aten.gcd, aten.gcd_),
    aten.lcm.default: (aten.lcm, aten.lcm_),
}

#: operator -> rule(env, arguments)
RULES: dict[Any, Callable[..., Any]] = {
    **{
        getattr(form, name): _of_whole_numbers(op)
        for op, forms in _WHOLE.items()
        for form in forms
        for name in form.overloads()
        if not name.endswith("out")
    },
    aten.copy.default: copied,
    aten.diagonal.default: diagonal,
    aten.view.default: view,
    aten._unsafe_view.default: view,
    aten.sub.Tensor: difference,
    aten.sub_.Tensor: difference,
    aten.sub.Scalar: difference,
    aten.sub_.Scalar: difference,
    aten.rsub.Tensor: difference,
    aten.rsub.Scalar: difference,
    aten._ctc_loss.Tensor: ctc_loss,
    aten._ctc_loss_backward.Tensor: ctc_loss_backward,
    aten._unique.default: unique,
    aten._native_batch_norm_legit.default: native_batch_norm_legit,
    aten.rrelu_with_noise.default: rrelu_with_noise,
    aten.softshrink_backward.default: dead_zone_backward,
    aten.hardshrink_backward.default: dead_zone_backward,
}
#: those that make symbols
SYMBOLIC = frozenset({aten._ctc_loss.Tensor})


def result_of(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Fakes of the results under a FakeTensorMode; NotImplemented where such symbols are not wanted."""
    env = mode.shape_env
    if func in SYMBOLIC and (env is None or not env.allow_dynamic_output_shape_ops):
        return NotImplemented
    with mode:
        return RULES[func](env, *args, **kwargs)
