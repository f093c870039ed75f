"""``braze demo-train``: a small GPT on old books and a small vision model on digits, trained eager and compiled.

Both start from the same weights and see the same batches, step by step in turn. How far two runs drift apart that differ
in nothing but the order of their sums is told by more eager runs, which see the rows of each batch in other orders.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import braze
from braze.cli.demo import SENTENCES
from braze.inspect.memory import peak_bytes
from braze.support.errors import UserError
from braze.support.record import record

Batch = tuple[torch.Tensor, torch.Tensor]
#: eager runs on other orders of the rows
REORDERED = 8
RUNS = ("eager", "compiled", *(f"eager, order {k}" for k in range(1, REORDERED + 1)))
BARS = "▁▂▃▄▅▆▇█"


class Block(nn.Module):
    """Causal attention, then two linear layers, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Bytes to the loss of predicting each next byte."""

    def __init__(self, width: int = 96, layers: int = 3, heads: int = 4, length: int = 64) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.bytes(x) + self.places(torch.arange(x.shape[1]))
        logits = self.head(self.norm(self.blocks(h)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


class Digits(nn.Module):
    """8 x 8 pictures of digits to the loss of naming them."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.SiLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.SiLU(), nn.AvgPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), y)


@record
class Task:
    """What is trained, on what."""

    name: str
    make: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[Batch]]


class Training:
    """One model with its optimizer; ``step`` notes the loss before it."""

    def __init__(self, task: Task, kind: str) -> None:
        torch.manual_seed(0)
        self.model = task.make()
        # the orders are drawn apart from the batches, which are the same for all
        self.orders = torch.Generator().manual_seed(RUNS.index(kind)) if "order" in kind else None
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        compiled = kind == "compiled"
        self.call: Callable[..., torch.Tensor] = braze.compile(self.model) if compiled else self.model
        self.optimizer = braze.compile_optimizer(optimizer) if compiled else optimizer
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, batch: Batch) -> None:
        """One step; times it."""
        x, y = batch
        if self.orders is not None:
            order = torch.randperm(len(x), generator=self.orders)
            x, y = x[order], y[order]
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.call(x, y)
        loss.backward()
        self.optimizer.step()
        self.losses.append(float(loss.detach()))
        self.seconds.append(time.perf_counter() - start)


def run(arguments: argparse.Namespace) -> int:
    """The whole demo; about a minute on two cores."""
    console = Console(highlight=False, soft_wrap=True)
    curves: dict[str, dict[str, list[float]]] = {}
    for task in (Task("GPT on bytes", Gpt, text_batches), Task("digits", Digits, digit_batches)):
        curves[task.name] = train(console, task, arguments.steps)
    if draw(Path(arguments.png), curves):
        console.print(f"loss curves drawn in {arguments.png}")
    return 0


def train(console: Console, task: Task, steps: int) -> dict[str, list[float]]:
    """Train all in turn and print what came of it; the loss curves."""
    runs = {kind: Training(task, kind) for kind in RUNS}
    parameters = sum(p.numel() for p in runs["eager"].model.parameters())
    console.print(f"\n[bold]{task.name}[/], {parameters / 1e3:.0f} k parameters, {steps} steps")
    last: Batch | None = None
    for number, last in enumerate(task.batches(steps)):
        for one in runs.values():
            one.step(last)
        if number == 0:
            console.print(f"  first compiled step {runs['compiled'].seconds[0]:.2f} s")
    assert last is not None
    for kind in RUNS[:2]:
        one = runs[kind]
        speed = 1 / statistics.median(one.seconds[2:] or one.seconds)
        console.print(
            f"  {kind:9} {spark(one.losses)}  {one.losses[0]:.3f} → {one.losses[-1]:.4f}   {speed:6.1f} steps/s"
        )
    ours = furthest(runs["compiled"].losses, runs["eager"].losses)
    eagers = [runs[kind].losses for kind in RUNS if kind != "compiled"]
    others = [furthest(a, b) for a, b in itertools.combinations(eagers, 2)]
    console.print("  largest relative difference of two losses of the same step")
    console.print(f"    compiled and eager: {ours:.1e}")
    console.print(
        f"    two eager runs, the rows of each batch in {len(eagers)} orders: {min(others):.1e} to {max(others):.1e}"
    )
    peaks = {kind: peak_bytes(lambda one=runs[kind]: one.step(last)) / 1e6 for kind in RUNS[:2]}  # type: ignore[misc]
    console.print(
        f"  peak memory of a step: eager {peaks['eager']:.1f} MB, compiled {peaks['compiled']:.1f} MB"
    )
    return {kind: runs[kind].losses[:steps] for kind in RUNS[:3]}


def furthest(losses: list[float], others: list[float]) -> float:
    """The largest relative difference of two curves at one step."""
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def text_batches(steps: int, rows: int = 8, length: int = 64) -> Iterator[Batch]:
    """Windows of the demo's text, and the same one byte on."""
    data = torch.frombuffer(bytearray(SENTENCES.read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(0, len(data) - length - 1, (rows,), generator=generator)
        window = starts[:, None] + torch.arange(length + 1)
        found = data[window]
        yield found[:, :-1].contiguous(), found[:, 1:].contiguous()


def digit_batches(steps: int, rows: int = 64) -> Iterator[Batch]:
    """Scikit-learn's 1,797 digits, in random batches."""
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ModuleNotFoundError as error:
        raise UserError(
            "BZ0008", "the demo needs the package scikit-learn", hints=["pip install 'braze[demo]'"]
        ) from error
    pictures, names = datasets.load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(names)
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        chosen = torch.randint(0, len(x), (rows,), generator=generator)
        yield x[chosen], y[chosen]


#: characters of a curve
WIDTH = 32


def spark(losses: list[float]) -> str:
    """A curve as a line of bars."""
    each = max(1, len(losses) // WIDTH)
    means = [statistics.fmean(losses[i : i + each]) for i in range(0, len(losses), each)]
    low, high = min(means), max(means)
    return "".join(BARS[round((m - low) / ((high - low) or 1) * (len(BARS) - 1))] for m in means)


def draw(path: Path, curves: dict[str, dict[str, list[float]]]) -> bool:
    """The curves as a picture, if matplotlib is there."""
    try:
        matplotlib: Any = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        plots: Any = importlib.import_module("matplotlib.pyplot")
    except ModuleNotFoundError:
        return False
    figure, axes = plots.subplots(1, len(curves), figsize=(5 * len(curves), 4))
    for axis, (name, runs) in zip(axes, curves.items(), strict=True):
        for (kind, losses), style in zip(runs.items(), ("-", "--", ":"), strict=True):
            axis.plot(losses, style, label=kind)
        axis.set(title=name, xlabel="step", ylabel="loss", yscale="log")
        axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    return True
