"""What a backend asks of symbolic sizes becomes guards too: it compiled for the answers that it got."""

from __future__ import annotations

import dataclasses
from typing import Any

from braze.capture.facts.records import Capture, Check, Guard, ShapeRelation
from braze.capture.guards.tables import names_in
from braze.graph.fakes.fakes import FakeMode, mode_of_graph
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.graph.sizes.shape_guards import relations


class Questions:
    """How much is known of a capture's symbols; ask :meth:`answered` when the backend is done."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        graph = capture.graph
        mode = None if graph is None else mode_of_graph(graph.graph, capture.examples)
        self.mode = mode if mode is not None and mode.env is not None else None
        self.known = state(self.mode)

    def answered(self) -> Capture:
        """The capture with what was decided since as guards."""
        mode, capture = self.mode, self.capture
        if mode is None or state(mode) == self.known:
            return capture
        bound = names_bound(capture)
        there = {g.expected.expression for g in capture.guards if g.check is Check.RANGE}
        found = [
            Guard(None, Check.RANGE, ShapeRelation(text, names))
            for text, names in (
                *relations(mode.env, bound, mode.floats, bound=bound),
                *mode.settled_numbers(),
            )
            if text not in there
        ]
        for text, floats in mode.decided.told(mode.env):
            if text not in there:
                found.append(Guard(None, Check.RANGE, ShapeRelation(text, floats)))
                found += [
                    Guard(source, Check.EQUAL, spec)
                    for source, spec in zip(capture.inputs, capture.specs, strict=True)
                    if isinstance(spec, FloatSpec) and spec.name in floats
                ]
        settled = mode.settled_floats()
        found += [
            Guard(source, Check.EQUAL, spec.hint)
            for source, spec in zip(capture.inputs, capture.specs, strict=True)
            if isinstance(spec, FloatSpec) and spec.name in settled
        ]
        return dataclasses.replace(capture, guards=(*capture.guards, *found))


def state(mode: FakeMode | None) -> Any:
    """A number of facts: more of them, more was decided."""
    if mode is None:
        return None
    env: Any = mode.env
    return len(env.guards), len(env.replacements), len(mode.decided.conditions)


def names_bound(capture: Capture) -> set[str]:
    """The symbols that the guards bind."""
    found: set[str] = set()
    for guard in capture.guards:
        if guard.check is Check.TENSOR:
            spec: TensorSpec = guard.expected
            for extent in (*spec.sizes, *spec.strides):
                if isinstance(extent, str):
                    found |= names_in(extent)
        elif isinstance(guard.expected, SymbolSpec):
            found |= names_in(guard.expected.name)
    return found
