"""Calls that eager's operators refuse for their dims, sizes and types, and PyTorch's fakes let pass: eager's error is raised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from braze.graph.private import torch_symbols

aten = torch.ops.aten


def _dim(x: torch.Tensor, dim: int) -> int:
    """A dim counted from the first."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        )
    return dim % rank


def _dims(x: torch.Tensor, dims: Iterable[int]) -> None:
    seen: set[int] = set()
    for dim in dims:
        found = _dim(x, dim)
        if found in seen:
            raise RuntimeError(f"dim {found} appears multiple times in the list of dims")
        seen.add(found)


def _at(place: int, name: str) -> Callable[..., None]:
    """The rule of an operator with a dim at that place among its arguments."""

    def rule(x: torch.Tensor, /, *args: Any, **kwargs: Any) -> None:
        dim = args[place - 1] if len(args) >= place else kwargs.get(name, -1)
        if type(dim) is int:
            _dim(x, dim)

    return rule


def _several(x: torch.Tensor, dims: Any, *_: Any) -> None:
    _dims(x, [dims] if type(dims) is int else dims)


def _matrices(name: str) -> Callable[..., None]:
    def rule(x: torch.Tensor, /, *_: Any, **__: Any) -> None:
        if x.dim() < 2:
            raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")

    return rule


def _into_part(view: Any) -> Callable[..., None]:
    """The rule of an operator that replaces a part of a tensor, which is to be of the part's shape."""

    def rule(x: torch.Tensor, src: torch.Tensor, /, *args: Any, **kwargs: Any) -> None:
        numbers = [*args, *kwargs.values(), *x.shape, *src.shape]
        if any(map(_is_unbacked, numbers)):
            return
        for name in ("dim", "dim1", "dim2"):
            if name in kwargs:
                _dim(x, kwargs[name])
        part = view(x, *args, **kwargs)
        if part.dim() != src.dim() or any(n != m for n, m in zip(part.shape, src.shape, strict=True)):
            raise RuntimeError(
                "expected src to have a size equal to the slice of self. "
                f"src size = {_told(src.shape)}, slice size = {_told(part.shape)}"
            )

    return rule


def _is_unbacked(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and torch_symbols.is_unbacked(number)


def _told(sizes: Sequence[Any]) -> list[int]:
    return [int(n) for n in sizes]


def _diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    if _dim(x, dim1) == _dim(x, dim2):
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return aten.diagonal.default(x, offset, dim1, dim2)  # type: ignore[no-any-return]


def _slice(x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> torch.Tensor:
    _dim(x, dim)
    if step <= 0:
        raise RuntimeError("slice step must be positive")
    return aten.slice.Tensor(x, dim, start, end, step)  # type: ignore[no-any-return]


def _select(x: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    return aten.select.int(x, _dim(x, dim), index)  # type: ignore[no-any-return]


def _vector_norm(
    x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> None:
    if dtype is None or dtype is x.dtype or not (dtype.is_floating_point or dtype.is_complex):
        return
    if x.is_complex() == dtype.is_complex and torch.promote_types(x.dtype, dtype) is not dtype:
        raise RuntimeError(
            f"linalg.vector_norm: the dtype of the input ({x.dtype}) should be convertible "
            f"without narrowing to the specified dtype ({dtype})"
        )


def _unfold(x: torch.Tensor, dim: int, size: Any, step: Any) -> None:
    if type(size) is int and size < 0:
        raise RuntimeError(f"size is {size} but must be >= 0")


def _celu(x: torch.Tensor, alpha: Any = 1.0) -> None:
    if type(alpha) in (int, float) and alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")


def _interpolated(x: torch.Tensor, sizes: Any, /, *_: Any, **__: Any) -> None:
    if any(not _is_unbacked(n) and n <= 0 for n in sizes):
        raise RuntimeError(f"Input and output sizes should be greater than 0, but got output {list(sizes)}")


def _interpolated_by(x: torch.Tensor, sizes: Any, /, *args: Any, **kwargs: Any) -> None:
    factors = kwargs.get("scale_factors", args[-1] if args else None)
    if sizes is None and factors is not None:
        known = (pair for pair in zip(x.shape[2:], factors, strict=False) if not _is_unbacked(pair[0]))
        sizes = [torch.sym_int(n * by) for n, by in known]
    if sizes is not None:
        _interpolated(x, sizes)


def _of_logits(x: torch.Tensor, target: Any, weight: Any = None, pos_weight: Any = None, *_: Any) -> None:
    for each in (pos_weight, weight):
        if each is not None and not any(map(_is_unbacked, (*x.shape, *each.shape))):
            wide = torch.broadcast_shapes(x.shape, each.shape)
            if wide != x.shape:
                raise RuntimeError(
                    f"output with shape {_told(x.shape)} doesn't match the broadcast shape {_told(wide)}"
                )


def _groups(x: Any, weight: Any, bias: Any, n: Any, c: Any, hxw: Any, group: Any, eps: Any) -> None:
    if type(group) is int and group <= 0:
        raise RuntimeError(f"Expected num groups to be greater than 0, got {group}")


def _added_vector(y: torch.Tensor, a: torch.Tensor, x: torch.Tensor, **_: Any) -> None:
    ranks = y.dim(), a.dim(), x.dim()
    if ranks[1:] != (2, 1) or ranks[0] > 1:
        raise RuntimeError("vector + matrix @ vector expected, got " + ", ".join(map(str, ranks)))
    fits = a.shape[1] == x.shape[0] and (y.numel() in (1, a.shape[0]))
    if y.dim() and not fits:
        told = [_told(given.shape) for given in (y, a, x)]
        sizes = ", ".join(
            f"{name} ({'x'.join(map(str, n))})" for name, n in zip(("input", "mat", "vec"), told, strict=True)
        )
        raise RuntimeError(f"size mismatch, got {sizes}")


def _added_vector_in_place(y: torch.Tensor, a: torch.Tensor, x: torch.Tensor, **_: Any) -> None:
    _added_vector(y, a, x)
    if [*y.shape] != [*a.shape[:1]]:
        raise RuntimeError(
            f"Bad in-place call: input tensor size {_told(y.shape)} and output tensor size {_told(a.shape[:1])} should match"
        )


def _added_matrix(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **_: Any) -> None:
    if y.dim() > 2 or not a.dim() == b.dim() == 2:
        return
    sizes = (a.shape[0], b.shape[1])
    for d in range(1, y.dim() + 1):
        if y.shape[-d] != 1 and y.shape[-d] != sizes[-d]:
            raise RuntimeError(
                f"The expanded size of the tensor ({_told(sizes)[-d]}) must match the existing size ({_told(y.shape)[-d]}) "
                f"at non-singleton dimension {2 - d}.  Target sizes: {_told(sizes)}.  Tensor sizes: {_told(y.shape)}"
            )


#: operator -> what raises for arguments that it refuses
_RULES: dict[Any, Callable[..., None]] = {
    aten.gather.default: _at(1, "dim"),
    aten._softmax.default: _at(1, "dim"),
    aten._log_softmax.default: _at(1, "dim"),
    aten.sort.default: _at(1, "dim"),
    aten.cummax.default: _at(1, "dim"),
    aten.cummin.default: _at(1, "dim"),
    aten.softmax.int: _at(1, "dim"),
    aten.log_softmax.int: _at(1, "dim"),
    aten.flip.default: _several,
    aten.squeeze.dims: _several,
    aten.tril.default: _matrices("tril"),
    aten.triu.default: _matrices("triu"),
    aten.slice_scatter.default: _into_part(_slice),
    aten.select_scatter.default: _into_part(_select),
    aten.diagonal_scatter.default: _into_part(_diagonal),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.unfold.default: _unfold,
    aten.celu.default: _celu,
    aten.native_group_norm.default: _groups,
    aten.addmv.default: _added_vector,
    aten.addmv_.default: _added_vector_in_place,
    aten.addmm.default: _added_matrix,
    aten.binary_cross_entropy_with_logits.default: _of_logits,
}


def interpolations() -> list[Any]:
    """The operators that interpolate, to sizes or by factors."""
    kinds = ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
    exact = [getattr(aten, f"_upsample_nearest_exact{rank}d") for rank in (1, 2, 3)]
    return [*(getattr(aten, f"upsample_{kind}") for kind in kinds), *exact]


for _packet in interpolations():
    _RULES |= {_packet.default: _interpolated, _packet.vec: _interpolated_by}


def refuse_call(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's error for a call that it refuses; where sizes vary guards keep the answers, and of what only data tell nothing is asked."""
    rule = _RULES.get(func)
    if rule is not None:
        rule(*args, **kwargs)
