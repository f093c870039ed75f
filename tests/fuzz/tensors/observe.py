"""Run one call of a program and write down all that its caller can see."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.fuzz.tensors.program import Given

Tensor = torch.Tensor


@dataclass
class Seen:
    """What a call left behind."""

    error: tuple[str, str] | None = None
    backward_error: tuple[str, str] | None = None
    #: what is compared exactly: name -> one entry per result and argument
    facts: dict[str, Any] = field(default_factory=dict)
    #: name ("result 0", "argument x1", "gradient of x1") -> its numbers
    values: dict[str, Any] = field(default_factory=dict)
    #: names of complex numbers, whose values are their parts
    in_parts: set[str] = field(default_factory=set)
    #: whether a result lies in the memory of an argument, or is one of several views that one operation made
    returns_view: bool = False


def observe(
    fn: Callable[..., Any], arguments: Sequence[Any], given: Sequence[Given], around: str, backward: bool
) -> Seen:
    """Call ``fn`` on the arguments and look at results, arguments and gradients."""
    seen = Seen()
    leaves, arguments = with_leaves(arguments, given, around)
    versions = [version(t) for t in arguments]
    try:
        with surroundings(around):
            made = fn(*arguments)
    except Exception as error:
        seen.error = told(error)
        made = ()
    results = list(made)
    named = {f"result {i}": value for i, value in enumerate(results)}
    named |= {f"argument {g.name}": value for g, value in zip(given, arguments, strict=True)}
    facts_of(seen, named)
    seen.facts["changed"] = {
        g.name: version(t) != v for g, t, v in zip(given, arguments, versions, strict=True)
    }
    seen.returns_view = not {memory(t) for t in results}.isdisjoint({memory(t) for t in arguments} - {0})
    seen.returns_view |= any(map(is_one_of_parts, results))
    if backward and seen.error is None:
        differentiate(seen, results, leaves)
    return seen


def is_one_of_parts(value: Any) -> bool:
    """Whether a value is a view, made of one of the parts into which one operation has cut a tensor: their gradients eager joins to one."""
    if not isinstance(value, Tensor) or not value.requires_grad or not asked(value._is_view):
        return False
    node, base = asked(lambda: value.grad_fn), asked(lambda: value._base.grad_fn)
    while isinstance(node, torch.autograd.graph.Node) and node is not base:  # and no error
        if len(node._input_metadata) > 1:
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def memory(value: Any) -> int:
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else 0


def with_leaves(
    arguments: Sequence[Any], given: Sequence[Given], around: str
) -> tuple[dict[str, Tensor], list[Any]]:
    """The leaves that gradients are asked of, and the arguments: leaves, or results of an operation on one."""
    leaves: dict[str, Tensor] = {}
    passed: list[Any] = []
    for one, value in zip(given, arguments, strict=True):
        if one.grad:
            leaves[one.name] = value.detach().requires_grad_()
            value = leaves[one.name] if one.grad == "leaf" else leaves[one.name] * 1
        passed.append(value)
    return leaves, passed


def version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0


def told(error: Exception) -> tuple[str, str]:
    """An error as it is compared: its type and the first line of its text."""
    return type(error).__name__, str(error).split("\n")[0]


@contextlib.contextmanager
def surroundings(around: str) -> Iterator[None]:
    """What the call stands in."""
    with {
        "": contextlib.nullcontext,
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    }[around]():
        yield


def facts_of(seen: Seen, named: dict[str, Any]) -> None:
    """Types, layouts, history, who shares whose memory; and the numbers."""
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    seen.facts["type"] = {name: type(value).__name__ for name, value in named.items()}
    seen.facts["value"] = {name: repr(value) for name, value in named.items() if name not in tensors}
    seen.facts["dtype"] = {name: str(t.dtype) for name, t in tensors.items()}
    seen.facts["shape"] = {name: tuple(t.shape) for name, t in tensors.items()}
    seen.facts["strides"] = {name: strides(t) for name, t in tensors.items()}
    seen.facts["requires_grad"] = {name: asked(lambda: t.requires_grad) for name, t in tensors.items()}
    seen.facts["grad_fn"] = {name: asked(lambda: t.grad_fn is not None) for name, t in tensors.items()}
    seen.facts["leaf"] = {name: asked(lambda: t.is_leaf) for name, t in tensors.items()}
    seen.facts["aliasing"] = relations(tensors)
    with torch.no_grad():
        for name, t in tensors.items():
            seen.values[name] = real(t).clone().cpu()
            if t.is_complex():
                seen.in_parts.add(name)


def real(t: Tensor) -> Tensor:
    """Complex numbers by their parts, which are told apart; others as they are."""
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def asked(question: Callable[[], bool]) -> bool | str:
    """The answer, or its error, as of views made under no_grad and written outside."""
    try:
        return question()
    except RuntimeError as error:
        return told(error)[1]


def strides(t: Tensor) -> tuple[int, ...]:
    """Strides that matter: not those of sizes of one, nor of empty tensors."""
    return tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1) if t.numel() else ()


def relations(tensors: dict[str, Tensor]) -> dict[str, str]:
    """Of each two tensors: one object, or how far apart they begin if they share memory."""
    found = {}
    items = list(tensors.items())
    for i, (name, a) in enumerate(items):
        for other, b in items[:i]:
            if a is b:
                found[f"{other}, {name}"] = "the same object"
            elif a.numel() and b.numel() and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr():
                found[f"{other}, {name}"] = f"{a.data_ptr() - b.data_ptr()} bytes apart"
    return found


def differentiate(seen: Seen, results: Sequence[Any], leaves: dict[str, Tensor]) -> None:
    """Gradients of a weighted sum of the results."""
    ends = [
        t
        for t in dict.fromkeys(results)
        if isinstance(t, Tensor) and asked(lambda t=t: t.requires_grad) is True
    ]
    if not ends:
        return
    try:
        loss = sum(((weights(t) * t).sum() for t in map(real, ends)), torch.zeros((), dtype=torch.float64))
        loss.backward()
    except Exception as error:
        seen.backward_error = told(error)
        return
    for name, leaf in leaves.items():
        seen.facts.setdefault("gradient", {})[name] = None if leaf.grad is None else tuple(leaf.grad.shape)
        if leaf.grad is not None:
            seen.values[f"gradient of {name}"] = real(leaf.grad.detach()).clone().cpu()
            if leaf.grad.is_complex():
                seen.in_parts.add(f"gradient of {name}")


def weights(t: Tensor) -> Tensor:
    """Weights that differ from element to element, and round nowhere: what is counted on the way has no place in halves from 257 on."""
    count = torch.arange(t.numel(), device=t.device).remainder(7).to(t.dtype) / 4 - 0.5
    return count.reshape(t.shape)
