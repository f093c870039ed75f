"""The kernels of an explanation: what each moves and computes, the least time that takes, what it takes of a GPU, and how long it ran."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from rich.table import Table
from rich.text import Text
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from braze.inspect import machine
from braze.runtime.triton.kernel_facts import BuiltKernel, KernelWork
from braze.support.errors import BrazeError
from braze.support.record import record

#: how many kernels the page shows
MOST = 12
#: what begins the name of a range of kernels of a processor in a profile
RANGE = "braze: "


@record
class KernelReport:
    """One kernel of a graph.

    ``floor``: microseconds that it takes at least: those of its bytes at the speed of a copy, of its products at that of PyTorch's, or
    of its operations at what the GPU is made for, whichever (``bound``) is most. ``registers`` (of a thread), ``spilled`` (bytes of a thread),
    ``shared`` (bytes) and ``threads`` (of a program) are a GPU's. ``times``: how often its function runs in a call; ``measured``: microseconds of
    one run, where it was timed by itself.
    """

    graph: str
    name: str
    function: str
    device: str
    read: int
    written: int
    operations: int
    flops: int
    floor: float | None = None
    bound: str = ""
    registers: int | None = None
    spilled: int | None = None
    shared: int | None = None
    threads: int | None = None
    measured: float | None = None

    @property
    def share(self) -> float | None:
        """What part of the measured time the floor is."""
        return self.floor / self.measured if self.floor is not None and self.measured else None


@record
class Stretch:
    """Kernels of a processor that run one after another in one call of C, and microseconds of it. ``floor``: of all of them, where all are named."""

    kernels: str
    measured: float
    floor: float | None = None


def reports(works: Iterable[KernelWork], built: Iterable[BuiltKernel]) -> tuple[KernelReport, ...]:
    """Each kernel with its floor on this machine."""
    facts = {(each.path, each.name): each for each in built}
    return tuple(_report(work, facts.get((work.path, work.function))) for work in dict.fromkeys(works))


def _report(work: KernelWork, built: BuiltKernel | None) -> KernelReport:
    took = () if built is None else (built.registers, built.spilled, built.shared, built.threads)
    does = work.device, work.read, work.written, work.operations, work.flops
    return KernelReport(work.graph, work.name, work.function, *does, *_floor(work), *took)


def _floor(work: KernelWork) -> tuple[float | None, str]:
    """(microseconds, of what); nothing where the device's speed cannot be taken."""
    device = work.device
    try:
        seconds = {"bytes": work.bytes / machine.bytes_per_second(device)}
        if work.flops and work.product in machine.TYPES:
            seconds["products"] = work.flops / machine.products_per_second(device, work.product)
        rate = machine.operations_per_second(device)
        if rate is not None:
            seconds["operations"] = work.operations / rate
    except (RuntimeError, BrazeError):  # no memory for it, or no such device: kernels are interpreted
        return None, ""
    bound = max(seconds, key=lambda name: seconds[name])
    return 1e6 * seconds[bound], bound


def timed(run: Callable[[], object], times: int) -> dict[str, float]:
    """Microseconds of the shortest run of each kernel (of a GPU, by its name) and of each stretch of a processor's, from so many calls under the profiler."""
    on_gpu = torch.cuda.is_available()
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    run()
    if on_gpu:
        torch.cuda.synchronize()
    with profile(activities=kinds) as found:
        for _ in range(times):
            run()
        if on_gpu:
            torch.cuda.synchronize()
    spent: dict[str, list[float]] = defaultdict(list)
    for event in found.events() or ():
        if event.device_type == DeviceType.CUDA:
            spent[event.name].append(event.time_range.elapsed_us())
        elif event.name.startswith(RANGE):
            spent[event.name.removeprefix(RANGE)].append(event.time_range.elapsed_us())
    return {name: min(each) for name, each in spent.items()}


def with_times(found: Sequence[KernelReport], spent: Mapping[str, float]) -> tuple[KernelReport, ...]:
    """The reports with what was measured of each kernel; of one in a stretch with others nothing was."""
    return tuple(dataclasses.replace(each, measured=spent.get(each.function)) for each in found)


def stretches(found: Iterable[KernelReport], spent: Mapping[str, float]) -> tuple[Stretch, ...]:
    """The stretches of several kernels that were measured."""
    floors = {each.function: each.floor for each in found}
    made = []
    for name, us in spent.items():
        kernels = name.split(", ")
        if len(kernels) > 1 and kernels[0] in floors:
            known = [floors.get(kernel) for kernel in kernels]  # the last is "... and 7 more" of many
            made.append(Stretch(name, us, None if None in known else sum(filter(None, known))))
    return tuple(made)


# -- the page ---------------------------------------------------------------------------------------


def table(found: Sequence[KernelReport]) -> Table:
    """The kernels that take longest, or would at least, first."""
    made = Table(title="Kernels", title_justify="left", box=None, padding=(0, 2, 0, 0), title_style="bold")
    gpu, clocked = any(k.registers is not None for k in found), any(k.measured is not None for k in found)
    several = len({k.graph for k in found}) > 1
    columns = ["kernel", *(["of"] if several else []), "MB", "ops/B", "floor us", "bound by"]
    columns += ["us", "of floor"] if clocked else []
    columns += ["regs", "spilled", "shared"] if gpu else []
    for name in columns:
        made.add_column(
            name, justify="left" if name in ("kernel", "of", "bound by") else "right", no_wrap=True
        )
    slowest = sorted(found, key=lambda k: (-(k.measured or 0), -(k.floor or 0)))
    for kernel in slowest[:MOST]:
        made.add_row(*_row(kernel, several, clocked, gpu))
    if len(found) > MOST:
        made.add_row(f"and {len(found) - MOST} more")
    return made


def _row(k: KernelReport, several: bool, clocked: bool, gpu: bool) -> list[Text]:
    moved = k.read + k.written
    cells = [
        k.name if k.name == k.function else f"{k.name} (runs {k.function})",
        *([k.graph] if several else []),
        f"{moved / 1e6:.3g}",
        f"{(k.operations + k.flops) / max(moved, 1):.2g}",
        "" if k.floor is None else _us(k.floor),
        k.bound,
    ]
    if clocked:
        cells += ["" if k.measured is None else _us(k.measured), "" if k.share is None else f"{k.share:.0%}"]
    if gpu:
        cells += ["" if n is None else str(n) for n in (k.registers, k.spilled, k.shared)]
    made = [Text(cell) for cell in cells]
    if k.spilled:
        made[-2].stylize("bold red")
    return made


def _us(microseconds: float) -> str:
    return f"{microseconds:,.0f}" if microseconds >= 100 else f"{microseconds:.3g}"


def notes(found: Sequence[KernelReport], more: Iterable[Stretch]) -> list[str]:
    """How the table is to be read, and what its rows cannot tell."""
    lines = []
    for device in dict.fromkeys(k.device for k in found if k.floor is not None):
        rate = machine.bytes_per_second(device) / 1e9
        lines.append(
            f"floor: bytes at the {rate:,.0f} GB/s of a copy on {device}; what lies in caches may take less"
        )
    for each in more:
        floor = f", floor {_us(each.floor)}" if each.floor is not None else ""
        lines.append(f"{_us(each.measured)} us together{floor}: {each.kernels}")
    return lines


def as_data(found: Iterable[KernelReport]) -> list[dict[str, Any]]:
    """The reports as plain data."""
    return [{**dataclasses.asdict(k), "share": k.share} for k in found]
