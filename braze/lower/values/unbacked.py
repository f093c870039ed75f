"""Numbers read out of tensors, and what must hold of sizes that only the data tell."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from braze.loops import build
from braze.loops.ir import Condition, DType, ExternCall, LoopNest, MadeSize, SizeCheck
from braze.lower.values import scalars
from braze.lower.values.lazy import Lazy
from braze.lower.values.realize import ProgramBuilder
from braze.runtime.operators.number_places import REQUIRE_PLACE
from braze.support.errors import Unsupported
from braze.support.nested import every
from braze.symbolic.expr import ZERO, Expr, Symbol, as_expr
from braze.symbolic.names import is_told_by_data

READ = torch.ops.aten._local_scalar_dense.default
CHECK = torch.ops.aten._assert_scalar.default
TARGETS = frozenset({READ, CHECK, REQUIRE_PLACE})

#: function of a graph -> the question about sizes
QUESTIONS: dict[Any, str] = {
    operator.eq: "eq", operator.ne: "ne", operator.lt: "lt", operator.le: "le", operator.gt: "gt", operator.ge: "ge",
    operator.and_: "and", operator.or_: "or", torch.sym_not: "not",
}  # fmt: skip


def lowered(g: ProgramBuilder, target: Any, args: Sequence[Any], val: Any) -> Any:
    """The value of a node that reads a number, checks a condition, or is one."""
    if target is READ:
        return number(g, args[0], val)
    if target is CHECK:
        return check(g, *args)
    if target is REQUIRE_PLACE:
        return require_place(g, *args)
    question = QUESTIONS.get(target)
    if question is None or not all(isinstance(a, (Expr, int, Condition, bool)) for a in args):
        raise Unsupported("BZ3002", f"{target} in a condition that only the data decide", origin=g.origin)
    return condition(question, args)


def number(g: ProgramBuilder, x: Lazy, val: Any) -> Any:
    """A float stays in memory, as a double; an integer or bool is read by the host, and is a size from then on."""
    if isinstance(val, torch.SymFloat):
        zeros = (ZERO,) * x.rank
        loaded = Lazy(
            (), DType.F64, x.device, lambda index: build.cast(x.load(zeros), DType.F64), cost=1, ops=("item",)
        )
        return scalars.weak(loaded)
    symbol = g.symbols.found(val)
    if symbol is None:
        raise Unsupported("BZ3002", f"a number read out of a tensor as {val}", origin=g.origin)
    if symbol not in g.known_sizes:
        g.known_sizes.add(symbol)
        view = g.realize(x)
        made = (MadeSize(symbol, 0, -1),)
        g.add(
            ExternCall(
                g.name_step(("item",)), "aten._local_scalar_dense.default", (view,), (), ("",), device=x.device,
                ops=("item",), origin=g.origin, makes=made,
            )
        )  # fmt: skip
    return condition("eq", (symbol, 1)) if isinstance(val, torch.SymBool) else symbol


def condition(op: str, args: Sequence[Any]) -> Any:
    """A question as data; a plain bool where it is one."""
    if op in ("and", "or"):
        plain = [a for a in args if isinstance(a, bool)]
        rest = [a for a in args if not isinstance(a, bool)]
        if not rest or any(a is (op == "or") for a in plain):
            return all(plain) if op == "and" else any(plain)
        return rest[0] if len(rest) == 1 else Condition(op, tuple(rest))
    if op == "not":
        return not args[0] if isinstance(args[0], bool) else Condition(op, tuple(args))
    return Condition(op, tuple(as_expr(a) for a in args))


def check(g: ProgramBuilder, holds: Any, message: str) -> None:
    """A check of the program."""
    if isinstance(holds, Condition):
        g.checks.append(SizeCheck(holds, message))
    elif holds is not True:
        raise Unsupported("BZ3002", f"a check of {holds}", origin=g.origin)


def makes_sizes(g: ProgramBuilder, val: Any) -> bool:
    """Whether a result has a size that is known only once its operator has run."""
    sizes = [n for v in every(torch.Tensor, val) for n in v.shape if isinstance(n, torch.SymInt)]
    return any(g.symbols.found(n) not in (None, *g.known_sizes) for n in sizes)


def require_some(g: ProgramBuilder, size: Expr) -> None:
    """Check that there are elements to pick one of, where only the data tell whether there are."""
    low = size.bounds()[0]
    if size.value is None and (low is None or low <= 0):
        check(g, Condition("ne", (size, ZERO)), f"{g.op_name}(): expected a size of {size} other than 0")


#: what eager takes as a number beside a tensor
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def require_words(g: ProgramBuilder, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check that what is computed of sizes and taken as a number fits 64 bits, as loops compute it: eager refuses what does not."""
    if not any(map(_is_computed, (*args, *kwargs.values()))):
        return
    for parameter, value in _given(target, args, kwargs):
        if _is_computed(value) and "int" not in str(parameter.type).lower():
            _require_between(g, value, _LEAST, _GREATEST, f"{g.op_name}(): {value} is too big to convert")


def _is_computed(value: Any) -> bool:
    """Whether a number is made of sizes, not one of them."""
    return isinstance(value, Expr) and not isinstance(value, Symbol)


#: what gives the same 64 bits, whether or not a number before it has left them
_WRAPS = frozenset({operator.add, operator.sub, operator.mul, operator.neg, operator.pow})


def require_exact(
    g: ProgramBuilder, target: Any, args: Sequence[Any], symbols: Collection[Symbol] | None = None
) -> None:
    """Check that numbers fit 64 bits, as loops compute them, before a quotient, a comparison or a float is made of them: Python's have no end.

    ``symbols``: look only at what is made of one of these.
    """
    if target in _WRAPS:
        return
    for value in args:
        if not _is_computed(value):
            continue
        if symbols is None or not value.symbols().isdisjoint(symbols):
            _require_between(g, value, _LEAST, _GREATEST, f"{value} is too big to convert")


def _given(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """The declared parameters of an operator that a call gives, each with its argument."""
    declared = target._schema.arguments
    return [*zip(declared, args, strict=False), *((p, kwargs[p.name]) for p in declared if p.name in kwargs)]


#: type -> what eager's errors call it
_IN_WORDS = {
    torch.uint8: "uint8_t", torch.int8: "int8_t", torch.int16: "int16_t", torch.int32: "int", torch.float16: "c10::Half",
}  # fmt: skip


def require_place(g: ProgramBuilder, value: Any, dtype: torch.dtype, elements: Any = None) -> None:
    """Check that a type holds a number made of sizes, where eager refuses what it does not (be it unless there is one element); floats are looked at before the call."""
    if not isinstance(value, Expr) or dtype not in _IN_WORDS:
        return
    if dtype.is_floating_point:
        low, high = int(torch.finfo(dtype).min), int(torch.finfo(dtype).max)
    else:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        low = min(low, -high)  # eager lets what has no sign be negated
    message = f"value cannot be converted to type {_IN_WORDS[dtype]} without overflow"
    _require_between(g, value, low, high, message, elements)


def _require_between(
    g: ProgramBuilder, value: Expr, least: int, greatest: int, message: str, elements: Any = None
) -> None:
    """Check that a number lies between two; of one element it may be any, if told how many there are."""
    low, high = value.bounds()
    if low is None or high is None or low < least or high > greatest:
        fits = (Condition("ge", (value, as_expr(least))), Condition("le", (value, as_expr(greatest))))
        within = Condition("and", fits)
        one = condition("eq", (elements, 1)) if elements is not None else False
        check(g, condition("or", (within, one)), message)


def require_known(g: ProgramBuilder, inputs: Collection[Symbol]) -> None:
    """Refuse a program that needs a size which no step and no input tells."""
    known = {*inputs, *g.known_sizes}
    extents: list[Expr] = [e for b in g.buffers.values() for e in b.sizes]
    for step in g.steps:
        if isinstance(step, LoopNest):
            extents += [a.extent for a in (*step.axes, *step.reduce_axes)]
    missing = {s for e in extents for s in e.symbols() if is_told_by_data(s.name)} - known
    if missing:
        names = ", ".join(sorted(map(str, missing)))
        raise Unsupported("BZ3002", f"sizes that nothing tells: {names}", origin=g.origin)
