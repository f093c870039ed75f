"""PyTorch's settings that a program changes for a while (grad mode, autocast, default type, kernels), and what sets them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import grad_mode

from braze.graph.private.torch_compat import autocast_state

C = torch._C
#: classes of pybind11 whose instances hold what never changes: what a GPU is like, where PyTorch was built for one
FACTS_OF_GPUS = frozenset(vars(C)[name] for name in ("_CudaDeviceProperties",) if name in vars(C))
CUDNN = ("enabled", "benchmark", "deterministic", "allow_tf32", "depthwise_kernel")
#: name -> (read, write)
SETTINGS: dict[str, tuple[Any, Any]] = {
    "grad": (torch.is_grad_enabled, C._set_grad_enabled),
    "dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "flash": (C._get_flash_sdp_enabled, C._set_sdp_use_flash),
    "mem_efficient": (C._get_mem_efficient_sdp_enabled, C._set_sdp_use_mem_efficient),
    "math": (C._get_math_sdp_enabled, C._set_sdp_use_math),
    **(
        {"overrideable": (C._get_overrideable_sdp_enabled, C._set_sdp_use_overrideable)}
        if hasattr(C, "_set_sdp_use_overrideable")
        else {}
    ),
    "cudnn": (C._get_cudnn_sdp_enabled, C._set_sdp_use_cudnn),
    # what torch.backends.cudnn.flags sets, in the words of this version
    **{
        f"cudnn {name}": (getattr(C, f"_get_cudnn_{name}"), getattr(C, f"_set_cudnn_{name}"))
        for name in CUDNN
        if hasattr(C, f"_set_cudnn_{name}")
    },
    **(
        {"cudnn limit": (C._cuda_get_cudnn_benchmark_limit, C._cuda_set_cudnn_benchmark_limit)}
        if hasattr(C, "_cuda_set_cudnn_benchmark_limit")
        else {}
    ),
}


#: setter -> what asks for the settings that it changes
CHANGES: dict[Any, tuple[Any, ...]] = {
    **{write: (read,) for read, write in SETTINGS.values()},
    **{
        vars(C)[setter]: tuple(vars(C)[name] for name in asking if name in vars(C))
        for setter, asking in (
            ("_set_sdp_priority_order", ("_get_sdp_priority_order",)),
            ("_set_cudnn_allow_tf32", ("_get_cudnn_allow_tf32", "_get_fp32_precision_getter")),
        )
        if setter in vars(C)
    },
}


def leave_autocast() -> None:
    """Leave a context of autocast; with the last one all is forgotten that was cast."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


#: all that set one of these, autocast, or the default device
SETTERS: tuple[Any, ...] = (
    *(write for _, write in SETTINGS.values()),
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled,
    torch.autocast_increment_nesting,
    leave_autocast,
    torch.device.__enter__,
    torch.device.__exit__,
)


def set_autocast(state: tuple[Any, ...]) -> None:
    """Autocast as ``autocast_state`` told it."""
    for kind, enabled, dtype in state[:-1]:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)
    torch.set_autocast_cache_enabled(state[-1])


def autocast_depth() -> int:
    """How many contexts of autocast are open; what they have cast is kept until the last is left."""
    depth = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    return depth - 1


enter_inference_mode, leave_inference_mode = grad_mode._enter_inference_mode, grad_mode._exit_inference_mode


def enters_inference_mode(target: Any) -> bool:
    """Whether a node of a graph turns inference mode on or off until the object that it gives is left."""
    return target is enter_inference_mode


def leaves_inference_mode(target: Any) -> bool:
    """Whether a node of a graph leaves what such a node has turned on or off."""
    return target is leave_inference_mode


def way_back() -> Callable[..., None]:
    """A function that sets back what has changed since this call; inference modes entered meanwhile, the last first, are told to it."""
    start = {name: read() for name, (read, _) in SETTINGS.items()}
    autocast, depth = autocast_state(), autocast_depth()

    def set_back(inference: Sequence[Any] = ()) -> None:
        # held by an error's traceback they would stay on, and end whenever that is dropped
        for mode in inference:
            if mode is not None:
                mode.__exit__(None, None, None)
        for name, (read, write) in SETTINGS.items():
            if read() != start[name]:
                write(start[name])
        if autocast_state() != autocast:
            set_autocast(autocast)
        while autocast_depth() > depth:
            leave_autocast()
        while autocast_depth() < depth:
            torch.autocast_increment_nesting()

    return set_back


# -- default devices, which are modes of functions


def function_modes() -> list[Any]:
    """The function modes that are entered, the outermost first: default devices are such."""
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def changed_modes(before: list[Any]) -> tuple[list[Any], list[Any]]:
    """The function modes left since, and those entered since, each the outermost first."""
    now = function_modes()
    same = next(
        (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a is not b),
        min(len(before), len(now)),
    )
    return before[same:], now[same:]


def makes_on_default_device(function: Any) -> bool:
    """Whether a function makes a tensor on the default device, where it is not told another."""
    return function in torch.utils._device._device_constructors()


def set_modes_back(before: list[Any]) -> None:
    """Leave the function modes that have been entered since, and enter those that have been left."""
    left, entered = changed_modes(before)
    for _ in entered:
        torch._C._pop_torch_function_stack()
    for mode in left:
        torch._C._push_on_torch_function_stack(mode)
