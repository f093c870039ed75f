"""One seed for every generator a test draws from.

``torch.manual_seed`` notes the caller's whole stack three times, for devices that are not there: under pytest
that takes longer than many a test. For tests and Hypothesis, which call it, these notes are left empty.
"""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace

#: of what PyTorch's modules of devices use the traceback for
_UNNOTED = SimpleNamespace(format_stack=list)


def unnoted() -> None:
    """What is asked of devices that are not there is not noted with the caller's stack."""
    for device in ("cuda", "xpu", "mtia"):
        module = sys.modules.get(f"torch.{device}")
        if module is not None and hasattr(module, "traceback"):
            module.traceback = _UNNOTED  # type: ignore[attr-defined]


def seed(value: int = 0) -> None:
    """Start the generators again; some tests run without NumPy or PyTorch."""
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(value)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(value)
