"""Gradients of OpInfo's operators through compiled code, beside eager's, in double precision."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo

import braze
from braze.support import trace
from tests.end_to_end import ops
from tests.seeds import seed

#: eager's values are random, or its gradients are not those of the function
UNDEFINED = {"empty_like", "new_empty", "new_empty_strided"}


@functools.cache
def names() -> tuple[str, ...]:
    """The operators that have gradients in double precision."""
    return tuple(name for name in ops.names() if differentiable(ops.OPS[name]) and name not in UNDEFINED)


def differentiable(op: OpInfo) -> bool:
    return op.supports_autograd and torch.float64 in op.supported_backward_dtypes("cpu")


def calls(op: OpInfo, most: int) -> list[ops.Call]:
    """At most ``most`` calls, evenly from all samples, of which eager can compute gradients: of each share the first."""
    samples = ops.samples_of(op, torch.float64, 30 * most, requires_grad=True)
    made = [((s.input, *s.args), dict(s.kwargs)) for s in samples if ops.fits(s, "function")]
    wanting = [call for call in made if asked(call)]
    share = max(1, -(-len(wanting) // most))
    run = ops.program(op.op)
    shares = [wanting[i : i + share] for i in range(0, len(wanting), share)]
    found = (
        next((call for call in each if not isinstance(gradients(run, [call]), Exception)), None)
        for each in shares
    )
    return [call for call in found if call is not None]


def asked(call: ops.Call) -> list[torch.Tensor]:
    """The arguments whose gradients are wanted."""
    return [t for t in ops.leaves(call) if t.requires_grad]


def gradients(program: Callable[..., Any], given: Sequence[ops.Call]) -> Any:
    """(results, gradients of all arguments that ask for one), or the exception that is raised."""
    seed()
    mine = [fresh(call) for call in given]
    wanted = [t for call in mine for t in asked(call)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = program(mine)
            leaves = [t for t in ops.leaves(results) if t.requires_grad and floating(t)]
            if not leaves or not wanted:
                return (detached(results), [])
            tangents = [tangent(t, k) for k, t in enumerate(leaves)]
            found = torch.autograd.grad(leaves, wanted, tangents, allow_unused=True)
        except Exception as error:
            return error
    return (detached(results), list(found))


def floating(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def fresh(call: Any) -> Any:
    """The call with leaf tensors of its own; a tensor that occurs twice stays one."""
    made: dict[int, torch.Tensor] = {}

    def visit(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if id(value) not in made:
                copied = copy.deepcopy(value.detach())
                made[id(value)] = copied.requires_grad_(value.requires_grad)
            return made[id(value)]
        if isinstance(value, dict):
            return {k: visit(v) for k, v in value.items()}
        if type(value) in (list, tuple):
            return type(value)(visit(v) for v in value)
        return value

    return visit(call)


def tangent(t: torch.Tensor, seed: int) -> torch.Tensor:
    """What one result's gradient is taken with."""
    generator = torch.Generator().manual_seed(seed)
    real = torch.rand(t.shape, generator=generator, dtype=torch.float64) + 0.5
    return real.to(t.dtype)


def detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, (list, tuple)):
        return [detached(v) for v in value]
    return value


def differences(
    fn: Callable[..., Any], given: list[ops.Call], values: bool = True, **options: Any
) -> Iterator[str]:
    """In what results and gradients of compiled code differ from eager's."""
    run = ops.program(fn)
    eager = gradients(run, given)
    assert not isinstance(eager, Exception), eager
    compiled = braze.compile(run, options={"verify": 2, "fallback_random": True}, **options)
    for time in ("first", "second"):
        ours = gradients(compiled, given)
        if isinstance(ours, Exception):
            yield f"{time} call {ops.said(ours)}"
            return
        found = list(compare(ours[0], eager[0], "result")) if values else []
        found += compare(ours[1], eager[1], "gradients")
        if found:
            yield f"{time} call: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else "")
            return


def compare(ours: Any, theirs: Any, where: str) -> Iterator[str]:
    """In what two nested results differ beyond rounding of sums in another order."""
    if isinstance(theirs, (list, tuple)):
        if len(ours) != len(theirs):
            yield f"{len(ours)} {where}, not {len(theirs)}"
            return
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from compare(a, b, f"{where}[{k}]")
    elif isinstance(theirs, torch.Tensor):
        if not isinstance(ours, torch.Tensor):
            yield f"{where} is {ours}, not a tensor"
        elif (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            yield f"{where} is {ours.dtype} {tuple(ours.shape)}, not {theirs.dtype} {tuple(theirs.shape)}"
        else:
            try:
                torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7, equal_nan=True)
            except AssertionError as error:
                yield f"{where}: {' '.join(str(error).split())[:160]}"
    elif ours is not None and theirs is None:
        if bool((ours != 0).any()):
            yield f"{where} is not None"


def check_together(names: Sequence[str], most: int) -> list[str]:
    """What differs for several operators in one graph; for each alone where they do not pass together, or it is not one graph."""
    if len(names) == 1:
        return check(names[0], most)
    functions = [ops.OPS[name].op for name in names]

    def chosen_of(which: int, /, *args: Any, **kwargs: Any) -> Any:
        return functions[which](*args, **kwargs)

    made = [
        ((which, *args), kwargs)
        for which, name in enumerate(names)
        for args, kwargs in calls(ops.OPS[name], most)
    ]
    with ops.one_graph() as is_one:
        found = list(differences(chosen_of, made))
    if not found and is_one():
        return []
    alone = [f"{name}: {what}" for name in names for what in check(name, most)]
    return alone or [f"together only: {what}" for what in found]


def check(name: str, most: int, **options: Any) -> list[str]:
    """What differs for one operator; where several samples do not pass together, which of them fail alone."""
    op = ops.OPS[name]
    chosen = calls(op, most)
    if not chosen:
        return []
    values = op.name not in ops.UNDEFINED
    braze.reset()
    with trace.collect() as events:
        together = list(differences(op.op, chosen, values, **options))
    together += [
        f"runs as captured: {p}"
        for p in sorted({str(p) for k, p in events if k == "fallback"})
        if p.startswith("the graph of")
    ]
    if not together or len(chosen) == 1:
        return together
    alone = []
    for k, call in enumerate(chosen):
        braze.reset()
        alone += [f"sample {k}: {what}" for what in differences(op.op, [call], values, **options)]
    return alone or [f"together only: {what}" for what in together]
