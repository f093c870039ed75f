"""What a compile hands to its stages."""

from __future__ import annotations

from braze.options import Options
from braze.support.record import record
from braze.target import Target


@record
class CompileContext:
    """Options and target of one compile; ``name`` labels its dumps (the user's function).

    ``consumes``: the inputs belong to the call, which lets go of each after its last use, as a backward does.
    ``lean``: the graph is a half of a training step, whose peak adds to what is saved: large temporaries are
    taken from the allocator when they come and given back when they go.
    """

    options: Options
    target: Target
    name: str = "graph"
    consumes: bool = False
    lean: bool = False
