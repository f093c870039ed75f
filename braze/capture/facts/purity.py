"""What is known of the calls in a captured graph: whether they only compute, write, or may draw random numbers.

What an operator does tells its tag. Whose a function is tells where it lives (libraries.py), never what it is called. A graph that fails may be
run again by Python, for its own error. Random numbers that were drawn are put back; a graph that writes into tensors from outside is run
again where its backend says that it had not come to that (support/unwritten.py). What the program's own code raises in a graph is the call's error, unless the program handles errors.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import math
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.fx

from braze.capture.facts.bytecode import decode_exceptions
from braze.capture.facts.libraries import is_pytorchs
from braze.capture.facts.records import Capture
from braze.capture.facts.replay import own_after_again, own_or_again, run_again
from braze.capture.facts.values import words
from braze.graph.calls.autograd_calls import Applied, hooked
from braze.graph.calls.checkpoints import checkpointed
from braze.graph.fakes.probe import WRITES
from braze.graph.nodes.facts import argument, facts
from braze.graph.operators.operators import OPERATORS as OF_ATEN
from braze.graph.operators.operators import name_of as op_name
from braze.graph.private.torch_compat import storage_key
from braze.runtime.operators.purity import added_kernels, may_draw
from braze.support.caches import remembered
from braze.support.nested import every

#: places, names and defaults of arguments
Words = tuple[tuple[int, str, Any], ...]

OPERATORS = frozenset(v for v in vars(operator).values() if isinstance(v, types.BuiltinFunctionType))
#: what operators and functions of PyTorch's in C are
_PYTORCHS = (types.BuiltinFunctionType, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
#: built-in functions that draw nothing, whatever they are given
_PLAIN = (
    OPERATORS
    | {getattr, setattr, abs, round}
    | {v for v in vars(math).values() if isinstance(v, types.BuiltinFunctionType)}
)


def operators_of(node: torch.fx.Node) -> tuple[torch._ops.OpOverload, ...]:
    """The operators that a call may mean: those that it names, or ATen's of the name of a function or method of PyTorch's."""
    if node.op == "call_method":
        return _of_name(str(node.target))
    if node.op != "call_function":
        return ()
    named = overloads_of(node.target)
    if named or is_opaque(node):
        return named
    return _of_name(getattr(node.target, "__name__", ""))


def overloads_of(target: Any) -> tuple[torch._ops.OpOverload, ...]:
    """The operators that a call of a library's operator may mean."""
    target = getattr(target, "_opoverload", target)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return tuple(getattr(target, name) for name in target.overloads())
    return (target,) if isinstance(target, torch._ops.OpOverload) else ()


@functools.cache
def _of_name(name: str) -> tuple[torch._ops.OpOverload, ...]:
    packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, name.strip("_"), None)
    return overloads_of(packet)


def is_opaque(node: torch.fx.Node) -> bool:
    """Whether a node calls a function of the program's, other than in a backward."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, types.FunctionType) or is_pytorchs(target):
        return False
    if target is hooked:
        return False
    return region_of(node) is None


def region_of(node: torch.fx.Node) -> torch.fx.Graph | None:
    """The graph of a checkpointed region of which no function of the program's decides what is kept."""
    if node.target is not checkpointed or node.args[1] is not None:
        return None
    owner, region = node.graph.owning_module, node.args[0]
    if owner is None or not isinstance(region, torch.fx.Node) or region.op != "get_attr":
        return None
    found = getattr(owner, str(region.target), None)
    return found.graph if isinstance(found, torch.fx.GraphModule) else None


def _within(nodes: Iterable[torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """Nodes of a graph, those of a region in place of its call."""
    for node in nodes:
        region = region_of(node)
        yield from (node,) if region is None else _within(region.nodes)


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node may draw random numbers: also where it calls what braze does not look into."""
    if (region := region_of(node)) is not None:
        return any(map(is_random, region.nodes))
    if node.op in ("placeholder", "output", "get_attr") or facts(node).setting or _is_plain(node.target):
        return False
    target = node.target
    if isinstance(target, Applied):
        return target.draws != ""
    if node.op not in ("call_function", "call_method") or is_opaque(node):
        return True
    return any(map(may_draw, operators_of(node))) or (
        isinstance(target, types.FunctionType) and _draws_inside(target, added_kernels())
    )


@remembered(1024)
def _draws_inside(function: types.FunctionType, kernels: Any) -> bool:
    """Whether a function of PyTorch's in Python names an operator that may draw, or calls a function of PyTorch's that does."""
    seen, todo = {function}, [function]
    while todo:
        here = todo.pop()
        names = set(_names_in(here.__code__))
        if any(may_draw(op) for name in names for op in _of_name(name)):
            return True
        held = [cell.cell_contents for cell in here.__closure__ or () if cell != types.CellType()]
        for found in (*(here.__globals__.get(name) for name in names), *held):
            if isinstance(found, types.FunctionType) and found not in seen and is_pytorchs(found):
                seen.add(found)
                todo.append(found)
    return False


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Every global and attribute that a function's code names, that of functions in it too."""
    yield from code.co_names
    for inside in code.co_consts:
        if isinstance(inside, types.CodeType):
            yield from _names_in(inside)


def computes(node: torch.fx.Node) -> bool:
    """Whether a node is known to do nothing but to compute what its arguments tell."""
    if facts(node).setting or is_random(node):
        return False
    target: Any = node.target
    found = operators_of(node)
    if any((known := OF_ATEN.get(name.rstrip("_"))) and known.unwritten for name in map(op_name, found)):
        return False
    if node.op == "call_method":
        method = getattr(torch.Tensor, str(target), None)
        return not isinstance(method, types.FunctionType) or is_pytorchs(method)
    if node.op != "call_function":
        return node.op == "placeholder"
    if found or _is_plain(target):
        return True
    return isinstance(target, types.BuiltinFunctionType) or (
        isinstance(target, types.FunctionType) and is_pytorchs(target)
    )


def _is_plain(target: Any) -> bool:
    return isinstance(target, types.BuiltinFunctionType) and target in _PLAIN


def name_of(node: torch.fx.Node) -> str:
    """The name of what a node calls."""
    if node.op not in ("call_method", "call_function"):
        return ""
    return _name_of_target(node.target)


def _name_of_target(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


# -- which graphs Python can run again for their own error: those that have changed nothing when they fail


#: functions of ``operator`` and the like that write their first operand
WRITING = WRITES.union(words("delitem setattr imatmul"))
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


def raises_alone(capture: Capture, resumed: bool) -> bool:
    """Whether an error of the graph is all that a call comes to: nobody handles it, and nothing was done before it."""
    return how_again(capture, resumed) is own_or_again


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


class Again(enum.StrEnum):
    """Whether Python may run a call again whose graph has failed."""

    YES = "yes"  # nothing is changed but the state of random numbers
    UNWRITTEN = "unwritten"  # where what runs the graph says that it has written no input yet
    NO = "no"


def may_run_again(graph: torch.fx.Graph) -> Again:
    """What a graph that fails may have changed."""
    writing = [node for node in graph.nodes if writes(node)]
    if not writing:
        return Again.YES
    if any(map(is_opaque, writing)):
        return Again.NO
    outside = {
        key for node in graph.nodes if node.op in ("placeholder", "get_attr") for key in memory_of(node)
    }
    if not any(reaches(node, outside) for node in writing):
        return Again.YES
    # to keep the state of a GPU's generator takes longer than the call
    return Again.UNWRITTEN if draws(graph) in ("", "cpu") else Again.NO


def can_run_again(graph: torch.fx.Graph) -> bool:
    """Whether a graph that fails has changed nothing but the state of random numbers, whoever runs it."""
    return may_run_again(graph) is Again.YES


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
            first = node.args if isinstance(node.target, Applied) else node.args[0] if node.args else ()
            written = node.kwargs.get("out", first)
            several = written if isinstance(written, (list, tuple)) else (written,)
            found |= memory_of(*(n for n in several if isinstance(n, torch.fx.Node)))
    return found


def draws(graph: torch.fx.Graph) -> str:
    """The type of device whose generator a graph may draw random numbers from: "cpu" or "cuda"; "all" where it may be any, "" where it draws none."""
    return drawn_by(graph.nodes)


def drawn_by(nodes: Iterable[torch.fx.Node]) -> str:
    """The same of some nodes of a graph."""
    return together(_device_of(n) for n in _within(nodes) if is_random(n) and not _is_told_not_to(n))


def together(kinds: Iterable[str]) -> str:
    """The same of several parts of a graph, each of which draws so."""
    found = {kind for kind in kinds if kind}
    return "" if not found else found.pop() if len(found) == 1 else "all"


def _device_of(node: torch.fx.Node) -> str:
    """The type of device of all that a function of PyTorch's reads and makes; "all" where there are several or others, or it is no such function."""
    if isinstance(node.target, Applied):
        return node.target.draws or "all"
    known = isinstance(node.target, _PYTORCHS) or _of_layers(node.target)
    if node.op != "call_method" and not known:
        return "all"
    values = [each.meta.get("val") for each in (node, *node.all_input_nodes)]
    kinds = {tensor.device.type for tensor in every(torch.Tensor, values)}
    return kinds.pop() if len(kinds) == 1 and kinds <= {"cpu", "cuda"} else "all"


def _is_told_not_to(node: torch.fx.Node) -> bool:
    """Whether a function of PyTorch's that drops values is told to drop none: a layer in evaluation, attention in inference."""
    if node.op != "call_function":
        return False
    chances, training = (
        [argument(node, *word) for word in words] for words in _words_of_dropping(node.target)
    )
    return any(type(p) in (int, float) and p == 0 for p in chances) or any(t is False for t in training)


def _of_layers(target: Any) -> bool:
    """Whether something called is a function of ``torch.nn.functional``."""
    return getattr(torch.nn.functional, getattr(target, "__name__", ""), None) is target


@remembered(1024)
def _words_of_dropping(target: Any) -> tuple[Words, Words]:
    """(place, name, default) of the arguments that are a chance of dropping a value, and of those that say whether to drop any at all."""
    if target is torch.nn.functional.scaled_dot_product_attention:
        return ((4, "dropout_p", 0.0),), ()
    if not isinstance(target, types.FunctionType) or not _of_layers(target):
        return (), ()
    taken = [(i, p.name, p.default) for i, p in enumerate(inspect.signature(target).parameters.values())]
    training = tuple(word for word in taken if word[1] == "training")
    return tuple(word for word in taken if training and word[1] in ("p", "dropout_p")), training


def writes(node: torch.fx.Node) -> bool:
    """Whether a node of the graph may have changed something before the graph failed."""
    op, kwargs = node.op, node.kwargs
    if op != "call_function" and op != "call_method":
        return False
    if is_opaque(node):
        return True
    if (region := region_of(node)) is not None:
        return any(map(writes, region.nodes))
    if isinstance(node.target, Applied):
        return node.target.writes
    told = _writes_anyway(op, node.target, bool(kwargs))
    if told is not None:
        return told
    if "out" in kwargs or kwargs.get("inplace") or kwargs.get("max_norm") is not None:
        return True
    name, args = name_of(node), node.args
    if name in STATISTICS:
        word, index = STATISTICS[name]
        keeps = kwargs.get(word, args[index] if len(args) > index else False)
        return keeps is not False and (len(args) > 1 or "running_mean" in kwargs)
    place = place_of_inplace(node.target) if op == "call_function" else None
    return place is not None and len(args) > place and args[place] is not False


@remembered(8192)
def _writes_anyway(op: str, target: Any, named: bool) -> bool | None:
    """Whether each call of a function or method writes, or none does (``named``: with keywords); None where its arguments tell."""
    if op == "call_function" and (overloads := overloads_of(target)):
        return any(overload._schema.is_mutable for overload in overloads)
    name = _name_of_target(target)
    if not name:
        return False
    if name.startswith("__"):
        return name == "__setitem__"
    if target in OPERATORS:  # and_, or_, not_ write nothing
        return name in WRITING
    if name.endswith("_") or name in WRITING:
        return True
    by_place = name in STATISTICS or (op == "call_function" and place_of_inplace(target) is not None)
    return None if named or by_place else False


@remembered(1024)
def place_of_inplace(target: Any) -> int | None:
    """Where a function takes its argument ``inplace``."""
    if not isinstance(target, types.FunctionType):
        return None
    names = list(inspect.signature(target).parameters)
    return names.index("inplace") if "inplace" in names else None


State = tuple[torch.Tensor | None, torch.Tensor | None]


def state_of_cpu() -> State:
    """The state of the processor's generator, from which alone a graph draws."""
    return torch.get_rng_state(), None


def state_of_gpu() -> State:
    """The state of the current GPU's generator, from which alone a graph draws."""
    return None, torch.cuda.get_rng_state()


def random_state() -> State:
    """The state of the generators that a graph may draw from, or a seed may set."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


#: what ``draws`` tells -> what keeps the state before a call
STATES: dict[str, Callable[[], State]] = {"cpu": state_of_cpu, "cuda": state_of_gpu, "all": random_state}


def put_back(state: State) -> None:
    """Set the generators back to a state."""
    on_cpu, on_gpu = state
    if on_cpu is not None:
        torch.set_rng_state(on_cpu)
    if on_gpu is not None:
        torch.cuda.set_rng_state(on_gpu)
