"""A server under streams that come and go for minutes: ``python -m benchmarks serving --soak 10 [--device cuda]``.

``braze serve`` in a process of its own, with a small model of random weights and fewer blocks than all streams together need. Each of 64 clients asks for
one completion after another, streamed; some close their connection in the middle. In the end nobody may run or wait, all blocks must be back,
each stream that was read to its end must have had all its tokens, and the server's memory must not have grown since the first fifth of the time.
"""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import IO, Any

import httpx

from braze.serving.engine.loading import write_random

STREAMS = 64
#: of 100 requests, so many are left by their clients
KILLED = 30
_MODEL: dict[str, Any] = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=128, hidden_size=64, intermediate_size=128,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
    tie_word_embeddings=True, rms_norm_eps=1e-6, dtype="float32",
)  # fmt: skip


class _NotReady(Exception):
    """The server does not answer."""


def _told(said: IO[str]) -> str:
    """The end of what the server has written."""
    said.seek(0)
    return said.read()[-2000:]


def run_soak(minutes: float, device: str, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """One row: what was asked for and got, what is left afterwards, and ``failed`` where something is."""
    with tempfile.TemporaryDirectory() as folder:
        write_random(folder, _MODEL)
        port = _free_port()
        command = [
            sys.executable,
            "-m",
            "braze",
            "serve",
            "--model",
            folder,
            "--name",
            "soak",
            "--port",
            str(port),
        ]
        command += ["--max-model-len", "256", "--blocks", "240", "--overlap"]
        command += ["--device", "cuda:0" if device == "cuda" else "cpu"]
        if device == "cpu":
            command += ["--no-compile"]
        with open(f"{folder}/said", "w+") as said:
            server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
            try:
                row = asyncio.run(_soak(f"http://127.0.0.1:{port}", server, minutes * 60, say))
            except _NotReady as error:
                raise RuntimeError(f"{error}: {_told(said)}") from None
            finally:
                server.terminate()
                server.wait(60)
            told = _told(said)
    if server.returncode not in (0, -signal.SIGTERM) or "Application shutdown complete" not in told:
        row["failed"] = f"the server ended with {server.returncode}: {told[-300:]}"
    return [{"minutes": minutes, "device": device, "streams": STREAMS, **row}]


async def _soak(url: str, server: Any, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        await _ready(client, server)
        begun = time.monotonic()
        clients = [asyncio.create_task(_client(client, i, begun + seconds, counts)) for i in range(STREAMS)]
        memory: list[tuple[float, int]] = []
        while not all(task.done() for task in clients):
            memory.append((time.monotonic() - begun, _resident(server.pid)))
            if len(memory) % 60 == 0:
                say(f"{memory[-1][0]:.0f} s: {dict(counts)}, {memory[-1][1] / 1e6:.0f} MB")
            await asyncio.sleep(min(1.0, seconds / 50))
        for task in clients:
            task.result()
        left = await _settled(client)
    row: dict[str, Any] = {"seconds": time.monotonic() - begun, **counts, **left}
    early = max(size for at, size in memory if at <= max(seconds / 5, memory[0][0]))
    row |= {"memory_mb": early / 1e6, "memory_end_mb": memory[-1][1] / 1e6}
    wrong = [f"{name} is {left[name]:.0f}" for name in ("running", "waiting", "blocks_used") if left[name]]
    wrong += [f"{counts[name]} requests were {name}" for name in ("short", "errors") if counts[name]]
    if memory[-1][1] > 1.1 * early + 20e6:
        wrong.append(f"memory grew from {row['memory_mb']:.0f} to {row['memory_end_mb']:.0f} MB")
    if wrong:
        row["failed"] = "; ".join(wrong)
    return row


async def _client(client: httpx.AsyncClient, number: int, end: float, counts: Counter[str]) -> None:
    """One completion after another; ``short``: without an error, and without all of its tokens."""
    numbers = random.Random(number)
    while time.monotonic() < end:
        wanted, killed = numbers.randint(5, 80), numbers.randrange(100) < KILLED
        body = dict(model="soak", prompt="y" * numbers.randint(1, 60), max_tokens=wanted, stream=True)
        got = 0
        try:
            async with client.stream("POST", "/v1/completions", json=body) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    got += line.startswith("data: {")
                    if killed and got > wanted // 2:
                        break
        except httpx.HTTPError:
            counts["errors"] += 1
            continue
        counts["tokens"] += got
        counts["killed" if killed else "whole" if got == wanted else "short"] += 1


async def _ready(client: httpx.AsyncClient, server: Any) -> None:
    for _ in range(1200):
        if server.poll() is not None:
            raise _NotReady(f"the server ended at once with {server.returncode}")
        try:
            if (await client.get("/health")).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        await asyncio.sleep(0.1)
    raise _NotReady("the server is not ready after two minutes")


async def _settled(client: httpx.AsyncClient) -> dict[str, float]:
    """Who is left, after ten seconds at most."""
    found: dict[str, float] = {}
    for _ in range(100):
        text = (await client.get("/metrics")).text
        known = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        found = {n: float(known[f"braze_{n}"]) for n in ("running", "waiting", "blocks_used")}
        found["preemptions"] = float(known["braze_preemptions_total"])
        if not (found["running"] or found["waiting"] or found["blocks_used"]):
            break
        await asyncio.sleep(0.1)
    return found


def _resident(process: int) -> int:
    """Bytes of memory that a process has."""
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * 4096


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def soak_table(rows: list[dict[str, Any]]) -> str:
    """Lines of names and values."""
    return "\n".join(
        f"{k}: {v:.1f}" if isinstance(v, float) else f"{k}: {v}" for row in rows for k, v in row.items()
    )
