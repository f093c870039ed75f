"""Run the text of a LoopProgram, one element at a time: the names that `printer.py` uses, with their meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from braze.loops.dtypes import TORCH_NAME
from braze.loops.ir import DType, ExternCall, LoopProgram, Node, Op, ReduceKind
from braze.loops.printer import identifier, print_program
from braze.loops.scalars import TESTS
from tests.loops.interpret import (
    NUMPY,
    apply,
    call_aten,
    convert,
    from_storage,
    reduce_rows,
    span,
    storage_array,
    to_storage,
)

_BY_LABEL = {d.label: d for d in DType}


def replay(program: LoopProgram, inputs: Sequence[Any], text: str = "") -> tuple[Any, ...]:
    """Run a program's text (printed here, unless given) on torch tensors and ints."""
    names = namespace()
    exec(compile(text or print_program(program), f"<{program.name}>", "exec"), names)
    given = [
        Flat.of(program.buffer(name).dtype, value) if name else value
        for name, value in zip(program.inputs, inputs, strict=True)
    ]
    with np.errstate(all="ignore"):
        results: tuple[Any, ...] = names[identifier(program.name)](*given)
    return results


class Flat:
    """A buffer's elements; reads give numbers of the buffer's type, bfloat16 as float32."""

    def __init__(self, dtype: DType, tensor: torch.Tensor, shape: Sequence[int] = ()) -> None:
        self.dtype = dtype
        self.tensor = tensor
        self.shape = tuple(shape)
        self.array = storage_array(tensor, dtype) if dtype.is_computable else None

    @classmethod
    def of(cls, dtype: DType, tensor: torch.Tensor) -> Flat:
        """The memory of a tensor from its first element on."""
        tensor = tensor.detach()
        flat = tensor.as_strided((span(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())
        return cls(dtype, flat, tensor.shape)

    def __getitem__(self, at: int) -> Any:
        assert self.array is not None and 0 <= at < len(self.array), f"element {at} of {self.tensor.shape}"
        return np.asarray(from_storage(self.array[at : at + 1], self.dtype))[0]

    def __setitem__(self, at: int, value: Any) -> None:
        assert self.array is not None and 0 <= at < len(self.array), f"element {at} of {self.tensor.shape}"
        self.array[at] = to_storage(np.asarray([value]), self.dtype)[0]


def namespace() -> dict[str, Any]:
    """Every name that a program's text may use."""
    names: dict[str, Any] = {
        "buffer": _buffer, "view": _view, "extern": _extern, "size_of": _size_of, "gemm": _gemm,
        "check_index": _check_index, "check": _check, "max": max, "min": min, "bitcast": _bitcast, "where": lambda c, x, y: x if c else y, "invert": np.invert,
    }  # fmt: skip
    for dtype in NUMPY:
        names[dtype.label] = _Type(dtype)
    for kind in ReduceKind:
        names[f"reduce_{kind.value}"] = _reducer(kind)
    for op in Op:
        names.setdefault(op.value, _operation(op))
    return names


class _Type:
    """A conversion; also names the type where one is asked for."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, x: Any) -> Any:
        value = np.asarray(x)
        source = DType.F64 if np.issubdtype(value.dtype, np.floating) else DType.I64
        return convert(value.reshape(1), source, self.dtype)[0]


def _operation(op: Op) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        dtype = next(d for d, kind in NUMPY.items() if kind == args[0].dtype.type and d is not DType.BF16)
        out = DType.BOOL if op in TESTS else dtype
        return apply(Node(op, out, (), None), [np.asarray(a).reshape(1) for a in args])[0]

    return run


def _reducer(kind: ReduceKind) -> Callable[..., Any]:
    def run(dtype: _Type, values: list[Any]) -> tuple[Any, ...]:
        row: Any = np.asarray(values, dtype=NUMPY[dtype.dtype])
        return tuple(np.asarray(r).reshape(1)[0] for r in reduce_rows(kind, dtype.dtype, row))

    return run


def _buffer(label: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> Flat:
    dtype = _BY_LABEL[label]
    return Flat(dtype, torch.empty(span(sizes, strides), dtype=getattr(torch, TORCH_NAME[dtype])), sizes)


def _view(
    flat: Flat, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int, label: str
) -> torch.Tensor:
    return flat.tensor.as_strided(sizes, strides, flat.tensor.storage_offset() + offset)


def _extern(names: tuple[str, ...], target: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    call = ExternCall("extern", target, (), (), names)
    plain = tuple(list(a) if isinstance(a, tuple) else a for a in args)
    results = _flatten(call_aten(call, plain, kwargs))
    return tuple(Flat.of(_dtype_of(r), r) if isinstance(r, torch.Tensor) else r for r in results)


def _flatten(result: Any) -> list[Any]:
    return [x for r in result for x in _flatten(r)] if isinstance(result, (tuple, list)) else [result]


def _dtype_of(tensor: torch.Tensor) -> DType:
    return next(d for d, name in TORCH_NAME.items() if getattr(torch, name) is tensor.dtype)


def _gemm(a: torch.Tensor, b: torch.Tensor) -> Any:
    return (a.double() @ b.double()).float().numpy()


def _size_of(given: Any, dim: int) -> int:
    return int(given) if dim < 0 else int(given.shape[dim])


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)


def _check_index(i: Any, extent: int) -> int:
    if not 0 <= i < extent:
        raise IndexError(f"index {i} out of range 0 <= i < {extent}")
    return int(i)


def _bitcast(x: Any, source: _Type, to: _Type) -> Any:
    value = Node(Op.CONST, source.dtype, (), 0)
    return apply(Node(Op.BITCAST, to.dtype, (value,), None), [np.asarray([x])])[0]
