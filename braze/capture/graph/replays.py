"""Calls that are made when the graph has run: prints, warnings."""

from __future__ import annotations

import logging
from typing import Any

import torch

from braze.capture.facts.values import UnknownText, is_constant, is_plain
from braze.capture.graph import unbacked
from braze.capture.state.trace import Trace


def replay(t: Trace, target: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Call this when the graph has run; False where the arguments are not known now."""
    for value in (*args, *kwargs.values()):
        counted = type(value) is torch.SymInt and not unbacked.is_unbacked(value)
        told = type(value) is UnknownText and value.made is not None
        if not (
            is_plain(value) or counted or told or isinstance(value, logging.Logger) or is_constant(value)
        ):
            return False
    t.done.replays.append((target, tuple(args), kwargs))
    return True
