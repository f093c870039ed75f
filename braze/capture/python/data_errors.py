"""Errors that depend on data: ``if mask.any(): raise ...``. The trace takes for granted that nothing is raised.

The graph checks it; where the check fails, Python runs the call anew, and the program raises its error in its own lines.
That needs a graph that has changed nothing by then: with any other, the graph ends at the ``if``.
"""

from __future__ import annotations

import opcode
import sys
from typing import Any

import torch
import torch.fx

from braze.capture.facts.breaks import DECIDED_BY_DATA, HINT_DATA, BreakSignal, Retry
from braze.capture.facts.frame import Decoded, Frame
from braze.capture.facts.purity import can_run_again
from braze.capture.facts.values import MISSING
from braze.capture.graph import constant_evaluation, unbacked
from braze.capture.python.tensors import require_own
from braze.capture.python.unwinding import resumable_step, trail_of
from braze.capture.state.ledger import Ledger
from braze.capture.state.trace import Trace
from braze.graph.private import torch_symbols
from braze.graph.private.torch_symbols import SYMBOLIC

#: instructions that make the text of a message, at most
LONGEST = 80
_LEAVING = ("JUMP", "RETURN", "YIELD", "FOR_ITER", "SEND", "STORE_", "DELETE_", "RERAISE", "BEFORE_WITH")


def raises(decoded: Decoded, at: int) -> bool:
    """Whether what begins at an instruction only makes an exception and raises it."""
    for _ in range(LONGEST):
        if not 0 <= at < len(decoded.ops):
            return False
        _, _, following, op = decoded.instruction(at)
        name = opcode.opname[op]
        if name == "RAISE_VARARGS":
            return True
        if any(part in name for part in _LEAVING):
            return False
        at = following
    return False


def taken_for_granted(t: Trace, f: Frame, value: Any, target: int, jumps_if: bool) -> bool | None:
    """Which way a jump goes of which the other way ends in an exception; None where it is to be decided as any other."""
    if issubclass(type(value), torch.Tensor):
        require_own(t.outside, "__bool__")
        holds = constant_evaluation.read(t.graph.recorder, "__bool__", value)
        if holds is not MISSING:
            return bool(holds)
    elif type(value) not in SYMBOLIC:
        return None
    if raises(f.decoded, f.ip):
        wanted = jumps_if
    elif raises(f.decoded, target):
        wanted = not jumps_if
    else:
        return None
    if unbacked.asserted(t, value, wanted) or (isinstance(value, torch.Tensor) and granted(t, value, wanted)):
        return wanted
    return None


def granted(t: Trace, value: torch.Tensor, wanted: bool) -> bool:
    """Let the graph check what a tensor of one element holds; False where that cannot be."""
    alone = all(type(n) is int for n in value.shape) and value.numel() == 1
    if not alone or value.device.type != "cpu" or t.graph.recorder.outer is not None:
        return False
    position = resumable_step(t.frames)
    signal = BreakSignal(*DECIDED_BY_DATA, (HINT_DATA,))
    signal.position, signal.trail = position, trail_of(t.frames)
    if wanted:
        good = t.graph.recorder.call(torch.ne, (value, 0), {}) if value.dtype is not torch.bool else value
    else:
        good = t.graph.recorder.call(torch.logical_not, (value,), {})
    t.graph.recorder.note(torch.ops.aten._assert_async.default, (good,), {}, None)
    t.done.granted.append(signal)
    return True


def of_sizes(t: Trace, value: torch.SymBool) -> bool:
    """The truth of a condition on sizes that only the data tell: they are taken for neither 0 nor 1, which the graph checks.

    A number that was drawn is no size: each that may be drawn is as likely.
    """
    if t.graph.recorder.outer is not None or not t.done.drawn.keys().isdisjoint(value.node.expr.free_symbols):
        return bool(value)
    with torch_symbols.size_oblivious(t.graph.mode.env):
        holds = bool(value)  # raises where that does not decide it
    signal = unbacked.signal_at(t.graph, value.node.expr)
    signal.position, signal.trail = resumable_step(t.frames), trail_of(t.frames)
    if unbacked.assume(t.graph, value if holds else torch.sym_not(value)):
        t.done.granted.append(signal)
        return holds
    return not holds


def verify(done: Ledger, graph: torch.fx.Graph) -> None:
    """Trace again, to before the first thing taken for granted, where the graph could not be run again."""
    if done.granted and not can_run_again(graph):
        done.frames.break_at = done.granted[0]
        raise Retry(max(1, done.granted[0].position))


def left_to_a_jump(f: Frame, value: Any) -> bool:
    """Whether the truth of a value that only the data tell is left to the jump that follows (3.13 computes it one instruction earlier)."""
    if unbacked.is_unbacked(value):
        return True
    followed = sys.version_info >= (3, 13) and "POP_JUMP_IF" in opcode.opname[f.decoded.instruction(f.ip)[3]]
    return followed and issubclass(type(value), torch.Tensor)
