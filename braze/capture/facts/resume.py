"""Resume functions: the user's own bytecode, entered in the middle with a given state.

The new code object is a prologue followed by the user's bytecode unchanged. Jumps are relative since
CPython 3.11, so only the exception table and the line table move. The function takes one argument, a
tuple: the stack bottom to top without NULLs, then the bound locals in slot order, then (with
``carry_free``) the closure's cells, then the value that the pending operation pushes, or the exception
that it raised. Once it is read the tuple is emptied: what the frame lets go of later, its callers hold no more.

A slot of a cell gets the *cell*, stored raw, so that closures made before the break still share it.
The prologue repeats MAKE_CELL and COPY_FREE_VARS, by which ``locals()`` and ``super()`` know cells for
what they are. A stack slot where PUSH_EXC_INFO saved the previous exception holds, in the state, the
exception that is being handled there, and PUSH_EXC_INFO is done again. Its traceback begins with this frame: where
that was interpreted until now, with a stand-in, whose place the frame takes.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType

from braze import native
from braze.capture.facts import bytecode
from braze.capture.facts.bytecode import Handler, Slots

Instructions = list[tuple[str, int]]
_ARGUMENTS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


#: raises the exception on top of the stack, with the context that it has: the call does not come back
THROW: Instructions = [*(bytecode.CALL_WITH_ONE if native.native_available else ()), ("RAISE_VARARGS", 1)]
#: per code of a resume function, what each item of its state is in the user's terms
STATE_NAMES: weakref.WeakKeyDictionary[CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Resumed:
    """The code of a resume function, and how its offsets and slots relate to those of the user's code."""

    code: CodeType
    original: CodeType
    line: int
    covered: bool  # the user's code handles what the pending operation raises
    prologue: int  # bytes before the user's code
    shift: int  # slots before the user's first
    cells: tuple[int, int] | None  # where the closure's cells stand in the state, if they travel in it
    idle: frozenset[int]  # where in the state there is what no instruction reads any more


class CannotResume(Exception):
    """This code cannot be entered in the middle."""


def cannot_resume(code: CodeType) -> str:
    """Why frames of ``code`` can never be resumed; empty if they can."""
    if not bytecode.KNOWN:
        return f"Python {bytecode.VERSION} is not known to braze"
    if code.co_flags & bytecode.GENERATORS:
        return "it is a generator or coroutine"
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return "it is a class or module body"
    return ""


def resume_code(
    code: CodeType,
    offset: int,
    stack: Sequence[bool],
    locals: Sequence[bool],
    *,
    done: int | None = None,
    pushes: int = 1,
    raises: bool = False,
    carry_free: bool = False,
    fails: bool = False,
) -> Resumed:
    """Code that goes on at ``offset``; ``stack`` and ``locals`` say which slots hold a value (not NULL).

    With ``raises`` the last item of the state is an exception, raised as if by the instruction that ends
    at ``offset``, where the user's handlers see it. With ``fails`` one more item is an exception too, raised before the first
    instruction runs (where the frame goes on by raising, in place of what it was to raise), in the innermost block that the instruction
    which ends at ``done`` (``offset``, unless it jumps) has begun or not yet left.
    """
    why = cannot_resume(code)
    if why:
        raise CannotResume(f"{code.co_name}: {why}")
    slots = bytecode.slots_of(code)
    rows = bytecode.decode_exceptions(code.co_exceptiontable)
    last = bytecode.previous_instruction(code, offset if done is None or raises else done)
    raising = last if raises or (fails and bytecode.is_inside(rows, last, offset)) else offset
    shift = 1 if slots.locals == 0 else 0
    unpack = _Unpack(code, slots, shift)
    unpack.read_stack(_kinds(code, offset, raises, stack), stack)
    unpack.read_locals(locals, frozenset() if raises or fails else bytecode.idle_from(code, offset))
    if carry_free:
        unpack.read_cells()
    # what is pushed is read before slot 0, where the state lives, gets its own value
    if not raises:
        for _ in range(pushes):
            unpack.body += unpack.item()
    if raises or fails:
        if native.native_available:
            unpack.constants.append(native.throw)
            unpack.body += bytecode.calls(len(unpack.constants) - 1)
        unpack.body += unpack.item()
        handler = bytecode.handler_at(rows, raising)
        return _join(code, unpack, THROW, rows, handler, raising)
    target = bytecode.safe_start(code, offset)
    return _join(code, unpack, [("JUMP_FORWARD", target // 2)], rows, None, offset)


def _kinds(code: CodeType, offset: int, raises: bool, stack: Sequence[bool]) -> Sequence[str]:
    """What the stack's slots hold at the place where the frame goes on."""
    if not code.co_exceptiontable:
        return [bytecode.ANY] * len(stack)
    known = bytecode.stack_kinds(code)
    # below what the pending instruction pops and pushes, the stack is the same before and after it
    before = known.get(bytecode.previous_instruction(code, offset) if raises else offset, ())
    if len(before) < len(stack):
        raise CannotResume(
            f"{code.co_name}: the stack at offset {offset} has {len(before)} slots, not {len(stack)}"
        )
    return before[: len(stack)]


class _Unpack:
    """Writes the prologue: instructions and constants."""

    def __init__(self, code: CodeType, slots: Slots, shift: int) -> None:
        self.code = code
        self.slots = slots
        self.shift = shift
        self.constants = list(code.co_consts)
        self.position = 0  # next item of the state
        self.body: Instructions = []
        self.last: Instructions = []  # slot 0, where the state itself lives, is written last
        self.depth = 0
        self.cells: tuple[int, int] | None = None
        self.idle: set[int] = set()
        self.named: list[str] = []

    def user_code(self) -> bytes:
        """The user's bytecode; its slots move up where the state needs a slot of its own."""
        if not self.shift:
            return self.code.co_code
        try:
            return bytecode.shift_slots(self.code.co_code, self.shift)
        except ValueError as error:
            raise CannotResume(f"{self.code.co_name}: {error}") from error

    def entry(self) -> Instructions:
        """What the compiler puts before RESUME."""
        free = [("COPY_FREE_VARS", len(self.slots.free))] if self.slots.free else []
        cells = [("MAKE_CELL", slot + self.shift) for slot in sorted(self.slots.cells)]
        return [*free, *cells, ("RESUME", 0)]

    def constant(self, value: int) -> tuple[str, int]:
        """An instruction that pushes an int."""
        for i, have in enumerate(self.constants):
            if type(have) is int and have == value:
                return "LOAD_CONST", i
        self.constants.append(value)
        return "LOAD_CONST", len(self.constants) - 1

    def state(self) -> tuple[str, int]:
        """The instruction that pushes the state."""
        in_cell = self.shift == 0 and 0 in self.slots.cells
        return "LOAD_DEREF" if in_cell else "LOAD_FAST", 0

    def item(self, name: str = "") -> Instructions:
        """Push the next item of the state."""
        self.position += 1
        self.named.append(name or f"<value {self.position - 1} on the stack>")
        return [self.state(), self.constant(self.position - 1), ("BINARY_SUBSCR", 0)]

    def read_stack(self, kinds: Sequence[str], bound: Sequence[bool]) -> None:
        """Push the stack, bottom first."""
        for depth, (kind, is_bound) in enumerate(zip(kinds, bound, strict=True)):
            if kind == bytecode.SAVED_COPY:
                if is_bound:
                    self.item()  # there, but not read
                saved = max(i for i, other in enumerate(kinds) if other == bytecode.SAVED)
                self.body.append(("COPY", depth - saved))
            elif not is_bound:
                self.body.append(("PUSH_NULL", 0))
            elif kind == bytecode.SAVED:
                self.body += [*self.taken_over(self.item()), ("PUSH_EXC_INFO", 0), ("POP_TOP", 0)]
            elif kind == bytecode.LASTI:
                self.item()  # there, but not read
                self.body.append(self.constant(0))
            else:
                self.body += self.item()
        self.depth = len(bound)

    def taken_over(self, pushed: Instructions) -> Instructions:
        """Push an exception that is handled, in whose traceback the frame then stands itself."""
        if not native.native_available:
            return pushed
        self.constants.append(native.taken_over)
        return [*bytecode.calls(len(self.constants) - 1), *pushed, *bytecode.CALL_WITH_ONE]

    def read_locals(self, bound: Sequence[bool], idle: frozenset[str]) -> None:
        """Store locals and own cells into their slots; slot 0 later."""
        for slot in range(len(self.slots.names) - len(self.slots.free)):
            own = slot + self.shift
            if slot < len(bound) and bound[slot]:
                if self.slots.names[slot] in idle:
                    self.idle.add(self.position)
                write: Instructions = [*self.item(self.slots.names[slot]), ("STORE_FAST", own)]
            elif own == 0:
                write = [("DELETE_DEREF" if slot in self.slots.cells else "DELETE_FAST", 0)]
            else:
                write = []
            if own == 0:
                self.last = write
            else:
                self.body += write
        if self.shift:
            self.last = [("DELETE_FAST", 0)]

    def let_go(self) -> None:
        """Empty the state, once all of it has been read, and give slot 0 its own value."""
        self.body += self.last[:-1]
        if native.native_available and self.position:
            self.constants.append(native.emptied)
            self.body += bytecode.calls(len(self.constants) - 1)
            self.body += [self.state(), *bytecode.CALL_WITH_ONE, ("POP_TOP", 0)]
        self.body += self.last[-1:]

    def read_cells(self) -> None:
        """Put the closure's cells in place of those that the function object brought."""
        start = self.position
        for slot in self.slots.free:
            self.body += [*self.item(self.slots.names[slot]), ("STORE_FAST", slot + self.shift)]
        self.cells = (start, self.position)


def _join(
    code: CodeType,
    unpack: _Unpack,
    tail: Instructions,
    rows: Sequence[Handler],
    row: Handler | None,
    raising: int,
) -> Resumed:
    """Put prologue and user code together. ``row``: the handler that sees what the prologue's tail raises."""
    unpack.let_go()
    head = bytecode.assemble([*unpack.entry(), *unpack.body])
    end = bytecode.assemble(tail)
    prologue = head + end
    place, first = bytecode.place_at(code, raising), code.co_firstlineno
    lines = bytecode.locations(len(head) // 2, None, first)
    if tail is THROW and place is not None:
        lines += bytecode.locations(len(end) // 2, place, first)
        # the user's table counts from the first line: one more instruction, never run, leads back there
        prologue += bytecode.assemble([("NOP", 0)])
        lines += bytecode.locations(1, bytecode.Place(first, first, -1, -1), place.line)
    else:
        lines += bytecode.locations(len(end) // 2, None, first)
    size = len(prologue)
    moved = [Handler(r.start + size, r.end + size, r.target + size, r.depth, r.lasti) for r in rows]
    if row is not None:
        start = len(head)
        moved.insert(0, Handler(start, start + len(end), row.target + size, row.depth, row.lasti))
    made = code.replace(
        co_code=prologue + unpack.user_code(),
        co_consts=tuple(unpack.constants),
        co_argcount=1,
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_nlocals=code.co_nlocals + unpack.shift,
        co_varnames=(".state",) * unpack.shift + code.co_varnames,
        co_flags=code.co_flags & ~_ARGUMENTS,
        co_stacksize=max(code.co_stacksize, unpack.depth + 3) + 4,
        co_linetable=lines + code.co_linetable,
        co_exceptiontable=bytecode.encode_exceptions(moved),
    )
    line = place.line if place else first
    STATE_NAMES[made] = tuple(unpack.named)
    return Resumed(
        made, code, line, row is not None, size, unpack.shift, unpack.cells, frozenset(unpack.idle)
    )
