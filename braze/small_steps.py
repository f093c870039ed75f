"""Training steps that autograd's own nodes carry as well: their graph runs as captured.

A node of ours costs about as much as five of eager's operators, and is worth it where kernels of ours do the work of more. Where both
halves of a step are calls of ATen, as of a sort or a pool, or kernels do the work of a few operators on a few bytes, the captured calls themselves
are the quicker step, and all that autograd promises of them is eager's: values, errors, hooks, what is kept, second derivatives.
"""

from __future__ import annotations

import enum
import math
import operator
import types
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from braze.aot.cut.min_cut import is_random
from braze.aot.facts.records import Partition
from braze.aot.facts.views import is_view
from braze.context import CompileContext
from braze.graph.nodes.facts import argument, facts
from braze.graph.operators.operators import is_elementwise, is_reduction
from braze.graph.private.torch_compat import storage_key
from braze.loops.ir import ExternCall
from braze.runtime.call.boxed import Boxed, boxed
from braze.schedule.facts.passes import accesses_of, passes_of
from braze.schedule.facts.plans import Form
from braze.schedule.facts.records import Group, GroupKind, Schedule
from braze.schedule.gpu.along_threads import form_of
from braze.support.device_costs import H200, DeviceCosts
from braze.support.nested import every, leaves

#: operators whose work kernels of ours may do in a step that is left to autograd: with four to six both ways take the same time
FEW = 3
#: bytes of the largest value of a step of which kernels do some work: from there on what they save of it counts
SMALL = 1 << 14
#: what autograd's nodes are called of operators that are one quick kernel of ATen's each way, as they are of ours: up to so many bytes a node counts for more
#: than what ours save (softmax of 256 x 64 on a Xeon 79 us, 104 by a node of ours; group norm, whose kernels take eager long, 207 and 122)
ONE_EACH_WAY = frozenset({"SoftmaxBackward0", "LogSoftmaxBackward0", "NativeLayerNormBackward0"})
SMALL_ONE = 1 << 16
#: the same on a GPU, where kernels of values of as many bytes end before the host has launched the next one; and where some of eager's may be many
#: times slower than memory
SMALL_ON_GPU, SMALL_REDUCED = 1 << 23, 1 << 19
#: calls of eager's that a node of ours takes the time of on a GPU, beside what it launches: autograd's thread runs Python for it
NODE = 2
#: microseconds that the host takes for a step, and for each call in it; bytes that eager's kernels move in one on an H200
STEP_US, CALL_US, MOVED = 40.0, 15.0, 2.5e6
#: rows whose losses eager sums in one block, forward and back, that take it as long as a node takes the host (of 2^20 on an H200 542 us and 302)
MANY_LOSSES = 1 << 15
#: operators that are one pass over memory, which ours cannot save before and behind calls
_PASSES = frozenset({torch.ops.aten.clone.default, torch.ops.aten.flip.default, torch.ops.aten.full.default})
#: what compiled halves call by names of ours and eager by others: ATen's layer of an LSTM, autograd's function for a running product
EAGERS = frozenset({"braze.mkldnn_rnn_layer.default", "braze.running_product_gradient.default"})
#: operators above which kernels always save more than that
MANY = 32
_LOSSES = frozenset({torch.nn.functional.cross_entropy, torch.nn.functional.nll_loss})
_REDUCE = frozenset({GroupKind.PERSISTENT, GroupKind.LOOPED, GroupKind.MIXED})
#: what a captured graph may call: C functions, which is what most of PyTorch's are
_IN_C = (types.BuiltinFunctionType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def may_be_left(gm: torch.fx.GraphModule, partition: Partition, ctx: CompileContext) -> bool:
    """Whether a captured graph could run as it is, for all that its halves' kernels matter.

    It computes tensors by operators alone, and more than views, writes no input, draws nothing, and nobody asked for what only a compiled step has: recordings,
    a memory budget, a way to divide it, proofs of each stage.
    """
    options = ctx.options
    asked = options.cudagraphs or options.verify > 1 or options.memory_budget != 1.0
    if asked or options.partition != "min_cut" or ctx.recordable or ctx.recorder is not None:
        return False
    more = partition.mutations or partition.made or partition.shared or partition.anchored or partition.turned
    if partition.backward is None or more or partition.backward.parts:
        return False
    computed = list(_calls(partition.forward))
    if not computed or any(map(_draws, (*computed, *_calls(partition.backward.graph)))):
        return False
    return all(_is_operator(node) for node in gm.graph.nodes if node.op not in ("placeholder", "output"))


def work_of(module: torch.fx.GraphModule, plan: Schedule) -> float:
    """How many operators of a half kernels of ours do the work of, as it is scheduled; infinitely many where eager has nothing like it."""
    calls = [group.call for group in plan.groups if isinstance(group.call, ExternCall)]
    if plan.fixed is not None or not all(_is_eagers(call.target) for call in calls):
        return math.inf
    if len(calls) == len(plan.groups):
        return 0
    computed = list(_calls(module))
    passes = sum(node.target in _PASSES and not facts(node).copy_in_layout for node in computed)
    if passes > 2 * len(calls):  # some of which may be one
        passes = 0
    return max(0 if passes else 1, len(computed) - passes - len(calls))


def _is_eagers(target: str) -> bool:
    """Whether what is called is eager's, though by another name."""
    return target.startswith("aten.") or target in EAGERS


def is_little(work: float, halves: Iterable[torch.fx.GraphModule]) -> bool:
    """Whether kernels do too little of a step to pay for a node of ours."""
    return work == 0 or (work <= FEW and all(_on_cpu(half) and _is_small(half, SMALL) for half in halves))


def is_one_each_way(gm: torch.fx.GraphModule) -> bool:
    """Whether a captured graph is one operator, on few bytes of the memory of the CPU, that eager has one kernel for in each direction."""
    computed = [node for node in gm.graph.nodes if node.op.startswith("call_")]
    made = [_history(value) for node in computed for value in _tensors(node)]
    if len(computed) != 1 or len(made) != 1 or made[0] is None or made[0].name() not in ONE_EACH_WAY:
        return False
    return _on_cpu(gm) and _is_small(gm, SMALL_ONE)


def calls_of_eager(gm: torch.fx.GraphModule) -> int:
    """How many operators a step of a captured graph calls in eager: one for each of autograd's nodes and one for each gradient that it passes on,
    and one for each value without a history. The fakes of a capture have the histories that the tensors will have."""
    known = {_history(value) for node in gm.graph.find_nodes(op="placeholder") for value in _tensors(node)}
    computed = [
        node for node in gm.graph.nodes if node.op.startswith("call_") and node.target is not operator.getitem
    ]
    count = sum(all(_history(value) is None for value in _tensors(node)) for node in computed)
    waiting = [_history(value) for node in computed for value in _tensors(node)]
    while waiting:
        function = waiting.pop()
        if function is None or function in known:
            continue
        known.add(function)
        behind = [each for each, _ in function.next_functions if each is not None]
        count += 1 + len(behind) if behind else 0  # nothing is behind what adds to a leaf's gradient
        waiting += behind
    return count


def is_as_quick_on_gpu(
    gm: torch.fx.GraphModule,
    partition: Partition,
    forward: Schedule,
    backward: Callable[[], Schedule],
    costs: DeviceCosts = H200,
) -> bool:
    """Whether eager's step takes no longer than ours: its calls the host no longer than our launches and the node around them, and its kernels the
    device no longer than that, which is known of what is as quick as memory; of the rest values are to be small, but those of ATen's kernels, which are both steps'.
    ``backward`` is asked only if it matters."""
    assert partition.backward is not None
    if _sums_many_losses(gm):
        return False
    behind = len(list(_calls(partition.backward.graph)))
    # operators that autograd's nodes are one of, and those that it needs several of, are told by one count each
    calls = min(calls_of_eager(gm), len(list(_calls(partition.forward))) + behind)
    ours = len(forward.groups) + NODE
    moved = moved_by_eager(gm) / (MOVED * costs.speed)
    if calls > min(MANY, ours + behind) or not (
        _called(forward) or _is_small(gm, SMALL_ON_GPU) or moved <= _host_us(ours + behind)
    ):
        return False
    halves = forward, backward()
    ours += len(halves[1].groups)
    if calls > ours or any(half.fixed is not None for half in halves):  # which eager computes each time
        return False
    if moved <= _host_us(ours) and all(
        _is_elementwise(group, half) for half in halves for each in half.groups for group in each.each
    ):
        return True
    walks = set(map(_walks_of_eager, halves))
    if _Walks.SLOW in walks or (_Walks.ONCE_EACH in walks and not _is_of_sums(partition, halves)):
        most = SMALL_REDUCED
    else:
        most = SMALL_ON_GPU
    return _is_small(gm, most) or _is_small_beside_calls(partition, halves, most)


def _host_us(calls: float) -> float:
    return STEP_US + CALL_US * calls


def moved_by_eager(gm: torch.fx.GraphModule) -> float:
    """Bytes that the kernels of an eager step read and write: each operator's operands and results, and going back these again and the gradients of
    its results; infinitely many where sizes are not known."""
    total = 0.0
    for node in gm.graph.nodes:
        given = [x for each in node.all_input_nodes for x in _tensors(each)]
        made = _tensors(node) if node.op.startswith("call_") and node.target is not operator.getitem else []
        behind = {storage_key(x) for x in given}
        results = sum(_bytes(x) for x in made if storage_key(x) not in behind)  # no views
        if results:
            total += 2 * sum(map(_bytes, given)) + 3 * results
    return total


def _is_elementwise(group: Group, plan: Schedule) -> bool:
    """Whether a kernel has an element or two of each operand for each that it writes: eager's for that are as quick as memory."""
    if group.kind is not GroupKind.POINTWISE:
        return False
    found = list(accesses_of(group, {each.name: each for each in plan.program.buffers}))
    return not any(a.indirect for a in found) and max(Counter(a.buffer for a in found).values()) <= 2


def _sums_many_losses(gm: torch.fx.GraphModule) -> bool:
    """Whether eager takes the losses of very many rows one after the other: of a matrix, unless each is a result."""
    for node in gm.graph.nodes:
        if node.target in _LOSSES and node.kwargs.get("reduction", "mean") != "none":
            x = _tensors(node.all_input_nodes[0])[0]
            if x.dim() == 2 and not (isinstance(x.shape[0], int) and x.shape[0] <= MANY_LOSSES):
                return True
    return False


def _is_of_sums(partition: Partition, halves: Sequence[Schedule]) -> bool:
    """Whether all that kernels of ours do are operators on elements or reductions, no windows, of which eager's may be slow."""
    assert partition.backward is not None
    called = {g.call.target for half in halves for g in half.groups if isinstance(g.call, ExternCall)}
    every = [
        node.target for module in (partition.forward, partition.backward.graph) for node in _calls(module)
    ]
    return all(is_elementwise(op) or is_reduction(op) or str(op) in called for op in every)


def _called(plan: Schedule) -> set[str]:
    """The operators, without their overloads, that are ATen's in a half."""
    return {g.call.target.rpartition(".")[0] for g in plan.groups if isinstance(g.call, ExternCall)}


def _is_small_beside_calls(partition: Partition, halves: Sequence[Schedule], most: int) -> bool:
    """Whether kernels of ours compute nothing of more than so many bytes, nor of such, whatever ATen does."""
    assert partition.backward is not None
    modules = partition.forward, partition.backward.graph
    return all(
        _bytes(x) <= most
        for module, half in zip(modules, halves, strict=True)
        for node in _calls(module)
        if str(node.target).rpartition(".")[0] not in _called(half)
        for each in (node, *node.all_input_nodes)
        for x in _tensors(each)
    )


class _Walks(enum.Enum):
    """How eager's kernels go through memory for what a half does: reducing nothing; each element once, as for a sum; rows again, as for a softmax or a
    norm; elements that do not lie side by side again, or one by one, which may be hundreds of times slower than memory."""

    NONE = enum.auto()
    ONCE_EACH = enum.auto()
    AGAIN = enum.auto()
    SLOW = enum.auto()


def _walks_of_eager(plan: Schedule) -> _Walks:
    if any(isinstance(g.call, ExternCall) and not g.call.target.startswith("aten.") for g in plan.groups):
        return _Walks.SLOW  # operators of ours are for what eager's kernels walk one by one
    reducing = [each for group in plan.groups for each in group.each if each.kind in _REDUCE]
    if not reducing:
        return _Walks.NONE
    if len(reducing) < 2 and all(len(passes_of(group.steps, group.row_axes)) < 2 for group in reducing):
        return _Walks.ONCE_EACH
    buffers = {each.name: each for each in plan.program.buffers}
    forms = {form_of(group, tuple(accesses_of(group, buffers)))[0] for group in reducing}
    return _Walks.AGAIN if forms == {Form.ROWS} else _Walks.SLOW


def as_captured(gm: torch.fx.GraphModule) -> Boxed:
    """The captured calls themselves."""
    forward: Callable[..., Any] = gm.forward

    @boxed
    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        return forward(*inputs)  # type: ignore[no-any-return]

    return call


def _calls(module: torch.fx.GraphModule) -> Iterable[torch.fx.Node]:
    """The operators of a graph that compute something."""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and not is_view(node):
            yield node


def _draws(node: torch.fx.Node) -> bool:
    """Whether an operator draws random numbers: attention that drops nothing does not."""
    if not is_random(node) or not isinstance(node.target, torch._ops.OpOverload):
        return is_random(node)
    places = [i for i, each in enumerate(node.target._schema.arguments) if each.name == "dropout_p"]
    chances = [argument(node, i, "dropout_p", 0.0) for i in places]
    return not any(isinstance(chance, (int, float)) and chance == 0 for chance in chances)


def _is_small(module: torch.fx.GraphModule, most: int) -> bool:
    """Whether no tensor of a graph has more bytes than so many; one of unknown sizes may."""
    return all(_bytes(x) <= most for node in module.graph.nodes for x in _tensors(node))


def _bytes(x: torch.Tensor) -> float:
    """The bytes of a tensor's elements; infinitely many where its sizes are not known."""
    count = x.numel()
    return count * x.element_size() if isinstance(count, int) else math.inf


def _on_cpu(module: torch.fx.GraphModule) -> bool:
    """Whether all of a graph is on the processor. What launches an operator on a GPU costs more than a few bytes."""
    return all(x.device.type == "cpu" for node in module.graph.nodes for x in _tensors(node))


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    return every(torch.Tensor, node.meta.get("val"))


def _history(value: torch.Tensor) -> Any:
    """Autograd's node of a tensor; none, too, of a part of what was written since, which autograd tells of nobody."""
    try:
        return value.grad_fn
    except RuntimeError:
        return None


def _is_operator(node: torch.fx.Node) -> bool:
    """Whether a captured node computes tensors, by a function of PyTorch's, and no more: its modes and hooks give none, its levels of functions are Python."""
    found = [value for value in leaves(node.meta.get("val")) if value is not None]
    if not found or not all(isinstance(value, torch.Tensor) for value in found):
        return False
    name = getattr(node.target, "__name__", None)
    known = isinstance(node.target, _IN_C) or getattr(torch.nn.functional, str(name), None) is node.target
    return node.op in ("call_method", "get_attr") or (node.op == "call_function" and known)
