"""Calls of which the program reads nothing, and which eager refuses: they are made for their error.

What a graph reads nothing of is left out of it, and meta functions let pass what kernels refuse (``kthvalue`` of truth values, a negative
power of integers). So such a call is tried on small memory where it is traced; one that fails is called once more, as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.aot.facts.writes import called_as_it_is, is_writing_call
from braze.aot.trace.recorder import Recorder
from braze.aot.trace.structural import is_composite
from braze.graph.fakes.missing_kernels import is_pure
from braze.graph.fakes.probe import eager_error
from braze.graph.nodes.facts import set_facts
from braze.graph.operators.operators import functional_form, says_whose_memory
from braze.support.nested import leaves

Node = torch.fx.Node

#: what calls of PyTorch's functions raise
FAILURES = (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, IndexError)
#: nothing larger is made to hear what eager says to a call whose result nobody reads
LIMIT = 1 << 20


def unread(graph: torch.fx.Graph) -> frozenset[Node]:
    """The calls of functions of PyTorch's of which, and of what is made of them, no result and no other effect of a graph is made.

    What writes is one where it writes what such a call has made: what else reads that memory is not looked for, so that this is a guess.
    """
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op in ("call_function", "call_method") and found.issuperset(node.users):
            if is_pure(function_of(node)) and (
                not is_writing_call(node) or _is_own(node.args[0], found | {node})
            ):
                found.add(node)
    return frozenset(found)


def call_for_its_error(node: Node, args: Any, kwargs: dict[str, Any], recorder: Recorder) -> None:
    """Note an unread call once more, as one of which nothing is known, if eager refuses it on such fakes."""
    values = list(leaves((*args, *kwargs.values())))
    bounds = [bound for v in values if type(v) is slice for bound in (v.start, v.stop, v.step)]
    if any(isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)) for v in (*values, *bounds)):
        return  # what is tried would be told of the number that it is in this call alone
    given = [v for v in values if isinstance(v, torch.Tensor)]
    function = function_of(node)
    if not _are_small(given) or eager_error(function, tuple(args), kwargs) is None:
        return
    with _AsCalled(recorder):
        try:
            function(*args, **kwargs)
        except FAILURES:
            return  # tracing it in earnest tells what fails


#: a view that is refused for the memory that it would see, which nobody does where nothing is read -> what reads that
_COPIES = {torch.ops.aten.as_strided.default: torch.ops.aten.as_strided_copy.default}


class _AsCalled(TorchDispatchMode):
    """Notes operators as calls of which nothing is known, which stay. What one would write it only computes; views are themselves."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        func = _COPIES.get(func, func)
        if func._schema.is_mutable and (func := functional_form(func)) is None:
            raise NotImplementedError("an operator that writes, and has no other form")
        if says_whose_memory(func):
            with self:
                return (
                    func.decompose(*args, **kwargs)
                    if is_composite(func)
                    else self._recorder.emit(func, args, kwargs)
                )
        called = called_as_it_is(func)
        made = self._recorder.emit(called, args, kwargs)
        set_facts(next(n for n in reversed(self._recorder.graph.nodes) if n.target is called), for_error=True)
        return made


def function_of(node: Node) -> Any:
    """The function that a captured node calls."""
    return getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target


def _is_own(target: Any, unread: set[Node]) -> bool:
    """Whether what is written is made by the graph, and read by unread calls alone."""
    return isinstance(target, Node) and target.op.startswith("call") and unread.issuperset(target.users)


def _are_small(tensors: list[torch.Tensor]) -> bool:
    sizes: list[Any] = [x.untyped_storage().nbytes() for x in tensors if x.layout is torch.strided]
    known = [n.node.hint if isinstance(n, torch.SymInt) else n for n in sizes]
    return all(type(n) is int for n in known) and sum(known) <= LIMIT
