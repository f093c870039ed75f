"""``braze demo-serve``: a server of a small model with random weights, asked by OpenAI's client, once in each mode."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from braze.options import near
from braze.support.errors import UserError

#: sizes of the model: about three million numbers
CONFIG = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=128, hidden_size=192, intermediate_size=576,
    num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=3, head_dim=32, max_position_embeddings=512,
    rms_norm_eps=1e-6, hidden_act="silu", tie_word_embeddings=False, eos_token_id=None, dtype="float32",
)  # fmt: skip
PROMPTS = (
    "It was the best of times, it was the worst of times",
    "Call me Ishmael.",
    "All happy families are alike",
    "In my younger and more vulnerable years my father gave me some advice",
)


def run(arguments: argparse.Namespace) -> int:
    """Serve in each mode, and print what clients saw."""
    try:
        openai, uvicorn = (importlib.import_module(name) for name in ("openai", "uvicorn"))
        app, launch, loading = (
            importlib.import_module(f"braze.serving.{name}")
            for name in ("server.app", "server.launch", "engine.loading")
        )
        tokens = importlib.import_module("braze.serving.server.tokens")
    except ModuleNotFoundError as error:
        raise UserError(
            "BZ7507", f"braze demo-serve needs {error.name}", hints=("pip install 'braze[serve]' openai",)
        ) from error
    table = _table(f"{arguments.requests} clients at once, {arguments.tokens} tokens each, greedy")
    console, wanted = Console(), None
    with tempfile.TemporaryDirectory() as folder:
        loading.write_random(folder, CONFIG)
        for name, options in _modes(launch, arguments.modes).items():
            begun = time.perf_counter()
            engine = launch.make_engine(Path(folder), options)
            ready = time.perf_counter() - begun
            made = app.make_app(engine, tokens.ByteTokens(128), app.ServerOptions(name="demo"))
            with _listening(uvicorn, made) as url:
                client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
                _ask(client, 2, 4)
                before = engine.runner.stats()
                texts, seconds, first = _ask(client, arguments.requests, arguments.tokens)
            stats = engine.runner.stats()
            steps = (
                stats.get(f"steps_{m}", 0) - before.get(f"steps_{m}", 0)
                for m in ("none", "piecewise", "full")
            )
            speed = arguments.requests * arguments.tokens / seconds
            table.add_row(
                name,
                f"{speed:.0f}",
                f"{first * 1e3:.0f}",
                ", ".join(map(str, steps)),
                str(stats.get("graphs", 0)),
                f"{ready:.1f}",
            )
            wanted = wanted or texts
            console.print(
                f"[dim]{name}: {'the same text' if texts == wanted else 'ANOTHER TEXT'}", highlight=False
            )
            if texts != wanted:
                return 1
    console.print(table)
    if any("simulated" in str(name) for name in table.columns[0].cells):
        console.print(
            "The simulated device shows which steps are recorded, and that they give the same tokens; its replays gain nothing: a GPU's do.",
            highlight=False,
        )
    console.print(f"all wrote {texts[0][:40]!r}... to {PROMPTS[0]!r}", highlight=False)
    return 0


def _table(title: str) -> Table:
    """A row for each mode will come."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    for column in (
        "mode",
        "tokens/s",
        "first\ntoken ms",
        "steps: none,\npiecewise,\nfull",
        "recordings",
        "ready s",
    ):
        # a mode's name stays whole where lines have 80 characters
        first = dict(justify="left", min_width=19) if column == "mode" else dict(justify="right")
        table.add_column(column, overflow="fold", **first)
    return table


def _modes(launch: Any, chosen: str) -> dict[str, Any]:
    """The engines to compare. Without a GPU recordings are made on a simulated device, which is slower than none."""
    import torch

    gpu = torch.cuda.is_available()
    common: dict[str, Any] = dict(
        blocks=1024, max_num_seqs=16, max_num_batched_tokens=512, sizes=(1, 2, 4, 8, 16, 64)
    )
    modes: dict[str, dict[str, Any]] = {
        "NONE not compiled": dict(mode="NONE", plain=True),
        "NONE": dict(mode="NONE"),
        "NONE with drafts": dict(mode="NONE", drafts=3),
        "PIECEWISE": dict(mode="PIECEWISE"),
        "FULL_DECODE_ONLY": dict(mode="FULL_DECODE_ONLY"),
        "FULL_AND_PIECEWISE": dict(mode="FULL_AND_PIECEWISE"),
    }
    shown = {
        name: launch.LaunchOptions(**common, **options, simulated=not gpu) for name, options in modes.items()
    }
    names = chosen.split(",") if chosen else list(shown)
    if unknown := [name for name in names if name not in shown]:
        raise UserError("BZ0007", f"there is no mode {unknown[0]!r}", hints=[near(unknown[0], tuple(shown))])
    return {
        name + (", simulated device" if options.mode != "NONE" and not gpu else ""): options
        for name, options in shown.items()
        if name in names
    }


@contextlib.contextmanager
def _listening(uvicorn: Any, app: Any) -> Iterator[str]:
    """A server in a thread of this process, on a free port."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _ask(client: Any, requests: int, tokens: int) -> tuple[list[str], float, float]:
    """The answers of so many clients at once, seconds of all, and seconds to the first token, the mean of all."""

    def one(number: int) -> tuple[str, float]:
        begun, first, text = time.perf_counter(), 0.0, ""
        for part in client.completions.create(
            model="demo", prompt=PROMPTS[number % len(PROMPTS)], max_tokens=tokens, temperature=0, stream=True
        ):
            first = first or time.perf_counter() - begun
            text += part.choices[0].text
        return text, first

    begun = time.perf_counter()
    with ThreadPoolExecutor(requests) as clients:
        found = list(clients.map(one, range(requests)))
    seconds = time.perf_counter() - begun
    return [text for text, _ in found], seconds, sum(first for _, first in found) / requests
