"""What is known of operators: which of them only compute, so that they may be left out, done once, or done at another time.

Known are ATen's and prims' operators without the tag of random numbers, whose kernels are PyTorch's own. What the program
registers (an operator, or a kernel for one of ATen's) may draw numbers and read the world, and is never known.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

#: PyTorch's operators, whose tags tell what they do; braze's own are tagged alike
KNOWN = frozenset({"aten", "prims", "braze"})


@functools.cache
def _is_tagged(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def may_draw(op: Any) -> bool:
    """Whether an operator may give another result, or do something else, when it is called again with the same arguments."""
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return _is_tagged(op) or op.namespace not in KNOWN or is_of_the_program(op)


def is_of_the_program(op: torch._ops.OpOverload) -> bool:
    """Whether the program has defined an operator of ATen's name, or given one of ATen's a kernel of its own."""
    return op.namespace == "aten" and op._schema.name in _added(
        len(torch.library._defs), len(torch.library._impls)
    )


@functools.cache
def _added(defined: int, implemented: int) -> frozenset[str]:
    """Names of ATen's operators that were defined in Python, or got a kernel there; those for metadata compute nothing."""
    names = {name for name in torch.library._defs if name.startswith("aten::")}
    for entry in torch.library._impls:
        namespace, name, key = entry.split("/")
        if namespace == "aten" and key not in ("Meta", *UNUSED):
            names.add(f"aten::{name.partition('.')[0]}")
    return frozenset(names)


#: where PyTorch itself has kernels in Python for ATen's operators; no program runs there that braze compiles
UNUSED = ("MPS",)
