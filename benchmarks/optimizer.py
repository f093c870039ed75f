"""Steps of AdamW over many parameters: PyTorch's ways of taking them, and braze's.

The least that a step must move is 28 bytes for an element of float32: it reads parameter, gradient and two moments, and
writes all but the gradient. How long that takes is measured by an addition in place, which moves 12 bytes for an element.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.table import Table

from benchmarks.report import grouped
from benchmarks.run import Row, Team, attempt

IMPLS = ("loop", "foreach", "fused", "torch", "braze")
#: case -> (parameters, elements of each)
CASES = {
    "1,000 x 100": (1000, 100),
    "1,000 x 10,000": (1000, 10_000),
    "100 x 10,000": (100, 10_000),
    "20 x 1,000,000": (20, 1_000_000),
}
#: torch.compile unrolls a step over all parameters: minutes for a thousand
TORCH_CASES = ("100 x 10,000",)
BYTES = 28


def prepare(impl: str, case: str) -> tuple[Callable[[int], float], float, float]:
    """A function that takes n steps and gives seconds per step; seconds of the first step and of the bytes moved."""
    import torch

    count, elements = CASES[case]
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(elements)) for _ in range(count)]
    for p in params:
        p.grad = torch.randn(elements)
    options: dict[str, Any] = {
        "loop": {"foreach": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }
    optimizer = torch.optim.AdamW(params, **options.get(impl, {}))
    step: Callable[[], Any] = optimizer.step
    start = time.perf_counter()
    if impl == "braze":
        import braze

        step = braze.compile_optimizer(optimizer).step
    elif impl == "torch":
        step = torch.compile(optimizer.step)
    step()
    first = time.perf_counter() - start

    def loop(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - start) / steps

    loop(2)
    a, b = torch.zeros(count * elements), torch.ones(count * elements)
    moves = []
    for _ in range(7):
        start = time.perf_counter()
        torch.add(a, b, out=a)
        moves.append((time.perf_counter() - start) * BYTES / 12)
    return loop, first, statistics.median(moves)


def run_optimizer(impls: Sequence[str], rounds: int, say: Callable[[str], None]) -> list[Row]:
    """Milliseconds per step, interleaved; the first step apart, with all that it builds."""
    rows: list[Row] = []
    for case in CASES:
        team, here = Team(impls), {}
        try:
            for impl in impls:
                if impl == "torch" and case not in TORCH_CASES:
                    continue
                say(f"{case}: {impl}")
                row = here[impl] = {"case": case, "impl": impl}
                rows.append(row)
                child = team.child(impl)
                row |= attempt(row, lambda: child.ask("optimizer", case=case)) or {}
            ready = [impl for impl in here if "failed" not in here[impl]]
            spent: dict[str, list[float]] = {impl: [] for impl in ready}
            for _ in range(rounds):
                for impl in ready:
                    spent[impl].append(team.child(impl).ask("loops", calls=5)["seconds"])
            for impl in ready:
                here[impl]["milliseconds"] = statistics.median(spent[impl]) * 1e3
                here[impl]["rounds_ms"] = [round(s * 1e3, 3) for s in spent[impl]]
        finally:
            team.stop()
    return rows


def optimizer_table(rows: list[Row], impls: Sequence[str]) -> Table:
    """Milliseconds per step and the first one's seconds; braze's speed against each other implementation."""
    table = Table(
        title="One step of AdamW, milliseconds (braze's speed against it; seconds of the first step)",
        title_justify="left",
    )
    for name in ("parameters", *impls, "floor"):
        table.add_column(name, justify="right")
    for case, here in grouped(rows, "case"):
        cells, floors = [], [row["floor_seconds"] for row in here.values() if "floor_seconds" in row]
        for impl in impls:
            row = here.get(impl)
            if row is None or "rounds_ms" not in row:
                cells.append("failed" if row else "")
                continue
            braze = here.get("braze", {}).get("rounds_ms")
            ratio = statistics.median(a / b for a, b in zip(row["rounds_ms"], braze)) if braze else 0.0
            cells.append(f"{row['milliseconds']:.2f} ({ratio:.2f}x; {row['first_seconds']:.2f} s)")
        floor = f"{statistics.median(floors) * 1e3:.2f}" if floors else ""
        table.add_row(case, *cells, floor)
    return table
