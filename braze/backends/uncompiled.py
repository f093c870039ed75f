"""Graphs of which a stage says ``Unsupported``: they run as captured, by eager PyTorch; said once per graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from braze.graph.fakes.fakes import mode_of_graph
from braze.graph.nodes.facts import facts
from braze.graph.operators import untraced_formulas
from braze.graph.private import torch_compat
from braze.graph.private.torch_symbols import is_undecided, size_oblivious
from braze.support import trace
from braze.support.codes import CODES
from braze.support.errors import BrazeError, InternalError, Unsupported
from braze.support.log import warn, warn_once
from braze.support.raisers import is_of_program


def compiled_or_as_captured(
    gm: torch.fx.GraphModule, name: str, compile: Callable[[], Callable[..., Any]], *, strict: bool
) -> Callable[..., Any]:
    """What ``compile()`` makes of the graph, or the graph itself where it is refused.

    So it is where an invariant of ours is found broken, unless ``strict``: a program must not fail for that. A graph that ``may_break``
    at an operator whose gradient no graph has is captured again: ``StandsBetween``.
    """
    mode = mode_of_graph(gm.graph)
    try:
        try:
            with size_oblivious(mode.env if mode is not None else None):
                return compile()
        except BrazeError:
            raise
        except Exception as error:
            if torch_compat.is_shortage(error) or is_of_program(error):
                raise
            if strict and not is_undecided(error):
                raise
            # no name for it: the traceback of its cause has this frame, which would keep the frames of the program, and what these hold
            raise _refusal(error) from error
    except (Unsupported, InternalError) as error:
        if strict and isinstance(error, InternalError):
            raise
        if gm.meta.get("may_break") and untraced_formulas.learn(gm.graph, error.__cause__):
            raise untraced_formulas.StandsBetween from error
        trace.count("graphs_run_as_captured")
        trace.emit("fallback", f"the graph of {name} ({error.code}: {error.what})")
        if error.code == "BZ5011":  # true of all graphs
            warn_once(error.code, f"graphs on a GPU run eagerly, as captured.\n{error}", "aot")
        else:
            warn(f"{name}{_place(gm)} runs eagerly, as captured.\n{error}{_remedy(error)}", "aot")
        return gm.forward


def _place(gm: torch.fx.GraphModule) -> str:
    """Where in the program the graph begins, as far as that is known: many graphs have one name."""
    origins = (facts(node).origin for node in gm.graph.nodes if node.op.startswith("call_"))
    first = next(filter(None, origins), None)
    return f" ({first})" if first is not None else ""


def _remedy(error: BrazeError) -> str:
    """What the code's page says to do, where the error itself says nothing."""
    return "" if error.hints or error.code not in CODES else f"\n  do:  {CODES[error.code].remedy}"


def _refusal(error: Exception) -> Unsupported | InternalError:
    """What an exception that a stage did not foresee means for the graph."""
    why = f"{type(error).__name__}: {error}".partition("\n")[0]
    if is_undecided(error):
        return Unsupported("BZ2024", "a stage would have to know a size that only the data tell", why=why)
    return InternalError("BZ9025", "a stage of the compiler failed", why=why)
