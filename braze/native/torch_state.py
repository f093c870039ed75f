"""What guards ask of PyTorch, in plain Python. PyTorch is imported only when asked for.

Two private names are read (the mode stacks' lengths and a tensor's dispatch keys): public PyTorch
says neither, and both are what the C walker is checked against.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import operator
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from braze.support.layouts import span

F = TypeVar("F", bound=Callable[..., Any])


def torch() -> Any:
    """The torch module; a guard on torch's state means that torch is there."""
    module = sys.modules.get("torch")
    if module is None:
        import torch as module  # heavy: only where a guard already speaks of it
    return module


def grad_mode() -> bool:
    return torch().is_grad_enabled()


def inference_mode() -> bool:
    return torch().is_inference_mode_enabled()


def autocast(devices: tuple[str, ...] = ("cpu",)) -> tuple[Any, ...]:
    """``((device type, enabled, dtype), ..., cache flag)``."""
    t = torch()
    rows = tuple((name, t.is_autocast_enabled(name), t.get_autocast_dtype(name)) for name in devices)
    return (*rows, t.is_autocast_cache_enabled())


def default_dtype() -> Any:
    return torch().get_default_dtype()


def default_device() -> Any:
    """The device of ``set_default_device`` or of the innermost ``with device:``; None without one."""
    t = torch()
    for index in reversed(range(t._C._len_torch_function_stack())):
        device = getattr(t._C._get_function_stack_at(index), "device", None)
        if isinstance(device, t.device):
            return device
    return None


def function_modes() -> int:
    """How many torch function and dispatch modes are active."""
    c = torch()._C
    return c._len_torch_function_stack() + c._len_torch_dispatch_stack()


def traced_by_another() -> bool:
    """Whether TorchScript's tracer, torch.fx's or Dynamo follows this thread: a compiled function is its original to them."""
    t = torch()
    if t.compiler.is_dynamo_compiling():  # Dynamo reads this line rather than runs it
        return True
    c = t._C
    return (
        c._get_tracing_state() is not None
        or t.fx._symbolic_trace.is_fx_symbolic_tracing()
        or c._dynamo.eval_frame.get_eval_frame_callback() is not None
    )


def hidden_from_dynamo(function: F) -> F:
    """A decorator: have Dynamo look neither into a function nor into what it calls."""
    plain: Any = function
    plain._torchdynamo_disable = True  # met while it reads the caller
    known = torch()._C._dynamo.eval_frame
    skip = known._FrameAction.SKIP
    known.set_code_exec_strategy(plain.__code__, known._FrameExecStrategy(skip, skip))
    return function


def tracing_state_address() -> int:
    """Where libtorch has the function that gives the state of TorchScript's tracer; 0: not known."""
    return address_in(library("torch_cpu"), "_ZN5torch3jit6tracer15getTracingStateEv")


def library(name: str) -> str:
    """The path of one of PyTorch's own libraries: "torch_cpu"."""
    suffix = ".dylib" if sys.platform == "darwin" else ".so"
    return str(Path(torch().__file__).parent / "lib" / f"lib{name}{suffix}")


def address_in(path: str, symbol: str) -> int:
    """The address of a library's function; 0 if there is none."""
    try:
        function = getattr(ctypes.CDLL(path), symbol)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def deterministic() -> bool:
    return torch().are_deterministic_algorithms_enabled()


def range_of_profiler() -> Any:
    """The class of ranges that costs PyTorch's profiler least."""
    return getattr(torch()._C._profiler, "_RecordFunctionFast", None)


def listening_address() -> int:
    """Where libtorch says whether a profiler is on in this thread, emit_nvtx among them; 0 where there are no ranges for it."""
    return (
        address_in(library("torch_cpu"), "_ZN5torch8profiler4impl15profilerEnabledEv")
        if range_of_profiler()
        else 0
    )


def setting(expected: tuple[Any, ...]) -> tuple[Any, ...]:
    """``(function, arguments, value)`` with the value that the function gives now."""
    function, args, _ = expected
    return function, args, function(*args)


def current(check: str, expected: Any = None) -> Any:
    """The present value of one kind of global state, by the name of its check."""
    if check == "setting":
        return setting(expected)
    if check == "autocast" and expected is not None:
        return autocast(tuple(row[0] for row in expected if isinstance(row, tuple)))
    return globals()[check]()


def holds(check: str, expected: Any) -> bool:
    """Whether a global state is as expected."""
    value = current(check, expected)
    if check == "autocast" and not isinstance(expected[-1], bool):
        value = value[:-1]
    return value == expected


@contextlib.contextmanager
def no_modes() -> Iterator[None]:
    """No torch function or dispatch mode of the caller's sees what runs within."""
    c = torch()._C
    with c.DisableTorchFunction(), c._DisableTorchDispatch():
        yield


def tensor_of(array: Any, writable: bool) -> Any:
    """A tensor over the memory of an array of numpy's, which may be written or may not; TypeError for anything else."""
    if (type(array).__module__, type(array).__name__) != ("numpy", "ndarray"):
        raise TypeError("not an array of numpy's")
    if array.flags.writeable is not writable:
        raise ValueError("the array is the other way writable")
    return torch().from_numpy(array)


#: lists in lists of which a tensor is made, at most, as in native/src/numbers.c
MOST_NESTED = 8
#: numbers of which PyTorch makes a tensor and asks no code of the program's
NUMBERS = frozenset({int, float, bool})


def holds_numbers_alone(value: Any, depth: int = MOST_NESTED) -> bool:
    """Whether this is a number of Python's own, or a list or tuple of such."""
    if type(value) in NUMBERS:
        return True
    if not depth or type(value) not in (list, tuple):
        return False
    # by types first: a list may be long
    inner = [item for item in value if type(item) not in NUMBERS]
    return all(holds_numbers_alone(item, depth - 1) for item in inner)


def tensor_of_numbers(values: Any, dtype: str) -> Any:
    """``torch.tensor`` of a list of numbers: of the dtype that PyTorch infers, or of the one of this name; TypeError for anything else."""
    if type(values) is not list or not holds_numbers_alone(values):
        raise TypeError("not a list of numbers")
    # what a program has put in the place of torch.tensor is code of its own
    make = torch()._C._VariableFunctions.tensor
    return make(values, dtype=getattr(torch(), dtype) if dtype else None)


def samples() -> list[Any]:
    """Tensors that differ in all that guards ask for, to try readings on."""
    t = torch()
    base = t.empty(3, 4)
    with t.inference_mode():
        inference = t.empty(2)
    dtypes = t.float64, t.float16, t.bfloat16, t.int64, t.int32, t.int16, t.int8, t.uint8, t.bool, t.complex64
    return [
        base,
        base.t(),
        base[1:, 2:],
        base[:, :0],
        t.empty(()),
        t.empty(2, 1, 3, 1, 2, 1, 2),
        t.empty(5, requires_grad=True),
        t.nn.Parameter(t.empty(2, 3)),
        t.empty(2, 3, device="meta"),
        t.empty(3, dtype=t.complex64).conj(),
        inference,
        *(t.empty(2, 2, dtype=dtype) for dtype in dtypes),
    ]


def same_device(found: Any, expected: Any) -> bool:
    """Equal devices; one without an index stands for any of its type."""
    return found.type == expected.type and (expected.index is None or found.index == expected.index)


def current_stream(index: int) -> int:
    """The number of a GPU's current stream, without the object that ``torch.cuda.current_stream`` makes of it."""
    return torch()._C._cuda_getCurrentRawStream(index)  # type: ignore[no-any-return]


def keys(tensor: Any) -> int:
    """A tensor's dispatch keys as one integer."""
    return torch()._C._dispatch_keys(tensor).raw_repr()


@functools.cache
def plain_keys(device: str) -> int:
    """The dispatch keys of a device's plain tensors: neither wrapped nor batched, neither negated nor of inference mode."""
    with no_modes(), torch().inference_mode(False):
        return keys(torch().empty(0, device=device))


def autograd_keys() -> int:
    """What the dispatcher leaves out below autograd, as one integer."""
    c = torch()._C
    names = "ADInplaceOrView", "AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"
    found = [getattr(c.DispatchKey, name, None) for name in names]
    return functools.reduce(
        operator.or_, (c.DispatchKeySet(key).raw_repr() for key in found if key is not None), 0
    )


def autograd_left_out() -> tuple[bool, bool]:
    """Whether calls of this thread record no views, and no gradients, because these keys are left out."""
    c = torch()._C
    keys = c.DispatchKey.ADInplaceOrView, c.DispatchKey.AutogradFunctionality
    return tuple(c._dispatch_tls_is_dispatch_key_excluded(key) for key in keys)  # type: ignore[return-value]


def metadata(tensor: Any) -> tuple[Any, ...]:
    """``(type, dtype, device, sizes, strides, requires_grad, keys)``, the form of the ``tensor`` check."""
    t = torch()
    if not isinstance(tensor, t.Tensor):
        raise TypeError("not a tensor")
    with t._C.DisableTorchFunctionSubclass():
        strides = tuple(tensor.stride()) if tensor.layout == t.strided else ()
        return (
            type(tensor),
            tensor.dtype,
            tensor.device,
            tuple(tensor.size()),
            strides,
            tensor.requires_grad,
            keys(tensor),
        )


def memory(tensor: Any, itemsize: int) -> int:
    """What ``Step.MEMORY`` tells of a tensor."""
    t = torch()
    if not isinstance(tensor, t.Tensor):
        raise TypeError("not a tensor")
    with t._C.DisableTorchFunctionSubclass():
        begin, bytes = tensor.storage_offset(), tensor.untyped_storage().nbytes()
        if not itemsize:
            return -bytes if begin else bytes
        return int(not begin and bytes == span(tensor.shape, tensor.stride()) * itemsize)


#: bytes of what `counters` tells of a tensor, and of those that tell which counter it is
COUNTER, WHICH = 12, 8
#: id of a tensor -> a weak reference to it, and the number that stands for its counter: no other tensor's, ever
_numbers: dict[int, tuple[weakref.ref[Any], int]] = {}
_next_number = itertools.count(1)


def counters(tensors: tuple[Any, ...]) -> bytes:
    """Which version counters tensors have, and their numbers, twelve bytes each; RuntimeError for one made in inference mode.

    Here each tensor has one of its own, be it a name of another's memory: Python does not tell who shares one.
    """
    return b"".join([struct.pack("=QI", _number_of(tensor), tensor._version) for tensor in tensors])


def _number_of(tensor: Any) -> int:
    known = _numbers.get(id(tensor))
    if known is None or known[0]() is not tensor:
        gone = functools.partial(lambda place, _: _numbers.pop(place, None), id(tensor))
        known = _numbers[id(tensor)] = weakref.ref(tensor, gone), next(_next_number)
    return known[1]


def storage_uses(storage: Any) -> int:
    """How many references PyTorch counts to a piece of memory."""
    return torch()._C._storage_Use_Count(storage._cdata)
