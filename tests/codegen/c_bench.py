"""Build groups by hand, compile them, call them through ctypes, compare them with the interpreter."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
from pathlib import Path

import torch

from braze.codegen import c as codegen
from braze.codegen.records import KernelText
from braze.context import CompileContext
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    DType,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    ReduceKind,
    Reduction,
    SizeSource,
)
from braze.options import Options
from braze.runtime.libraries import build
from braze.schedule.facts.records import Group, GroupKind
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol, as_expr, axis_symbol
from braze.target import Target
from tests.loops.interpret import interpret

TORCH = {
    DType.BOOL: torch.bool, DType.U8: torch.uint8, DType.I8: torch.int8, DType.I16: torch.int16,
    DType.I32: torch.int32, DType.I64: torch.int64, DType.F16: torch.float16, DType.BF16: torch.bfloat16,
    DType.F32: torch.float32, DType.F64: torch.float64,
}  # fmt: skip
LABELS = {t: d for d, t in TORCH.items()}
_numbers = itertools.count()

#: a kernel of several tests, or of several calls with other data, is compiled once
built = functools.cache(build.build_c)


def axis(name: str, extent: int | Expr) -> Axis:
    return Axis(axis_symbol(name, extent), as_expr(extent))


def load(buffer: str, dtype: DType, at: Expr | int, *args: Node) -> Node:
    return Node(Op.LOAD, dtype, args, (buffer, as_expr(at)))


def const(value: object, dtype: DType) -> Node:
    return Node(Op.CONST, dtype, (), value)


def op(which: Op, *args: Node, dtype: DType | None = None, attr: object = None) -> Node:
    return Node(which, dtype or args[0].dtype, args, attr)


def result(k: int, dtype: DType) -> Node:
    return Node(Op.REDUCED, dtype, (), k)


def nest(axes, stores, reduce_axes=(), reductions=()) -> LoopNest:
    return LoopNest("n", tuple(axes), tuple(reduce_axes), tuple(reductions), tuple(stores), "cpu", ("test",))


def fold(kind: ReduceKind, value: Node, dtype: DType | None = None) -> Reduction:
    return Reduction(kind, dtype or value.dtype, value)


@dataclasses.dataclass
class Bench:
    """Compiles groups for one target into a folder."""

    target: Target
    folder: Path

    def kernel(
        self, steps, tensors, *, axes=None, row_axes=(), internal=(), dtypes=None, name="cpu_test"
    ) -> KernelText:
        """The kernel of one group over the tensors' buffers (``dtypes``: those of internal buffers)."""
        steps = tuple(steps)
        types = {**{n: LABELS[t.dtype] for n, t in tensors.items()}, **(dtypes or {})}
        buffers = {n: Buffer(n, d, (ONE,), (ONE,), "cpu", BufferKind.TEMPORARY) for n, d in types.items()}
        kind = GroupKind.LOOPED if row_axes else GroupKind.POINTWISE
        points = steps[0].axes if axes is None else tuple(axes)
        group = Group(name, kind, steps, points, tuple(row_axes), tuple(internal))
        return codegen.kernel(group, buffers, CompileContext(Options(verify=2), self.target))

    def library(self, *kernels: KernelText) -> build.Library:
        path = self.folder / f"lib{next(_numbers)}.so"
        path.write_bytes(built(codegen.assemble([k.source for k in kernels]), self.target.arch))
        return build.load(str(path))

    def run(self, steps, tensors, *, sizes=None, **group) -> int:
        """Compile and run on the tensors in place; the status that the kernel leaves."""
        text = self.kernel(steps, tensors, **group)
        return call(self.library(text), text, tensors, sizes or {})

    def check(self, steps, inputs, outputs, *, sizes=None, rtol=1e-6, atol=0.0, **group) -> None:
        """The kernel and the interpreter leave the same in ``outputs``."""
        made = {n: t.clone() for n, t in {**inputs, **outputs}.items()}
        assert self.run(steps, made, sizes=sizes, **group) == 0
        wanted = interpreted(
            steps, inputs, outputs, group.get("dtypes") or {}, group.get("internal", ()), sizes or {}
        )
        for name in outputs:
            same(made[name], wanted[name], rtol, atol, name)


def call(library: build.Library, text: KernelText, tensors, sizes) -> int:
    """Call a kernel on flat tensors."""
    status = torch.zeros(1, dtype=torch.int64)
    every = {**tensors, "status": status}
    named = {s.name if isinstance(s, Symbol) else s: n for s, n in sizes.items()}
    pointers = (ctypes.c_void_p * max(len(text.args), 1))(*(every[a].data_ptr() for a in text.args))
    numbers = (ctypes.c_int64 * max(len(text.sizes), 1))(*(named[s] for s in text.sizes))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.symbol(text.name))
    function(ctypes.addressof(pointers), ctypes.addressof(numbers))
    return int(status)


def interpreted(steps, inputs, outputs, dtypes, internal, sizes):
    """What the loop IR's reference semantics leave in the output buffers."""

    def buffer(name, tensor, kind):
        n = as_expr(max(tensor.numel(), 1))
        return Buffer(name, LABELS[tensor.dtype], (n,), (ONE,), "cpu", kind)

    room = max([4, *(t.numel() for t in (*inputs.values(), *outputs.values()))])
    given = {**inputs, **outputs}
    buffers = [buffer(n, t, BufferKind.INPUT) for n, t in given.items()]
    for name in internal:
        buffers.append(Buffer(name, dtypes[name], (as_expr(room),), (ONE,), "cpu", BufferKind.TEMPORARY))
    copies = {n: (t.clone() if t.numel() else torch.zeros(1, dtype=t.dtype)) for n, t in given.items()}
    sources = tuple(SizeSource(s, len(copies) + k, -1) for k, s in enumerate(sizes))
    views = tuple(
        BufferView(n, (as_expr(copies[n].numel()),), (ONE,), ZERO, LABELS[copies[n].dtype]) for n in outputs
    )
    program = LoopProgram(
        "test", tuple(buffers), tuple(steps), (*copies, *("" for _ in sizes)), views, tuple(outputs), sources
    )
    found = interpret(program, [*copies.values(), *sizes.values()])
    return dict(zip(outputs, found, strict=True))


def same(got: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float, what: str) -> None:
    """Equal but for rounding; nan equals nan, and the sign of zero counts where the tolerance is 0."""
    wanted = wanted[: got.numel()] if wanted.numel() > got.numel() else wanted
    if got.dtype.is_floating_point:
        if rtol == 0:
            bits = got.double(), wanted.double()
            equal = (bits[0] == bits[1]) | (bits[0].isnan() & bits[1].isnan())
            signs = bits[0].isnan() | (torch.signbit(bits[0]) == torch.signbit(bits[1]))
            bad = ~(equal & signs)
            assert not bad.any(), (what, got[bad][:8], wanted[bad][:8], bad.nonzero()[:8].flatten())
            return
        torch.testing.assert_close(
            got, wanted, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}"
        )
    else:
        assert torch.equal(got, wanted), (what, got, wanted)
