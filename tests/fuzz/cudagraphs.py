"""Programs of calls that are recorded, on a simulated device or with ``--device cuda`` on a GPU: whatever is kept, changed, fed back, trained, moved or called from threads, they are as eager.

The functions are few and compiled once in a process; each program begins without recordings, and with state of its own. Results stay
small, however often they are fed back: the sine of a large number would tell one rounding from another. Random
numbers are compared with those of the same function compiled without recordings.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import braze
from braze.cudagraphs import recorded
from braze.cudagraphs.device import Costs
from braze.cudagraphs.registry import device_of, records, register
from braze.cudagraphs.simulated import SimulatedGraphs
from tests.fuzz.machine import Finding, Machine
from tests.fuzz.minimise import shorter
from tests.fuzz.tensors.generate import DEVICE

Step = tuple[str, int, int, int, int]

#: how recordings are limited
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"cudagraph_sizes": 1, "cudagraph_memory": 4096.0},
    {"cudagraph_sizes": [2, 4]},
    {"cudagraph_sizes": [2, 4]},
)
#: that of them under which rows are marked as independent, so that calls of those that are so are filled up
MARKED = 3
#: on a GPU: PyTorch gives a pool 2 MB at once
GPU_MEMORY = float(16 << 20)
#: kernels are told where inputs lie, however little lies there
TOLD = Costs(0.0, 0.0, 0.0)
#: the same numbers in memory of their own: in rows, in columns, beside others, behind others
LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.clone(),
    lambda x: x.t().clone(memory_format=torch.contiguous_format).t(),
    lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    lambda x: torch.cat([x[:1], x])[1:],
)
WIDTH = 4


@torch.library.custom_op("braze_fuzz::outside", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def outside(x: torch.Tensor) -> torch.Tensor:
    """What no recording can hold."""
    return x * 0.5


@outside.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class State:
    """What functions keep: a parameter and a cache, which programs change and functions write."""

    def __init__(self, device: str) -> None:
        weight = torch.linspace(-1, 1, WIDTH * WIDTH, device=device).reshape(WIDTH, WIDTH)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.cache = torch.zeros(3, WIDTH, device=device)
        self.trained = torch.nn.Parameter(weight * 0.5)


def several(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Outputs of which some share memory."""
    z = (x @ state.weight).tanh()
    return z, z[:1], ((x + y) * 0.25).t(), z.sum(0)


def written(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """A cache that is written in part and read."""
    state.cache[1] = x.sum(0)
    return (state.cache @ state.weight).tanh(), (x * y).sin()


def returned(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Inputs, a view of one, and the parameter among the outputs."""
    return x, y[:1], state.weight, torch.sin(x) + state.weight[0]


def in_place(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """An input is changed, which another may see."""
    x.mul_(0.5)
    return (x + y) * 0.25, y.sum()


def broken(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Two graphs, of which the second reads the first."""
    z = torch.tanh(x @ state.weight)
    braze.graph_break()
    return z, z * y * 0.5 + 1


def cut(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """One graph in parts, of which two are recorded."""
    z = torch.tanh(x @ state.weight)
    w = outside(z + y)
    return z, (w @ state.weight).tanh(), w


def cut_and_written(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """A cut between a write and what reads it."""
    state.cache[0] = x.sum(0)
    z = outside(x * y)
    state.cache[2] = z.sum(0)
    return (state.cache @ state.weight).tanh(), z.sin().relu()


def tables(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """What depends on the parameter alone is computed once."""
    return (x @ (state.weight.t() @ state.weight).softmax(-1) + y) * 0.2


def drawn(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Random numbers, which follow the seed."""
    return x * 0.5 + torch.nn.functional.dropout(torch.ones_like(y), 0.5)


def layered(state: State, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Two layers with a parameter that is trained, and beside their result one of the parameter alone."""
    z = torch.tanh(x @ state.trained)
    return torch.sigmoid(z @ state.trained.t()) * z.exp() + y * 0.5, state.trained.square().mean()


FUNCTIONS = (several, written, returned, in_place, broken, cut, cut_and_written, tables, drawn, layered)


def place() -> str:
    """The device on which programs run."""
    return os.environ.get(DEVICE, "cpu")


@functools.cache
def compiled(option: int) -> tuple[Callable[..., Any], ...]:
    """The functions with recordings; option -1: without."""
    if not records(place()):
        register("cpu", SimulatedGraphs)
    given = {"recompile_limit": 64, "verify": 0}
    if option >= 0:
        given |= {"cudagraphs": True, "cudagraph_launches": 1, **OPTIONS[option]}
    if place() == "cuda" and "cudagraph_memory" in given:
        given["cudagraph_memory"] = GPU_MEMORY
    return tuple(braze.compile(f, dynamic=True, options=given) for f in FUNCTIONS)


def forget_recordings() -> None:
    """Let go of all recordings of this process."""
    for each in list(recorded._live):
        for group in each.sizes.groups.values():
            for tree in {id(r.tree): r.tree for r in group.recordings}.values():
                recorded.release(group, tree)
                if not tree.groups() or not any(g.recordings for g in tree.groups()):
                    each.forest.remove(tree)
        each.sizes.groups.clear()


class Run:
    """One side of a comparison: its functions, and what the program holds."""

    def __init__(
        self,
        functions: Sequence[Callable[..., Any]],
        chosen: Iterable[int],
        device: str = "cpu",
        *,
        marked: bool = False,
    ) -> None:
        self.marked = marked
        self.functions = [functions[i] for i in sorted(chosen)]
        self.layered = functions[FUNCTIONS.index(layered)]
        self.state = State(device)
        self.held: list[torch.Tensor] = []
        #: inputs and results of forwards that wait for their backward
        self.waiting: list[tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]] = []

    def step(self, step: Step, numbers: torch.Tensor) -> list[torch.Tensor]:
        """One statement of a program; copies of what it gives."""
        kind, a, b, _, layout = step
        if kind == "call":
            x = LAYOUTS[layout](numbers)
            y = x if b % 5 == 0 else x.flip(0) if b % 5 == 1 else numbers.clone()
            return self._keep(self._called(a, x, y), b)
        if kind == "feed" and self.held:
            x = self.held[b % len(self.held)]
            if x.dim() == 2 and x.shape[1] == WIDTH and 1 <= x.shape[0] <= 4:
                y = x if a % 3 else x.clone()
                return self._keep(self._called(a, x, y), a)
        if kind == "forward":
            x = LAYOUTS[layout](numbers).requires_grad_()
            with torch.enable_grad():
                results = self.layered(self.state, x, numbers.clone())
            self.waiting = [*self.waiting, (x, results)][-3:]
            return [z.detach().clone() for z in results]
        if kind == "backward" and self.waiting:
            x, results = self.waiting.pop(b % len(self.waiting))
            which = (results[:1], results[1:], results)[b // 4 % 3]
            torch.autograd.backward(which, [torch.full_like(z, (a - 4) * 0.1) for z in which])
            found = [] if x.grad is None else [x.grad]
            self.held = [*self.held, *(found if b & 1 else [])][-6:]
            if b & 2:
                self.state.trained.data.sub_(self.state.trained.grad, alpha=0.01)
            return [grad.clone() for grad in (*found, self.state.trained.grad)]
        if kind == "zero":
            self.state.trained.grad = None
        if kind == "change" and self.held:
            self.held[b % len(self.held)].mul_(-0.5).add_(a * 0.1)
        if kind == "drop" and self.held:
            del self.held[b % len(self.held) :: 2]
        if kind == "move":
            self.state.weight.data = self.state.weight.data * 0.9
        if kind == "parameter":
            self.state.weight.data[a % WIDTH].mul_(-0.5).add_(0.25)
        if kind == "cache":
            self.state.cache = numbers[:1].expand(3, WIDTH).clone()
        return []

    def _called(self, which: int, x: torch.Tensor, y: torch.Tensor) -> Any:
        if self.marked and not isinstance(x, torch.nn.Parameter):  # whose size is fixed, and y's by it
            braze.mark_batch(x, 0)
            braze.mark_batch(y, 0)
        return self.functions[which % len(self.functions)](self.state, x, y)

    def _keep(self, outputs: Any, which: int) -> list[torch.Tensor]:
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        self.held += [x for i, x in enumerate(outputs) if which >> i & 1]
        self.held = self.held[-6:]
        return [x.clone() for x in outputs]


@dataclass(frozen=True)
class Calls:
    """``steps`` over ``chosen`` functions, in each of ``threads`` threads, recorded with options ``option``."""

    seed: int
    option: int
    chosen: tuple[int, ...]
    steps: tuple[Step, ...]
    threads: int = 1

    def source(self) -> str:
        return f"from tests.fuzz import cudagraphs\n\n\ndef check():\n    return cudagraphs.check(cudagraphs.{self})\n"

    def smaller(self) -> Iterator[Calls]:
        for steps in shorter(self.steps):
            yield replace(self, steps=steps)
        if len(self.chosen) > 1:
            for chosen in shorter(self.chosen):
                if chosen:
                    yield replace(self, chosen=chosen)
        if self.threads > 1:
            yield replace(self, threads=self.threads - 1)
        if self.option:
            yield replace(self, option=0)

    def tags(self) -> tuple[str, ...]:
        found = ["threads"] if self.threads > 1 else []
        kinds = {step[0] for step in self.steps}
        found += [
            name
            for name, kind in (("outputs fed back", "feed"), ("outputs changed", "change"))
            if kind in kinds
        ]
        named = {FUNCTIONS[i] for i in self.chosen}
        found += ["trained"] if "backward" in kinds else []
        found += ["marked rows"] if self.option == MARKED else []
        found += ["cut graphs"] if named & {cut, cut_and_written} else []
        found += ["inputs written"] if named & {written, in_place, cut_and_written} else []
        return tuple(found)


KINDS = (
    *("call",) * 6,
    *("feed",) * 3,
    *("forward", "backward") * 2,
    *("zero", "change", "drop", "move", "parameter", "cache"),
)


def generate(seed: int) -> Calls:
    """A program of 8 to 50 statements over one to three functions, so that each is called often."""
    rng = random.Random(seed)
    threads = rng.choice((1,) * 8 + (2, 3))
    # one generator serves all threads, so they draw no numbers
    known = [i for i, f in enumerate(FUNCTIONS) if threads == 1 or f is not drawn]
    chosen = tuple(sorted(rng.sample(known, rng.randint(1, 3))))
    layout, rows = rng.randrange(len(LAYOUTS)), rng.sample((1, 2, 3, 4), 2)
    steps = tuple(
        (
            rng.choice(KINDS),
            rng.randrange(12),
            rng.randrange(16),
            rng.choice(rows),
            rng.choice((layout, layout, rng.randrange(len(LAYOUTS)))),
        )
        for _ in range(rng.randint(8, 50))
    )
    option = rng.choice((0, 0, 0, 1, 2))
    return Calls(seed, MARKED if option == 2 and rng.random() < 0.5 else option, chosen, steps, threads)


def check(program: Calls) -> Finding | None:
    """Run a program in eager and recorded, statement by statement."""
    torch.manual_seed(program.seed)
    functions, plain = compiled(program.option), compiled(-1)
    forget_recordings()
    if place() == "cuda":
        recorder = device_of("cuda:0")
        recorder.costs = TOLD if program.seed % 2 else type(recorder).costs
    if program.threads == 1:
        return _difference(program, functions, plain, 0)
    found: list[Finding | None] = []

    def run(number: int) -> None:
        try:
            with _on_stream(number if program.seed % 2 else 0):
                found.append(_difference(program, functions, plain, number))
        except BaseException as error:
            found.append(Finding("raised", f"{type(error).__name__}: {error}"))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(program.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return next((each for each in found if each is not None), None)


def _on_stream(number: int) -> contextlib.AbstractContextManager[Any]:
    """A block of this thread's calls on a stream of its own; 0: on the one of all."""
    if place() == "cuda":
        return torch.cuda.stream(torch.cuda.Stream()) if number else contextlib.nullcontext()
    simulated = device_of("cpu")
    assert isinstance(simulated, SimulatedGraphs)
    return simulated.on(number)


def _difference(program: Calls, functions: Any, plain: Any, thread: int) -> Finding | None:
    # whatever draws is compared with its like, which draws the same numbers
    wanted = tuple(p if f is drawn else f for f, p in zip(FUNCTIONS, plain, strict=True))
    theirs = Run(wanted, program.chosen, place())
    ours = Run(functions, program.chosen, place(), marked=program.option == MARKED)
    generator = torch.Generator().manual_seed(program.seed + thread)
    with torch.no_grad():
        for number, step in enumerate(program.steps):
            x = torch.randn(step[3], WIDTH, generator=generator).to(place())
            made: list[Any] = []
            for run in (theirs, ours):
                if program.threads == 1:
                    torch.manual_seed(number)
                try:
                    made.append(run.step(step, x))
                except Exception as error:
                    made.append(f"{type(error).__name__}: {error}")
            wrong = _unlike(made[1], made[0]) or _unlike(ours.held, theirs.held)
            wrong = wrong or _unlike([ours.state.cache], [theirs.state.cache])
            if wrong:
                return Finding("differs", f"after statement {number} ({step[0]}): {wrong}")
    return None


def _unlike(ours: Any, theirs: Any) -> str:
    """What differs between two lists of tensors; or between errors."""
    if isinstance(ours, str) or isinstance(theirs, str):
        return "" if type(ours) is type(theirs) else f"{str(ours)[:200]} for {str(theirs)[:200]}"
    if len(ours) != len(theirs):
        return f"{len(ours)} tensors for {len(theirs)}"
    for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if _layout(a) != _layout(b):
            return f"tensor {k} is {_layout(a)} for {_layout(b)}"
        if not torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
            return f"tensor {k} is off by {(a - b).abs().max().item()}"
    return ""


def _layout(x: torch.Tensor) -> tuple[Any, ...]:
    """Type, sizes and strides, but those that lead nowhere."""
    return x.dtype, tuple(x.shape), tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)


MACHINE = Machine(generate, check)
