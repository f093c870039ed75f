"""The table of recipes that a trace's end is written into, as those who add to it know it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch.fx

from braze.capture.facts.records import Recipe
from braze.capture.state.trace import Trace


class Recipes(ABC):
    """Recipe ids by identity of value. ``outputs``: graph nodes whose values residual code needs."""

    def __init__(self, t: Trace) -> None:
        self.t = t
        self.recipes: list[Recipe] = []
        self.ids: dict[int, tuple[Any, int]] = {}
        self.outputs: list[torch.fx.Node] = []
        self.output_index: dict[torch.fx.Node, int] = {}
        self.kept: set[torch.fx.Node] = set()

    def add(self, recipe: Recipe) -> int:
        """A new row."""
        self.recipes.append(recipe)
        return len(self.recipes) - 1

    @abstractmethod
    def id_of(self, value: Any) -> int:
        """The recipe of a value; -1 for NULL."""
