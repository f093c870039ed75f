"""Levels of compilation, and the presets O0 to O3 that choose a level and what goes with it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from braze.options import near, told
from braze.serving.policy.modes import CUDAGraphMode
from braze.support.errors import UserError
from braze.support.record import record


class CompilationLevel(enum.IntEnum):
    """How much of the compiler a model goes through. The later names are vLLM's for the same."""

    #: the model runs as it is
    NO_COMPILATION = 0
    #: captured whole and run as captured, with all guards: finds out whether it can be captured
    DYNAMO_AS_IS = 1
    #: captured once and compiled whole; later calls check no guards
    DYNAMO_ONCE = 2
    #: captured once, split at its splitting operators, compiled by pieces, which device graphs record
    PIECEWISE = 3

    NONE = 0
    STOCK_TORCH_COMPILE = 1
    DYNAMO_TRACE_ONCE = 2
    VLLM_COMPILE = 3


@record
class Preset:
    """A level and the values of other fields that go with it, as (field, value)."""

    name: str
    level: CompilationLevel
    values: tuple[tuple[str, Any], ...]


#: operators that split a graph where nothing else is said: attention
ATTENTION_OPS = (
    "braze::unified_attention_with_output",
    "braze::rope_attention_with_output",
    "braze::mla_attention",
)

_PIECES = (("splitting_ops", ATTENTION_OPS), ("cudagraph_mode", CUDAGraphMode.PIECEWISE))
_BOTH = (("splitting_ops", ATTENTION_OPS), ("cudagraph_mode", CUDAGraphMode.FULL_AND_PIECEWISE))
_NO_GRAPHS = (("cudagraph_mode", CUDAGraphMode.NONE),)

#: what a level brings with it
OF_LEVEL = {
    level: Preset(
        f"level {level.name}", level, _PIECES if level is CompilationLevel.PIECEWISE else _NO_GRAPHS
    )
    for level in CompilationLevel
}

#: presets of optimization, as vLLM's -O
BY_NAME: Mapping[str, Preset] = MappingProxyType(
    {
        "O0": Preset("O0", CompilationLevel.NO_COMPILATION, _NO_GRAPHS),
        "O1": Preset("O1", CompilationLevel.PIECEWISE, _PIECES),
        "O2": Preset("O2", CompilationLevel.PIECEWISE, _BOTH),
        # what is compiled for one size knows it: better kernels, for a longer start
        "O3": Preset(
            "O3", CompilationLevel.PIECEWISE, (*_BOTH, ("compile_sizes", ("cudagraph_capture_sizes",)))
        ),
    }
)

#: levels by their names and by their numbers as texts
_BY_TEXT = {**CompilationLevel.__members__, **{str(int(level)): level for level in CompilationLevel}}


def parse(value: Any) -> Preset:
    """The preset that a level (0 to 3, a name, ``"O2"``) stands for; anything else is refused with BZ7103."""
    if isinstance(value, str):
        text = value.strip().upper()
        if text in BY_NAME:
            return BY_NAME[text]
        if text in _BY_TEXT:
            return OF_LEVEL[_BY_TEXT[text]]
    if isinstance(value, int) and not isinstance(value, bool) and value in set(CompilationLevel):
        return OF_LEVEL[CompilationLevel(value)]
    names = (*CompilationLevel.__members__, *BY_NAME)
    hint = near(value.strip().upper(), names) if isinstance(value, str) else "levels are 0, 1, 2 and 3"
    raise UserError("BZ7103", f"level= does not take {told(value)}", hints=[hint])
