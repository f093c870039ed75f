"""Lazily filled dicts, read whole before C code looks at them."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from braze.capture.facts.breaks import graph_break
from braze.capture.facts.values import CONSTANTS, CONTAINERS, UnknownText
from braze.capture.outside import texts
from braze.capture.state.outside import Outside

#: types of most arguments: they hold nothing
LEAVES = CONSTANTS | {FakeTensor, torch.dtype, torch.device, slice}
SEQUENCES = (list, tuple, collections.deque)
WRITABLE = frozenset({list, dict})


def fill(outside: Outside, value: Any) -> None:
    """Read all of a lazily filled dict."""
    if not issubclass(type(value), dict):
        return
    node = outside.tree.known.get(id(value))
    if node is not None and node.value is value:
        if node.container is not None and not node.container.filled:
            node.container.fill(outside)
        return
    shadow = outside.dict_views.get(id(value))
    if shadow is not None and shadow.view is value:
        shadow.fill(outside)


def write_texts(container: Any) -> None:
    """Text in a container, written: C code looks into it."""
    pairs = list(container.items()) if issubclass(type(container), dict) else list(enumerate(container))
    for key, value in pairs:
        if type(value) is UnknownText and value.made is not None:
            container[key] = texts.written(value)


def fill_arguments(outside: Outside, values: Iterable[Any], depth: int = 0) -> None:
    """Read all of the lazily filled dicts among values that C code gets, however deep."""
    for value in values:
        kind = type(value)
        if kind in LEAVES:
            continue
        if not issubclass(kind, CONTAINERS):
            if kind is UnknownText:
                graph_break("BZ1007", "a tensor is formatted", "format outside the compiled function")
            continue
        if kind in WRITABLE and depth < 4:
            write_texts(value)
        if issubclass(kind, dict):
            fill(outside, value)
            if depth < 4:
                fill_arguments(outside, dict.values(value), depth + 1)
        elif depth < 4:
            for base in SEQUENCES:
                if issubclass(kind, base):
                    fill_arguments(outside, base.__iter__(value), depth + 1)
