"""What a compile hands to its stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from braze.options import Options
from braze.products import Depthwise, DeviceProduct, Grouped, Product, Way
from braze.support.record import record
from braze.target import Target


@record
class CompileContext:
    """Options and target of one compile; ``name`` labels its dumps and kernels, ``label`` (the user's function) is what
    profiles and explanations show.

    ``consumes``: the inputs belong to the call, which lets go of each after its last use, as a backward does.
    ``lean``: the graph is a half of a training step, whose peak adds to what is saved: large temporaries are
    taken from the allocator when they come and given back when they go.
    ``products``: who computes which products of matrices, where that was measured. ``device_products``, ``grouped``, ``depthwise``: the same of a GPU, of its grouped products, and of its depthwise convolutions; ``tiles``: how the
    kernels of some groups are cut, by the groups' names.
    ``recordable``: others record the call, as a part of
    something larger. ``raises_alone``: an error of the call is all that its caller sees of it, but for what the graph writes. ``recorder``: makes of a call and its ``cudagraphs`` plan one that is recorded; None: the call's second use is.
    ``deterministic``: the program asks PyTorch for the same numbers each time.
    """

    options: Options
    target: Target
    name: str = "graph"
    consumes: bool = False
    lean: bool = False
    products: tuple[tuple[Product, Way], ...] = ()
    device_products: tuple[tuple[DeviceProduct, Way], ...] = ()
    grouped: tuple[tuple[Grouped, Way], ...] = ()
    depthwise: tuple[tuple[Depthwise, Way], ...] = ()
    tiles: tuple[tuple[str, str], ...] = ()
    recordable: bool = False
    raises_alone: bool = False
    recorder: Callable[[Any, Any], Any] | None = None
    deterministic: bool = False
    label: str = "graph"
