"""Powers by numbers that change: whose derivatives PyTorch knows of numbers alone.

``x ** n`` goes backward by a formula that asks whether ``n`` is zero, and ``n ** x`` by one that takes the logarithm of ``n``:
neither does so of a symbol. Where somebody may ask for the gradient the number is the one of this call, which is guarded, but of floats of which
it is known what C++ makes of them (``graph/fakes/floats_of_c.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from braze.capture.facts.values import words
from braze.capture.graph import floats, unbacked
from braze.capture.state.trace import GraphState

#: functions of a base and an exponent, or of what is pooled and an exponent
POWERS = frozenset(
    words("pow pow_ ipow __pow__ __ipow__ __rpow__ float_power float_power_ lp_pool1d lp_pool2d lp_pool3d")
)
_NAMED = ("self", "input", "exponent", "norm_type")


def with_known_numbers(
    graph: GraphState, args: tuple[Any, ...], kwargs: Mapping[str, Any], kept: Collection[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of such a function, of numbers where a gradient of it may be asked for; ``kept`` are symbols in any case."""
    named = {k: v for k, v in kwargs.items() if k in _NAMED}
    operands = (*args[:2], *named.values())
    if not torch.is_grad_enabled() or not any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in operands
    ):
        return args, dict(kwargs)
    of_number = not isinstance(args[0] if args else kwargs.get("self", kwargs.get("input")), torch.Tensor)

    def known(value: Any) -> Any:
        return value if any(value is v for v in kept) else _known(graph, value, of_number)

    return (*map(known, args[:2]), *args[2:]), {**kwargs, **{k: known(v) for k, v in named.items()}}


def _known(graph: GraphState, value: Any, is_base: bool) -> Any:
    """A number as it is in this call. Of a float the formula of ``x ** f`` decides nothing; what only the data tell stays unknown."""
    if type(value) is torch.SymInt and not unbacked.is_unbacked(value):
        return int(value)
    return floats.settled(graph, value) if is_base else value
