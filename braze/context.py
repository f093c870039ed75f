"""What a compile hands to its stages."""

from __future__ import annotations

from braze.options import Options
from braze.support.record import record
from braze.target import Target


@record
class CompileContext:
    """Options and target of one compile; ``name`` labels its dumps (the user's function).

    ``consumes``: the inputs belong to the call, which lets go of each after its last use, as a backward does.
    """

    options: Options
    target: Target
    name: str = "graph"
    consumes: bool = False
