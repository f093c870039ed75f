"""Indices that do not exist: a kernel asserts those that are not known to, as eager's do.

An assertion that fails ends the process's work on its GPU: the driver prints the kernel and what is said here, and PyTorch raises "device-side assert
triggered" at the next synchronization.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from braze.codegen.records import KernelText, relaunched
from braze.loops.build import is_wrapped
from braze.loops.ir import LoopNest, Node, Op, TemplateCall
from braze.loops.rewrite import roots, store_roots, walk

#: the constant of a kernel that asserts
CONSTANT = (("ASSERTS", 1),)


def asserted(steps: Sequence[LoopNest | TemplateCall]) -> dict[Node, str]:
    """The indices that steps look at, with what is said of one that does not exist."""
    found: dict[Node, str] = {}
    for step in steps:
        for node in _indices(step):
            found.setdefault(node, _said(node, step))
    return found


def constants(texts: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The constant of a kernel of such lines, if it asserts."""
    return CONSTANT if any("tl.device_assert(" in text for text in texts) else ()


def unasserted(text: KernelText) -> KernelText:
    """A kernel of which Triton leaves out what it asserts."""
    launch = text.launch
    if launch is None or "ASSERTS" not in dict(launch.constants):
        return text
    told = tuple((name, 0 if name == "ASSERTS" else n) for name, n in launch.constants)
    return relaunched(text, constants=told)


def _indices(step: LoopNest | TemplateCall) -> Iterator[Node]:
    if isinstance(step, TemplateCall):
        for nest in step.prologue:
            yield from _indices(nest)
    found = roots(step) if isinstance(step, LoopNest) else store_roots(step.epilogue)
    yield from (node for node in walk(*found) if node.op is Op.CHECK_INDEX)


def _said(node: Node, step: LoopNest | TemplateCall) -> str:
    """As it stands in a kernel's text between quotes."""
    size, wraps = node.attr, is_wrapped(node.args[0], node.attr)
    low = f"-({size})" if wraps and size.value is None else f"-{size}" if wraps else "0"
    place = f" at {step.origin}" if step.origin is not None else ""
    text = (
        f"BZ5013: index out of bounds, {low} <= index < {size} does not hold, in {', '.join(step.ops)}{place}"
    )
    return text.encode("ascii", "replace").decode().replace("\\", "/").replace('"', "'")
