"""CPython's code objects, 3.11 to 3.13: instructions, exception tables, line tables, stack contents.

All offsets are in bytes. Nothing here imports torch, so that it is tested on every interpreter. What
differs between versions is read from ``dis`` and ``opcode``, or stands in :data:`VERSIONS`.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import opcode
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

from braze.support.caches import remembered

#: interpreters whose bytecode this module knows; per version, what packs two slots into one argument
VERSIONS: dict[tuple[int, int], frozenset[str]] = {
    (3, 11): frozenset(),
    (3, 12): frozenset(),
    (3, 13): frozenset({"LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"}),
}
VERSION = sys.version_info[:2]
KNOWN = VERSION in VERSIONS

#: set in the flags of code whose frames live on between their runs
GENERATORS = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)

#: instructions after which control does not go on to the next one
ENDS = frozenset(
    [
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "INTERPRETER_EXIT",
    ]
)


def opcodes(names: str) -> frozenset[int]:
    """Of these instructions those that this Python has in its code; its compiler may know others."""
    return frozenset(dis.opmap[name] for name in names.split() if dis.opmap.get(name, 256) < 256)


EXTENDED_ARG = dis.opmap["EXTENDED_ARG"]
NOP = dis.opmap["NOP"]


# -- instructions


def cache_units(name: str) -> int:
    """Inline cache entries after an instruction."""
    table = opcode._inline_cache_entries  # type: ignore[attr-defined]
    return table.get(name, 0) if isinstance(table, dict) else table[dis.opmap[name]]


def assemble(instructions: Iterable[tuple[str, int]]) -> bytes:
    """Instructions (name, argument) as bytes, with extended arguments and empty caches."""
    out = bytearray()
    for name, argument in instructions:
        for shift in (24, 16, 8):
            if argument >> shift:
                out += bytes((EXTENDED_ARG, argument >> shift & 0xFF))
        out += bytes((dis.opmap[name], argument & 0xFF)) + b"\0\0" * cache_units(name)
    return bytes(out)


#: calls what :func:`calls` has pushed, with one argument
CALL_WITH_ONE = [("PRECALL", 1), ("CALL", 1)] if VERSION < (3, 12) else [("CALL", 1)]


def calls(constant: int) -> list[tuple[str, int]]:
    """Instructions that push a constant, by its index, to be called."""
    pushed = [("PUSH_NULL", 0), ("LOAD_CONST", constant)]
    return pushed if VERSION < (3, 13) else pushed[::-1]


def instruction_starts(code: CodeType) -> list[int]:
    """Offsets of instructions in order; one with extended arguments starts at the first of them."""
    raw, starts, offset = code.co_code, [], 0
    while offset < len(raw):
        starts.append(offset)
        while raw[offset] == EXTENDED_ARG:
            offset += 2
        offset += 2 + 2 * cache_units(dis.opname[raw[offset]])
    return starts


def first_offset(code: CodeType) -> int:
    """The offset of the first instruction that is the user's own: after RESUME."""
    raw, resume = code.co_code, dis.opmap["RESUME"]
    return next(s for s in instruction_starts(code) if raw[s] == resume) + 2


def previous_instruction(code: CodeType, offset: int) -> int:
    """Offset of the instruction that ends where ``offset`` starts: the instruction proper, past its EXTENDED_ARGs."""
    starts = instruction_starts(code)
    index = starts.index(offset) if offset in starts else len(starts)
    if index == 0:
        raise ValueError(f"no instruction before offset {offset} of {code.co_name}")
    at = starts[index - 1]
    while code.co_code[at] == EXTENDED_ARG:
        at += 2
    return at


def end_of(code: CodeType, offset: int, following: int) -> int:
    """Where the instruction at ``offset`` ends, if there are only NOPs from there to ``following``; else ``following``."""
    while code.co_code[offset] == EXTENDED_ARG:
        offset += 2
    end = offset + 2 + 2 * cache_units(dis.opname[code.co_code[offset]])
    return end if all(op == NOP for op in code.co_code[end:following:2]) and end <= following else following


def safe_start(code: CodeType, offset: int) -> int:
    """``offset``, or that of the KW_NAMES or PRECALL that a call at ``offset`` depends on and must run again."""
    starts, raw = instruction_starts(code), code.co_code
    index = starts.index(offset)
    while index and dis.opname[raw[starts[index - 1]]] in ("KW_NAMES", "PRECALL"):
        index -= 1
    return starts[index]


# -- slots


@dataclass(frozen=True)
class Slots:
    """The layout of a frame's localsplus."""

    names: tuple[str, ...]
    locals: int
    cells: frozenset[int]  # slots of the function's own cells, arguments among them
    free: tuple[int, ...]  # slots of the closure's cells


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of localsplus: locals, then cells that are not arguments, then free variables."""
    own = [name for name in code.co_cellvars if name not in code.co_varnames]
    return (*code.co_varnames, *own, *code.co_freevars)


def slots_of(code: CodeType) -> Slots:
    """Where locals, cells and free variables stand."""
    names = slot_names(code)
    cells = frozenset(names.index(name) for name in code.co_cellvars)
    first_free = len(names) - len(code.co_freevars)
    return Slots(names, len(code.co_varnames), cells, tuple(range(first_free, len(names))))


def shift_slots(raw: bytes, by: int) -> bytes:
    """Bytecode whose every slot number is ``by`` higher; ValueError where one no longer fits its bytes."""
    out = bytearray(raw)
    packed = VERSIONS[VERSION]  # type: ignore[index]
    touching = {dis.opname[op] for op in (*dis.haslocal, *dis.hasfree)} | packed
    offset, prefix = 0, 0
    while offset < len(out):
        op, argument = out[offset], out[offset + 1]
        name = dis.opname[op]
        if op != EXTENDED_ARG and name in touching:
            if name in packed:
                low, high = (argument & 15) + by, (argument >> 4) + by
                if prefix or max(low, high) > 15:
                    raise ValueError("a slot number outgrows its instruction")
                out[offset + 1] = high << 4 | low
            elif argument + by > 255:
                raise ValueError("a slot number outgrows its instruction")
            else:
                out[offset + 1] = argument + by
        prefix = op == EXTENDED_ARG
        offset += 2 + 2 * (0 if op == EXTENDED_ARG else cache_units(name))
    return bytes(out)


# -- exception table


@dataclass(frozen=True)
class Handler:
    """A row of the exception table: [start, end) goes to ``target`` with the stack cut to ``depth``."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def decode_exceptions(table: bytes) -> tuple[Handler, ...]:
    """The rows of ``co_exceptiontable``."""
    rows, stream = [], iter(table)
    for first in stream:
        start = _varint(first & 0x7F, stream)
        size, target, packed = (_varint(next(stream), stream) for _ in range(3))
        rows.append(Handler(start * 2, (start + size) * 2, target * 2, packed >> 1, bool(packed & 1)))
    return tuple(rows)


def _varint(first: int, stream: Iterator[int]) -> int:
    value = first & 63
    while first & 64:
        first = next(stream)
        value = value << 6 | first & 63
    return value


def encode_exceptions(rows: Iterable[Handler]) -> bytes:
    """``co_exceptiontable`` of rows in order of their starts."""
    out = bytearray()
    for row in rows:
        packed = row.depth << 1 | row.lasti
        values = (row.start // 2, (row.end - row.start) // 2, row.target // 2, packed)
        for i, value in enumerate(values):
            digits = [value & 63]
            while value := value >> 6:
                digits.append(value & 63)
            encoded = [d | 64 for d in digits[:0:-1]] + [digits[0]]
            if i == 0:
                encoded[0] |= 128
            out += bytes(encoded)
    return bytes(out)


def handler_at(rows: Iterable[Handler], offset: int) -> Handler | None:
    """The row that covers an instruction."""
    return next((row for row in rows if row.start <= offset < row.end), None)


def is_inside(rows: Sequence[Handler], offset: int, other: int) -> bool:
    """Whether an instruction stands in all blocks that another stands in, and in more of them."""
    mine, others = _blocks(rows, offset), _blocks(rows, other)
    return len(mine) > len(others) and mine[len(mine) - len(others) :] == others


def _blocks(rows: Sequence[Handler], offset: int) -> list[int]:
    """The handlers that what an instruction raises comes to, as each raises it again."""
    targets: list[int] = []
    row = handler_at(rows, offset)
    while row is not None and row.target not in targets:
        targets.append(row.target)
        row = handler_at(rows, row.target)
    return targets


# -- line table


@dataclass(frozen=True)
class Place:
    """A source position of an instruction; columns are -1 where unknown."""

    line: int
    end_line: int
    column: int
    end_column: int


def place_at(code: CodeType, offset: int) -> Place | None:
    """The source position of the instruction at an offset."""
    for i, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        if i == offset // 2:
            if line is None:
                return None
            columns = (-1, -1) if column is None or end_column is None else (column, end_column)
            return Place(line, end_line or line, *columns)
    return None


def locations(units: int, place: Place | None, previous_line: int) -> bytes:
    """Line table entries that give ``units`` code units one place (or none)."""
    out = bytearray()
    while units:
        length = min(units, 8)
        units -= length
        if place is None:
            out.append(0x80 | 15 << 3 | length - 1)
            continue
        delta = place.line - previous_line
        previous_line = place.line
        full = place.column >= 0 and place.end_column >= 0 and place.end_line >= place.line
        out.append(0x80 | (14 if full else 13) << 3 | length - 1)
        out += _line_varint(-delta << 1 | 1 if delta < 0 else delta << 1)
        if full:
            for value in (place.end_line - place.line, place.column + 1, place.end_column + 1):
                out += _line_varint(value)
    return bytes(out)


def _line_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 64:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)
    return bytes(out)


# -- what is on the stack

#: what a stack slot holds: any value, the previous exception saved by PUSH_EXC_INFO, a copy of such a slot, an
#: instruction number
ANY, SAVED, SAVED_COPY, LASTI = "any", "saved", "saved copy", "lasti"


@remembered(256)
def stack_kinds(code: CodeType) -> dict[int, tuple[str, ...]]:
    """Per reachable instruction, the kinds of the stack's slots before it runs, bottom first."""
    instructions, ways = _flow(code)
    found: dict[int, tuple[str, ...]] = {}
    todo: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    while todo:
        offset, stack = todo.pop()
        if offset in found:
            continue
        found[offset] = stack
        for target, how in ways(offset):
            if isinstance(how, Handler):
                after = (*stack[: how.depth], *([LASTI] if how.lasti else []), ANY)
            else:
                after = _after(stack, instructions[offset], how)
            todo.append((target, after))
    return found


#: of an offset: where control may go on, each with the row of the handler that it goes to, else whether it jumps there
Ways = Callable[[int], Iterator[tuple[int, Handler | bool]]]


def _flow(code: CodeType) -> tuple[dict[int, dis.Instruction], Ways]:
    """The instructions by their offsets, and where control goes from each."""
    instructions = {i.offset: i for i in dis.get_instructions(code)}
    following = dict(itertools.pairwise(sorted(instructions)))
    rows, jumps = decode_exceptions(code.co_exceptiontable), {*dis.hasjrel, *dis.hasjabs}

    def ways(offset: int) -> Iterator[tuple[int, Handler | bool]]:
        instruction, row = instructions[offset], handler_at(rows, offset)
        if row is not None:
            yield row.target, row
        if instruction.opcode in jumps:
            yield int(instruction.argval), True
        if instruction.opname not in ENDS and offset in following:
            yield following[offset], False

    return instructions, ways


def _after(stack: tuple[str, ...], instruction: dis.Instruction, jump: bool) -> tuple[str, ...]:
    """The stack after an instruction, taken as a jump or not."""
    name, op, argument = instruction.opname, instruction.opcode, instruction.arg
    if name == "SWAP":
        assert argument is not None
        items = list(stack)
        items[-1], items[-argument] = items[-argument], items[-1]
        return tuple(items)
    if name == "COPY":
        assert argument is not None
        return (*stack, SAVED_COPY if stack[-argument] == SAVED else ANY)
    if name == "PUSH_EXC_INFO":
        return (*stack[:-1], SAVED, ANY)
    if name == "POP_EXCEPT" and stack[-1] != SAVED and SAVED in stack:
        # it pops a copy: the saved exception lower down is no longer the one to go back to
        last = max(i for i, kind in enumerate(stack) if kind == SAVED)
        return (*stack[:last], ANY, *stack[last + 1 : -1])
    if name == "RETURN_GENERATOR":
        return (*stack, ANY)  # the resumed generator finds the value sent
    if name == "PRECALL":  # 3.11: dis counts the arguments as popped here, but CALL pops them
        return stack
    if name == "CALL" and "PRECALL" in dis.opmap:
        assert argument is not None
        return (*stack[: -argument - 2], ANY)
    effect = dis.stack_effect(op, argument if op >= dis.HAVE_ARGUMENT else None, jump=jump)
    if effect >= 0:
        return (*stack, *[ANY] * effect)
    return stack[:effect]


# -- which locals are still wanted

#: names through which a frame's locals may be looked at from outside the instructions
_LOOKS_AT_FRAMES = frozenset(
    ("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "breakpoint")
)


@remembered(1024)
def wanted_from(code: CodeType, offset: int) -> frozenset[str]:
    """The locals that some instruction may read or delete, from ``offset`` on by any way; all where a frame may be looked at."""
    if not _LOOKS_AT_FRAMES.isdisjoint(code.co_names):
        return frozenset(code.co_varnames)
    wanted: set[str] = set()
    for instruction in _from(code, offset):
        name, value = instruction.opname, instruction.argval
        if "FAST" in name and name not in ("STORE_FAST", "STORE_FAST_STORE_FAST"):
            wanted.update(value if isinstance(value, tuple) else (value,))
    return frozenset(wanted)


@remembered(1024)
def idle_from(code: CodeType, offset: int) -> frozenset[str]:
    """The locals of which no instruction from ``offset`` on reads or deletes what they are bound to now; none where a frame may be looked at."""
    if not _LOOKS_AT_FRAMES.isdisjoint(code.co_names):
        return frozenset()
    wanted = wanted_from(code, offset)
    bound_anew = {name for instruction in _from(code, offset) for name in _stored(instruction)}
    again = {n for n in wanted & bound_anew if not any(_reads(i, n) for i in _from(code, offset, n))}
    return (frozenset(code.co_varnames) - wanted | again) - frozenset(code.co_cellvars)


def _reads(instruction: dis.Instruction, name: str) -> bool:
    """Whether an instruction reads or deletes a local."""
    if "FAST" not in instruction.opname:
        return False
    value = instruction.argval
    names = list(value) if isinstance(value, tuple) else [value]
    for stored in _stored(instruction):
        names.remove(stored)
    return name in names


def _from(code: CodeType, offset: int, until: str | None = None) -> list[dis.Instruction]:
    """The instructions that may run from ``offset`` on, by any way; ``until``: a local to which nothing has been stored on the way."""
    instructions, ways = _flow(code)
    seen: set[int] = set()
    todo = [offset]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        stored = until is not None and until in _stored(instructions[at])
        todo += [target for target, how in ways(at) if not stored or isinstance(how, Handler)]
    return [instructions[at] for at in sorted(seen)]


def _stored(instruction: dis.Instruction) -> tuple[str, ...]:
    """The locals that an instruction binds."""
    name, value = instruction.opname, instruction.argval
    if name == "STORE_FAST_LOAD_FAST":
        return (value[0],)
    if name in ("STORE_FAST", "STORE_FAST_STORE_FAST"):
        return value if isinstance(value, tuple) else (value,)
    return ()


# -- which locals are written in place

RETAIN, SHARES = "retain_grad", "set_"
#: what writes to an operand, and how far that lies from the top of the stack
_WRITES = {"STORE_SUBSCR": 2, "STORE_SLICE": 3}


def is_in_place(name: object) -> bool:
    """Whether a method of tensors is one that writes or turns them, by its name."""
    return isinstance(name, str) and name.endswith("_") and not name.endswith("__")


@remembered(1024)
def written_from(code: CodeType, offset: int) -> frozenset[str]:
    """The locals whose object, bound now, instructions from ``offset`` on write in place, or parts of it, as far as they name it.

    ``x.add_(1)``, ``x[0].t_()``, ``x += y``, ``x[i] = y``, ``x.data = y``.
    """
    return _locals_at(code, offset, _writes)


@remembered(1024)
def moved_from(code: CodeType, offset: int) -> frozenset[str]:
    """The locals whose object, bound now, instructions from ``offset`` on give other memory: ``x.data = y``."""
    return _locals_at(code, offset, lambda instruction: int(gives_memory(instruction)))


@remembered(1024)
def given_from(code: CodeType, offset: int) -> frozenset[str]:
    """The locals whose memory, or that of a part, instructions from ``offset`` on give to another tensor: ``y.data = x``."""
    return _locals_at(code, offset, lambda instruction: 2 * gives_memory(instruction))


@remembered(1024)
def shares_from(code: CodeType, offset: int) -> bool:
    """Whether instructions from ``offset`` on name the method that gives a tensor the memory of another: ``y.set_(x)``."""
    return any(i.opname in ("LOAD_METHOD", "LOAD_ATTR") and i.argval == SHARES for i in _from(code, offset))


@remembered(1024)
def retained_from(code: CodeType, offset: int) -> frozenset[str]:
    """The locals whose object, bound now, instructions from ``offset`` on have keep its gradient: ``x.retain_grad()``."""
    return _locals_at(code, offset, _retains)


def _retains(instruction: dis.Instruction) -> int:
    return int(instruction.opname in ("LOAD_METHOD", "LOAD_ATTR") and instruction.argval == RETAIN)


def gives_memory(instruction: dis.Instruction) -> bool:
    """Whether an instruction gives the tensor on top of the stack other memory."""
    return instruction.opname == "STORE_ATTR" and instruction.argval == "data"


def _locals_at(code: CodeType, offset: int, operand: Callable[[dis.Instruction], int]) -> frozenset[str]:
    """The locals whose object, bound now, lies where ``operand`` says, from the top of the stack, at an instruction from ``offset`` on; 0: nowhere."""
    depths = {at: len(stack) for at, stack in stack_kinds(code).items()}
    before = [i for i in dis.get_instructions(code) if i.offset in depths]
    found: dict[str, list[int]] = {}
    for instruction in _from(code, offset):
        below = operand(instruction)
        if below and instruction.offset in depths:
            name = _pushed(before, depths, instruction.offset, depths[instruction.offset] - below)
            if name is not None:
                found.setdefault(name, []).append(instruction.offset)
    # of a name that is bound anew on every way there, the object is another
    return frozenset(
        name
        for name, places in found.items()
        if not {i.offset for i in _from(code, offset, name)}.isdisjoint(places)
    )


def _writes(instruction: dis.Instruction) -> int:
    """How far from the top of the stack lies what an instruction writes in place, or is about to; 0: nothing."""
    name = instruction.opname
    if gives_memory(instruction):
        return 1
    if name in ("LOAD_METHOD", "LOAD_ATTR"):
        return int(is_in_place(instruction.argval))
    if name == "BINARY_OP":
        return 2 if instruction.argrepr.endswith("=") else 0
    return _WRITES.get(name, 0)


def _pushed(
    instructions: list[dis.Instruction], depths: dict[int, int], offset: int, place: int
) -> str | None:
    """The local with which the expression begins that has left its value at a place of the stack, where one does."""
    for each in reversed(instructions):
        if each.offset >= offset:
            continue
        depth, name, value = depths[each.offset], each.opname, each.argval
        second = {"LOAD_FAST_LOAD_FAST": depth + 1, "STORE_FAST_LOAD_FAST": depth - 1}.get(name)
        if second == place:
            return str(value[1])
        if depth != place:
            continue
        if name == "COPY":
            place = depth - value
        elif name == "LOAD_FAST_LOAD_FAST":
            return str(value[0])
        else:
            return str(value) if name in ("LOAD_FAST", "LOAD_FAST_CHECK") else None
    return None


# -- what is looked up by name

#: names, the first a global; or an attribute of something that the code alone does not tell, behind ``""``
Chain = tuple[str, ...]
#: instruction -> how far its argument is shifted beyond the index of a name
_GLOBAL = {dis.opmap["LOAD_GLOBAL"]: 1, dis.opmap["LOAD_NAME"]: 0}
_ATTRIBUTE = {dis.opmap["LOAD_ATTR"]: 0 if VERSION < (3, 12) else 1}
_ATTRIBUTE |= {
    dis.opmap[name]: by for name, by in (("LOAD_METHOD", 0), ("LOAD_SUPER_ATTR", 2)) if name in dis.opmap
}
#: what leaves the top of the stack as it is
_SILENT = opcodes("CACHE EXTENDED_ARG NOP PUSH_NULL PRECALL RESUME")


@remembered(4096)
def looked_up(code: CodeType) -> tuple[Chain, ...]:
    """All that the code of a function, and of functions in it, looks up by name: ``torch.nn.functional.relu``, ``x.split``."""
    found: dict[Chain, None] = {}
    for inside in code.co_consts:
        if isinstance(inside, CodeType):
            found.update(dict.fromkeys(looked_up(inside)))
    raw, names = code.co_code, code.co_names
    at: Chain = ()
    high = 0
    for op, low in zip(raw[::2], raw[1::2], strict=True):
        if op in _SILENT:  # caches are zeros
            high = (high | low) << 8 if op == EXTENDED_ARG else high
            continue
        number, high = high | low, 0
        if op in _GLOBAL:
            at = (names[number >> _GLOBAL[op]],)
        elif op in _ATTRIBUTE:
            at = (*(at or ("",)), names[number >> _ATTRIBUTE[op]])
        else:
            at = ()
            continue
        found[at] = None
    return tuple(found)
