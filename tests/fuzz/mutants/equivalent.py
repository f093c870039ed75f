"""Bugs that are none: edits after which nothing that a caller can see is different, each with the reason.

They are set apart before bugs are chosen, so that another takes the place of each.
"""

from __future__ import annotations

from collections.abc import Mapping

#: id of a mutant -> why nobody can notice it
EQUIVALENT: Mapping[str, str] = {}
