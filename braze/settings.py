"""What one call of ``braze.compile`` asked for, as data: checked once, pickled with a compiled module."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from braze.backends.registry import find_backend
from braze.graph.operators.decompositions import as_table
from braze.options import Options, make_options
from braze.support.errors import UserError
from braze.support.log import warn_once
from braze.support.record import record
from braze.symbolic.shape_rules import ShapeRules


def switch(name: str, value: Any, takes: str = "True or False") -> bool:
    """The value of an argument that is on or off. Raises BZ0012: any text is true to Python, ``"no"`` too."""
    if value not in (True, False):
        raise UserError("BZ0012", f"{name}= takes {takes}, not {value!r}", hints=[f"{name}=True"])
    return bool(value)


def pairs(options: Any) -> tuple[tuple[str, Any], ...]:
    """Options as they are kept. Raises BZ0003 for what is no dict of them."""
    if options is not None and not isinstance(options, Mapping):
        make_options(options=options)
    return tuple((options or {}).items())


@record
class Settings:
    """The words of ``braze.compile`` but for the model."""

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable[..., Any] = "braze"
    mode: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    shapes: tuple[ShapeRules, ...] = ()

    def check(self) -> None:
        """Refuse an unknown backend, mode or option now rather than at the first call."""
        find_backend(self.backend)
        options = self.resolve()
        as_table(dict(options.decompositions))
        asked = [name for name in ("max_autotune", "coordinate_descent_tuning") if getattr(options, name)]
        if asked and not torch.cuda.is_available():
            warn_once(
                "BZ0010",
                f"BZ0010: {' and '.join(asked)} (mode={self.mode!r}) changes nothing without a GPU",
                "kernels",
            )

    def resolve(self) -> Options:
        """The options that capture and the stages get.

        A callable backend may have options of its own: those that braze does not know are handed to it.
        """
        given = dict(self.options)
        if callable(self.backend):
            known = {field.name for field in dataclasses.fields(Options)}
            given = {name: value for name, value in given.items() if name in known}
        elif self.mode is not None and given:
            return make_options(mode=self.mode, options=given)
        mode = None if callable(self.backend) or given else self.mode
        return make_options(
            mode=mode, options=given, fullgraph=self.fullgraph, dynamic=self.dynamic, shapes=self.shapes
        )

    def bound_backend(self) -> Callable[..., Any]:
        """The backend as ``(graph module, example inputs) -> callable``."""
        backend = find_backend(self.backend)
        if backend.needs_options:
            return functools.partial(backend.compile, options=self.resolve())
        words: dict[str, Any] = {}
        if callable(self.backend):
            if self.mode not in (None, "default"):
                words["mode"] = self.mode
            known = {field.name for field in dataclasses.fields(Options)}
            own = {name: value for name, value in self.options if name not in known}
            if own:
                words["options"] = own
        return functools.partial(backend.compile, **words) if words else backend.compile
