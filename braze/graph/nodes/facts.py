"""What braze knows of a node of an FX graph, beside the value that PyTorch keeps in ``meta["val"]``.

One frozen record under one key: copies of a node share it with the node, as FX copies ``meta``, until either learns more.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, NamedTuple, ParamSpec

import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from braze.support.errors import Origin

_KEY = "braze"
_Known = ParamSpec("_Known")


class InputRole(enum.Enum):
    USER = "user"  # a tensor the caller passes: storage differs between calls
    PARAMETER = (
        "parameter"  # a parameter, buffer or other tensor found through a module: same object on every call
    )
    SYMBOL = "symbol"  # a symbolic int
    SAVED = "saved"  # of a backward: what its forward left for it; of a Partition: that nobody else holds
    TANGENT = "tangent"  # of a joint graph or a backward: the gradient that comes in for a result


class NodeFacts(NamedTuple):
    """What is known of one node; what a graph does not say is as the defaults say."""

    #: the user's line
    origin: Origin | None = None
    #: while the graph is captured: the code and the instruction that become the origin
    place: tuple[Any, int] | None = None
    #: while the graph is captured: how many instructions had run
    step: int = 1
    #: whether the node sets what PyTorch keeps for the thread (autocast, modes of gradients)
    setting: bool = False

    # -- of inputs
    role: InputRole | None = None
    #: where the caller's value is found, as Python
    source: str | None = None
    #: whether the caller's tensor requires grad, and is a leaf: its fake may gain a history while tracing
    requires_grad: bool | None = None
    leaf: bool | None = None
    #: whether it was made in inference mode: autograd refuses to save it
    inference: bool = False
    #: whether the forward writes to it
    written: bool = False

    # -- of inputs, and of what a captured graph gives
    #: whether the program goes on, where the graph ended, to write it or turn it in place
    written_after: bool = False
    #: whether it goes on to give it other memory (``x.data = y``)
    moved_after: bool = False
    #: whether it goes on to have its gradient kept (``x.retain_grad()``)
    retained_after: bool = False
    #: of a joint graph: whether derivatives read views of it or, of an input, what the program has made of it, and never itself
    read_early: bool = False

    # -- of operations
    #: the number of the checkpointed region that it is in, and what the region's policy (torch's) says of it
    checkpoint: int | None = None
    policy: CheckpointPolicy | None = None
    #: whether autograd counts no writes through it (``.data``), or does not count that it writes itself
    unversioned: bool = False
    #: whether it is the cast at the end of a composition of ours, which rounds what that has computed
    rounding: bool = False
    #: whether it only copies its argument into another layout
    copy_in_layout: bool = False
    #: of a joint graph or a backward: the bits of the tangents from which autograd comes to the derivative that it is of
    tangents: int = 0
    #: whether it is a copy of what a custom backward gives though it reads no tangent: as a gradient that is no value of the program
    gradient: bool = False
    #: whether it runs for the error that it may raise: the program reads nothing of what it gives
    for_error: bool = False
    #: what an operator over subgraphs calls, alive as long as the graph
    subgraphs: Any = None


_NOTHING = NodeFacts()
_AFTER_STEP = _NOTHING[3:]
_new = tuple.__new__
_PLACES = {name: place for place, name in enumerate(NodeFacts._fields)}


def facts(node: torch.fx.Node) -> NodeFacts:
    """What is known of a node."""
    return node.meta.get(_KEY, _NOTHING)


def told(fact: bool | None, fake: bool) -> bool:
    """What the captured graph says, or else what the fake says."""
    return fake if fact is None else fact


def argument(node: torch.fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument of a call by its position or name."""
    if len(node.args) > index:
        return node.args[index]
    return node.kwargs.get(name, default)


def led_by(node: torch.fx.Node) -> int:
    """The bits of all tangents that lead to the derivatives of which a value is made; 0 for what is none of a derivative's."""
    pending, seen, found = [node], {node}, 0
    while pending:
        at = pending.pop()
        bits = facts(at).tangents
        found |= bits
        if bits:  # what the program computes has none
            behind = {*at.all_input_nodes} - seen
            seen |= behind
            pending += behind
    return found


def note_place(node: torch.fx.Node, place: tuple[Any, int] | None, step: int) -> None:
    """What a capture knows of a node that it has just made: as ``set_facts``, in few instructions."""
    node.meta[_KEY] = _new(NodeFacts, (None, place, step, *_AFTER_STEP))


def settle_places(nodes: Iterable[torch.fx.Node], origin: Callable[[Any], Origin | None]) -> None:
    """The places of nodes become their origins, when the capture is over."""
    for node in nodes:
        known = node.meta.get(_KEY, _NOTHING)
        if known[1] is not None:
            node.meta[_KEY] = _new(NodeFacts, (origin(known[1]), None, *known[2:]))


def share_facts(node: torch.fx.Node, other: torch.fx.Node) -> None:
    """Let a node know what another one does, which it stands beside or in for."""
    node.meta[_KEY] = facts(other)


def _setter(record: Callable[_Known, NodeFacts]) -> Callable[Concatenate[torch.fx.Node, _Known], None]:
    """The fields of the record as keywords, for type checkers too."""

    def set_facts(node: torch.fx.Node, /, *args: _Known.args, **known: _Known.kwargs) -> None:
        """Add what is known of a node from here on."""
        before: NodeFacts | None = node.meta.get(_KEY)
        if before is None:
            node.meta[_KEY] = record(*args, **known)
            return
        # as _replace does, which asks for each field by name: this runs for each node of each graph
        values: list[Any] = list(before)
        try:
            for name, value in known.items():
                values[_PLACES[name]] = value
        except KeyError as error:
            raise TypeError(f"no fact of a node is called {error}") from None
        node.meta[_KEY] = NodeFacts._make(values)

    return set_facts


set_facts = _setter(NodeFacts)


def tell_of_input(node: torch.fx.Node, tensor: torch.Tensor) -> None:
    """Add what is known of an input by the caller's tensor: its fake may gain a history while tracing."""
    set_facts(node, requires_grad=tensor.requires_grad, leaf=tensor.is_leaf, inference=tensor.is_inference())
