"""A graph compiler for PyTorch: ``model = braze.compile(model)``.

Names are fetched when first used, so that ``import braze`` costs nothing and imports no torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from braze.api import (
        RecompileError,
        allow_in_graph,
        clip_grad_norm_,
        clip_grad_value_,
        compile,
        compile_optimizer,
        decompositions,
        disable,
        explain,
        graph_break,
        is_compiling,
        list_backends,
        mark_batch,
        mark_dynamic,
        mark_static,
        mark_step_begin,
        mark_unbacked,
        register_backend,
        register_decomposition,
        reset,
        set_stance,
    )
    from braze.serving.served.batch import forward_context
    from braze.serving.served.serve import serve

__version__ = "0.1.0"

__all__ = [
    "RecompileError",
    "__version__",
    "allow_in_graph",
    "aot",
    "clip_grad_norm_",
    "clip_grad_value_",
    "compile",
    "compile_optimizer",
    "decompositions",
    "disable",
    "explain",
    "forward_context",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_batch",
    "mark_dynamic",
    "mark_static",
    "mark_step_begin",
    "mark_unbacked",
    "register_backend",
    "register_decomposition",
    "reset",
    "serve",
    "set_stance",
]

#: names that stand in braze.serving
_OF_SERVING = ("forward_context", "serve")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        # with both named Python says which name is the nearest
        raise AttributeError(
            f"module 'braze' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    if name == "aot":
        return importlib.import_module("braze.aot")
    value = getattr(importlib.import_module("braze.serving") if name in _OF_SERVING else _api(), name)
    globals()[name] = value
    return value


def _api() -> Any:
    """The module behind the names. A PyTorch that lacks what it is written for is refused in plain words."""
    collector = importlib.import_module("braze.support.collector")
    try:
        with collector.collector_paused:  # what is loaded sets off a full collection else
            return importlib.import_module("braze.api")
    except (AttributeError, ImportError, KeyError) as error:
        if importlib.import_module("braze.graph.private.torch_import").tested():
            raise
        raise importlib.import_module("braze.graph.private.torch_checks").impossible(error) from error


def __dir__() -> list[str]:
    return sorted(__all__)
