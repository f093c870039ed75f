"""Graphs of which a stage says ``Unsupported``: they run as captured, by eager PyTorch; said once per graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from braze.support import log, trace
from braze.support.errors import Unsupported


def compiled_or_as_captured(
    gm: torch.fx.GraphModule, name: str, compile: Callable[[], Callable[..., Any]]
) -> Callable[..., Any]:
    """What ``compile()`` makes of the graph, or the graph itself where it is refused."""
    try:
        return compile()
    except Unsupported as error:
        trace.count("graphs_run_as_captured")
        trace.emit("fallback", f"the graph of {name} ({error.code}: {error.what})")
        log.logger("aot").warning("%s", f"{name} runs eagerly, as captured.\n{error}")
        return gm.forward
