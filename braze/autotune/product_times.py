"""How long each way of multiplying takes on this machine: measured once per shape, kept on disk beside the kernels.

A compile asks for the products of its graph. Those that no earlier compile measured are timed in turn, our template's kernels built
as one library. What is chosen depends on the kept numbers alone, so that the next process makes the same kernels.

Several threads are seldom all on their cores where others use the machine: a product that cannot be timed by the clock then has the seconds
of one thread, by that thread's time of the processor, and is tried again by the next compile.
"""

from __future__ import annotations

import ctypes
import json
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
import torch.fx

import braze
from braze.codegen import c as c_code
from braze.codegen.c.micro import LINE
from braze.context import CompileContext
from braze.graph.operators.products import product_of
from braze.loops import build as nodes
from braze.loops.ir import Axis, Buffer, BufferKind, BufferView, DType, LoopProgram, Store, TemplateCall
from braze.products import Product, Way, quickest
from braze.runtime.libraries import build, cache
from braze.runtime.operators.one_thread import on_one_thread
from braze.runtime.operators.operators import onednn_linear, operator
from braze.schedule import schedule
from braze.support import trace
from braze.support.errors import BrazeError
from braze.support.log import logger
from braze.symbolic.expr import ONE, ZERO, Expr, Integer, axis_symbol, linear

log = logger("kernels")
aten = torch.ops.aten

#: what a matrix is turned by before it is multiplied
_TRANSPOSES = (aten.permute.default, aten.t.default, aten.transpose.int)
#: seconds for the calls of all ways of one product at most, and how many calls of each must count
_SECONDS, _LEAST = 0.5, 5
#: bytes of the three matrices together; larger products are not measured
_LARGEST = 512 << 20

#: bytes through which the matrices of a measurement move. The last is more than most caches hold
_ROOMS = (1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)

#: of our template: raise it when that becomes quicker, so that what was measured before does not count
_REVISION = 4

Seconds = Mapping[Way, float]


def measured_products(
    graph: torch.fx.Graph, parameters: Sequence[bool], ctx: CompileContext
) -> tuple[tuple[Product, Way], ...]:
    """Which way to take for each product of a graph; ``parameters``: which of its inputs are parameters.

    Outside of training a parameter is packed once: its products are our template's, and not measured.
    """
    if not ctx.options.measure_products or not ctx.options.gemm_template or ctx.target.kind != "cpu":
        return ()
    inputs = graph.find_nodes(op="placeholder")
    packed = {node for node, is_parameter in zip(inputs, parameters) if is_parameter and not ctx.lean}
    found: dict[Product, None] = {}
    touched = 0
    for node in graph.nodes:
        product = product_of(node) if node.op == "call_function" else None
        if product is None:
            continue
        touched += _bytes(product)
        if _bytes(product) <= _LARGEST and packed.isdisjoint(map(_source, node.all_input_nodes)):
            found[product] = None
    times = _times(tuple(found), _room(touched), ctx)
    return tuple((p, quickest(seconds)) for p, seconds in times.items())


def _room(touched: int) -> int:
    """Of how many bytes matrices are taken in turn, where a graph's products touch so many: of few classes, so that much is measured once."""
    return next((room for room in _ROOMS if touched <= room), _ROOMS[-1])


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """The matrix of which a node is a transpose, or the node."""
    while node.op == "call_function" and node.target in _TRANSPOSES:
        node = node.all_input_nodes[0]
    return node


def _bytes(p: Product) -> int:
    return 4 * (p.rows * p.inner + p.inner * p.columns + p.rows * p.columns)


def _times(products: Sequence[Product], room: int, ctx: CompileContext) -> dict[Product, Seconds]:
    """The seconds of each way of each product, from the cache or measured; without those that cannot be told now."""
    threads = torch.get_num_threads()
    known = _found(products, room, threads, ctx)
    busy = [p for p in products if p not in known]
    if busy and threads > 1:
        known |= on_one_thread(lambda: _found(busy, room, 1, ctx)) or {}
    for p in products:
        if p not in known:
            log.info("%s: the machine is too busy to tell, so that a rule decides", p)
    return known


def _found(
    products: Sequence[Product], room: int, threads: int, ctx: CompileContext
) -> dict[Product, Seconds]:
    """The seconds on so many threads, which are those of the calling thread, of the products of which they can be told."""
    disk = cache.DiskCache()
    keys = {p: _key(p, room, threads, ctx) for p in products}
    known: dict[Product, Seconds] = {}
    for p, key in keys.items():
        seconds = _KEPT.get(key.digest) or _read(disk, key)
        if seconds is not None:
            known[p] = _KEPT[key.digest] = seconds
    missing = [p for p in products if p not in known]
    for p, seconds in _measured(missing, room, threads, ctx).items():
        known[p] = _KEPT[keys[p].digest] = seconds
        text = json.dumps({way.value: spent for way, spent in seconds.items()})
        log.info("%s, threads=%d: %s", p, threads, text)
        disk.put(keys[p], text.encode(), "json")
    return known


def _measured(
    products: Sequence[Product], room: int, threads: int, ctx: CompileContext
) -> dict[Product, Seconds]:
    """What each way takes now; nothing where our kernels cannot be built, which the graph's own will say.

    Where others keep several threads from the cores in one product, they will in the next: each would take all its time.
    """
    if not products:
        return {}
    trace.count("products_measured", len(products))
    made: dict[Product, Seconds] = {}
    with trace.stage("measure"), torch.no_grad(), torch.autocast("cpu", enabled=False):
        try:
            kernels = _template_kernels(products, ctx)
        except BrazeError as error:
            log.info("products are not measured: %s", error)
            return {}
        memory = _Memory(max(room, *map(_bytes, products)))
        for p, kernel in zip(products, kernels, strict=True):
            seconds = _timed(_calls(p, memory, kernel), threads)
            if seconds is not None:
                made[p] = seconds
            elif threads > 1:
                break
    return made


#: what this process knows, also where the cache folder is of no use
_KEPT: dict[str, Seconds] = {}


def _key(p: Product, room: int, threads: int, ctx: CompileContext) -> cache.CacheKey:
    return cache.key(
        "product",
        product=p,
        room=room,
        target=ctx.target,
        threads=(threads, ctx.options.threads),
        ways=(torch.__version__, onednn_linear() is not None, getattr(braze, "__version__", "0"), _REVISION),
        compiler=build.compiler_id(),
    )


def _read(disk: cache.DiskCache, key: cache.CacheKey) -> Seconds | None:
    data = disk.get(key, "json")
    return None if data is None else {Way(name): spent for name, spent in json.loads(data).items()}


class _Memory:
    """Memory that all calls move through, each to matrices that none has touched since the end was reached.

    In a step a product finds its matrices where other kernels left them, of which a model's weights lie in no cache: there reading and writing
    decide who is the quickest, and packing costs most. Which of them are still near depends on how much is touched between.
    """

    def __init__(self, size: int) -> None:
        # ones, since no random numbers are drawn from the user's generator; and a line more for each matrix of a product: like PyTorch's, they begin at lines
        self._floats = torch.ones(size // 4 + 3 * LINE, dtype=torch.float32, device="cpu")
        self._next = 0

    def matrices(self, p: Product) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Left, right, and where the result goes."""
        return (
            self._matrix(p.rows, p.inner, p.left_by_columns),
            self._matrix(p.inner, p.columns, p.right_by_columns),
            self._matrix(p.rows, p.columns, False),
        )

    def _matrix(self, rows: int, columns: int, by_columns: bool) -> torch.Tensor:
        if self._next + rows * columns > self._floats.numel():
            self._next = 0
        made = self._floats[self._next : self._next + rows * columns]
        self._next += -(-made.numel() // LINE) * LINE
        return made.view(columns, rows).t() if by_columns else made.view(rows, columns)


#: of the matrices that a call is to take, that call
_Prepared = Callable[[], Callable[[], object]]


def _calls(
    p: Product, memory: _Memory, kernel: Callable[[Sequence[torch.Tensor]], None]
) -> dict[Way, _Prepared]:
    mm, linear_layer = operator("aten.mm.out"), onednn_linear()

    def ours() -> Callable[[], object]:
        return partial(kernel, memory.matrices(p))

    def aten() -> Callable[[], object]:
        left, right, out = memory.matrices(p)
        return lambda: mm(left, right, out=out)

    def onednn() -> Callable[[], object]:
        left, right, _ = memory.matrices(p)
        weight = right.t()
        return lambda: linear_layer(left, weight, None, "none", [], "")

    calls = {Way.OURS: ours, Way.ATEN: aten}
    return calls if linear_layer is None else {**calls, Way.ONEDNN: onednn}


def _timed(calls: Mapping[Way, _Prepared], threads: int) -> Seconds | None:
    """The least seconds of each, called in turn; None where others keep the machine too busy to tell.

    Calls during which a thread had to leave its core do not count. The least of the others is right once a second comes near it.
    What one thread takes is its time of the processor, in which others have no part: there every call counts.
    """
    clock, displaced = (time.perf_counter, _displaced) if threads > 1 else (time.thread_time, lambda: 0)
    for prepare in calls.values():
        prepare()()
    spent: dict[Way, list[float]] = {way: [] for way in calls}
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        for way, prepare in calls.items():
            call = prepare()
            before = displaced()
            start = clock()
            call()
            seconds = clock() - start
            if displaced() == before:
                spent[way].append(seconds)
        if all(map(_settled, spent.values())):
            return {way: min(times) for way, times in spent.items()}
    return None


def _displaced() -> int:
    """How often a thread of this process had to make room for another process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _settled(times: Sequence[float]) -> bool:
    if len(times) < _LEAST:
        return False
    first, second = sorted(times)[:2]
    return second <= first * 1.1


# -- our template, alone -----------------------------------------------------------------------------


def _template_kernels(
    products: Sequence[Product], ctx: CompileContext
) -> list[Callable[[Sequence[torch.Tensor]], None]]:
    """For each product the template's kernel as a function of (left, right, result), packing at each call."""
    texts = c_code.generate(schedule(_program(products), ctx), ctx)
    batches = c_code.split(tuple(text.source for text in texts), ctx.target.cores)
    units = [c_code.assemble(batch, runtime=not k) for k, batch in enumerate(batches)]
    with build.this_machine():
        key = cache.key("products", units="\0".join(units), target=ctx.target, compiler=build.compiler_id())
        path = cache.DiskCache().file(key, lambda: build.build_c(units, ctx.target.arch), "so")
        library = build.load(str(path))
    calls = {int(t.args[0][1:]): _bound(library.symbol(t.name), _order(t.args)) for t in texts}
    return [calls[k] for k in range(len(products))]


def _order(names: Iterable[str]) -> tuple[int, ...]:
    """Which of (left, right, result) each argument is."""
    return tuple("abc".index(name[0]) for name in names)


def _bound(address: int, order: Sequence[int]) -> Callable[[Sequence[torch.Tensor]], None]:
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    pointers = (ctypes.c_void_p * len(order))()

    def call(tensors: Sequence[torch.Tensor]) -> None:
        pointers[:] = [tensors[k].data_ptr() for k in order]
        function(ctypes.addressof(pointers), None)

    return call


def _program(products: Sequence[Product]) -> LoopProgram:
    """The products and nothing else: matrices a0 and b0, their product c0, and so on."""
    buffers: list[Buffer] = []
    steps, inputs, outputs = [], [], []
    for k, p in enumerate(products):
        rows, inner, columns = Integer(p.rows), Integer(p.inner), Integer(p.columns)
        left = _view(f"a{k}", (rows, inner), p.left_by_columns)
        right = _view(f"b{k}", (inner, columns), p.right_by_columns)
        out = _view(f"c{k}", (rows, columns), False)
        axes = (Axis(axis_symbol("m", rows), rows), Axis(axis_symbol("n", columns), columns))
        index = linear([x.symbol for x in axes], out.strides, ZERO)
        store = Store(out.buffer, index, nodes.reduced(0, DType.F32))
        steps.append(TemplateCall(f"mm_{k}", "gemm", (left, right), axes, (store,), False, "cpu", ("mm",)))
        kinds = (BufferKind.INPUT, BufferKind.INPUT, BufferKind.OUTPUT)
        for view, kind in zip((left, right, out), kinds, strict=True):
            buffers.append(Buffer(view.buffer, DType.F32, view.sizes, view.strides, "cpu", kind))
        inputs += [left.buffer, right.buffer]
        outputs.append(out)
    return LoopProgram("products", tuple(buffers), tuple(steps), tuple(inputs), tuple(outputs))


def _view(name: str, sizes: tuple[Expr, Expr], by_columns: bool) -> BufferView:
    strides = (ONE, sizes[0]) if by_columns else (sizes[1], ONE)
    return BufferView(name, sizes, strides, ZERO, DType.F32)
