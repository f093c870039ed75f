"""A device graph on the CPU, for tests: what was done is written down by address and done again to the same memory.

It keeps to what CUDA does. Nothing that is recorded takes effect: memory of others and the generator are put back at the end, and
what was made in the pool is overwritten. Memory that is let go of while recording is taken again at once, so that
recordings of one pool lie over one another as they do on a GPU. Memory that the pools of a stream share is spoiled by each replay. What would make the host wait (``.item()``, sizes that
only data tell) ends the recording.

PyTorch's operators are seen by a dispatch mode. Kernels of braze do not pass the dispatcher: host modules call
them through :meth:`SimulatedGraphs.launched`.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from braze import native
from braze.cudagraphs.device import UNKNOWN, Asked, Costs, NotRecordable
from braze.cudagraphs.storages import borrowed, tensor_over, uses
from braze.graph.private.torch_compat import pytree
from braze.support.record import record

aten = torch.ops.aten
T = TypeVar("T")

#: ``log``: what this thread's recording is written down by, on whichever device
_here = threading.local()
#: operators that only take memory
_EMPTY = frozenset({aten.empty, aten.empty_strided, aten.empty_like, aten.new_empty, aten.new_empty_strided})
#: tags of operators whose result the host must wait for
_WAITS = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
#: what divides the addresses that kernels are built for
ALIGNED = 16
#: bytes that a block's size is a multiple of
_GRAIN = 64
#: operators that only call others, with the Python that does so
_HOST: dict[Any, Callable[..., Any]] = {}


def on_the_host(operator: Any, function: Callable[..., Any]) -> None:
    """An operator is Python that calls other operators: those are recorded, and the Python does not run again at a replay."""
    _HOST[operator] = function


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """A block in which a recording is no mode of PyTorch's to who asks for modes: a GPU records without one. Nothing is recorded inside."""
    if getattr(_here, "log", None) is None:
        yield
        return
    with _disable_current_modes():
        yield


class SimulatedPool:
    """Blocks of memory; one that nobody but the pool holds is free. ``shared``: as a pool has it."""

    def __init__(self, shared: SimulatedPool | None = None) -> None:
        self.shared = shared
        self.blocks: list[tuple[torch.UntypedStorage, int]] = []

    def held(self) -> int:
        """Bytes of all blocks."""
        return sum(storage.nbytes() for storage, _ in self.blocks)

    def memory(self) -> Iterator[tuple[int, int, torch.device]]:
        """All blocks."""
        return ((s.data_ptr(), s.nbytes(), torch.device("cpu")) for s, _ in self.blocks)

    def at(self, address: int) -> torch.UntypedStorage | None:
        """The block in which an address lies, of the pool's or of what it shares."""
        for storage, _ in self.blocks:
            if 0 <= address - storage.data_ptr() < storage.nbytes():
                return storage
        return None if self.shared is None else self.shared.at(address)

    def in_use(self) -> bool:
        """Whether anybody but the pool holds some of it."""
        return any(uses(storage) > idle for storage, idle in self.blocks)

    def spoil(self) -> None:
        """Overwrite all of it."""
        for storage, _ in self.blocks:
            tensor_over(storage, torch.uint8, 0, (storage.nbytes(),), (1,)).fill_(255)

    def take(self, size: int) -> torch.UntypedStorage:
        """The smallest free block of at least ``size`` bytes, or a new one."""
        size = max(_GRAIN, -(-size // _GRAIN) * _GRAIN)
        free = [s for s, idle in self.blocks if s.nbytes() >= size and uses(s) <= idle]
        if free:
            return min(free, key=lambda s: s.nbytes())
        storage = torch.empty(size, dtype=torch.uint8).untyped_storage()
        self.blocks.append((storage, uses(storage)))
        return storage


@record
class Foreign:
    """Memory that is not the recording's: its address alone, which keeps nothing alive, as on a GPU."""

    address: int
    size: int

    def storage(self) -> torch.UntypedStorage:
        """What lies there now."""
        return borrowed(self.address, self.size)


@record
class Place:
    """A tensor as an address and a layout; ``conjugated``: to be read as its conjugate."""

    memory: torch.UntypedStorage | Foreign
    dtype: torch.dtype
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool = False

    def tensor(self) -> torch.Tensor:
        """A tensor that sees that memory."""
        storage = self.memory.storage() if isinstance(self.memory, Foreign) else self.memory
        made = tensor_over(storage, self.dtype, self.offset, self.sizes, self.strides)
        return made.conj() if self.conjugated else made


def _lies_at(x: Any, address: int) -> bool:
    """Whether an argument is in others' memory that begins there."""
    return isinstance(x, Place) and isinstance(x.memory, Foreign) and x.memory.address == address


class _Work:
    """One operation: what is called, its arguments by address, and where each new piece of memory among its results goes; ``kernel``: it is one of ours."""

    def __init__(
        self, call: Callable[..., Any], args: Any, made: list[torch.UntypedStorage], kernel: bool = False
    ) -> None:
        self.call, self.args, self.made, self.kernel = call, args, made, kernel

    def reads(self, address: int) -> list[int]:
        """Which of its arguments lie in others' memory that begins there."""
        return [k for k, x in enumerate(pytree.tree_flatten(self.args)[0]) if _lies_at(x, address)]

    def move(self, which: list[int], address: int) -> None:
        """Have these arguments lie in memory that begins there."""
        values, tree = pytree.tree_flatten(self.args)
        for k in which:
            values[k] = replace(values[k], memory=Foreign(address, values[k].memory.size))
        self.args = pytree.tree_unflatten(values, tree)

    def run(self) -> None:
        args, kwargs = pytree.tree_map(lambda x: x.tensor() if isinstance(x, Place) else x, self.args)
        results = self.call(*args, **kwargs)
        for to, of in zip(self.made, _fresh(results, (args, kwargs)).values(), strict=True):
            _fill(to, of)
        if isinstance(results, int) and results:  # a kernel's status
            raise IndexError("index out of range in self")


class SimulatedGraph:
    """A list of operations in ``inside``, blocks of a pool, of what it shares, or apart. ``watched``: addresses of memory that kernels may be told to read elsewhere."""

    def __init__(
        self,
        works: list[_Work],
        pool: SimulatedPool,
        inside: Iterable[torch.UntypedStorage],
        watched: Sequence[int],
        apart: frozenset[int],
        stays: bool,
    ) -> None:
        self.works, self.pool = works, pool
        self.apart, self.stays = apart, stays
        self._inside = [(storage, storage.data_ptr()) for storage in inside]
        self._reading = [[(w, which) for w in works if (which := w.reads(place))] for place in watched]

    @property
    def readers(self) -> tuple[int, ...]:
        """How many kernels read each piece of watched memory; -1: operators of PyTorch read it too."""
        return tuple([len(r) if all(work.kernel for work, _ in r) else -1 for r in self._reading])

    def move(self, k: int, address: int, /) -> None:
        """Have the kernels find at ``address`` what lay in watched memory ``k``."""
        if address % ALIGNED:
            raise ValueError(f"kernels are built for addresses that {ALIGNED} divides")
        for work, which in self._reading[k]:
            work.move(which, address)

    def replay(self) -> None:
        """Do them all again, where the memory was: what is not there any more is an error, which a GPU would not tell."""
        if any(storage.data_ptr() != address for storage, address in self._inside):
            raise RuntimeError("a replay writes memory that was given back")
        with torch.inference_mode(False), torch.no_grad():
            for work in self.works:
                work.run()
            if self.pool.shared is not None:
                self.pool.shared.spoil()


class _Log(TorchDispatchMode):
    """Writes down what runs below it."""

    def __init__(self, pool: SimulatedPool, asked: Asked) -> None:
        super().__init__()
        self.pool, self.watched = pool, [address for address, _ in asked.watched]
        self.shared = pool.shared if asked.shared else None
        #: whether results are made that leave the call
        self.leaving = False
        #: where results lie that are in no pool
        self.apart: set[int] = set()
        self.works: list[_Work] = []
        #: memory of the pool that the recording uses, by its number
        self.inside: dict[int, torch.UntypedStorage] = {}
        #: memory of others that is written, and of the pool that is taken again, with what it held before
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.numbers = torch.get_rng_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(tag in func.tags for tag in _WAITS) and not _by_numbers(func, args):
            raise NotRecordable(f"{func} makes the host wait for the device")
        if func.overloadpacket is aten.lift_fresh:
            raise NotRecordable("a tensor made of numbers of the host's makes the host wait for the device")
        if func.overloadpacket is aten.set_:
            return func(*args, **kwargs)
        if func in _HOST:
            with self:
                return _HOST[func](*args, **kwargs)
        for value in _written(func, args, kwargs):
            self._remember(value.untyped_storage())
        place = self._places((args, kwargs))
        results = func(*args, **kwargs)
        moved, made = self._moved(results, (args, kwargs))
        if (made and func.overloadpacket not in _EMPTY) or func._schema.is_mutable:
            self.works.append(_Work(func, place, made))
        return moved

    def launch(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """A kernel, which may write to any tensor that it is given."""
        with _disable_current_modes():
            for value in pytree.tree_flatten(args)[0]:
                if isinstance(value, torch.Tensor):
                    self._remember(value.untyped_storage())
                elif isinstance(value, int) and (block := self.pool.at(value)) is not None:
                    self._remember(block)  # an arena that an earlier recording has taken
            self.works.append(_Work(function, self._places((args, {})), [], kernel=True))
            return function(*args)

    def empty_strided(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the pool, or of what it shares."""
        with _disable_current_modes():
            return self._moved(torch.empty_strided(sizes, strides, dtype=dtype), ())[0]

    def empty_result(self, sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Memory of nobody else's."""
        if self.shared is None:
            return self.empty_strided(sizes, strides, dtype)
        with _disable_current_modes():
            made = torch.empty_strided(sizes, strides, dtype=dtype)
            storage = made.untyped_storage()
            self.inside[storage._cdata] = storage
            self.apart.add(storage.data_ptr())
            return made

    def finish(self) -> SimulatedGraph:
        """Undo what was done, and spoil memory that is new."""
        for storage, contents in self.before.values():
            _fill(storage, contents)
        torch.set_rng_state(self.numbers)
        for storage in self.inside.values():
            if storage._cdata in self.before:
                continue
            tensor_over(storage, torch.uint8, 0, (storage.nbytes(),), (1,)).fill_(255)
        stays = self.shared is not None and self.shared.in_use()
        return SimulatedGraph(
            self.works, self.pool, self.inside.values(), self.watched, frozenset(self.apart), stays
        )

    def _remember(self, storage: torch.UntypedStorage) -> None:
        """Keep what memory of others holds before it is written."""
        if storage._cdata not in self.inside and storage._cdata not in self.before:
            self.before[storage._cdata] = storage, storage.clone()

    def _places(self, tree: Any) -> Any:
        return pytree.tree_map(lambda x: self._place(x) if isinstance(x, torch.Tensor) else x, tree)

    def _place(self, x: torch.Tensor) -> Place:
        if x.layout is not torch.strided or x.is_neg():
            raise NotRecordable(
                f"a {x.layout} tensor" if x.layout is not torch.strided else "a lazy negative"
            )
        storage = x.untyped_storage()
        memory = self.inside.get(storage._cdata) or Foreign(storage.data_ptr(), storage.nbytes())
        return Place(memory, x.dtype, int(x.storage_offset()), tuple(x.shape), x.stride(), x.is_conj())

    def _moved(self, results: Any, arguments: Any) -> tuple[Any, list[torch.UntypedStorage]]:
        """The results with new memory moved into the pool or what it shares, and that memory."""
        pool = self.pool if self.shared is None or self.leaving else self.shared
        homes: dict[int, torch.UntypedStorage] = {}
        taken = []  # tensors over them: what nobody sees would be given to the next
        for key, fresh in _fresh(results, arguments).items():
            blocks = len(pool.blocks)
            home = homes[key] = pool.take(fresh.nbytes())
            if len(pool.blocks) == blocks and home._cdata not in self.inside:
                # a recording before may have left it for this one's replay
                self.before[home._cdata] = home, home.clone()
            self.inside[home._cdata] = home
            taken.append(tensor_over(home, torch.uint8, 0, (home.nbytes(),), (1,)))
            _fill(home, fresh)

        def moved(x: Any) -> Any:
            home = homes.get(x.untyped_storage()._cdata) if isinstance(x, torch.Tensor) else None
            if home is None:
                return x
            return Place(
                home, x.dtype, int(x.storage_offset()), tuple(x.shape), x.stride(), x.is_conj()
            ).tensor()

        return pytree.tree_map(moved, results), list(homes.values())


def _fresh(results: Any, arguments: Any) -> dict[int, torch.UntypedStorage]:
    """The memory of results that none of the arguments see, by its number, in order."""
    given = {
        x.untyped_storage()._cdata for x in pytree.tree_flatten(arguments)[0] if isinstance(x, torch.Tensor)
    }
    found: dict[int, torch.UntypedStorage] = {}
    for x in pytree.tree_flatten(results)[0]:
        if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in given:
            found.setdefault(x.untyped_storage()._cdata, x.untyped_storage())
    return found


def _by_numbers(func: Any, args: Any) -> bool:
    """Whether this looks places up by their numbers: only those that a mask chooses are as many as data tell."""
    return func is aten.index.Tensor and all(
        x is None or x.dtype not in (torch.bool, torch.uint8) for x in args[1]
    )


def _fill(to: torch.UntypedStorage, of: torch.UntypedStorage) -> None:
    """Copy bytes to the start of a block."""
    size = of.nbytes()
    if size:
        tensor_over(to, torch.uint8, 0, (size,), (1,)).copy_(tensor_over(of, torch.uint8, 0, (size,), (1,)))


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes, by its schema."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        for x in pytree.tree_flatten(value)[0]:
            if isinstance(x, torch.Tensor):
                yield x


class _Leaving:
    """Blocks in which this thread makes results that leave the call."""

    def __init__(self, device: SimulatedGraphs) -> None:
        self._device = device

    def __enter__(self) -> None:
        self._set(True)

    def __exit__(self, *error: object) -> None:
        self._set(False)

    def _set(self, leaving: bool) -> None:
        log = self._device._log()
        if log is not None:
            log.leaving = leaving


class SimulatedGraphs:
    """The recorder of a device that is simulated on the processor; ``bytes`` is its memory."""

    #: kernels are always told where inputs lie that they alone read
    costs = Costs(patch=0.0, copy=0.0, byte=0.0)

    def __init__(self, name: str, bytes: int = 1 << 30) -> None:
        self.name = name
        self.bytes = bytes
        self.index = -1
        self.lock = threading.RLock()
        #: seconds of a call; True: of one for which the device never waits
        self.clock: Callable[[bool], float] = lambda behind: 1.0
        self._here = threading.local()
        #: memory that pools share, by streams
        self._shared: weakref.WeakValueDictionary[int, SimulatedPool] = weakref.WeakValueDictionary()
        self.results = _Leaving(self)

    def _log(self) -> _Log | None:
        return getattr(self._here, "log", None)

    def stream(self) -> int:
        """The stream of this thread's calls: 0, but inside ``on``."""
        return getattr(self._here, "stream", 0)

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        """A block in which this thread's calls are on another stream."""
        before, self._here.stream = self.stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def busy(self) -> bool:
        """Whether this thread records."""
        return self._log() is not None

    def new_pool(self, *, shared: bool = False) -> SimulatedPool:
        """An empty pool."""
        if not shared:
            return SimulatedPool()
        memory = self._shared.get(self.stream())
        if memory is None:
            memory = self._shared[self.stream()] = SimulatedPool()
        return SimulatedPool(memory)

    def capacity(self) -> int:
        """As many bytes as the tests say."""
        return self.bytes

    @contextlib.contextmanager
    def kept_numbers(self) -> Iterator[None]:
        """A block after which the processor's generator goes on as if it had not been."""
        state = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(state)

    def timed(self, run: Callable[[], T], behind: float = 0.0) -> tuple[T, float]:
        """The seconds that ``clock`` tells, of calls as they are and of such that never wait."""
        return run(), self.clock(behind > 0)

    def begin(self, pool: SimulatedPool, asked: Asked = UNKNOWN) -> None:
        """Write down what this thread does from here on."""
        log = _Log(pool, asked)
        self._here.log = _here.log = log
        log.__enter__()

    def end(self) -> SimulatedGraph:
        """What was written down."""
        return self._leave().finish()

    def intact(self) -> bool:
        """What breaks a recording raises at once."""
        return self.busy()

    def abandon(self) -> None:
        """Undo what was done since ``begin``."""
        if self.busy():
            self._leave().finish()

    def _leave(self) -> _Log:
        log = self._log()
        assert log is not None
        self._here.log = _here.log = None
        log.__exit__(None, None, None)
        return log

    def empty_strided(
        self, sizes: Sequence[int], strides: Sequence[int], *, dtype: torch.dtype, device: Any = None
    ) -> torch.Tensor:
        """Memory of the pool while recording; braze's own way to make tensors does not pass the dispatcher."""
        log = self._log()
        if log is None:
            return native.empty_strided(tuple(sizes), tuple(strides), dtype=dtype)
        return log.empty_strided(sizes, strides, dtype)

    def empty_result(
        self, sizes: Sequence[int], strides: Sequence[int], *, dtype: torch.dtype, device: Any = None
    ) -> torch.Tensor:
        """The same for a result that leaves the call."""
        log = self._log()
        if log is None:
            return native.empty_strided(tuple(sizes), tuple(strides), dtype=dtype)
        return log.empty_result(sizes, strides, dtype)

    def launched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which is written down while recording."""

        def call(*args: Any) -> Any:
            log = self._log()
            return function(*args) if log is None else log.launch(function, args)

        return call
