"""A piece with symbolic sizes, for one size or for a range of sizes: the same graph over fakes made anew."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from braze.capture.guards.tables import compile_relation
from braze.graph.fakes.fakes import FakeMode, new_mode, text_of
from braze.graph.nodes.captured import Late
from braze.graph.nodes.facts import facts
from braze.graph.private.torch_compat import storage_key
from braze.support.errors import Unsupported
from braze.support.record import record

_SYM_SIZE = torch.ops.aten.sym_size.int


@record
class SizeRange:
    """Sizes from ``low`` to ``high``, both included."""

    low: int
    high: int

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.low <= size <= self.high


@record
class Special:
    """A graph for some sizes, its example inputs, and which of the piece's inputs these are: sizes that are known are none."""

    graph: GraphModule
    examples: tuple[Any, ...]
    kept: tuple[int, ...]


def ranges_of(endpoints: Sequence[int], largest: int | None = None) -> tuple[SizeRange, ...]:
    """The ranges that end at ``endpoints``, from 2 on: sizes 0 and 1 are compiled by themselves. The last ends at ``largest``, if given.

    >>> [(r.low, r.high) for r in ranges_of([8, 64], 512)]
    [(2, 8), (9, 64), (65, 512)]
    """
    ends = sorted({n for n in (*endpoints, *((largest,) if largest else ())) if n >= 2})
    return tuple(SizeRange(low + 1, high) for low, high in zip((1, *ends), ends, strict=False))


def symbol_of(graph: GraphModule) -> str | None:
    """The one symbol that the sizes of a graph's inputs are made of; None where there is none. Unsupported (BZ7211) for several."""
    found: set[str] = set()
    for value in _values(graph):
        for n in (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(n, torch.SymInt):
                found |= {str(s) for s in n.node.expr.free_symbols}
    if len(found) > 1:
        raise Unsupported(
            "BZ7211",
            f"a piece has several sizes ({', '.join(sorted(found))}), and can be compiled for no one of them",
            why="compile_sizes and compile_ranges_endpoints name values of one size, the number of tokens",
            hints=["give all dimensions that grow with the batch one name", "leave compile_sizes out"],
        )
    return next(iter(found), None)


def where_is(graph: GraphModule, symbol: str) -> tuple[int, int] | None:
    """Where a call's size is found: (input, dimension), or (input, -1) for a number; None where it stands nowhere by itself."""
    values = _values(graph)
    for i, value in enumerate(values):
        if isinstance(value, torch.SymInt) and str(value.node.expr) == symbol:
            return i, -1
    for i, value in enumerate(values):
        for d, n in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(n, torch.SymInt) and str(n.node.expr) == symbol:
                return i, d
    return None


def specialised(graph: GraphModule, symbol: str, size: int | SizeRange) -> Special:
    """The graph for sizes in which ``symbol`` is ``size``, or lies within it. Unsupported (BZ7211) where inputs share memory."""
    storages = [storage_key(v) for v in _values(graph) if isinstance(v, torch.Tensor)]
    if len(set(storages)) < len(storages):
        raise Unsupported(
            "BZ7211",
            "inputs of a piece share memory, and it is not compiled for one size",
            why="the piece is compiled for any size, and serves this one, too",
        )
    mode = new_mode(dynamic=isinstance(size, SizeRange))
    value: Any = size
    if isinstance(size, SizeRange):
        value = mode.bounded_symbol(size.high, symbol, size.low, size.high)
    made = _Copy(graph, mode, symbol, value)
    return made.special()


def _values(graph: GraphModule) -> list[Any]:
    return [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]


class _Copy:
    """Copies a graph node by node, with a value on fakes for each."""

    def __init__(self, graph: GraphModule, mode: FakeMode, symbol: str, value: Any) -> None:
        self.module, self.mode, self.symbol, self.value = graph, mode, symbol, value
        self.graph = Graph()
        #: nodes -> nodes, or numbers that are known
        self.env: dict[Node, Any] = {}

    def special(self) -> Special:
        kept: list[int] = []
        examples: list[Any] = []
        inputs = 0
        with self.mode, torch.no_grad():
            for node in self.module.graph.nodes:
                if node.op == "placeholder":
                    example = self._input(node)
                    if not isinstance(example, int):
                        kept.append(inputs)
                        examples.append(example)
                    inputs += 1
                elif node.op == "output":
                    end = self.graph.output(torch.fx.map_arg(node.args[0], lambda n: self.env[n]))
                    end.meta["val"] = tuple(_value(x) for x in end.args[0])  # type: ignore[union-attr]
                else:
                    self._step(node)
        module = Late(self.graph, self.module)
        module.meta.update(self.module.meta)
        return Special(module, tuple(examples), tuple(kept))

    def _input(self, node: Node) -> Any:
        """The fake of an input; a size that is known is a number in the graph, and no input."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            made = self._size(value)
            if isinstance(made, int):
                self.env[node] = made
                return made
        else:
            sizes, strides = [[self._size(n) for n in of] for of in (value.shape, value.stride())]
            made = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
            made.requires_grad_(value.requires_grad)
        self.env[node] = copied = self.graph.node_copy(node)
        copied.meta["val"] = made
        return made

    def _size(self, n: Any) -> Any:
        """A size in terms of the new value."""
        text = text_of(n)
        return text if isinstance(text, int) else compile_relation(text, {self.symbol: 0})((self.value,))

    def _step(self, node: Node) -> None:
        args: Any
        kwargs: Any
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: _value(self.env[n]))
        if node.op == "call_method":
            result = self.mode.call(getattr(torch.Tensor, str(node.target)), args, kwargs)
        elif node.target is _SYM_SIZE:
            result = args[0].shape[args[1]]
        elif node.op == "call_function" and (
            _is_plain(node) or (not _holds_tensor(args, kwargs) and not _makes_tensor(node))
        ):
            result = node.target(*args, **kwargs)  # type: ignore[operator]
        elif node.op == "call_function":
            result = self.mode.call(node.target, args, kwargs)
        else:
            raise Unsupported("BZ7211", f"a piece with {node.op} {node.target} is not compiled for one size")
        if isinstance(result, int) and not isinstance(result, bool):
            self.env[node] = result  # a number now
            return
        self.env[node] = copied = self.graph.node_copy(node, lambda n: self.env[n])
        copied.meta["val"] = result


def _is_plain(node: Node) -> bool:
    return facts(node).setting or node.target in (getattr, operator.getitem)


def _makes_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _holds_tensor(args: Any, kwargs: Any) -> bool:
    found: list[bool] = []
    torch.fx.node.map_aggregate((args, kwargs), lambda x: found.append(isinstance(x, torch.Tensor)))
    return any(found)


def _value(x: Any) -> Any:
    return x.meta.get("val") if isinstance(x, Node) else x
