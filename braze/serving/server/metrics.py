"""What Prometheus is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from braze.serving.engine.requests import Ended
from braze.serving.server.loop import Delta, EngineLoop, Ticket

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """One server's counters; ``watch`` is for an :class:`EngineLoop`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own = self.registry
        self.requests = Counter(
            "braze_requests", "Requests that have ended, by how", ["outcome"], registry=own
        )
        self.prompt_tokens = Counter("braze_prompt_tokens", "Tokens of prompts", registry=own)
        self.generated_tokens = Counter("braze_generated_tokens", "Tokens generated", registry=own)
        self.first_token = Histogram(
            "braze_time_to_first_token_seconds",
            "From a request to its first token",
            buckets=_SECONDS,
            registry=own,
        )
        self.whole = Histogram(
            "braze_request_seconds", "From a request to its end", buckets=_SECONDS, registry=own
        )

    def watch(self, kind: str, ticket: Ticket, delta: Delta) -> None:
        """Count an event."""
        now = time.monotonic()
        if kind == "added":
            self.prompt_tokens.inc(len(ticket.prompt))
        if delta.tokens:
            self.generated_tokens.inc(len(delta.tokens))
            request = ticket.request
            if request is not None and request.generated == len(delta.tokens):
                self.first_token.observe(now - ticket.came)
        if kind == "ended":
            outcome = "error" if delta.error is not None else (delta.ended or Ended.ABORT).value
            self.requests.labels(outcome).inc()
            self.whole.observe(now - ticket.came)

    def follow(self, loop: EngineLoop) -> None:
        """Also tell how the engine stands when asked."""
        self.registry.register(_Engine(loop))

    def text(self) -> bytes:
        """All of them, in Prometheus's format."""
        return generate_latest(self.registry)


class _Engine:
    """How the engine stands, read when Prometheus asks."""

    def __init__(self, loop: EngineLoop) -> None:
        self.loop = loop

    def collect(self) -> Iterator[Any]:
        """Gauges of now, and the runner's counts."""
        stats = self.loop.stats()
        for name, told in (
            ("running", "Requests that run"),
            ("waiting", "Requests that wait"),
            ("blocks_used", "Blocks of the cache that requests have"),
            ("blocks", "Blocks of the cache"),
        ):
            yield GaugeMetricFamily(f"braze_{name}", told, value=stats[name])
        if "graphs" in stats:
            yield GaugeMetricFamily(
                "braze_recordings", "Sizes of steps that are recorded", value=stats["graphs"]
            )
            yield GaugeMetricFamily(
                "braze_recordings_bytes", "Memory of all recordings", value=stats["graph_bytes"]
            )
        yield CounterMetricFamily(
            "braze_preemptions", "Requests that lost their blocks", value=stats["preemptions"]
        )
        yield CounterMetricFamily(
            "braze_shared_tokens", "Tokens that were found in the cache", value=stats["shared"]
        )
        guesses = CounterMetricFamily("braze_guesses", "Tokens that were guessed ahead", labels=["outcome"])
        guesses.add_metric(["right"], stats["right"])
        guesses.add_metric(["wrong"], stats["guessed"] - stats["right"])
        yield guesses
        steps = CounterMetricFamily("braze_steps", "Steps, by how they ran", labels=["mode"])
        for mode in ("none", "piecewise", "full"):
            steps.add_metric([mode], stats.get(f"steps_{mode}", 0))
        yield steps
        tokens = CounterMetricFamily("braze_step_tokens", "Tokens of steps", labels=["kind"])
        tokens.add_metric(["real"], stats.get("tokens", 0))
        tokens.add_metric(["padded"], stats.get("tokens_padded", 0))
        yield tokens
