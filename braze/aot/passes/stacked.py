"""Recurrent layers with dropout between them, one layer at a time.

PyTorch's own decompositions of a stack of layers, which a trace meets where gradients are off or sizes are symbols, leave the
dropout out. Those of one layer are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.graph.fakes.as_in_eager import as_in_eager

#: what torch.nn's modules call
STACKS = frozenset({torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu})


def drops_between(target: Any, args: Sequence[Any]) -> bool:
    """Whether a call runs several layers and drops between them."""
    if not callable(target) or target not in STACKS or len(args) != 9:
        return False
    layers, dropout, train = args[4:7] if _is_padded(args) else args[5:8]
    return bool(layers > 1 and dropout > 0 and train)


def _is_padded(args: Sequence[Any]) -> bool:
    """Whether a call is of sequences of one length, ``(input, hidden, ...)``, rather than packed ones, ``(data, sizes, hidden, ...)``."""
    return isinstance(args[3], bool)


def layer_by_layer(stack: Callable[..., Any], args: Sequence[Any]) -> Any:
    """What ``stack(*args)`` gives."""
    if _is_padded(args):
        x, hidden, weights, biases, layers, dropout, train, both, batch_first = args
        sizes: tuple[Any, ...] = ()
    else:
        x, batch_sizes, hidden, weights, biases, layers, dropout, train, both = args
        sizes, batch_first = (batch_sizes,), False
    several = isinstance(hidden, (list, tuple))
    states = hidden if several else (hidden,)
    per_layer, directions = len(weights) // layers, 2 if both else 1
    # as PyTorch does it, so that the same elements are drawn in the same order
    x = x.transpose(0, 1) if batch_first else x
    ends: list[tuple[Any, ...]] = []
    for k in range(layers):
        start = [state[k * directions : (k + 1) * directions] for state in states]
        mine = weights[k * per_layer : (k + 1) * per_layer]
        rest = (mine, biases, 1, 0.0, train, both) + (() if sizes else (False,))
        given = (x, *sizes, start if several else start[0], *rest)
        x, *end = as_in_eager(stack, given, stack(*given))
        ends.append(tuple(end))
        if k < layers - 1:
            x = torch.dropout(x, dropout, train)
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))
