"""How many cases the property tests of serving try: ``BRAZE_CASES=10000`` in all, without it some hundreds."""

from __future__ import annotations

import os

#: the shares that the tests of properties (a) to (h) have together; those of other properties come on top
SHARES = 19


def share(of: int) -> int:
    """A test's number of cases: ``of`` shares."""
    return max(10, -(-int(os.environ.get("BRAZE_CASES", "400")) * of // SHARES))
