"""Prove of a kernel's text that it reads nothing of what it makes before it has stored it. Runs where stages are verified.

Works from the C alone and from what the group's steps write, not from how the text came about: in every block in which a buffer
is stored that the kernel itself makes, the first line that mentions the buffer is a store. A load that was moved out of a loop in
whose body the store stands breaks that, whatever the schedule says.
"""

from __future__ import annotations

import re

from braze.codegen.records import KernelText
from braze.loops.ir import StoreMode
from braze.loops.rewrite import loads, roots
from braze.schedule.facts.records import Group
from braze.support.errors import InternalError

#: pointers to buffers are called b0, b1, ..; those to scratch k1, k2, ..
_POINTER = re.compile(r"\b[bk]\d+\b")
_DECLARED = re.compile(r"^\w+ \*const [bk]\d+ = |^\w+ k\d+\[.*\] __attribute__|^free\(")
_STORED = re.compile(
    r"(?:^|\{ )([bk]\d+)\[[^=]*\] = |\bbz_(?:(?:storen?|putn?|moven?|turn)_\w+|copy)\(([bk]\d+)\b"
)


def require_stores_first(text: KernelText, group: Group) -> None:
    """Raise InternalError BZ9067 where a kernel loads what it stores only later."""
    made = made_by(group)
    names = {f"b{i}": name for i, name in enumerate(text.args) if name in made}
    first: list[dict[str, bool]] = [{}]  # per open block: pointer -> whether its first mention is a store
    for line in text.source.splitlines():
        line = line.strip()
        for pointer, stores in _mentions(line):
            if pointer not in names and not pointer.startswith("k"):
                continue
            for block in first:
                if block.setdefault(pointer, stores) is False and stores:
                    raise InternalError(
                        "BZ9067",
                        f"kernel {text.name} reads {names.get(pointer, 'its scratch memory')} before it stores it",
                        why=f"the store is {line}",
                    )
        for brace in re.findall(r"[{}]", line):
            if brace == "{":
                first.append({})
            else:
                first.pop()


def made_by(group: Group) -> set[str]:
    """The buffers of which a group reads only what it has stored."""
    made: set[str] = set()
    read: set[str] = set()
    for step in group.steps:
        read |= loads(*roots(step)) - made
        read |= {s.buffer for s in step.stores if s.mode is not StoreMode.PLAIN} - made
        made |= {s.buffer for s in step.stores} - read
    return made


def _mentions(line: str) -> list[tuple[str, bool]]:
    """(pointer, whether it is stored to) of each mention in a line, loads first."""
    if _DECLARED.match(line):
        return []
    stored = [p for found in _STORED.findall(line) for p in found if p]
    loaded = _POINTER.findall(line)
    for p in stored:
        loaded.remove(p)
    return [*((p, False) for p in loaded), *((p, True) for p in stored)]
