"""Hooks on tensors while tracing: what their registration and their handles mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from braze.capture import calls, hooks
from braze.capture.breaks import graph_break
from braze.capture.recorder import refuse_unfaked
from braze.capture.rules import rule
from braze.capture.values import Identity

if TYPE_CHECKING:
    from braze.capture.tracer import Tracer


def unknown_dict() -> None:
    """What a handle refers to: only the tensor will have it."""


@rule(unknown_dict)
def refuse_dict(t: Tracer, args: Any, kwargs: Any, tail: bool) -> Any:
    graph_break("BZ1014", "the inside of a hook's handle is looked at")


def registering(register: Any) -> None:
    """A row for one of the two methods."""

    def run(t: Tracer, args: Any, kwargs: Any, tail: bool) -> Any:
        given = dict(zip(("self", "hook"), args, strict=False), **kwargs)
        tensor = given.get("self")
        if len(args) > 2 or given.keys() != {"self", "hook"} or not isinstance(tensor, torch.Tensor):
            return calls.interpret(t, register, args, kwargs, tail)
        if t.unfaked:
            refuse_unfaked(t, (tensor,))
        refuse_doubtful(t, register, tensor)
        return add(t, register, tensor, given["hook"])

    rule(register)(run)


for _register in hooks.REGISTER:
    registering(_register)


def refuse_doubtful(t: Tracer, register: Any, tensor: Any) -> None:
    """Eager's errors; a break where a hook that comes later than in the program would be another."""
    node = t.tree.node_of(tensor)
    wants = tensor.requires_grad if node is None else node.real.requires_grad
    if wants is not tensor.requires_grad or t.inference_on or t.state.inference:
        graph_break(
            "BZ1010", "a hook is put on a tensor whose place in autograd the function changes", hooks.HINT
        )
    if not wants:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if register is torch.Tensor.register_post_accumulate_grad_hook and (
        node is None or not node.real.is_leaf
    ):
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")


def add(t: Tracer, register: Any, tensor: Any, hook: Any) -> Any:
    """Note a hook, and give what stands for its handle."""
    if t.tree.node_of(tensor) is None and (not t.recorder.knows(tensor) or id(tensor) in t.parameters):
        graph_break("BZ1010", "a hook is put on a tensor that the function makes", hooks.HINT)
    handle = t.claim(object.__new__(RemovableHandle))
    number = t.claim(Identity(id(handle)))
    t.identities[id(handle)] = handle  # numbers of handles are told apart, and used as keys, as ids are
    vars(handle).update(hooks_dict_ref=unknown_dict, id=number, extra_dict_ref=())
    t.hooks[id(handle)] = hooks.Hooked(register, tensor, hook, handle)
    return handle


REMOVE: Any = RemovableHandle.remove


@rule(REMOVE)
def remove(t: Tracer, args: Any, kwargs: Any, tail: bool) -> Any:
    """A hook of this trace was never there; any other is taken away by Python's code."""
    found = t.hooks.get(id(args[0])) if len(args) == 1 and not kwargs else None
    if found is None or found.handle is not args[0]:
        return calls.interpret(t, REMOVE, args, kwargs, tail)
    found.removed = True
    return None
