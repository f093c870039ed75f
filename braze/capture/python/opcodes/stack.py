"""Constants, locals, cells, and moves on the stack."""

from __future__ import annotations

import types
from typing import Any

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.frame import Frame
from braze.capture.facts.records import Step
from braze.capture.facts.values import MISSING, NULL
from braze.capture.outside import cells
from braze.capture.outside.held import let_go, popped, replaced
from braze.capture.python.opcodes.table import opcode, rows
from braze.capture.state.trace import Trace


@opcode("NOP", "RESUME", "CACHE", "MAKE_INSTRUMENTED")
def nop(t: Trace, f: Frame, arg: int) -> None:
    """Nothing."""


rows(
    {
        "PUSH_NULL": lambda t, f, arg: f.stack.append(NULL),
        "LOAD_CONST": lambda t, f, arg: f.stack.append(f.code.co_consts[arg]),
        "COPY": lambda t, f, arg: f.stack.append(f.stack[-arg]),
        "LOAD_CLOSURE": lambda t, f, arg: f.stack.append(f.locals[arg]),
        "LOAD_DEREF": lambda t, f, arg: f.stack.append(filled(t, f, arg)),
    }
)


@opcode("POP_TOP")
def pop_top(t: Trace, f: Frame, arg: int) -> None:
    popped(t, f)
    del f.stack[-1]


@opcode("END_FOR", since=(3, 12), until=(3, 12))
def end_for(t: Trace, f: Frame, arg: int) -> None:
    del f.stack[-2:]


@opcode("END_FOR", since=(3, 13))
def end_for_one(t: Trace, f: Frame, arg: int) -> None:
    del f.stack[-1]


@opcode("SWAP")
def swap(t: Trace, f: Frame, arg: int) -> None:
    stack = f.stack
    stack[-1], stack[-arg] = stack[-arg], stack[-1]


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(t: Trace, f: Frame, arg: int) -> None:
    value = f.locals[arg]
    if value is NULL:
        unbound(f, arg)
    f.stack.append(value)


def unbound(f: Frame, arg: int) -> None:
    """Raise as CPython does at an unbound local."""
    name = f.decoded.slots[arg]
    message = f"cannot access local variable '{name}' where it is not associated with a value"
    raise UnboundLocalError(message)


@opcode("STORE_FAST")
def store_fast(t: Trace, f: Frame, arg: int) -> None:
    let_go(t, f, arg)
    f.locals[arg] = f.stack.pop()


@opcode("DELETE_FAST")
def delete_fast(t: Trace, f: Frame, arg: int) -> None:
    if f.locals[arg] is NULL:
        unbound(f, arg)
    let_go(t, f, arg)
    f.locals[arg] = NULL


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(t: Trace, f: Frame, arg: int) -> None:
    f.stack.append(f.locals[arg])
    f.locals[arg] = NULL


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(t: Trace, f: Frame, arg: int) -> None:
    load_fast(t, f, arg >> 4)
    load_fast(t, f, arg & 15)


@opcode("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(t: Trace, f: Frame, arg: int) -> None:
    let_go(t, f, arg >> 4)
    f.locals[arg >> 4] = f.stack.pop()
    load_fast(t, f, arg & 15)


@opcode("STORE_FAST_STORE_FAST")
def store_fast_store_fast(t: Trace, f: Frame, arg: int) -> None:
    let_go(t, f, arg >> 4)
    let_go(t, f, arg & 15)
    f.locals[arg >> 4] = f.stack.pop()
    f.locals[arg & 15] = f.stack.pop()


# -- cells


@opcode("MAKE_CELL")
def make_cell(t: Trace, f: Frame, arg: int) -> None:
    value = f.locals[arg]
    cell = types.CellType() if value is NULL else types.CellType(value)
    f.locals[arg] = t.done.claim(cell)


@opcode("COPY_FREE_VARS")
def copy_free_vars(t: Trace, f: Frame, arg: int) -> None:
    closure = f.function.__closure__ or ()
    first = len(f.locals) - arg
    f.locals[first:] = closure
    resumed = getattr(f.function, "__braze_resumed__", None)
    if t.done.is_ours(f.function) or (resumed is not None and resumed.cells is not None):
        return  # those of a resumed frame come in its state: the next call may be of another closure
    root = f is t.frames.stack[0]
    for index, cell in enumerate(closure):
        if id(cell) not in t.outside.cells and not t.done.is_ours(cell):
            if root:
                node = t.outside.tree.root(Step.CELL, index)
            else:
                node = t.outside.tree.constant(f.function).child(Step.CLOSURE, index)
            t.outside.cells[id(cell)] = (cell, node)


def filled(t: Trace, f: Frame, arg: int) -> Any:
    """What the cell of a variable holds; the error of Python's where it is empty."""
    value = cells.contents(t, f.locals[arg])
    if value is not MISSING:
        return value
    name, cell = f.decoded.slots[arg], f.locals[arg]
    if cells.comes_from_outside(t.outside, cell) and id(cell) not in t.done.cells_written:
        graph_break("BZ1014", f"the variable {name!r} of an outer function is read, which is not set")
    if arg < len(f.locals) - len(f.code.co_freevars):
        unbound(f, arg)
    raise NameError(
        f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope",
        name=name,
    )


@opcode("STORE_DEREF")
def store_deref(t: Trace, f: Frame, arg: int) -> None:
    replaced(t, cells.peek(t.done, f.locals[arg]), f.locals[arg])
    cells.write(t, f.locals[arg], f.stack.pop())


@opcode("DELETE_DEREF")
def delete_deref(t: Trace, f: Frame, arg: int) -> None:
    filled(t, f, arg)
    cells.write(t, f.locals[arg], MISSING)
