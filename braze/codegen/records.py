"""Generated text, as data."""

from __future__ import annotations

from braze.support.record import record


@record
class KernelText:
    """One kernel: ``source`` defines the function ``name``.

    ``language`` "c": ``void name(void **buffers, const int64_t *sizes)``. ``buffers[i]`` is the data
    pointer of ``args[i]`` (a buffer name, or "scratch:N" for N bytes per thread); ``sizes[j]`` the value
    of size symbol ``sizes[j]``. ``language`` "triton": see codegen/triton. ``canonical``: the source
    with the kernel's own name replaced, so that equal kernels are built once.
    """

    name: str
    language: str
    source: str
    args: tuple[str, ...]
    sizes: tuple[str, ...] = ()
    canonical: str = ""


@record
class HostModule:
    """All the text of one compiled graph.

    ``source`` is a Python module that defines ``make(runtime)``, which returns ``call(inputs)``: takes
    the sequence of graph inputs, returns the tuple of graph outputs.
    """

    name: str
    source: str
    kernels: tuple[KernelText, ...]
    target: str  # Target.arch
