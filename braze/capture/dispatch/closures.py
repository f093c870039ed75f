"""Variants that serve one closure only.

Frames met in broken calls share an entry by their code, whichever function object they are of. Guards read
the cells of the function at hand; residual code that names a cell, or goes on in a resume function, is bound to
the closure that it was made for.
"""

from __future__ import annotations

from types import FunctionType, GeneratorType
from typing import Any

from braze.capture.facts.records import Capture


class OfClosure:
    """A guard program that holds of functions with certain cells and globals only."""

    def __init__(self, program: Any, function: FunctionType) -> None:
        self.program = program
        self.function = function

    def match(self, function: FunctionType, locals: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The graph inputs, or None."""
        return self.program.match(function, locals) if same_closure(function, self.function) else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)


def same_closure(a: FunctionType, b: FunctionType) -> bool:
    """Whether two functions of one code see the same variables around them."""
    if a is b:
        return True
    cells, others = a.__closure__ or (), b.__closure__ or ()
    return a.__globals__ is b.__globals__ and all(x is y for x, y in zip(cells, others, strict=True))


def is_bound(residual: FunctionType, capture: Capture, function: FunctionType) -> bool:
    """Whether residual code is right for the closure of ``function`` only."""
    if not function.__closure__:
        return False
    if capture.graph_break is not None:
        return True
    own = {id(function), id(function.__globals__), *map(id, function.__closure__)}
    return any(id(value) in own for value in residual.__globals__.values())


def is_to_end(function: FunctionType) -> bool:
    """Whether a variable around a function holds what runs code of the program's when it ends: an entry of the function would keep that."""
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        cls = type(value)
        if cls is GeneratorType or any("__del__" in vars(base) for base in cls.__mro__):
            return True
    return False
