"""Single kernels on a GPU that memory bounds: ``python -m benchmarks kernels --device cuda``.

Each case beside eager and torch.compile, as a share of what a copy of a large tensor reaches: the bytes are those that the case
must read and write at least. Implementations are interleaved, results are compared with eager's. Case by case in one process;
a case that fails is a row that says so.

The time is the device's alone, for every implementation alike: the device is put to sleep first, and all calls of a round
are queued behind the sleep before the first of them begins, which is checked (the first event must still be pending when the
last call has been queued; else the sleep is doubled and the round taken again). Each call has two events of its own around it
and a read of 256 MB before it, which leaves nothing of its inputs in the cache. What the host takes to queue a call is a
column of its own; a call for which the device never waits is marked: its time holds the host's.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.worker import compiled
from braze.support import trace

#: runs of each implementation in turn, calls of a run (a queue holds some 1,000 launches), milliseconds that a run should take
ROUNDS, CALLS, RUN_MS = 5, 16, 8.0
#: bytes that are read between two calls: more than the cache holds
FLUSHED = 1 << 28
#: cycles of the device in a second, at most: a sleep is told in these
CYCLES = 2_000_000_000
#: seconds that a sleep may take
LONGEST = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """``make`` gives the inputs; ``fn`` is what is measured; ``grad``: its backward alone. ``bytes``: those that must move beside inputs and results."""

    fn: Callable[..., Any]
    make: Callable[[], tuple[torch.Tensor, ...]]
    grad: bool = False
    bytes: int = 0


def _normal(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * y + 1) * torch.sigmoid(x) - torch.exp(-y.abs())


def add_dropout_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return rms_norm(x + F.dropout(y, 0.1, True), w)


def _norm_inputs(rows: int, width: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (
        _normal(rows, width, grad=True),
        _normal(width, grad=True),
        _normal(width, grad=True),
    )


def _labels(rows: int, classes: int, grad: bool = False) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (
        _normal(rows, classes, grad=grad),
        torch.randint(0, classes, (rows,), device="cuda"),
    )


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


CASES: dict[str, Case] = {
    "softmax 8192x8192": Case(lambda x: torch.softmax(x, -1), lambda: (_normal(8192, 8192),)),
    "softmax 32768x2048": Case(lambda x: torch.softmax(x, -1), lambda: (_normal(32768, 2048),)),
    "softmax 512x131072": Case(lambda x: torch.softmax(x, -1), lambda: (_normal(512, 131072),)),
    "softmax 1048576x64": Case(lambda x: torch.softmax(x, -1), lambda: (_normal(1 << 20, 64),)),
    "layer norm 65536x1024": Case(layer_norm, lambda: tuple(t.detach() for t in _norm_inputs(65536, 1024)())),
    "layer norm 16384x4096": Case(layer_norm, lambda: tuple(t.detach() for t in _norm_inputs(16384, 4096)())),
    "RMS norm 16384x4096": Case(rms_norm, lambda: (_normal(16384, 4096), _normal(4096))),
    "dropout add RMS 16384x4096": Case(
        add_dropout_norm, lambda: (_normal(16384, 4096), _normal(16384, 4096), _normal(4096))
    ),
    "SwiGLU 16384x11008": Case(
        lambda x, y: F.silu(x) * y, lambda: (_normal(16384, 11008), _normal(16384, 11008))
    ),
    "rope 8x32x2048x128": Case(
        rope, lambda: (_normal(8, 32, 2048, 128), _normal(2048, 128), _normal(2048, 128))
    ),
    "chain 8192x8192": Case(chain, lambda: (_normal(8192, 8192), _normal(8192, 8192))),
    "transpose add 8192x8192": Case(
        lambda x, y: x + y.t(), lambda: (_normal(8192, 8192), _normal(8192, 8192))
    ),
    "transpose add f32": Case(
        lambda x, y: x + y.t(),
        lambda: (_normal(8192, 8192, dtype=torch.float32), _normal(8192, 8192, dtype=torch.float32)),
    ),
    "channels last 64x256x56x56": Case(
        lambda x, y: (x + y).relu(),
        lambda: (_normal(64, 256, 56, 56).to(memory_format=torch.channels_last), _normal(64, 256, 56, 56)),
    ),
    "column sum 65536x1024": Case(lambda x: x.sum(0), lambda: (_normal(65536, 1024),)),
    "column sum 65536x768 f32": Case(lambda x: x.sum(0), lambda: (_normal(65536, 768, dtype=torch.float32),)),
    "column sum 1048576x100": Case(lambda x: x.sum(0), lambda: (_normal(1 << 20, 100),)),
    "row sum 65536x1024": Case(lambda x: x.sum(1), lambda: (_normal(65536, 1024),)),
    "row sum 16x8388608": Case(lambda x: x.sum(1), lambda: (_normal(16, 1 << 23),)),
    "full sum 2^28": Case(lambda x: x.sum(), lambda: (_normal(1 << 28),)),
    "full argmax 2^26": Case(lambda x: x.argmax(), lambda: (_normal(1 << 26),)),
    "batch statistics 64x256x56x56": Case(
        lambda x: torch.var_mean(x.float(), (0, 2, 3)), lambda: (_normal(64, 256, 56, 56),)
    ),
    "vector norm over columns 64x56x56x80": Case(
        lambda x: torch.linalg.vector_norm(x, 2, (1, 2)), lambda: (_normal(64, 56, 56, 640),)
    ),
    "cross entropy 4096x128256": Case(lambda x, y: F.cross_entropy(x.float(), y), _labels(4096, 128256)),
    "cross entropy backward": Case(
        lambda x, y: F.cross_entropy(x.float(), y), _labels(4096, 128256, True), grad=True
    ),
    "layer norm backward 65536x1024": Case(layer_norm, _norm_inputs(65536, 1024), grad=True),
    "RMS norm backward 16384x4096": Case(
        rms_norm, lambda: (_normal(16384, 4096, grad=True), _normal(4096, grad=True)), grad=True
    ),
    "embedding backward 32768 of 50304x1024": Case(
        lambda w, i: F.embedding(i, w),
        lambda: (_normal(50304, 1024, grad=True), torch.randint(0, 50304, (32768,), device="cuda")),
        grad=True,
        bytes=-50304 * 2048,  # the table is not read
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """Medians of a run: milliseconds on the device, microseconds on the host; ``queued``: no call waited for the host."""

    ms: float
    host_us: float
    queued: bool


class Clock:
    """Times calls on a device that is never idle between their kernels."""

    def __init__(self) -> None:
        self.cold = torch.zeros(FLUSHED // 4, device="cuda", dtype=torch.int32)

    def time(self, call: Callable[[], Any], calls: int) -> Taken:
        """The medians of a number of calls, queued behind a sleep that is longer than the queueing."""
        sleep = 0.002
        while True:
            taken = self._run(call, calls, sleep)
            if taken.queued or sleep >= LONGEST:
                return taken
            sleep = min(2 * sleep, LONGEST)

    def _run(self, call: Callable[[], Any], calls: int, sleep: float) -> Taken:
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)
        ]
        host: list[float] = []
        torch.cuda.synchronize()
        torch.cuda._sleep(int(sleep * CYCLES))
        for start, stop in events:
            self.cold.max()
            start.record()
            began = time.perf_counter()
            call()
            host.append(time.perf_counter() - began)
            stop.record()
        queued = not events[0][0].query()
        torch.cuda.synchronize()
        device = statistics.median(start.elapsed_time(stop) for start, stop in events)
        return Taken(device, statistics.median(host) * 1e6, queued)


def bandwidth(clock: Clock) -> float:
    """Bytes a second of a copy, read and written."""
    x = torch.empty(1 << 29, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    clock.time(lambda: y.copy_(x), 3)
    return 2 * x.nbytes / (clock.time(lambda: y.copy_(x), 15).ms * 1e-3)


def prepared(case: Case, impl: str) -> tuple[Callable[[], Any], int]:
    """A function of no arguments that does the case once, and the least bytes that it moves."""
    torch.manual_seed(0)
    inputs = case.make()
    fn = compiled(impl, case.fn)
    if not case.grad:
        with torch.no_grad():
            results = _tensors(fn(*inputs))
        moved = sum(t.nbytes for t in (*inputs, *results))

        def forward() -> list[torch.Tensor]:
            with torch.no_grad():
                return _tensors(fn(*inputs))

        return forward, moved + case.bytes
    result = fn(*inputs)
    wanted = [t for t in inputs if t.requires_grad]
    gradient = torch.randn_like(result)
    moved = sum(t.nbytes for t in (*inputs, *wanted, gradient)) + case.bytes
    return lambda: list(torch.autograd.grad(result, wanted, gradient, retain_graph=True)), moved


def _tensors(found: Any) -> list[torch.Tensor]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest distance from eager's numbers, as a part of the largest of these."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        scale = b.double().abs().max().clamp_min(1e-30)
        worst = max(worst, float((a.double() - b.double()).abs().max() / scale))
    return worst


def measure(name: str, impls: tuple[str, ...], copy: float, clock: Clock) -> list[dict[str, Any]]:
    """Milliseconds and share of the copy bandwidth of one case: a row for each implementation."""
    case = CASES[name]
    rows: dict[str, dict[str, Any]] = {impl: {"case": name, "impl": impl, "copy": copy} for impl in impls}
    calls: dict[str, Callable[[], Any]] = {}
    results: list[torch.Tensor] = []
    for impl in impls:
        torch._dynamo.reset()
        start = time.perf_counter()
        try:
            with trace.collect() as events:
                call, moved = prepared(case, impl)
                found = call()
            torch.cuda.synchronize()
        except Exception as error:
            rows[impl]["failed"] = f"{type(error).__name__}: {error}"[:400]
            continue
        calls[impl] = call
        kernels = [k for kind, p in events if kind == "compiled" for k in p.kernels]  # type: ignore[attr-defined]
        rows[impl].update(bytes=moved, first_s=time.perf_counter() - start, kernels=kernels)
        if impl == "eager":
            results = found
        elif results and "dropout" not in name:
            rows[impl]["difference"] = difference(found, results)
    first = {i: clock.time(call, 3) for i, call in calls.items()}
    repeats = {i: max(2, min(CALLS, int(RUN_MS / taken.ms))) for i, taken in first.items()}
    runs: dict[str, list[Taken]] = {impl: [] for impl in calls}
    for _ in range(ROUNDS):
        for impl, call in calls.items():
            runs[impl].append(clock.time(call, repeats[impl]))
    for impl, found_runs in runs.items():
        ms = statistics.median(run.ms for run in found_runs)
        host_us = statistics.median(run.host_us for run in found_runs)
        rows[impl].update(
            ms=ms,
            host_us=host_us,
            queued=all(run.queued for run in found_runs),
            share=rows[impl]["bytes"] / (ms * 1e-3) / copy,
        )
    return list(rows.values())


def run_kernels(
    impls: tuple[str, ...], wanted: tuple[str, ...], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The rows of each case whose name holds one of the wanted words (none: of all)."""
    clock = Clock()
    copy = bandwidth(clock)
    say(f"copy: {copy / 1e9:.0f} GB/s")
    rows = []
    for name in CASES:
        if wanted and not any(word in name for word in wanted):
            continue
        here = measure(name, impls, copy, clock)
        torch.cuda.empty_cache()
        say(
            f"{name}: "
            + ", ".join(
                f"{r['impl']} {100 * r['share']:.0f}" if "share" in r else f"{r['impl']} failed" for r in here
            )
        )
        rows += here
    return rows
