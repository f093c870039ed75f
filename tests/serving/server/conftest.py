"""A server on a port of this machine, with a tiny model behind it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("prometheus_client")
import httpx
import openai
import uvicorn

from braze.serving.engine.engine import Engine
from braze.serving.server.app import Server, ServerOptions, make_app
from braze.serving.server.tokens import ByteTokens
from tests.helpers import threads
from tests.serving.engine.tiny import engine, limits, tiny

VOCAB = 130


#: how long a loaded machine may take for what is a matter of milliseconds
PATIENCE = 60.0


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


@dataclass
class Running:
    """A server that listens."""

    url: str
    server: Server
    engine: Engine
    uvicorn: uvicorn.Server

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def metric(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE).text
        # one of a kind is there when the first has been counted
        return next(
            (float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0
        )

    def settled(self) -> bool:
        """Whether nobody runs and no block is taken, after a while at most."""
        return soon(lambda: self.metric("braze_blocks_used") == 0 and self.metric("braze_running") == 0)

    def ended(self, outcome: str, count: int) -> bool:
        """Whether so many requests have ended in this way, after a while at most."""
        return soon(lambda: self.metric(f'braze_requests_total{{outcome="{outcome}"}}') == count)


@contextlib.contextmanager
def serving(
    tokens: Any = None,
    blocks: int = 200,
    graphs: Any = None,
    engine_options: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[Running]:
    """A server of a tiny model of random weights, and its end."""
    known = dict(max_num_seqs=16, max_model_len=96, max_num_batched_tokens=64)
    bounds = limits(**(known | options.pop("limits", {})))
    model = tiny("llama", vocab_size=VOCAB, eos_token_id=None)
    served = engine(model, blocks, graphs, bounds=bounds, **(engine_options or {}))
    app = make_app(served, tokens or ByteTokens(VOCAB), ServerOptions(name="tiny", **options))
    running = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=int(PATIENCE))
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = running.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", app.state.server, served, running)
    finally:
        running.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving() as found:
        yield found


@pytest.fixture(autouse=True)
def no_leak(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test of the shared server all blocks are free."""
    yield
    if "running" in request.fixturenames:
        assert request.getfixturevalue("running").settled()
