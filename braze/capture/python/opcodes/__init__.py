"""Handlers of CPython's instructions, one file a family, and the table they enter themselves in."""

from __future__ import annotations

import os
import types

import torch

from braze.capture.facts.frame import Decoded
from braze.capture.python.opcodes import (
    building,
    calling,
    control,
    exceptions,
    matching,
    names,
    operators,
    stack,
)
from braze.capture.python.opcodes.table import handlers
from braze.support.caches import remembered

FAMILIES = (building, calling, control, exceptions, matching, names, operators, stack)
HANDLERS = handlers()
TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep


@remembered(4096)
def decoded(code: types.CodeType) -> Decoded:
    """A code object decoded, once."""
    found = Decoded(code, HANDLERS)
    found.library = code.co_filename.startswith(TORCH_FOLDER)
    return found
