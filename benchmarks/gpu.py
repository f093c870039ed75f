"""Models on a GPU, run by hand: ``python -m benchmarks.gpu --out file.json``.

BERT-base and ResNet-50 in bf16, eager beside torch.compile beside braze in one process, rounds interleaved, CUDA
events, medians; errors against float64. Prints a row a model and writes JSON with versions.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import braze
from benchmarks.worker import error, loss_of, tensors
from braze.support import trace

ROUNDS, CALLS = 11, 10


def bert() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """BERT-base with random weights, 16 sentences of 128 tokens."""
    return transformers.BertModel(transformers.BertConfig()), {
        "input_ids": torch.randint(0, 30000, (16, 128))
    }


def resnet() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """ResNet-50 with random weights, 32 pictures."""
    return transformers.ResNetModel(transformers.ResNetConfig()), {
        "pixel_values": torch.randn(32, 3, 224, 224)
    }


def milliseconds(call: Callable[[], Any]) -> float:
    """One call's share of a run of calls."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(CALLS):
        call()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / CALLS


def step(fn: Callable[..., Any], model: torch.nn.Module, inputs: dict[str, Any]) -> list[torch.Tensor]:
    """Forward and backward from empty gradients: the loss and all gradients."""
    model.zero_grad(set_to_none=True)
    loss = loss_of(fn(**inputs))
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def measure(build: Callable[[], Any], impls: tuple[str, ...], training: bool = False) -> dict[str, Any]:
    """Errors, first-call seconds and median milliseconds of every implementation of one model."""
    torch.manual_seed(0)
    model, inputs = build()
    model = model.eval().cuda().bfloat16()
    inputs = {k: v.cuda().bfloat16() if v.is_floating_point() else v.cuda() for k, v in inputs.items()}
    exact_inputs = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    double = copy.deepcopy(model).double()
    exact = step(double, double, exact_inputs) if training else list(tensors(double(**exact_inputs)))
    calls: dict[str, Callable[[], Any]] = {}
    row: dict[str, Any] = {"model": build.__name__}
    for impl in impls:
        fn = {"eager": lambda m: m, "torch": torch.compile, "braze": braze.compile}[impl](model)
        if training:
            calls[impl] = lambda fn=fn: step(fn, model, inputs)  # type: ignore[misc]
        else:
            calls[impl] = lambda fn=fn: list(tensors(fn(**inputs)))  # type: ignore[misc]
        start = time.perf_counter()
        with trace.collect() as events:
            found = [t.clone() for t in calls[impl]()]
        torch.cuda.synchronize()
        row[impl] = {"first_s": time.perf_counter() - start, "error": error(found, exact)}
        if impl == "braze":
            row[impl]["graphs"] = sum(kind == "capture" for kind, _ in events)
            row[impl]["breaks"] = sum(kind == "break" for kind, _ in events)
            row[impl]["fallbacks"] = sorted({str(p) for kind, p in events if kind == "fallback"})
            row[impl]["kernels"] = [k for kind, p in events if kind == "compiled" for k in p.kernels]  # type: ignore[attr-defined]
    times: dict[str, list[float]] = {impl: [] for impl in impls}
    for _ in range(ROUNDS):
        for impl in impls:
            times[impl].append(milliseconds(calls[impl]))
    for impl in impls:
        row[impl]["ms"] = statistics.median(times[impl])
    return row


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--impls", default="eager,torch,braze")
    parser.add_argument("--phase", choices=("inference", "training"), default="inference")
    parser.add_argument("--out", default="benchmarks/results/gpu.json")
    arguments = parser.parse_args()
    impls = tuple(arguments.impls.split(","))
    training = arguments.phase == "training"
    with torch.set_grad_enabled(training):
        rows = [measure(build, impls, training) for build in (bert, resnet)]
    head = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": ["python", "-m", "benchmarks.gpu", *sys.argv[1:]],
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "braze": braze.__version__,
    }
    Path(arguments.out).write_text(json.dumps({**head, "rows": rows}, indent=1))
    for row in rows:
        print(row["model"], {i: {k: v for k, v in row[i].items() if k != "kernels"} for i in impls})


if __name__ == "__main__":
    main()
