"""Calls of modules: ``forward`` where there are no hooks, else what PyTorch's own ``__call__`` does."""

from __future__ import annotations

import types
from typing import Any

import torch

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.libraries import is_pytorchs
from braze.capture.facts.records import Check, Step
from braze.capture.facts.values import MISSING, lookup_in_mro
from braze.capture.outside.class_values import trust_class_value
from braze.capture.outside.looked_into import fill
from braze.capture.outside.relied_upon import trust
from braze.capture.outside.shadows import instance_dict
from braze.capture.python import higher_order
from braze.capture.python.attributes import instance_value, load_attr, note_absent
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Trace

#: what calls a module's hooks and ``forward``, and PyTorch's own
CALL = "_call_impl"
CALL_IMPL = torch.nn.Module._call_impl if is_pytorchs(torch.nn.Module._call_impl) else None
MODULE_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
#: read once: until Python 3.12 each look-up of a member runs Python code of its enumeration
_DICT, _EMPTY = Step.DICT, (Check.LENGTH, 0)
GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def call_module(t: Trace, module: Any, args: Any, kwargs: dict[str, Any] | None, tail: bool) -> Any:
    """``module(...)``: its forward where there are no hooks, else what torch's ``__call__`` does."""
    usual = calls_as_usual(t, module)
    forward = forward_alone(t, module) if usual else MISSING
    if forward is not MISSING:
        return t.call(forward, (module, *args), kwargs, tail)
    if higher_order.is_unfinished(module):
        higher_order.break_around(f"a {type(module).__name__} makes its parameters at its first call")
    if isinstance(module, torch.jit.ScriptModule):
        graph_break("BZ1002", f"the TorchScript module {type(module).__name__} is called", HINT_MOVE)
    if instance_value(t.outside, module, "_compiled_call_impl") not in (None, MISSING):
        return t.call(load_attr(t, module, "_compiled_call_impl"), args, kwargs, tail)
    if not usual:
        return t.call(load_attr(t, module, CALL), args, kwargs, tail)
    return t.call(torch.nn.Module._call_impl, (module, *args), kwargs, tail)


def forward_alone(t: Trace, module: Any) -> Any:
    """The ``forward`` in Python that is all that a call of a module does; MISSING where there are hooks. Guarded."""
    if instance_value(t.outside, module, "forward") is not MISSING or hooked(t, module):
        return MISSING
    forward, owner = lookup_in_mro(type(module), "forward")
    if type(forward) is not types.FunctionType:
        return MISSING
    if owner is not type(module):
        note_absent(t, type(module), "forward", owner)
    trust_class_value(t, owner, "forward", forward)
    return forward


def calls_as_usual(t: Trace, module: Any) -> bool:
    """Whether a module has no ``_call_impl`` but PyTorch's; guarded."""
    cls = type(module)
    found, owner = lookup_in_mro(cls, CALL)
    note_absent(t, cls, CALL, owner)
    trust_class_value(t, owner, CALL, found)
    own = found is CALL_IMPL and trust(t.outside, found)
    return own and instance_value(t.outside, module, CALL) is MISSING


def hooked(t: Trace, module: Any) -> bool:
    """Whether a module has hooks, or is compiled by itself; guarded where it has not."""
    compiled, _ = lookup_in_mro(type(module), "_compiled_call_impl")
    own = instance_value(t.outside, module, "_compiled_call_impl")
    held = compiled if own is MISSING else own
    if held is not MISSING and held is not None:
        return True
    node = t.outside.tree.node_of(module)
    shadow = instance_dict(t.outside, node) if node is not None else None
    here, met = t.frames.here(), t.outside.tree.order
    for name in MODULE_HOOKS:
        if node is None or shadow is None or name in shadow.view:
            hooks = instance_value(t.outside, module, name)
            fill(t.outside, hooks)
            if hooks is MISSING or len(hooks):
                return True
            continue
        real = shadow.real.get(name)
        if real is None or len(real):
            return True
        # the dict itself is not read: only that it is empty matters
        place = node.child(_DICT, name)
        if not place.guards:
            place.guards.append(_EMPTY)
            place.origin = here
            met.append(place)
    return global_hooks(t.outside)


def global_hooks(outside: Outside) -> bool:
    """Whether hooks for all modules are registered; guarded where none are."""
    found = outside.global_hooks
    if found is None:
        own = vars(torch.nn.modules.module)
        found = outside.global_hooks = any(own[name] for name in GLOBAL_HOOKS)
        module = outside.tree.constant(torch.nn.modules.module)
        for name in GLOBAL_HOOKS:
            node = module.child(Step.DICT, name)
            outside.tree.meet(node, own[name])
            node.guard(Check.LENGTH, len(own[name]))
    return found
