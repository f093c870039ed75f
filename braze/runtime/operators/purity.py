"""What is known of operators: which of them only compute, so that they may be left out, done once, or done at another time.

Known are ATen's and prims' operators without the tag of random numbers, whose kernels are PyTorch's own. What the program
registers (an operator, or a kernel for one of ATen's) may draw numbers and read the world, and is never known.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

#: PyTorch's operators, whose tags tell what they do; braze's own are tagged alike
KNOWN = frozenset({"aten", "prim", "prims", "braze"})
_PYTORCH = os.path.dirname(torch.__file__) + os.sep
#: where PyTorch itself has kernels in Python for ATen's operators; no program runs there that braze compiles
UNUSED = ("MPS",)
#: operators of programs that stand in one of these namespaces all the same, as those of a serving engine do in braze's
_of_programs: set[str] = set()


def note_custom(name: str) -> None:
    """An operator ``"braze::attention"`` is the program's: nothing is known of it but its schema."""
    _of_programs.add(name)


def is_known(op: torch._ops.OpOverload) -> bool:
    """Whether an operator is PyTorch's or the compiler's own."""
    return op.namespace in KNOWN and op._schema.name not in _of_programs


@functools.cache
def _is_tagged(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def may_draw(op: Any) -> bool:
    """Whether an operator may give another result, or do something else, when it is called again with the same arguments."""
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return _is_tagged(op) or not is_known(op) or is_of_the_program(op)


def named(target: str) -> torch._ops.OpOverload:
    """The operator of ``"aten.mm.out"``."""
    namespace, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def may_draw_by_name(target: str) -> bool:
    """As :func:`may_draw`, of the operator that a program of loops calls by name."""
    return may_draw(named(target))


def is_seeded(op: torch._ops.OpOverload) -> bool:
    """Whether an operator of PyTorch's draws random numbers."""
    return is_known(op) and _is_tagged(op)


def draws(target: str) -> bool:
    """As :func:`is_seeded`, of an operator by name."""
    return is_seeded(named(target))


def gives_results(target: str) -> bool:
    """Whether an operator, by name, has results: one without is called for its effect."""
    return bool(named(target)._schema.returns)


def is_of_the_program(op: torch._ops.OpOverload) -> bool:
    """Whether the program has defined an operator of ATen's name, or given one of ATen's a kernel of its own."""
    return op.namespace == "aten" and op._schema.name in _added(
        len(torch.library._defs), len(torch.library._impls)
    )


@functools.cache
def _added(defined: int, implemented: int) -> frozenset[str]:
    """Names of ATen's operators that were defined in Python, or got a kernel there; those for metadata compute nothing."""
    names = {name for name in torch.library._defs if name.startswith("aten::")}
    names.update(f"aten::{name.partition('.')[0]}" for name, _ in added_kernels())
    return frozenset(names)


def added_kernels() -> frozenset[tuple[str, str]]:
    """The kernels that the program has given to ATen's operators: ``("add.Tensor", "CPU")``."""
    return _kernels(len(torch.library._impls))


def forget_kernels() -> None:
    """Look again: as many kernels may be others."""
    _kernels.cache_clear()
    _added.cache_clear()


@functools.cache
def _kernels(implemented: int) -> frozenset[tuple[str, str]]:
    entries = [entry.split("/") for entry in torch.library._impls.copy() if entry.startswith("aten/")]
    return frozenset(
        (name, key)
        for _, name, key in entries
        if key not in ("Meta", *UNUSED) and not _is_pytorchs_kernel(name, key)
    )


def _is_pytorchs_kernel(name: str, key: str) -> bool:
    """Whether a kernel in Python is registered by a file of PyTorch's, as the dispatcher tells."""
    for line in torch._C._dispatch_dump(f"aten::{name}").splitlines():
        place, _, told = line.partition(": registered at ")
        if place.removesuffix("[alias]") == key:
            # torch.library itself registers for whoever calls torch.library.impl
            return told.startswith(_PYTORCH) and not told.startswith(torch.library.__file__)
    return False
