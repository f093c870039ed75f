"""One implementation in one process, told by its parent what to do: ``python -m benchmarks.worker eager 5 6``.

Reads one JSON command a line from one descriptor and answers one JSON line on the other; standard output stays
free for what libraries print. A command that fails answers with the error, and the worker goes on.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from benchmarks import accuracy, cliffs, operators, optimizer, overhead, zoo
from braze.inspect.memory import peak_bytes
from braze.runtime.memory.arena import clear_arenas


class Worker:
    """A model, and the callable that the implementation makes of it."""

    def __init__(self, impl: str) -> None:
        self.impl = impl
        self.model: nn.Module | None = None
        self.inputs: dict[str, Any] = {}
        self.call: Callable[..., Any] | None = None
        self.training = False
        self.autocast = False

    def load(self, model: str, phase: str = "inference") -> dict[str, Any]:
        """Build a model and call it once in eager mode, so that nothing later pays for lazy set-up.

        In phase "training" it is in train mode, with all dropout at 0, so that results can be compared; in phase
        "autocast" its forward is in bfloat16 besides.
        """
        self.model = self.call = None
        gc.collect()
        reset(self.impl)
        self.model, self.inputs = zoo.find(model).make()
        self.training = phase != "inference"
        self.autocast = phase == "autocast"
        if self.training:
            zoo.without_dropout(self.model.train())
        self.run(self.model)
        return {"parameters": sum(p.numel() for p in self.model.parameters())}

    def run(self, call: Callable[..., Any]) -> None:
        """One inference, or one forward and backward from empty gradients."""
        assert self.model is not None
        if not self.training:
            with torch.no_grad():
                call(**self.inputs)
            return
        self.model.zero_grad(set_to_none=True)
        self.loss(call, self.inputs).backward()

    def loss(self, call: Callable[..., Any], inputs: dict[str, Any], cast: bool = True) -> torch.Tensor:
        """The loss of one forward, under autocast if that is measured."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast and cast):
            found = call(**inputs)
        return loss_of(found)

    def compile(
        self, backend: str | None = None, dynamic: bool | None = None, budget: float | None = None
    ) -> dict[str, Any]:
        """Compile; seconds of the first call less those of a later one, number of graphs and of breaks.

        With backend "eager", of inference, less those that the graphs took in the first call itself: where capture takes less than
        the model, the difference of two calls would say little of it. ``cpu_seconds`` is the same in time of the processor, which says more where others use the machine.
        ``simulated_bytes``: the largest peak of forward and backward of a graph that a memory budget was judged by.
        """
        assert self.model is not None
        counts = Counts(self.impl)
        with counts:
            start, cpu_start = time.perf_counter(), time.process_time()
            options = {"memory_budget": budget} if budget is not None else OPTIONS.get(self.impl, {})
            clock = Clocked() if backend == "eager" and not self.training else None
            self.call = compiled(self.impl, self.model, clock or backend, dynamic, options)
            self.run(self.call)
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        if clock is not None:
            later, cpu_later = clock.seconds, clock.cpu_seconds
        else:
            cpu_start = time.process_time()
            later = statistics.median(self.time(5)["seconds"])
            cpu_later = (time.process_time() - cpu_start) / 5
        return {
            "seconds": max(0.0, seconds - later),
            "cpu_seconds": max(0.0, cpu_seconds - cpu_later),
            "graphs": counts.graphs,
            "breaks": counts.breaks,
            "stages": counts.stages,
            "simulated_bytes": max(counts.peaks, default=0),
        }

    def check(self) -> dict[str, Any]:
        """Error against a float64 run of the same model: ours, and eager's; of outputs, or of loss and gradients."""
        assert self.model is not None and self.call is not None
        if self.impl == "eager":
            return {}
        double = copy.deepcopy(self.model).double()
        if not self.training:
            exact = self.results(double, double, as_double(self.inputs))
            ours, eager = (self.results(call, self.model, self.inputs) for call in (self.call, self.model))
            return {"error": error(ours, exact), "eager_error": error(eager, exact), "outputs": len(ours)}
        names = ["loss", *(name for name, _ in self.model.named_parameters())]
        ours: list[list[float]] = []
        eagers: list[list[float]] = []
        while not accuracy.enough(self.inputs, ours, eagers):
            inputs = accuracy.inputs_of(self.inputs, len(ours))
            exact = self.results(double, double, as_double(inputs))
            for call, into in ((self.call, ours), (self.model, eagers)):
                into.append(accuracy.errors(self.results(call, self.model, inputs), exact, self.autocast))
        return accuracy.compared(ours, eagers, names)

    def results(
        self, call: Callable[..., Any], model: nn.Module, inputs: dict[str, Any]
    ) -> list[torch.Tensor]:
        """The floating-point outputs of a call; in training the loss, then the gradient of each parameter."""
        if not self.training:
            with torch.no_grad():
                return list(tensors(call(**inputs)))
        state = copy.deepcopy(model.state_dict())
        model.zero_grad(set_to_none=True)
        exact = next(model.parameters()).dtype is torch.float64
        loss = self.loss(call, inputs, cast=not exact)
        loss.backward()
        model.load_state_dict(state)
        found = [loss.detach()]
        found += [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        return found

    def time(self, calls: int) -> dict[str, Any]:
        """Seconds of each of some calls."""
        assert self.call is not None
        spent = []
        for _ in range(calls):
            start = time.perf_counter()
            self.run(self.call)
            spent.append(time.perf_counter() - start)
        return {"seconds": spent}

    def peak(self) -> dict[str, Any]:
        """Peak bytes of one step from empty gradients, and of the parameters beside them.

        What braze keeps between calls is let go of before, so that all that a step takes counts.
        """
        assert self.model is not None and self.call is not None
        call, model = self.call, self.model
        self.run(call)
        model.zero_grad(set_to_none=True)
        clear_arenas()
        bytes = peak_bytes(lambda: self.run(call))
        return {"peak_bytes": bytes, "parameter_bytes": sum(p.nbytes for p in model.parameters())}

    def reset(self) -> dict[str, Any]:
        """Forget what was compiled."""
        self.call = None
        reset(self.impl)
        return {}

    def overhead(self, case: str) -> dict[str, Any]:
        """Prepare a small function; the answer is what one warm call takes, and what its guard walk takes."""
        self.loop, walk = overhead.prepare(self.impl, case, compiled)
        return {"seconds": self.loop(200), "walk": walk}

    def optimizer(self, case: str) -> dict[str, Any]:
        """Prepare an optimizer; the answer is what its first step took, and what the bytes moved take at least."""
        self.loop, first, floor = optimizer.prepare(self.impl, case)
        return {"first_seconds": first, "floor_seconds": floor}

    def operator(self, **what: Any) -> dict[str, Any]:
        """One operator of PyTorch's at one size, beside eager in this same process."""
        return operators.measure(**what)

    def cliff(self, **what: Any) -> dict[str, Any]:
        """One small program on a device, beside eager in this same process."""
        if what["device"] == "cpu":
            torch.set_num_threads(1)  # of this process, which has no other work
        return cliffs.measure(compiled, **what)

    def loops(self, calls: int) -> dict[str, Any]:
        """Seconds per call of the prepared small function."""
        return {"seconds": self.loop(calls)}


class Clocked:
    """A backend that runs captured graphs as they are, and adds up how long that takes."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        forward = gm.forward  # writing it is part of the capture

        def run(*args: Any) -> Any:
            start, cpu_start = time.perf_counter(), time.process_time()
            try:
                return forward(*args)
            finally:
                self.seconds += time.perf_counter() - start
                self.cpu_seconds += time.process_time() - cpu_start

        return run


#: of implementations whose kernels are chosen by time, as "torch-tuned"
TUNED_MODE = "max-autotune-no-cudagraphs"
#: what implementations set that are braze otherwise
OPTIONS: dict[str, dict[str, Any]] = {"whole": {"chunk_losses": False}}


def compiled(
    impl: str,
    model: Callable[..., Any],
    backend: str | Callable[..., Any] | None = None,
    dynamic: bool | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """What each implementation makes of a callable; ``options`` are braze's."""
    if impl == "eager":
        return model
    mode = TUNED_MODE if impl.endswith("-tuned") else None
    if _is_torch(impl):
        return torch.compile(model, backend=backend or "inductor", dynamic=dynamic, mode=mode)
    import braze

    return braze.compile(
        model, backend=backend or "braze", dynamic=dynamic, mode=mode, options=options or None
    )


def _is_torch(impl: str) -> bool:
    return impl.partition("-")[0] == "torch"


def _is_braze(impl: str) -> bool:
    return impl.partition("-")[0] in ("braze", "whole")


def reset(impl: str) -> None:
    """Forget compiled code in this process."""
    if _is_torch(impl):
        torch.compiler.reset()
    elif _is_braze(impl):
        import braze

        braze.reset()


class Counts:
    """Graphs and breaks of what is compiled inside the block."""

    def __init__(self, impl: str) -> None:
        self.impl = impl
        self.graphs = 1 if impl == "eager" else 0
        self.breaks = 0
        self.stages: dict[str, float] = {}
        #: simulated peaks of the graphs that are trained
        self.peaks: list[float] = []

    def __enter__(self) -> None:
        if _is_braze(self.impl):
            from braze.support import trace

            self.before = trace.snapshot()
            self.collecting = trace.collect()
            self.events = self.collecting.__enter__()

    def __exit__(self, *exc: object) -> None:
        if _is_braze(self.impl):
            from braze.inspect.explain import gather
            from braze.support import trace

            self.collecting.__exit__(None, None, None)
            after = trace.snapshot()
            found = gather("", self.events, after[0] - self.before[0], after[1] - self.before[1])
            self.graphs, self.breaks, self.stages = len(found.graphs), len(found.breaks), dict(found.seconds)
            self.peaks = [float(str(payload)) for kind, payload in self.events if kind == "peak"]
        elif _is_torch(self.impl):
            from torch._dynamo.utils import counters

            self.graphs = counters["stats"]["unique_graphs"]
            self.breaks = sum(counters["graph_break"].values())


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors of an output, in order."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def loss_of(outputs: Any) -> torch.Tensor:
    """One number of the first floating-point output: logits, or hidden states; a loss as it is."""
    first = next(tensors(outputs if not hasattr(outputs, "to_tuple") else outputs.to_tuple()))
    if first.dtype is torch.bfloat16:
        first = first.float()
    if first.dim() == 0:
        return first
    weights = torch.linspace(-1, 1, first.shape[-1], dtype=first.dtype, device=first.device)
    return (first * weights).tanh().square().mean()


def as_double(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs with floating-point tensors in float64."""
    return {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The largest root-mean-square difference of an output, relative to that output's own."""
    return float("inf") if len(found) != len(exact) else max(accuracy.errors(found, exact), default=0.0)


def main() -> None:
    impl, read, write = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    worker = Worker(impl)
    with os.fdopen(read) as commands, os.fdopen(write, "w") as answers:
        for line in commands:
            command = json.loads(line)
            name = command.pop("do")
            try:
                answer = getattr(worker, name)(**command)
            except Exception as failure:
                answer = {
                    "failed": f"{type(failure).__name__}: {failure}"[:2000],
                    "where": traceback.format_exc()[-4000:],
                }
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
