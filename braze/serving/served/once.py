"""A module's forward captured once for each kind of call, and bound by no guards from then on.

What a call brings tells its kind: which arguments, their types and layouts, whether they are of inference mode and which are one tensor, the sizes that do not vary, plain values. Everything else that a capture relied
on (attributes of the model, globals) is taken for granted, as ``CompiledOnce`` says: a step never captures again because of it. Arguments
of which that cannot be told (lists, objects, tensors whose elements do not lie in order) and modules with hooks keep their guards.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any

import torch
from torch import nn

from braze.capture.python.module_calls import MODULE_HOOKS
from braze.serving.pieces.once import CompiledOnce
from braze.serving.served.inputs import PLAIN, Inputs


class ServedOnce:
    """``model`` compiled by ``backend``; ``guarded``: what serves calls of which no kind can be told."""

    def __init__(
        self,
        model: nn.Module,
        backend: Callable[..., Any],
        inputs: Inputs,
        guarded: Callable[..., Any],
        evaluate_guards: bool = False,
    ) -> None:
        self.model, self.backend, self.inputs, self.guarded = model, backend, inputs, guarded
        self.evaluate_guards = evaluate_guards
        self.kinds: dict[Hashable, CompiledOnce] = {}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        values = self.inputs.bind(args, kwargs)
        kind = self._kind(values)
        if kind is None or any(getattr(self.model, hooks, None) for hooks in MODULE_HOOKS):
            return self.guarded(*args, **kwargs)
        made = self.kinds.get(kind)
        if made is None:
            forward = self.model.forward
            if not isinstance(forward, MethodType) or forward.__self__ is not self.model:
                return self.guarded(*args, **kwargs)
            made = self.kinds[kind] = CompiledOnce(
                forward,
                self.backend,
                self._dims(values),
                evaluate_guards=self.evaluate_guards,
                name=type(self.model).__qualname__,
            )
        return made(*args, **kwargs)

    def dropped_guards(self) -> tuple[str, ...]:
        """What is taken for granted since it held at a first call."""
        return tuple(dict.fromkeys(text for made in self.kinds.values() for text in made.dropped_guards()))

    def _kind(self, values: dict[str, Any]) -> Hashable | None:
        found: list[Hashable] = []
        tensors: list[torch.Tensor] = []
        for name, value in values.items():
            if type(value) in (torch.Tensor, nn.Parameter):
                if value.layout is not torch.strided or not value.is_contiguous():
                    return None
                varies = self.inputs.varying(name, value)
                # 0 and 1 are programs of their own
                sizes = tuple(min(2, n) if d in varies else n for d, n in enumerate(value.shape))
                # one tensor twice is captured as such, and tensors of inference mode have other keys
                first = next((i for i, other in enumerate(tensors) if other is value), len(tensors))
                tensors.append(value)
                found.append((name, value.dtype, value.device, varies, sizes, first, value.is_inference()))
            elif isinstance(value, PLAIN):
                found.append((name, type(value), repr(value)))  # 0.0 is not -0.0, and nan is nan
            else:
                return None
        return tuple(found)

    def _dims(self, values: dict[str, Any]) -> dict[str, dict[int, str]]:
        """The sizes that vary, each by a name of its own; those below 2 do not, in calls of that kind."""
        found: dict[str, dict[int, str]] = {}
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                dims = {d: f"{name}_{d}" for d in self.inputs.varying(name, value) if value.shape[d] >= 2}
                if dims:
                    found[name] = dims
        return found
