"""Setters of PyTorch's global state: run while tracing, noted in the graph, undone at the end of the trace. Modes and marks that are entered and left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import NoneType
from typing import Any

import torch
from torch.optim import optimizer
from torch.utils import _foreach_utils

from braze.capture.facts.breaks import HINT_MOVE, graph_break
from braze.capture.facts.records import Build, Effect
from braze.capture.features.rules import named, refuse
from braze.capture.finish.effects import call_of
from braze.capture.finish.reconstruction import RecipeTable
from braze.capture.graph import tensor_facts, unbacked
from braze.capture.python.tensors import dense_class
from braze.capture.python.unwinding import resumable_step
from braze.capture.state.handlers import Feature
from braze.capture.state.trace import Trace
from braze.graph.private import torch_compat
from braze.graph.private.torch_settings import CHANGES, CUDNN

FEATURE = Feature()
rule = FEATURE.call

C, grad_mode = torch._C, torch.autograd.grad_mode

SETTERS = [
    *named(C, "_set_grad_enabled", "_set_sdp_use_flash", "_set_sdp_use_mem_efficient", "_set_sdp_use_math"),
    *named(
        C, "_set_sdp_use_cudnn", "_set_sdp_priority_order", "_set_sdp_use_overrideable", "_set_default_dtype"
    ),
    *named(C, *(f"_set_cudnn_{name}" for name in CUDNN), "_cuda_set_cudnn_benchmark_limit"),
    *named(
        torch,
        "set_autocast_enabled",
        "set_autocast_dtype",
        "set_autocast_cache_enabled",
        "clear_autocast_cache",
    ),
    *named(torch, "autocast_increment_nesting", "autocast_decrement_nesting"),
]


def note(t: Trace, function: Any, args: Any, kwargs: Any) -> Any:
    """Do it, and put it into the graph."""
    t.outside.settings.changed.update(CHANGES.get(function, ()))
    result = function(*args, **kwargs)
    t.graph.recorder.make(function, tuple(args), result, dict(kwargs), setting=True)
    return result


@contextlib.contextmanager
def grad_off(t: Trace) -> Iterator[None]:
    """What is recorded meanwhile is not differentiated, in the trace and in the graph."""
    grad = torch.is_grad_enabled()
    if grad:
        note(t, C._set_grad_enabled, (False,), {})
    try:
        yield
    finally:
        if grad:
            note(t, C._set_grad_enabled, (True,), {})


@FEATURE.each(*SETTERS)
def set_(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """A setter of PyTorch's."""
    if function is C._set_grad_enabled and args[0] and (t.graph.inference_on or t.outside.settings.inference):
        graph_break("BZ1023", "grad mode is turned on in inference mode")
    result = note(t, function, args, kwargs)
    if function is torch.autocast_increment_nesting:
        t.outside.settings.nesting += 1
    elif function is torch.autocast_decrement_nesting:
        t.outside.settings.nesting -= 1
    return result


@rule(*named(C, "_set_fp32_precision_setter"))
def set_precision(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The precision of a backend's products; a change that outlasts the trace is no part of a graph."""
    if t.outside.settings.told(C._get_fp32_precision_getter, args[:2], None) != args[2]:
        graph_break("BZ1010", f"the precision of {args[0]} is set", HINT_MOVE)


# -- inference mode: results are made under no_grad while tracing; the graph enters the real mode


@rule(torch.inference_mode.__enter__)
def enter_inference(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    mode = args[0].mode
    node = t.graph.recorder.make(grad_mode._enter_inference_mode, (mode,), None, setting=True)
    t.graph.inference.append((node, t.graph.inference_on, torch.is_grad_enabled(), resumable_step(t.frames)))
    t.graph.inference_on = mode
    t.graph.knew_inference = True
    C._set_grad_enabled(not mode)


@rule(torch.inference_mode.__exit__)
def exit_inference(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    entered, before, grad, _ = t.graph.inference.pop()
    t.graph.recorder.make(grad_mode._exit_inference_mode, (entered,), None, setting=True)
    t.graph.inference_on = before
    C._set_grad_enabled(grad)


FEATURE.rows(
    {
        torch.is_inference_mode_enabled: lambda t, args, kwargs, tail: (
            t.graph.inference_on or t.outside.settings.inference
        ),
        torch.is_inference: lambda t, args, kwargs, tail: tensor_facts.is_inference(t, *args, **kwargs),
        # guarded in each capture
        torch.get_default_device: lambda t, args, kwargs, tail: torch.get_default_device(*args, **kwargs),
        torch.Tensor.is_shared: lambda t, args, kwargs, tail: tensor_facts.query(
            t, torch.Tensor.is_shared, args, kwargs
        ),
    }
)


# what it does to the stack of modes, a block that is left after a break would not know
refuse("BZ1010", "the default device is set", torch.set_default_device)


# -- checks of what tensors hold


@rule(*named(torch, "_check_tensor_all"))
def check_tensor_all(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Checked when the graph runs; the message is torch's."""
    good = t.graph.recorder.call(torch.all, (args[0],), {})
    t.graph.recorder.note(torch._assert_async, (good,), {}, None)


@FEATURE.each(
    *named(torch, "_check", "_check_index", "_check_value", "_check_type", "_check_not_implemented")
)
def checked(function: Any, t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """``torch._check`` or one of its kin."""
    unbacked.check(t, function, *args, **kwargs)


@rule(*named(torch, "_check_is_size"))
def check_is_size(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """It is no negative number, nor above ``max``."""
    unbacked.check_size(t, *args, **kwargs)


@rule(*named(C, "_group_tensors_by_device_and_dtype"))
def group_tensors(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Lists of tensors by device and type, as ``clip_grad_norm_`` and optimizers hand them to operators on lists."""
    lists, with_indices = (*args, *kwargs.values(), False)[:2]
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]] = {}
    for k, first in enumerate(lists[0]):
        columns, indices = groups.setdefault((first.device, first.dtype), ([[] for _ in lists], []))
        for column, several in zip(columns, lists, strict=True):
            if len(several):  # one without tensors is left so
                column.append(several[k])
        if with_indices:
            indices.append(k)
    return groups


@rule(*named(_foreach_utils, "_has_foreach_support"))
def has_foreach_support(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """As PyTorch says, without a look at its list of types: that grows when distributed tensors are imported, which no graph holds."""
    tensors, device = tuple(args) + tuple(kwargs.values())
    plain = all(x is None or dense_class(x) is torch.Tensor for x in tensors)
    return _foreach_utils._device_has_foreach_support(device) and plain


@rule(*named(optimizer, "_get_value"))
def number_of_optimizer(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The number that a step reads of a count or a rate. It computes with it as Python does, in doubles: ``1 - beta2**step`` in single precision
    has lost four digits of seven."""
    x = (*args, *kwargs.values())[0]
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.device.type != "cpu":
        return x
    return t.graph.recorder.call(torch.Tensor.to, (x, torch.float64), {})


def settings(t: Trace, table: RecipeTable) -> list[Effect]:
    """The settings that the program leaves changed."""
    return [
        call_of(table, function, map(table.id_of, args)) for function, args in t.outside.settings.effects()
    ]


FEATURE.effects.append(settings)


# -- function modes


class OpenMode:
    """A function mode entered in the trace. It cannot be rebuilt: a break inside moves before its start."""

    lives_in_trace = True


#: PyTorch's mode in which ``x[i]`` looks rows up by tensors: for functions under ``vmap`` that index tables
BY_INDEX = "TransformGetItemToIndex"


@rule(torch_compat.push_mode)
def push_mode(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The one mode that is known is a setting of the recorder; any other may do anything to every call."""
    mode = args[0]
    if type(mode).__name__ != BY_INDEX or t.outside.tree.node_of(mode) is not None:
        graph_break("BZ1019", f"the function mode {type(mode).__name__} is entered")
    mode.opened = t.done.claim(OpenMode())
    t.graph.recorder.by_index = True
    t.graph.open_modes.append(mode)


@rule(torch_compat.pop_mode)
def pop_mode(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """The end of what ``push_mode`` began."""
    open_modes = t.graph.open_modes
    if not open_modes:
        graph_break("BZ1019", "a function mode is left that was entered outside")
    open_modes.pop().opened = None
    t.graph.recorder.by_index = bool(open_modes)


# -- marks of the profiler


class OpenMark:
    """What a ``record_function`` that the trace has entered holds. At a break inside it the real mark begins."""

    def __init__(self, name: Any, args: Any) -> None:
        self.name, self.args = name, args


def begun_mark(table: RecipeTable, mark: OpenMark) -> Build:
    """The mark that lasts from a break on to the end of its block, which runs after it."""
    return table.call(torch_compat.begin_mark, table.id_of(mark.name), table.id_of(mark.args))


FEATURE.recipes[OpenMark] = begun_mark


Mark = torch.autograd.profiler.record_function


@rule(Mark.__init__)
def make_mark(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    """Its own code speaks to TorchScript in types made of text, which only ``compile`` reads."""
    mark, *given = args
    if not all(type(v) in (str, NoneType) for v in (*given, *kwargs.values())):
        graph_break("BZ1019", "a record_function with a name that the trace does not know")
    vars(mark).update(vars(Mark(*given, **kwargs)))


@rule(Mark.__enter__)
def enter_mark(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if t.outside.tree.node_of(args[0]) is not None:
        graph_break("BZ1019", "a record_function from outside is entered")
    args[0].record = t.done.claim(OpenMark(args[0].name, args[0].args))
    return args[0]


@rule(Mark.__exit__)
def exit_mark(t: Trace, args: Any, kwargs: Any, tail: bool) -> Any:
    if type(getattr(args[0], "record", None)) is not OpenMark:
        graph_break("BZ1019", "a record_function from outside is left")
    args[0].record = None
