"""Replace a linear layer and the cross entropy of its result by one operator that makes the logits some rows at a time.

Applies to a captured graph where

1. the result of ``linear`` (or of a product with a matrix) reaches ``cross_entropy``, or ``nll_loss`` of ``log_softmax``, only
   through casts to float, slices and reshapes of the rows, and a soft cap (``cap * tanh(x / cap)``),
2. nobody else reads the logits or what stands between,
3. targets are classes, the reduction is a sum or a mean, and the type is not float16, whose gradients would vanish before
   the scale of the loss reaches them.

The rows are selected from the layer's argument instead, so that the operator's rows are those of the targets.
"""

from __future__ import annotations

import inspect
import operator
from typing import Any

import torch
import torch.nn.functional as F

from braze.aot.facts.views import elements
from braze.graph.nodes.facts import facts
from braze.runtime.operators.linear_loss import OPERATOR
from braze.support import trace
from braze.support.log import logger
from braze.support.nested import every
from braze.support.record import record

Node = torch.fx.Node
Tensor = torch.Tensor

#: logits from this many bytes on are made in chunks where the option does not say
LARGE = 64 << 20
#: bytes of the logits of one chunk, by kind of device: products of fewer rows are slower
CHUNK = {"cpu": 32 << 20, "cuda": 256 << 20}
#: rows of a chunk are a multiple of this
STEP = 64


class Kept(Exception):
    """Why a loss stays as it is."""


@record
class Loss:
    """A call of ``cross_entropy`` (or ``nll_loss``, whose ``argument`` is a ``log_softmax``) by what it means."""

    argument: Node
    logits: Node
    target: Node
    class_weight: Node | None
    mean: bool
    ignore_index: int
    label_smoothing: float


@record
class Head:
    """A linear layer, the slices taken of its rows, and the soft cap of its result (0: none)."""

    hidden: Node
    weight: Node
    bias: Node | None
    transposed: bool
    slices: tuple[Any, ...]
    softcap: float


def chunk_losses(gm: torch.fx.GraphModule, wanted: bool | None) -> torch.fx.GraphModule:
    """The graph with its losses in chunks; ``wanted``: all (True), none, or those of large logits (None)."""
    if wanted is False:
        return gm
    found: dict[Node, tuple[Loss, Head, int]] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in (F.cross_entropy, F.nll_loss):
            continue
        try:
            loss = _loss(node)
            if wanted is None and _bytes(loss.logits) < LARGE:
                continue
            head = _head(loss)
            found[node] = loss, head, _rows(head)
        except Kept as why:
            report(f"{node.name} at {facts(node).origin}: its logits exist whole: {why}")
    return _replaced(gm, found) if found else gm


def report(text: str) -> None:
    """Tell ``explain`` and the log what became of a loss."""
    trace.emit("loss", text)
    logger("aot").info("%s", text)


def _replaced(gm: torch.fx.GraphModule, found: dict[Node, tuple[Loss, Head, int]]) -> torch.fx.GraphModule:
    """A copy of the graph with the operator in place of each loss; the logits, which nobody reads, go."""
    graph = torch.fx.Graph()
    made: dict[Node, Node] = {}
    gone = _between(found)
    for node in gm.graph.nodes:
        if node in gone:
            continue
        if node not in found:
            made[node] = graph.node_copy(node, made.__getitem__)
            continue
        loss, head, rows = found[node]
        arguments = (head.hidden, head.weight, head.bias, loss.target, loss.class_weight, head.slices)
        made[node] = graph.call_function(
            linear_cross_entropy,
            torch.fx.node.map_arg(arguments, made.__getitem__),
            {
                "transposed": head.transposed,
                "mean": loss.mean,
                "ignore_index": loss.ignore_index,
                "label_smoothing": loss.label_smoothing,
                "softcap": head.softcap,
                "loss_dtype": node.meta["val"].dtype,
                "rows": rows,
            },
        )
        made[node].meta = dict(node.meta)
        trace.count("chunked_losses")
        report(f"{node.name} at {facts(node).origin}: in chunks of {rows} rows")
    return torch.fx.GraphModule(gm, graph)


def _between(found: dict[Node, tuple[Loss, Head, int]]) -> set[Node]:
    """What only led from a layer to its loss."""
    gone: set[Node] = set()
    todo = [loss.argument for loss, _, _ in found.values()]
    while todo:
        node = todo.pop()
        if node not in gone:
            gone.add(node)
            gone.update(u for u in node.users if _is_dead(u))
            if not _is_product(node):
                todo.append(_source(node))
    return gone


# -- what is replaced ----------------------------------------------------------------------------


def _loss(node: Node) -> Loss:
    """The arguments of a loss, or why it stays."""
    bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    bound.apply_defaults()
    given = bound.arguments
    argument, target, weight = given["input"], given["target"], given["weight"]
    if given["size_average"] is not None or given["reduce"] is not None:
        raise Kept("it has size_average or reduce")
    if given["reduction"] not in ("mean", "sum"):
        raise Kept("it gives a number per row")
    smoothing = given.get("label_smoothing", 0.0)
    if not isinstance(smoothing, (int, float)) or not isinstance(given["ignore_index"], int):
        raise Kept("its settings are no constants")
    if smoothing and weight is not None:
        raise Kept("labels are smoothed and classes weighted")
    if target.meta["val"].is_floating_point():
        raise Kept("targets are probabilities")
    logits = _argument_of_log_softmax(argument) if node.target is F.nll_loss else argument
    mean = given["reduction"] == "mean"
    return Loss(argument, logits, target, weight, mean, given["ignore_index"], float(smoothing))


def _argument_of_log_softmax(node: Node) -> Node:
    function = node.op == "call_function" and node.target in (F.log_softmax, torch.log_softmax)
    if not function and not (node.op == "call_method" and node.target == "log_softmax"):
        raise Kept("its argument is no log_softmax")
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    typed = node.kwargs.get("dtype") not in (None, torch.float32) or len(node.args) > 3
    if node.meta["val"].dim() != 2 or dim not in (1, -1) or typed:
        raise Kept("its log_softmax is not over the last of two dimensions")
    _check_read_once(node)
    return _source(node)


def _head(loss: Loss) -> Head:
    """The layer whose result a loss is of, or why it stays."""
    slices: list[Any] = []
    elementwise: list[tuple[str, float]] = []
    node = loss.logits
    if loss.logits.meta["val"].dim() not in (2, 3):
        raise Kept(f"logits have {loss.logits.meta['val'].dim()} dimensions")
    swapped = loss.logits.meta["val"].dim() == 3
    while True:
        _check_read_once(node)
        if _is_product(node):
            break
        if not isinstance(node.meta.get("val"), Tensor) or node.op not in ("call_function", "call_method"):
            raise Kept(f"they come from {node.name}, not from a linear layer")
        name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
        before = _source(node)
        if name in ("transpose", "swapaxes", "permute") and swapped:
            _check_swap(node, before)
            swapped = False
        elif swapped:
            raise Kept("the classes are not the last dimension")
        elif name in ("float", "contiguous", "to", "type"):
            _check_cast(node)
        elif name in ("view", "reshape", "flatten"):
            _check_flat(node, before, bool(slices))
        elif name == "getitem":
            slices.insert(0, _row_slices(node, before))
        elif name in ("tanh", "div", "truediv", "mul"):
            elementwise.insert(0, _elementwise(node, str(name)))
        else:
            raise Kept(f"{name or node.target} stands between the layer and the loss")
        node = before
    if swapped:
        raise Kept("the classes are not the last dimension")
    return _layer(node, tuple(slices), _softcap(elementwise))


def _layer(node: Node, slices: tuple[Any, ...], softcap: float) -> Head:
    arguments = list(node.args)
    names = ("input", "weight", "bias") if node.target is F.linear else ("input", "other")
    arguments += [node.kwargs.get(name) for name in names[len(arguments) :]]
    hidden, weight, bias = (*arguments, None)[:3]
    if node.meta["val"].dtype is torch.float16:
        raise Kept("they are float16")
    layer = isinstance(hidden, Node) and isinstance(weight, Node) and weight.meta["val"].dim() == 2
    if not layer or not isinstance(bias, (Node, type(None))):
        raise Kept("they come from a product that is no linear layer's")
    assert isinstance(hidden, Node) and isinstance(weight, Node)
    if hidden.meta["val"].dim() < 2:
        raise Kept("there is one row")
    return Head(hidden, weight, bias, node.target is not F.linear, slices, softcap)


def _is_product(node: Node) -> bool:
    products = (F.linear, torch.matmul, torch.mm, operator.matmul)
    methods = ("matmul", "mm", "__matmul__")
    return node.target in products or (node.op == "call_method" and node.target in methods)


def _source(node: Node) -> Node:
    found = node.args[0] if node.args else None
    if node.op == "call_function" and not isinstance(found, Node) and len(node.args) > 1:
        found = node.args[1]  # 30.0 * x
    if not isinstance(found, Node):
        raise Kept(f"{node.name} stands between the layer and the loss")
    return found


def _check_read_once(node: Node) -> None:
    readers = [u for u in node.users if not _is_dead(u)]
    if len(readers) != 1:
        names = ", ".join("the caller" if u.op == "output" else u.name for u in readers)
        raise Kept(f"{node.name} is read by {names}" if readers else f"{node.name} is read by nobody")


def _is_dead(node: Node) -> bool:
    """Casts that nobody reads: ``float()`` of what is float is recorded though it gives its argument."""
    return (
        not node.users and node.op == "call_method" and node.target in ("float", "to", "contiguous", "view")
    )


def _check_cast(node: Node) -> None:
    if node.meta["val"].dtype not in (torch.float32, _source(node).meta["val"].dtype):
        raise Kept(f"they are cast to {node.meta['val'].dtype}")


def _check_flat(node: Node, before: Node, sliced: bool) -> None:
    """A reshape gathers all rows in one dimension, or nothing; slices that follow it would be of other dimensions."""
    old, new = before.meta["val"].shape, node.meta["val"].shape
    if not isinstance(new[-1], int) or not isinstance(old[-1], int) or old[-1] != new[-1]:
        raise Kept(f"{node.name} reshapes them")
    if len(new) != len(old) and (len(new) != 2 or sliced):
        raise Kept(f"{node.name} reshapes them")
    if len(new) == len(old) > 2:
        raise Kept(f"{node.name} reshapes them")


def _check_swap(node: Node, before: Node) -> None:
    old, new = before.meta["val"].shape, node.meta["val"].shape
    dims = tuple(d % 3 for d in every(int, node.args[1:])) if len(old) == 3 else ()
    if (node.target != "permute" and sorted(dims) != [1, 2]) or (
        node.target == "permute" and dims != (0, 2, 1)
    ):
        raise Kept(f"{node.name} turns them")
    assert new[1] == old[2]


def _row_slices(node: Node, before: Node) -> Any:
    """The index of ``x[:, :-1]``, which takes rows and leaves the classes whole."""
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    dims = before.meta["val"].dim()
    if any(not isinstance(i, slice) and i is not Ellipsis for i in index) or node.meta["val"].dim() != dims:
        raise Kept(f"{node.name} takes a part of them")
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (dims - len(index) + 1), *index[at + 1 :])
    if len(index) == dims and index[-1] != slice(None):
        raise Kept(f"{node.name} takes a part of the classes")
    return index


def _elementwise(node: Node, name: str) -> tuple[str, float]:
    if name == "tanh":
        return name, 0.0
    numbers = [a for a in node.args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    scales = name != "mul" and isinstance(node.args[0], Node)
    if len(numbers) != 1 or len(node.args) != 2 or node.kwargs or not (scales or name == "mul"):
        raise Kept(f"{node.name} changes them")
    return ("mul" if name == "mul" else "div"), float(numbers[0])


def _softcap(steps: list[tuple[str, float]]) -> float:
    if not steps:
        return 0.0
    if [name for name, _ in steps] == ["div", "tanh", "mul"] and steps[0][1] == steps[2][1] > 0:
        return steps[0][1]
    raise Kept("they are scaled, not capped")


def _rows(head: Head) -> int:
    """Rows of one chunk."""
    weight = head.weight.meta["val"]
    classes = weight.shape[1 if head.transposed else 0]
    if not isinstance(classes, int):
        raise Kept("the number of classes is a symbol")
    most = CHUNK.get(weight.device.type, CHUNK["cpu"]) // (max(4, weight.dtype.itemsize) * max(1, classes))
    return max(STEP, most // STEP * STEP)


def _bytes(node: Node) -> float:
    value = node.meta["val"]
    return float(elements(value) * max(4, value.dtype.itemsize))


# -- what replaces it ----------------------------------------------------------------------------


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    slices: tuple[Any, ...],
    *,
    transposed: bool,
    mean: bool,
    ignore_index: int,
    label_smoothing: float,
    softcap: float,
    loss_dtype: torch.dtype,
    rows: int,
) -> Tensor:
    """The loss of the rows that ``slices`` leave; autograd knows its derivative."""
    for index in slices:
        hidden = hidden[index]
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
    settings = (mean, ignore_index, label_smoothing, softcap, dtype, loss_dtype, rows)
    return _Loss.apply(  # type: ignore[no-any-return]
        hidden.reshape(-1, hidden.shape[-1]),
        weight.t() if transposed else weight,
        bias,
        target.reshape(-1),
        class_weight,
        settings,
    )


class _Loss(torch.autograd.Function):
    """The operator makes the gradients with the loss; they are scaled by the gradient that comes in."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        class_weight: Tensor | None,
        settings: tuple[Any, ...],
    ) -> Tensor:
        wanted = [bool(x) for x in ctx.needs_input_grad[:3]]
        loss, *gradients = OPERATOR(hidden, weight, bias, target, class_weight, *settings, wanted)
        ctx.wanted = wanted
        ctx.types = [None if x is None else x.dtype for x in (hidden, weight, bias)]
        ctx.save_for_backward(*gradients)
        return loss

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Any:
        found = [
            _scaled(gradient, tangent, dtype) if want else None
            for gradient, want, dtype in zip(ctx.saved_tensors, ctx.wanted, ctx.types, strict=True)
        ]
        return (*found, None, None, None)


def _scaled(gradient: Tensor, tangent: Tensor, dtype: torch.dtype) -> Tensor:
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return (gradient.to(wide) * tangent.to(wide)).to(dtype)
