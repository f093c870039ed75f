"""Operators over subgraphs in the ahead-of-time trace."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.autograd import grad_mode

from braze.graph.calls import flex, flex_ops
from braze.graph.calls.checkpoints import checkpointed
from braze.graph.calls.control_flow import holds_control_flow
from braze.graph.calls.subgraph_ops import Entry, operators
from braze.graph.nodes.facts import facts, set_facts
from braze.graph.private import torch_compat
from braze.support.errors import Origin, Unsupported
from braze.support.nested import every


def run(node: torch.fx.Node, args: tuple[Any, ...], recorder: Any, run_graph: Callable[..., Any]) -> Any:
    """A checkpointed region becomes a part of the graph; of the others, whose data choose what runs, an operator does."""
    if node.target is checkpointed:
        return checkpoint(node, args, recorder, run_graph)
    if torch_compat.any_autocast():
        raise refusal(node, "under autocast, whose casts only the captured graph makes")
    entry = Entry(node.target, args, node.meta["val"])
    if every(torch.SymFloat, args):
        raise refusal(node, "that takes a Python float whose value changes")
    plain, random = operators()
    drawn = any(draws(module) for module in entry.modules)
    if drawn and recorder.differentiable and entry.wanted:
        raise refusal(node, "that draws random numbers, in a graph that is differentiated")
    with recorder:
        results = (random if drawn else plain)(entry.number, entry.tensors, entry.sizes)
    for result in results:
        set_facts(result.__dict__["_node"].args[0], subgraphs=entry)
    return results


def refuse_choices(node: torch.fx.Node, args: tuple[Any, ...]) -> None:
    """PyTorch runs a transform's function on fakes, on which nothing can be chosen."""
    if any(isinstance(x, torch.fx.GraphModule) and holds_control_flow(x) for x in args):
        raise refusal(node, "of a function with control flow on data")


def refusal(node: torch.fx.Node, why: str) -> Unsupported:
    """The stages cannot carry a node."""
    name = getattr(node.target, "__name__", str(node.target))
    return Unsupported("BZ2022", f"{name} {why}", origin=facts(node).origin)


def draws(module: torch.fx.GraphModule) -> bool:
    """Whether a subgraph draws random numbers: looked at while it runs on fakes."""
    inputs = [n.meta["val"] for n in module.graph.find_nodes(op="placeholder")]
    with torch_compat.RandomWatch() as watch:
        module.forward(*inputs)
    return watch.drawn


def checkpoint(
    node: torch.fx.Node, args: tuple[Any, ...], recorder: Any, run_graph: Callable[..., Any]
) -> Any:
    """The nodes of the region, with its number, and with what its policy says of each."""
    module, policy, region, *_, arguments, others = args
    operands = (*arguments, *others)
    placeholders = module.graph.find_nodes(op="placeholder")
    before = [x._version for x in operands if isinstance(x, torch.Tensor)]
    outer = recorder.region, recorder.policy
    if recorder.region is None:
        recorder.region, recorder.policy = region, policy
    try:
        results = run_graph(module, dict(zip(placeholders, operands, strict=True)), recorder)
    finally:
        recorder.region, recorder.policy = outer
    if recorder.differentiable and before != [x._version for x in operands if isinstance(x, torch.Tensor)]:
        # eager writes them again when the backward runs the region again
        raise refusal(node, "of a region that writes to tensors from outside")
    return results


def refuse_second_draw(origin: Origin | None) -> None:
    """A checkpoint of plain Python, which only a capture sees whole, computes its region again while the backward is traced."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "unpack_hook" and frame.f_globals["__name__"] == "torch.utils.checkpoint":
            raise Unsupported(
                "BZ2022",
                "torch.utils.checkpoint over random numbers in a function that is not captured, only traced",
                why="the backward would draw others than the forward",
                hints=[
                    "capture it: braze.compile(fn, backend=...), with aot_module_simplified in the backend"
                ],
                origin=origin,
            )
        frame = frame.f_back


def leave_inference(gm: torch.fx.GraphModule, env: dict[torch.fx.Node, Any], recorder: Any) -> None:
    """Leave the inference modes that a graph has entered: dropped, they would put the recorder's state back at any time."""
    for node in reversed(gm.graph.nodes):
        if node in env and node.target is grad_mode._enter_inference_mode:
            if not any(user in env and user.target is grad_mode._exit_inference_mode for user in node.users):
                with recorder:
                    grad_mode._exit_inference_mode(env[node])


def attention(node: torch.fx.Node, args: tuple[Any, ...], recorder: Any) -> Any:
    """``flex_attention`` as an operator with kernels of its own on a GPU; None where it is to be taken apart."""
    score, mask, scale, q, k, v, blocks, others = args
    if node.target is not flex.attention or type(scale) is not float:
        return None
    casts = torch.is_autocast_enabled(q.device.type)
    if not flex_ops.takes(q, k, v, blocks, others):
        return None
    with recorder, torch.autocast(q.device.type, enabled=False) if casts else contextlib.nullcontext():
        if casts:
            q, k, v = flex.cast(q, k, v)
        entry, results = flex_ops.call(score, mask, scale, q, k, v, blocks, others)
    set_facts(results[0].__dict__["_node"].args[0], subgraphs=entry)
    return results
