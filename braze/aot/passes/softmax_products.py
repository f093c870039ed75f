"""Attention that a program writes by hand: softmax(q @ k.T * scale + mask) @ v, found in the captured graph.

``find`` walks back from each product of matrices: over dropout, casts and the softmax, over what is done to scores, to
the product of queries and keys. Nobody else may read what lies between. What the scores go through is a table of steps (``STEPS``);
``call`` makes scaled_dot_product_attention of it when the trace comes to the last product; the nodes between are not run.

PyTorch's kernels give zeros where a query sees no key, eager's softmax gives nan: unless the mask is known to leave none, such
rows are made nan again.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from braze.aot.facts.views import hints
from braze.aot.facts.writes import is_writing_call
from braze.aot.passes.attention import ATTENTION, MOST_HEADS, known_value, with_readable_mask
from braze.graph.private import torch_compat
from braze.support.record import record

Node = torch.fx.Node
INF = float("inf")

#: from here on down a number in the place of a score stands for its being hidden
HIDES = -1e9
#: queries and keys of which a GPU's products and a fused softmax are quicker than a fused kernel, of so many heads (32 of 32,768 to 8,192 heads of 16 to 128 numbers on an
#: H200, forward and with the gradients: of float32 1.7 to 2.4 times and 2.0 to 3.0, of bfloat16 1.3 to 1.6 and 1.1 to 1.6; of 8 and 16 2.0 to 6.9; of 64 0.7 to 1.1 and 0.6 to 1.5)
SHORT, MANY_SHORT = 32, 4096


@record
class Step:
    """What is done to scores. ``kind``: "scale" by a number, "add" a tensor, "fill" with a number where a tensor says."""

    kind: str
    tensor: Any = None
    number: float = 1.0
    #: whether the tensor says where the scores stay
    keeps: bool = False


@record
class Product:
    """A product of matrices: rows of ``left`` by columns of ``right``, with the order in which their dims are taken; that of the result."""

    node: Node
    left: Node
    right: Node
    left_order: tuple[int, ...] | None = None
    right_order: tuple[int, ...] | None = None
    out_order: tuple[int, ...] | None = None


@record
class Match:
    """One attention. ``steps``: from the first product on; ``between``: nodes that need not be run."""

    first: Product
    last: Product
    between: tuple[Node, ...]
    steps: tuple[Step, ...]
    dropout: float


def find(graph: torch.fx.Graph, dropout: bool) -> dict[Node, Match]:
    """Last product -> attention, of a captured graph; ``dropout``: also with random numbers in it."""
    if not any(_name(n) == "softmax" for n in graph.nodes):
        return {}
    found: dict[Node, Match] = {}
    for node in graph.nodes:
        match: Match | None = _match(node)
        if match is None or (match.dropout and not dropout):
            continue
        if _fits(match) and not _written_meanwhile(match):
            found[node] = match
    return found


def call(match: Match, env: dict[Node, Any], constants: dict[Node, Any], fuses: bool) -> Any:
    """The result of an attention, by PyTorch's operator; ``fuses``: it chooses a kernel now, by the mask that it gets."""
    q, k = _ordered(env, match.first)
    v, k = _ordered(env, match.last)[1], k.transpose(-2, -1)
    flat = q.dim() == 3
    if flat:
        q, k, v = q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
    batch = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q, k, v = [x.expand(*batch, *x.shape[-2:]) for x in (q, k, v)]
    scale = math.prod(step.number for step in match.steps if step.kind == "scale")
    mask = _mask(match, env)
    causal, alive = _known(mask, q, k, constants)
    given: tuple[Any, ...] = (q, k, v, None if causal else mask)
    if fuses:
        given, _ = with_readable_mask(given, {}, constants)
    attend: Any = ATTENTION
    out = attend(*given, match.dropout, causal, scale=scale)
    if not alive and mask is not None:
        dead = (mask.logical_not() if mask.dtype is torch.bool else mask == -INF).all(-1, keepdim=True)
        out = out * torch.where(dead, math.nan, 1.0).to(out.dtype)
    if flat:
        out = out.squeeze(0)
    if match.last.out_order is not None:
        out = out.permute(match.last.out_order)
    return laid_out(out, match.last.node.meta["val"])


def _ordered(env: dict[Node, Any], product: Product) -> tuple[Any, Any]:
    """The operands of a product as matrices; the left one of the last product has not been computed."""
    left, right = env.get(product.left), env[product.right]
    if left is not None and product.left_order is not None:
        left = left.permute(product.left_order)
    return left, right if product.right_order is None else right.permute(product.right_order)


def laid_out(x: Any, want: Any) -> Any:
    """The result as it lies in memory where the program's own product makes it."""
    if want.is_contiguous():
        return x.contiguous()
    strides = hints(want.stride())
    order = sorted(range(x.dim()), key=lambda i: -strides[i])
    return x.permute(order).contiguous().permute(sorted(range(x.dim()), key=order.__getitem__))


# -- the walk back


def _match(node: Node) -> Match | None:
    """The attention that ends in a product."""
    last = _product(node)
    if last is None:
        return None
    between: list[Node] = []
    dropout: Any = 0.0
    at: Any = last.left
    while (name := _name(at)) in CASTS or (name == "dropout" and not dropout):
        if name == "dropout" and (dropout := _dropped(at)) is None:
            return None
        between.append(at)
        at = at.args[0]
    if not _is_softmax(at):
        return None
    steps: list[Step] = []
    between.append(at)
    at = at.args[0]
    while (first := _product(at)) is None:
        if _name(at) == "baddbmm":
            scores = _scores(at)
            if scores is None:
                return None
            first, own = scores
            steps += own
            break
        if _name(at) in CASTS:
            before = at.args[0]
        else:
            read = STEPS.get(_name(at))
            found = read(at) if read is not None else None
            if found is None:
                return None
            before, step = found
            steps.append(step)
        between.append(at)
        at = before
    between.append(at)
    # the order of the scores' dims is that of the probabilities
    if first.out_order is not None or last.left_order is not None:
        return None
    if any(_readers(node) != 1 for node in between):
        return None
    unread = [user for node in between for user in node.users if _is_unread(user)]
    return Match(first, last, (*between, *unread), tuple(reversed(steps)), dropout)


def _product(node: Any) -> Product | None:
    """A product of two values, however the program writes it."""
    if not isinstance(node, Node) or node.kwargs:
        return None
    if _name(node) == "einsum" and len(node.args) == 3:
        return _einsum(node)
    if _name(node) not in PRODUCTS or len(node.args) != 2 or not all(isinstance(x, Node) for x in node.args):
        return None
    return Product(node, *node.args)  # type: ignore[arg-type]


def _scores(node: Any) -> tuple[Product, list[Step]] | None:
    """Scores by ``baddbmm``: a product, by a number, and a tensor that is added as it is, or not looked at; the steps last first."""
    words = {"beta": 1, "alpha": 1, **node.kwargs}
    if len(words) > 2 or len(node.args) != 3 or not all(isinstance(x, Node) for x in node.args):
        return None
    added, left, right = node.args
    beta, alpha = words["beta"], words["alpha"]
    if type(alpha) not in (int, float) or type(beta) not in (int, float) or beta not in (0, 1):
        return None
    steps = [Step("add", tensor=added)] if beta else []
    return Product(node, left, right), [*steps, Step("scale", number=float(alpha))]


def _einsum(node: Any) -> Product | None:
    """A product of matrices that is written as a sum over indices, of which the operands' rows and columns may lie anywhere."""
    text, left, right = node.args
    if not isinstance(text, str) or not isinstance(left, Node) or not isinstance(right, Node):
        return None
    parts = text.replace(" ", "").replace("->", ",").split(",")
    if "->" not in text or len(parts) != 3 or not all(p.isalpha() and len(set(p)) == len(p) for p in parts):
        return None
    a, b, out = parts
    batch = [x for x in out if x in a and x in b]
    rows, columns = [x for x in a if x not in b], [x for x in b if x not in a]
    summed = [x for x in a if x in b and x not in out]
    if not (len(rows) == len(columns) == len(summed) == 1) or len(out) != len(batch) + 2:
        return None
    if out.index(rows[0]) > out.index(columns[0]) and out[-2:] == columns[0] + rows[0]:
        a, b, left, right, rows, columns = b, a, right, left, columns, rows
    made = [*batch, rows[0], columns[0]]
    orders = [[*batch, rows[0], summed[0]], [*batch, summed[0], columns[0]]]
    return Product(
        node,
        left,
        right,
        _order(a, orders[0]),
        _order(b, orders[1]),
        _order("".join(made), list(out)),
    )


def _order(have: str, want: list[str]) -> tuple[int, ...] | None:
    """The dims of a value in the order of letters; None where that is their own."""
    order = tuple([have.index(x) for x in want])
    return None if order == tuple(range(len(have))) else order


def _fits(match: Match) -> bool:
    """Whether types, sizes and the order of steps are such that PyTorch's operator gives what the program says."""
    first, last = match.first, match.last
    nodes = (first.left, first.right, last.right, last.node, first.node)
    tensors: list[Any] = [n.meta.get("val") for n in nodes]
    left, right, values, out, scores = tensors
    if not all(isinstance(x, torch.Tensor) for x in tensors):
        return False
    dims = {x.dim() for x in tensors}
    if dims not in ({4}, {3}) or len({x.dtype for x in tensors[:3]}) > 1:
        return False
    casts = left.dtype is not out.dtype  # autocast does
    if scores.dtype is not out.dtype or (casts and left.dtype is torch.float64):
        return False
    if not out.dtype.is_floating_point or out.dtype is torch.float64:
        return False
    kinds = [step.kind for step in match.steps]
    if kinds != sorted(kinds, key=lambda kind: kind != "scale"):
        return False  # a mask that is scaled
    if not all(0 < step.number < INF for step in match.steps if step.kind == "scale"):
        return False
    graded = any(x.requires_grad for x in (left, right, values))
    masks = [step for step in match.steps if step.tensor is not None]
    return all(_is_mask(step, scores, out, graded) for step in masks) and _pays(match, left, values, graded)


def _is_mask(step: Step, scores: Any, out: Any, graded: bool) -> bool:
    """Whether the operator takes what a step adds or fills."""
    assert step.tensor is not None
    mask = step.tensor.meta.get("val")
    if not isinstance(mask, torch.Tensor) or mask.device != scores.device:
        return False
    if not 2 <= mask.dim() <= scores.dim() or mask.shape[-1] != scores.shape[-1] or mask.requires_grad:
        return False
    if any(a != b and b != 1 for a, b in zip(reversed(scores.shape), reversed(mask.shape), strict=False)):
        return False
    if step.kind == "add":
        return mask.dtype is out.dtype
    if mask.dtype is not torch.bool:
        return False
    # where a query sees no key it gets the mean of the values, and its gradients go to these alone
    return step.number == -INF or (step.number <= HIDES and out.dtype is not torch.float16 and not graded)


def _pays(match: Match, left: Any, values: Any, graded: bool) -> bool:
    """Whether PyTorch has a fused kernel for these sizes, and one that is faster than products and a fused softmax."""
    width = left.shape[-1 if match.first.left_order is None else match.first.left_order[-1]]
    made = values.shape[-1 if match.last.right_order is None else match.last.right_order[-1]]
    if type(width) is not int or made != width:
        return False
    scores = match.first.node.meta["val"]
    if left.device.type == "cuda":
        heads = hints(scores.shape[:-2])
        if _are_short(hints(scores.shape)):
            return False
        return width % 8 == 0 and width <= 256 and max(heads) <= MOST_HEADS
    if left.device.type != "cpu" or match.dropout:
        return False
    return faster_on_cpu(scores.shape[-2], scores.dtype, graded)


def _are_short(sizes: list[Any]) -> bool:
    """Whether fused kernels, whose tiles have 64 queries at least, would compute mostly nothing, and for so long that two launches more do not count."""
    *heads, queries, keys = sizes
    if not all(type(n) is int for n in sizes):
        return False
    return max(queries, keys) <= SHORT and math.prod(heads) >= MANY_SHORT


def faster_on_cpu(queries: Any, dtype: torch.dtype, graded: bool) -> bool:
    """As measured (benchmarks/results/2026-11-23-attention-by-hand-1-core-amd.json): of float32, one query, or many; in half precision products and a fused softmax are faster."""
    if dtype is not torch.float32 or type(queries) is not int:
        return False
    return queries >= 1024 if graded else queries == 1 or queries >= 128


def _written_meanwhile(match: Match) -> bool:
    """Whether anything is written between the first product and the last: operands would be read too late."""
    node, inside = match.first.node.next, set(match.between)
    while node is not match.last.node:
        if node not in inside and is_writing_call(node):
            return True
        node = node.next
    return False


def _readers(node: Node) -> int:
    """How many nodes use one; those that nobody uses do not count."""
    return sum(1 for user in node.users if not _is_unread(user))


def _is_unread(node: Node) -> bool:
    return not node.users and node.op != "output" and not is_writing_call(node)


# -- steps


def _number(value: Any) -> float | None:
    """A Python number, or what a tensor of one number is filled with."""
    if type(value) in (int, float):
        return float(value)
    if isinstance(value, Node) and _name(value) in ("full", "tensor", "scalar_tensor"):
        filled = value.args[-1] if value.args else None
        if isinstance(value.meta.get("val"), torch.Tensor) and value.meta["val"].dim() == 0:
            return _number(filled)
    return None


def _scaled(node: Any) -> tuple[Any, Step] | None:
    if len(node.args) != 2 or node.kwargs:
        return None
    scores, by = node.args
    number = _number(by)
    if number is None and _name(node) in ("mul", "multiply"):
        scores, number = by, _number(scores)
    if number is None or not isinstance(scores, Node) or number == 0:
        return None
    divides = _name(node) in ("truediv", "div", "divide", "true_divide")
    return scores, Step("scale", number=1 / number if divides else number)


def _added(node: Any) -> tuple[Any, Step] | None:
    if len(node.args) != 2 or node.kwargs or not all(isinstance(x, Node) for x in node.args):
        return None
    a, b = node.args
    for scores, mask in ((a, b), (b, a)):
        if _comes_from_product(scores) and not _comes_from_product(mask):
            return scores, Step("add", tensor=mask)  # type: ignore[arg-type]
    return None


def _comes_from_product(at: Any) -> bool:
    """Whether a value is scores: a product of two values, or what steps make of one."""
    for _ in range(8):
        if (name := _name(at)) in SCORES:
            return True
        if name not in STEPS and name not in CASTS:
            return False
        at = next((x for x in at.args if _name(x) in {*SCORES, *STEPS, *CASTS}), None)
    return False


def _filled(node: Any) -> tuple[Any, Step] | None:
    if len(node.args) != 3 or node.kwargs:
        return None
    scores, where, value = node.args
    number = _number(value)
    if number is None or not isinstance(where, Node):
        return None
    return scores, Step("fill", tensor=where, number=number)


def _chosen(node: Any) -> tuple[Any, Step] | None:
    if len(node.args) != 3 or node.kwargs:
        return None
    where, a, b = node.args
    if node.op == "call_method":
        where, a = a, where  # scores.where(condition, other)
    if not isinstance(where, Node):
        return None
    if (number := _number(b)) is not None:
        return a, Step("fill", tensor=where, number=number, keeps=True)
    if (number := _number(a)) is not None:
        return b, Step("fill", tensor=where, number=number)
    return None


def _is_softmax(node: Any) -> bool:
    """Along the last dimension, in the scores' type or in float32."""
    if not isinstance(node, Node) or _name(node) != "softmax" or not isinstance(node.args[0], Node):
        return False
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    scores, made = node.args[0].meta.get("val"), node.meta.get("val")
    if not isinstance(scores, torch.Tensor) or not isinstance(made, torch.Tensor):
        return False
    return dim in (-1, scores.dim() - 1) and made.dtype.itemsize >= scores.dtype.itemsize


def _dropped(node: Any) -> float | None:
    """The share that dropout takes; 0 where it takes none; None for a call that is not understood."""
    if node.op != "call_function" or node.target is not F.dropout:
        return None
    given = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False)) | node.kwargs
    p, training = given.get("p", 0.5), given.get("training", True)
    if type(p) not in (int, float) or type(training) is not bool or not 0 <= p < 1:
        return None
    return float(p) if training else 0.0


def _name(node: Any) -> str:
    """By which a node's target is known; "" for what is neither PyTorch's nor Python's."""
    if not isinstance(node, Node):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    home = getattr(node.target, "__module__", None) or ""
    if home.startswith("torch") or home in ("_operator", ""):
        return str(getattr(node.target, "__name__", ""))
    return ""


#: products of matrices
PRODUCTS = frozenset({"matmul", "bmm", "__matmul__"})
#: what may make scores
SCORES = PRODUCTS | {"einsum", "baddbmm"}
#: casts of scores and probabilities: where both ends have one type, what lies between is at least as wide
CASTS = frozenset({"to", "float", "type_as", "half", "bfloat16", "type"})
#: what may be done to scores -> who reads it, as (scores before, step)
STEPS: dict[str, Callable[[Node], tuple[Any, Step] | None]] = {
    **dict.fromkeys(("mul", "multiply"), _scaled),
    **dict.fromkeys(("truediv", "div", "divide", "true_divide"), _scaled),
    "add": _added,
    "masked_fill": _filled,
    "where": _chosen,
}


# -- masks


def _mask(match: Match, env: dict[Node, Any]) -> Any:
    """One mask of all steps: of bools where they only hide; None where there is none."""
    steps = [step for step in match.steps if step.kind != "scale"]
    if not steps:
        return None
    if all(step.kind == "fill" and step.number == -INF for step in steps):
        mask = functools.reduce(operator.and_, (env[s.tensor] if s.keeps else ~env[s.tensor] for s in steps))
    else:
        mask, dtype = None, match.last.node.meta["val"].dtype
        for step in steps:
            given = env[step.tensor]
            if step.kind == "add":
                mask = given if mask is None else mask + given
            else:
                hidden = ~given if step.keeps else given
                number = torch.finfo(dtype).min if step.number > -INF else -INF  # forgets the score
                mask = torch.where(hidden, number, 0.0 if mask is None else mask).to(dtype)
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask


def _known(mask: Any, q: Any, k: Any, constants: dict[Node, Any]) -> tuple[bool, bool]:
    """(whether a mask hides what comes later and nothing else, whether it leaves every query a key), of one made of numbers."""
    if mask is None:
        return False, True
    value = known_value(mask, constants)
    if value is None:
        return False, False
    with torch_compat.outside_modes():
        return _read(value, q.shape[-2], k.shape[-2])


def _read(value: torch.Tensor, queries: Any, keys: Any) -> tuple[bool, bool]:
    seen = value if value.dtype is torch.bool else value != -INF
    alive = bool(seen.any(-1).all())
    if value.dtype is not torch.bool and not bool(((value == 0) | (value <= HIDES)).all()):
        return False, alive
    seen = value if value.dtype is torch.bool else value == 0
    rows, columns = seen.shape[-2:]
    causal = bool((seen == torch.ones(rows, columns, dtype=torch.bool).tril()).all()) and rows == columns
    return causal and rows == queries and columns == keys, alive
