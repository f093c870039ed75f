"""How views came to be: the steps of the program from a tensor to a view of it.

A view that reaches the caller is made again of the caller's tensor, or of the memory that the graph gave, by the program's own
steps in the program's own modes: its history, its base, and what autograd lets the caller do to it are eager's then.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from braze.aot.facts.overlap import is_inside
from braze.aot.facts.records import Formula, ViewStep
from braze.aot.facts.views import is_dense
from braze.graph.fakes.fake_dispatch import holds_unbacked
from braze.graph.fakes.fakes import text_of
from braze.graph.private import torch_compat
from braze.graph.private.torch_symbols import SYMBOLIC

aten = torch.ops.aten

#: operators whose result is a tensor of its own for autograd, over memory that nobody else sees
WHOLES = frozenset({aten._unsafe_view.default})
#: ``.data``, which is no operator
DATA = "data"
#: steps to tensors over the same memory, in which autograd counts no writes to these
UNCOUNTED = frozenset({DATA, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default})
#: steps to what is no view to autograd, over the same memory
_CUTS = frozenset({*UNCOUNTED, aten.detach.default})


class _Made(NamedTuple):
    """A view's last step; ``view`` itself is held so that its id stays its own."""

    number: int
    view: Any
    of: Any
    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    item: int
    grad: bool
    inference: bool


class Ways:
    """What the recorder notes of each view; ``ambient``: grad mode and inference mode where the graph begins."""

    def __init__(self) -> None:
        self.ambient = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        #: whether autograd watches the graph
        self.watched = False
        #: inputs that require grad in the program, by id of what stands for them
        self.graded: set[int] = set()
        self._made: dict[int, _Made] = {}
        self._count = 0
        #: memory -> how many steps had been taken when it was last written, as far as autograd counts writes
        self._written: dict[int, int] = {}
        #: what memory was made as of which a view was changed in place, which autograd counts as a write
        self.turned: list[Any] = []
        #: by id, what was changed in place though it was no view: it is none since, and what views are of. Where autograd watches, such
        #: memory has a history that begins before the change, and to make its views again is refused
        self.changed: dict[int, Any] = {}
        #: parts of what the program cuts into many at once, made alone
        self.parts: list[Any] = []

    def note(
        self, view: Any, of: Any, op: Any, args: Sequence[Any] = (), kwargs: Any = None, item: int = -1
    ) -> None:
        """``view`` is (item ``item`` of) ``op(of, *args, **kwargs)``, called in the modes of now."""
        if op in WHOLES:
            return
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._count += 1
        self._made[id(view)] = _Made(self._count, view, of, op, tuple(args), dict(kwargs or {}), item, *modes)

    def note_wholes(self, results: Iterable[Any], given: Collection[int]) -> None:
        """``results`` are what one operator gives: views of what it was made of here, but of nothing that autograd knows.

        ``given``: the memory of its arguments.
        """
        for result in results:
            if isinstance(result, torch.Tensor) and torch_compat.storage_key(result) not in given:
                self._made.pop(id(result), None)

    def note_parts(self, parts: Mapping[int, Any], of: Any, op: Any, args: Sequence[Any]) -> None:
        """``parts`` were made alone, and are some of what ``op(of, *args)`` makes at once: the caller gets them so."""
        for item, part in parts.items():
            self.parts.append(part)
            self.note(part, of, op, args, item=item)

    def note_written(self, value: Any) -> None:
        """What lies in the memory of ``value`` has been written."""
        if not any(made.op in UNCOUNTED for made in self._chain(value)):
            self._written[torch_compat.storage_key(value)] = self._count

    def note_changed(self, view: Any, before: Any, after: Any) -> None:
        """``view``, for which ``before`` now stands as it was, has become what ``after`` is."""
        if (found := self._made.get(id(view))) is not None:
            self._made[id(before)] = found._replace(view=before)
            self.turned.append(self.memory(view))
            self.note_written(before)
        elif not self.watched:
            self.changed[id(view)] = view
        for made in self.views_of(view):
            self._made[id(made.view)] = made._replace(of=before)  # they are of what it was
        self._made[id(view)] = self._made[id(after)]._replace(view=view)

    def views_of(self, value: Any) -> list[_Made]:
        """The views that one step makes of a value."""
        return [made for made in self._made.values() if made.of is value]

    def windows_beside(self) -> list[Any]:
        """The views by ``as_strided`` that see, or may for other sizes, what the view that they were called on does not."""
        made = [m for m in self._made.values() if m.op is aten.as_strided.default and m.of._is_view()]
        return [m.view for m in made if not (is_dense(m.of) and is_inside(m.view, m.of))]

    def is_alone(self, value: Any) -> bool:
        """Whether a value is no view, and nothing is a view of it."""
        return id(value) not in self._made and not self.views_of(value)

    def _chain(self, value: Any, until: Mapping[int, Any] = MappingProxyType({})) -> list[_Made]:
        """The steps to a value, the last one first, back to memory that the graph is given or makes, or to one of ``until``."""
        found: list[_Made] = []
        while id(value) not in until and (made := self._made.get(id(value))) is not None:
            found.append(made)
            value = made.of
        return found

    def root(self, value: Any) -> Any:
        """The tensor that a value's steps begin with, which is no view."""
        chain = self._chain(value, self.changed)
        return chain[-1].of if chain else value

    def memory(self, value: Any) -> Any:
        """The tensor that a value's memory was made as, as far as autograd counts its writes."""
        while (made := self._made.get(id(value))) is not None and made.op not in UNCOUNTED:
            value = made.of
        return value

    def window_of(self, value: Any) -> Any:
        """The tensor whose memory is counted in a value's elements: that which it was made as, or all of that in another type; None where there is none."""
        whole = self.memory(value)
        if whole.dtype is value.dtype:
            return whole
        covers = value.is_contiguous() and value.nbytes == whole.nbytes
        return value if covers and value.storage_offset() == 0 == whole.storage_offset() else None

    def is_absolute(self, value: Any) -> bool:
        """Whether a view is of a place that ``as_strided`` has named, which no longer depends on where its input starts."""
        return any(counts_from_start(made.op, made.args, made.kwargs) for made in self._chain(value))

    def early(self, value: Any) -> int:
        """How many of the steps to a view were taken before its memory was last written, or never was before them.

        Autograd tells them by that: whether a view looks its history up again, or refuses to.
        """
        written = self._written.get(torch_compat.storage_key(value), self._count)
        return sum(made.number <= written for made in self._chain(value, self.changed))

    def early_of_window(self, value: Any) -> int:
        """As ``early``, of a view that is made again in one step: what counts is when the last one was taken."""
        chain = self._chain(value, self.changed)
        return 1 if chain and self.early(value) == len(chain) else 0

    def early_of_made(self, value: Any) -> int:
        """As ``early``, of a view of what the graph makes, of which a write that never comes tells nothing."""
        return self.early(value) if torch_compat.storage_key(value) in self._written else 0

    def is_outdated(self, value: Any) -> bool:
        """Whether a value is, or is a view of, one of several views made at once, and their memory was written since: autograd refuses it then."""
        written, parts = self._written.get(torch_compat.storage_key(value), -1), {*map(id, self.parts)}
        return any(id(made.view) in parts and made.number <= written for made in self._chain(value))

    def is_locked(self, value: Any) -> bool:
        """Whether autograd lets nobody write to a view with gradients: a step to it was made without them."""
        return any(not made.grad for made in self._followed(value))

    def guard(self, value: Any) -> str:
        """For what autograd lets nobody write to a view with gradients, made where these are on: as one of one made without, or of one of several with a history.

        The last such step decides; the name is PyTorch's. Nothing where it may be written.
        """
        several = self.watched and value.requires_grad
        for made in self._followed(value) if self.ambient[0] else ():
            if not made.grad:
                return "NO_GRAD_MODE"
            if several and made.item >= 0:
                return "MULTI_OUTPUT_NODE"
        return ""

    def _followed(self, value: Any) -> Iterator[_Made]:
        """The steps to a value as far back as it is a view to autograd, the last one first."""
        return itertools.takewhile(lambda made: made.op not in _CUTS, self._chain(value, self.changed))

    def steps(self, value: Any, *, watched: bool = False) -> tuple[ViewStep, ...] | None:
        """The steps from ``root(value)``; none where only memory counts; None where one cannot be told as data.

        ``watched``: autograd may yet come to watch what the steps begin with.
        """
        chain = self._chain(value, self.changed)[::-1]
        if not (watched or self._matters(chain, self.root(value))):
            return ()
        if any(holds_unbacked((*made.args, *made.kwargs.values())) for made in chain):
            return None
        return tuple(_step(made) for made in chain)

    def _matters(self, chain: Sequence[_Made], root: Any) -> bool:
        """Whether autograd tells a chain of views from a window on its root."""
        if self.watched or id(root) in self.graded:
            return bool(chain)
        return any(
            made.op in _CUTS
            or (made.grad, made.inference) != self.ambient
            # of several made at once, none may have a history that comes to the whole behind the graph
            or (made.grad and made.item >= 0)
            for made in chain
        )


def counts_from_start(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of ``as_strided`` or its scatter, given without its tensors, says where in the memory it begins."""
    if op not in (aten.as_strided.default, aten.as_strided_scatter.default):
        return False
    return (args[2] if len(args) > 2 else kwargs.get("storage_offset")) is not None


def _step(made: _Made) -> ViewStep:
    return ViewStep(
        value=made.number,
        op=made.op,
        args=_plain(made.args),
        kwargs=tuple((name, _plain(value)) for name, value in made.kwargs.items()),
        item=made.item,
        grad=made.grad,
        inference=made.inference,
    )


def _plain(value: Any) -> Any:
    """An argument as data: numbers that vary as formulas."""
    if isinstance(value, SYMBOLIC):
        text = text_of(value)
        return Formula(text) if isinstance(text, str) else text
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    return value
