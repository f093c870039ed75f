"""Which sizes of which tensors are to be symbols, as told by marks on tensors and by ``shapes=``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from braze.capture.facts.markers import opaque
from braze.support.errors import UserError
from braze.support.record import record
from braze.symbolic.shape_rules import ShapeRules, SizeRule

#: where a tensor keeps its marks: dimension -> Mark
MARKS = "_braze_sizes"


@record
class Mark:
    """What was asked of one dimension. ``strict``: it is an error if the program turns it into a constant."""

    kind: str  # "dynamic" | "batch" | "static" | "unbacked"
    rule: SizeRule = SizeRule()
    strict: bool = True
    where: str = ""  # "x, dimension 0"


@opaque
def mark_dynamic(
    tensor: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Size ``dim`` of this tensor is a symbol from the first compile on; an error if the program fixes it.

    ``min`` and ``max`` are promised, and checked at each call.
    """
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and type(bound) is not int:
            raise UserError(
                "BZ0020", f"mark_dynamic: {name}={bound!r} is no size", hints=[f"{name}= a whole number"]
            )
    if min is not None and max is not None and min > max:
        raise UserError(
            "BZ0020", f"mark_dynamic: min={min} is above max={max}", hints=["the smaller one is min="]
        )
    _mark(tensor, dim, Mark("dynamic", SizeRule("", min, max)))


@opaque
def mark_batch(tensor: torch.Tensor, dim: int = 0) -> None:
    """Rows along ``dim`` are independent: none of the results' rows hangs on another row, nor on how many there are.

    The size is a symbol, as with :func:`mark_dynamic`. With ``options={"cudagraph_sizes": [...]}`` recorded calls are filled up to the next size
    of the list, and the results cut; that rows are independent is checked at the first such call. An error
    (BZ0022) if the program fixes the size.
    """
    _mark(tensor, dim, Mark("batch"))


@opaque
def mark_static(tensor: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Size ``dim`` of this tensor (or all) is a constant, also under dynamic=True."""
    _mark(tensor, range(tensor.dim()) if dim is None else dim, Mark("static"))


@opaque
def mark_unbacked(
    tensor: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None
) -> None:
    """Size ``dim`` is treated as one that only the data tell: one graph serves every size, 0 and 1 included.

    Nothing may be decided by it: an ``if`` on it breaks the graph. What operators need of it is checked when the graph runs.
    """
    _mark(tensor, dim, Mark("unbacked", SizeRule("", min, max), strict=False))


def _mark(tensor: torch.Tensor, dim: Any, mark: Mark) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UserError(
            "BZ0020",
            f"only tensors have sizes to mark, not {type(tensor).__name__}",
            hints=["mark the tensor that is handed to the compiled function"],
        )
    marks = tensor.__dict__.setdefault(MARKS, {})
    for d in _dims(tensor, dim):
        if not mark.rule.allows(tensor.shape[d]):
            raise UserError(
                "BZ0021",
                f"dimension {d} is {tensor.shape[d]}, which is not what was promised: {_text(mark.rule)}",
                hints=["promise what holds of this tensor too"],
            )
        marks[d] = mark


def _dims(tensor: torch.Tensor, dim: Any) -> list[int]:
    """The dimensions that a mark names, counted from the first."""
    given = [dim] if isinstance(dim, int) else dim
    if not isinstance(given, (list, tuple, range)) or any(type(d) is not int for d in given):
        raise UserError(
            "BZ0020", f"a dimension is a whole number, not {dim!r}", hints=["0 is the first, -1 the last"]
        )
    for d in given:
        if not -tensor.dim() <= d < tensor.dim():
            raise UserError(
                "BZ0020",
                f"a tensor of {tensor.dim()} dimensions has no dimension {d}",
                hints=[f"{-tensor.dim()} to {tensor.dim() - 1}" if tensor.dim() else "it has no sizes"],
            )
    return [d % tensor.dim() for d in given]


def marks_of(tensor: torch.Tensor) -> dict[int, Mark]:
    """The marks on a tensor: those of braze, and those that torch._dynamo.mark_... left there."""
    own = tensor.__dict__
    if not own:
        return {}
    found: dict[int, Mark] = {}
    for d in own.get("_dynamo_weak_dynamic_indices", ()):
        found[d] = Mark("dynamic", strict=False)
    bounds = {r.dim: r for r in own.get("_dynamo_dynamic_range", ())}
    for d in own.get("_dynamo_dynamic_indices", ()):
        at = bounds.get(d)
        found[d] = Mark("dynamic", SizeRule("", getattr(at, "min", None), getattr(at, "max", None)))
    limits = own.get("_dynamo_unbacked_bounds", {})
    for name in ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices"):
        for d in own.get(name, ()):
            found[d] = Mark("unbacked", SizeRule("", *limits.get(d, (None, None))), strict=False)
    for d in own.get("_dynamo_static_indices", ()):
        found[d] = Mark("static")
    found.update(own.get(MARKS, {}))
    return found


def any_marks(values: Sequence[Any]) -> bool:
    """Whether a tensor among the arguments, or in a list, tuple or dict there, has marks."""
    waiting: list[Any] = [values]
    seen: dict[int, Any] = {}  # a container may hold itself, and lie deeper than Python's stack goes
    while waiting:
        inside = waiting.pop()
        for value in inside.values() if type(inside) is dict else inside:
            # the class itself: a weak proxy may have lost its object
            if issubclass(type(value), torch.Tensor):
                if value.__dict__ and any(m.kind != "static" for m in marks_of(value).values()):
                    return True
            elif type(value) in (list, tuple, dict) and id(value) not in seen:
                seen[id(value)] = value
                waiting.append(value)
    return False


# -- shapes=


#: id -> (tensor, or array of numpy's; what was asked of its dimensions)
Named = Mapping[int, tuple[Any, dict[int, Mark]]]


def is_array(value: Any) -> bool:
    """Whether this is an array of numpy's, which is not imported for that."""
    return (type(value).__module__, type(value).__name__) == ("numpy", "ndarray")


def named_shapes(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: tuple[ShapeRules, ...]
) -> Named:
    """id of tensor -> (tensor, marks) for a call; :class:`UserError` where the call breaks a rule."""
    given = _bound(function, args, kwargs)
    found: dict[int, tuple[Any, dict[int, Mark]]] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for rules in shapes:
        value = given.get(rules.argument)
        if value is None:
            continue
        if not isinstance(value, torch.Tensor) and not is_array(value):
            raise UserError(
                "BZ0021", f"shapes= names {rules.argument}, which is a {type(value).__name__}, not a tensor"
            )
        if value.ndim != len(rules.dims) and not (rules.open_ended and value.ndim > len(rules.dims)):
            raise UserError(
                "BZ0021",
                f"{rules.argument} has {value.ndim} dimensions; shapes= gives {len(rules.dims)}",
                hints=["end the tuple with ... to leave further sizes as given"]
                if value.ndim > len(rules.dims)
                else (),
            )
        marks = found.setdefault(id(value), (value, {}))[1]
        for d, rule in enumerate(rules.dims):
            _check(rules.argument, d, value.shape[d], rule, sizes)
            if rule.name:
                marks[d] = Mark("dynamic", rule, True, f"{rules.argument}, dimension {d}")
    return found


def _check(argument: str, dim: int, size: int, rule: SizeRule, sizes: dict[str, tuple[int, str]]) -> None:
    where = f"dimension {dim} of {argument}"
    if not rule.allows(size):
        raise UserError(
            "BZ0021", f"{where} is {size}; shapes= says {rule.text!r}", hints=[_advice(size, rule)]
        )
    if rule.name:
        first, place = sizes.setdefault(rule.name, (size, where))
        if first != size:
            raise UserError(
                "BZ0021", f"{where} is {size}, but {place} is {first}; shapes= calls both {rule.name!r}"
            )


def _advice(size: int, rule: SizeRule) -> str:
    if size % rule.multiple:
        up = -(-size // rule.multiple) * rule.multiple
        return f"pad it to {up}, or drop '%{rule.multiple}'"
    return "pass a size in bounds, or widen them"


def _text(rule: SizeRule) -> str:
    parts = [
        f"at least {rule.low}" if rule.low is not None else "",
        f"at most {rule.high}" if rule.high is not None else "",
    ]
    return " and ".join(p for p in parts if p)


def check_names(callee: Callable[..., Any], shapes: tuple[ShapeRules, ...]) -> None:
    """Refuse a name that the function has no argument for."""
    if not shapes:
        return
    try:
        parameters = inspect.signature(callee).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for rules in shapes:
        if rules.argument not in parameters:
            near = get_close_matches(rules.argument, list(parameters), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its arguments: {', '.join(parameters)}"
            raise UserError("BZ0020", f"shapes= names {rules.argument!r}, which is no argument", hints=[hint])


def _bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; those of ``forward`` where the function is the call of a module."""
    callee = function
    if args and isinstance(args[0], nn.Module) and function.__module__ == nn.Module.__module__:
        callee, args = args[0].forward, args[1:]
    bound = inspect.signature(callee).bind(*args, **kwargs)
    found = dict(bound.arguments)
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found.update(found.pop(name, {}))
    return found
