"""Types of the C extension."""

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, NoReturn

DEFAULT: Final[object]

class GuardProgram:
    """Guards as plain data, walked natively. ``braze.native.walk`` says what each step and check means."""

    hits: int
    patience: int

    def __init__(
        self,
        nodes: Sequence[tuple[int, Any, Any]],
        checks: Sequence[tuple[int, Any, Any]],
        inputs: Sequence[int],
        symbols: int = 0,
    ) -> None: ...
    @property
    def nodes(self) -> tuple[tuple[int, str, Any], ...]: ...
    @property
    def checks(self) -> tuple[tuple[int, str, Any], ...]: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def symbols(self) -> int: ...
    def match(self, function: FunctionType, locals: Sequence[Any], /) -> tuple[Any, ...] | None: ...
    def explain(self, function: FunctionType, locals: Sequence[Any], /) -> tuple[int, Any] | None: ...
    def blocks(self) -> tuple[int, int, int]: ...
    def sealed(self) -> tuple[bool, int, int]: ...
    def cost(self, function: FunctionType, locals: Sequence[Any], n: int = 1000, /) -> float: ...

class Entry:
    """A callable that looks up the variants of one function (or bound method) by their guards."""

    __wrapped__: Any
    function: FunctionType
    __name__: str
    __qualname__: str
    on_miss: Callable[..., Any]
    plain: Callable[..., Any] | None
    hits: int
    misses: int

    def __init__(self, function: FunctionType | MethodType, on_miss: Callable[..., Any]) -> None: ...
    @property
    def variants(self) -> tuple[tuple[GuardProgram, Callable[..., Any]], ...]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any: ...
    def call_with(self, function: FunctionType, locals: tuple[Any, ...], /) -> Any: ...
    def add(self, program: GuardProgram, residual: Callable[..., Any], /) -> None: ...
    def remove(self, program: GuardProgram, /) -> None: ...
    def clear(self) -> None: ...

class CallOfClass:
    """The ``__call__`` of a compiled module's class: the entry to instances, a function to the class."""

    def __init__(self, entry: Entry, function: Callable[..., Any]) -> None: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any: ...

class Launcher:
    """Call ``void f(void **buffers, const int64_t *sizes)`` at an address."""

    address: int
    nbuffers: int
    nsizes: int
    release: bool

    def __init__(self, address: int, nbuffers: int, nsizes: int = 0, release: bool = True) -> None: ...
    def __call__(self, *args: Any) -> None: ...

class DeviceLauncher:
    """Launch a kernel of the driver on the current stream: called as ``(*buffers, *sizes)``.

    ``find(device, *sizes)`` says what to launch: (function, programs, threads of one, bytes of shared memory, bytes of each
    size as the kernel takes it, pointers to scratch memory that it takes and does not use[, whether it may begin before what is ahead of it on
    the stream has ended, since it waits for that itself]), or None where that is not known yet. Then, and where an address is not a multiple of 16, a buffer is on another device than the current one, a name of
    ``names`` stands in ``settings`` or a list of ``hooks`` has items, ``general`` is called with the same arguments.
    """

    def __init__(
        self,
        nbuffers: int,
        nsizes: int,
        find: Callable[
            ..., tuple[int, int, int, int, bytes, int] | tuple[int, int, int, int, bytes, int, bool] | None
        ],
        general: Callable[..., Any],
        settings: dict[str, Any],
        names: tuple[str, ...],
        hooks: tuple[list[Any], ...],
    ) -> None: ...
    def __call__(self, *args: Any) -> Any: ...

class DeviceRun:
    """Launches one after another, called with ``nbuffers`` tensors and ``nsizes`` sizes; of each launch the places of its own among those.

    ``graphs``: those that come again become one graph of the driver's.
    """

    def __init__(
        self,
        launches: tuple[tuple[Callable[..., Any], tuple[int, ...]], ...],
        nbuffers: int,
        nsizes: int,
        graphs: bool = True,
    ) -> None: ...
    def __call__(self, *args: Any) -> Any: ...

class DeviceGraph:
    """A recording on GPU ``device``, launched by a call; ``watched``: memory, as (address, bytes), whose readers may be told of other memory.

    ``elsewhere(graph)`` is called for a launch while another GPU is current.
    """

    #: how many kernels read each piece of watched memory; -1: not known
    readers: tuple[int, ...]

    def __init__(
        self, device: int, watched: tuple[tuple[int, int], ...], elsewhere: Callable[[DeviceGraph], Any]
    ) -> None: ...
    def watch(self) -> None: ...
    def unwatch(self) -> None: ...
    def instantiate(self, graph: int, /) -> bool: ...
    def move(self, k: int, address: int, /) -> None: ...
    def __call__(self) -> None: ...

class Segment:
    """Call ``int64_t f(void **buffers, const int64_t *sizes)`` with the GIL released."""

    address: int
    name: str

    def __init__(self, address: int, name: str) -> None: ...
    def __call__(self, tensors: Sequence[Any], arena: int = 0, sizes: Sequence[int] = (), /) -> int: ...

class WrittenCall:
    """``general(inputs)``, but that a plain call goes to ``call(inputs)``, after ``count(written)``: see ``braze/native/written.py``."""

    boxed: bool
    call: Callable[..., Any]
    general: Callable[..., Any]

    def __init__(
        self,
        call: Callable[..., Any],
        count: Callable[..., Any],
        general: Callable[..., Any],
        counted: int,
        looked: tuple[tuple[int, int, bool], ...],
        again: tuple[int, ...],
        results: tuple[int, ...],
    ) -> None: ...
    def __call__(self, inputs: Sequence[Any], /) -> Sequence[Any]: ...

class GradOff:
    """The call of a graph with grad mode off: see ``braze/native/around.py``."""

    boxed: bool
    call: Callable[..., Any]
    general: Callable[..., Any]
    host: Any

    def __init__(self, call: Callable[..., Any], general: Callable[..., Any]) -> None: ...
    def __call__(self, inputs: Sequence[Any], /) -> Sequence[Any]: ...

class Planned:
    """A tensor in a layout: see ``braze/native/around.py``."""

    def __init__(
        self, general: Callable[[Any], Any], sizes: Sequence[int], strides: Sequence[int], dtype: Any
    ) -> None: ...
    def __call__(self, tensor: Any, /) -> Any: ...

class Operation:
    """The call of a graph that is one operation of autograd's: see ``braze/native/operations.py``."""

    boxed: bool
    general: Callable[..., Any]
    step: Any

    def __init__(
        self,
        apply: Callable[..., Any],
        transforms: Callable[[], bool],
        general: Callable[..., Any],
        forward: Callable[..., Any],
        save: Callable[..., Any] | None,
        find: Callable[[], Callable[..., Any] | None],
        late: Callable[..., Any],
        results: int,
        kept: tuple[tuple[bool, int, bool, bool], ...],
        arguments: tuple[tuple[int, int], ...],
        saved: tuple[tuple[int, int, tuple[int, ...]], ...],
        tangents: tuple[tuple[int, int, tuple[int, ...]], ...],
    ) -> None: ...
    def __call__(self, inputs: Sequence[Any], /) -> Sequence[Any]: ...
    def forward(self, ctx: Any, inputs: tuple[Any, ...], /, *arguments: Any) -> tuple[Any, ...]: ...
    def backward(self, ctx: Any, /, *tangents: Any) -> tuple[Any, ...]: ...

def force_eager(wanted: bool, /) -> None: ...
def eager_forced() -> bool: ...
def shown_call(function: Callable[..., Any], /) -> None: ...
def watch_tracers(ask: Callable[[], bool], module_class: type, address: int, /) -> None: ...
def watch_ranges(range: Callable[[str], Any], address: int, /) -> None: ...
def in_range(name: str, callable: Callable[..., Any], /, *args: Any) -> Any: ...
def watch_builtins(builtins: dict[str, Any], usual: dict[str, Any], tell: Callable[[], bool], /) -> None: ...
def set_frame_callback(callback: Callable[[CodeType, FunctionType], Entry | None] | None, /) -> None: ...
def skip_code(code: CodeType, /) -> None: ...
def untraced_code(code: CodeType, /) -> None: ...
def forget_code(code: CodeType, /) -> None: ...
def run_hooked(callable: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
def handling(error: BaseException | None, /) -> BaseException | None: ...
def throw(error: BaseException, /) -> NoReturn: ...
def taken_over(error: Any, /) -> Any: ...
def emptied(state: tuple[Any, ...], /) -> None: ...
def unhooked(callable: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...
def call_traced(
    handler: Callable[[FunctionType, tuple[Any, ...]], Any],
    callable: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    /,
) -> Any: ...
def mode() -> int: ...
def uninstall() -> None: ...
def hook_available() -> bool: ...
def addresses(dicts: tuple[dict[str, Any], ...], keys: tuple[str, ...], /) -> bytes: ...
def data_ptr(tensor: Any, /) -> int: ...
def memory(tensor: Any, itemsize: int, /) -> int: ...
def empty_strided(
    sizes: tuple[int, ...], strides: tuple[int, ...], *, dtype: Any, device: Any = None
) -> Any: ...
def tabulate(
    columns: tuple[list[Any], ...], like: Any, table: Any, first: int = 0, /
) -> tuple[int, bool]: ...
def tensor_of_numbers(list: Any, dtype: str, /) -> Any: ...
def counters(tensors: tuple[Any, ...], /) -> bytes: ...
def tensor_meta(tensor: Any, /) -> tuple[Any, ...]: ...
def bind_torch() -> dict[str, bool]: ...
def replays_natively() -> bool: ...
def storage_place(address: int, /) -> bytes: ...

class Holders:
    """Who holds the memory that recordings of one pool write."""

    used: int
    def fill(self, rows: tuple[tuple[int, Any, Any, int, int, int, bytes], ...], /) -> None: ...
    def free_from(self, number: int, /) -> bool: ...
    def touch(self) -> None: ...

class Replay:
    """Replay one recording for inputs that fit; None where they do not, or its outputs are held.

    ``fixed``: (place, address, 0) of inputs that must lie there; ``copied``: (place, address, bytes) of those copied there, by
    ``place(inputs)`` where they are many; ``moved``: (place, k, 0) of those that ``move(k, address)`` is told of, if 16 divides their
    addresses. ``device``: the GPU's index, -1 on the processor. ``outputs``: of each a pair of tensors over its memory, outside
    inference mode and inside; (what makes a tensor, an address, bytes, a function of the inputs) where it is copied from there into that; or a
    function of the inputs.
    """

    def __init__(
        self,
        holders: Holders,
        first: int,
        stream: int,
        device: int,
        fixed: tuple[tuple[int, int, int], ...],
        copied: tuple[tuple[int, int, int], ...],
        moved: tuple[tuple[int, int, int], ...],
        place: Callable[[Sequence[Any]], Any],
        move: Callable[[int, int], Any],
        replay: Callable[[], Any],
        outputs: tuple[Any, ...],
    ) -> None: ...
    def __call__(self, inputs: Sequence[Any], /) -> tuple[Any, ...] | None: ...

class Replays:
    """The outputs of a graph's first recording that serves, under a lock; None where none does, or ``busy()`` says so."""

    def __init__(
        self,
        acquire: Callable[[], Any],
        release: Callable[[], Any],
        busy: Callable[[], bool],
        stream: Callable[[], int],
    ) -> None: ...
    def __call__(self, inputs: Sequence[Any], /) -> tuple[Any, ...] | None: ...
    def fill(self, recordings: tuple[Replay, ...], /) -> None: ...
