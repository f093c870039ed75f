"""Which sizes and numbers from outside are symbols, the fakes that stand for tensors, and the sizes that the user spoke of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.capture.facts.marks import Mark, Named, any_marks, marks_of
from braze.capture.facts.records import Check, Step
from braze.capture.guards.dynamic import ALL, is_argument
from braze.capture.guards.guard_text import source_text
from braze.capture.outside.lists_of_numbers import changed_length
from braze.capture.state.outside import Outside
from braze.capture.state.sources import Node
from braze.capture.state.trace import Trace
from braze.graph.fakes.fakes import PLAIN, require_plain
from braze.graph.private import torch_compat, torch_symbols
from braze.graph.sizes.shape_guards import readable_text
from braze.support.errors import Unsupported, UserError


def make_fake(t: Trace, node: Node, real: torch.Tensor) -> Any:
    """The fake that stands for a tensor from outside."""
    outside = t.outside
    if type(real) in PLAIN and is_left_behind(real):
        raise Unsupported("BZ1011", "a view whose base has other memory by now (.data = ...)")
    # a subclass has no fake, and may see that its sizes are read
    symbolic = outside.symbolic and type(real) in PLAIN
    dims = symbolic_dims(outside, node, real) if symbolic else None
    if outside.marked.any:
        return outside.marked.fake(node, real, dims or set())
    return t.graph.mode.fake(real, symbolic_dims=dims, source=str(node.source) if dims else "")


def is_left_behind(real: torch.Tensor) -> bool:
    """Whether a tensor is a view of one that has other memory by now (``base.data = y``): its history follows writes there all the same."""
    base = real._base
    if base is None or any(v.layout is not torch.strided for v in (real, base)):  # (a sparse tensor's values)
        return False
    return torch_compat.storage_key(base) != torch_compat.storage_key(real)


def symbolic_dims(outside: Outside, node: Node, real: torch.Tensor) -> set[int] | None:
    """Which sizes of a tensor are to be symbols."""
    source = node.source
    found = {d for d in range(real.dim()) if (source, d) in outside.symbolic}
    if changed_length(outside, node):
        found |= {d for d, n in enumerate(real.shape) if n > 1}
    if ALL in outside.symbolic and not (outside.is_model_state(node) or isinstance(real, torch.nn.Parameter)):
        found |= {d for d, n in enumerate(real.shape) if n > 1}
    return found or None


def is_symbolic(outside: Outside, node: Node, dim: int) -> bool:
    """Whether an int from outside is to be a symbol: only arguments, and not what names a choice."""
    if ALL in outside.symbolic and is_argument(node.source):
        return True
    return (node.source, dim) in outside.symbolic


def symbolic_int(t: Trace, node: Node, real: int) -> Any:
    """A symbol for an int argument. Symbols are above zero: one below it is minus the symbol of a place of its own."""
    mode, outside = t.graph.mode, t.outside
    if real < -1:
        node.guards.append((Check.TYPE, int))
        outside.tree.order.append(node)
        node.real, node.value = real, -symbolic_int(t, node.child(Step.NEGATIVE, None), -real)
        outside.tree.known[id(node.value)] = node
        return node.value
    value = mode.symbol(real, str(node.source))
    node.real, node.value = real, value
    if isinstance(value, torch.SymInt):
        outside.symbolic_places.append(node)
        outside.tree.known[id(value)] = node
        node.guards.append((Check.EQUAL, mode.symbols[str(value.node.expr)]))
    else:
        node.guards.append((Check.EQUAL, real))
    outside.tree.order.append(node)
    return value


def symbolic_float(t: Trace, node: Node, real: float) -> Any:
    """A symbol for a float from outside; None where it cannot be one."""
    value = t.graph.mode.float_symbol(real, str(node.source))
    if not isinstance(value, torch.SymFloat):
        return None
    node.real, node.value = real, value
    t.outside.symbolic_places.append(node)
    t.outside.tree.known[id(value)] = node
    node.guards.append((Check.TYPE, float))
    t.outside.tree.order.append(node)
    return value


# -- sizes that the user spoke of, in one trace: their symbols, and who turned one into a constant


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
