"""Models on a GPU: ``python -m benchmarks models --device cuda --phase training --models bert,nanogpt --limit 200``.

Inference in bfloat16, training as forward and backward from empty gradients under bfloat16 autocast; all implementations in one process on one
model, rounds interleaved, medians of the time by the clock for a run of calls with the device's work. Of each: seconds of the first call,
peak bytes of a call beside the model, errors of inference against float32, kernels by time on the device in one profiled call.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import braze
from benchmarks.gpu_zoo import MODELS, TRAINED
from benchmarks.profiled import profiled
from benchmarks.worker import Counts, compiled, error, loss_of, tensors
from braze.cli.torchvision_ops import make_torchvision_importable

#: rounds, and seconds that a run of each implementation in a round should take
ROUNDS, RUN_S = 7, 0.08

Row = dict[str, Any]
Inputs = dict[str, Any]


def run_gpu_models(
    impls: tuple[str, ...],
    models: tuple[str, ...],
    training: bool,
    limit: float,
    say: Callable[[str], None],
    keep: Callable[[list[Row]], None],
) -> list[Row]:
    """A row for each implementation of each model, kept after each model: a run that is ended has what it has measured.

    ``limit``: seconds after which no model is begun (0: none).
    """
    make_torchvision_importable()
    ends = time.monotonic() + limit if limit else float("inf")
    rows: list[Row] = []
    for name in models or (TRAINED if training else tuple(MODELS)):
        found = [{"model": name, "impl": impl} for impl in impls]
        rows += found
        if time.monotonic() > ends:
            for row in found:
                row["failed"] = "not begun: no time is left"
            continue
        _measure(name, found, training)
        said = (f"{row['impl']} {row.get('milliseconds', float('nan')):.2f}" for row in found)
        say(f"{name}: " + ", ".join(said))
        keep(rows)
        torch.compiler.reset()
        braze.reset()
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def _measure(name: str, rows: list[Row], training: bool) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model, inputs = MODELS[name]()
    model = model.cuda().train(training)
    exact = None
    if not training:
        model = model.bfloat16()
        inputs = {key: v.bfloat16() if v.is_floating_point() else v for key, v in inputs.items()}
        exact = _exact(model, inputs)
    calls: dict[str, Callable[[], Any]] = {}
    for row in rows:
        try:
            fn = compiled(row["impl"], model)
            calls[row["impl"]] = _call(fn, model, inputs, training)
            _first(calls[row["impl"]], row, exact)
        except Exception as failure:  # one implementation's failure is a row of the table
            row["failed"] = f"{type(failure).__name__}: {failure}"[:500]
            calls.pop(row["impl"], None)
    times = _times(calls)
    for row in rows:
        if row["impl"] in calls:
            row["rounds_ms"] = times[row["impl"]]
            row["milliseconds"] = statistics.median(times[row["impl"]])
            row.update(profiled(calls[row["impl"]]))
    model.zero_grad(set_to_none=True)


def _call(fn: Callable[..., Any], model: nn.Module, inputs: Inputs, training: bool) -> Callable[[], Any]:
    def infer() -> Any:
        with torch.no_grad():
            return fn(**inputs)

    def step() -> Any:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            outputs = fn(**inputs)
        loss = loss_of(outputs)
        loss.backward()
        return loss.detach()

    return step if training else infer


def _exact(model: nn.Module, inputs: Inputs) -> list[torch.Tensor]:
    """The outputs in float32, of the same weights."""
    wide = {key: v.float() if v.is_floating_point() else v for key, v in inputs.items()}
    with torch.no_grad():
        return [t.clone() for t in tensors(copy.deepcopy(model).float()(**wide))]


def _first(call: Callable[[], Any], row: Row, exact: list[torch.Tensor] | None) -> None:
    """The first call and a later one: seconds, graphs and breaks, error or loss, and the peak of a call."""
    torch.cuda.synchronize()
    counts = Counts(row["impl"])
    start = time.perf_counter()
    with counts:
        found = call()
        torch.cuda.synchronize()
    row |= {"compile_seconds": time.perf_counter() - start, "graphs": counts.graphs, "breaks": counts.breaks}
    row["stages"] = counts.stages
    if exact is None:
        row["loss"] = float(found)
    else:
        row["error"] = error([t.float() for t in tensors(found)], exact)
    del found
    call()
    gc.collect()
    torch.cuda.synchronize()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    row["peak_bytes"] = torch.cuda.max_memory_allocated() - base


def _times(calls: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Milliseconds of a call in each round, all implementations in turn."""
    many = {impl: max(2, round(RUN_S / max(_seconds(call, 2), 1e-6))) for impl, call in calls.items()}
    times: dict[str, list[float]] = {impl: [] for impl in calls}
    for _ in range(ROUNDS):
        for impl, call in calls.items():
            times[impl].append(_seconds(call, many[impl]) * 1e3)
    return times


def _seconds(call: Callable[[], Any], times: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times
