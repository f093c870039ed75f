"""Which part of the steps runs as device graphs: the modes of CUDA graphs, and what attention can be recorded as.

NONE, PIECEWISE and FULL are modes of a *step*. The other two are modes of a *configuration*: a pair, one for steps in which
every request decodes and one for all others; :meth:`CUDAGraphMode.decode_mode` and :meth:`CUDAGraphMode.mixed_mode` take them apart.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from braze.options import near, told
from braze.support.errors import UserError


class CUDAGraphMode(enum.Enum):
    """What is recorded as device graphs.

    A single FULL records mixed batches, and a batch that only decodes replays the recording of its size.
    """

    #: nothing is recorded, and nothing is padded
    NONE = 0
    #: the pieces between splitting operators, each by itself
    PIECEWISE = 1
    #: the whole call
    FULL = 2
    #: batches that only decode as a whole; others run without graphs
    FULL_DECODE_ONLY = (2, 0)
    #: batches that only decode as a whole; others by pieces
    FULL_AND_PIECEWISE = (2, 1)

    def decode_mode(self) -> CUDAGraphMode:
        """The mode of a step in which every request decodes."""
        return CUDAGraphMode(self.value[0]) if self.separate_routine() else self

    def mixed_mode(self) -> CUDAGraphMode:
        """The mode of a step that prefills, wholly or in part."""
        return CUDAGraphMode(self.value[1]) if self.separate_routine() else self

    def separate_routine(self) -> bool:
        """Whether decoding has a mode of its own."""
        return isinstance(self.value, tuple)

    def has_mode(self, mode: CUDAGraphMode) -> bool:
        """Whether some step runs in ``mode``, which is one of NONE, PIECEWISE and FULL."""
        return mode in (self.decode_mode(), self.mixed_mode())

    def has_full_cudagraphs(self) -> bool:
        """Whether some step is recorded as a whole."""
        return self.has_mode(CUDAGraphMode.FULL)

    def requires_piecewise_compilation(self) -> bool:
        """Whether some step is recorded by pieces."""
        return self.has_mode(CUDAGraphMode.PIECEWISE)

    def max_cudagraph_mode(self) -> CUDAGraphMode:
        """The higher of both steps' modes."""
        return max(self.decode_mode(), self.mixed_mode(), key=lambda mode: mode.value)

    def without_piecewise(self) -> CUDAGraphMode:
        """The same without pieces: what was recorded by pieces runs without graphs."""
        if self is CUDAGraphMode.FULL_AND_PIECEWISE:
            return CUDAGraphMode.FULL_DECODE_ONLY
        return CUDAGraphMode.NONE if self is CUDAGraphMode.PIECEWISE else self

    def is_runtime_mode(self) -> bool:
        """Whether a step may run in it: not so for pairs."""
        return not self.separate_routine()

    @staticmethod
    def valid_runtime_modes() -> frozenset[CUDAGraphMode]:
        """The modes of steps: NONE, PIECEWISE and FULL."""
        return frozenset(mode for mode in CUDAGraphMode if mode.is_runtime_mode())

    def __bool__(self) -> bool:
        """Whether anything is recorded."""
        return self is not CUDAGraphMode.NONE


class AttentionCGSupport(enum.IntEnum):
    """Which batches an attention backend can be recorded with, from none to all; that of a model is its layers' least."""

    NEVER = 0
    #: every request has one token
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    #: every request has as many tokens
    UNIFORM_BATCH = 2
    ALWAYS = 3


def support_of(value: Any) -> AttentionCGSupport:
    """What attention can be recorded with, by the enum, a name or a number of it; else BZ7103."""
    names = AttentionCGSupport.__members__
    if isinstance(value, str) and value.strip().upper() in names:
        return names[value.strip().upper()]
    if isinstance(value, int) and not isinstance(value, bool) and value in set(AttentionCGSupport):
        return AttentionCGSupport(value)
    hint = near(value.strip().upper(), names) if isinstance(value, str) else f"known: {', '.join(names)}"
    raise UserError("BZ7103", f"attention= does not take {told(value)}", hints=[hint])


#: words for the mode of one kind of step
_WORDS = {
    "none": CUDAGraphMode.NONE,
    "disabled": CUDAGraphMode.NONE,
    "piecewise": CUDAGraphMode.PIECEWISE,
    "breakable": CUDAGraphMode.PIECEWISE,
    "full": CUDAGraphMode.FULL,
}


def parse(value: Any) -> CUDAGraphMode:
    """The mode that a word, a value of the enum, or ``{"decode": ..., "mixed": ...}`` stands for; else BZ7103.

    ``"breakable"`` in such a dict is PIECEWISE by breaking the recording instead of the graph (see :func:`is_breakable`).
    """
    if isinstance(value, CUDAGraphMode):
        return value
    if isinstance(value, Mapping):
        return _of_pair(value)
    if isinstance(value, str) and value.strip().upper() in CUDAGraphMode.__members__:
        return CUDAGraphMode[value.strip().upper()]
    if isinstance(value, (int, tuple)) and not isinstance(value, bool):
        for mode in CUDAGraphMode:
            if mode.value == value:
                return mode
    hint = near(value.strip().upper(), CUDAGraphMode.__members__) if isinstance(value, str) else _KNOWN
    raise UserError("BZ7103", f"cudagraph_mode= does not take {told(value)}", hints=[hint])


_KNOWN = f"known: {', '.join(CUDAGraphMode.__members__)}, or {{'decode': 'full', 'mixed': 'piecewise'}}"


def is_breakable(value: Any) -> bool:
    """Whether a mode was given in words that ask for recordings that are broken at capture."""
    return isinstance(value, Mapping) and "breakable" in (str(word).lower() for word in value.values())


def _of_pair(pair: Mapping[str, Any]) -> CUDAGraphMode:
    """The mode of a dict: each kind of step by its word."""
    if set(pair) != {"decode", "mixed"}:
        raise UserError("BZ7103", f"cudagraph_mode= does not take {told(dict(pair))}", hints=[_KNOWN])
    parts = []
    for kind, word in pair.items():
        found = word if isinstance(word, CUDAGraphMode) else _WORDS.get(str(word).strip().lower())
        if found is None or not found.is_runtime_mode():
            raise UserError(
                "BZ7103",
                f"cudagraph_mode[{kind!r}] does not take {told(word)}",
                hints=[near(str(word), _WORDS)],
            )
        parts.append((kind, found))
    wanted = dict(parts)
    for mode in CUDAGraphMode:
        if (mode.decode_mode(), mode.mixed_mode()) == (wanted["decode"], wanted["mixed"]):
            return mode
    pairs = ", ".join(f"{m.decode_mode().name}/{m.mixed_mode().name}" for m in CUDAGraphMode)
    raise UserError(
        "BZ7103",
        f"no mode decodes with {wanted['decode'].name} and runs mixed batches with {wanted['mixed'].name}",
        hints=[f"pairs of decode/mixed: {pairs}"],
    )
