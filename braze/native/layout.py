"""Find out, by trying, where the words stand that decide a tensor's metadata, so that C compares them without calls.

Each place is found by what it does: it holds the number in every sample, or it is the one that changes when
``requires_grad`` does. Where no single place fits, nothing is switched on and tensors are read by calls.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable
from typing import Any

from braze.native import torch_state
from braze.support.record import record

#: bytes of a tensor's implementation that are looked at, where it has so many
_LOOKED_AT = 184
#: sizes and strides up to this many stand inside the implementation
INLINE = 5


@record
class Layout:
    """Offsets in bytes (but for `padding`): in a tensor's implementation, the last two in what autograd keeps."""

    ndim: int
    sizes: int
    strides: int
    dtype: int  # the word of the element type, the device and the flags that say how sizes are to be read
    padding: int  # the bits of that word that nobody sets
    keys: int
    autograd: int
    requires_grad: int
    grad_fn: int
    own: int  # with what begins that which autograd keeps of a tensor that is no view: a view requires gradients where its base does


@record
class Counter:
    """Where a tensor's version is: the offset of a pointer in its implementation, of the number where that points."""

    pointer: int
    number: int


def find_counter() -> Counter | None:
    """Where the number stands that in-place operations raise; its pointer is null for inference tensors."""
    t, usable_size = torch_state.torch(), _usable_size()
    if usable_size is None:
        return None
    with t.inference_mode():
        without = t.empty(3)
    with t.inference_mode(False), t.no_grad():
        counted = [t.zeros(size) for size in (2, 3, 4)]
        for times, tensor in zip((5, 7, 1), counted, strict=True):
            for _ in range(times):
                tensor.add_(1)
        views = [tensor.detach() for tensor in counted]  # share the counter, but little else
        pointers = [
            o
            for o in _words([without, *counted, *views], usable_size)
            if not word(without._cdata + o)
            and all(
                word(a._cdata + o) == word(b._cdata + o) > 4096 for a, b in zip(counted, views, strict=True)
            )
        ]
        pointer = _only(pointers)
        if pointer is None:
            return None
        blocks = [
            ctypes.string_at(a, min(usable_size(a), 64)) for a in (word(c._cdata + pointer) for c in counted)
        ]
        versions = [c._version for c in counted]
        number = _only(
            o
            for o in range(8, min(map(len, blocks)) - 3, 4)
            if all(
                int.from_bytes(b[o : o + 4], sys.byteorder) == v
                for b, v in zip(blocks, versions, strict=True)
            )
        )
        return None if number is None else Counter(pointer, number)


def find(keys: int, number_of: Callable[[Any], tuple[int, int]]) -> Layout | None:
    """The layout of this PyTorch; ``number_of`` gives libtorch's numbers of a tensor's type and device."""
    with torch_state.torch().inference_mode(False), torch_state.torch().enable_grad():
        samples = _samples()
        usable_size = _usable_size()
        if usable_size is None:
            return None
        words = _words(samples, usable_size)
        ndim = _only(o for o in words if all(word(t._cdata + o) == t.dim() for t in samples))
        sizes = _only(o for o in words if all(_holds(t, o, tuple(t.size()), words) for t in samples))
        strides = _only(o for o in words if all(_holds(t, o, tuple(t.stride()), words) for t in samples))
        dtype = _dtype_word(samples, number_of, words)
        autograd = _autograd_word(words)
        if None in (ndim, sizes, strides, dtype, autograd):
            return None
        assert autograd is not None
        flag, function = _requires_grad_byte(autograd, usable_size), _grad_fn_word(autograd, usable_size)
        own = _beginning_of_own(autograd)
        if flag is None or function is None or own is None:
            return None
        assert dtype is not None
        padding = _padding(dtype, usable_size)
        return Layout(ndim, sizes, strides, dtype, padding, keys, autograd, flag, function, own)  # type: ignore[arg-type]


def _samples() -> list[Any]:
    """Tensors that differ in sizes, strides, types and devices."""
    t = torch_state.torch()
    wide = t.empty(2, 3, 4, 5, 6)
    return [*torch_state.samples(), wide, wide.permute(4, 2, 0, 3, 1), t.empty(3, 1, 7), t.empty(9)[2:7:2]]


def _words(tensors: Iterable[Any], usable_size: Callable[[int], int]) -> range:
    """The words that each of the tensors' implementations has; the first of all is its table of methods."""
    return range(8, min(_LOOKED_AT, *(usable_size(tensor._cdata) for tensor in tensors)) & ~7, 8)


def word(address: int) -> int:
    """The 64 bits at an address."""
    return ctypes.c_uint64.from_address(address).value


def _only(places: Iterable[int]) -> int | None:
    """The place, if there is exactly one."""
    found = list(places)
    return found[0] if len(found) == 1 else None


def _holds(tensor: Any, offset: int, numbers: tuple[int, ...], words: range) -> bool:
    """Whether the words from ``offset`` on are ``numbers``; those of many dimensions stand elsewhere."""
    if len(numbers) > INLINE:
        return True
    if offset + 8 * len(numbers) > words.stop:
        return False
    return all(word(tensor._cdata + offset + 8 * i) == n for i, n in enumerate(numbers))


def _dtype_word(samples: list[Any], number_of: Callable[[Any], tuple[int, int]], words: range) -> int | None:
    """The word with the element type and, beside the device's type, its index."""
    raw = [(ctypes.string_at(s._cdata, words.stop), *number_of(s)) for s in samples]
    distinct = len({dtype for _, dtype, _ in raw}) > 4 and len({device for _, _, device in raw}) > 1
    places = range(words.start, words.stop, 2)
    place = _only(o for o in places if all(r[o] + 256 * r[o + 1] == dtype for r, dtype, _ in raw))
    if place is None or not distinct:
        return None
    word = place & ~7
    devices = [o for o in range(word, word + 7) if all(r[o] == device for r, _, device in raw)]
    return word if len(devices) == 1 else None


def _padding(offset: int, usable_size: Callable[[int], int]) -> int:
    """The bits of a word that are what they happened to be in the memory that an implementation was made in."""
    t, libc = torch_state.torch(), ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    first = t.empty(3)
    size = usable_size(first._cdata)
    varying = 0  # what equal tensors do not have in common, nobody sets
    for value in (0xFF, 0) * 8:
        blocks = [libc.malloc(size) for _ in range(8)]
        for block in blocks:
            ctypes.memset(block, value, size)
            libc.free(block)
        other = t.empty(3)  # held while it is read
        varying |= word(other._cdata + offset) ^ word(first._cdata + offset)
    return varying


def _autograd_word(words: range) -> int | None:
    """The word that is null until autograd has something to keep."""
    places = set(words)
    for size in (3, 5):
        tensor = torch_state.torch().empty(size)
        before = [word(tensor._cdata + o) for o in words]
        tensor.requires_grad_()
        after = [word(tensor._cdata + o) for o in words]
        changed = {o for o, a, b in zip(words, before, after, strict=True) if a != b}
        places &= {o for o, a in zip(words, before, strict=True) if o in changed and a == 0}
        if len(changed) != 1:
            return None
    return _only(places)


def _usable_size() -> Callable[[int], int] | None:
    """How large a block of the C allocator is."""
    try:
        function = ctypes.CDLL(None).malloc_usable_size
    except (AttributeError, OSError):
        return None
    function.restype, function.argtypes = ctypes.c_size_t, [ctypes.c_void_p]
    return function  # type: ignore[no-any-return]


def _kept(tensor: Any, autograd: int, usable_size: Callable[[int], int]) -> bytes:
    """What autograd keeps of a tensor, as bytes."""
    address = word(tensor._cdata + autograd)
    return ctypes.string_at(address, min(usable_size(address), 1024))


def _requires_grad_byte(autograd: int, usable_size: Callable[[int], int]) -> int | None:
    """The byte that is 1 where a leaf requires gradients and 0 where not."""
    places: set[int] | None = None
    t = torch_state.torch()
    for tensor in (t.empty(3), t.nn.Parameter(t.empty(2, 2)), t.empty(())):
        for _ in range(2):
            on = _kept(tensor.requires_grad_(True), autograd, usable_size)
            off = _kept(tensor.requires_grad_(False), autograd, usable_size)
            changed = {i for i, (a, b) in enumerate(zip(on, off, strict=True)) if a != b}
            if any((on[i], off[i]) != (1, 0) for i in changed):
                return None
            places = changed if places is None else places & changed
    return _only(places or ())


def _grad_fn_word(autograd: int, usable_size: Callable[[int], int]) -> int | None:
    """A word that is null as long as no operation has given the tensor a history."""
    t = torch_state.torch()
    places: set[int] | None = None
    for size in (3, 1):
        tensor = t.zeros(size).requires_grad_(True).requires_grad_(False)
        before = _kept(tensor, autograd, usable_size)
        tensor.add_(t.ones(size, requires_grad=True))
        after = _kept(tensor, autograd, usable_size)
        words = range(0, len(before) - 7, 8)
        changed = {o for o in words if before[o : o + 8] != after[o : o + 8] and not any(before[o : o + 8])}
        places = changed if places is None else places & changed
    return min(places) if places else None


def _beginning_of_own(autograd: int) -> int | None:
    """The word with which that begins which autograd keeps of tensors that are no views; None if that of views begins with it."""
    t = torch_state.torch()
    own = {
        word(word(x._cdata + autograd)) for x in (t.empty(3).requires_grad_(), t.nn.Parameter(t.empty(2, 2)))
    }
    parts = t.empty(3)[1:], t.empty(2, 2).requires_grad_().t()  # held while what is kept of them is read
    views = {word(at) for at in (word(x._cdata + autograd) for x in parts) if at}
    return _only(own) if views.isdisjoint(own) else None


def agrees(same_image: Callable[[Any, Any, int], bool | None]) -> bool:
    """Whether images tell tensors apart that differ in one respect, and hold of those that differ in none."""
    t = torch_state.torch()
    with t.inference_mode(False), t.enable_grad():
        samples = _samples() + _nearly_equal()
        numbers: dict[Any, int] = {}  # of what is told of a tensor; none where it has a history
        told = [numbers.setdefault(torch_state.metadata(sample), len(numbers)) for sample in samples]
        told = [
            number if sample.grad_fn is None else -1 for sample, number in zip(samples, told, strict=True)
        ]
        for first, row in zip(samples, told, strict=True):
            asked = first.dim() > INLINE or row == -1  # these are asked in the ordinary way
            flag = int(first.requires_grad)
            for second, other in zip(samples, told, strict=True):
                same = same_image(first, second, flag)
                if same if asked else same != (row == other):
                    return False
    return True


def _nearly_equal() -> list[Any]:
    """Tensors each of which differs from the first in one respect; some equal ones."""
    t = torch_state.torch()
    frozen = t.empty(4, 4).requires_grad_(True).requires_grad_(False)
    history = t.zeros(4, 4).requires_grad_(True).requires_grad_(False)
    history.add_(t.ones(4, 4, requires_grad=True))
    late = t.empty(5, 4)
    part = late[1:]
    late.requires_grad_()
    return [
        part,
        t.empty(4, 4),
        t.empty(4, 4).t(),
        t.empty(5, 4),
        t.empty(4, 5)[:, :4],
        t.empty(4, 6)[:, :4],  # of the same flags as the one before
        t.empty(3, 5)[:, :4],
        t.empty(4, 4, 1),
        t.empty(4),
        t.empty(4, 4, dtype=t.int32),
        t.empty(4, 4, device="meta"),
        t.empty(4, 4, requires_grad=True),
        frozen,
        history,
        t.empty(5, 4)[1:],
    ]
