"""What AOT hands down: an ATen graph whose inputs and outputs have roles."""

from __future__ import annotations

import enum

import torch.fx

from braze.graph.specs import Dialect, FloatSpec, SymbolSpec, TensorSpec
from braze.support.record import record


class InputRole(enum.Enum):
    USER = "user"  # a tensor the caller passes: storage differs between calls
    PARAMETER = (
        "parameter"  # a parameter, buffer or other tensor found through a module: same object on every call
    )
    SYMBOL = "symbol"  # a symbolic int


class OutputKind(enum.Enum):
    VALUE = "value"  # a fresh tensor (or int) of the user's
    MUTATION = "mutation"  # the new contents of input ``input``: copied into it after the graph
    ALIAS = "alias"  # a view of input ``input``, rebuilt from it with as_strided by ``spec``; no spec: the input itself
    ALIAS_OF_OUTPUT = "alias_of_output"  # a view of item ``output`` of the graph's tuple, rebuilt likewise
    SAME = "same"  # the object that the user gets as output ``output``, once more
    CONSTANT = "constant"  # ``value``: None or a Python number


@record
class OutputRole:
    """How one thing that the functional graph computes reaches the caller; ``differentiable``: with a history."""

    kind: OutputKind
    spec: TensorSpec | None = None
    input: int = -1
    output: int = -1
    value: object = None
    differentiable: bool = False


class SavedFrom(enum.Enum):
    INPUT = "input"  # the forward's input ``index`` as it is
    OUTPUT = "output"  # item ``index`` of the forward's tuple
    SYMBOL = "symbol"  # the size ``name``


@record
class Saved:
    """Where a value comes from that the forward leaves for the backward."""

    source: SavedFrom
    index: int = -1
    name: str = ""


@record
class Backward:
    """The second half of a joint graph: ``graph(*saved, *tangents)`` gives one gradient per entry of ``gradients``.

    ``tangents`` are items of the forward's tuple whose gradients come in, laid out as ``inputs`` says; ``gradients``
    the forward's inputs whose gradients go out, and ``depends`` the tangents that each is made of: without any of them
    it is undefined. ``results`` is how many items of the forward's tuple are the user's; those after them are only saved.
    """

    graph: torch.fx.GraphModule
    saved: tuple[Saved, ...]
    tangents: tuple[int, ...]
    gradients: tuple[int, ...]
    depends: tuple[tuple[int, ...], ...]
    inputs: tuple[TensorSpec | SymbolSpec | FloatSpec, ...]
    results: int


@record
class Partition:
    """ATen graphs for the forward and, where gradients are wanted, the backward.

    ``forward.graph`` returns one tuple: first every MUTATION's value, then the user outputs that
    are computed (bases for ALIAS_OF_OUTPUT, then each VALUE), then what only the backward reads. ``mutations`` and
    ``outputs`` say what each is; an ``outputs`` entry that is ALIAS, SAME or CONSTANT takes no place in the graph's
    tuple. Each node's ``meta["val"]`` is its FakeTensor (or SymInt, number), ``meta["origin"]`` an Origin or None.
    ``made``: the last outputs are not the user's but sizes of these names, by which views are rebuilt.
    """

    forward: torch.fx.GraphModule
    dialect: Dialect
    inputs: tuple[TensorSpec | SymbolSpec | FloatSpec, ...]
    input_roles: tuple[InputRole, ...]
    mutations: tuple[OutputRole, ...]
    outputs: tuple[OutputRole, ...]
    backward: Backward | None = None
    made: tuple[str, ...] = ()
