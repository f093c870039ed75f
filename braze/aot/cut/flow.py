"""A minimum cut between two vertices, by igraph's C library alone.

igraph's Python package imports what it can draw with (matplotlib, where it is installed), which takes from half a second to several;
its extension module takes milliseconds.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

#: the extension module in its package
EXTENSION = "igraph._igraph"

_lock = threading.Lock()


def minimum_cut(
    vertices: int, edges: Sequence[tuple[int, int]], capacities: Sequence[float], source: int, sink: int
) -> tuple[float, set[int]]:
    """What the cheapest edges cost that keep ``source`` from ``sink``, and the vertices on the side of ``source``."""
    graph = _library().GraphBase(n=vertices, edges=list(edges), directed=True)
    value, _, one, other = graph.mincut(source, sink, capacity=list(capacities))
    return value, set(one if source in one else other)


def _library() -> Any:
    """The extension module: the package's own where the program has that, else without the package."""
    with _lock:
        found = sys.modules.get(EXTENSION) or _alone()
    return found or importlib.import_module(EXTENSION)


def _alone() -> ModuleType | None:
    """The extension without its package, where it is a file. It can be made once in a process: a later import finds it by its name."""
    package = importlib.util.find_spec("igraph")
    folders = package.submodule_search_locations if package is not None else None
    spec = importlib.machinery.PathFinder.find_spec(EXTENSION, folders) if folders else None
    if spec is None or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # the package may have to tell first where its libraries are
        return None
    sys.modules[EXTENSION] = module
    return module
