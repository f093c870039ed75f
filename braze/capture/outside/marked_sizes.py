"""Sizes that the user spoke of, in one trace: their symbols, and who turned one into a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.facts.marks import Mark, Named, any_marks, marks_of
from braze.capture.facts.records import Step
from braze.capture.guards.guard_text import source_text
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace
from braze.graph import torch_compat, torch_symbols
from braze.graph.fakes import require_plain
from braze.graph.shape_guards import readable_text
from braze.support.errors import UserError


class Marked:
    """Marks on tensors and rules of ``shapes=``, as the trace meets their tensors."""

    def __init__(self, t: Trace, named: Named, locals: Sequence[Any]) -> None:
        self.t = t
        self.named = named
        #: whether there is anything to do: marks may also be found on tensors reached otherwise
        self.any = bool(named) or bool(t.outside.symbolic) or any_marks(locals)
        #: name in shapes= -> its symbol
        self.shared: dict[str, torch.SymInt | int] = {}
        #: symbol -> (mark, what to call it)
        self.strict: dict[str, tuple[Mark, str]] = {}
        #: symbol -> (value, condition, place in the program)
        self.fixed: dict[str, tuple[Any, Any, Any]] = {}
        self.texts: dict[str, str] = {}
        self.watching = False

    def fake(self, node: Node, real: torch.Tensor, dims: set[int]) -> torch.Tensor:
        """A fake with the sizes that were spoken of as symbols, besides those at ``dims``."""
        marks = marks_of(real) if real.__dict__ else {}
        over = node.parent if node.step is Step.TENSOR_OF else None
        found = self.named.get(id(real if over is None else over.real))
        if found is not None:
            marks = {**marks, **found[1]}
        dims = dims - {d for d, mark in marks.items() if mark.kind == "static"}
        given: dict[int, Any] = {}
        if marks:
            # a symbol of a tensor that the graph does not take, no call could tell
            with torch_compat.disable_functions(), torch_compat.outside_modes():
                require_plain(real)
        for d, mark in marks.items():
            if mark.kind != "static" and d < real.dim():
                size = self._symbol(node, real, d, mark)
                if isinstance(size, torch.SymInt):
                    given[d] = size
        mode = self.t.graph.mode
        source = str(node.source)
        fake = mode.fake(real, symbolic_dims=(dims | given.keys()) or None, source=source, given=given)
        for d, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):
                text = f"{source_text(node.source, self.t.outside.function.__code__)}.size({d})"
                self.texts.setdefault(mode.name_of(size), text)
        return fake

    def _symbol(self, node: Node, real: torch.Tensor, d: int, mark: Mark) -> Any:
        """The symbol of one marked size; of one name there is one."""
        rule, mode = mark.rule, self.t.graph.mode
        if rule.name and rule.name in self.shared:
            return self.shared[rule.name]
        size = mode.bounded_symbol(
            real.shape[d], f"{node.source}.size({d})", rule.low, rule.high, unbacked=mark.kind == "unbacked"
        )
        if not self.watching:
            torch_symbols.watch_specialisation(mode.env, self._seen)
            self.watching = True
        if isinstance(size, torch.SymInt):
            if mark.kind == "batch":
                mode.batches.append(size)
            if rule.multiple > 1 and size % rule.multiple != 0:
                raise AssertionError("checked before the trace began")
            if mark.strict:
                text = source_text(node.source, self.t.outside.function.__code__)
                self.strict[mode.name_of(size)] = mark, mark.where or f"{text}, dimension {d}"
        if rule.name:
            self.shared[rule.name] = size
        return size

    def _seen(self, symbol: Any, value: Any, condition: Any) -> None:
        """A condition has fixed a symbol."""
        if not value.free_symbols:
            self.fixed.setdefault(str(symbol), (value, condition, self.t.frames.here()))

    def verify(self) -> None:
        """An error where a size that was to vary can have one value only."""
        env = self.t.graph.mode.env
        if env is None:
            return
        for name, (mark, where) in self.strict.items():
            symbol = next((s for s in env.replacements if str(s) == name), None)
            if symbol is None:
                continue
            value = env.replacements[symbol]
            while value.free_symbols & env.replacements.keys():
                value = value.xreplace(env.replacements)
            if value.free_symbols:
                continue
            raise self._violation(name, mark, where, value)

    def _violation(self, name: str, mark: Mark, where: str, value: Any) -> UserError:
        _, condition, at = self.fixed.get(name, (None, None, None))
        said = f"shapes= calls it {mark.rule.text!r}" if mark.rule.name else f"it was marked {mark.kind}"
        why = f"the program asks {self._readable(condition, value)}" if condition is not None else ""
        return UserError(
            "BZ0022",
            f"{where} can only be {value}, but {said}",
            why=why,
            hints=[
                "write the line so that it holds for every size (no comparison with a number, no int() of a size)",
                "or let the size be given: drop the mark, or None in shapes=",
            ],
            origin=at[0].origin(at[1]) if at is not None else None,
        )

    def _readable(self, condition: Any, value: Any) -> str:
        """A condition on symbols with the sizes' own names."""
        if condition.is_Symbol:
            return f"what number {self.texts.get(str(condition), condition)} is (found {value})"
        text = readable_text(condition)
        for name, own in sorted(self.texts.items(), key=lambda item: -len(item[0])):
            text = text.replace(name, own)
        return text
