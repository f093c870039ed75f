"""Private names of PyTorch that braze touches: tensors, fakes, modes and transforms."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import operator
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.overrides
from torch._higher_order_ops.associative_scan import (
    associative_scan as torch_associative_scan,  # noqa: F401  (for capture)
)
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph_placeholder as torch_region  # noqa: F401  (for capture)
from torch._higher_order_ops.map import map as torch_map  # noqa: F401  (for capture)
from torch._higher_order_ops.scan import scan as torch_scan  # noqa: F401  (for capture)
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop  # noqa: F401  (for capture)
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    _StopRecomputationError as RecomputedEnough,  # noqa: F401  (how a checkpoint ends its second run)
)

from braze.graph.private.torch_checks import assumption
from braze.runtime.operators.purity import may_draw
from braze.support.shortage import is_out_of_files, lost_by_python
from braze.support.unwritten import note_unwritten

DisableTorchFunction = torch._C.DisableTorchFunction

BelowAutograd = torch._C._AutoDispatchBelowAutograd

make_subclass = torch.Tensor._make_subclass
#: whether autograd knows a tensor as a view of another
is_view = torch.Tensor._is_view


def guarded(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """A tensor that is a view to autograd, to which it lets nobody write with gradients, as to those of a kind (of ``CreationMeta``)."""
    view = tensor if tensor._is_view() else tensor.view_as(tensor)
    torch._C._autograd._set_creation_meta(view, getattr(torch._C._autograd.CreationMeta, kind))  # type: ignore[attr-defined]
    return view


#: turns grad mode on or off in this thread
set_grad_mode = torch._C._set_grad_enabled

#: classes of autograd's nodes: of leaves, of what has no derivative, of products over all elements and over one dimension
ACCUMULATE = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
WITHOUT_DERIVATIVE = torch._C._functions.NotImplemented  # type: ignore[attr-defined]
#: the operation whose derivative autograd takes in this thread, or None
running_backward = torch._C._current_autograd_node
OF_PRODUCTS = (torch._C._functions.ProdBackward0, torch._C._functions.ProdBackward1)  # type: ignore[attr-defined]
OF_GROUP_NORM = torch._C._functions.NativeGroupNormBackward0  # type: ignore[attr-defined]
OF_RUNNING_PRODUCT = torch._C._functions.CumprodBackward0  # type: ignore[attr-defined]
#: whether the formula of running products is another one on fakes (that of PyTorch 2.13 is the same)
RUNS_OTHERWISE_ON_FAKES = torch.__version__ < "2.13"

#: whether what an operation saved can be asked for one by one (PyTorch 2.11 cannot)
can_unpack_saved = hasattr(torch._C._autograd.SavedTensor, "unpack")  # type: ignore[attr-defined]


def mute_fakes(when: Callable[[], bool]) -> None:
    """Keep PyTorch from logging errors of fake tensors while ``when()``: eager code raises its own, which users see."""
    logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: not when())


@functools.cache
def settle_device_guard() -> None:
    """Without a GPU, have PyTorch's stand-in for one belong to a thread that never ends.

    The first thread to enter a FakeTensorMode comes to own it, and every other thread goes on using it: after the
    end of its owner that is memory that was freed.
    """
    ensure = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if ensure is None or torch.cuda.is_available():
        return
    if threading.current_thread() is threading.main_thread():
        ensure()
        return
    done = threading.Event()

    def stay() -> None:
        ensure()
        done.set()
        threading.Event().wait()

    threading.Thread(target=stay, name="braze device guard", daemon=True).start()
    done.wait()


def transforming() -> bool:
    """Whether a transform of torch.func is running, whose tensors may be wrappers, or a mode that sees every function."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    modes = torch._C._len_torch_function_stack()
    return any(type(torch._C._get_function_stack_at(i)).__name__ != "DeviceContext" for i in range(modes))


#: the module that says how deep forward-mode differentiation is nested, and under which name; -1: not at all
DUAL_LEVEL = (torch.autograd.forward_ad, "_current_level")


def dual_level() -> int:
    """How deep forward-mode differentiation is nested; -1: not at all."""
    return getattr(*DUAL_LEVEL)  # type: ignore[no-any-return]


def watched() -> bool:
    """Whether transforms or modes are to see the calls of a program one by one."""
    # two default devices are not told from one and another mode by guards
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack() > 1
    return bool(modes) or transforming()


def dispatch_modes() -> tuple[int, bool]:
    """How many dispatch modes are entered, and whether new tensors of the CPU alone are lifted, as fake modes have it."""
    return torch._C._len_torch_dispatch_stack(), torch._C._only_lift_cpu_tensors()


def leave_modes(entered: tuple[int, bool]) -> None:
    """Leave the dispatch modes entered since. An exception may come between a mode's being entered and its ``with``'s knowing it."""
    try:
        _leave_modes(*entered)
    except Exception:  # memory that ends here, for once, perhaps
        _leave_modes(*entered)
        raise


def _leave_modes(modes: int, lifted: bool) -> None:
    while torch._C._len_torch_dispatch_stack() > modes:
        torch._C._pop_torch_dispatch_stack(None)
    torch._C._set_only_lift_cpu_tensors(lifted)


#: what begins a mark of the profiler
begin_mark = torch.ops.profiler._record_function_enter_new

#: how function modes are entered and left
push_mode, pop_mode = torch.overrides._push_mode, torch.overrides._pop_mode


class functorch:
    """Where the transforms of torch.func call into their machinery, and how ``vmap`` reads its settings."""

    vmap_impl: Any = torch.func.vmap.__globals__["vmap_impl"]
    check_randomness: Any = vmap_impl.__globals__["_check_randomness_arg"]
    process_inputs: Any = vmap_impl.__globals__["_process_batched_inputs"]
    broadcast_dims: Any = pytree._broadcast_to_and_flatten
    grad_impl: Any = torch.func.vjp.__globals__["grad_impl"]
    grad_and_value_impl: Any = torch.func.vjp.__globals__["grad_and_value_impl"]


def without_wrappers(x: Any) -> Any:
    """What transforms that differentiate have wrapped; a batch stays one."""
    f = torch._C._functorch
    while isinstance(x, torch.Tensor) and f.is_gradtrackingtensor(x):
        x = f.get_unwrapped(x)
    return x


class RandomWatch(TorchDispatchMode):
    """Tells whether an operator may have drawn random numbers while it was on."""

    drawn = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.drawn = self.drawn or may_draw(func)
        return func(*args, **(kwargs or {}))


def outside_modes() -> Any:
    """A context in which tensor calls reach the plain kernels, past every function and dispatch mode."""
    return torch._C._DisableTorchDispatch()


#: how PyTorch and pybind11 say that Python had no memory for an object
_SHORT = re.compile(r"(\S+\(\): )?(Failed to allocate a|Could not allocate) ([\w:.]+ )+(object|reference)")
#: how pybind11 does where it is a number that cannot be made
_NO_NUMBER = re.compile(
    r"Unable to convert function return value to a Python type! The signature was\s.* -> (int|float)\Z", re.S
)
#: how PyTorch does where it looks for a mode's method and takes Python's MemoryError for none
_NO_METHOD = re.compile(
    r"0 INTERNAL ASSERT FAILED at \"\S*python_arg_parser\.cpp|Defining your mode's `__torch_\w+__` as a classmethod"
)
#: how PyTorch does where it has no room for what a list's items become: it says that a list of integers is none, or one of tensors
_NO_ROOM_FOR_A_LIST = re.compile(
    r"\S+\(\) Expected a value of type '(Optional\[)?List\[(int|(?P<tensors>(Optional\[)?Tensor))\]*' for argument '\w+' but instead "
    r"found type '(list|tuple|immutable_list)'\.\s+Position: \d+\s+"
    r"Value: [\[(](?(tensors)(None, )*\w*[tT]ensor\(|[-\d, ]*[\])]\s)"
)
#: how a GPU's driver does, where it is not PyTorch's allocator that asks: for a module, a graph, a stream
_FULL = re.compile(r"(CUDA|HIP) error: out of memory|Triton Error \[(CUDA|HIP)\]: out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory is short: Python's, a device's, or PyTorch's own on the CPU, which have no type."""
    if isinstance(error, RuntimeError):
        said = str(error)
        # the allocator's, where a tensor gets no Python object, and pybind11's; a driver's, through PyTorch and through Triton
        if (
            "can't allocate memory" in said
            or _SHORT.match(said)
            or _NO_METHOD.match(said)
            or _NO_ROOM_FOR_A_LIST.match(said)
            or _FULL.search(said)
        ):
            return True
    if isinstance(error, TypeError) and _NO_NUMBER.match(str(error)):
        return True
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or lost_by_python(error)


def is_shortage(error: BaseException) -> bool:
    """Whether a compile failed for what there may be another time: memory, or files that the process may open."""
    return is_out_of_memory(error) or is_out_of_files(error)


def put_versions(tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Set back how often tensors were written, as autograd counts it."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def take_back_counts(error: Exception, counted: Sequence[torch.Tensor]) -> None:
    """Of a graph that has failed, where it had written none of the inputs whose writes were counted: undo :func:`count_writes`."""
    if note_unwritten(error):
        for tensor in counted:  # some may share a counter
            put_versions((tensor,), (tensor._version - 1,))


def storage_key(tensor: torch.Tensor) -> int:
    """A number that two tensors share when they share a storage."""
    return tensor.untyped_storage()._cdata


#: inside it, composite operators that a meta function calls take sizes that are symbols
python_dispatcher = torch._C._EnablePythonDispatcher

#: and within that, operators run their kernels in C++ again
cpp_dispatcher = torch._C._DisablePythonDispatcher


def is_dispatch_key(name: object) -> bool:
    """Whether PyTorch has a dispatch key of this name, such as ``"CPU"``."""
    return isinstance(name, str) and name in torch._C.DispatchKey.__members__


def after_libraries_end(then: Callable[[], None]) -> None:
    """Call ``then`` whenever a ``torch.library.Library`` has been destroyed, or is gone, with all that it registered."""

    def followed(end: Callable[..., Any]) -> Any:
        @functools.wraps(end)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return end(*args, **kwargs)
            finally:
                then()

        return call

    torch.library.Library._destroy = followed(torch.library.Library._destroy)  # type: ignore[method-assign]
    torch.library._del_library = followed(torch.library._del_library)


def assemble_fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device, grad: bool) -> FakeTensor:
    """Wrap a meta tensor as ``FakeTensor(mode, meta, device)`` would, without its checks."""
    if not made_fakes.holds():
        return FakeTensor(mode, meta, device).requires_grad_(grad)  # type: ignore[return-value]
    fake = make_subclass(FakeTensor, meta, grad, dispatch_device=True, device_for_backend_keys=device)
    torch._C._set_throw_on_mutable_data_ptr(fake)
    fake.__dict__.update(_state_of_fakes(mode, device))
    return fake  # type: ignore[return-value]


META = torch.device("meta")


def fake_of_number(mode: FakeTensorMode, real: torch.Tensor) -> FakeTensor:
    """The fake of a number that PyTorch has put into a tensor, which it can still be asked for.

    PyTorch's own way to it imports Dynamo, for a name of a source that nobody reads: seconds of the first capture, whose frames the
    import keeps until the collector runs.
    """
    meta = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=META)
    fake = assemble_fake(mode, meta, real.device, False)
    fake.constant = real.clone()
    mode.fake_tensor_converter.add_constant_storage_mapping(fake)
    return fake


class _Wrapper(torch.Tensor):
    """A class that may be made with sizes and a storage's size as told: any with this method may."""

    __torch_dispatch__ = FakeTensor.__torch_dispatch__  # type: ignore[assignment]


def told(shape: Any, strides: Any, offset: Any, dtype: torch.dtype, nbytes: Any) -> torch.Tensor:
    """A tensor on the meta device with a new storage of so many bytes; nothing is derived or checked."""
    return torch.Tensor._make_wrapper_subclass(
        _Wrapper, shape, strides=strides, storage_offset=offset, dtype=dtype, device=META, storage_size=nbytes
    )


#: autograd takes the tensors of a list for written once more
count_writes: Callable[[Sequence[torch.Tensor]], None] = torch._C._increment_version


def copy_all(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    """Copy tensors into others of the same sizes: on a GPU one launch for those of a type and a device."""
    if len(to) == 1:
        to[0].copy_(of[0])
    else:
        torch._foreach_copy_(to, of)


def copy_uncounted(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    """The same, of which autograd counts nothing: it is told how often they had been written, as of all at once."""
    try:
        versions = [tensor._version for tensor in to]
    except RuntimeError:  # those of inference mode have no count, and are written outside of it, too
        copy_all([tensor.data for tensor in to], of)
        return
    copy_all(to, of)
    put_versions(to, versions)


def empty_like_inference(fake: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A meta tensor of no elements that is one of inference mode only if the fake is, whatever mode is on: so will be views made of it.

    Autograd counts the writes to a view of what is none, and refuses one that has no place for the count.
    """
    if torch.is_inference_mode_enabled() and not fake.is_inference():
        with torch.inference_mode(False):
            return torch.empty(0, dtype=dtype or fake.dtype, device=META)
    return torch.empty(0, dtype=dtype or fake.dtype, device=META)


def strided_view(fake: torch.Tensor, shape: Any, strides: Any, offset: Any) -> torch.Tensor:
    """A tensor over a fake's storage, by the kernel of the meta device, which takes symbolic sizes unchecked.

    Of a plain tensor with that storage: a result with a fake's key is asked whether it is a DTensor, for which PyTorch imports torch.distributed.tensor (0.4 s).
    """
    plain = empty_like_inference(fake).set_(fake.untyped_storage(), 0, (0,), (1,))
    before = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        return torch.as_strided(plain, shape, strides, offset)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(before)


#: where the dispatcher's Python is: what operators do, run by PyTorch's C++ for itself. It takes no exception of a trace
DISPATCHER_FILES = (
    *torch._library.__path__,
    torch._ops.__file__,
    os.path.dirname(str(sys.modules[FakeTensor.__module__].__file__)),
)


def kind_of_modification() -> Any:
    """The function that says whether one changes scores or masks; its module takes SymPy along, from 2.14 on."""
    return importlib.import_module("torch.nn.attention.flex_attention")._get_mod_type


_apply: Any = torch.autograd.Function.__dict__["apply"]

#: what ``apply`` of an autograd function calls with the class first: since 2.15 a class method in C
function_apply: Any = getattr(_apply, "__func__", _apply)


def apply_function(cls: Any, args: Any, kwargs: Any) -> Any:
    """Call an autograd function by PyTorch's ``apply``, whatever the program made of that name."""
    return _apply.__get__(None, cls)(*args, **kwargs)


#: whether transforms of torch.func are at work, of which autograd functions know nothing
transforms_at_work: Callable[[], bool] = torch._C._are_functorch_transforms_active


def is_of_transform(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of a transform's, which a module may hold after its end, or of the ``vmap`` of ``torch.autograd`` (``is_grads_batched``)."""
    known = torch._C._functorch
    return known.is_functorch_wrapped_tensor(tensor) or known.is_legacy_batchedtensor(tensor)


def apply_past_wrapper(cls: Any) -> Callable[..., Any]:
    """An autograd function's ``apply`` without what Python puts around it, which is for transforms of torch.func and their wrappers."""
    return super(torch.autograd.Function, cls).apply  # type: ignore[no-any-return, misc]


def keeps_plainly() -> bool:
    """Whether what ``save_for_backward`` and ``set_materialize_grads`` say is an attribute of a context."""
    context = torch._C._FunctionBase  # type: ignore[attr-defined]
    return hasattr(context, "to_save") and hasattr(context, "materialize_grads")


def put_steps(cls: Any, forward: Any, backward: Any | None) -> None:
    """Have an autograd function's forward be this, and a method of contexts, if given, what its node does."""
    cls.forward = forward
    if backward is not None:
        cls._backward_cls.apply = backward


#: the device that a fake stands for: an attribute that 2.12 renamed
device_of_fake = operator.attrgetter(
    "_fake_device" if "_fake_device" in FakeTensor.__annotations__ else "fake_device"
)


def _state_of_fakes(mode: FakeTensorMode, device: torch.device) -> dict[str, Any]:
    """The instance attributes of a fresh fake on ``device``, read off one that PyTorch made."""
    known = mode.__dict__.setdefault("_braze_states", {})
    state = known.get(device)
    if state is None:
        meta = torch.empty_strided((), (), device="meta")
        state = known[device] = dict(FakeTensor(mode, meta, device).__dict__)
    return state


@assumption("making of fakes", "fakes are made by PyTorch's own, slower way, and no result is remembered")
def made_fakes() -> None:
    """A fake put together here is one that PyTorch makes, over the memory that it is told."""
    mode, cpu = FakeTensorMode(), torch.device("cpu")
    meta = torch.empty_strided((2, 3), (1, 2), device="meta")
    own, theirs = assemble_fake(mode, meta, cpu, True), FakeTensor(mode, meta, cpu)
    known = [
        (dict(x.__dict__), type(x), x.shape, x.stride(), x.device, device_of_fake(x)) for x in (own, theirs)
    ]
    if known[0] != known[1] or not own.requires_grad:
        raise AssertionError(f"a fake is made as {known[0]}, not {known[1]}")
    with outside_modes():
        part = assemble_fake(mode, strided_view(own, (2,), (2,), 1), cpu, False)
        apart = told((4, 2), (2, 1), 1, torch.int16, 40)
    facts = (storage_key(part) == storage_key(own), part.storage_offset(), tuple(apart.shape), apart.stride())
    if facts != (True, 1, (4, 2), (2, 1)) or apart.untyped_storage().nbytes() != 40:
        raise AssertionError(f"views are made as {facts}")


def differentiate_at_zero(node: Any) -> None:
    """Let a node of autograd's take its derivative for gradients of zeros; its error, if it has one."""
    zeros = (torch.zeros(tuple(g.shape), dtype=g.dtype, device=g.device) for g in node._input_metadata)
    # one written in Python, as operators of `torch.library` have, is no function itself
    (node if callable(node) else node.apply)(*zeros)


def gives_nothing(node: Any, place: int) -> bool:
    """Whether a node of autograd's has no gradient to give of one for this of its results alone: a formula makes nothing of that."""
    if node is None or place != 0 or node.name() != "LinalgSlogdetBackward0":
        return False
    return not node._input_metadata[0].dtype.is_complex  # the sign of a real determinant is constant


def statistics_read_late(node: Any) -> tuple[Any, ...]:
    """The running statistics that a batch norm in evaluation keeps for its derivative: as they are by then, since training counts no writes to them."""
    name = node.name()
    if "BatchNorm" not in name or getattr(node, "_saved_training", "NoTraining" not in name):
        return ()
    return tuple(x for x in (node._saved_running_mean, node._saved_running_var) if x is not None)


def sizes_written(node: Any) -> tuple[Any, ...] | None:
    """The sizes of what a node of autograd's has put somewhere (`index_put`, into a view too); None for other nodes."""
    if node is None or node.name().rpartition("::")[2] not in ("IndexPutBackward0", "CopySlices"):
        return None
    source, place = node.next_functions[1]
    return None if source is None else tuple(source._input_metadata[place].shape)


def has_composite_kernel(func: Any) -> bool:
    """Whether an operator overload is defined by other operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def has_cpu_kernel(func: Any) -> bool:
    """Whether the CPU has a way of its own for an operator overload, which no composition of others stands for."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = func.name()
    return has(name, "CPU") or not has(name, "CompositeImplicitAutograd")


def is_batched(value: Any) -> bool:
    """Whether a value is a tensor that stands for many, under ``vmap``."""
    known = torch._C._functorch
    return value is not None and (known.is_batchedtensor(value) or known.is_legacy_batchedtensor(value))


def is_of_zeros(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory, as all its numbers are zero: derivatives of PyTorch's make such."""
    return tensor._is_zerotensor()  # type: ignore[no-any-return]


def with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose numbers stand in memory as they are."""
    if tensor.is_neg() or tensor.is_conj():
        return tensor.resolve_conj().resolve_neg()
    return tensor.clone() if is_of_zeros(tensor) else tensor


#: what packs a tensor that autograd saves, and what unpacks it
SavingHooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def saving_hooks() -> SavingHooks | None:
    """What packs and unpacks all that autograd saves in this thread, if anything of the program's does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False)  # type: ignore[no-any-return]


def are_saving_hooks() -> bool:
    """Whether there are such hooks."""
    return saving_hooks() is not None


def without_saving_hooks() -> Any:
    """A context in which no hook of the program's (a checkpoint's, say) sees what autograd saves of fakes."""
    if saving_hooks() is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is)


def _as_it_is(saved: Any) -> Any:
    return saved


def any_autocast() -> bool:
    """Whether autocast is on for any device."""
    return torch._C._is_any_autocast_enabled()


def disable_autocast() -> Any:
    """A context in which autocast casts nothing."""
    return torch._C._DisableAutocast()


#: device type -> the key under which autocast sits
_AUTOCAST_KEYS = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}


def casting_devices() -> tuple[str, ...]:
    """The device types for which autocast is on; below a dispatch mode it is off for all."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    return tuple(kind for kind in _AUTOCAST_KEYS if torch.is_autocast_enabled(kind))


@contextlib.contextmanager
def casting_on(devices: tuple[str, ...]) -> Iterator[None]:
    """A context in which autocast is on for some device types below a dispatch mode too."""
    with contextlib.ExitStack() as stack:
        for kind in devices:
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(_AUTOCAST_KEYS[kind], False))  # type: ignore[attr-defined]
        yield


def function_state() -> tuple[Any, ...]:
    """What, besides its arguments, decides the metadata an operator gives back."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch._C._is_any_autocast_enabled() and autocast_state(),
    )


def autocast_state() -> tuple[Any, ...]:
    """(device type, enabled, dtype) for the devices that models use, and the cache flag."""
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    kinds = ("cpu", "cuda")
    return (*((kind, enabled(kind), dtype(kind)) for kind in kinds), torch.is_autocast_cache_enabled())


def disable_overrides() -> Any:
    """A context in which tensors of other classes are called as tensors are: no ``__torch_function__`` is looked for, modes see each call."""
    return torch._C.DisableTorchFunctionSubclass()


def disable_functions() -> Any:
    """A context in which no ``__torch_function__`` (mode or subclass) sees a call."""
    return torch._C.DisableTorchFunction()


def without_innermost_mode() -> Any:
    """A context in which the ``TorchFunctionMode`` that was turned on last sees no call; one turned on within it does."""
    return torch.overrides._pop_mode_temporarily()


def share_state(model: torch.nn.Module, other: torch.nn.Module) -> None:
    """What PyTorch's composable wrappers (``fully_shard``) know of a module by its identity, known of another one over the same contents."""
    registry = getattr(sys.modules.get("torch.distributed._composable_state"), "_module_state_mapping", None)
    if registry is not None and (state := registry.get(model)) is not None:
        registry[other] = state
