"""Gradients clipped by their norm and by value: PyTorch's functions, which call one kernel for a list of tensors, and braze's.

The least that must be moved: a norm reads each gradient once, and where it is too large each is read and written once more; clipping by
value reads and writes each. How long that takes is told by a copy of as many bytes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from benchmarks.device import copies, wait
from benchmarks.report import grouped
from benchmarks.run import Row

IMPLS = ("foreach", "braze")
#: case -> (gradients, elements of each)
CASES = {
    "1,000 x 100": (1000, 100),
    "1,000 x 10,000": (1000, 10_000),
    "100 x 10,000": (100, 10_000),
    "300 x 1,000,000": (300, 1_000_000),
    "20 x 10,000,000": (20, 10_000_000),
}
#: on a CPU less memory must do
MOST_ON_CPU = 50_000_000
DTYPES = ("float32", "bfloat16")
#: what is done -> how many times each gradient is read or written
KINDS = {"norm, none too large": 1, "norm": 3, "value": 2}


def prepare(kind: str, params: list[Any]) -> dict[str, Callable[[], Any]]:
    """A function for each implementation; the same gradients for all."""
    import torch

    import braze

    utils = torch.nn.utils
    if kind == "value":
        return {
            "foreach": lambda: utils.clip_grad_value_(params, 0.3, foreach=True),
            "braze": lambda: braze.clip_grad_value_(params, 0.3),
        }
    largest = 1.0 if kind == "norm" else 1e9
    return {
        "foreach": lambda: utils.clip_grad_norm_(params, largest, foreach=True),
        "braze": lambda: braze.clip_grad_norm_(params, largest),
    }


def run_clipping(device: str, impls: Sequence[str], rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Milliseconds of a call until the device is done, and of the host's part, interleaved."""
    import torch

    rows: list[Row] = []
    for dtype in DTYPES:
        for case, (count, elements) in CASES.items():
            if device == "cpu" and count * elements > MOST_ON_CPU:
                continue
            say(f"{case}, {dtype}")
            params = [
                torch.nn.Parameter(torch.zeros(elements, device=device, dtype=getattr(torch, dtype)))
                for _ in range(count)
            ]
            for p in params:
                p.grad = torch.randn_like(p)
            grads = [p.grad for p in params]
            moved = sum(g.numel() * g.element_size() for g in grads if g is not None)
            for kind, times in KINDS.items():
                ways = {impl: f for impl, f in prepare(kind, params).items() if impl in impls}
                floor = statistics.median(copies(device, moved * times // 2, 7)) * 1e3
                for row in timed(ways, kind, grads, device, rounds):
                    rows.append({"case": f"{kind}: {case}, {dtype}", **row, "floor_ms": floor})
    return rows


def timed(
    ways: dict[str, Callable[[], Any]], kind: str, grads: list[Any], device: str, rounds: int
) -> list[Row]:
    """A row for each implementation."""
    import torch

    whole: dict[str, list[float]] = {impl: [] for impl in ways}
    host: dict[str, list[float]] = {impl: [] for impl in ways}
    for each in range(rounds + 2):
        for impl, f in ways.items():
            if kind == "norm":  # another call has left them at the largest
                torch._foreach_mul_(grads, 3.0)
            wait(device)
            start = time.perf_counter()
            f()
            returned = time.perf_counter()
            wait(device)
            if each >= 2:  # the first ones build kernels
                whole[impl].append((time.perf_counter() - start) * 1e3)
                host[impl].append((returned - start) * 1e3)
    median = statistics.median
    return [{"impl": i, "ms": median(whole[i]), "host_ms": median(host[i]), "rounds": whole[i]} for i in ways]


def clipping_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Milliseconds of a call, of the host's part of it, and braze's speed against PyTorch's."""
    table = Table(
        title="Clipping gradients, milliseconds (the host's; braze's speed against it)", title_justify="left"
    )
    for name in ("what", *impls, "floor"):
        table.add_column(name, justify="right")
    for case, here in grouped(rows, "case"):
        cells, floor = [], 0.0
        for impl in impls:
            row, ours = here[impl], here.get("braze")
            floor = row["floor_ms"]
            ratio = statistics.median(a / b for a, b in zip(row["rounds"], ours["rounds"])) if ours else 0.0
            cells.append(f"{row['ms']:.3f} ({row['host_ms']:.3f}; {ratio:.2f}x)")
        table.add_row(case, *cells, f"{floor:.3f}")
    return table
