"""One seed for every generator a test draws from.

``torch.manual_seed`` notes the caller's whole stack three times, for devices that are not there: under pytest
that takes longer than many a test.
"""

from __future__ import annotations

import random
import sys


def seed(value: int = 0) -> None:
    """Start the generators again; some tests run without NumPy or PyTorch."""
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(value)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(value)
