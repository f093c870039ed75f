"""What has a meaning of its own while tracing, in one table: callables, code, methods, classes, libraries.

A :class:`Feature` says what one family of them means; the tracer hands all features in as a tuple (``trace.tracer.features``), and
whoever interprets looks here first.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

from braze.capture.facts.libraries import is_library_function

F = TypeVar("F", bound=Callable[..., Any])


class Rows:
    """Rows by what they are found by. A handler gets the trace first; MISSING from one that may tells to go on."""

    def __init__(self) -> None:
        #: code of functions that others make, with marks or of functools -> (t, function, args, kwargs)
        self.codes: dict[types.CodeType, Any] = {}
        #: (class, name of a method in C) -> (t, object, args, kwargs, tail), or MISSING
        self.methods: dict[tuple[type, str], Any] = {}
        #: class -> (t, object, args, kwargs, tail): what a call of an object of it means
        self.objects: dict[type, Any] = {}
        #: class in C -> (t, object from outside, name): a field that is known without reading it there, or MISSING
        self.fields: dict[type, Any] = {}
        #: class in C -> (t, object): its length where that is known without a look inside, or MISSING
        self.lengths: dict[type, Any] = {}
        #: class -> (recipes, object): how residual code makes one again; None: as any other
        self.recipes: dict[type, Any] = {}
        #: asked in turn for callables in C that nothing else knows: (t, callable, args, kwargs), or MISSING
        self.libraries: list[Any] = []
        #: name of a module in Python -> (t, function of it, args, kwargs), or MISSING
        self.modules: dict[str, Any] = {}
        #: (recorder, symbol): the node that gives a number which only a call tells, or None
        self.nodes: list[Any] = []
        #: (t, recipes) -> what is done when the graph has run, in this order
        self.effects: list[Any] = []
        #: (t, recipes): asked when all that is handed on is known; Unrebuildable sends the trace back
        self.checks: list[Any] = []
        #: called with the trace when it has ended, however it did
        self.finish: list[Any] = []

    def tables(self) -> tuple[dict[Any, Any], ...]:
        """What is found by a key."""
        return self.codes, self.methods, self.objects, self.fields, self.lengths, self.recipes, self.modules

    def lists(self) -> tuple[list[Any], ...]:
        """What is asked in turn."""
        return self.libraries, self.nodes, self.effects, self.checks, self.finish


class Feature(Rows):
    """What one family means: its rows, which take part from when it is handed to the tracer."""

    def __init__(self) -> None:
        super().__init__()
        #: (callables, their meaning, whether a row of another for one of them goes before), in order
        self.calls: list[tuple[tuple[Any, ...], Any, bool]] = []

    def call(self, *targets: Any, unless_known: bool = False) -> Callable[[F], F]:
        """Say that a function is the meaning of some callables."""

        def enter(function: F) -> F:
            self.calls.append((targets, function, unless_known))
            return function

        return enter

    def rows(self, meanings: dict[Any, Callable[..., Any]]) -> None:
        """Say by a line each what callables mean."""
        for target, meaning in meanings.items():
            self.call(target)(meaning)

    def each(self, *targets: Any) -> Callable[[F], F]:
        """Say that a function is the meaning of each of some callables, which it gets before all else."""

        def enter(function: F) -> F:
            for target in targets:
                self.call(target)(functools.partial(function, target))
            return function

        return enter


class Handlers(Rows):
    """The rows of all features."""

    def __init__(self, *features: Feature) -> None:
        super().__init__()
        #: function, built-in, method in C or class -> (t, args, kwargs, tail): what a call of it means
        self.calls: dict[Any, Any] = {}
        self.enter(*features)

    def enter(self, *features: Feature) -> None:
        """Let features take part, in this order."""
        for feature in features:
            for targets, function, unless_known in feature.calls:
                self._enter_call(targets, function, unless_known)
            for mine, theirs in zip(self.tables(), feature.tables(), strict=True):
                twice = mine.keys() & theirs.keys()
                if twice:
                    raise KeyError(f"two rules for {twice}")
                mine.update(theirs)
            for ours, more in zip(self.lists(), feature.lists(), strict=True):
                ours += more

    def _enter_call(self, targets: tuple[Any, ...], function: Any, unless_known: bool) -> None:
        for target in targets:
            if target is None or (isinstance(target, types.FunctionType) and not is_library_function(target)):
                continue  # the program has put a function of its own there
            known = self.calls.get(target)
            if known is None:
                self.calls[target] = function
            elif not unless_known:
                raise KeyError(f"two rules for {target}: {known} and {function}")


HANDLERS = Handlers()
