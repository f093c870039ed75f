"""What is told of kernels for ``explain``: what each moves and computes in a call, and what building it came to."""

from __future__ import annotations

from braze.support.record import record


@record
class KernelWork:
    """What one kernel of a graph does in a call, at the sizes of the trace.

    ``function``: the name under which it is launched, which equal kernels share. ``read`` and ``written``: bytes, each
    element once. ``operations``: on numbers, one by one; ``flops``: of matrix products, of type ``product``, two for each
    multiplication. ``path``: of its text, for Triton's.
    """

    graph: str
    name: str
    function: str
    device: str
    read: int
    written: int
    operations: int
    flops: int
    product: str
    path: str = ""

    @property
    def bytes(self) -> int:
        """All that it moves."""
        return self.read + self.written


@record
class BuiltKernel:
    """What a kernel takes of a GPU: registers of a thread, bytes of a thread that did not fit in these, bytes of shared memory and threads of a program."""

    path: str
    name: str
    registers: int
    spilled: int
    shared: int
    threads: int
