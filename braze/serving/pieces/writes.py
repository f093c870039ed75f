"""What a model's forward must not do where it is captured once or recorded: write to its buffers, or to what it holds."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node

from braze.capture.facts.records import Constant, EffectKind, FromSource, GraphOutput
from braze.graph.nodes.facts import InputRole, facts
from braze.graph.private.torch_compat import storage_key
from braze.serving.pieces.stitch import written_storages
from braze.support.errors import Origin, UserError

_PARTS = re.compile(r"\.__dict__\['_(modules|buffers|parameters)'\](?:\[(?:'([^']*)'|(\d+))\])?")
#: effects that put a value somewhere: (what is written, under which name or key, the value)
_PUTS = (EffectKind.SETATTR, EffectKind.SETITEM)


def refuse_writes(gm: GraphModule, name: str, allowed: Collection[str] = ()) -> None:
    """UserError (BZ7216) where a captured forward writes to a buffer, or leaves a value in an object, with the name and the line.

    In place: a run that only warms up or records would write too. By assignment: a recording would go on reading the old one, and a value that
    is no result of the graph would be the first call's for ever. ``allowed``: names of buffers that are caches, written in place.
    """
    for place, node in written_storages(gm).items():
        for owner in gm.graph.find_nodes(op="placeholder"):
            value = owner.meta.get("val")
            found = facts(owner)
            if not isinstance(value, torch.Tensor) or storage_key(value) != place:
                continue
            if found.role is InputRole.PARAMETER and (path := path_of(found.source or "")) not in allowed:
                raise _refusal(name, f"writes to {path}", facts(node).origin)
    for effect, recipes in gm.meta.get("effects", ()):
        _refuse_effect(gm, name, effect, recipes)


def _refuse_effect(gm: GraphModule, name: str, effect: Any, recipes: list[Any]) -> None:
    target = recipes[0]
    if effect.kind not in _PUTS or not isinstance(target, FromSource):
        return
    value = recipes[-1]
    where = path_of(str(target.source))
    key = effect.name or (str(recipes[1].value) if isinstance(recipes[1], Constant) else "")
    held = "_buffers" in str(target.source) or "_parameters" in str(target.source)
    if isinstance(value, GraphOutput) and not held:
        return  # a tensor that each call makes anew, put where the program wants it
    path = f"{where}.{key}".strip(".")
    raise _refusal(name, f"assigns {path}", _origin_of(gm, value))


def _origin_of(gm: GraphModule, value: Any) -> Origin | None:
    """The line that computes what is written."""
    results: Any = gm.graph.output_node().args[0]
    node = results[value.index] if isinstance(value, GraphOutput) else None
    return facts(node).origin if isinstance(node, Node) else None


def path_of(source: str) -> str:
    """A source as the program says it: ``layers.0.k_cache``."""
    found = _PARTS.findall(source)
    parts = [text or number for _, text, number in found if text or number]
    return ".".join(parts) if parts or re.fullmatch(r"L\[\d+\]", source) else source


def _refusal(name: str, what: str, origin: Origin | None) -> UserError:
    return UserError(
        "BZ7216",
        f"the forward of {name} {what}",
        why="it is captured once and may be recorded: calls that warm up or record would write too, and a replay does not assign",
        hints=[
            "return the new value, or write it in an operator that splits the graph (splitting_ops)",
            "mutable_buffers=(...) names caches that are meant to be written in place",
        ],
        origin=origin,
    )
