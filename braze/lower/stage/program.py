"""Walk a graph and lower it, node by node, to a LoopProgram."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from braze.aot.facts.records import InputRole, Partition
from braze.context import CompileContext
from braze.graph.calls.subgraph_ops import Entry
from braze.graph.nodes.facts import facts
from braze.graph.nodes.passes import BY_PLACE, is_impure
from braze.graph.operators.operators import is_view
from braze.graph.operators.products import device_product_of, grouped_of, is_batch, is_followed, product_of
from braze.loops.bounds import guarded
from braze.loops.dtypes import from_torch
from braze.loops.inputs_written import broken_writes, touches
from braze.loops.ir import BufferKind, BufferView, DType, LoopProgram, SizeSource
from braze.loops.simplify import simplify_steps
from braze.lower.scatters.in_place import (
    LARGE,
    InPlace,
    NotInPlace,
    Written,
    inputs_to_renew,
    inputs_to_write,
)
from braze.lower.scatters.tables import TableSum, lowered_sum, sums_of_tables
from braze.lower.values import scalars, unbacked
from braze.lower.values.fallback import fall_back
from braze.lower.values.lazy import Lazy, dense_order, known_apart, numel, strided_lazy
from braze.lower.values.realize import ProgramBuilder, differs_along
from braze.lower.values.registry import LOWERINGS
from braze.support import trace
from braze.support.errors import InternalError, Unsupported
from braze.support.nested import every, leaves
from braze.symbolic.expr import ONE, ZERO, Expr, Symbol


def lower(partition: Partition, ctx: CompileContext, *, in_place: bool = True) -> LoopProgram:
    """The loop program of a partition's forward graph; ``in_place``: it may write to its inputs, where that is sound.

    Of an input that it writes (``mutated``), the new contents among its outputs are None.
    """
    with trace.stage("lower"):
        kinds = [
            BufferKind.CONSTANT if role is InputRole.PARAMETER else BufferKind.INPUT
            for role in partition.input_roles
        ]
        program = (
            _with_writes(partition, kinds, ctx) if in_place else lower_graph(partition.forward, kinds, ctx)
        )
        own = [
            name
            for name, role in zip(program.inputs, partition.input_roles)
            if name and role is InputRole.SAVED
        ]
        results = partition.forward.meta.get("output_roles", ())
        locked = tuple(i for i, role in enumerate(results) if role.locked)
        return dataclasses.replace(program, owned=tuple(own), locked=locked) if own or locked else program


def _with_writes(partition: Partition, kinds: list[BufferKind], ctx: CompileContext) -> LoopProgram:
    """The program that writes in place all inputs for which each reader sees what it is to see."""
    recorded = ctx.options.cudagraphs or ctx.recordable
    written = inputs_to_write(partition, math.inf if ctx.recordable else LARGE if recorded else 0)
    while True:
        renewed = {} if recorded else inputs_to_renew(partition, written)
        inputs = {each.input for each in written} | {partition.mutations[k].input for k in renewed}
        here = [BufferKind.INPUT if k in inputs else kind for k, kind in enumerate(kinds)]
        try:
            program = lower_graph(partition.forward, here, ctx, written, renewed)
            for root, _ in broken_writes(program, touches(program)):
                raise NotInPlace(root)
        except NotInPlace as found:
            trace.count("inputs_not_written_in_place")
            rest = tuple(each for each in written if buffer_name(each.base) != found.base)
            if len(rest) == len(written):  # one that is renewed
                return lower_graph(partition.forward, kinds, ctx)
            written = rest
            continue
        trace.count("inputs_written_in_place", len(written))
        return program


def lower_graph(
    gm: torch.fx.GraphModule,
    kinds: Sequence[BufferKind],
    ctx: CompileContext,
    written: Sequence[Written] = (),
    renewed: Mapping[int, torch.fx.Node] = MappingProxyType({}),
) -> LoopProgram:
    """The loop program of an ATen graph whose k-th placeholder is a buffer of kind ``kinds[k]``."""
    return guarded(GraphLowering(gm, kinds, ctx, written, renewed).run())


class GraphLowering:
    """One walk over one graph."""

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        kinds: Sequence[BufferKind],
        ctx: CompileContext,
        written: Sequence[Written] = (),
        renewed: Mapping[int, torch.fx.Node] = MappingProxyType({}),
    ) -> None:
        self.gm = gm
        self.ctx = ctx
        self.kinds = list(kinds)
        self.builder = ProgramBuilder(ctx)
        self.builder.default_float = from_torch(torch.get_default_dtype())
        self.env: dict[torch.fx.Node, Any] = {}
        #: live nodes -> how many live nodes read them
        self.readers: dict[torch.fx.Node, int] = {}
        self.inputs: list[str] = []
        #: attribute of the graph module -> its buffer
        self.attributes: dict[str, str] = {}
        self.sources: dict[Symbol, SizeSource] = {}
        #: where Python floats are put
        self.device = device_of_inputs(gm.graph)
        self.outputs: list[Hashable] = []
        #: buffers that are made for the error that it may raise
        self.for_errors: list[str] = []
        self.in_place = InPlace(self.builder, written, self.env)
        #: outputs that are new contents of inputs, and may be stored there
        self.renewed = renewed
        #: sums of tables' gradients; nodes that are but a step of one, or of a write in place
        self.tables: dict[torch.fx.Node, TableSum] = {}
        self.skipped: frozenset[torch.fx.Node] = frozenset()
        #: who computes which products of matrices, where that was measured
        self.ways = dict(ctx.products)

    def run(self) -> LoopProgram:
        self.readers = live_readers(self.gm.graph)
        self.tables, steps = sums_of_tables(self.gm.graph, self.readers)
        self.skipped = steps | self.in_place.skipped.keys()
        for node in self.gm.graph.nodes:
            if node.op == "call_function":
                if node in self.readers and node not in self.skipped:
                    self.call(node)
            elif node.op == "placeholder":
                self.placeholder(node)
            elif node.op == "output":
                items = enumerate(leaves(node.args[0]))
                self.outputs = [self.result(k, a) for k, a in items]
            elif node.op == "get_attr":
                if node in self.readers:
                    self.attribute(node)
            else:
                raise InternalError("BZ9005", f"a {node.op} node in an ATen graph: {node.format_node()}")
        return self.finish()

    # -- inputs

    def placeholder(self, node: torch.fx.Node) -> None:
        g = self.builder
        k = len(self.inputs)
        val = node.meta["val"]
        if not isinstance(val, torch.Tensor):
            if isinstance(val, torch.SymFloat):
                self.float_input(node)
                return
            e = g.symbols.expr(val) if isinstance(val, (int, torch.SymInt)) else val
            if isinstance(e, Symbol):
                self.sources.setdefault(e, SizeSource(e, k, -1))
                g.known_sizes.add(e)
            self.env[node] = e
            self.inputs.append("")
            return
        sizes = g.symbols.exprs(val.shape)
        for dim, size in enumerate(sizes):
            if isinstance(size, Symbol):
                self.sources.setdefault(size, SizeSource(size, k, dim))
            found = g.symbols.found(val.shape[dim])
            if found is not None:
                self.sources.setdefault(found, SizeSource(found, k, dim))
                g.known_sizes.add(found)
        kind = self.kinds[k] if k < len(self.kinds) else BufferKind.INPUT
        name = self.input_buffer(node, val, kind)
        self.inputs.append(name)
        self.env[node] = g.lazy(name)

    def float_input(self, node: torch.fx.Node) -> None:
        """A Python float: the host hands it in as a double in memory."""
        g = self.builder
        name = g.new_buffer(DType.F64, (), (), self.device, BufferKind.INPUT, f"in_{node.name}")
        self.inputs.append(name)
        self.env[node] = scalars.weak(g.lazy(name))

    def attribute(self, node: torch.fx.Node) -> None:
        """A tensor that the graph holds: an input of kind CONSTANT after the graph's own inputs."""
        name = str(node.target)
        if name not in self.attributes:
            self.attributes[name] = self.input_buffer(node, node.meta["val"], BufferKind.CONSTANT)
        self.env[node] = self.builder.lazy(self.attributes[name])

    def input_buffer(self, node: torch.fx.Node, val: torch.Tensor, kind: BufferKind) -> str:
        g = self.builder
        g.origin = facts(node).origin
        name = buffer_name(node)
        g.new_buffer(
            from_torch(val.dtype),
            g.symbols.exprs(val.shape),
            g.symbols.exprs(val.stride()),
            str(val.device),
            kind,
            name,
        )
        return name

    # -- operators

    def call(self, node: torch.fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            value, key = node.args
            assert isinstance(value, torch.fx.Node)
            result = self.env[value][key]
            self.env[node] = result
            if isinstance(result, Lazy):
                self.builder.realize_if_shared(result, self.readers[node])
            return
        val = node.meta.get("val")
        if target in unbacked.TARGETS or isinstance(val, torch.SymBool):
            self.builder.origin = facts(node).origin
            args = [self.resolve(a) for a in node.args]
            self.env[node] = unbacked.lowered(self.builder, target, args, val)
            return
        if isinstance(val, (int, torch.SymInt)) and not isinstance(val, bool):
            numbers = {symbol for symbol, source in self.sources.items() if source.dim < 0}
            if numbers:
                unbacked.require_exact(self.builder, target, [self.resolve(a) for a in node.args], numbers)
            self.env[node] = self.builder.symbols.expr(val)
            return
        if isinstance(val, torch.SymFloat):
            args = [self.resolve(a) for a in node.args]
            unbacked.require_exact(self.builder, None, args)
            self.env[node] = scalars.lowered(target, args, self.device)
            return
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(
                "BZ3003",
                f"{target} in an ATen graph",
                why="it is not an operator overload",
                origin=facts(node).origin,
            )
        self.env[node] = self.lower_call(node, target, val)

    def lower_call(self, node: torch.fx.Node, target: Any, val: Any) -> Any:
        g = self.builder
        g.val = val
        g.wanted = self.parts_read(node) if isinstance(val, (tuple, list)) else frozenset()
        g.op_name = target.__name__.partition(".")[0]
        g.rounding = facts(node).rounding
        product = product_of(node) if self.ways else None
        g.way = self.ways.get(product) if product is not None else None
        g.batch = device_product_of(node) if is_batch(node) else None
        g.followed = g.batch is not None and is_followed(node)
        g.grouped = grouped_of(node)
        g.last = all(user.op == "output" for user in node.users)
        g.origin = facts(node).origin
        if node in self.in_place.links:
            return self.in_place.write(node, self.resolve)
        if node in self.tables:
            return lowered_sum(g, self.tables[node], self.env)
        args = [self.resolve(a) for a in node.args]
        kwargs = {name: self.resolve(a) for name, a in node.kwargs.items()} if node.kwargs else {}
        if target in BY_PLACE:
            args[0] = self.lies_as_traced(node.args[0], args[0])
        if isinstance(entry := facts(node).subgraphs, Entry) and entry.tensors:
            args[-2] = self.lies_as_compiled_for(args[-2], entry)
        carried = scalars.carried(target, args, kwargs) and not unbacked.makes_sizes(g, val)
        function = LOWERINGS.get(target) if carried else None
        result = NotImplemented if function is None else function(g, *args, **kwargs)
        if result is NotImplemented or _beyond_loops(result):
            result = fall_back(g, target, args, kwargs)
        else:
            unbacked.require_words(g, target, args, kwargs)
        operands = every(Lazy, (args, kwargs))
        depth = 1 + max((v.depth for v in operands), default=0)
        readers = self.readers[node]
        if isinstance(result, Lazy) and _as_well_read_anew(result, operands):
            readers = min(readers, 1)
        self.settle(result, val, readers, depth)
        if not readers and facts(node).for_error:
            self.for_errors += [g.realize(part).buffer for part in every(Lazy, result)]
        return result

    def parts_read(self, node: torch.fx.Node) -> frozenset[int]:
        """Which of several results live nodes read."""
        parts = (user for user in node.users if user in self.readers and user.target is operator.getitem)
        return frozenset(user.args[1] for user in parts)  # type: ignore[misc]

    def settle(self, result: Any, val: Any, readers: int, depth: int) -> None:
        """Note eager's layout of a fresh value, and store it if it is read often."""
        if isinstance(result, Lazy):
            if result.view is None:
                result.depth = depth
            if result.hint is None and isinstance(val, torch.Tensor):
                result.hint = self.builder.symbols.exprs(val.stride())
                result.origin = self.builder.origin
            self.builder.realize_if_shared(result, readers)
        elif isinstance(result, tuple):
            for r, v in zip(result, val, strict=True):
                # readers come through getitem nodes, which count for themselves
                self.settle(r, v, 1, depth)

    def lies_as_traced(self, node: Any, x: Lazy) -> Lazy:
        """A value with the strides of the trace, for an operator that counts in its memory.

        What is computed lies so wherever its strides are seen to be dense. A relation between sizes can hide that:
        once ``s0 * s1 == 4`` is known, a stride of ``s0 * s1`` reads 4.
        """
        strides = self.builder.symbols.exprs(node.meta["val"].stride())
        if is_view(node.target) and not self.lies_so(x, strides):
            raise Unsupported("BZ3005", f"memory is counted in a view that does not lie in strides {strides}")
        return self.lies_as(x, strides)

    def lies_as_compiled_for(self, values: Sequence[Any], entry: Entry) -> list[Any]:
        """What subgraphs get, with the strides that they are compiled for: of what is written before, the functional form may lie otherwise."""
        strides = [self.builder.symbols.exprs(t.stride()) for t in entry.tensors]
        pairs = zip(values, strides, strict=True)
        return [self.lies_as(x, wanted) if isinstance(x, Lazy) else x for x, wanted in pairs]

    def lies_as(self, x: Lazy, strides: tuple[Expr, ...]) -> Lazy:
        """A value in memory that has these strides."""
        if self.lies_so(x, strides):
            return x
        return strided_lazy(self.builder, self.output_view(x, strides), x.device)

    def lies_so(self, x: Lazy, strides: tuple[Expr, ...]) -> bool:
        """Whether a value that is put into memory has these strides there."""
        return _same_layout(x.sizes, self.builder.realize(x).strides, strides)

    def resolve(self, a: Any) -> Any:
        """An argument with nodes replaced by their values."""
        if isinstance(a, torch.fx.Node):
            return self.env[a]
        if isinstance(a, (list, tuple)):
            return [self.resolve(item) for item in a]
        if isinstance(a, dict):
            return {k: self.resolve(v) for k, v in a.items()}
        if isinstance(a, slice):
            return slice(self.resolve(a.start), self.resolve(a.stop), self.resolve(a.step))
        if isinstance(a, torch.SymInt):
            return self.builder.symbols.expr(a)
        return a

    # -- outputs

    def result(self, k: int, a: Any) -> Hashable:
        """Output ``k``; None for new contents of an input that are written there."""
        if k not in self.in_place.results:
            return self.output(self.apart(k, a))
        self.in_place.check(k, a)
        return None

    def output(self, a: Any) -> Hashable:
        if not isinstance(a, torch.fx.Node):
            return a
        value = self.env[a]
        if isinstance(value, Lazy) and value.weak:
            return self.builder.realize(value)
        if isinstance(value, Lazy):
            self.builder.origin = facts(a).origin
            return self.output_view(value, self.builder.symbols.exprs(a.meta["val"].stride()))
        return value

    def apart(self, k: int, a: Any) -> Any:
        """Output ``k``; where it is the memory of one input and to be that of another, whose old contents nobody reads, it is stored by itself."""
        base = self.renewed.get(k)
        if base is None or self.readers.get(base):
            return a
        value = self.env[a]
        if isinstance(value, Lazy) and value.view is not None and value.dtype.is_computable:
            if self.builder.comes_from_outside(value.view.buffer):
                return self.builder.copy(value, self.builder.symbols.exprs(base.meta["val"].stride()))
        return a

    def output_view(self, x: Lazy, strides: tuple[Expr, ...]) -> BufferView:
        """Where an output lies, with exactly eager's strides."""
        g = self.builder
        if x.view is None and x.base is None and dense_order(x.sizes, strides) is None:
            numbers = all(e.value is not None for e in (*x.sizes, *strides))
            if numbers and not known_apart(x.sizes, strides):
                raise InternalError(
                    "BZ9026", f"a loop into strides {strides}, in which elements share memory"
                )
            view = self.with_gaps(x, strides)
        else:
            view = g.realize(x)
        if not _same_layout(x.sizes, view.strides, strides):
            view = self.with_gaps(strided_lazy(g, view, x.device), strides)
        return BufferView(view.buffer, view.sizes, strides, view.offset, view.dtype)

    def with_gaps(self, x: Lazy, strides: tuple[Expr, ...]) -> BufferView:
        """A fresh buffer laid out by any strides; dimensions of stride 0 are stored once."""
        g = self.builder
        once = [d for d, s in enumerate(strides) if s is ZERO and x.sizes[d] not in (ZERO, ONE)]
        if differs_along(x, once):
            raise InternalError(
                "BZ9026", f"a result of strides {strides} is not the same along the dims of stride 0"
            )
        sizes = tuple(ONE if d in once else s for d, s in enumerate(x.sizes))
        fresh = g.new_buffer(x.dtype, sizes, strides, x.device)
        if x.dtype.is_computable or x.view is None:
            part = Lazy(sizes, x.dtype, x.device, x.load, ops=(*x.pending_ops, "copy"))
            view = g.realize_into(part, fresh)
        else:  # complex numbers are ATen's to move
            view = g.whole(fresh)
            source = dataclasses.replace(x.view, sizes=sizes)
            g.call("aten.clone.default", (source,), (fresh,), device=x.device, out_variant="aten.clone.out")
        return BufferView(view.buffer, x.sizes, strides, view.offset, view.dtype)

    def finish(self) -> LoopProgram:
        g = self.builder
        unbacked.require_known(g, self.sources)
        escaping = {o.buffer for o in self.outputs if isinstance(o, BufferView)}
        buffers = tuple(
            dataclasses.replace(b, kind=BufferKind.OUTPUT)
            if b.name in escaping and b.kind is BufferKind.TEMPORARY
            else b
            for b in g.buffers.values()
        )
        inputs, again = set(self.inputs), tuple(self.in_place.again)
        written = [name for step in g.steps for name in getattr(step, "mutates", ()) if name in inputs]
        written += [name for name, _ in again]
        return LoopProgram(
            self.ctx.name,
            buffers,
            simplify_steps(tuple(g.steps)),
            (*self.inputs, *self.attributes.values(), *(name for name, _ in again)),
            tuple(self.outputs),
            tuple(dict.fromkeys(written)),
            tuple(self.sources.values()),
            tuple(self.attributes),
            tuple(g.checks),
            again=again,
            renewed=tuple((k, buffer_name(base)) for k, base in self.renewed.items()),
            rounds=g.rounds,
            for_errors=tuple(self.for_errors),
        )


def buffer_name(node: torch.fx.Node) -> str:
    """The name of the buffer of an input."""
    return node.name if not node.name.startswith("buf") else f"in_{node.name}"


def device_of_inputs(graph: torch.fx.Graph) -> str:
    """The device of the first tensor that a graph gets."""
    values = (n.meta.get("val") for n in graph.nodes if n.op == "placeholder")
    return next((str(v.device) for v in values if isinstance(v, torch.Tensor)), "cpu")


def _same_layout(sizes: Sequence[Expr], have: Sequence[Expr], want: Sequence[Expr]) -> bool:
    if any(s is ZERO for s in sizes):
        return True
    return all(a is b for a, b, size in zip(have, want, sizes, strict=True) if size is not ONE)


def live_readers(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    """For every node that an output or an effect depends on: how many such nodes read it, but for a few elements, or to check it."""
    readers: dict[torch.fx.Node, int] = {}
    for node in reversed(graph.nodes):
        if (
            node in readers
            or node.op == "output"
            or (node.op == "call_function" and (is_impure(node) or facts(node).for_error))
        ):
            readers.setdefault(node, 0)
            for read in node.all_input_nodes:
                readers[read] = readers.get(read, 0) + (
                    node.target is not unbacked.REQUIRE_PLACE and not _picks_few(node, read)
                )
    return readers


def _picks_few(node: torch.fx.Node, read: torch.fx.Node) -> bool:
    """Whether a node gathers so few elements of another that it may as well compute those anew."""
    if node.target is not torch.ops.aten.gather.default or node.args[0] is not read:
        return False
    taken, whole = node.meta["val"].numel(), read.meta["val"].numel()
    return type(taken) is int and type(whole) is int and 16 * taken <= whole


def _beyond_loops(result: Any) -> bool:
    """Whether a rule, of moves say, gives elements to compute in a loop that loops do not hold: complex numbers."""
    return any(v.view is None and not v.dtype.is_computable for v in every(Lazy, result))


def _as_well_read_anew(x: Lazy, operands: Sequence[Lazy]) -> bool:
    """Whether a value is a step or two away from one of its size in memory, with little else: no need to store it too."""
    if x.view is not None or x.pending_cost > 2:
        return False
    count = numel(x.sizes).value
    counts = [numel(operand.sizes).value for operand in operands]
    if count is None or any(c is None for c in counts):
        return False
    large = [o for o, c in zip(operands, counts, strict=True) if c is not None and 16 * c > count]
    return (
        len(large) == 1
        and large[0].view is not None
        and numel(large[0].sizes).value == count
        and large[0].dtype.itemsize <= x.dtype.itemsize
    )
