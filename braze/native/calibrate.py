"""Find out, once, how the C core may read this PyTorch, by comparing it with Python on samples.

The layout of a tensor's Python object and the exported functions are PyTorch's own business and differ
between versions. So nothing is assumed: where the ``at::Tensor`` stands, where its dispatch keys stand,
and every state reader are tried against what Python says; what does not agree is read through Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from typing import Any

from braze.native import allocation, layout, places, tables, torch_state
from braze.native.vocabulary import STATES
from braze.support.record import record

#: the numbers of c10::DeviceType
DEVICE_TYPES = {
    "cpu": 0, "cuda": 1, "hip": 6, "xla": 9, "xpu": 12, "mps": 13, "meta": 14, "hpu": 15, "mtia": 19, "privateuseone": 20,
}  # fmt: skip
_HANDLE_OFFSETS = (16, 24, 32)
_KEYS_OFFSETS = range(8, 184, 8)
_TENSOR_SYMBOLS = (
    "aoti_torch_get_dtype",
    "aoti_torch_get_device_type",
    "aoti_torch_get_device_index",
    "aoti_torch_get_dim",
    "aoti_torch_get_sizes",
    "aoti_torch_get_strides",
    "aoti_torch_get_data_ptr",
    "aoti_torch_get_storage_offset",
    "aoti_torch_get_storage_size",
)
_REQUIRES_GRAD = "_ZNK3c1010TensorImpl13requires_gradEv"
STATE_SYMBOLS = {
    "grad_mode": ("aoti_torch_grad_mode_is_enabled",),
    "inference_mode": ("_ZN3c1013InferenceMode10is_enabledEv",),
    "autocast": (
        "_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE",
        "_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE",
        "_ZN2at8autocast25is_autocast_cache_enabledEv",
    ),
    "default_dtype": ("_ZN3c1031get_default_dtype_as_scalartypeEv",),
    "default_device": ("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",),
    "function_modes": (
        "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
        "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    ),
    "deterministic": ("_ZN2at13globalContextEv", "_ZNK2at7Context23deterministicAlgorithmsEv"),
}


@record
class Facts:
    """What calibration found to be readable natively."""

    keys: bool
    requires_grad: bool
    states: frozenset[str]

    def dtype_number(self, dtype: Any) -> int:
        """The number that libtorch gives a dtype."""
        if dtype not in _numbers:
            with torch_state.no_modes():
                sample = torch_state.torch().empty(0, dtype=dtype)
                _numbers[dtype] = _core()._raw_meta(sample)[0]
        return _numbers[dtype]


_lock = threading.RLock()
_found: list[Facts | None] = []
_allocating: list[bool] = []
_replaying: list[bool] = []
_numbers: dict[Any, int] = {}


def _core() -> Any:
    return sys.modules["braze.native._native"]


def facts() -> Facts | None:
    """What the C core may read; None if tensors are to be read through Python. Imports torch."""
    with _lock:
        if not _found:
            with torch_state.no_modes():
                _found.append(calibrate())
        return _found[0]


def bind_torch() -> dict[str, bool]:
    """Calibrate now (once), what compiled kernels need besides the guards, too; what is read natively, by name."""
    known = facts()
    _bind_allocation(known)
    names = ("tensors", "keys", "requires_grad", *STATE_SYMBOLS)
    if known is None:
        return dict.fromkeys(names, False)
    states = {name: name in known.states for name in STATE_SYMBOLS}
    return {"tensors": True, "keys": known.keys, "requires_grad": known.requires_grad, **states}


def _bind_allocation(known: Facts | None) -> None:
    """Let C make tensors, if it can read them. Most captures do without."""
    with _lock:
        if not _allocating:
            _allocating.append(True)
            if known is not None and known.keys and known.requires_grad:
                with torch_state.no_modes():
                    allocation.configure(_core())


def replays_natively() -> bool:
    """Whether C may replay recordings: it must read tensors, make some over memory that is there, and see who holds memory."""
    with _lock:
        if not _replaying:
            known = facts()
            _bind_allocation(known)
            plain = known is not None and known.keys and known.requires_grad
            with torch_state.no_modes():
                _replaying.append(plain and allocation.counts_storages(_core()))
        return _replaying[0]


def tensor_of_numbers(values: Any, dtype: str) -> Any:
    """What ``torch.tensor`` makes of a list of numbers, as guards read it; None where the C core makes none."""
    _bind_allocation(facts())
    return _core().tensor_of_numbers(values, dtype)


def tensor_meta(tensor: Any) -> tuple[Any, ...]:
    """``(type, dtype, device, sizes, strides, requires_grad, dispatch keys)``, read natively where possible."""
    known = facts()
    plain = known is not None and known.keys and known.requires_grad
    if not plain or tensor.layout != torch_state.torch().strided:
        return torch_state.metadata(tensor)
    number, device, index, sizes, strides, grad, keys = _core()._raw_meta(tensor)
    t = torch_state.torch()
    dtype = next((d for d, n in _numbers.items() if n == number), None) or tensor.dtype
    place = next(name for name, n in DEVICE_TYPES.items() if n == device)
    where = t.device(place) if index < 0 or place == "cpu" else t.device(place, index)
    return type(tensor), dtype, where, sizes, strides, bool(grad), keys


def tabulate(columns: tuple[list[Any], ...], like: Any, table: Any, first: int = 0) -> tuple[int, bool]:
    """:func:`braze.native.tables.tabulate`, natively where tensors and their dispatch keys can be read."""
    known = facts()
    walk = _core().tabulate if known is not None and known.keys else tables.tabulate
    return walk(columns, like, table, first)


def addresses(dicts: tuple[dict[str, Any], ...], keys: tuple[str, ...]) -> bytes:
    """:func:`braze.native.places.addresses`, natively where tensors can be read."""
    walk = _core().addresses if facts() is not None else places.addresses
    return walk(dicts, keys)  # type: ignore[no-any-return]


def calibrate() -> Facts | None:
    """Try every reading; switch on in C those that agree with Python."""
    core, torch = _core(), torch_state.torch()
    symbols = core._load_torch(torch_state.library("torch_cpu"))
    core._configure_layout()
    core._configure_counter()
    samples = torch_state.samples()
    offset = _handle_offset(samples)
    states = frozenset(name for name, wanted in STATE_SYMBOLS.items() if all(symbols[s] for s in wanted))
    if offset is None or not all(symbols[name] for name in _TENSOR_SYMBOLS):
        core._configure(None, 0, -1, False, 0)
        return None
    keys = _keys_offset(samples)
    grad = symbols[_REQUIRES_GRAD]
    core._configure(torch.Tensor, offset, -1 if keys is None else keys, grad, 0)
    agree = [_agrees(core._raw_meta(sample), sample, keys is not None, grad) for sample in samples]
    if not all(agree) or not all(map(_agree_on_memory, samples)):
        core._configure(None, 0, -1, False, 0)
        return None
    found = Facts(keys=keys is not None, requires_grad=grad, states=states)
    states = _agreeing_states(found)
    bits = sum(1 << number for name, number in STATES.items() if name in states)
    core._configure(torch.Tensor, offset, -1 if keys is None else keys, grad, bits)
    if keys is not None and grad:
        _configure_images(core, offset, keys)
    return Facts(keys=keys is not None, requires_grad=grad, states=states)


def _configure_images(core: Any, offset: int, keys: int) -> None:
    """Let C compare the words that decide a tensor's metadata, if it is known where they stand."""
    found = layout.find(keys, lambda tensor: core._raw_meta(tensor)[:2])
    if found is None:
        return
    core._configure_layout(offset, *dataclasses.astuple(found))
    if not layout.agrees(core._same_image):
        core._configure_layout()
        return
    counter = layout.find_counter()
    if counter is not None:
        core._configure_counter(counter.pointer, counter.number)


def _handle_offset(samples: list[Any]) -> int | None:
    """Where the pointer to the tensor's implementation stands in the Python object."""
    for offset in _HANDLE_OFFSETS:
        inside = type(samples[0]).__basicsize__ >= offset + 8
        if inside and all(layout.word(id(sample) + offset) == sample._cdata for sample in samples):
            return offset
    return None


def _keys_offset(samples: list[Any]) -> int | None:
    """Where the dispatch keys stand in the implementation; None unless exactly one place fits all samples."""
    wanted = [(sample._cdata, torch_state.keys(sample)) for sample in samples]
    places = [
        offset for offset in _KEYS_OFFSETS if all(layout.word(at + offset) == keys for at, keys in wanted)
    ]
    distinct = len({keys for _, keys in wanted}) > 2
    return places[0] if len(places) == 1 and distinct else None


def _agrees(raw: tuple[Any, ...], sample: Any, keys: bool, grad: bool) -> bool:
    """Whether the numbers C read say what Python says, and dtype numbers are one to one."""
    _, dtype, device, sizes, strides, requires_grad, found_keys = torch_state.metadata(sample)
    known = _numbers.setdefault(dtype, raw[0])
    others = (number for other, number in _numbers.items() if other is not dtype)
    return (
        known == raw[0]
        and raw[0] not in others
        and raw[1] == DEVICE_TYPES.get(device.type)
        and (device.index is None or raw[2] in (device.index, -1))
        and raw[3] == sizes
        and raw[4] == strides
        and (not grad or raw[5] == requires_grad)
        and (not keys or raw[6] == found_keys)
    )


def _agree_on_memory(sample: Any) -> bool:
    """Whether C reads how a tensor lies in its memory as Python does."""
    return all(
        _core().memory(sample, itemsize) == torch_state.memory(sample, itemsize)
        for itemsize in (0, sample.itemsize)
    )


def _agreeing_states(found: Facts) -> frozenset[str]:
    """The states that C reads as Python does, as things are and under each context that changes one."""
    t = torch_state.torch()
    contexts = (
        contextlib.nullcontext(),
        t.no_grad(),
        t.enable_grad(),
        t.inference_mode(),
        t.autocast("cpu", dtype=t.bfloat16),
        t.autocast("cpu", enabled=False, cache_enabled=False),
        t.device("meta"),
    )
    agreeing = set(found.states)
    for context in contexts:
        with context:
            agreeing -= {name for name in agreeing if not _state_agrees(found, name)}
    return frozenset(agreeing)


def _state_agrees(found: Facts, name: str) -> bool:
    core = _core()
    number = STATES[name]
    value = torch_state.current(name)
    if name == "autocast":
        (_, enabled, dtype), cache = value
        return core._raw_state(number, 0) == (enabled, found.dtype_number(dtype), cache)
    if name == "default_dtype":
        return core._raw_state(number) == found.dtype_number(value)
    if name == "default_device":  # C only says whether there may be one
        return value is None or core._raw_state(number) > 0
    return core._raw_state(number) == value
