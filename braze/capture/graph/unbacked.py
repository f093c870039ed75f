"""Numbers and sizes that only the data tell, as symbols of the graph: options ``capture_scalar_outputs`` and
``capture_dynamic_output_shape_ops``.

A node makes such a symbol: ``item()`` gives the number itself, ``nonzero`` a tensor with a size of that name. What a trace
takes for granted of one (``torch._check``, or an operator whose sizes must fit) becomes a node that checks it.
A decision by one cannot be taken while tracing: the graph ends there.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from braze.capture.facts.breaks import BreakSignal, graph_break
from braze.capture.facts.values import MISSING
from braze.capture.graph import sizes
from braze.capture.state.trace import GraphState, Recording, Trace
from braze.graph.nodes.facts import facts
from braze.graph.private import torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC
from braze.graph.sizes.shape_guards import readable_text
from braze.support.nested import every

HINT_CHECK = "say what holds of it with torch._check(condition), or branch with torch.cond"
HINT_SCALARS = "options={'capture_scalar_outputs': True} makes it a symbol of the graph"
HINT_SHAPES = "options={'capture_dynamic_output_shape_ops': True} makes the size a symbol of the graph"

#: method that reads a tensor -> what makes its result of the number
READERS: dict[str, Any] = {
    "item": lambda number: number,
    "__int__": torch.sym_int,
    "__index__": torch.sym_int,
    "__float__": torch.sym_float,
}
#: numbers in one list, at most: each is read out on its own
LONGEST_LIST = 256


def as_index(t: Trace, key: Any) -> Any:
    """A key of a tensor, with the numbers that tensors of no dimensions in it hold, where Python would read them out."""
    if not t.options.capture_scalar_outputs:
        return key
    if isinstance(key, torch.Tensor):
        return scalar(t.graph.recorder, key) if _is_number(key) else key
    if type(key) is slice:
        ends = (key.start, key.stop, key.step)
        return slice(*(scalar(t.graph.recorder, v) if _is_number(v) else v for v in ends))
    if type(key) is tuple and all(type(k) in PLACES or _is_number(k) for k in key):
        return tuple(as_index(t, k) for k in key)
    return key


#: keys that name places by numbers
PLACES = frozenset({int, slice, torch.SymInt, type(...), type(None)})


def _is_number(value: Any) -> bool:
    integral = isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)
    return integral and value.dim() == 0


def selects(key: Any) -> bool:
    """Whether a key of a tensor names a place that only the data tell."""
    return is_unbacked(key) or (type(key) is tuple and any(map(is_unbacked, key)))


def selected(graph: GraphState, tensor: torch.Tensor, key: Any) -> Any:
    """``tensor[key]`` of such a key, one dimension after the other."""
    dim = 0
    for part in key if type(key) is tuple else (key,):
        if type(part) is slice:
            if part != slice(None):
                tensor = graph.recorder.call(operator.getitem, (tensor, (slice(None),) * dim + (part,)), {})
            dim += 1
        elif type(part) in (int, torch.SymInt):
            tensor = graph.recorder.call(torch.select, (tensor, dim, part), {})
        else:
            graph_break(
                "BZ1020", "a number that only the data tell indexes a tensor beside other things", HINT_INDEX
            )
    return tensor


HINT_INDEX = "index with the tensor that holds the number, or one dimension after the other"


def is_unbacked(value: Any) -> bool:
    """Whether a value is a number that only the data tell."""
    return type(value) in SYMBOLIC and torch_symbols.is_unbacked(value)


def read(recorder: Recording, name: str, tensor: torch.Tensor) -> Any:
    """What ``tensor.name()`` reads, as symbols; MISSING where that is not asked for, or cannot be."""
    if not recorder.t.options.capture_scalar_outputs or tensor.dtype.is_complex:
        return MISSING
    if name == "tolist":
        return numbers(recorder, tensor)
    maker = READERS.get(name)
    return maker(scalar(recorder, tensor)) if maker is not None else MISSING


def scalar(recorder: Recording, tensor: torch.Tensor) -> Any:
    """``tensor.item()``: a symbol, and the node that makes it."""
    recorder.mode.become_dynamic()
    value = recorder.mode.call(torch.Tensor.item, (tensor,), {})
    env = recorder.mode.env
    torch_symbols.fresh_symbols(env)
    if type(value) not in SYMBOLIC or value.node._expr in recorder.symbols:
        return value  # a constant, or read before
    node = recorder.add_node("call_method", "item", (recorder.node_of(tensor),), {})
    node.meta["val"] = value
    recorder.place(node)
    recorder.calls += 1
    recorder.symbols[value.node._expr] = node
    if type(value) is torch.SymFloat:
        recorder.mode.read_floats.add(recorder.mode.name_of(value))
    return value


def numbers(recorder: Recording, tensor: torch.Tensor) -> Any:
    """``tensor.tolist()``: lists of symbols."""
    if tensor.dim() == 0:
        return scalar(recorder, tensor)
    count = tensor.numel()
    if type(count) is not int or count > LONGEST_LIST:
        return MISSING
    parts = recorder.call(torch.Tensor.unbind, (tensor, 0), {}) if count else ()
    return [numbers(recorder, part) for part in parts] if count else _empty(tuple(tensor.shape))


def _empty(shape: tuple[int, ...]) -> list[Any]:
    return [_empty(shape[1:]) for _ in range(shape[0])]


def may_be_carried(recorder: Recording, error: Exception) -> bool:
    """Whether an operator that failed, since its sizes depend on data, goes with symbols: now there can be some."""
    mode = recorder.mode
    if mode.env is not None:
        return False
    if not (isinstance(error, DynamicOutputShapeException) and mode.shapes) and not (
        isinstance(error, DataDependentOutputException) and mode.scalars
    ):
        return False
    mode.become_dynamic()
    return True


def claim(recorder: Recording, node: torch.fx.Node, result: Any) -> None:
    """Remember from which sizes of a result the symbols can be read that its operator has made."""
    env = recorder.mode.env
    if env is None or not env.pending_fresh_unbacked_symbols:
        return
    fresh = torch_symbols.fresh_symbols(env)
    if type(result) in SYMBOLIC:
        recorder.symbols.setdefault(result.node._expr, node)
    for tensor in every(torch.Tensor, result):
        for dim, size in enumerate(tensor.shape):
            if type(size) is torch.SymInt and size.node._expr in fresh:
                recorder.sized.setdefault(size.node._expr, (tensor, dim))
    lost = {s for tensor in every(torch.Tensor, result) for n in tensor.shape for s in _symbols(n)} & fresh
    if lost - recorder.sized.keys() - recorder.symbols.keys():
        graph_break("BZ1013", f"{node.target} gives sizes that cannot be read off its result")


def _symbols(size: Any) -> Any:
    return size.node.expr.free_symbols if type(size) is torch.SymInt else ()


def note_checks(recorder: Recording, message: Any = None) -> None:
    """A node that checks, when the graph runs, each thing newly assumed of unbacked symbols."""
    env = recorder.mode.env
    if env is None or env.num_deferred_runtime_asserts == recorder.checks:
        return
    later = 0
    for condition in torch_symbols.runtime_checks(env):
        if condition in recorder.checked:
            continue
        try:
            node = sizes.of_expression(recorder, condition)
        except BreakSignal:
            later += 1  # about symbols of the operator that is being recorded: after its node
            continue
        recorder.checked.add(condition)
        if not isinstance(node, torch.fx.Node):
            continue
        text = told(recorder, message if type(message) is str else f"expected {said(recorder, condition)}")
        made = recorder.add_node("call_function", torch.ops.aten._assert_scalar.default, (node, text), {})
        made.meta["val"] = None
        recorder.place(made)
    if not later:
        recorder.checks = env.num_deferred_runtime_asserts


def told(recorder: Recording, text: str) -> str:
    """A message with the user's line."""
    here = recorder.t.frames.here()
    return f"{text} (at {here[0].origin(here[1])})" if here is not None else text


def said(recorder: Recording, condition: Any) -> str:
    """A condition as Python, and what its symbols are."""
    text = readable_text(condition)
    whence = []
    for symbol in sorted(condition.free_symbols, key=str):
        node = recorder.symbols.get(symbol)
        if symbol in recorder.sized:
            node = recorder.nodes[id(recorder.sized[symbol][0])][1]
        drawn = recorder.t.done.drawn.get(symbol)
        here = facts(node).place if node is not None else None
        here = here if drawn is None else recorder.t.done.draws[drawn][2]
        if torch_symbols.is_unbacked_symbol(symbol) and here is not None:
            whence.append(f"{symbol} is from {here[0].origin(here[1])}")
    return text + (f" ({', '.join(whence)})" if whence else "")


def undecided(graph: GraphState, error: Exception) -> BreakSignal | None:
    """The break at a decision by a number that only the data tell; None for any other error."""
    if not torch_symbols.is_undecided(error):
        return None
    condition = getattr(error, "cond", None)
    if condition is None:
        asked = "what number it is"
    elif condition.is_Symbol or not hasattr(condition, "free_symbols"):
        asked = f"what number {condition} is"
    else:
        return signal_at(graph, condition)
    return BreakSignal("BZ1020", f"the program must know while tracing: {asked}", (HINT_CHECK,))


def signal_at(graph: GraphState, condition: Any) -> BreakSignal:
    """The break at a decision by a condition."""
    asked = said(graph.recorder, condition)
    return BreakSignal("BZ1020", f"the program must know while tracing: {asked}", (HINT_CHECK,))


def check(t: Trace, torchs: Any, condition: Any, message: Any = None) -> None:
    """``torch._check(condition, message)`` and its kin: assumed from here on, and checked when the graph runs."""
    if condition is True:
        return
    text = t.call(message, ()) if message is not None else None
    if type(condition) is torch.SymBool:
        if assume(t.graph, condition, text):
            return
        condition = False
    torchs(condition, None if text is None else lambda: text)


def assume(graph: GraphState, condition: torch.SymBool, text: Any = None) -> bool:
    """Take a condition for granted, with a check in the graph; False where it is known not to hold."""
    note_checks(graph.recorder)
    holds = torch_symbols.expect_true(condition)
    note_checks(graph.recorder, text)
    return holds


def extreme(graph: GraphState, values: Any, symbolic: Any) -> Any:
    """The greatest or least of numbers of which some are known by the data only; that it bounds each needs no check."""
    found = functools.reduce(symbolic, values)
    note_checks(graph.recorder)
    for value in values:
        true = value <= found if symbolic is torch.sym_max else found <= value
        if type(true) is torch.SymBool and is_unbacked(true):
            torch_symbols.expect_true(true)
    graph.recorder.checked.update(torch_symbols.runtime_checks(graph.mode.env))
    return found


def asserted(t: Trace, value: Any, wanted: bool) -> bool:
    """Whether an ``assert`` is known to hold, or is taken to: of numbers that only the data tell."""
    if isinstance(value, torch.Tensor):
        if not t.options.capture_scalar_outputs or value.dtype.is_complex or value.numel() != 1:
            return False
        value = scalar(t.graph.recorder, value)
    if not is_unbacked(value):
        return False
    condition = value if type(value) is torch.SymBool else value != 0
    return assume(t.graph, condition if wanted else torch.sym_not(condition))


def check_size(t: Trace, number: Any, message: Any = None, *, max: Any = None) -> None:
    """``torch._check_is_size``: a number that is a size, whatever it is."""
    check(t, torch._check, number >= 0, message)
    if max is not None:
        check(t, torch._check, number <= max, message)
    if is_unbacked(number):
        torch_symbols.call_a_size(number)
