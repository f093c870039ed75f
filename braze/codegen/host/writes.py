"""What stands around a call's writes to its inputs: where it fails, who runs the call again knows whether they were done, or they are undone."""

from __future__ import annotations

from collections.abc import Sequence

from braze.codegen.host.text import indented
from braze.loops.inputs_written import may_fail_by_data
from braze.loops.ir import ExternCall
from braze.schedule.facts.records import Schedule


class Writes:
    """The writes of a schedule to its inputs: ``first``, the group that does the first of them, and ``last``, the last group that may
    fail from there on by what the data are, if there are such. ``undone``: the inputs that are written between the two.

    ``raises_alone``: as of a context.
    """

    def __init__(self, s: Schedule, raises_alone: bool = False) -> None:
        self.roots = {**dict(s.program.again), **dict(s.memory.renewed)}
        self.first = self.last = -1
        self.undone: tuple[str, ...] = ()
        writing = [k for k, g in enumerate(s.groups) if not self.roots.keys().isdisjoint(g.writes)]
        if not writing:
            return
        self.first = writing[0]
        # what writes may itself fail halfway
        failing = [
            k for k, g in enumerate(s.groups) if k >= self.first and any(map(may_fail_by_data, g.work))
        ]
        # an operator of PyTorch's that alone may fail does what it does in eager, in the same words
        as_eager = (
            raises_alone and failing == [self.first] and isinstance(s.groups[self.first].call, ExternCall)
        )
        if failing and not as_eager and s.program.device == "cpu":
            self.last = failing[-1]
            names = [n for k in writing if k <= self.last for n in s.groups[k].writes if n in self.roots]
            self.undone = tuple(dict.fromkeys(self.roots[n] for n in names))

    def is_behind(self, k: int) -> bool:
        """Whether group ``k`` runs when an input may have been written."""
        return 0 <= self.first <= k


def noted(lines: Sequence[str]) -> list[str]:
    """Statements behind a write; what they raise says so."""
    return _told(lines, "runtime.note_written(error)")


def undone(lines: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Statements that write inputs, and undo that where something fails behind."""
    keep = f"kept, status = runtime.keep(({', '.join(inputs)},)), 0"
    return [keep, *_told(lines, "runtime.put_back(error, kept, status)")]


def _told(lines: Sequence[str], whom: str) -> list[str]:
    """Statements, and the call that is told of what they raise."""
    return ["try:", *indented(lines), "except Exception as error:", f"    {whom}", "    raise"]
