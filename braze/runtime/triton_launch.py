"""Launches of Triton kernels: by Triton's own means once for each kind of arguments, after that by the driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from braze import native
from braze.runtime.triton_build import Ahead
from braze.support.record import record

#: what Triton names the places for hooks around launches
_HOOKS = ("launch_enter_hook", "launch_exit_hook")
#: what a kernel's metadata must not ask for: memory of its own, or another way of launching
_PLAIN = {
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
    "num_ctas": 1,
}


@record
class Form:
    """A built kernel for one kind of arguments."""

    #: what Triton gave: it lives as long as this, and so does its function
    kernel: Any
    function: int
    threads: int
    shared: int
    #: bytes of each size as the kernel takes it; 0 for one that was built in
    widths: bytes
    #: pointers after those that we know of, to memory that the kernel does not use
    scratch: int


@record
class First:
    """What a kernel's first launch tells, and asks: who builds its graph's kernels, its file, the names of its sizes."""

    ahead: Ahead
    path: str
    sizes: tuple[str, ...]


class Launch:
    """One kernel's launches. Triton's own path costs some 20 microseconds, so it is taken once a kind of arguments.

    Triton builds a kernel apart for addresses that 16 does not divide, and for each kind of an integer (one, a multiple
    of 16, too large for 32 bits). What it built for aligned addresses is launched again by the driver for integers of the
    same kinds, if the driver says that it takes just what we know of.
    """

    def __init__(
        self,
        function: Any,
        programs: Callable[..., int],
        sizes: int,
        blocks: dict[str, int],
        num_warps: int,
        num_stages: int,
    ) -> None:
        self.function = function
        self.programs = programs
        self.sizes = sizes
        self.blocks = blocks
        self.options = {"num_warps": num_warps, "num_stages": num_stages}
        self.first: First | None = None
        #: (device, kinds of the sizes) -> what Triton built; None where only Triton can launch that
        self.forms: dict[tuple[int, tuple[Any, ...]], Form | None] = {}

    def launcher(self) -> Callable[..., Any]:
        """The function that host modules call."""
        interpreted = os.environ.get("TRITON_INTERPRET", "0") == "1"
        hooks = None if interpreted or not native.bind_driver() else _hooks()
        if hooks is None:
            return self.general
        buffers = len(self.function.arg_names) - self.sizes - len(self.blocks)
        return native.DeviceLauncher(buffers, self.sizes, self.find, self.general, *hooks)

    def general(self, *args: Any) -> None:
        """A launch by Triton's own means on the device of the first buffer; no launch of zero programs."""
        import torch

        numbers = args[len(args) - self.sizes :]
        programs = self.programs(*numbers)
        if programs <= 0:
            return
        device = args[0].device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            self._launch(programs, args, numbers)
        else:
            with torch.cuda.device(device):
                self._launch(programs, args, numbers)

    def find(self, device: int, *numbers: int) -> tuple[int, int, int, int, bytes, int] | None:
        """What to launch for these sizes; None where Triton has to."""
        form = self.forms.get((device, _kinds(numbers)))
        if form is None:
            return None
        programs = max(self.programs(*numbers), 0)
        return form.function, programs, form.threads, form.shared, form.widths, form.scratch

    def _launch(self, programs: int, args: tuple[Any, ...], numbers: tuple[int, ...]) -> None:
        first, self.first = self.first, None
        if first is not None:
            first.ahead.before(first.path, first.sizes, numbers)
        kernel = self.function[(programs,)](*args, **self.blocks, **self.options)
        if first is not None:
            first.ahead.after(first.path)
        buffers = args[: len(args) - self.sizes]
        key = buffers[0].get_device(), _kinds(numbers)
        if key not in self.forms and not any(buffer.data_ptr() % 16 for buffer in buffers):
            self.forms[key] = form_of(kernel, len(buffers), numbers)


def form_of(kernel: Any, buffers: int, numbers: tuple[int, ...]) -> Form | None:
    """How a kernel that Triton built is launched; None if it takes anything beside the buffers and the sizes."""
    metadata = getattr(kernel, "metadata", None)
    if metadata is None or any(getattr(metadata, name, plain) != plain for name, plain in _PLAIN.items()):
        return None
    taken = native.parameter_sizes(kernel.function)
    widths = bytes(0 if n == 1 else 4 if _fits(n) else 8 for n in numbers)
    known = (*(8 for _ in range(buffers)), *filter(None, widths))
    if taken is None or taken[: len(known)] != known or any(size != 8 for size in taken[len(known) :]):
        return None
    threads = metadata.num_warps * getattr(metadata, "warp_size", 32)
    return Form(kernel, kernel.function, threads, metadata.shared, widths, len(taken) - len(known))


def _kinds(numbers: tuple[int, ...]) -> tuple[Any, ...]:
    """What Triton builds a kernel apart for, of each integer."""
    return tuple((n == 1, n % 16 == 0, _fits(n)) for n in numbers)


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
