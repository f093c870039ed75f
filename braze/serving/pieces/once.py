"""A function captured once, whose later calls are bound by no guards.

The first call captures and compiles it; from then on a call runs the graph on what it needs (arguments, parameters, buffers: as they are then). What guards
would have made another capture of is taken for granted: :meth:`CompiledOnce.dropped_guards` lists it. The native walk over the guards is the fastest way to
the graph's inputs all the same, so that a call for which one does not hold is noticed: it is told of once, and with ``evaluate_guards``
refused. What is never taken for granted is how tensors lie in memory and which of them are one: kernels would read what is not theirs, so that a
call with others runs the function as it is. Sizes 0 and 1 are other programs than larger ones, and are captured by themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import keyword
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from braze.capture.dispatch.session import compile_callable
from braze.capture.dispatch.stance import Stance, stance
from braze.capture.dispatch.variants import Variant
from braze.capture.facts.records import Check
from braze.capture.guards.guard_text import guard_text, ranked
from braze.capture.guards.misses import explain_miss
from braze.capture.guards.tables import GuardTable
from braze.cudagraphs.simulated import unseen
from braze.graph.private.torch_compat import watched
from braze.native.torch_state import traced_by_another
from braze.options import make_options
from braze.support.errors import UserError
from braze.support.log import warn
from braze.symbolic.shape_rules import parse_shapes

#: dimensions by argument, each with the name of its size
Dims = Mapping[str, Mapping[int, str]]


class CompiledOnce:
    """``function`` compiled by ``backend`` at its first call. ``dims``: the sizes that vary; all others are those of the first call.

    A ``backend`` that ``keeps`` has its captures kept on disk: another process takes one whose guards hold of its first call for its own.

    ``evaluate_guards``: UserError (BZ7217) for a call of which something that was taken for granted is not true; else that is logged, once. A call that
    fails leaves nothing behind; several threads may call. Where the stance says so, or another tracer or mode is at work, ``function`` runs as it is.
    """

    def __init__(
        self,
        function: FunctionType | MethodType,
        backend: Callable[..., Any],
        dims: Dims,
        *,
        evaluate_guards: bool = False,
        name: str = "",
    ) -> None:
        self.function, self.backend, self.dims = function, backend, dims
        self.evaluate_guards, self.name = evaluate_guards, name or function.__qualname__
        self._plain: Any = function.__func__ if isinstance(function, MethodType) else function
        self._bound = (function.__self__,) if isinstance(function, MethodType) else ()
        self._signature = inspect.signature(self._plain)
        #: the argument that tells how small a call is
        self._first = next(iter(dims.items()), None)
        self._made: dict[Any, _Made] = {}
        #: of a function that hides its arguments: by the form of a call, what names them
        self._hides = set(self._signature.parameters) != set(_slot_names(self._plain.__code__))
        self._forms: dict[Any, CompiledOnce] = {}
        self._lock = threading.RLock()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if stance() is Stance.FORCE_EAGER or traced_by_another():
            return self.function(*args, **kwargs)
        if self._hides:
            return self._of_form(len(args), tuple(kwargs))(*args, **kwargs)
        slots = self._slots(args, kwargs)
        kind = self._kind(slots)
        made = self._made.get(kind)
        if made is None:
            return self._make(kind, slots, args, kwargs)
        return self._run(made, slots, args, kwargs)

    def captured(self) -> int:
        """How many captures there are: one, and one for each size below 2 that was called."""
        return len(self._made) + sum(form.captured() for form in self._forms.values())

    def dropped_guards(self) -> tuple[str, ...]:
        """What is taken for granted since it held at the first call, most telling first."""
        found: dict[str, None] = {}
        for made in self._made.values():
            found.update(dict.fromkeys(made.guards()))
        for form in self._forms.values():
            found.update(dict.fromkeys(form.dropped_guards()))
        return tuple(found)

    def reset(self) -> None:
        """Capture again at the next call."""
        self._made, self._forms = {}, {}

    # -- a call

    def _of_form(self, count: int, keywords: tuple[str, ...]) -> Callable[..., Any]:
        """What serves calls with so many arguments by place, and these by name, of a function that hides them (``functools.wraps`` around ``*args, **kwargs``)."""
        with self._lock:
            found = self._forms.get((count, keywords))
            if found is not None:
                return found
            names = places_of(self.function, count, keywords)
            if len({*names, *keywords}) < count + len(keywords) or not all(map(_is_name, keywords)):
                return self.function  # named as no parameter of a function can be
            made = called_in_form(self.function, names, keywords)
            dims = {name: sizes for name, sizes in self.dims.items() if name in (*names, *keywords)}
            found = self._forms[count, keywords] = CompiledOnce(
                made, self.backend, dims, evaluate_guards=self.evaluate_guards, name=self.name
            )
            return found

    def _run(self, made: _Made, slots: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        """Run a graph, or the function where no graph can: another mode is to see what it does, or tensors lie otherwise."""
        inputs = made.inputs(slots, self.evaluate_guards)
        return self.function(*args, **kwargs) if inputs is None else made.residual(inputs, *slots)

    def _slots(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments as the function's frame has them."""
        code = self._plain.__code__
        given = (*self._bound, *args)
        if (
            not kwargs
            and len(given) == code.co_argcount
            and not code.co_kwonlyargcount
            and not code.co_flags & 12
        ):
            return given
        bound = self._signature.bind(*given, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in _slot_names(code))

    def _kind(self, slots: Sequence[Any]) -> int:
        """A size below 2 is a program of its own; all others share one."""
        if self._first is None:
            return 2
        name, dims = self._first
        value = slots[_slot_names(self._plain.__code__).index(name)]
        return min(2, *(value.shape[d] for d in dims), 2) if isinstance(value, torch.Tensor) else 2

    def _make(self, kind: int, slots: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        """The call that captures: by an entry of its own, which checks what it has made against this very call."""
        with self._lock:
            made = self._made.get(kind)
            if made is not None:  # by another thread meanwhile
                return self._run(made, slots, args, kwargs)
            options = make_options(
                fullgraph=True,
                shapes=self._rules(slots) if kind == 2 else (),
                keep_captures=getattr(self.backend, "keeps", False),
            )
            function: Any = self.function
            entry = compile_callable(function, self.backend, options, name=self.name)
            result = entry(*args, **kwargs)
            variants = entry.on_miss.__self__.variants
            if len(variants) == 1:  # else it runs as it is: a stance, or another tracer at work
                self._made[kind] = _Made(variants[0], self._plain, self.name)
            return result

    def _rules(self, slots: Sequence[Any]) -> Any:
        """The sizes that vary as words of ``shapes=``; arguments that this call does not have are left out."""
        rules: dict[str, tuple[Any, ...]] = {}
        for name, value in zip(_slot_names(self._plain.__code__), slots, strict=True):
            dims = self.dims.get(name)
            if not dims or not isinstance(value, torch.Tensor):
                continue
            named = {d % value.ndim: size for d, size in dims.items()}
            rules[name] = (*(named.get(d) for d in range(max(named) + 1)), ...)
        return parse_shapes(rules)


class _Made:
    """A variant, and what of its guards no call may break."""

    def __init__(self, variant: Variant, function: FunctionType, name: str) -> None:
        self.variant, self.function, self.name = variant, function, name
        self.match, self.residual = variant.program.match, variant.residual
        self.told: set[bool] = set()

    def inputs(self, slots: tuple[Any, ...], strict: bool) -> tuple[Any, ...] | None:
        """The graph's inputs for a frame's arguments; None where a mode is on that a graph would be hidden from, or tensors are not as its kernels read them."""
        found = self.match(self.function, slots)
        if found is not None:
            return found
        with unseen():
            found = self.match(self.function, slots)
            if found is not None or watched():
                return found
            found = self.kept[1].match(self.function, slots)
            self._unlike(slots, strict, fits=found is not None)
            return found

    @functools.cached_property
    def kept(self) -> tuple[GuardTable, Any]:
        """The guards that no call may break, and their program; made for the first call that breaks any."""
        table = kept_guards(self.variant.table)
        return table, table.program()

    def guards(self) -> list[str]:
        """The guards as text."""
        capture = self.variant.capture
        return [guard_text(guard, capture.code) for guard in ranked(capture.guards)]

    def _unlike(self, slots: tuple[Any, ...], strict: bool, *, fits: bool) -> None:
        """A call that the capture was not made for: refused, or told of once. ``fits``: what was captured can run all the same."""
        if fits in self.told and not strict:
            return
        self.told.add(fits)
        variant = self.variant
        table, program = (variant.table, variant.program) if fits else self.kept
        miss = explain_miss(variant.capture, table, program, self.function, slots)
        error = UserError(
            "BZ7217",
            f"{self.name} is called with what it was not captured for: {miss.text if miss is not None else 'a guard does not hold'}",
            why="it is captured once, and calls that differ run what was captured"
            if fits
            else "it is captured once for tensors that lie otherwise, and such a call runs as it is, not compiled",
            hints=["let the dimension vary (dynamic_arg_dims)", "or use level=1, which captures again"],
        )
        if strict:
            raise error
        warn(str(error), "recompiles")


#: what checks of a guard program hold for: where a graph's kernels read and write
_KEPT = frozenset(
    {Check.TENSOR.value, Check.INT.value, Check.ALIAS.value, Check.DISTINCT.value, Check.RANGE.value}
)


def kept_guards(table: GuardTable) -> GuardTable:
    """The guards that a graph's kernels rely on for their memory: types, sizes and strides of tensors, and which of them are one."""
    kept = [i for i, (_, check, _) in enumerate(table.checks) if check in _KEPT]
    checks = []
    for row, check, expected in (table.checks[i] for i in kept):
        # whether gradients are wanted, and of which mode it is, reads nothing
        bare = (*expected[:5], None, None) if check == Check.TENSOR.value else expected
        checks.append((row, check, bare))
    return dataclasses.replace(table, checks=tuple(checks), guards=tuple(table.guards[i] for i in kept))


def places_of(function: FunctionType | MethodType, count: int, keywords: Sequence[str]) -> tuple[str, ...]:
    """The names of so many arguments by place, as the signature tells them. TypeError for a call that it does not take."""
    signature = inspect.signature(function)
    signature.bind(*range(count), **dict.fromkeys(keywords))
    shown = [p.name for p in signature.parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    return tuple(shown[i] if i < len(shown) else f"further_{i}" for i in range(count))


def called_in_form(
    function: FunctionType | MethodType, places: Sequence[str], keywords: Sequence[str]
) -> FunctionType | MethodType:
    """A function of these arguments, by place and by name, that calls ``function`` in just that form: its frame has them by their names."""
    places = [*(["self"] if isinstance(function, MethodType) else []), *places]
    taken = ", ".join([*places, *(["*", *keywords] if keywords else [])])
    passed = ", ".join([*places, *(f"{name}={name}" for name in keywords)])
    plain: Any = function.__func__ if isinstance(function, MethodType) else function
    scope: dict[str, Any] = {_CALLED: plain, "__name__": plain.__module__}
    exec(f"def forward({taken}):\n    return {_CALLED}({passed})\n", scope)
    made: FunctionType = scope["forward"]
    made.__qualname__ = plain.__qualname__
    return MethodType(made, function.__self__) if isinstance(function, MethodType) else made


#: what the function is called in the text of one that calls it
_CALLED = "__called__"


def _is_name(word: str) -> bool:
    return word.isidentifier() and not keyword.iskeyword(word) and word != "self"


def _slot_names(code: Any) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return code.co_varnames[:count]  # type: ignore[no-any-return]
