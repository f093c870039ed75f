"""Linear layers of inference on a GPU that read the same input become one product: queries, keys and values, a gate and what it gates.

Several small products leave a GPU idle between and beside them. The weights lie one after the other in a copy that is made once,
as all that depends on parameters only; each layer's result is a window on the columns of one product. The copy replaces nothing, so it is
made where launches are a good part of the time, and for so many bytes at most.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from braze.aot.facts.inserted import inserted
from braze.aot.facts.views import bytes_of, hint, is_on_gpu
from braze.aot.passes.layouts import Layouts, kept_nodes
from braze.aot.passes.padding import ALIGNED, PER_BYTE
from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.facts import InputRole, facts
from braze.graph.operators.operators import Family, operator_facts
from braze.support.record import record

aten = torch.ops.aten
Node = torch.fx.Node

#: bytes that memory moves in the time that one product less saves (4 us of an H200, for 512 rows and for 8192)
SAVED = 16 << 20
#: what is saved must be this part of the products' time
SHARE = 1 / 8
#: bytes of copied weights that a graph keeps at most
MOST = 64 << 20
#: (steps that a copy takes, its bytes) -> whether what depends on parameters only is kept between calls
Keeps = Callable[[int, int], bool]


@record
class _Siblings:
    """Linear layers of one input, in the graph's order."""

    layers: tuple[Node, ...]

    @property
    def weights(self) -> int:
        """Bytes of their weights and biases."""
        return int(sum(bytes_of(each) for layer in self.layers for each in layer.all_input_nodes[1:]))

    @property
    def pays(self) -> bool:
        """Whether the launches that are saved are a good part of what the products take, in bytes that memory moves meanwhile."""
        time = 0.0
        for layer in self.layers:
            x, weight = layer.all_input_nodes[:2]
            read = bytes_of(x) + bytes_of(weight) + bytes_of(layer)
            time += max(read, 2 * _rows(x) * math.prod(weight.meta["val"].shape) / PER_BYTE)
        return (len(self.layers) - 1) * SAVED >= SHARE * time


def join_products(module: torch.fx.GraphModule, mode: FakeMode, keeps: Keeps) -> None:
    """One product for linear layers of one input in a functional graph of inference, where it pays."""
    graph = module.graph
    kept = kept_nodes(graph)
    chosen, spent, steps = [], 0, 0
    for siblings in _families(list(graph.nodes), kept):
        if siblings.pays and spent + siblings.weights <= MOST:
            chosen.append(siblings)
            spent += siblings.weights
            steps += len(siblings.layers[0].all_input_nodes) - 1
    if not chosen or not keeps(steps, spent):
        return
    layouts = Layouts(kept, mode)
    for siblings in chosen:
        _join(siblings.layers, layouts)
    for node in list(graph.nodes):
        layouts.follow(node)
    graph.lint()


def _families(nodes: Sequence[Node], kept: set[Node]) -> Iterator[_Siblings]:
    """Layers of one input with no other product between them: a result that waited behind one would take memory meanwhile.

    A result whose strides somebody sees would have to be copied out of the product, which takes as long as a product of its own.
    """
    family: list[Node] = []
    for node in nodes:
        known = operator_facts(node.target)
        if known is None or known.family is not Family.PRODUCT:
            continue
        if family and not (_is_layer(node) and _alike(family[0], node)):
            if len(family) > 1:
                yield _Siblings(tuple(family))
            family = []
        if _is_layer(node) and node not in kept:
            family.append(node)
    if len(family) > 1:
        yield _Siblings(tuple(family))


def _is_layer(node: Node) -> bool:
    """Whether a node is a linear layer on a GPU whose weights are parameters of known sizes."""
    if node.target is not aten.linear.default or node.kwargs:
        return False
    x, *weights = node.all_input_nodes
    if len(weights) != sum(each is not None for each in node.args[1:]) or not is_on_gpu(x.meta["val"]):
        return False
    for each in weights:
        if facts(each).role is not InputRole.PARAMETER:
            return False
    out, weight = node.meta["val"], weights[0].meta["val"]
    if weight.dim() != 2 or any(type(n) is not int for n in weight.shape) or not out.is_floating_point():
        return False
    known = all(each.meta["val"].dtype is out.dtype for each in (x, *weights))
    return known and weight.numel() > 0 and weight.shape[0] * out.dtype.itemsize % ALIGNED == 0


def _alike(a: Node, b: Node) -> bool:
    """Whether two layers read the same, and both add a bias or neither."""
    return a.args[0] is b.args[0] and len(a.all_input_nodes) == len(b.all_input_nodes)


def _rows(x: Node) -> int:
    return math.prod(map(hint, x.meta["val"].shape[:-1]))


def _join(layers: tuple[Node, ...], layouts: Layouts) -> None:
    """One product in front of the first layer, and windows on it in place of all."""
    first, mode = layers[0], layouts.mode
    call = functools.partial(inserted, first, like=first, mode=mode)
    operands = [
        call(aten.cat.default, [layer.all_input_nodes[i] for layer in layers])
        for i in range(1, len(first.all_input_nodes))
    ]
    product = call(aten.linear.default, first.args[0], *operands)
    begin, dim = 0, product.meta["val"].dim() - 1
    for layer in layers:
        end = begin + layer.all_input_nodes[1].meta["val"].shape[0]
        window = inserted(layer, aten.slice.Tensor, product, dim, begin, end, like=layer, mode=mode)
        layer.replace_all_uses_with(window)
        layouts.changed.add(window)
        layer.graph.erase_node(layer)
        begin = end
