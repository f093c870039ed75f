"""The program under construction: buffers, steps, and when a lazy value becomes a buffer.

A value is realized when 1. it is a reduction, 2. an extern call or the caller needs it in memory, 3. several
readers would repeat its arithmetic, 4. its expression has grown large, 5. it is costly and about to be
broadcast. A view of a value that is not yet in memory realizes the value it is a view of, so that views
never copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.context import CompileContext
from braze.graph.sizes.learned_sizes import SettledSizes
from braze.loops import build
from braze.loops.dtypes import HALVES, from_torch
from braze.loops.ir import (
    Axis,
    Buffer,
    BufferKind,
    BufferView,
    DType,
    ExternCall,
    LoopNest,
    Node,
    Op,
    Reduction,
    SizeCheck,
    Step,
    Store,
)
from braze.lower.values.lazy import Lazy, dense_order, strided_lazy
from braze.products import DeviceProduct, Grouped, Way
from braze.support.errors import InternalError, Origin
from braze.symbolic.expr import (
    ONE,
    ZERO,
    Expr,
    Symbol,
    as_expr,
    axis_symbol,
    contiguous_strides,
    indirect,
    linear,
)

#: an expression dearer than this is stored rather than grown
LARGE = 200
#: an expression of more nested operators than this is stored, lest Python's stack ends
DEEP = 40
#: an expression dearer than this is stored before it is broadcast
COSTLY = 8


class ProgramBuilder:
    """Collects buffers and steps in order."""

    def __init__(self, ctx: CompileContext) -> None:
        self.ctx = ctx
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Step] = []
        self.origin: Origin | None = None
        #: of the graph node being lowered: its name for kernels, and its fake result
        self.op_name = ""
        self.val: Any = None
        #: whether it narrows the result of a composition of ours
        self.rounding = False
        #: which of its results, where it has several, somebody reads
        self.wanted: frozenset[int] = frozenset()
        #: who computes it, where it is a product of matrices that was measured
        self.way: Way | None = None
        #: the products of a batch of matrices that it computes on a GPU
        self.batch: DeviceProduct | None = None
        #: the product of rows by a batch of matrices that it computes on a GPU
        self.grouped: Grouped | None = None
        #: whether elementwise work follows a batch's
        self.followed = False
        #: whether its result is handed out as it is
        self.last = False
        #: the type of Python floats
        self.default_float = DType.F32
        #: whether the kernels may leave out roundings to half types, and whether there are any
        self.leaves_out = ctx.options.numerics == "float32"
        self.rounds = False
        self.symbols = SettledSizes()
        #: of those that only the data tell, the ones that the steps so far make known
        self.known_sizes: set[Symbol] = set()
        self.checks: list[SizeCheck] = []
        self._indirect: dict[Symbol, Node] = {}
        self._indirect_of: dict[Node, Symbol] = {}
        self._fresh = 0
        self._axis_symbols: dict[tuple[str, Expr], Symbol] = {}

    # -- buffers

    def new_buffer(
        self,
        dtype: DType,
        sizes: tuple[Expr, ...],
        strides: tuple[Expr, ...],
        device: str,
        kind: BufferKind = BufferKind.TEMPORARY,
        name: str = "",
    ) -> str:
        """Add a buffer; returns its name."""
        if not name:
            name = f"buf{self._fresh}"
            self._fresh += 1
        self.buffers[name] = Buffer(name, dtype, sizes, strides, device, kind, self.origin)
        return name

    def dtype_of(self, dtype: Any) -> DType:
        """The element type of a torch.dtype."""
        return from_torch(dtype)

    def is_for_loops(self, *values: Lazy) -> bool:
        """Whether floats are on a GPU: where ATen's kernels for it go number by number, loops of ours fuse with what is around them."""
        return self.ctx.target.kind == "cuda" and all(x.device != "cpu" and x.dtype.is_float for x in values)

    def comes_from_outside(self, name: str) -> bool:
        """Whether a buffer's data may start anywhere in its storage, at each call elsewhere, as that of a view which ATen took."""
        if self.buffers[name].kind in (BufferKind.INPUT, BufferKind.CONSTANT):
            return True
        makers = (s for s in self.steps if isinstance(s, ExternCall) and s.aliases and name in s.outputs)
        return any(self.comes_from_outside(alias) for maker in makers for alias in maker.aliases)

    def whole(self, name: str) -> BufferView:
        """The view of all of a buffer."""
        return self.buffers[name].whole()

    def load(self, view: BufferView, index: Sequence[Expr]) -> Node:
        """Read one element of a view."""
        at = linear(index, view.strides, view.offset)
        if self._indirect:
            inside = [s for s in at.symbols() if s in self._indirect]
            if inside:
                inside.sort(key=str)
                slots = {s: indirect(k, s.low, s.high, s.limit) for k, s in enumerate(inside)}
                return build.load(
                    view.buffer, view.dtype, at.subs(slots), tuple(self._indirect[s] for s in inside)
                )
        return build.load(view.buffer, view.dtype, at)

    def indirect(self, value: Node, extent: Expr) -> Expr:
        """An index whose value is computed: ``value`` in 0 <= value < extent, which is looked at unless it is known."""
        looked = build.check_index(value, extent)
        if looked.op is Op.INDEX:
            return looked.attr
        if looked.op is Op.CONST:
            return as_expr(looked.attr)
        return self.known(looked, extent)

    def known(self, value: Node, extent: Expr) -> Expr:
        """An index whose value is computed, which nobody need look at."""
        found = self._indirect_of.get(value)
        if found is None:
            found = self._indirect_of[value] = axis_symbol(f"at{len(self._indirect)}", extent)
            self._indirect[found] = value
        return found

    def index_node(self, e: Expr, dtype: DType = DType.I64) -> Node:
        """The value of an index expression as a node; computed indices inside become arithmetic."""
        if not self._indirect or not any(s in self._indirect for s in e.symbols()):
            return build.index(e, dtype)
        return build.cast(build.arithmetic(e, self._indirect), dtype)

    def add(self, step: Step) -> None:
        """Append a step."""
        self.steps.append(step)

    def call(
        self,
        target: str,
        args: tuple[Any, ...],
        outputs: tuple[str, ...] = ("",),
        *,
        kwargs: tuple[tuple[str, Any], ...] = (),
        device: str = "cpu",
        **more: Any,
    ) -> None:
        """Append a call of an operator for the node that is lowered; ``more``: fields of ExternCall."""
        ops, origin = (self.op_name,), self.origin
        self.add(
            ExternCall(
                self.name_step(ops),
                target,
                args,
                kwargs,
                outputs,
                device=device,
                ops=ops,
                origin=origin,
                **more,
            )
        )

    def nest(
        self,
        axes: tuple[Axis, ...],
        stores: tuple[Store, ...],
        device: str,
        ops: tuple[str, ...],
        *,
        over: tuple[Axis, ...] = (),
        reductions: tuple[Reduction, ...] = (),
        origin: Origin | None = None,
    ) -> None:
        """Append loops; ``over``: the axes that are reduced."""
        name = self.name_step(ops)
        self.add(LoopNest(name, axes, over, reductions, stores, device, ops, origin or self.origin))

    def name_step(self, ops: Sequence[str]) -> str:
        """A name for the next step."""
        return f"s{len(self.steps)}_{ops[-1] if ops else 'copy'}"

    # -- numbers

    def rounded(self, value: Node, dtype: DType) -> Node:
        """What an operation gives, in its result's type: a cast that nobody asked for."""
        if not self.leaves_out or dtype not in HALVES:
            return build.cast(value, dtype)
        self.rounds = True
        return build.rounded(value, dtype)

    # -- nests

    def axes(self, sizes: Sequence[Expr], prefix: str = "i") -> tuple[tuple[Axis, ...], list[Expr]]:
        """One axis per dimension that is not of size 1, and the index of every dimension."""
        axes: list[Axis] = []
        index: list[Expr] = []
        for size in sizes:
            if size is ONE:
                index.append(ZERO)
                continue
            key = (f"{prefix}{len(axes)}", size)
            symbol = self._axis_symbols.get(key)
            if symbol is None:
                symbol = self._axis_symbols[key] = axis_symbol(*key)
            axes.append(Axis(symbol, size))
            index.append(symbol)
        return tuple(axes), index

    def realize(self, x: Lazy) -> BufferView:
        """Where ``x`` lies in memory; computes it there first if need be."""
        if x.view is not None:
            return x.view
        if x.base is not None and x.rederive is not None:
            view = x.rederive(self.realize(x.base))
            if view is not None:
                return self._settle(x, view)
        strides = x.hint
        if strides is None or dense_order(x.sizes, strides) is None:
            strides = contiguous_strides(x.sizes)
        return self.realize_into(x, self.new_buffer(x.dtype, x.sizes, strides, x.device))

    def realize_into(self, x: Lazy, buffer: str) -> BufferView:
        """Compute ``x`` into a buffer of its sizes."""
        view = self.whole(buffer)
        if not x.dtype.is_computable:
            raise InternalError(
                "BZ9003", f"a loop over {x.dtype.label} values", origin=x.origin or self.origin
            )
        order = _loop_order(x.sizes, view.strides)
        axes, sorted_index = self.axes([x.sizes[d] for d in order])
        index: list[Expr] = [ZERO] * x.rank
        for d, i in zip(order, sorted_index, strict=True):
            index[d] = i
        store = Store(buffer, linear(index, view.strides, view.offset), x.load(index))
        ops = x.pending_ops or ("copy",)
        self.nest(axes, (store,), x.device, ops, origin=x.origin)
        return self._settle(x, view)

    def _settle(self, x: Lazy, view: BufferView) -> BufferView:
        x.view = view
        x.hint = view.strides
        x.inner = lambda index: self.load(view, index)
        x.base = x.rederive = None
        x.cost = x.depth = 0
        return view

    def realize_if_shared(self, x: Lazy, readers: int) -> None:
        """Store a value that several readers would compute anew, or whose expression has grown large."""
        if x.view is None and x.dtype.is_computable:
            cost = x.pending_cost
            shared = cost >= LARGE or x.depth >= DEEP or (readers > 1 and cost > 0)
            if shared and constant_of(x) is None:
                self.realize(x)

    def realize_if_costly(self, x: Lazy) -> None:
        """Store a value that is about to be broadcast, if computing it is dear."""
        if x.view is None and x.pending_cost >= COSTLY and x.dtype.is_computable:
            self.realize(x)

    def copy(self, x: Lazy, strides: tuple[Expr, ...] | None = None) -> BufferView:
        """A fresh buffer with the value of ``x``, row-major unless told."""
        fresh = Lazy(x.sizes, x.dtype, x.device, x.load, ops=(*x.pending_ops, "copy"))
        fresh.hint = strides if strides is not None else contiguous_strides(x.sizes)
        return self.realize(fresh)

    def lazy(self, name: str) -> Lazy:
        """A buffer as a value."""
        value = strided_lazy(self, self.whole(name), self.buffers[name].device)
        value.origin = self.origin
        return value


def constant_of(x: Lazy) -> Node | None:
    """The constant that every element is, if arithmetic on indices shows that they all are."""
    if x.view is not None:
        return None
    value = x.load([axis_symbol(f"c{d}", size) for d, size in enumerate(x.sizes)])
    return value if value.op is Op.CONST else None


def differs_along(x: Lazy, dims: Sequence[int]) -> bool:
    """Whether arithmetic on indices does not show that elements are the same along some dims; where there are none, none differs."""
    if not dims or ZERO in x.sizes:
        return False
    axes = [axis_symbol(f"c{d}", size) for d, size in enumerate(x.sizes)]
    along = {axes[d] for d in dims}
    for n in build.nodes_of(x.load(axes)):
        index = n.attr[1] if n.op is Op.LOAD else n.attr if n.op is Op.INDEX else None
        if index is not None and not along.isdisjoint(index.symbols()):
            return True
    return False


def _loop_order(sizes: Sequence[Expr], strides: Sequence[Expr]) -> list[int]:
    """Dimensions from outermost to innermost, by decreasing stride."""
    order = dense_order(sizes, strides)
    if order is not None:
        small = [d for d in range(len(sizes)) if d not in order]
        return small + order[::-1]
    known = [s.value for s in strides]
    if all(k is not None for k in known):
        return sorted(range(len(sizes)), key=lambda d: -(known[d] or 0))
    return list(range(len(sizes)))
