"""Which part of the steps runs as device graphs: the modes of CUDA graphs, and what attention can be recorded as.

NONE, PIECEWISE and FULL are modes of a *step*. The other two are modes of a *configuration*: a pair, one for steps in which
every request decodes and one for all others; :meth:`CUDAGraphMode.decode_mode` and :meth:`CUDAGraphMode.mixed_mode` take them apart.
"""

from __future__ import annotations

import enum


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
