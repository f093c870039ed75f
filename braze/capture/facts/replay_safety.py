"""Which graphs Python can run again for their own error: those that have changed nothing when they fail.

Random numbers that were drawn are put back; a graph that may have written into a tensor is not run again.
What the program's own code raises in a graph is the call's error, unless the program handles errors.
"""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.fx

from braze.capture.facts.bytecode import decode_exceptions
from braze.capture.facts.purity import OPERATORS, is_opaque, is_random, name_of, overloads_of
from braze.capture.facts.records import Capture
from braze.capture.facts.replay import own_after_again, own_or_again, run_again
from braze.capture.facts.values import words
from braze.graph.torch_compat import storage_key
from braze.support.caches import remembered

#: functions of ``operator`` and the like that write their first operand
WRITING = frozenset(
    words(
        """setitem delitem setattr iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift
    irshift"""
    )
)
#: functions that keep statistics in their second and third arguments, and the argument that says so, by place
STATISTICS = {"batch_norm": ("training", 5), "instance_norm": ("use_input_stats", 5)}


_BEGINS_HANDLER, _ENDS_WITH = dis.opmap["PUSH_EXC_INFO"], dis.opmap["WITH_EXCEPT_START"]


def how_again(capture: Capture, resumed: bool) -> Callable[..., Any]:
    """What a call comes to whose graph has failed: which function of ``replay`` is told.

    A ``with`` of a resumed frame may have been entered before the break: its end is Python's to bring about.
    """
    if handles_errors(capture.code, capture.inlined) or (resumed and has_handler(capture.code, withs=True)):
        return run_again
    return own_after_again if capture.effects else own_or_again


def handles_errors(code: types.CodeType, inlined: Iterable[types.FunctionType]) -> bool:
    """Whether a frame, or a function that was interpreted along, may do something about an error that passes through it."""
    return has_handler(code) or any(
        has_handler(f.__code__) or f.__name__ == "__exit__" for f in inlined if not _only_cleans_up(f)
    )


def _only_cleans_up(function: types.FunctionType) -> bool:
    """Whether a function is of PyTorch, which lets errors through and puts its settings back, but around a module's hooks."""
    package = str(function.__module__).partition(".")[0]
    return package == "torch" and not function.__qualname__.startswith("Module._call_impl")


@remembered(4096)
def has_handler(code: types.CodeType, withs: bool = False) -> bool:
    """Whether code has an ``except`` or a ``finally``; the end of a ``with`` is its context manager's, and counts if ``withs``."""
    rows = decode_exceptions(code.co_exceptiontable)
    bytecode = code.co_code
    return any(
        bytecode[row.target] == _BEGINS_HANDLER and (withs or bytecode[row.target + 2] != _ENDS_WITH)
        for row in rows
    )


def can_run_again(graph: torch.fx.Graph) -> bool:
    """Whether a graph that fails has changed nothing but the state of random numbers."""
    writing = [node for node in graph.nodes if writes(node)]
    if not writing:
        return True
    outside = {
        key for node in graph.nodes if node.op in ("placeholder", "get_attr") for key in memory_of(node)
    }
    return not any(is_opaque(node) or reaches(node, outside) for node in writing)


def reaches(node: torch.fx.Node, outside: set[int]) -> bool:
    """Whether a node may write to one of these storages."""
    written = memory_of(*written_by(node))
    return not written or not outside.isdisjoint(written)


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose tensors a writing node may write: the first operand, or any where that is not known."""
    name = name_of(node)
    if (node.op == "call_method" or name in WRITING) and "out" not in node.kwargs and node.args:
        return [node.args[0]] if isinstance(node.args[0], torch.fx.Node) else []
    return node.all_input_nodes


def memory_of(*nodes: torch.fx.Node) -> set[int]:
    """The storages of the tensors that nodes give."""
    values = [node.meta.get("val") for node in nodes]
    parts = [p for v in values for p in (v if isinstance(v, (list, tuple)) else (v,))]
    return {storage_key(part) for part in parts if isinstance(part, torch.Tensor)}


def memory_written(nodes: Iterable[torch.fx.Node]) -> set[int]:
    """The storages that nodes write as their first operand or ``out``. Versions do not tell: views on fakes count theirs apart."""
    found: set[int] = set()
    for node in nodes:
        if writes(node) and not is_opaque(node) and name_of(node) not in STATISTICS:
            written = node.kwargs.get("out", node.args[0] if node.args else ())
            several = written if isinstance(written, (list, tuple)) else (written,)
            found |= memory_of(*(n for n in several if isinstance(n, torch.fx.Node)))
    return found


def draws(graph: torch.fx.Graph) -> bool:
    """Whether a graph may draw random numbers."""
    return any(map(is_random, graph.nodes))


def writes(node: torch.fx.Node) -> bool:
    """Whether a node of the graph may have changed something before the graph failed."""
    name = name_of(node)
    if node.op == "call_function" and (overloads := overloads_of(node.target)):
        return any(overload._schema.is_mutable for overload in overloads)
    if not name:
        return False
    if name.startswith("__"):
        return name == "__setitem__"
    if node.target in OPERATORS:  # and_, or_, not_ write nothing
        return name in WRITING
    if name.endswith("_") or "out" in node.kwargs or name in WRITING or is_opaque(node):
        return True
    if node.kwargs.get("inplace") or node.kwargs.get("max_norm") is not None:
        return True
    if name in STATISTICS:
        word, index = STATISTICS[name]
        keeps = node.kwargs.get(word, node.args[index] if len(node.args) > index else False)
        return keeps is not False and (len(node.args) > 1 or "running_mean" in node.kwargs)
    place = place_of_inplace(node.target) if node.op == "call_function" else None
    return place is not None and len(node.args) > place and node.args[place] is not False


@remembered(1024)
def place_of_inplace(target: Any) -> int | None:
    """Where a function takes its argument ``inplace``."""
    if not isinstance(target, types.FunctionType):
        return None
    names = list(inspect.signature(target).parameters)
    return names.index("inplace") if "inplace" in names else None


def random_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    """The state of the generators that a graph draws from."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda


def put_back(state: tuple[torch.Tensor, torch.Tensor | None]) -> None:
    """Set the generators back to a state."""
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
