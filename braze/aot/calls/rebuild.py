"""Views made again for the caller: step by step, or as a window on the same memory."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.aot.facts.records import ASTRAY, Formula, OutputKind, OutputRole, Partition, ViewStep
from braze.aot.facts.roles import results_of
from braze.aot.facts.ways import DATA
from braze.graph.nodes.specs import TensorSpec
from braze.graph.private.torch_compat import guarded
from braze.runtime.operators.operators import operator
from braze.support.nested import every

#: (inputs, results, sizes by name, tensors made in this call by number) -> an output
Build = Callable[[Sequence[Any], Sequence[Any], dict[str, int], dict[int, Any]], Any]


def builder(role: OutputRole, partition: Partition) -> Build:
    """What gives one output that the graph does not return."""
    match role.kind:
        case OutputKind.CONSTANT:
            return lambda inputs, results, names, made: role.value
        case OutputKind.ALIAS:
            if role.spec is None:
                return lambda inputs, results, names, made: inputs[role.input]
            base = partition.inputs[role.input]
            assert isinstance(base, TensorSpec)
            view = _view(role, None if role.absolute else base.offset)
            return lambda inputs, results, names, made: view(inputs[role.input], names, made)
        case OutputKind.ALIAS_OF_OUTPUT:
            if role.spec is None:
                return lambda inputs, results, names, made: results[role.output]
            # a copy that keeps the strides of an input may keep where it begins, too
            whole = results_of(partition)[role.output].spec
            view = _view(role, 0 if whole is None else whole.offset)
            return lambda inputs, results, names, made: view(results[role.output], names, made)
    return lambda inputs, results, names, made: None


def guarding(place: int, kind: str) -> Build:
    """Gives a result of the graph that autograd lets nobody write to with gradients."""
    if kind == ASTRAY:
        return lambda inputs, results, names, made: _astray(results[place])
    return lambda inputs, results, names, made: guarded(results[place], kind)


def _astray(result: torch.Tensor) -> torch.Tensor:
    """A view, made without gradients, of what requires one."""
    whole = result.detach().requires_grad_()
    with torch.no_grad():
        return whole.view_as(whole)


def early_builder(role: OutputRole, partition: Partition) -> tuple[Build, bool] | None:
    """What takes the steps to a view that come before a write to what it is of, and whether these are all; None: nobody can tell when."""
    if not role.early:
        return None
    early = builder(dataclasses.replace(role, way=role.way[: role.early]), partition)
    if role.kind is OutputKind.ALIAS_OF_OUTPUT:
        return early, role.early >= len(role.way)
    base = partition.inputs[role.input] if role.kind is OutputKind.ALIAS else None
    written = partition.mutations or partition.turned
    if not isinstance(base, TensorSpec) or partition.made or not written:
        return None
    if base.requires_grad and all(map(_follows_writes, role.way[: role.early])):
        return None
    return early, role.early >= len(role.way)


def _follows_writes(step: ViewStep) -> bool:
    """Whether autograd makes the history of a view again where its memory was written since, and does not refuse to."""
    return step.grad and not step.inference and step.item < 0


def _view(
    role: OutputRole, base_offset: int | str | None
) -> Callable[[torch.Tensor, dict[str, int], dict[int, Any]], torch.Tensor]:
    if role.way:
        return _replayed(role.way)
    assert role.spec is not None
    view = _with_history(_viewer(role.spec, base_offset), role.spec)
    return lambda base, names, made: view(base, names)


# -- step by step --------------------------------------------------------------------------------


def _replayed(
    way: Sequence[ViewStep],
) -> Callable[[torch.Tensor, dict[str, int], dict[int, Any]], torch.Tensor]:
    """f(base, sizes, made) -> the last of the views; those that another output has come by are taken from ``made``."""
    steps = [(step.value, _step(step)) for step in way]

    def replay(base: torch.Tensor, names: dict[str, int], made: dict[int, Any]) -> torch.Tensor:
        for number, step in steps:
            found = made.get(number)
            base = made[number] = step(base, names) if found is None else found
        return base

    return replay


def _step(step: ViewStep) -> Callable[[torch.Tensor, dict[str, int]], torch.Tensor]:
    """f(tensor, sizes) -> the view of it, made in the program's modes."""
    given, named = _given(step.args), _given(tuple(value for _, value in step.kwargs))
    keys = tuple(name for name, _ in step.kwargs)
    op, item, modes = step.op, step.item, (step.grad, step.inference)
    direct: Any = None if op == DATA else operator(str(op))
    fixed = _fixed(step)

    def run(tensor: torch.Tensor, names: dict[str, int]) -> torch.Tensor:
        if op == DATA:
            return tensor.data
        result = direct(tensor, *given(names), **dict(zip(keys, named(names), strict=True)))
        return result if item < 0 else result[item]  # type: ignore[no-any-return]

    def in_modes(tensor: torch.Tensor, names: dict[str, int]) -> torch.Tensor:
        if (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == modes:
            return direct(tensor, *fixed) if fixed is not None else run(tensor, names)
        with _inference(step.inference), torch.set_grad_enabled(step.grad):
            return run(tensor, names)

    return in_modes


def _fixed(step: ViewStep) -> tuple[Any, ...] | None:
    """What a step is called with beside the tensor, where no size is among it and the result is the view."""
    plain = step.op != DATA and not step.kwargs and step.item < 0 and not every(Formula, step.args)
    return step.args if plain else None


def straight(
    way: Sequence[ViewStep],
) -> tuple[tuple[bool, bool], tuple[tuple[Any, tuple[Any, ...]], ...]] | None:
    """(grad mode, inference mode) and the calls of a way whose steps are all taken in these, as they stand; else None."""
    found = [(operator(str(step.op)), _fixed(step)) for step in way if step.op != DATA]
    modes = {(step.grad, step.inference) for step in way}
    if len(found) != len(way) or len(modes) != 1:
        return None
    calls = tuple((op, args) for op, args in found if args is not None)
    return (modes.pop(), calls) if len(calls) == len(found) else None


def _inference(wanted: bool) -> Any:
    """Inference mode on or off; entering it for nothing would turn grad mode on or off too."""
    if torch.is_inference_mode_enabled() is wanted:
        return contextlib.nullcontext()
    return torch.inference_mode(wanted)


def _given(args: tuple[Any, ...]) -> Callable[[dict[str, int]], tuple[Any, ...]]:
    """f(sizes) -> the arguments."""
    formulas = [part.text for part in every(Formula, args)]
    if not formulas:
        return lambda names: args
    numbers = evaluator(tuple(formulas))
    return lambda names: _filled(args, iter(numbers(names)))  # type: ignore[no-any-return]


def _filled(value: Any, numbers: Any) -> Any:
    if isinstance(value, Formula):
        return next(numbers)
    return tuple([_filled(part, numbers) for part in value]) if isinstance(value, tuple) else value


# -- as a window ---------------------------------------------------------------------------------


def _with_history(view: Callable[..., torch.Tensor], spec: TensorSpec) -> Callable[..., torch.Tensor]:
    """``view``, whose results require grad only if they did in eager: not what was detached."""
    if spec.requires_grad:
        return view

    return lambda base, names: view(base.detach() if base.requires_grad else base, names)


def _viewer(
    spec: TensorSpec, base_offset: int | str | None
) -> Callable[[torch.Tensor, dict[str, int]], torch.Tensor]:
    """f(base, symbols) -> the view of base's memory that ``spec`` describes; no ``base_offset``: it counts from its start."""
    sizes, strides = evaluator(spec.sizes), evaluator(spec.strides)
    offset = evaluator((spec.offset, 0 if base_offset is None else base_offset))

    def view(base: torch.Tensor, names: dict[str, int]) -> torch.Tensor:
        here, start = offset(names)
        begin: Any = here if base_offset is None else base.storage_offset() + here - start
        if base.dtype is spec.dtype:
            return base.as_strided(sizes(names), strides(names), begin)
        if base_offset is not None:
            # offsets count in elements of the view's own type
            begin = base.storage_offset() * base.dtype.itemsize // spec.dtype.itemsize + here
            begin -= start * base.dtype.itemsize // spec.dtype.itemsize
        if base.is_complex() is not spec.dtype.is_complex:
            return _between_real_and_complex(base, sizes(names), strides(names), begin)
        fresh = torch.empty(0, dtype=spec.dtype, device=base.device)
        return fresh.set_(base.untyped_storage(), begin, sizes(names), strides(names))

    return view


def _between_real_and_complex(
    base: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> torch.Tensor:
    """A real view of complex memory or the reverse, through which gradients flow and writes are counted."""
    if base.is_complex():
        return torch.view_as_real(base).as_strided(sizes, strides, offset)
    pairs = base.as_strided((*sizes, 2), (*(2 * s for s in strides), 1), 2 * offset)
    return torch.view_as_complex(pairs)


#: what the text of a size may call
SIZE_NAMES: dict[str, Any] = {
    "__builtins__": {},
    "math": math,
    "min": min,
    "max": max,
    "abs": abs,
    "round": round,
    "float": float,
}


def evaluator(parts: tuple[int | str, ...]) -> Callable[[dict[str, int]], tuple[int, ...]]:
    """f(symbols) -> the numbers; expressions over symbols are compiled once."""
    if all(isinstance(part, int) for part in parts):
        fixed = tuple(int(part) for part in parts)
        return lambda names: fixed
    code = compile(f"({', '.join(map(str, parts))},)", "<sizes>", "eval")
    return lambda names: eval(code, SIZE_NAMES, names)
