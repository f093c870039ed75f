"""Operators that the aot stage itself takes apart: several views at once, and what evaluation makes nothing of; and those that it leaves whole."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.facts.views import is_empty
from braze.aot.trace import derivatives
from braze.graph.fakes import torch_composites
from braze.graph.operators.operators import functional_form, name_of
from braze.graph.private import torch_compat
from braze.runtime.operators import recurrent

aten = torch.ops.aten
Tensor = torch.Tensor


def split(x: Tensor, size: int, dim: int = 0) -> Any:
    """Slices of ``size``, the last one smaller; all of nothing, where that is none. Of symbols how many they are is decided, as PyTorch does."""
    total = x.shape[dim]
    if size == 0 and total == 0:
        return [aten.slice.Tensor(x, dim, 0, total)]
    if size <= 0:
        return NotImplemented
    last = max(int((total + size - 1) // size), 1) - 1
    ends = [*((i + 1) * size for i in range(last)), total]
    return [aten.slice.Tensor(x, dim, i * size, end) for i, end in enumerate(ends)]


def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    """Slices of the given sizes; PyTorch checks that they add up."""
    if any(s < 0 for s in sizes) or sum(sizes) != x.shape[dim]:
        return NotImplemented
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [aten.slice.Tensor(x, dim, s, s + n) for s, n in zip(starts, sizes)]


def unbind(x: Tensor, dim: int = 0) -> Any:
    """One select per index; of a size that is a symbol, the number that it is here is decided, as PyTorch does."""
    if x.dim() == 0:
        return NotImplemented
    return [aten.select.int(x, dim, i) for i in range(int(x.shape[dim]))]


def dropout(x: Tensor, p: float, train: bool) -> Any:
    """The input itself, outside training; zeros, for which nothing is drawn, where all is dropped."""
    if not train or p == 0 or x.numel() == 0:
        return x
    if p == 1 and x.dtype.is_floating_point:
        return aten.mul.Tensor(x, aten.full.default([], 0.0, dtype=x.dtype, device=x.device))
    return NotImplemented


#: what numbers are as tensors, before they are promoted
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def to_copy(x: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """A plain number that PyTorch made a tensor of on the way, which modes see as the number again."""
    if isinstance(x, Tensor):
        return NotImplemented
    return aten.full.default([], x, dtype=dtype or NUMBERS[type(x)], device=device)


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """With the running statistics written by operators that say so: this one writes them though its schema does not tell, nor autograd counts it."""
    if not training or mean is None or var is None:
        return NotImplemented
    functional = aten._native_batch_norm_legit_functional.default
    *results, new_mean, new_var = functional(x, weight, bias, mean, var, True, momentum, eps)
    mean.copy_(new_mean)
    var.copy_(new_var)
    return tuple(results)


#: from how many parts on it pays to make only those that are read
_MANY = 64
_SPLITS = frozenset(
    ("split", "chunk", "tensor_split", "unbind", torch.split, torch.chunk, torch.tensor_split, torch.unbind)
)


def read_parts(
    node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[Any, Tensor], tuple[OpOverload, tuple[Any, ...]] | None] | None:
    """The parts of a tensor cut into many that the graph reads, by their index, and the operator that makes all at once; None where all are to be made.

    ``x.split(1)[0]`` makes as many views as x has rows. Each is a ``narrow`` or a ``select``, alone as well; ``tensor_split`` makes
    each alone itself.
    """
    parts = node.meta.get("val")
    if node.target not in _SPLITS or not isinstance(parts, (tuple, list)) or len(parts) < _MANY:
        return None
    taken = [user.args[1] for user in node.users if user.target is operator.getitem]
    read = [n for n in taken if isinstance(n, int)]
    if len(read) * 4 > len(parts) or len(read) < len(node.users):
        return None
    x, *rest = args
    one_row = node.target in ("unbind", torch.unbind)
    at = 0 if one_row else 1
    dim = rest[at] if len(rest) > at else kwargs.get("dim", 0)
    if type(dim) is not int or not isinstance(x, Tensor):
        return None
    if one_row:
        return {n: x.select(dim, n) for n in read}, (aten.unbind.int, (dim,))
    sizes = [part.shape[dim] for part in parts]
    if any(type(n) is not int for n in sizes):
        return None
    starts = list(itertools.accumulate(sizes, initial=0))
    alone = {n: x.narrow(dim, starts[n], sizes[n]) for n in read}
    if node.target in ("tensor_split", torch.tensor_split):
        return alone, None
    if any(isinstance(given, (tuple, list)) for given in (*rest, *kwargs.values())):
        return alone, (aten.split_with_sizes.default, (sizes, dim))
    return alone, (aten.split.Tensor, (sizes[0], dim))


def fill_diagonal(x: Tensor, value: Any, wrap: bool = False) -> Any:
    """The diagonal as views tell it: PyTorch counts its elements in memory, from where ``x`` begins there."""
    sizes = x.shape
    if x.dim() < 2 or (x.dim() > 2 and any(n != sizes[0] for n in sizes)):
        return NotImplemented
    if wrap and x.dim() == 2 and sizes[0] > sizes[1] + 1:
        return NotImplemented
    diagonal = aten.diagonal.default(x, 0, 0, 1)
    while diagonal.dim() > 1:
        diagonal = aten.diagonal.default(diagonal, 0, 0, diagonal.dim() - 1)
    aten.fill_.Scalar(diagonal, value)
    return x


def _enlarged(packet: Any) -> Callable[..., Any]:
    """A processor's picture, or volume, whose elements are repeated stays one operator, and one of doubles; of others PyTorch looks
    each element up, at a place that is a float32 whatever the elements are."""
    whole = torch_composites.interpolated(packet)

    def enlarged(x: Any, output_size: Any, scale_factors: Any) -> Any:
        lines, many = x.shape[2:], x.dim() - 2
        one, two = (len(each or ()) for each in (output_size, scale_factors))
        if x.device.type != "cpu" or one + two != many or one * two:
            return NotImplemented
        if x.dtype is torch.float64:
            return whole(x, output_size, scale_factors)
        if any(type(n) is not int or not n for n in (*x.shape[1:], *(output_size or ()))):
            return NotImplemented
        # of no pictures PyTorch's fake asks with a number before 2.12
        if type(x.shape[0]) is int and not x.shape[0]:
            return NotImplemented
        scales = scale_factors or [None] * many
        if any(scale is not None and not 0 < scale < 1 << 21 for scale in scales):
            return NotImplemented
        made = output_size or [n * int(factor) for n, factor in zip(lines, scales, strict=True)]
        known = zip(lines, made, scales, strict=True)
        if torch_composites.layout_of(x) is None or not all(
            torch_composites.repeats(*line) for line in known
        ):
            return NotImplemented
        return whole(x, made, scale_factors)

    return enlarged


STRUCTURAL: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType(
    {
        aten.split.Tensor: split,
        aten.split_with_sizes.default: split_with_sizes,
        # views, of which the schemas do not tell
        aten.unsafe_split.Tensor: split,
        aten.unsafe_split_with_sizes.default: split_with_sizes,
        aten.unbind.int: unbind,
        aten._to_copy.default: to_copy,
        aten._efficientzerotensor.default: derivatives.zeros,
        aten.dropout.default: dropout,
        aten.feature_dropout.default: dropout,
        aten.alpha_dropout.default: dropout,
        aten.native_batch_norm.default: native_batch_norm,
        aten.fill_diagonal_.default: fill_diagonal,
        aten.upsample_nearest1d.vec: torch_composites.interpolated(aten.upsample_nearest1d),
        aten.upsample_nearest2d.vec: _enlarged(aten.upsample_nearest2d),
        aten.upsample_nearest3d.vec: _enlarged(aten.upsample_nearest3d),
        aten._upsample_nearest_exact2d.vec: _enlarged(aten._upsample_nearest_exact2d),
        aten._upsample_nearest_exact3d.vec: _enlarged(aten._upsample_nearest_exact3d),
        aten._upsample_nearest_exact1d.vec: torch_composites.interpolated(aten._upsample_nearest_exact1d),
    }
)

#: the same for what is differentiated, whose results the backward reads
IN_TRAINING: Mapping[OpOverload, Callable[..., Any]] = MappingProxyType(
    {aten.mkldnn_rnn_layer.default: recurrent.OPERATOR}
)

#: operators that give their argument back, as a new tensor object over the same memory
ALIASES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift.default})

#: composite operators that stay one node: what lowers them has better than their parts, or PyTorch traces them by a formula of
#: its own (a + (b - a) * t, which is nan beside an infinity) that is not its kernels', or rounds half types at each step of it
KEPT = frozenset(
    {
        aten.silu_backward.default,
        aten.mish_backward.default,
        aten.linear.default,
        aten.scaled_dot_product_attention.default,
        aten.upsample_linear1d.vec,
        aten.upsample_bilinear2d.vec,
        aten.upsample_trilinear3d.vec,
        aten._pad_circular.default,
    }
)

#: names of operators that add up, or multiply, in the type of their ``out=``
_TYPED_BY_OUT = frozenset({"sum", "nansum", "prod", "mean", "cumsum", "cumprod"})
#: those that do so, and have no ``dtype=``
_ROUNDED_BY_OUT = frozenset({"var", "std", "logsumexp"})
#: norms of inputs and parameters in two types: what is in which type in the kernels PyTorch's fakes do not tell; our
#: decompositions do
MIXED_NORMS = frozenset(
    {
        aten.native_layer_norm.default,
        aten.native_group_norm.default,
        aten.native_group_norm_backward.default,
        aten.native_batch_norm.default,
        aten._native_batch_norm_legit.default,
        aten._native_batch_norm_legit.no_stats,
        aten._native_batch_norm_legit_no_training.default,
    }
)


#: operators that write running statistics, which autograd does not count, though their schemas tell
_SILENT = frozenset([aten._native_batch_norm_legit.default, aten._batch_norm_with_update.default])


def counts_writes(func: OpOverload) -> bool:
    """Whether autograd counts what an operator writes: of what its schema does not tell it knows nothing."""
    return func._schema.is_mutable and func not in _SILENT


def hides_writes(func: OpOverload, args: Sequence[Any], uncounted: bool) -> bool:
    """Whether autograd counts nothing of what an operator writes (``uncounted``: whatever it is), or of what is written through the view that it gives.

    Inference mode sees elements in another type, or their own, through a tensor with a count of its own.
    """
    if func._schema.is_mutable:
        return uncounted or not counts_writes(func)
    if func is not aten.view.dtype or not torch.is_inference_mode_enabled():
        return False
    return not args[0].is_inference()  # there nothing is counted


@functools.cache
def is_composite(func: Any) -> bool:
    """Whether PyTorch defines the operator by others."""
    return isinstance(func, OpOverload) and torch_compat.has_composite_kernel(func)


def gives_back(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an operator gives its argument under another name, though its schema knows of no view: inference mode makes that a view, whose writes are counted."""
    if func is not aten.channel_shuffle.default or not torch.is_inference_mode_enabled():
        return False
    x, groups = args[:2]
    if not is_empty(x) or x.dim() < 3 or groups <= 0:
        return False  # computed, or refused
    return bool(x.shape[1] % groups == 0 and x.numel() == 0)


def functional_of_inplace_view(func: OpOverload) -> OpOverload | None:
    """``aten.t`` for ``aten.t_``; None for those that change the memory itself."""
    return None if name_of(func) in ("resize_", "set_", "resize_as_") else functional_form(func)


def reduced_in_type_of_out(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The keywords of a call whose ``out=`` says in which type it reduces, with ``dtype=``; None where the operator has none and it is another."""
    out, name = kwargs.get("out"), name_of(func)
    if not isinstance(out, torch.Tensor) or name not in _TYPED_BY_OUT | _ROUNDED_BY_OUT:
        return kwargs
    given = args[0].dtype
    if name in _TYPED_BY_OUT:
        told = kwargs.get("dtype") is not None or out.dtype is given
        return kwargs if told else {**kwargs, "dtype": out.dtype}
    floats = given.is_floating_point or given.is_complex
    return kwargs if out.dtype is (given if floats else torch.get_default_dtype()) else None
