"""The engine in a thread of its own: requests come in by a queue, tokens go out by callbacks."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from braze.serving.engine.engine import Engine
from braze.serving.engine.requests import Ended, Request, Score
from braze.serving.engine.sampling import SamplingParams
from braze.support import log
from braze.support.errors import InternalError, UserError


@dataclass(frozen=True)
class Delta:
    """What a step added to a request; ``scores``: of its tokens, and ``before`` of the prompt's, where they are asked for. ``ended``: it was the last. ``error``: the request failed, with nothing added."""

    tokens: tuple[int, ...] = ()
    ended: Ended | None = None
    error: Exception | None = None
    scores: tuple[Score, ...] = ()
    before: tuple[Score, ...] = ()


@dataclass(eq=False)
class Ticket:
    """A request as its sender knows it. ``deliver`` is called by the engine's thread, and must not block."""

    prompt: tuple[int, ...]
    params: SamplingParams
    deliver: Callable[[Delta], None]
    request: Request | None = None
    cancelled: bool = False
    #: how many tokens it was sent
    sent: int = 0
    #: seconds on time.monotonic: when it came, and when its first token did
    came: float = field(default_factory=time.monotonic)
    first: float = 0.0


class EngineLoop:
    """Steps an engine for as long as there is work. ``watch`` is told of each ticket's events, for metrics.

    A step that raises ends the request for whose sake it did: where it was for several, each of them is computed again in steps of its own, and who has got a token there goes
    on. Only where steps of several raise and those of each do not, all of these end. After ``most_failures`` such steps one after another the loop is no longer ``healthy``.
    """

    def __init__(
        self,
        engine: Engine,
        watch: Callable[[str, Ticket, Delta], None] = lambda kind, ticket, delta: None,
        most_failures: int = 3,
    ) -> None:
        self.engine, self.watch, self.most_failures = engine, watch, most_failures
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tickets: dict[Request, Ticket] = {}
        self._failures = 0
        self._captures = True
        #: whom a failed step may have failed for, and how many tokens they had, the next to be tried last; and who was well alone
        self._suspects: list[tuple[Request, int]] = []
        self._tried: set[Request] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="braze engine", daemon=True)

    @property
    def healthy(self) -> bool:
        """Whether requests are taken and steps succeed."""
        return not self._closing.is_set() and self._thread.is_alive() and self._failures < self.most_failures

    def start(self) -> EngineLoop:
        """Begin to step."""
        self._thread.start()
        return self

    def submit(
        self, prompt: Sequence[int], params: SamplingParams, deliver: Callable[[Delta], None]
    ) -> Ticket:
        """Send a request. What the engine refuses comes as an error by ``deliver``. Raises BZ7501 where the loop is closing."""
        if self._closing.is_set():
            raise UserError(
                "BZ7501", "the server is shutting down", hints=("send the request to another one",)
            )
        ticket = Ticket(tuple(prompt), params, deliver)
        self._commands.put(lambda: self._add(ticket))
        return ticket

    def cancel(self, ticket: Ticket, why: Ended = Ended.ABORT) -> None:
        """End a request; its blocks are free before the next step. Nothing where it has ended."""
        ticket.cancelled = True
        self._commands.put(lambda: self._cancel(ticket, why))

    def close(self, seconds: float = 30.0) -> None:
        """Take no more requests, give those that are there so many seconds to end, then end them and the thread."""
        self._closing.set()
        self._commands.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._commands.put(self._cancel_all)
            self._thread.join(10)
        while not self._commands.empty():  # sent while the thread ended
            if (command := self._commands.get()) is not None:
                self._do(command)
        self._cancel_all()

    def _run(self) -> None:
        try:
            self._go()
        except BaseException as error:  # of the engine itself, of which nothing is certain now
            self._closing.set()
            told = InternalError("BZ7504", "the engine has ended", why=_why(error))
            for ticket in list(self._tickets.values()):
                self._tell(ticket, Delta(error=told))
            raise

    def _go(self) -> None:
        while True:
            self._use_idle_time()
            self._obey()
            if not self.engine.scheduler.idle():
                self._step()
            elif self._closing.is_set() and self._commands.empty():
                return

    def _obey(self) -> None:
        """Do what was asked for; waits where there is nothing else to do."""
        idle = self.engine.scheduler.idle()
        while True:
            try:
                command = self._commands.get(block=idle and not self._closing.is_set())
            except queue.Empty:
                return
            idle = False
            if command is not None:
                self._do(command)

    def _use_idle_time(self) -> None:
        """Record what steps asked for while nobody waits; a request that comes waits for one recording at most."""
        while self._captures and self.engine.scheduler.idle() and self._commands.empty():
            if self._closing.is_set():
                return
            try:
                if not self.engine.idle():
                    return
            except Exception as error:
                self._captures = False
                log.warn(
                    f"BZ7410: nothing more is recorded while requests are served: {_why(error)}", "cudagraphs"
                )

    def _do(self, command: Callable[[], None]) -> None:
        """What was asked for; an error is of one request, and ends no other."""
        try:
            command()
        except Exception as error:
            log.warn(f"BZ7508: a request could not be taken or ended: {_why(error)}", "capture")

    def _add(self, ticket: Ticket) -> None:
        if ticket.cancelled:
            return
        try:
            request = self.engine.add(ticket.prompt, ticket.params)
        except Exception as error:
            unexpected = InternalError("BZ7508", "a request could not be taken", why=_why(error))
            self._tell(ticket, Delta(error=error if isinstance(error, UserError) else unexpected))
            return
        ticket.request = request
        self._tickets[request] = ticket
        self._tell(ticket, Delta(), "added")

    def _cancel(self, ticket: Ticket, why: Ended = Ended.ABORT) -> None:
        if ticket.request is not None and ticket.request in self._tickets:
            self.engine.abort(ticket.request)
            self._tell(ticket, Delta(ended=why))

    def _cancel_all(self) -> None:
        for ticket in list(self._tickets.values()):
            self._cancel(ticket)

    def _step(self) -> None:
        trial, had = self._next_suspect()
        try:
            outputs = self.engine.step(trial)
        except Exception as error:
            self._fail(error, trial)
            return
        self._failures = 0
        for output in outputs:
            self._send(output.request)
        if trial is not None and trial.generated > had:
            self._tried.add(trial)

    def _next_suspect(self) -> tuple[Request | None, int]:
        """Who is to be tried alone, and how many tokens it had generated before; nobody most of the time."""
        while self._suspects:
            trial, had = self._suspects[-1]
            if trial.ended is None and trial not in self._tried:
                return trial, had
            self._suspects.pop()
        return None, 0

    def _fail(self, error: Exception, trial: Request | None) -> None:
        """A step raised: nobody knows what of it was done, so that all who ran are computed again, each by itself first. Who was alone ends, and all where each by itself is well."""
        self._failures += trial is None
        log.warn(f"BZ7504: a step of the engine failed: {_why(error)}", "capture")
        ran, following = self.engine.retreat()
        for request in ran:  # what they got before it raised
            self._send(request)
        guilty = [trial] if trial is not None else ran or following
        if trial is None:
            untried = [request for request in (*ran, *following) if request not in self._tried]
            self._suspects = [(request, request.generated) for request in untried]
            if untried and len(ran) + len(following) > 1:
                return
        told = InternalError("BZ7504", "a step of the engine failed", why=_why(error))
        for request in guilty:
            self.engine.abort(request)
            if (ticket := self._tickets.get(request)) is not None:
                self._tell(ticket, Delta(error=told))

    def _send(self, request: Request) -> None:
        """What a request has that its sender does not."""
        ticket = self._tickets.get(request)
        if ticket is None or request.generated == ticket.sent:
            return
        tokens = tuple(request.tokens[len(request.prompt) + ticket.sent :])
        scores = tuple(request.scores[ticket.sent :])
        before = tuple(request.prompt_scores) if not ticket.sent else ()
        ticket.sent += len(tokens)
        ticket.first = ticket.first or time.monotonic()
        self._tell(ticket, Delta(tokens, request.ended, scores=scores, before=before))

    def _tell(self, ticket: Ticket, delta: Delta, kind: str = "") -> None:
        over = delta.ended is not None or delta.error is not None
        if over and ticket.request is not None:
            self._tickets.pop(ticket.request, None)
            self._tried.discard(ticket.request)
        try:
            self.watch(kind or ("ended" if over else "tokens"), ticket, delta)
            if not ticket.cancelled:
                ticket.deliver(delta)
        except Exception as error:  # of this sender, who gets no more
            log.warn(f"BZ7508: a request's sender could not be told: {_why(error)}", "capture")
            self.cancel(ticket)

    def stats(self) -> dict[str, Any]:
        """Who runs and waits, and how many blocks are whose, as of now."""
        scheduler = self.engine.scheduler
        return {
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "blocks_used": scheduler.pool.used,
            "blocks": scheduler.pool.blocks,
            "preemptions": scheduler.preemptions,
            "shared": scheduler.shared,
            "guessed": scheduler.guessed,
            "right": scheduler.right,
            **self.engine.runner.stats(),
        }


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
