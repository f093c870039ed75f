"""What a LoopProgram means: an interpreter over NumPy, vectorized over each nest's domain.

Slow and plain; the ground truth for tests of every later stage. bfloat16 values are kept as float32 numbers and
rounded on every conversion to bfloat16. Functions such as exp are computed in float64 and rounded once.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from braze.loops.dtypes import TORCH_NAME, truncated_to
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    Condition,
    DType,
    ExternCall,
    LoopNest,
    LoopProgram,
    Node,
    Op,
    ReduceKind,
    SizeCheck,
    Store,
    StoreMode,
    TemplateCall,
)
from braze.loops.scalars import SCALARS
from braze.loops.verify import value_of
from braze.runtime.operators import philox
from braze.symbolic.expr import Expr, Symbol

Array = np.ndarray[Any, Any]


class BrokenProgram(Exception):
    """An access out of bounds, a read of what is not written, or other inputs than declared."""


Extern = Callable[[ExternCall, tuple[Any, ...], dict[str, Any]], Any]

NUMPY = {
    DType.BOOL: np.bool_, DType.U8: np.uint8, DType.I8: np.int8, DType.I16: np.int16, DType.I32: np.int32,
    DType.I64: np.int64, DType.F16: np.float16, DType.BF16: np.float32, DType.F32: np.float32, DType.F64: np.float64,
}  # fmt: skip


def interpret(program: LoopProgram, inputs: Sequence[Any], extern: Extern | None = None) -> tuple[Any, ...]:
    """Run a program on torch tensors (and ints for symbolic inputs); returns its outputs as tensors."""
    with np.errstate(all="ignore"):
        return _Run(program, inputs, extern or call_aten).run()


def call_aten(call: ExternCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an extern call through torch.ops."""
    namespace, op, overload = call.target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)(*args, **kwargs)


def holds(condition: Condition, env: Mapping[Symbol, Any]) -> bool:
    """Whether a condition is true of these sizes."""
    args = [holds(a, env) if isinstance(a, Condition) else int(value_of(a, env)) for a in condition.args]
    if condition.op in ("and", "or"):
        return (all if condition.op == "and" else any)(args)
    return bool(getattr(operator, "not_" if condition.op == "not" else condition.op)(*args))


class _Run:
    """One execution: storage by buffer name, and the sizes."""

    def __init__(self, program: LoopProgram, inputs: Sequence[Any], extern: Extern) -> None:
        self.program = program
        self.extern = extern
        self.buffers = {b.name: b for b in program.buffers}
        self.sizes: dict[Symbol, Any] = {}
        for source in program.sizes:
            given = inputs[source.input]
            self.sizes[source.symbol] = int(given if source.dim < 0 else given.shape[source.dim])
        #: flat tensors; element k of one is offset k of the buffer
        self.storage: dict[str, torch.Tensor] = {}
        for name, given in zip(program.inputs, inputs, strict=True):
            if name:
                self.storage[name] = self.flat(self.buffers[name], given)

    def run(self) -> tuple[Any, ...]:
        checks = list(self.program.checks)
        for step in (None, *self.program.steps):
            checks = self.checked(checks)
            if step is None:
                continue
            if isinstance(step, LoopNest):
                _Nest(self, step.axes, step.reduce_axes).run(step)
            elif isinstance(step, ExternCall):
                self.call(step)
            else:
                self.gemm(step)
        self.checked(checks)
        return tuple(self.output(o) for o in self.program.outputs)

    def checked(self, checks: list[SizeCheck]) -> list[SizeCheck]:
        """Check what can be checked by now; the rest."""
        for check in checks:
            if check.condition.symbols() <= self.sizes.keys() and not holds(check.condition, self.sizes):
                raise RuntimeError(check.message)
        return [c for c in checks if not c.condition.symbols() <= self.sizes.keys()]

    def output(self, o: Any) -> Any:
        if isinstance(o, BufferView):
            return self.view(o)
        if isinstance(o, Condition):
            return holds(o, self.sizes)
        return int(value_of(o, self.sizes)) if isinstance(o, Expr) else o

    def ints(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(int(value_of(e, self.sizes)) for e in values)

    def flat(self, buffer: Buffer, tensor: torch.Tensor) -> torch.Tensor:
        """The elements from a tensor's first to the last one it reaches."""
        if tuple(tensor.shape) != self.ints(buffer.sizes) or _strides_differ(
            tensor, self.ints(buffer.strides)
        ):
            raise BrokenProgram(
                f"{buffer.name} is {tuple(tensor.shape)}/{tensor.stride()}, not "
                f"{self.ints(buffer.sizes)}/{self.ints(buffer.strides)}",
            )
        tensor = tensor.detach()
        return tensor.as_strided((span(tensor.shape, tensor.stride()),), (1,), tensor.storage_offset())

    def view(self, v: BufferView) -> torch.Tensor:
        flat = self.allocate(v.buffer)
        return flat.as_strided(
            self.ints(v.sizes),
            self.ints(v.strides),
            flat.storage_offset() + int(value_of(v.offset, self.sizes)),
        )

    def allocate(self, name: str) -> torch.Tensor:
        """A buffer's storage, made when first written; fresh memory holds a value that shows when it is read."""
        found = self.storage.get(name)
        if found is None:
            b = self.buffers[name]
            if b.kind in (BufferKind.INPUT, BufferKind.CONSTANT):
                raise BrokenProgram(f"input {name} was not given")
            dtype = getattr(torch, TORCH_NAME[b.dtype])
            found = torch.empty(span(self.ints(b.sizes), self.ints(b.strides)), dtype=dtype)
            if b.dtype.is_computable:
                found.fill_(float("nan") if b.dtype.is_float else 77 if b.dtype is not DType.BOOL else 1)
            self.storage[name] = found
        return found

    # -- calls

    def call(self, step: ExternCall) -> None:
        args = tuple(self.argument(a) for a in step.args)
        kwargs = {name: self.argument(a) for name, a in step.kwargs}
        results = _flatten(self.extern(step, args, kwargs))
        for made in step.makes:
            given = results[made.output]
            self.sizes[made.symbol] = int(given if made.dim < 0 else given.shape[made.dim])
        for name, value in zip(step.outputs, results, strict=True):
            if name:
                self.storage[name] = self.flat(self.buffers[name], value)

    def argument(self, a: Any) -> Any:
        if isinstance(a, BufferView):
            return self.view(a)
        if isinstance(a, Expr):
            return int(value_of(a, self.sizes))
        if isinstance(a, tuple):
            return [self.argument(item) for item in a]
        return a

    def gemm(self, step: TemplateCall) -> None:
        if step.kind == "depthwise":
            return self.depthwise(step)
        if step.kind not in ("gemm", "grouped"):
            raise BrokenProgram(f"no meaning for template {step.kind!r}")
        for before in step.prologue:
            _Nest(self, before.axes, before.reduce_axes).run(before)
        a, *rights = (self.view(v) for v in (step.args[0], *step.rights))
        nest = _Nest(self, step.axes, ())
        for b in rights:
            if step.kind == "grouped":
                product = self.grouped(a, b, self.view(step.args[-1]).tolist()).to(torch.float32).numpy()
            else:
                product = (a.double() @ b.double()).to(torch.float32).numpy()
            nest.reduced.append(product.reshape(nest.outer_shape))
        for pending in [nest.evaluated(store) for store in step.epilogue]:
            nest.write(*pending)

    def grouped(self, a: torch.Tensor, b: torch.Tensor, ends: list[int]) -> torch.Tensor:
        parts = [a[begin:end].double() @ m.double() for begin, end, m in zip([0, *ends], ends, b)]
        return torch.cat([*parts, a.new_zeros(len(a) - ends[-1], b.shape[-1], dtype=torch.float64)])

    def depthwise(self, step: TemplateCall) -> None:
        assert step.window is not None
        x, w = (self.view(v).double() for v in step.args)
        words = step.window.stride, step.window.padding, step.window.dilation
        sums = torch.conv2d(x, w[:, None], None, *words, w.shape[0]).to(torch.float32)
        nest = _Nest(self, step.axes, ())
        nest.reduced.append((sums.permute(0, 2, 3, 1) if step.window.last else sums).numpy())
        for pending in [nest.evaluated(store) for store in step.epilogue]:
            nest.write(*pending)


class _Nest:
    """The evaluation of one nest: every value is an array that broadcasts to the domain."""

    def __init__(self, run: _Run, axes: tuple[Axis, ...], reduce_axes: tuple[Axis, ...]) -> None:
        self.run_ = run
        extents = run.ints([a.extent for a in (*axes, *reduce_axes)])
        self.outer_shape = extents[: len(axes)]
        self.shape = extents
        self.env: dict[Symbol, Any] = dict(run.sizes)
        rank = len(extents)
        for k, (axis, extent) in enumerate(zip((*axes, *reduce_axes), extents, strict=True)):
            self.env[axis.symbol] = np.arange(extent, dtype=np.int64).reshape(
                [-1 if j == k else 1 for j in range(rank)]
            )
        self.outer_env: dict[Symbol, Any] = dict(run.sizes)
        for k, (axis, extent) in enumerate(zip(axes, self.outer_shape, strict=True)):
            shape = [-1 if j == k else 1 for j in range(len(axes))]
            self.outer_env[axis.symbol] = np.arange(extent, dtype=np.int64).reshape(shape)
        self.reduced: list[Array] = []

    def run(self, nest: LoopNest) -> None:
        for r in nest.reductions:
            evaluator = _Evaluator(self.run_, self.env, self.shape, [])
            self.reduced += self.reduce(r.kind, r.dtype, evaluator.value(r.value))
        # a nest's values are all computed before any is stored
        for pending in [self.evaluated(store) for store in nest.stores]:
            self.write(*pending)

    def reduce(self, kind: ReduceKind, dtype: DType, value: Array) -> list[Array]:
        full = np.broadcast_to(value, self.shape)
        rows = full.reshape(*self.outer_shape, math.prod(self.shape[len(self.outer_shape) :]))
        return reduce_rows(kind, dtype, rows)

    def evaluated(self, store: Store) -> tuple[Store, Array, Array]:
        """A store with its values and places."""
        evaluator = _Evaluator(self.run_, self.outer_env, self.outer_shape, self.reduced)
        value = np.broadcast_to(evaluator.value(store.value), self.outer_shape)
        at = np.broadcast_to(evaluator.index(store.index, store.args, None), self.outer_shape)
        return store, value, at

    def write(self, store: Store, value: Array, at: Array) -> None:
        buffer = self.run_.buffers[store.buffer]
        target = storage_array(self.run_.allocate(store.buffer), buffer.dtype)
        if at.size and (at.min() < 0 or at.max() >= target.size):
            raise BrokenProgram(f"store to {store.buffer} outside its {target.size} elements")
        if store.mode is StoreMode.ADD:
            if buffer.dtype is DType.BF16:
                raise BrokenProgram("accumulation into bfloat16")
            np.add.at(target, at.reshape(-1), value.reshape(-1))
            return
        target[at.reshape(-1)] = to_storage(value.reshape(-1), buffer.dtype)


def reduce_rows(kind: ReduceKind, dtype: DType, rows: Array) -> list[Array]:
    """Reduce the last dimension; sums of float32 run in float64 and are rounded once."""
    wide = np.float64 if dtype.is_float else rows.dtype
    n = rows.shape[-1]
    if kind is ReduceKind.SUM:
        return [_narrow(rows.astype(wide).sum(axis=-1, dtype=wide), dtype)]
    if kind is ReduceKind.PROD:
        return [_narrow(rows.astype(wide).prod(axis=-1, dtype=wide), dtype)]
    if kind in (ReduceKind.MAX, ReduceKind.MIN):
        pick = np.max if kind is ReduceKind.MAX else np.min
        low = kind is ReduceKind.MAX
        first: Any = (
            (-np.inf if low else np.inf)
            if dtype.is_float
            else (np.iinfo(rows.dtype).min if low else np.iinfo(rows.dtype).max)
        )
        return [pick(rows, axis=-1, initial=first).astype(rows.dtype)]
    if kind in (ReduceKind.ANY, ReduceKind.ALL):
        return [np.asarray((rows.any if kind is ReduceKind.ANY else rows.all)(axis=-1))]
    if kind.finds_place:
        # numpy takes the first nan, and the first of equals, for both
        return [(rows.argmax if kind is ReduceKind.ARGMAX else rows.argmin)(axis=-1).astype(np.int64)]
    if kind is ReduceKind.WELFORD:
        mean = rows.astype(wide).sum(axis=-1) / n if n else np.full(rows.shape[:-1], np.nan)
        m2 = ((rows.astype(wide) - mean[..., None]) ** 2).sum(axis=-1)
        return [_narrow(mean, dtype), _narrow(m2, dtype)]
    top = rows.max(axis=-1, initial=-np.inf)
    return [top, _narrow(np.exp(rows.astype(wide) - top[..., None]).sum(axis=-1), dtype)]


def _narrow(values: Array, dtype: DType) -> Array:
    return np.asarray(values).astype(NUMPY[dtype])


class _Evaluator:
    """Evaluates nodes over one domain; ``mask`` keeps loads of points that are not taken in bounds."""

    def __init__(
        self, run: _Run, env: Mapping[Symbol, Any], shape: tuple[int, ...], reduced: list[Array]
    ) -> None:
        self.run = run
        self.env = env
        self.shape = shape
        self.reduced = reduced
        self.memo: dict[tuple[Node, int], Array] = {}
        self.masks: list[Array] = []

    def value(self, node: Node, mask: Array | None = None) -> Array:
        key = (node, -1 if mask is None else id(mask))
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.evaluate(node, mask)
        return found

    def evaluate(self, node: Node, mask: Array | None) -> Array:
        if node.op is Op.CONST:
            return np.asarray(node.attr, dtype=NUMPY[node.dtype])
        if node.op is Op.INDEX:
            return np.asarray(value_of(node.attr, self.env), dtype=np.int64)
        if node.op is Op.REDUCED:
            return self.reduced[node.attr]
        if node.op is Op.LOAD:
            return self.load(node, mask)
        if node.op is Op.MASKED:
            taken = self.value(node.args[0], mask)
            inner = taken if mask is None else np.logical_and(taken, mask)
            self.masks.append(inner)  # keeps id(inner) unique while the memo lives
            return np.where(taken, self.value(node.args[1], inner), self.value(node.args[2], mask))
        args = [self.value(a, mask) for a in node.args]
        if node.op is Op.RANDOM:
            draw = philox.uniform if node.attr == "uniform" else philox.normal
            return draw(int(args[0].flat[0]), args[1])
        if node.op is Op.CHECK_INDEX:
            return self.check(node, args[0], mask)
        return apply(node, args)

    def index(self, at: Expr, args: tuple[Node, ...], mask: Array | None) -> Array:
        env = dict(self.env)
        for symbol in at.symbols():
            if symbol.place is not None:
                env[symbol] = self.value(args[symbol.place], mask)
        return np.asarray(value_of(at, env), dtype=np.int64)

    def load(self, node: Node, mask: Array | None) -> Array:
        name, at = node.attr
        buffer = self.run.buffers[name]
        if name not in self.run.storage:
            raise BrokenProgram(f"{name} is read before it is written")
        source = storage_array(self.run.storage[name], buffer.dtype)
        where = self.index(at, node.args, mask)
        if mask is not None:
            where, mask = np.broadcast_arrays(where, mask)
            where = np.where(mask, where, 0)
            if not source.size:
                return np.zeros(where.shape, NUMPY[buffer.dtype])
        if not math.prod(self.shape):
            return np.zeros(np.broadcast_shapes(where.shape), NUMPY[buffer.dtype])
        if where.size and (where.min() < 0 or where.max() >= source.size):
            raise BrokenProgram(f"load of {name} outside its {source.size} elements")
        return from_storage(source[where], buffer.dtype)

    def check(self, node: Node, i: Array, mask: Array | None) -> Array:
        extent = value_of(node.attr, self.env)
        bad = (i < 0) | (i >= extent)
        if mask is not None:
            bad = bad & mask
        if np.any(bad):
            raise IndexError(f"index out of range 0 <= i < {extent}")
        return np.clip(i, 0, max(int(extent) - 1, 0)) if mask is not None else i


# -- scalar operations


def apply(node: Node, args: list[Array]) -> Array:
    """One operation on arrays of the operands' types."""
    op, dtype = node.op, node.dtype
    if op is Op.CAST:
        return convert(args[0], node.args[0].dtype, dtype)
    if op is Op.BITCAST:
        raw = to_storage(np.asarray(args[0]), node.args[0].dtype)
        return from_storage(raw.view(STORAGE[dtype]), dtype)
    if op is Op.WHERE:
        return np.where(args[0], args[1], args[2])
    if dtype.is_float and (SCALARS[op].floats or op in (Op.POW, Op.FMA)):
        args = [np.asarray(a, dtype=np.float64) for a in args]
    out = _function(op)(*args)
    return np.asarray(out).astype(np.bool_ if dtype is DType.BOOL else NUMPY[dtype], copy=False)


def convert(x: Array, source: DType, to: DType) -> Array:
    """CAST."""
    if to is DType.BOOL:
        return x != 0
    if to is DType.BF16:
        return round_to_bf16(np.asarray(x).astype(np.float32))
    if to.is_integer and source.is_float:
        whole = np.trunc(x.astype(np.float64))
        limit = 2.0 ** (8 * truncated_to(to).itemsize - 1)
        fits = (whole >= -limit) & (whole < limit)
        return np.where(fits, whole, -limit).astype(np.int64).astype(NUMPY[to])
    return np.asarray(x).astype(NUMPY[to])


def round_to_bf16(x: Array) -> Array:
    """The nearest bfloat16 number, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.reshape(np.shape(x)))


def _vectorized(f: Callable[..., float]) -> Callable[..., Array]:
    made = np.frompyfunc(f, f.__code__.co_argcount if hasattr(f, "__code__") else 1, 1)
    return lambda *args: np.asarray(made(*args), dtype=np.float64)


def _floor_divide(x: Array, y: Array) -> Array:
    """torch's floats: floor of the quotient corrected by the remainder; a zero divisor divides."""
    if not np.issubdtype(np.result_type(x, y), np.floating):
        return np.floor_divide(x, y)
    rest = np.fmod(x, y)
    quotient = (x - rest) / y
    quotient = np.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    floor = np.floor(quotient)
    floor = np.where(quotient - floor > 0.5, floor + 1, floor)
    floor = np.where(quotient == 0, np.copysign(0, x / y), floor)
    return np.where(y == 0, x / y, floor)


def _trunc_divide(x: Array, y: Array) -> Array:
    if np.issubdtype(np.result_type(x, y), np.floating):
        return np.trunc(x / y)
    quotient = np.floor_divide(x, y)
    return np.where((np.remainder(x, y) != 0) & ((x < 0) != (y < 0)), quotient + 1, quotient)


def _remainder(x: Array, y: Array) -> Array:
    if not np.issubdtype(np.result_type(x, y), np.floating):
        return np.remainder(x, y)
    rest = np.fmod(x, y)
    return np.where((rest != 0) & ((y < 0) != (rest < 0)), rest + y, rest)


def _sign(x: Array) -> Array:
    return np.where(x > 0, 1, np.where(x < 0, -1, 0))  # nan gives 0, as in eager


_OWN = {
    "np": np, "erf": _vectorized(math.erf), "erfc": _vectorized(math.erfc), "sign": _sign,
    "floor_divide": _floor_divide, "trunc_divide": _trunc_divide, "remainder": _remainder,
}  # fmt: skip


@functools.cache
def _function(op: Op) -> Callable[..., Any]:
    """What the table of operations says in NumPy."""
    row = SCALARS[op]
    names = "abc"[: row.arity]
    made: Callable[..., Any] = eval(
        f"lambda {', '.join(names)}: {row.text['numpy'].format(**dict(zip(names, names)))}", _OWN
    )
    return made


# -- storage

#: what NumPy sees of a buffer's memory
STORAGE = {**NUMPY, DType.BF16: np.uint16}


def storage_array(flat: torch.Tensor, dtype: DType) -> Array:
    """A flat tensor's memory, shared."""
    if dtype is DType.BF16:
        flat = flat.view(torch.int16)
    out: Array = flat.numpy()
    return out.view(np.uint16) if dtype is DType.BF16 else out


def from_storage(raw: Array, dtype: DType) -> Array:
    """Numbers from memory."""
    if dtype is DType.BF16:
        return (np.asarray(raw, dtype=np.uint32) << 16).view(np.float32)
    return raw


def to_storage(values: Array, dtype: DType) -> Array:
    """Numbers as they lie in memory."""
    if dtype is DType.BF16:
        wide = np.ascontiguousarray(round_to_bf16(values), dtype=np.float32)
        return (wide.view(np.uint32) >> 16).astype(np.uint16).reshape(np.shape(values))
    return np.asarray(values, dtype=NUMPY[dtype])


def span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements from the first to the last one reached."""
    if any(s == 0 for s in sizes):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def _strides_differ(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    if tensor.numel() == 0:
        return False
    return any(a != b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True) if n > 1)


def _flatten(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [item for r in result for item in _flatten(r)]
    return [result]
