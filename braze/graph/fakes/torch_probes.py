"""Tests of what braze assumes of PyTorch's private parts (see :mod:`braze.graph.private.torch_checks`).

Each is small and asks for what the stages rely on without looking: where it fails on an untested version they could give
wrong results. What has a slower public way is tested in the file that has both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze import native
from braze.graph.fakes import fakes
from braze.graph.private import torch_settings
from braze.graph.private.torch_checks import NOTHING, assumption
from braze.graph.private.torch_compat import apply_function, storage_key, transforming, watched
from braze.native import torch_state


def expect(what: str, found: Any, wanted: Any) -> None:
    """A failed test unless something is as it should be."""
    if found != wanted:
        raise AssertionError(f"{what} is {found}, not {wanted}")


@assumption("fake tensors", NOTHING, refuses=True)
def _fakes() -> None:
    mode = fakes.new_mode()
    real = torch.empty(2, 3, dtype=torch.float64).t()
    x = mode.fake(real)
    with fakes.on_fakes(mode):
        y, view = torch.add(x, 1), x[1:]
    expect(
        "a fake's layout",
        (tuple(x.shape), x.stride(), x.dtype, x.device),
        ((3, 2), (1, 3), real.dtype, real.device),
    )
    expect("a sum's shape", (tuple(y.shape), y.dtype), ((3, 2), torch.float64))
    expect("that a view shares memory", storage_key(view) == storage_key(x), True)
    expect("that a sum shares memory", storage_key(y) == storage_key(x), False)
    expect("a view's offset", view.storage_offset(), 1)


class _Heard(TorchDispatchMode):
    """Notes which operators come by."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@assumption("dispatch modes", NOTHING, refuses=True)
def _modes() -> None:
    expect("whether modes are on", (watched(), transforming()), (False, False))
    x = torch.ones(2, requires_grad=True)
    with _Heard() as heard:
        torch.nn.functional.silu(x).sum().backward()
        expect("whether a mode is on", watched(), True)
    wanted = ["aten::silu", "aten::sum", "aten::silu_backward"]
    expect("what a mode sees", [name for name in heard.seen if name.split(".")[0] in wanted], wanted)


@assumption("gradients of fakes", NOTHING, refuses=True)
def _gradients() -> None:
    mode = fakes.new_mode()
    x = mode.fake(torch.empty(3, requires_grad=True))
    with mode:
        y = x.sin()
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    expect("a gradient's shape", (tuple(gradient.shape), gradient.device.type), ((3,), "cpu"))
    node: Any = y.grad_fn
    expect(
        "what a node saves", (type(node).__name__, hasattr(node, "_raw_saved_self")), ("SinBackward0", True)
    )


@assumption("autograd functions", NOTHING, refuses=True)
def _functions() -> None:
    x = torch.ones(2, requires_grad=True)
    apply_function(_Thrice, (x,), {}).sum().backward()
    expect("a gradient", x.grad.tolist() if x.grad is not None else None, [3.0, 3.0])


class _Thrice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


@assumption("counted writes", NOTHING, refuses=True)
def _writes() -> None:
    x, other = torch.zeros(4), torch.zeros(4)
    before, beside = native.counters((x,)), native.counters((other,))
    x[1:].add_(1)
    after = native.counters((x,))
    told = after != before, native.counters((other,)) == beside
    expect("the count of a write through a view", told, (True, True))
    which, of_other = before[: native.WHICH], beside[: native.WHICH]
    expect("whose count it is", (after[: native.WHICH] == which, of_other == which), (True, False))


@assumption("settings", NOTHING, refuses=True)
def _settings() -> None:
    before = {name: read() for name, (read, _) in torch_settings.SETTINGS.items()}
    grad, dtype, depth = torch.is_grad_enabled(), torch.get_default_dtype(), torch_settings.autocast_depth()
    set_back = torch_settings.way_back()
    try:
        torch_settings.SETTINGS["grad"][1](not grad)
        torch.set_default_dtype(torch.float64)
        torch.autocast_increment_nesting()
    finally:
        set_back()
    expect("a setting", (torch.is_grad_enabled(), torch.get_default_dtype()), (grad, dtype))
    expect("the depth of autocast", torch_settings.autocast_depth(), depth)
    expect("settings", {name: read() for name, (read, _) in torch_settings.SETTINGS.items()}, before)


@assumption("reading of tensors in C", "guards and calls read tensors through Python: calls are slower")
def _reading() -> None:
    if native.native_available:
        expect("what C cannot read", [name for name, read in native.bind_torch().items() if not read], [])


@assumption("ranges of the profiler", "profiles show what compiled functions call, but not which of them")
def _ranges() -> None:
    expect("where a profiler is seen", torch_state.listening_address() != 0, True)
