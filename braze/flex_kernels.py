"""Kernels for ``flex_attention`` on a GPU: its functions lowered for one pair of query and key, printed into the template, and launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from braze.codegen.triton import flash
from braze.graph.calls import flex
from braze.graph.calls.flex_ops import Entry, empty_results
from braze.graph.fakes.fakes import mode_of
from braze.graph.nodes.captured import Captured
from braze.graph.private import torch_compat
from braze.loops.build import nodes_of
from braze.loops.ir import BufferView, LoopNest, LoopProgram, Op
from braze.runtime.libraries import cache
from braze.runtime.triton import triton_load
from braze.support.errors import Unsupported
from braze.support.log import show_code

Lowered = Callable[[torch.fx.GraphModule, Sequence[Any]], LoopProgram]
#: points of the graph that is lowered; which number it is does not matter
POINTS = 1021
PLACES = ("batch", "head", "query", "key")


def attach(entry: Entry, lowered: Lowered, gradients: bool) -> None:
    """Give an entry its kernels. Unsupported where its functions are more than arithmetic on numbers and tables."""
    if entry.kernels is None or (gradients and not entry.kernels.differentiable):
        entry.kernels = Kernels(entry, lowered, gradients)


class Kernels:
    """The kernels of one entry."""

    def __init__(self, entry: Entry, lowered: Lowered, gradients: bool) -> None:
        q, _, v = entry.like
        self.entry, self.differentiable = entry, gradients
        self.scale = entry.scale
        self.tables = [(tuple(x.shape), tuple(x.stride())) for x in entry.others]
        if any(type(n) is not int for shape, stride in self.tables for n in (*shape, *stride)):
            raise Unsupported("BZ5010", "flex_attention that looks up a tensor whose sizes are symbols")
        if any(x.numel() >= 1 << 31 for x in entry.others):
            raise Unsupported(
                "BZ5010", "flex_attention that looks up a tensor of more elements than 32 bits count"
            )
        score = self._function(lowered, flex.at_points, entry.score, ("score", *PLACES))
        mask = self._function(lowered, flex.at_points, entry.mask, PLACES)
        slope = (
            self._function(lowered, flex.slope_at_points, entry.score, ("score", *PLACES, "grad"))
            if gradients
            else None
        )
        self.width, self.value_width = int(q.shape[3]), int(v.shape[3])
        self.forward_tile, self.backward_tile = tiles(q.dtype, max(self.width, self.value_width))
        steps = [n for tile in (self.forward_tile, self.backward_tile) for n in tile[:2]]
        # blocks of another size than tiles are not walked: the mask says all that they say
        self.sparse = (
            entry.sizes is not None
            and entry.present[0]
            and all(n % s == 0 for n in entry.sizes for s in steps)
        )
        self.sparse = self.sparse and (not gradients or entry.present[4])
        self.full = self.sparse and entry.present[2]
        precision = "tf32" if q.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"
        text = flash.source(score, mask, slope, len(entry.others), self.sparse, self.full, precision)
        path = cache.source_file(text)
        show_code("flex_attention", "py", text)
        self.module = triton_load.load_module(path)

    def _function(
        self, lowered: Lowered, target: Any, module: Any, numbers: tuple[str, ...]
    ) -> flash.Function:
        """One of the functions, as what the loops of one point compute."""
        graph, examples = self._graph(target, module, numbers)
        program = lowered(graph, examples)
        name = target.__name__
        # what a derivative reads nothing of has run before, with its errors
        steps = [
            step
            for step in program.steps
            if not isinstance(step, LoopNest) or any(s.buffer not in program.for_errors for s in step.stores)
        ]
        if len(steps) != 1 or not isinstance(steps[0], LoopNest):
            raise Unsupported("BZ5010", f"flex_attention over a function that is more than one loop ({name})")
        step = steps[0]
        if step.reduce_axes or len(step.stores) != 1 or not isinstance(program.outputs[0], BufferView):
            raise Unsupported("BZ5010", f"flex_attention over a function that sums ({name})")
        root = step.stores[0].value
        own = [(name, number) for name, number in zip(program.inputs, numbers, strict=False) if name]
        tables = [(name, i) for i, name in enumerate(program.inputs[len(numbers) :]) if name]
        known = {name for name, _ in (*own, *tables)}
        point = {axis.symbol for axis in step.axes}
        for node in nodes_of(root):
            if node.op in (Op.INDEX, Op.RANDOM, Op.REDUCED) or (
                node.op is Op.LOAD and node.attr[0] not in known
            ):
                raise Unsupported("BZ5010", "flex_attention over a function of more than numbers and tables")
            direct = node.op is Op.LOAD and node.attr[0] in {name for name, _ in own}
            if not direct and node.op is Op.LOAD and node.attr[1].symbols() & point:
                raise Unsupported("BZ5010", "flex_attention over a function that looks up a row")
        return flash.Function(root, tuple(own), tuple(tables))

    def _graph(self, target: Any, module: Any, numbers: tuple[str, ...]) -> tuple[Any, list[Any]]:
        """The graph of a function of many points."""
        like = self.entry.like[0]
        mode = mode_of(self.entry.like)
        assert mode is not None
        wide = flex.working(like.dtype)
        examples = []
        device = torch_compat.device_of_fake(like)
        for name in numbers:
            dtype = wide if name in ("score", "grad") else torch.int64
            meta = torch.empty(POINTS, dtype=dtype, device="meta")
            examples.append(torch_compat.assemble_fake(mode.dispatch, meta, device, False))
        examples += [x.detach() for x in self.entry.others]
        graph = torch.fx.Graph()
        places = [graph.placeholder(f"arg{i}") for i in range(len(examples))]
        for node, value in zip(places, examples, strict=True):
            node.meta["val"] = value
        held = graph.create_node("get_attr", "function", (), {}, name="function")
        args = (held, places) if target is flex.slope_at_points else (held, len(numbers), places)
        made = graph.call_function(target, args)
        kind = torch.bool if module is self.entry.mask else wide
        made.meta["val"] = torch_compat.assemble_fake(
            mode.dispatch, torch.empty(POINTS, dtype=kind, device="meta"), device, False
        )
        graph.output((made,))
        gm = Captured(graph, {"function": module})
        gm.meta["uses_autograd"] = target is flex.slope_at_points
        return gm, examples

    # -- calls

    def forward(self, q: Any, k: Any, v: Any, blocks: Sequence[Any], others: Sequence[Any]) -> Sequence[Any]:
        """(result, logarithms of sums, largest scores)."""
        out, lse, most = empty_results(q, v)
        rows, columns, warps, stages = self.forward_tile
        _on(q.device, self.module.flex_forward[_programs(q.shape[0] * q.shape[1], q.shape[2], rows)])(
            q, k, v, out, lse, most, *self._blocks(blocks, 0), *self._looked_up(others),
            *self._numbers(q, k, v, out, blocks, 0), rows, columns, *self._widths(), num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return out, lse, most

    def backward(
        self,
        q: Any,
        k: Any,
        v: Any,
        blocks: Sequence[Any],
        others: Sequence[Any],
        out: Any,
        lse: Any,
        grad: Any,
        grad_lse: Any,
    ) -> Sequence[Any]:
        """The gradients of queries, keys and values."""
        wide = flex.working(q.dtype)
        delta = ((out.to(wide) * grad.to(wide)).sum(-1) - grad_lse).contiguous()
        lse = lse.contiguous()
        # one of keys for all batches gets what each batch gives
        dq, dk, dv = [
            torch.empty((q.shape[0], *x.shape[1:]), dtype=x.dtype, device=x.device) for x in (q, k, v)
        ]
        rows, columns, warps, stages = self.backward_tile
        tables, options = self._looked_up(others), {"num_warps": warps, "num_stages": stages}
        by_query = self.module.flex_queries[_programs(q.shape[0] * q.shape[1], q.shape[2], rows)]
        by_key = self.module.flex_keys[_programs(q.shape[0] * k.shape[1], k.shape[2], columns)]
        _on(q.device, by_query)(
            q, k, v, lse, delta, grad, dq, *self._blocks(blocks, 0), *tables,
            *self._numbers(q, k, v, grad, blocks, 0), rows, columns, *self._widths(), **options,
        )  # fmt: skip
        _on(q.device, by_key)(
            q, k, v, lse, delta, grad, dk, dv, *self._blocks(blocks, 4), *tables,
            *self._numbers(q, k, v, grad, blocks, 4), rows, columns, *self._widths(), **options,
        )  # fmt: skip
        if k.shape[0] != q.shape[0]:
            dk, dv = dk.sum(0, keepdim=True), dv.sum(0, keepdim=True)
        return dq, dk, dv

    def _blocks(self, blocks: Sequence[Any], first: int) -> list[Any]:
        if not self.sparse:
            return []
        partial = [x.contiguous() for x in blocks[first : first + 2]]
        return partial + ([x.contiguous() for x in blocks[first + 2 : first + 4]] if self.full else partial)

    def _numbers(self, q: Any, k: Any, v: Any, out: Any, blocks: Sequence[Any], first: int) -> list[Any]:
        heads, shared = q.shape[1], k.shape[1]
        numbers = [*q.stride(), *k.stride(), *v.stride(), *out.stride()]
        numbers += [heads, heads // shared, q.shape[2], k.shape[2], k.shape[0], self.scale]
        if self.sparse:
            counts, places = blocks[first], blocks[first + 1]
            full = blocks[first + 3] if self.full else places
            assert self.entry.sizes is not None
            numbers += [*counts.shape, places.shape[-1], full.shape[-1], *self.entry.sizes]
        return numbers

    def _widths(self) -> list[int]:
        widths = [self.width, self.value_width]
        return widths + [max(16, 1 << (n - 1).bit_length()) for n in widths]

    def _looked_up(self, others: Sequence[Any]) -> list[Any]:
        """The tables, laid out as they were when the functions were printed."""
        made = []
        for x, (shape, stride) in zip(others, self.tables, strict=True):
            if x.stride() != stride:
                x = torch.empty_strided(shape, stride, dtype=x.dtype, device=x.device).copy_(x)
            made.append(x)
        return made


def _programs(heads: int, length: int, tile: int) -> tuple[int]:
    """A launch of a program for each tile of each head."""
    return (-(-length // tile) * heads,)


def _on(device: torch.device, launch: Callable[..., Any]) -> Callable[..., Any]:
    """A launch on the device of its tensors."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return launch

    def there(*args: Any, **options: Any) -> Any:
        with torch.cuda.device(device):
            return launch(*args, **options)

    return there


def tiles(dtype: torch.dtype, width: int) -> tuple[tuple[int, int, int, int], tuple[int, int, int, int]]:
    """(queries, keys, warps, stages) of a tile, forward and backward."""
    if dtype is torch.float32:
        return ((64, 32, 4, 2), (32, 32, 4, 1)) if width <= 64 else ((32, 16, 4, 1), (16, 16, 4, 1))
    if width <= 64:
        return (128, 64, 4, 3), (64, 64, 4, 2)
    if width <= 128:
        return (128, 64, 8, 3), (64, 64, 8, 2)
    return (64, 32, 8, 2), (32, 32, 8, 1)
