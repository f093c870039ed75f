"""One Triton kernel of several small groups: a range of its programs for each.

Members whose texts differ in numbers alone are of one *kind*: its text is written once, as a function, and a program finds out by a few comparisons
whose it is, with that member's pointers and numbers. So a list of tensors of many sizes is one text, which is built once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from braze.codegen.host.text import indented
from braze.codegen.records import KernelText, TritonLaunch
from braze.codegen.triton import asserts
from braze.codegen.triton.kernels import EARLY_HEADER, HEADER
from braze.codegen.triton.ops import POINTERS
from braze.codegen.triton.prelude import used
from braze.codegen.triton.walks import Walker
from braze.schedule.facts.passes import arguments
from braze.schedule.facts.records import Group, Schedule
from braze.schedule.gpu.kernel_plan import KernelPlan

#: what is said, floats, and whole numbers that are no part of a name
_NUMBER = re.compile(r'"[^"]*"|\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|(?<![\w.])\d+(?![\w.])')
#: a nought of which compilers only see that 16 divides it. Of what is there anyway, and of what is made of it by the same operations, they take all and choose then: each program
#: would look at the pointers of every member
_NOUGHT = "(program >> 30) * 16"
#: what loads of several elements at once ask of numbers
_VECTOR = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """A group's body, with its numbers taken out; the buffers and numbers that belong there."""

    group: Group
    skeleton: str
    numbers: tuple[int, ...]
    buffers: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    programs: int

    @property
    def key(self) -> object:
        """What is the same of members of one kind."""
        return self.skeleton, self.constants, tuple(n % _VECTOR == 0 for n in self.numbers)


def combo_kernel(
    group: Group,
    plans: Sequence[KernelPlan],
    schedule: Schedule,
    *,
    nvidia: bool,
    waits: bool,
    triggers: bool,
) -> KernelText:
    """The text of a kernel that does what its group's members do. ``waits``, ``triggers``: as of other kernels."""
    names = arguments(group)
    pointers = {name: f"ptr{k}" for k, name in enumerate(names)}
    members = [
        _member(m, plan, schedule, nvidia=nvidia) for m, plan in zip(group.members, plans, strict=True)
    ]
    kinds: dict[object, list[_Member]] = {}
    for member in members:
        kinds.setdefault((member.key, _types(member, schedule)), []).append(member)
    functions: list[str] = []
    calls: list[tuple[int, list[str]]] = []
    programs = 0
    constants: dict[str, int] = {}
    for k, several in enumerate(kinds.values()):
        kind = _Kind(f"{group.name}_{k}", k, several, pointers)
        functions.append(kind.function())
        constants |= kind.constants
        calls.append((kind.programs, kind.call(programs)))
        programs += kind.programs
    begins = ["    if EARLY:", "        gdc_wait()"] if waits else ["    if LETS:"] if triggers else []
    begins += ["        gdc_launch_dependents()"] if triggers else []
    body = [
        *begins,
        "    program = bz_program()",
        f"    none = {_NOUGHT}",
        "    square = none * none",
        *indented(_tree(calls, 0)),
    ]
    told = (*constants.items(), *(((("EARLY", 1),) if waits else (("LETS", 1),)) if begins else ()))
    told += asserts.constants(functions)
    parameters = ", ".join([*pointers.values(), *(f"{c}: tl.constexpr" for c, _ in told)])
    function = "\n".join([*functions, f"@triton.jit\ndef {group.name}({parameters}):", *body, ""])
    source = f"{HEADER}{EARLY_HEADER if begins else ''}\n{used(function)}\n\n{function}"
    dtypes = tuple(POINTERS[schedule.buffer(b).dtype.stored] for b in names)
    launch = TritonLaunch(str(programs), told, plans[0].warps, plans[0].stages, dtypes)
    canonical = f"{launch}\n{source.replace(group.name, 'kernel')}"
    return KernelText(group.name, "triton", source, names, (), canonical, launch)


def _types(member: _Member, schedule: Schedule) -> tuple[object, ...]:
    return tuple(schedule.buffer(b).dtype for b in member.buffers)


def _member(group: Group, plan: KernelPlan, schedule: Schedule, *, nvidia: bool) -> _Member:
    """One group's text. Every tile may reach past the end, so that it is the same for all sizes."""
    writer = Walker(group, plan)
    writer.of_any_size()
    text = "\n".join(writer.write())
    numbers: list[int] = []

    def taken(found: re.Match[str]) -> str:
        if not found[0].isdigit():
            return found[0]
        numbers.append(int(found[0]))
        return "\0"

    skeleton = _NUMBER.sub(taken, text)
    tiles = (*plan.points, plan.row) if plan.row is not None else plan.points
    constants = tuple((f"{tile.letter.upper()}BLOCK", tile.block) for tile in tiles)
    constants += (("HELD", plan.registers if nvidia else 0),) if plan.held else ()
    count = plan.programs.value
    assert count is not None
    return _Member(group, skeleton, tuple(numbers), plan.arguments, constants, count)


class _Kind:
    """Members of one text."""

    def __init__(self, name: str, number: int, members: Sequence[_Member], pointers: dict[str, str]) -> None:
        self.name = name
        self.members = members
        self.pointers = pointers
        first = members[0]
        self.suffix = f"_{number}"
        self.constants = {f"{c}{self.suffix}": n for c, n in first.constants}
        written = {s.buffer for step in first.group.steps for s in step.stores}
        #: a place in the text -> its parameter, of places where members have other numbers; places that are alike in all share one
        self.varying: dict[tuple[int, ...], str] = {}
        self.texts: list[str] = []
        for column in zip(*(m.numbers for m in members), strict=True):
            if len(set(column)) == 1:
                self.texts.append(str(column[0]))
            else:
                self.texts.append(self.varying.setdefault(column, f"n{len(self.varying)}"))
        self.own = [f"{'out' if b in written else 'in'}_ptr{k}" for k, b in enumerate(first.buffers)]

    def function(self) -> str:
        """The text, of a program with this number among its member's."""
        pieces = self.members[0].skeleton.split("\0")
        body = pieces[0] + "".join(t + p for t, p in zip(self.texts, pieces[1:], strict=True))
        body = body.replace("tl.program_id(0)", "number")
        constants = [c for c, _ in self.members[0].constants]
        parameters = ["number", *self.own, *self.varying.values(), *(f"{c}: tl.constexpr" for c in constants)]
        return f"@triton.jit\ndef {self.name}({', '.join(parameters)}):\n{body}\n"

    @property
    def programs(self) -> int:
        """How many programs its members have together."""
        return sum(m.programs for m in self.members)

    def call(self, begin: int) -> list[str]:
        """The lines that find whose a program is, and call the text with what is that member's; ``begin``: the programs of kinds before."""
        first, columns = self.members[0], [*self.varying]
        # what all members read alike needs no choice
        apart = [i for i in range(len(self.own)) if len({m.buffers[i] for m in self.members}) > 1]
        leaves: list[tuple[int, list[str]]] = []
        at = begin
        for k, m in enumerate(self.members):
            chosen = {"number": str(at)}
            chosen |= {self.own[i]: self.pointers[m.buffers[i]] for i in apart}
            chosen |= {self.varying[column]: str(column[k]) for column in columns}
            lines = [f"own = {_own_nought(k)}"]
            lines += [f"{name}{self.suffix} = {text} + own" for name, text in chosen.items()]
            leaves.append((m.programs, lines))
            at += m.programs
        given = [
            f"{own}{self.suffix}" if i in apart else self.pointers[first.buffers[i]]
            for i, own in enumerate(self.own)
        ]
        given += [f"{n}{self.suffix}" for n in self.varying.values()]
        given += [*self.constants]
        return [
            *_tree(leaves, begin),
            f"{self.name}(program - number{self.suffix}, {', '.join(given)})",
        ]


def _own_nought(k: int) -> str:
    """Nought by operations that no other member of a kind has: else a compiler makes one of members' branches again."""
    text, rest = "square", k
    while rest or text == "square":
        text, rest = f"({text} {'+*-'[rest % 3]} none)", rest // 3
    return text


def _tree(parts: Sequence[tuple[int, list[str]]], begin: int) -> list[str]:
    """The lines of parts that have so many programs each, the first from ``begin`` on: found by halves."""
    if len(parts) == 1:
        return parts[0][1]
    half = len(parts) // 2
    middle = begin + sum(count for count, _ in parts[:half])
    return [
        f"if program < {middle}:",
        *indented(_tree(parts[:half], begin)),
        "else:",
        *indented(_tree(parts[half:], middle)),
    ]
