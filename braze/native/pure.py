"""The native core in plain Python, for where the extension could not be built.

Whole-graph captures work as with the extension, only with more time per call. There is no frame
hook: what needs one raises :class:`~braze.support.errors.Unsupported`.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, NoReturn

from braze.native import encode, torch_state, walk
from braze.support.errors import Unsupported

OFF, RUN, TRACE = 0, 1, 2


_forced_eager = False


def force_eager(wanted: bool) -> None:
    """Whether every entry of the process runs its function as it is."""
    global _forced_eager
    _forced_eager = wanted


def eager_forced() -> bool:
    """What :func:`force_eager` was last given."""
    return _forced_eager


_ask: list[Callable[[], bool]] = []


def watch_tracers(ask: Callable[[], bool], module_class: type, address: int) -> None:
    """How entries learn that another tracer is at work."""
    _ask[:] = [ask]


_ranges: list[tuple[Callable[[str], Any], Callable[[], bool]]] = []


def watch_ranges(range: Callable[[str], Any], address: int) -> None:
    """How calls are told to PyTorch's profiler, or whoever else listens: the address is that of libtorch's function that says whether anybody does."""
    _ranges[:] = [(range, ctypes.CFUNCTYPE(ctypes.c_bool)(address))] if address else []


def in_range(name: str, callable: Callable[..., Any], *args: Any) -> Any:
    """``callable(*args)``, in a range of this name if anybody listens."""
    for range, listening in _ranges:
        if listening():
            with range(name):
                return callable(*args)
    return callable(*args)


def watch_builtins(builtins: dict[str, Any], usual: dict[str, Any], tell: Callable[[], bool]) -> None:
    """Nothing is compiled while the builtins are not as usual: the core in C alone can tell, in whose way they are not."""


def shown_call(function: Callable[..., Any]) -> None:
    """The function that ``Entry.__call__`` is to who looks it up: here it is one already."""


class CallOfClass:
    """The ``__call__`` of a compiled module's class: the entry to instances, a function to the class."""

    def __init__(self, entry: Any, function: Callable[..., Any]) -> None:
        self.entry, self.function = entry, function

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.function if instance is None else self.entry


class _Default:
    """The answer of a handler that asks for a frame to be evaluated normally."""

    def __repr__(self) -> str:
        return "braze.native.DEFAULT"


DEFAULT = _Default()


class GuardProgram:
    """Guards as plain data and the walk over them. See :mod:`braze.native.walk` for their meaning."""

    def __init__(
        self, nodes: Sequence[Any], checks: Sequence[Any], inputs: Sequence[int], symbols: int = 0
    ) -> None:
        self.nodes, self.checks, self.inputs = encode.normalise(nodes, checks, inputs, symbols)
        self.symbols = symbols
        self.hits = self.patience = 0

    def match(self, function: FunctionType, locals: Sequence[Any]) -> tuple[Any, ...] | None:
        """The graph inputs if every check holds, else None."""
        found = walk.match(self.nodes, self.checks, self.inputs, self.symbols, function, locals)
        self.hits += found is not None
        return found

    def explain(self, function: FunctionType, locals: Sequence[Any]) -> tuple[int, Any] | None:
        """Index of the first check that fails and the value it saw; None if all hold."""
        return walk.explain(self.nodes, self.checks, self.inputs, self.symbols, function, locals)

    def blocks(self) -> tuple[int, int, int]:
        """As the C walker's; here every check is made at every walk."""
        return len(self.nodes), 0, len(self.checks)

    def sealed(self) -> tuple[bool, int, int]:
        """As the C walker's; here nothing is taken over from an earlier walk."""
        return False, 0, 0

    def cost(self, function: FunctionType, locals: Sequence[Any], n: int = 1000) -> float:
        """Nanoseconds per walk, the mean of ``n``."""
        start = time.perf_counter_ns()
        for _ in range(n):
            self.match(function, locals)
        return (time.perf_counter_ns() - start) / n


def bind(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The argument slots of ``localsplus`` as Python would fill them; None where it would raise."""
    code = function.__code__
    npos, nkwonly = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames[: npos + nkwonly]
    star, double = bool(code.co_flags & 0x04), bool(code.co_flags & 0x08)
    if len(args) > npos and not star:
        return None
    slots: dict[str, Any] = dict(zip(names[:npos], args, strict=False))
    extra: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in names[code.co_posonlyargcount :]:
            if name in slots:
                return None
            slots[name] = value
        elif double:
            extra[name] = value
        else:
            return None
    defaults = function.__defaults__ or ()
    for name, value in zip(names[npos - len(defaults) : npos], defaults, strict=True):
        slots.setdefault(name, value)
    for name, value in (function.__kwdefaults__ or {}).items():
        slots.setdefault(name, value)
    if not all(name in slots for name in names):
        return None
    found = [slots[name] for name in names]
    if star:
        found.append(tuple(args[npos:]))
    if double:
        found.append(extra)
    return tuple(found)


#: in an entry's dict: f(entry, memo), which says what a deep copy of it is
DEEPCOPY = "__braze_deepcopy__"


class Entry:
    """A callable that looks up the variants of one function (or bound method) by their guards."""

    def __init__(self, function: FunctionType | MethodType, on_miss: Callable[..., Any]) -> None:
        self._lead = (function.__self__,) if isinstance(function, MethodType) else ()
        plain = function.__func__ if isinstance(function, MethodType) else function
        if not isinstance(plain, FunctionType):
            raise TypeError(f"Entry needs a Python function or method, not {type(function).__name__}")
        self.__wrapped__ = function
        self.function = plain
        self.on_miss = on_miss
        self.plain: Callable[..., Any] | None = None
        self.variants: tuple[tuple[GuardProgram, Callable[..., Any]], ...] = ()
        self.hits = self.misses = 0
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self._lock = threading.Lock()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return type(self.__wrapped__) if _ask and _ask[0]() else Entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["__wrapped__"], name)

    @property
    def _torchdynamo_orig_callable(self) -> Any:
        return self.__wrapped__

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        return id(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if _ask and _ask[0]():
            return (self.plain or self.__wrapped__)(*args, **kwargs)
        locals = None if _forced_eager else bind(self.function, self._lead + args, kwargs)
        answer = None if locals is None else self._look_up(self.function, locals)
        if locals is None or answer is None:
            return self.__wrapped__(*args, **kwargs)
        residual, inputs = answer
        return in_range(getattr(residual, "__qualname__", ""), residual, inputs, *locals)

    def _look_up(self, function: FunctionType, locals: tuple[Any, ...]) -> tuple[Any, Any] | None:
        for program, residual in self.variants:
            inputs = program.match(function, locals)
            if inputs is not None:
                self.hits += 1
                return residual, inputs
        self.misses += 1
        return self.on_miss(self, function, locals)

    def call_with(self, function: FunctionType, locals: tuple[Any, ...]) -> Any:
        """As a call, with the argument slots given, for ``function`` (of the same code).

        DEFAULT where nothing could be compiled: the caller evaluates the frame itself.
        """
        plainly = _forced_eager or (_ask and _ask[0]())
        answer = None if plainly else self._look_up(function, locals)
        if answer is None:
            return DEFAULT
        residual, inputs = answer
        return in_range(getattr(residual, "__qualname__", ""), residual, inputs, *locals)

    def add(self, program: GuardProgram, residual: Callable[..., Any]) -> None:
        """Append a variant."""
        with self._lock:
            self.variants = (*self.variants, (program, residual))

    def remove(self, program: GuardProgram) -> None:
        """Drop the variant of ``program``, if there."""
        with self._lock:
            self.variants = tuple(row for row in self.variants if row[0] is not program)

    def clear(self) -> None:
        """Drop all variants."""
        with self._lock:
            self.variants = ()

    def __copy__(self) -> Entry:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = vars(self).get(DEEPCOPY)
        return self if copied is None else copied(self, memo)

    def __prepare_scriptable__(self) -> Any:
        return self.__wrapped__  # what torch.jit.script compiles

    def __repr__(self) -> str:
        return f"<braze entry {self.__qualname__} with {len(self.variants)} variants>"


class Launcher:
    """Call ``void f(void **buffers, const int64_t *sizes)`` at an address."""

    def __init__(self, address: int, nbuffers: int, nsizes: int = 0, release: bool = True) -> None:
        prototype = ctypes.CFUNCTYPE if release else ctypes.PYFUNCTYPE
        self._call = prototype(None, ctypes.c_void_p, ctypes.c_void_p)(address)
        self._buffers = ctypes.c_void_p * nbuffers
        self._sizes = ctypes.c_int64 * nsizes
        self.address, self.nbuffers, self.nsizes, self.release = address, nbuffers, nsizes, release

    def __call__(self, *args: Any) -> None:
        if len(args) != self.nbuffers + self.nsizes:
            raise TypeError(
                f"launcher takes {self.nbuffers} buffers and {self.nsizes} sizes, not {len(args)} arguments"
            )
        buffers = self._buffers(*(data_ptr(value) for value in args[: self.nbuffers]))
        sizes = self._sizes(*args[self.nbuffers :])
        self._call(buffers, sizes)


class DeviceLauncher:
    """A launch on a GPU by Triton's own means: only C calls the driver."""

    def __init__(
        self,
        nbuffers: int,
        nsizes: int,
        find: Callable[..., Any],
        general: Callable[..., Any],
        settings: dict[str, Any],
        names: tuple[str, ...],
        hooks: tuple[list[Any], ...],
    ) -> None:
        self._general = general

    def __call__(self, *args: Any) -> Any:
        return self._general(*args)


#: several launches are made in one call by C alone, as recordings are launched and replayed
DeviceRun: Any = None
DeviceGraph: Any = None
Holders: Any = None
Replay: Any = None
Replays: Any = None
storage_place: Any = None


def replays_natively() -> bool:
    """Whether C may replay recordings."""
    return False


class Segment:
    """Call ``int64_t f(void **buffers, const int64_t *sizes)`` with the GIL released."""

    def __init__(self, address: int, name: str) -> None:
        self._call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(address)
        self.address, self.name = address, name

    def __call__(self, tensors: Sequence[Any], arena: int = 0, sizes: Sequence[int] = ()) -> int:
        """``buffers`` holds the tensors' addresses, then ``arena``. Returns what ``f`` returns."""
        buffers = (ctypes.c_void_p * (len(tensors) + 1))(*map(data_ptr, tensors), arena)
        return in_range(self.name, self._call, buffers, (ctypes.c_int64 * len(sizes))(*sizes))


def data_ptr(tensor: Any) -> int:
    """The address of a tensor's first element; an int stands for itself."""
    return tensor if isinstance(tensor, int) else tensor.data_ptr()


def empty_strided(sizes: tuple[int, ...], strides: tuple[int, ...], *, dtype: Any, device: Any = None) -> Any:
    """What ``torch.empty_strided`` makes."""
    return torch_state.torch().empty_strided(sizes, strides, dtype=dtype, device=device)


def tensor_of_numbers(list: Any, dtype: str) -> Any:
    """What ``torch.tensor`` makes of a list of numbers; None where none is made here."""
    try:
        return torch_state.tensor_of_numbers(list, dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def tensor_meta(tensor: Any) -> tuple[Any, ...]:
    """``(type, dtype, device, sizes, strides, requires_grad, dispatch keys)`` of a tensor."""

    return torch_state.metadata(tensor)


counters = torch_state.counters


def bind_torch() -> dict[str, bool]:
    """Nothing to find: everything is read through Python."""
    return {}


def hook_available() -> bool:
    """Whether frames can be taken over."""
    return False


def _no_hook(*args: Any, **kwargs: Any) -> Any:
    raise Unsupported(
        "BZ6002",
        "the frame hook is part of braze's C extension, which is not built",
        why="braze runs on its pure-Python core",
        hints=[
            "install a C compiler and reinstall braze: pip install --no-binary braze --force-reinstall braze"
        ],
    )


call_traced = _no_hook


def run_hooked(callable: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with frames offered to the frame callback; without a hook, just call."""
    return callable(*args, **kwargs)


def unhooked(callable: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call with the hook off."""
    return callable(*args, **kwargs)


def handling(error: BaseException | None, /) -> BaseException | None:
    """Let an exception be the one that is handled, as ``sys.exc_info`` tells it; the one before. Nothing without the extension."""
    return None


def throw(error: BaseException, /) -> NoReturn:
    """Raise an exception; with the context that it has only by the extension."""
    raise error


def taken_over(error: Any, /) -> Any:
    """Put the calling frame in place of the stand-in for it in a traceback; without the extension the stand-in stays."""
    return error


def emptied(state: tuple[Any, ...], /) -> None:
    """Let go of what a tuple of ours holds, which others still hold; tuples stay as they are without the extension."""


def set_frame_callback(callback: Callable[..., Any] | None) -> None:
    """Say who answers for unknown code in RUN mode; never asked without a hook."""


def skip_code(code: CodeType) -> None:
    """Evaluate frames of ``code`` normally in RUN mode."""


def untraced_code(code: CodeType) -> None:
    """Evaluate frames of ``code`` normally in every mode, with the mode OFF beneath them."""


def forget_code(code: CodeType) -> None:
    """Forget what was stored about ``code``."""


def mode() -> int:
    """OFF, RUN or TRACE."""
    return OFF


def uninstall() -> None:
    """Take the hook out of the interpreter and forget the callback."""
