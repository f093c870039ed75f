"""Where the functions of the GPU's driver are that the C core calls to launch a kernel, and what a kernel takes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Any

from braze.native import torch_state

_LIBRARY = "libcuda.so.1"
#: cuFuncGetParamInfo's answer past the last parameter
_INVALID_VALUE = 1
#: CU_STREAM_NON_BLOCKING and CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING, _RELAXED = 1, 2
#: far more than any kernel takes
_MOST_PARAMETERS = 1024


@functools.cache
def bind() -> bool:
    """Tell the C core the addresses; whether it can launch. Called once CUDA is in use: nothing is initialised here."""
    core = sys.modules.get("braze.native._native")
    if core is None or torch_state.torch().version.cuda is None or _parameter_info() is None:
        return False
    found = core._configure_driver(
        _address("cuCtxGetDevice"),
        torch_state.address_in(torch_state.library("torch_cuda"), "aoti_torch_get_current_cuda_stream"),
        _address("cuLaunchKernel"),
        _address("cuMemcpyDtoDAsync_v2"),
        _address("cuLaunchKernelEx"),
    )
    return found and (bind_rows(), True)[1]


def bind_rows() -> bool:
    """Tell the C core what makes one graph of several launches; whether it can."""
    core = sys.modules["braze.native._native"]
    return core._configure_rows(
        _address("cuStreamIsCapturing"),
        _address("cuGraphCreate"),
        _address("cuGraphAddKernelNode_v2"),
        _address("cuGraphInstantiateWithFlags"),
        _address("cuGraphExecKernelNodeSetParams_v2"),
        _address("cuGraphLaunch"),
        _address("cuGraphExecDestroy"),
        _address("cuGraphDestroy"),
        _address("cuThreadExchangeStreamCaptureMode"),
        _address("cuGraphAddDependencies_v2"),
    )


@functools.cache
def bind_graphs() -> bool:
    """Tell the C core what launches recordings and changes them; whether it can."""
    if not bind():
        return False
    core = sys.modules["braze.native._native"]
    return core._configure_graphs(
        _address("cuStreamGetCaptureInfo_v2"),
        _address("cuGraphNodeGetType"),
        _address("cuGraphInstantiateWithFlags"),
        _address("cuGraphExecKernelNodeSetParams_v2"),
        _address("cuGraphLaunch"),
        _address("cuGraphExecDestroy"),
    )


def new_stream() -> int:
    """A stream of the current GPU's, which waits for no other; PyTorch hands its own out in turn, to several at last."""
    made = ctypes.c_void_p()
    driver = _driver()
    status = -1 if driver is None else driver.cuStreamCreate(ctypes.byref(made), _NON_BLOCKING)
    if status:
        raise RuntimeError(f"the driver makes no stream ({status})")
    return made.value or 0


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """A block in which this thread may take memory from the device for itself while it records."""
    mode, driver = ctypes.c_int(_RELAXED), _driver()
    assert driver is not None
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def parameter_sizes(function: int) -> tuple[int, ...] | None:
    """Bytes of each parameter of a loaded kernel (a CUfunction), as the driver tells them; None where it cannot.

    From CUDA 12.4 on: https://docs.nvidia.com/cuda/cuda-driver-api (cuFuncGetParamInfo).
    """
    ask = _parameter_info()
    if ask is None:
        return None
    sizes: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while len(sizes) < _MOST_PARAMETERS:
        status = ask(
            ctypes.c_void_p(function), ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)
        )
        if status == _INVALID_VALUE:
            return tuple(sizes)
        if status:
            return None
        sizes.append(size.value)
    return None


def version() -> int:
    """The driver's version as CUDA counts them (12040 for 12.4); 0 without one."""
    told, driver = ctypes.c_int(), _driver()
    status = -1 if driver is None else driver.cuDriverGetVersion(ctypes.byref(told))
    return 0 if status else told.value


def _parameter_info() -> Any:
    return getattr(_driver(), "cuFuncGetParamInfo", None)


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        return None


def _address(name: str) -> int:
    """The address of a function of the driver's; 0 if there is none."""
    return torch_state.address_in(_LIBRARY, name)
