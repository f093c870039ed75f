"""What is compared of each entry of PyTorch's tables, beside what tests/end_to_end/ops.py does with usual samples."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.testing._internal.opinfo.core import OpInfo

import braze
from tests.end_to_end import op_gradients, ops
from tests.tables import inputs


def special_values(name: str, dtype: torch.dtype, most: int) -> list[str]:
    """Where special values are not what eager makes of them: nan, infinities, zeros of both signs, the smallest and largest."""
    if name == "lcm":  # of the smallest integer and -1, which ends the process in eager, too
        return []
    op = ops.OPS[name]
    made = [inputs.special(op, call, dtype, seed) for seed, call in enumerate(ops.calls(op, dtype, most))]
    judge = by_element if isinstance(op, inputs.ELEMENTWISE) and name not in EITHER_ZERO else by_class
    return ops.check_calls(
        op.op, [*made, *inputs.grid(op, dtype)], values=name not in ops.UNDEFINED, judge=judge
    )


#: operators of which eager's vectors and its scalars make zeros of different signs, by an element's place
EITHER_ZERO = {"maximum", "minimum", "max.binary", "min.binary", "fmax", "fmin", "clamp", "clamp_max", "clamp_min", "nn.functional.softshrink"}  # fmt: skip


def by_class(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None) -> str:
    """Whether nan and infinities are where eager has them, or where the exact result has; and the finite rest is as near."""
    if theirs.is_complex():
        ours, theirs = torch.view_as_real(ours.resolve_conj()), torch.view_as_real(theirs.resolve_conj())
        exact = torch.view_as_real(exact.resolve_conj()) if exact is not None and exact.is_complex() else None
    if exact is None or exact.shape != theirs.shape or not exact.is_floating_point():
        exact = theirs
    rounded = exact.to(theirs.dtype)
    known = alike(ours, theirs) | alike(ours, rounded)
    if not known.all():
        bad = ~known
        return f"has {of(ours, bad)}, not {of(theirs, bad)}; exactly {of(exact, bad)}"
    finite = ours.isfinite() & theirs.isfinite() & rounded.isfinite()
    return ops.real_difference(ours[finite], theirs[finite], exact[finite])


def alike(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where both are nan, the same infinity, or finite."""
    return torch.where(a.isnan() | b.isnan(), a.isnan() & b.isnan(), (a == b) | (a.isfinite() & b.isfinite()))


def by_element(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None) -> str:
    """As ``by_class``, each element on its own, and the signs of zeros."""
    if (differs := by_class(ours, theirs, exact)) or theirs.is_complex():
        return differs
    exact = theirs if exact is None or not exact.is_floating_point() else exact
    zero = (ours == 0) & (theirs == 0)
    sign = ours.signbit()
    if (other := zero & (sign != theirs.signbit()) & (sign != exact.signbit())).any():
        return f"has zeros of another sign: {of(ours, other)}, not {of(theirs, other)}"
    info = torch.finfo(theirs.dtype)
    finite = ours.isfinite() & theirs.isfinite() & exact.isfinite()
    a, b, c = ours[finite].double(), theirs[finite].double(), exact[finite].double()
    least = info.smallest_normal * info.eps
    off = (a - c).abs() > 2 * (b - c).abs() + 16 * info.eps * c.abs() + 4 * least
    return "" if not off.any() else f"has other elements: {of(a, off)}, not {of(b, off)}"


def of(t: torch.Tensor, mask: torch.Tensor) -> str:
    return str(t[mask][:4].tolist())


def layouts(name: str, dtype: torch.dtype, most: int, layout: str, **words: Any) -> list[str]:
    """Where operands that lie in memory in an unusual way lead to other values or another layout than in eager."""
    op = ops.OPS[name]
    usual = ops.calls(op, dtype, most)
    made = [inputs.laid_out(call, layout) for call in usual]
    made += [inputs.laid_out(call, layout, first_only=True) for call in usual if len(ops.leaves(call)) > 1]
    if name.startswith("signal.windows."):
        words["judge"] = of_cosines
    return ops.check_calls(op.op, made, values=name not in ops.UNDEFINED, **words)


def of_cosines(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor | None) -> str:
    """As the usual judge, of what is left of sums of cosines: roundings are those of the terms, of which the largest is about one."""
    one = torch.ones(1, dtype=theirs.dtype)
    whole = [torch.cat((t.reshape(-1), one.to(t.dtype))) for t in (ours, theirs)]
    return ops.real_difference(
        *whole, None if exact is None else torch.cat((exact.reshape(-1), one.to(exact.dtype)))
    )


# -- forward mode -------------------------------------------------------------------------------


def has_forward_mode(name: str) -> bool:
    op = ops.OPS[name]
    return op.supports_forward_ad and name in op_gradients.names()


def forward_mode(name: str, most: int, *, inside: bool) -> list[str]:
    """Where derivatives along a direction differ: taken inside the compiled program, or of it."""
    op = ops.OPS[name]
    given = op_gradients.calls(op, most)
    found = []
    for k, call in enumerate(given):
        call = inputs.each_tensor(call, lambda t: t.detach() if not t.requires_grad else t)
        primals = [t.detach() for t in op_gradients.asked(call)]
        tangents = [op_gradients.tangent(t, seed).expand_as(t) for seed, t in enumerate(primals)]
        run = of_primals(op.op, call)
        braze.reset()
        if inside:
            theirs = along(lambda p, t, run=run: pushed(run, p, t), primals, tangents)
            if isinstance(theirs, Exception):
                continue
            compiled = braze.compile(
                lambda p, t, run=run: pushed(run, p, t), options={"verify": 2, "fallback_random": True}
            )
            ours = along(compiled, primals, tangents)
        else:
            theirs = along(lambda p, t, run=run: duals(run, p, t), primals, tangents)
            if isinstance(theirs, Exception):
                continue
            compiled = braze.compile(run, options={"verify": 2, "fallback_random": True})
            ours = along(lambda p, t, c=compiled: duals(c, p, t), primals, tangents)
        if isinstance(ours, Exception):
            found.append(f"sample {k}: {ops.said(ours)}")
        else:
            found += [f"sample {k}: {what}" for what in op_gradients.compare(ours, theirs, "result")]
    return found


def of_primals(fn: Callable[..., Any], call: ops.Call) -> Callable[..., Any]:
    """The call as a function of the arguments that ask for gradients."""

    def run(*primals: torch.Tensor) -> Any:
        left = iter(primals)
        args, kwargs = inputs.each_tensor(call, lambda t: next(left) if t.requires_grad else t)
        return [t for t in ops.leaves(fn(*args, **kwargs)) if op_gradients.floating(t)]

    return run


def pushed(run: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    return list(torch.func.jvp(run, tuple(primals), tuple(tangents)))


def duals(run: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    with forward_ad.dual_level():
        made = [forward_ad.make_dual(p, t) for p, t in zip(primals, tangents, strict=True)]
        return [list(forward_ad.unpack_dual(t)) for t in run(*made)]


def along(fn: Callable[..., Any], primals: list[Any], tangents: list[Any]) -> Any:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return fn(copy.deepcopy(primals), copy.deepcopy(tangents))
        except Exception as error:
            return error


# -- tables of few entries ----------------------------------------------------------------------


def entry(op: OpInfo, dtype: torch.dtype, most: int) -> Iterator[str]:
    """In what an entry of a table of OpInfo differs, as a function and in place."""
    for variant, fn in ops.variants(op).items():
        for what in ops.check_calls(fn, ops.calls(op, dtype, most, variant)):
            yield f"{variant}: {what}"
