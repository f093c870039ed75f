"""``flex_attention`` and the masks of its blocks: the functions that change scores and masks are subgraphs, the call is one node."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.values import MISSING
from braze.capture.features.subgraphs import Traced, noted, region, traced, union
from braze.capture.python.higher_order import FLEX, MODULES, break_around
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import GraphState, Interpreter, Trace
from braze.graph.calls import flex
from braze.graph.private import torch_compat

FEATURE = Feature()

WHAT = MODULES[FLEX]
#: blocks of this many rows are all that there are: such a mask says nothing of lengths
NO_BLOCKS = 1 << 30
#: what a BlockMask says of its blocks to kernels
BLOCKS = [
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
]
#: settings of PyTorch's kernels that ask for another answer than the reference's
OTHER_KERNELS = frozenset({"FLASH"})


def public() -> Any:
    """PyTorch's module of ``flex_attention``, which the program has loaded; from 2.14 on it takes SymPy along (0.4 s)."""
    return sys.modules[FLEX]


def function_of_module(t: Trace, fn: Any, args: Any, kwargs: Any) -> Any:
    """Functions of that module; but for two they are plain code."""
    rule = RULES.get(fn.__name__)
    if rule is None or fn is not getattr(public(), fn.__name__, None):
        return MISSING
    return rule(t, _given(fn, args, kwargs or {}))


def _given(fn: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call by name."""
    try:
        given = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError:
        break_around(WHAT)
    given.apply_defaults()
    return given.arguments


def flex_attention(t: Trace, given: dict[str, Any]) -> Any:
    """One node. What PyTorch would refuse, it refuses itself."""
    q, k, v, score_mod, block_mask, scale, grouped, return_lse, options, aux = _values(given)
    _check_tensors(q, k, v, grouped, block_mask)
    _check_settings(t, scale, grouped, return_lse, options, aux)
    mask_mod, blocks = _block_mask(t, block_mask, q, k)
    if flex.reads_blocks(q.device):  # kernels are made for numbers of heads and widths
        for x in (q, k, v):
            int(x.shape[1]), int(x.shape[3])
    if scale is None:
        scale = 1.0 / math.sqrt(int(q.shape[-1]) if flex.reads_blocks(q.device) else q.shape[-1])
    with region(t, "flex_attention", (score_mod, mask_mod)):
        parts = _subgraphs(t, score_mod, mask_mod, q)
        others = union(*parts)
        if any(isinstance(x, torch.Tensor) and x.requires_grad for x in parts[1].recorder.lifted):
            graph_break("BZ1019", "its mask looks at a tensor that wants a gradient")
        modules = {
            name: part.module([*part.recorder.own, *others])
            for name, part in zip(("score_graph", "mask_graph"), parts, strict=True)
        }
        after = (scale, q, k, v, tuple(blocks), tuple(others))
        results = noted(t.graph, flex.attention, modules, after)
    out, lse, most = results
    if aux is not None:
        wanted = t.attribute(aux, "lse"), t.attribute(aux, "max_scores")
        found = public().AuxOutput(
            *[x if want else None for x, want in zip((lse, most), wanted, strict=True)]
        )
        return out, t.done.claim(found)
    return (out, lse) if return_lse else out


def create_mask(t: Trace, given: dict[str, Any]) -> Any:
    """What a function says of all places, as one node."""
    function, *sizes, device = given.values()
    sizes = [1 if n is None and i < 2 else n for i, n in enumerate(sizes)]
    if not all(isinstance(n, int | torch.SymInt) and type(n) is not bool for n in sizes):
        break_around(WHAT)
    device = torch.device(torch.accelerator.current_accelerator() or "cpu") if device is None else device
    device = torch.empty(0, device=device).device
    changes_scores = t.call(torch_compat.kind_of_modification(), (function,)).name == "SCORE_MOD"
    with region(t, "create_mask", (function,)):
        own = [*([torch.zeros((), device=device)] if changes_scores else []), *_places(device)]
        part = _traced(t, function, own)
        others = union(part)
        modules = {"mask_graph": part.module([*own, *others])}
        target = flex.excluded if changes_scores else flex.allowed
        return noted(t.graph, target, modules, (tuple(sizes), device, tuple(others)))


RULES: dict[str, Callable[[Trace, dict[str, Any]], Any]] = {
    "flex_attention": flex_attention,
    "create_mask": create_mask,
}
FEATURE.modules[FLEX] = function_of_module


# -- parts


def _values(arguments: dict[str, Any]) -> list[Any]:
    """The arguments by name, whichever of them this version of PyTorch has."""
    names = "query key value score_mod block_mask scale enable_gqa return_lse kernel_options return_aux"
    if set(arguments) - set(names.split()):
        break_around(WHAT)
    return [arguments.get(name) for name in names.split()]


def _check_tensors(q: Any, k: Any, v: Any, grouped: Any, block_mask: Any) -> None:
    """Leave to PyTorch what it refuses, and types of 8 bits."""
    if not all(isinstance(x, torch.Tensor) and x.dim() == 4 and x.layout is torch.strided for x in (q, k, v)):
        break_around(WHAT)
    if not q.dtype.is_floating_point or q.dtype.itemsize < 2 or len({q.dtype, k.dtype, v.dtype}) > 1:
        break_around(WHAT)
    if len({q.device, k.device, v.device}) > 1 or q.device.type not in ("cpu", "cuda"):
        break_around(WHAT)
    heads, shared = q.shape[1], k.shape[1]
    if k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3] or 0 in (*q.shape, *k.shape, *v.shape):
        break_around(WHAT)
    if heads % shared != 0 or (not grouped and heads != shared):
        break_around(WHAT)
    if q.shape[0] != k.shape[0] and (k.shape[0] != 1 or block_mask is None):
        break_around(WHAT)


def _check_settings(t: Interpreter, scale: Any, grouped: Any, lse: Any, options: Any, aux: Any) -> None:
    known = isinstance(scale, float | int | torch.SymFloat) or scale is None
    if not known or type(grouped) is not bool or type(lse) is not bool or (lse and aux is not None):
        break_around(WHAT)
    if aux is not None and not isinstance(aux, public().AuxRequest):
        break_around(WHAT)
    if options is not None:
        if not isinstance(options, dict) or {"OUTPUT_LOGSUMEXP", "OUTPUT_MAX"} & set(options):
            break_around(WHAT)
        if "BACKEND" in options and t.item(options, "BACKEND") in OTHER_KERNELS:
            break_around(WHAT)


def _block_mask(t: Interpreter, block_mask: Any, q: Any, k: Any) -> tuple[Any, list[Any]]:
    """The function of a mask, and its blocks as kernels read them: block sizes, then tensors or None."""
    if block_mask is None:
        return public().noop_mask, []
    if not isinstance(block_mask, public().BlockMask):
        break_around(WHAT)
    rows, columns = (t.item(t.attribute(block_mask, "BLOCK_SIZE"), i) for i in (0, 1))
    mask_mod = t.attribute(block_mask, "mask_mod")
    tensors = [t.attribute(block_mask, name) for name in BLOCKS]
    if not (rows == columns == NO_BLOCKS):
        lengths = [t.item(t.attribute(block_mask, "seq_lengths"), i) for i in (0, 1)]
        if lengths[0] != q.shape[2] or lengths[1] != k.shape[2]:
            break_around(WHAT)
    counts = tensors[0]
    if counts.device != q.device or counts.shape[0] not in (1, q.shape[0]):
        break_around(WHAT)
    if rows == NO_BLOCKS or not flex.reads_blocks(q.device):
        return mask_mod, []
    return mask_mod, [rows, columns, *tensors]


def _same(score: Any, *places: Any) -> Any:
    return score


def _places(device: torch.device) -> list[torch.Tensor]:
    return [torch.zeros((), dtype=torch.int64, device=device) for _ in range(4)]


def _subgraphs(t: Trace, score_mod: Any, mask_mod: Any, q: Any) -> list[Traced]:
    """The functions of one score and of one place."""
    score = torch.zeros((), dtype=flex.working(q.dtype), device=q.device)
    if torch.is_grad_enabled():
        score.requires_grad_()
    return [
        _traced(t, _same if score_mod is None else score_mod, [score, *_places(q.device)]),
        _traced(t, mask_mod, _places(q.device)),
    ]


def _traced(t: Trace, function: Any, own: list[Any]) -> Traced:
    """A function of numbers, which looks tables up by them; it gives one number."""
    with _looking_up(t.graph):
        part = traced(t, function, own, own)
    if len(part.leaves) != 1 or not isinstance(part.leaves[0], torch.Tensor) or part.leaves[0].dim():
        graph_break("BZ1019", "a function gives something else than one number")
    return part


@contextlib.contextmanager
def _looking_up(graph: GraphState) -> Iterator[None]:
    recorder = graph.recorder
    before, recorder.by_index = recorder.by_index, True
    try:
        yield
    finally:
        recorder.by_index = before
