"""What AOT hands down: an ATen graph whose inputs and outputs have roles."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import torch.fx

from braze.graph.fakes.fakes import FakeMode
from braze.graph.nodes.facts import InputRole
from braze.graph.nodes.specs import Dialect, FloatSpec, SymbolSpec, TensorSpec
from braze.support.record import record


class OutputKind(enum.Enum):
    VALUE = "value"  # a fresh tensor (or int) of the user's
    MUTATION = "mutation"  # the new contents of input ``input``: copied into it after the graph
    # a view of input ``input``, rebuilt from it by the steps ``way``, or with as_strided by ``spec``; no spec: the input itself
    ALIAS = "alias"
    ALIAS_OF_OUTPUT = "alias_of_output"  # a view of item ``output`` of the graph's tuple, rebuilt likewise
    SAME = "same"  # the object that the user gets as output ``output``, once more
    CONSTANT = "constant"  # ``value``: None or a Python number
    SAVED = "saved"  # of a forward: read by its backward only
    GRADIENT = (
        "gradient"  # of a joint graph or a backward: the gradient of input ``input``, or of item ``~input``
    )


@record
class Formula:
    """A number among a view's arguments that hangs on sizes."""

    text: str


@record
class ViewStep:
    """One step of the program from a tensor to a view: ``op(it, *args, **kwargs)``, or item ``item`` of that.

    ``value`` numbers what it gives: who else comes by that step gets the same tensor. ``op`` may be "data", for ``.data``.
    ``grad`` and ``inference`` are the modes that the program takes it in.
    """

    value: int
    op: Any
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    item: int = -1
    grad: bool = True
    inference: bool = False


#: a guard: made without gradients of what requires them, so that the value says that it does, too
ASTRAY = "astray"


@record
class OutputRole:
    """How one thing that the functional graph computes reaches the caller; ``differentiable``: with a history.

    ``counted``: autograd counts the mutation (it does not count writes through ``.data``). ``after_saves``: eager writes the mutation after the last tensor that it saves for the backward. ``way``: the steps by which
    a view is made again, where more than its place in memory counts. ``absolute``: the view's offset counts from where the
    memory starts, wherever in it the input does. ``early``: how many of the program's steps to a view of an input, or of what the graph makes, came before that was last written.
    ``locked``: a value that is a view in eager, made without gradients, to which autograd lets nobody write with them.
    ``guard``: of what views autograd takes a value of this graph for in eager, if it lets nobody write to it with gradients though they are on (a name of PyTorch's ``CreationMeta``, or ASTRAY).
    """

    kind: OutputKind
    spec: TensorSpec | None = None
    input: int = -1
    output: int = -1
    value: object = None
    differentiable: bool = False
    counted: bool = True
    after_saves: bool = False
    way: tuple[ViewStep, ...] = ()
    absolute: bool = False
    early: int = 0
    locked: bool = False
    guard: str = ""


@record
class Around:
    """All that stands around a forward that needs no more than its inputs and results for it: what it writes back, and outputs that are inputs or windows on their memory.

    The fields are a Partition's.
    """

    inputs: tuple[TensorSpec | SymbolSpec | FloatSpec, ...]
    mutations: tuple[OutputRole, ...]
    outputs: tuple[OutputRole, ...]
    beyond: bool = False


class SavedFrom(enum.Enum):
    INPUT = "input"  # the forward's input ``index`` as it is
    OUTPUT = "output"  # item ``index`` of the forward's tuple
    SYMBOL = "symbol"  # the size ``name``


@record
class Saved:
    """Where a value comes from that the forward leaves for the backward.

    ``early``: its memory, whatever the program gives it later (``x.data = ...``): eager keeps views of it, or what is made of it.
    """

    source: SavedFrom
    index: int = -1
    name: str = ""
    early: bool = False

    def of(self, inputs: Sequence[Any], results: Sequence[Any], sizes: Mapping[str, Any]) -> Any:
        """The value, of a call of the forward with these inputs and results."""
        match self.source:
            case SavedFrom.INPUT:
                return inputs[self.index]
            case SavedFrom.OUTPUT:
                return results[self.index]
            case SavedFrom.SYMBOL:
                return sizes[self.name]


@record
class Backward:
    """The second half of a joint graph: ``graph(*saved, *tangents)`` gives one gradient per entry of ``gradients``.

    ``tangents`` are items of the forward's tuple whose gradients come in, laid out as ``inputs`` says; ``gradients``
    the forward's inputs whose gradients go out, or ``~i`` for its item i, which a later operation takes; ``depends`` the tangents that each
    is made of: without any of them it is undefined. ``results`` is how many items of the forward's tuple are the user's; those after
    them are only saved. ``apart``: tangents by number, those together that are one operation of autograd's, each behind those whose items
    it takes; none: all are. ``saving``: of each, whether it saves anything in eager. ``parts``: a backward for each of these, where that has been made.
    ``guarded``: items that the caller gets as views, to which autograd lets nobody write. ``retained``: items that keep their gradients, each to be
    the only one of an operation of autograd's.
    """

    graph: torch.fx.GraphModule
    saved: tuple[Saved, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    depends: tuple[tuple[int, ...], ...]
    inputs: tuple[TensorSpec | SymbolSpec | FloatSpec, ...]
    results: int
    apart: tuple[tuple[int, ...], ...] = ()
    saving: tuple[bool, ...] = (True,)
    parts: tuple[Backward, ...] = ()
    guarded: tuple[int, ...] = ()
    retained: tuple[int, ...] = ()


@record
class JointGraph:
    """Forward and gradients in one functional graph: the user's ``results`` items, then the gradients of ``gradients``.

    ``written``: placeholders that get new contents. ``tangents``: placeholders of the gradients that come in, for the
    items ``tangent_of`` of the results. ``gradients``: inputs by number, ``~i`` for item i of the results. ``own``: items of
    the results that are to be memory which nothing is kept in.
    """

    module: torch.fx.GraphModule
    results: int
    written: tuple[torch.fx.Node, ...]
    tangents: tuple[torch.fx.Node, ...]
    tangent_of: tuple[int, ...]
    gradients: tuple[int, ...]
    mode: FakeMode
    own: tuple[int, ...] = ()


@record
class SharedInputs:
    """A further input of the forward: the memory in which ``inputs`` overlap, as one dimension of ``size`` elements.

    It begins ``offset`` elements into their storage; each of them ``offsets`` elements behind that.
    ``counted``: those of which autograd counts a write.
    """

    inputs: tuple[int, ...]
    offsets: tuple[int, ...]
    offset: int
    size: int
    counted: tuple[int, ...] = ()


@record
class Partition:
    """ATen graphs for the forward and, where gradients are wanted, the backward.

    ``forward.graph`` returns one tuple: first every MUTATION's value, then the user outputs that
    are computed (bases for ALIAS_OF_OUTPUT, then each VALUE), then what only the backward reads. ``mutations`` and
    ``outputs`` say what each is; an ``outputs`` entry that is ALIAS, SAME or CONSTANT takes no place in the graph's
    tuple. Each node's ``meta["val"]`` is its FakeTensor (or SymInt, number); the rest stands in its facts (graph/nodes/facts.py).
    ``made``: the last outputs are not the user's but sizes of these names, by which views are rebuilt. ``shared``: the last
    inputs are not the user's but memory that several of theirs see. ``anchored``: (input, offset) of those that must begin
    there in their memory. ``beyond``: the graph sees memory of an input
    that the input itself does not reach. ``turned``: inputs of which the program gives views another shape in place, a write as autograd counts. ``ordered``: (input, written input) that are not to lie in one memory,
    where views of the first tell whether they are older than writes to its memory, which the graph has not counted. ``beside``: of a backward, bytes of its forward's results, which the caller may hold.
    """

    forward: torch.fx.GraphModule
    dialect: Dialect
    inputs: tuple[TensorSpec | SymbolSpec | FloatSpec, ...]
    input_roles: tuple[InputRole, ...]
    mutations: tuple[OutputRole, ...]
    outputs: tuple[OutputRole, ...]
    backward: Backward | None = None
    made: tuple[str, ...] = ()
    shared: tuple[SharedInputs, ...] = ()
    anchored: tuple[tuple[int, int], ...] = ()
    beyond: bool = False
    turned: tuple[int, ...] = ()
    ordered: tuple[tuple[int, int], ...] = ()
    beside: int = 0
