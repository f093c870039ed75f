"""Stop functions at every instruction, go on in resume functions, and compare. Runs without pytest:

    PYTHONPATH=. python tests/capture/resume_check.py

The state is read from the live frame in an opcode trace; the resumed run happens inside the trace
callback, after which the original run is abandoned.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import resume_cases
from frames import NULL, read_slots, stack_depth

from braze.capture.facts import bytecode
from braze.capture.facts.resume import resume_code


class Injected(ValueError):
    """Raised in place of an instruction."""


class Abandoned(BaseException):
    """Ends the original run."""


Action = Callable[[FrameType], Any]


def run_until(function: Any, args: tuple[Any, ...], step: int, action: Action) -> tuple[bool, Any]:
    """Run, and call ``action(frame)`` before the ``step``-th instruction; (reached, action's value or result).

    If the action gives an :class:`Injected`, it is raised there and the run goes on.
    """
    stopper = Stopper(function.__code__, step, action)
    watch = watch_by_settrace if sys.version_info < (3, 12) else watch_by_monitoring
    result = watch(stopper, lambda: outcome(function, args))
    if not stopper.reached or isinstance(stopper.value, Injected):
        return stopper.reached, result
    return True, stopper.value


class Stopper:
    """Counts the instructions of the first frame of a code object, and acts at one."""

    def __init__(self, code: Any, step: int, action: Action) -> None:
        self.code = code
        self.step = step
        self.action = action
        self.frame: FrameType | None = None
        self.reached = False
        self.value: Any = None

    def instruction(self, frame: FrameType, stop: Callable[[], None]) -> None:
        """Called before each instruction; ``stop`` ends the watching."""
        if self.frame is None:
            self.frame = frame
        if frame is not self.frame or self.reached:
            return
        if self.step > 0:
            self.step -= 1
            return
        self.reached = True
        stop()
        self.value = self.action(frame)
        raise self.value if isinstance(self.value, Injected) else Abandoned


def watch_by_settrace(stopper: Stopper, run: Callable[[], Any]) -> Any:
    """Opcode events of sys.settrace."""

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not stopper.code or stopper.frame not in (None, frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            stopper.instruction(frame, stop)
        return trace

    def stop() -> None:
        sys.settrace(None)
        assert stopper.frame is not None
        stopper.frame.f_trace = None

    sys.settrace(trace)
    try:
        return run()
    finally:
        sys.settrace(None)


def watch_by_monitoring(stopper: Stopper, run: Callable[[], Any]) -> Any:
    """Instruction events of sys.monitoring."""
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    tool, event = monitoring.DEBUGGER_ID, monitoring.events.INSTRUCTION

    def stop() -> None:
        monitoring.set_local_events(tool, stopper.code, 0)

    def at(code: Any, offset: int) -> None:
        stopper.instruction(sys._getframe(1), stop)

    monitoring.use_tool_id(tool, "resume check")
    monitoring.register_callback(tool, event, at)
    monitoring.set_local_events(tool, stopper.code, event)
    try:
        return run()
    finally:
        monitoring.set_local_events(tool, stopper.code, 0)
        monitoring.free_tool_id(tool)


def outcome(function: Any, args: tuple[Any, ...]) -> Any:
    """The result or the exception of a call, comparable."""
    try:
        # as text at once: the abandoned run may still change what the result is made of
        return "returned", repr(function(*args))
    except Abandoned:
        return "abandoned", None
    except Exception as error:
        context = type(error.__context__).__name__
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.name == function.__name__]
        return "raised", type(error).__name__, str(error), context, lines


def state_of(frame: FrameType) -> tuple[list[Any], list[Any], list[Any]]:
    """(stack, locals and cells, free cells) of a stopped frame."""
    code = frame.f_code
    slots = bytecode.slots_of(code)
    kinds = bytecode.stack_kinds(code)[frame.f_lasti]
    if sys.version_info[:2] == (3, 11):
        assert stack_depth(frame, len(slots.names)) == len(kinds), (
            code.co_name,
            frame.f_lasti,
            kinds,
            stack_depth(frame, len(slots.names)),
        )
    everything = read_slots(frame, 0, len(slots.names) + len(kinds))
    stack = everything[len(slots.names) :]
    handled: Any = sys.exc_info()[1]
    for i in reversed(range(len(stack))):
        if kinds[i] == bytecode.SAVED:
            stack[i], handled = handled, stack[i]
    own = len(slots.names) - len(slots.free)
    return stack, everything[:own], everything[own : len(slots.names)]


def go_on(frame: FrameType, function: Any, carry: bool, error: BaseException | None = None) -> Any:
    """Resume the stopped frame at its instruction, or raise in place of that instruction."""
    code = frame.f_code
    stack, own, free = state_of(frame)
    offset = instruction_start(code, frame.f_lasti)
    bound, set_ = [v is not NULL for v in stack], [v is not NULL for v in own]
    state = [v for v in (*stack, *own) if v is not NULL] + (free if carry else [])
    if error is None:
        made = resume_code(code, offset, bound, set_, pushes=0, carry_free=carry)
    else:
        starts = bytecode.instruction_starts(code)
        after = starts[starts.index(offset) + 1] if offset != starts[-1] else len(code.co_code)
        made = resume_code(code, after, bound, set_, raises=True, carry_free=carry)
        error.__context__ = sys.exc_info()[1]  # as raised while the frame handles that
        state.append(error)
    closure = function.__closure__
    if carry and closure:  # any cells do: those in the state replace them
        closure = tuple(type(c)("wrong") for c in closure)
    resumed = FunctionType(made.code, function.__globals__, function.__name__, None, closure)
    # a handled exception of this callback must not become the context of the resumed code's
    return outcome(resumed, (tuple(state),))


def instruction_start(code: Any, offset: int) -> int:
    """The start of the instruction at an offset, with its EXTENDED_ARGs."""
    return max(s for s in bytecode.instruction_starts(code) if s <= offset)


def check_case(index: int) -> int:
    """Check one case at every step; the number of comparisons."""
    function, args = resume_cases.fresh()[index]
    expected = outcome(function, args)
    compared = step = 0
    while True:
        for carry in (False, True):
            function, args = resume_cases.fresh()[index]
            reached, found = run_until(function, args, step, lambda f: go_on(f, function, carry))
            if not reached:
                return compared
            assert found == expected, (function.__qualname__, args, step, found, expected)
            compared += 1
        compared += check_raising(index, step)
        step += 1


def check_raising(index: int, step: int) -> int:
    """An exception in place of an instruction takes the same way in the resumed frame."""
    function, args = resume_cases.fresh()[index]
    at: list[int] = []

    def inject(frame: FrameType) -> Any:
        at.append(frame.f_lasti)
        return Injected("injected")

    _, expected = run_until(function, args, step, inject)
    if bytecode.stack_kinds(function.__code__) and at and at[0] < bytecode.first_offset(function.__code__):
        return 0
    function, args = resume_cases.fresh()[index]
    _, found = run_until(function, args, step, lambda f: go_on(f, function, False, Injected("injected")))
    assert found == expected, (function.__qualname__, args, "raise", step, at, found, expected)
    return 1


def main() -> int:
    failed = total = 0
    for index, (function, args) in enumerate(resume_cases.CASES):
        try:
            total += check_case(index)
        except AssertionError as error:
            failed += 1
            print(f"FAILED {function.__qualname__}{args}: {error}", file=sys.stderr)
    print(f"Python {sys.version.split()[0]}: {total} comparisons, {failed} cases failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
