"""What has a meaning of its own while tracing, in one table: callables, code, methods, classes, libraries.

Features enter rows as they are loaded (``trace.tracer.features`` lists them); whoever interprets looks here first.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

from braze.capture.facts.libraries import is_library_function

F = TypeVar("F", bound=Callable[..., Any])


class Handlers:
    """The rows, by what they are found by. A handler gets the trace first; MISSING from one that may tells to go on."""

    def __init__(self) -> None:
        #: function, built-in, method in C or class -> (t, args, kwargs, tail): what a call of it means
        self.calls: dict[Any, Any] = {}
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
        #: class -> (recipes, object): how residual code makes one again
        self.recipes: dict[type, Any] = {}
        #: asked in turn for callables in C that nothing else knows: (t, callable, args, kwargs), or MISSING
        self.libraries: list[Any] = []

    def call(self, *targets: Any) -> Callable[[F], F]:
        """Enter a function as the meaning of some callables."""

        def enter(function: F) -> F:
            for target in targets:
                if target is None or (
                    isinstance(target, types.FunctionType) and not is_library_function(target)
                ):
                    continue  # the program has put a function of its own there
                if target in self.calls:
                    raise KeyError(f"two rules for {target}: {self.calls[target]} and {function}")
                self.calls[target] = function
            return function

        return enter


HANDLERS = Handlers()
rule = HANDLERS.call
