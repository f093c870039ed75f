"""Hand-made groups, compiled and run on numpy arrays."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch  # noqa: F401  (its thread team is the one that kernels use)

from braze.codegen import c as codegen
from braze.context import CompileContext
from braze.loops.ir import Axis, Buffer, BufferKind, DType, LoopNest, Node, Op, ReduceKind, Reduction, Store
from braze.options import Options
from braze.runtime import build
from braze.schedule.records import Group, GroupKind
from braze.symbolic.expr import Expr, Integer, as_expr, axis_symbol
from braze.target import Target, cpu_target

NUMPY = {
    DType.BOOL: np.bool_, DType.U8: np.uint8, DType.I8: np.int8, DType.I16: np.int16, DType.I32: np.int32,
    DType.I64: np.int64, DType.F16: np.float16, DType.BF16: np.uint16, DType.F32: np.float32, DType.F64: np.float64,
}  # fmt: skip


def axis(name: str, extent: int | Expr) -> Axis:
    return Axis(axis_symbol(name, extent), as_expr(extent))


def load(buffer: str, dtype: DType, at: Expr | int, *args: Node) -> Node:
    return Node(Op.LOAD, dtype, args, (buffer, as_expr(at)))


def const(value: object, dtype: DType) -> Node:
    return Node(Op.CONST, dtype, (), value)


def op(which: Op, *args: Node, dtype: DType | None = None, attr: object = None) -> Node:
    return Node(which, dtype or args[0].dtype, args, attr)


def nest(axes, stores, reduce_axes=(), reductions=(), ops=("test",)) -> LoopNest:
    return LoopNest("n", tuple(axes), tuple(reduce_axes), tuple(reductions), tuple(stores), "cpu", ops)


def fold(kind: ReduceKind, value: Node, dtype: DType | None = None) -> Reduction:
    return Reduction(kind, dtype or value.dtype, value)


@dataclasses.dataclass
class Bench:
    """Compiles groups for a target and calls them."""

    target: Target
    library_of: Callable[[list[str]], build.Library]

    def kernel(
        self, steps, buffers: dict[str, DType], *, row_axes=(), internal=(), axes=None, name="cpu_test"
    ):
        steps = tuple(steps)
        if axes is None:
            axes = steps[0].axes
        made = {
            n: Buffer(n, d, (Integer(1),), (Integer(1),), "cpu", BufferKind.TEMPORARY)
            for n, d in buffers.items()
        }
        kind = GroupKind.LOOPED if row_axes else GroupKind.POINTWISE
        group = Group(name, kind, steps, tuple(axes), tuple(row_axes), tuple(internal))
        return codegen.kernel(group, made, CompileContext(Options(), self.target))

    def run(self, steps, buffers: dict[str, DType], arrays: dict[str, np.ndarray], *, sizes=None, **kw):
        """Compile the steps and run them on the arrays in place; returns the kernel text."""
        text = self.kernel(steps, buffers, **kw)
        library = self.library_of([text.source])
        call(library, text, arrays, sizes or {})
        return text


def call(library: build.Library, text, arrays: dict[str, np.ndarray], sizes: dict[str, int]) -> None:
    """Call a kernel on numpy arrays."""
    status = np.zeros(1, np.int64)
    every = {**arrays, "status": status}
    pointers = (ctypes.c_void_p * max(len(text.args), 1))(*(every[a].ctypes.data for a in text.args))
    numbers = (ctypes.c_int64 * max(len(text.sizes), 1))(*(sizes[s] for s in text.sizes))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.symbol(text.name))
    function(ctypes.addressof(pointers), ctypes.addressof(numbers))
    if "status" in arrays:
        arrays["status"][:] = status


def _targets() -> list[Target]:
    here = cpu_target()
    if here.arch != "x86-64-avx512":
        return [here]
    return [here, Target("cpu", "x86-64-avx2", ("avx2", "fma", "f16c"), 32, here.cores)]


@pytest.fixture(params=_targets(), ids=lambda t: t.arch)
def bench(request, tmp_path) -> Bench:
    """Kernels for every instruction set that this machine can run."""
    return make_bench(request.param, tmp_path)


def make_bench(target: Target, folder) -> Bench:
    def library_of(sources: list[str]) -> build.Library:
        path = folder / f"lib{len(list(folder.iterdir()))}.so"
        path.write_bytes(build.build_c(codegen.assemble(sources), target.arch))
        return build.load(str(path))

    return Bench(target, library_of)
