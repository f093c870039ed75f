"""The convolutions of a training step, and on a GPU those of inference too, get their operands in channels-last.

oneDNN computes on channels that lie beside each other, and converts tensors in the usual order on their way in and out in each
call; gradients of depthwise convolutions take a third of the time in channels-last. So does cuDNN on tensor cores, and ATen's
own kernel for depthwise convolutions, which others get, takes four times as long as cuDNN's. Layouts are what the fakes of nodes
say, so this is a rewrite of fakes: a convolution's operands come to it as it wants them (written so by the kernel that makes them, else
by a copy), and what is computed from its result follows PyTorch's own rules. What leaves the graph, and what
operators see whose meaning hangs on strides, stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch._ops import OpOverload

from braze.aot.cut.min_cut import is_random
from braze.aot.facts.inserted import evaluate, inserted
from braze.aot.facts.memory_order import asks_for_an_order
from braze.aot.facts.views import is_on_gpu, is_view
from braze.aot.passes.packed_convolutions import can_pack, pack
from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.facts import argument, set_facts
from braze.graph.nodes.passes import BY_PLACE
from braze.graph.operators.operators import is_elementwise
from braze.graph.rules.layout_rules import suggests_channels_last
from braze.support.nested import every

aten = torch.ops.aten
Node = torch.fx.Node

#: operator -> which of its arguments lie as the picture does, and which is the weight
_OPERANDS: dict[object, tuple[tuple[int, ...], int]] = {
    aten.convolution.default: ((0,), 1),
    aten.convolution_backward.default: ((0, 1), 2),
}

#: gradients of windows: their first argument is read as it lies, and the other ones and the result are copied to lie so too
_OF_WINDOWS = frozenset({aten.max_pool2d_with_indices_backward.default, aten.avg_pool2d_backward.default})

#: a weight of more elements than this many for each of the operands' is turned at a higher cost than they are
HEAVY = 0.75

#: in channels-last oneDNN adds up the products of a window in one chain, else those of 16 channels at a time: windows
#: of more products than this lose more of their sums there, three times as much at 128 channels
LONG = 256

#: bytes of all that a lone convolution on a GPU reads and makes, with its gradients, up to which copies around it take longer to launch than they save
LITTLE = 1 << 21


def lay_out_convolutions(
    module: torch.fx.GraphModule,
    mode: FakeMode,
    *,
    training: bool,
    long_sums: bool,
    recorded: bool,
    constant: Collection[Node],
    once: bool,
) -> None:
    """Lay a functional graph out for its convolutions; those with long sums too, or as in eager.

    ``recorded``: launches take the host no time. ``constant``: parameters that the graph only reads; what is made of them is made ``once``.
    """
    graph = module.graph
    wanted = {n: _wanted(n, training, long_sums) for n in graph.nodes if n.target in _OPERANDS}
    if not wanted:
        return
    if not long_sums and _is_lone(wanted):
        return
    kept = kept_nodes(graph)
    packed = {n for n, form in wanted.items() if once and n not in kept and _is_packed(n, form, constant)}
    if not packed and (torch.channels_last not in wanted.values() or (_is_little(wanted) and not recorded)):
        return
    layouts = Layouts(kept, mode)
    for node in list(graph.nodes):
        form = wanted.get(node)
        if node in packed:
            layouts.changed.add(pack(node, mode))
            continue
        if form is not None:
            operands, weight = _OPERANDS[node.target]
            for i in (*operands, *([weight] if _turns_weight(node.args[weight], constant) else ())):
                operand = node.args[i]
                # a copy of an input would live from the start of the backward: oneDNN may make its own
                if operand.op != "placeholder" or len(operands) == 1 or is_on_gpu(operand.meta["val"]):
                    node.update_arg(i, layouts.operand(operand, node, form))
        elif node.target in _OF_WINDOWS and node.args[1] in layouts.changed:
            gradient, picture = node.args[:2]
            if gradient.op != "placeholder":
                node.update_arg(0, layouts.operand(gradient, node, _form(picture.meta["val"])))
        layouts.follow(node)
        if form is torch.channels_last:
            layouts.turn_results(node, _OPERANDS[node.target])
    graph.lint()


class Layouts:
    """Fakes that change, in the graph's order. ``kept``: nodes whose strides stay."""

    def __init__(self, kept: set[Node], mode: FakeMode) -> None:
        self.kept = kept
        self.mode = mode
        self.changed: set[Node] = set()
        #: laid out for a convolution that reads them
        self.settled: set[Node] = set()
        self.copies: dict[tuple[Node, torch.memory_format], Node] = {}

    def operand(self, operand: Node, reader: Node, form: torch.memory_format) -> Node:
        """A convolution's operand in a layout: as it is, made so by its own kernel, or copied."""
        val = operand.meta["val"]
        if _form(val) is form:
            self.settled.add(operand)
            return operand
        if is_written_here(operand) and operand not in self.kept and operand not in self.settled:
            self.settled.add(operand)
            self.changed.add(operand)
            operand.meta["val"] = self._in(val, form)
            return operand
        known = self.copies.get((operand, form))
        if known is None:
            known = self.copies[operand, form] = inserted(
                reader,
                aten.clone.default,
                operand,
                like=reader,
                mode=self.mode,
                kwargs={"memory_format": form},
            )
            set_facts(known, copy_in_layout=True)
            self.changed.add(known)
        return known

    def turn_results(self, node: Node, operands: tuple[tuple[int, ...], int]) -> None:
        """Give what a GPU's convolution makes the layout of its operands: fakes tell it only where cuDNN is at hand."""
        val = node.meta["val"]
        found = val if isinstance(val, (tuple, list)) else [val]
        read: Any = node.args
        picture, weight = (read[i].meta["val"] for i in (operands[0][-1], operands[1]))
        form = torch.channels_last
        if node in self.kept or not is_on_gpu(weight) or form not in (_form(picture), _form(weight)):
            return
        made = [self._in(v, form) if isinstance(v, torch.Tensor) and v.dim() == 4 else v for v in found]
        node.meta["val"] = made[0] if found[0] is val else type(val)(made)
        self.changed.add(node)

    @staticmethod
    def _in(val: torch.Tensor, form: torch.memory_format) -> torch.Tensor:
        return torch.empty_strided(val.shape, _strides_in(val, form), dtype=val.dtype, device=val.device)

    def follow(self, node: Node) -> None:
        """Give a node the layout that its operator makes of its arguments'."""
        if node.op != "call_function" or not any(n in self.changed for n in node.all_input_nodes):
            return
        if node in self.kept:
            if asks_for_an_order(node.target):  # it may need a copy
                known = node.meta["val"]
                evaluate(node, self.mode).meta["val"] = known
        else:
            before = _strides(node)
            evaluate(node, self.mode)
            if _strides(node) != before:
                self.changed.add(node)


def _is_lone(wanted: Mapping[Node, torch.memory_format | None]) -> bool:
    """Whether a graph on the CPU has one convolution, which lies row by row: to turn its picture and its result would take longer than it saves."""
    if len(wanted) != 1 or torch.channels_last not in wanted.values():
        return False
    read = [v.meta["val"] for node in wanted for v in node.all_input_nodes]
    return not any(is_on_gpu(v) or suggests_channels_last(v) for v in read)


def _is_little(convolutions: Collection[Node]) -> bool:
    """Whether a graph has one small convolution, on a GPU, that is not given channels-last: the host decides how long it takes."""
    nodes = [n for each in convolutions for n in (each, *each.all_input_nodes)]
    values = [x for n in dict.fromkeys(nodes) for x in every(torch.Tensor, n.meta["val"])]
    if sum(each.target is aten.convolution.default for each in convolutions) > 1:
        return False
    if any(not is_on_gpu(x) or suggests_channels_last(x) for x in values):
        return False
    sizes = [x.numel() * x.element_size() for x in values]
    return all(isinstance(n, int) for n in sizes) and sum(sizes) <= LITTLE


def _is_packed(node: Node, form: torch.memory_format | None, constant: Collection[Node]) -> bool:
    """Whether a convolution that lies as in eager has a weight of many numbers, which oneDNN is to order once."""
    return form is torch.contiguous_format and node.args[1] in constant and can_pack(node)


def _turns_weight(weight: Node, constant: Collection[Node]) -> bool:
    """Whether a weight is turned once for many calls, or by the kernel that makes it anyway. Else ATen may turn it."""
    return weight in constant or (is_on_gpu(weight.meta["val"]) and is_written_here(weight))


def is_written_here(node: Node) -> bool:
    """Whether a kernel of ours writes a value, in whatever layout: a cast counts, which PyTorch does not call pointwise."""
    return is_elementwise(node.target) or node.target is aten._to_copy.default


def _wanted(node: Node, training: bool, long_sums: bool) -> torch.memory_format | None:
    """The layout in which a convolution of pictures of known sizes is quickest, and as exact; None for others."""
    operands, at = _OPERANDS[node.target]
    weight = node.args[at].meta["val"]  # type: ignore[union-attr]
    values = [weight, *(node.args[i].meta["val"] for i in operands)]  # type: ignore[union-attr]
    if any(v.dim() != 4 or not v.is_floating_point() for v in values) or not weight.numel():
        return None
    if any(isinstance(n, torch.SymInt) for v in values for n in (*v.shape, *v.stride())):
        return None
    if len(operands) == 1:
        values.append(node.meta["val"])
    if all(tuple(v.shape[2:]) == (1, 1) for v in values):
        # the layouts are one, but oneDNN would copy the weight's gradient into channels-last
        return torch.contiguous_format
    if is_on_gpu(weight):
        return torch.channels_last if _turned_by_cudnn(weight.dtype) else None
    transposed = node.args[6 if len(operands) == 1 else 7]
    if transposed or weight.device.type != "cpu":
        return None
    return _wanted_by_onednn(node, values, long_sums)


def on_tensor_cores(dtype: torch.dtype, library: Any) -> bool:
    """Whether operands of a type are multiplied on tensor cores, by what ``library`` of torch.backends is set to."""
    if dtype is torch.float32:
        return bool(library.fp32_precision == "tf32")  # allow_tf32 may raise
    return dtype in (torch.float16, torch.bfloat16)


def _turned_by_cudnn(dtype: torch.dtype) -> bool:
    """Whether cuDNN computes convolutions of a type on tensor cores, for which it turns operands into channels-last."""
    cudnn: Any = torch.backends.cudnn
    return torch.version.hip is None and cudnn.enabled and on_tensor_cores(dtype, cudnn.conv)


def _wanted_by_onednn(node: Node, values: list[torch.Tensor], long_sums: bool) -> torch.memory_format:
    """``values``: the weight, then the operands that lie as pictures do."""
    operands, at = _OPERANDS[node.target]
    weight = values[0]
    turned = tuple(weight.shape[2:]) != (1, 1)
    if turned and not long_sums and weight.element_size() > 2 and weight.numel() > LONG * weight.shape[0]:
        theirs = any(suggests_channels_last(node.args[i].meta["val"]) for i in (operands[-1], at))  # type: ignore[union-attr]
        return torch.channels_last if theirs else torch.contiguous_format
    heavy = turned and weight.numel() > HEAVY * sum(v.numel() for v in values[1:])
    return torch.contiguous_format if heavy else torch.channels_last


def kept_nodes(graph: torch.fx.Graph) -> set[Node]:
    """Nodes whose strides somebody may see: the caller, operators that are not ATen's, draws of random numbers."""
    kept: set[Node] = set()
    for node in reversed(graph.nodes):
        if sees_strides(node):
            kept.update(node.all_input_nodes)
        if node in kept and is_view(node):
            kept.update(node.all_input_nodes)
    return kept


def sees_strides(node: Node) -> bool:
    """Whether what a node does hangs on its arguments' strides."""
    if node.op == "output" or node.target in BY_PLACE:
        return True
    return node.op == "call_function" and not _is_blind(node)


def _is_blind(node: Node) -> bool:
    """Whether an operator means the same for any strides of its arguments."""
    if not isinstance(node.target, OpOverload):
        return node.target is operator.getitem or not isinstance(
            node.meta.get("val"), (torch.Tensor, tuple, list)
        )
    return node.target.namespace in ("aten", "prims") and (not is_random(node) or _only_attends(node))


def _only_attends(node: Node) -> bool:
    """Whether a node is attention on a GPU that drops nothing."""
    if node.target is not aten.scaled_dot_product_attention.default or not is_on_gpu(node.meta["val"]):
        return False
    dropout = argument(node, 4, "dropout_p", 0.0)
    return isinstance(dropout, (int, float)) and dropout == 0


def _form(val: torch.Tensor) -> torch.memory_format:
    """The layout that eager takes a tensor's strides for."""
    return torch.channels_last if suggests_channels_last(val) else torch.contiguous_format


def _strides_in(val: torch.Tensor, form: torch.memory_format) -> tuple[int, ...]:
    _, c, h, w = val.shape
    return (c * h * w, 1, w * c, c) if form is torch.channels_last else (c * h * w, h * w, w, 1)


def _strides(node: Node) -> object:
    """The strides of a node's result, or of each part of it."""
    val = node.meta.get("val")
    if isinstance(val, (tuple, list)):
        return [v.stride() if isinstance(v, torch.Tensor) else None for v in val]
    return val.stride() if isinstance(val, torch.Tensor) else None
