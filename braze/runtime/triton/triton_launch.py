"""Launches of Triton kernels: Triton builds them, the driver loads and launches them; Triton launches what it alone can.

Triton is imported in the functions that need it: not everybody has it, and it takes its time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from braze import native
from braze.runtime.triton import triton_worker
from braze.runtime.triton.kernel_facts import BuiltKernel
from braze.runtime.triton.triton_build import Ahead, Job, refusal
from braze.support import trace
from braze.support.log import logger, warn_once
from braze.support.record import record

log = logger("kernels")

#: what Triton names the places for hooks around launches
_HOOKS = ("launch_enter_hook", "launch_exit_hook")
#: who listens when a kernel is loaded
_LOADS = ("kernel_load_start_hook", "kernel_load_end_hook")
#: columns of tensor memory that a multiprocessor has, where it has any
_TENSOR_COLUMNS = 512
#: programs that a launch may have along one dimension; along the two others, which no launch of ours has any of, there may be 65,535
MOST_PROGRAMS = 2**31 - 1
#: what a kernel's metadata must not ask for: memory of its own, or another way of launching
_PLAIN = {
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "num_ctas": 1,
}


@record
class Form:
    """A built kernel for one kind of arguments."""

    #: what Triton gave
    kernel: Any
    function: int
    threads: int
    shared: int
    #: bytes of each size as the kernel takes it; 0 for one that was built in
    widths: bytes
    #: pointers after those that we know of, to memory that the kernel does not use
    scratch: int
    #: it may begin before what is ahead of it on the stream has ended
    early: bool = False


@record
class First:
    """What a kernel's first launch tells, and asks: who builds its graph's kernels, its file, the names of its sizes."""

    ahead: Ahead
    path: str
    sizes: tuple[str, ...]


class Launch:
    """One kernel's launches. Triton's own path costs some 20 microseconds a call, and a C compiler's run for each new row of arguments
    (Triton 3.6: 0.1 s), so that it is for what the driver cannot do with what we know of.

    Triton builds a kernel apart for addresses that 16 does not divide, and for each kind of an integer (one, a multiple
    of 16, too large for 32 bits). What it built for addresses and integers of the same kinds is launched by the driver,
    if the driver says that it takes just what we know of.
    """

    def __init__(self, function: Any, programs: Callable[..., int], names: tuple[str, ...], job: Job) -> None:
        self.function = function
        self.programs = programs
        self.names = names
        self.sizes = len(names)
        self.job = job
        self.first: First | None = None
        #: what went wrong with the last build that failed
        self.why = ""
        self.by_driver = False
        self.interpreted = False
        #: (device, kinds of the sizes, bits of the buffers that 16 does not divide) -> what Triton built; None where only Triton can launch that
        self.forms: dict[tuple[int, tuple[Any, ...], int], Form | None] = {}

    def launcher(self) -> Callable[..., Any]:
        """The function that host modules call."""
        self.interpreted = interpreted = os.environ.get("TRITON_INTERPRET", "0") == "1"
        if interpreted:
            constants = tuple(
                (name, 0 if name in triton_worker.ON_GPUS else n) for name, n in self.job.constants
            )
            self.job = dataclasses.replace(self.job, constants=constants)
        hooks = None if interpreted or not native.bind_driver() else _hooks()
        if hooks is None:
            return self.general
        self.by_driver = True
        return native.DeviceLauncher(len(self.job.dtypes), self.sizes, self.find, self.general, *hooks)

    def ready(self, device: int, numbers: tuple[int, ...]) -> str:
        """Build and load what a launch on the current device will ask for; what went wrong, or nothing."""
        key = device, _kinds(numbers), 0
        programs = self.programs(*numbers)
        if programs > MOST_PROGRAMS:
            return f"it would be {programs} programs, and a GPU launches {MOST_PROGRAMS} at most"
        if key in self.forms or programs <= 0:
            return ""
        first, self.first = self.first, None
        if first is not None and (why := first.ahead.before(first.path, first.sizes, numbers)):
            return why
        if self.by_driver:
            self.forms[key] = self._built(device, numbers)
        else:
            self._build(numbers)
        if first is not None and not self.why:
            first.ahead.after(first.path)
        return self.why

    def was_built(self) -> bool:
        """Whether a process has built and loaded it before, for sizes of some kind."""
        return self.first is not None and self.first.ahead.mark(Path(self.first.path)).exists()

    def general(self, *args: Any) -> None:
        """A launch by Triton's own means on the device of the first buffer; no launch of zero programs."""
        numbers = args[len(args) - self.sizes :]
        programs = self._programs(numbers)
        if programs == 0:
            return
        try:
            self._launch_on(args[0].device, programs, args, numbers)
        except Exception as error:  # the host module's line may be of many launches
            error.add_note(f"braze: it came of the launch of {self.job.name}")
            raise

    def _programs(self, numbers: tuple[int, ...]) -> int:
        programs = max(self.programs(*numbers), 0)
        if programs > MOST_PROGRAMS:  # the driver would be told their number without its upper bits
            raise OverflowError(
                f"{self.job.name} is {programs} programs for the sizes {numbers}, and a GPU launches {MOST_PROGRAMS} at most"
            )
        return programs

    def _launch_on(
        self, device: torch.device, programs: int, args: tuple[Any, ...], numbers: tuple[int, ...]
    ) -> None:
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            self._launch(programs, args, numbers)
        else:
            with torch.cuda.device(device):
                self._launch(programs, args, numbers)

    def find(self, device: int, *given: int) -> tuple[int, int, int, int, bytes, int, bool] | None:
        """What to launch for these sizes on the current device, built if it has to be; None where Triton has to launch.

        Behind the sizes may be bits of the buffers that 16 does not divide.
        """
        numbers, apart = given[: self.sizes], sum(given[self.sizes :])
        programs = self._programs(numbers)
        key = device, _kinds(numbers), apart
        if key not in self.forms:
            if programs == 0:
                return None
            with self._told(numbers):
                found = self._built(device, numbers, apart)
                self.forms[key] = self._of_any_sizes(device, numbers, apart) if self.why else found
        form = self.forms[key]
        if form is None:
            return None
        return form.function, programs, form.threads, form.shared, form.widths, form.scratch, form.early

    def _built(self, device: int, numbers: tuple[int, ...], apart: int = 0) -> Form | None:
        """The kernel, which is loaded. What Triton has to say of one that it cannot build it says at its own launch."""
        found = self._build(numbers, device, apart)
        return None if found is None else form_of(*found, len(self.job.dtypes), numbers)

    def _of_any_sizes(self, device: int, numbers: tuple[int, ...], apart: int) -> Form | None:
        """What is built for sizes of no kind, which takes these too: what is built for theirs is refused."""
        plain, why = tuple(map(_of_no_kind, numbers)), self.why
        if plain == numbers:
            return None
        key = device, _kinds(plain), apart
        if key not in self.forms:
            self.forms[key] = self._built(device, plain, apart)
        name = self.job.name
        if self.forms[key] is not None:
            warn_once(
                ("BZ5012", name),
                f"BZ5012: {name} cannot be built or loaded for the sizes {numbers}; what is built for any sizes runs instead, perhaps slower.\n{why[:500]}",
                "kernels",
            )
        return self.forms[key]

    def _build(
        self, numbers: tuple[int, ...], device: int | None = None, apart: int = 0
    ) -> tuple[Any, int] | None:
        """What Triton builds, loaded on a device if one is told; None where that fails, or where only Triton may load it."""
        job, self.why = self.job, ""
        try:
            require_hope(job)
            kernel = triton_worker.build(
                job.path,
                job.name,
                job.dtypes,
                numbers,
                job.constants,
                job.num_warps,
                job.num_stages,
                job.contracts,
                apart,
            )
            function = None if device is None else loaded(kernel, device, job)
            if function is None:
                load_by_triton(kernel)
        except Exception as error:  # of Triton or a driver, of any kind
            self.why = f"{type(error).__name__}: {error}"
            log.info("%s is left to Triton: %s", job.name, error)
            return None
        return None if function is None else (kernel, function)

    def _launch(self, programs: int, args: tuple[Any, ...], numbers: tuple[int, ...]) -> None:
        blocks = dict(self.job.constants)
        asks = triton_worker.asked(self.job.constants, self.job.contracts, self.interpreted)
        with self._told(numbers), _interpreted(asks) if self.interpreted else contextlib.nullcontext():
            require_hope(self.job)
            self.function[(programs,)](
                *args, **blocks, **asks, num_warps=self.job.num_warps, num_stages=self.job.num_stages
            )

    @contextlib.contextmanager
    def _told(self, numbers: tuple[int, ...]) -> Iterator[None]:
        """The first time, who builds the graph's kernels is told before and after."""
        first, self.first, self.why = self.first, None, ""
        if first is not None:
            first.ahead.before(first.path, first.sizes, numbers)
        yield
        if first is not None and not self.why:
            first.ahead.after(first.path)


@contextlib.contextmanager
def _interpreted(asks: dict[str, Any]) -> Iterator[None]:
    """A launch by Triton's interpreter, which takes no options: an index that a kernel asserts to exist is looked at, and an IndexError where it does not.

    It multiplies matrices of bfloat16 by their bits, as whole numbers: here by what they stand for.
    """
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    product, before = builder.create_dot, builder.options
    builder.create_dot = lambda a, b, *rest: product(_widened(a), _widened(b), *rest)
    if asks.get("debug"):
        builder.options = dataclasses.replace(before, debug=True, sanitize_overflow=False)
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error if asks.get("debug") else None
        while cause is not None and not isinstance(cause, AssertionError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise IndexError(str(cause)) from None
    finally:
        builder.create_dot, builder.options = product, before


def _widened(tile: Any) -> Any:
    """A tile of bfloat16, which the interpreter has as bits, as one of float32."""
    import numpy
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if tile.dtype.scalar != tl.bfloat16:
        return tile
    return TensorHandle((tile.data.astype(numpy.uint32) << 16).view(numpy.float32), tl.float32)


def require_hope(job: Job) -> None:
    """Leave alone what a worker could not build without harm.

    Raises RuntimeError for it.
    """
    if why := refusal(job):
        raise RuntimeError(f"BZ5012: {job.name} is not built: {why}")


def loaded(kernel: Any, device: int, job: Job) -> int | None:
    """The driver's handle of a built kernel on the current device; None where somebody listens to what Triton loads. What it takes is told."""
    import triton
    from triton.runtime.driver import driver

    hooks = (getattr(triton.knobs.runtime, name, None) for name in _LOADS)
    if any(hook is not None and getattr(hook, "calls", True) for hook in hooks):
        return None
    metadata, utils = kernel.metadata, driver.active.utils
    require_room(metadata, shared_memory(device))
    _, function, registers, words, *most = utils.load_binary(
        kernel.name, kernel.kernel, metadata.shared, device
    )
    threads = metadata.num_warps * getattr(metadata, "warp_size", 32)
    if trace.collecting():
        trace.emit("built", BuiltKernel(job.path, job.name, registers, 4 * words, metadata.shared, threads))
    if most and threads > most[0]:
        raise RuntimeError(f"it takes so many registers that {most[0]} threads have them, and not {threads}")
    return int(function)


def load_by_triton(kernel: Any) -> None:
    """Have Triton load a kernel that it alone may load, as at its first launch: what the driver refuses is known before that."""
    getattr(kernel, "run", None)  # a property


@functools.cache
def shared_memory(device: int) -> int:
    """Bytes of shared memory that a program may have on a GPU."""
    from triton.runtime.driver import driver

    return int(driver.active.utils.get_device_properties(device)["max_shared_mem"])


def require_room(metadata: Any, shared: int) -> None:
    """The driver loads what no launch of it has room for.

    Raises RuntimeError for it.
    """
    if metadata.shared > shared:
        raise RuntimeError(f"it takes {metadata.shared} bytes of shared memory, and the GPU has {shared}")
    columns = getattr(metadata, "tmem_size", None) or 0
    if columns > _TENSOR_COLUMNS:
        raise RuntimeError(f"it takes {columns} columns of tensor memory, and there are {_TENSOR_COLUMNS}")


def form_of(kernel: Any, function: int, buffers: int, numbers: tuple[int, ...]) -> Form | None:
    """How a kernel that Triton built is launched; None if it takes anything beside the buffers and the sizes."""
    metadata = kernel.metadata
    if any(getattr(metadata, name, plain) != plain for name, plain in _PLAIN.items()):
        return None
    taken = native.parameter_sizes(function)
    widths = bytes(0 if n == 1 else 4 if _fits(n) else 8 for n in numbers)
    known = (*(8 for _ in range(buffers)), *filter(None, widths))
    if taken is None or taken[: len(known)] != known or any(size != 8 for size in taken[len(known) :]):
        return None
    threads = metadata.num_warps * getattr(metadata, "warp_size", 32)
    early = bool(getattr(metadata, "launch_pdl", False))
    return Form(kernel, function, threads, metadata.shared, widths, len(taken) - len(known), early)


def _kinds(numbers: tuple[int, ...]) -> tuple[Any, ...]:
    """What Triton builds a kernel apart for, of each integer."""
    return tuple((n == 1, n % 16 == 0, _fits(n)) for n in numbers)


def _of_no_kind(n: int) -> int:
    """A number that takes as many bytes as this one, and for which Triton builds in nothing."""
    return n + 3 if n == 1 or n % 16 == 0 else n


def _fits(n: int) -> bool:
    return -(1 << 31) <= n < 1 << 31


def _hooks() -> tuple[dict[str, Any], tuple[str, ...], tuple[list[Any], ...]] | None:
    """Where hooks around launches would stand: a dict that replaces them, their names, and their chains; None if they are replaced."""
    import triton

    runtime = triton.knobs.runtime
    found = [getattr(getattr(runtime, name, None), "calls", None) for name in _HOOKS]
    chains = tuple(chain for chain in found if isinstance(chain, list))
    if any(name in vars(runtime) for name in _HOOKS) or len(chains) < len(_HOOKS):
        return None
    return vars(runtime), _HOOKS, chains
