"""What a piece that braze compiled is loaded by alone, in another process: the text of its module, and what stands around that.

Small tensors that the graph holds, and of one that was cut after fusion the plans of its recorded parts, go along. Around it stand the writes to inputs, and outputs that are windows on these. A piece that writes has its graph along, which runs a call whose inputs share memory as
those of its compile did not.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import Graph, GraphModule

from braze.aot.calls.wrap import wrap_again
from braze.aot.facts.records import Around, OutputKind, OutputRole
from braze.capture.archive.archived_values import (
    NotArchived,
    Reader,
    Writer,
    read_nodes,
    without_tensors,
    write_nodes,
)
from braze.codegen.records import HostModule, as_data, host_of
from braze.cudagraphs.plan import Plans, plans_of
from braze.cudagraphs.plan import as_data as plans_as_data
from braze.graph.nodes.captured import forward_of
from braze.graph_calls import holding, that_writes
from braze.runtime.call.boxed import Boxed, Holds, Written

_NO_TABLES: dict[str, Any] = {"objects": [], "sources": [], "origins": []}
#: the handle of a piece that is more than this, and walks through the stages again
BY_STAGES = "kernels"
#: the fields of an output's role that are kept, but its kind
_ROLE = ("spec", "input", "output", "value", "differentiable", "counted", "absolute")


def handle_of(call: Any, graph: GraphModule) -> Any:
    """What the call that was compiled of a graph is loaded by; ``BY_STAGES`` where something else stands around it, too."""
    whole = getattr(call, "general", call)  # what the C core calls where it does not see enough
    around: Around | None = getattr(whole, "around", None)
    inner = call if around is None else whole.compiled
    holds: Holds | None = getattr(inner, "holds", None)
    inner = inner if holds is None else holds.call
    written: Written | None = getattr(inner, "written", None)
    made = inner if written is None else written.call
    host = getattr(made, "host", None)
    if host is None or (around is None and written is not None):
        return BY_STAGES
    plans: Plans | None = getattr(made, "plans", None)
    writer = Writer()
    try:
        text = {
            "host": as_data(host),
            "plans": None if plans is None else plans_as_data(plans),
            "held": None if holds is None else writer.write(holds.held),
        }
        if around is None:
            return {**text, "around": None}
        body = {
            "inputs": writer.write(around.inputs),
            "mutations": _write_roles(around.mutations, writer),
            "outputs": _write_roles(around.outputs, writer),
            "beyond": around.beyond,
            "written": None if written is None else list(written[1:]),
            "graph": write_nodes(graph.graph, writer, without_tensors) if around.mutations else None,
        }
    except NotArchived:
        return BY_STAGES
    return {**text, "around": {"body": body, "tables": writer.tables()}}


def call_of(handle: Mapping[str, Any], load: Callable[[HostModule, Plans | None], Boxed]) -> Boxed:
    """The call of a handle; ``load`` loads its module, recorded by these plans. KeyError, TypeError or ValueError for a handle that nobody made."""
    plans = handle["plans"]
    call = load(host_of(handle["host"]), None if plans is None else plans_of(plans))
    if handle["around"] is None:
        return _with_held(call, handle)
    body, reader = handle["around"]["body"], Reader(handle["around"]["tables"])
    try:
        around = Around(
            reader.read(body["inputs"]),
            _read_roles(body["mutations"], reader),
            _read_roles(body["outputs"], reader),
            body["beyond"],
        )
        graph = read_nodes(body["graph"], reader)[0] if body["graph"] is not None else None
    except NotArchived as error:
        raise ValueError(f"what stands around a piece cannot be read: {error}") from error
    if body["written"] is not None:
        call = that_writes(Written(call, *map(tuple, body["written"])))
    call = _with_held(call, handle)
    return wrap_again(around, call, forward_by(graph) if graph is not None else None)


def _with_held(call: Boxed, handle: Mapping[str, Any]) -> Boxed:
    """The call, given the tensors that its graph holds; they are written out, so that no table goes along."""
    held = handle["held"]
    return call if held is None else holding(Holds(call, Reader(_NO_TABLES).read(held)))


def forward_by(graph: Graph) -> Callable[..., Any]:
    """What runs a graph that holds nothing; ValueError where a node is none that can be written as Python."""
    written = forward_of(graph)
    if written is None:
        raise ValueError("a graph has a node that no function can be written for")
    return types.MethodType(written, graph)


def _write_roles(roles: Sequence[OutputRole], writer: Writer) -> list[Any]:
    return [[role.kind.name, writer.write([getattr(role, name) for name in _ROLE])] for role in roles]


def _read_roles(rows: Sequence[Any], reader: Reader) -> tuple[OutputRole, ...]:
    return tuple(
        OutputRole(OutputKind[kind], **dict(zip(_ROLE, reader.read(values), strict=True)))
        for kind, values in rows
    )
