"""Generated text, as data."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from braze.support.record import record

#: what a kernel says of an index that does not exist
_SAID = re.compile(r'"BZ5013[^"]*"')


@record
class TritonLaunch:
    """How a Triton kernel is launched.

    The kernel's parameters are its buffers, then one int per entry of ``KernelText.sizes``, then the compile-time
    ``constants`` by name. ``grid``: number of programs, an expression over the size symbols as Python text.
    ``dtypes``: Triton's type names of the buffers, in order ("fp32"), for compiling without a GPU. ``contracts``: whether a product and
    a sum of it may become one operation, which rounds once.
    """

    grid: str
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    dtypes: tuple[str, ...]
    contracts: bool = True


@record
class PackText:
    """How the constant operand of a gemm is packed.

    The kernel's source also defines ``void name(const void *b, void *packed, const int64_t *sizes)``, which
    lays ``buffer`` out in panels of ``bytes`` bytes in all. The kernel takes the result as its
    argument ``"packed:<buffer>"``.
    """

    buffer: str
    name: str
    bytes: int


@record
class KernelText:
    """One kernel: ``source`` defines the function ``name``.

    ``language`` "c": ``void name(void **buffers, const int64_t *sizes)``. ``buffers[i]`` is the data
    pointer of ``args[i]`` (a buffer name, or "scratch:N" for N bytes per thread); ``sizes[j]`` the value
    of size symbol ``sizes[j]``. ``language`` "triton": see codegen/triton. ``canonical``: the source
    with the kernel's own name replaced, so that equal kernels are built once. ``launch``: for Triton only.
    """

    name: str
    language: str
    source: str
    args: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    canonical: str = ""
    launch: TritonLaunch | None = None
    packs: tuple[PackText, ...] = ()

    @property
    def work(self) -> str:
        """The canonical text without where in the user's program its indices are from: what is measured of it holds wherever that is."""
        return _SAID.sub('""', self.canonical)


def relaunched(text: KernelText, **changes: Any) -> KernelText:
    """A Triton kernel that is launched otherwise."""
    assert text.launch is not None
    launch = dataclasses.replace(text.launch, **changes)
    return dataclasses.replace(
        text, launch=launch, canonical=text.canonical.replace(str(text.launch), str(launch))
    )


@record
class HostModule:
    """All the text of one compiled graph.

    ``source`` is a Python module that defines ``make(runtime)``, which returns ``call(inputs)``: takes
    the sequence of graph inputs, returns the tuple of graph outputs. ``units``: complete C translation
    units to be linked into one library: the kernels, and the ``segment_N`` functions
    that the module calls.
    """

    name: str
    source: str
    kernels: tuple[KernelText, ...]
    target: str  # Target.arch
    units: tuple[str, ...] = ()
    device: str = "cpu"  # where the arena is
    calls_aten: bool = False  # whether something in the graph stays an operator of PyTorch


def as_data(host: HostModule) -> dict[str, Any]:
    """A host module as JSON has it."""
    return dataclasses.asdict(host)


def host_of(data: dict[str, Any]) -> HostModule:
    """What :func:`as_data` was given. KeyError, TypeError or ValueError for anything else."""
    kernels = []
    for kernel in data["kernels"]:
        launch, packs = kernel["launch"], tuple(PackText(**pack) for pack in kernel["packs"])
        if launch is not None:
            constants = tuple((str(name), int(value)) for name, value in launch["constants"])
            launch = TritonLaunch(**{**launch, "constants": constants, "dtypes": tuple(launch["dtypes"])})
        tuples = {"args": tuple(kernel["args"]), "sizes": tuple(kernel["sizes"])}
        kernels.append(KernelText(**{**kernel, **tuples, "launch": launch, "packs": packs}))
    return HostModule(**{**data, "kernels": tuple(kernels), "units": tuple(data["units"])})
