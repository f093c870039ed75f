"""One HTTP request's generations: sent to the engine, collected or streamed, and always ended."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Sequence

from braze.serving.engine.requests import Ended
from braze.serving.engine.sampling import SEEDS, SamplingParams
from braze.serving.server.loop import Delta, EngineLoop, Ticket
from braze.serving.server.protocol import Answer, error_body, usage
from braze.serving.server.tokens import Detokenizer, TextTokens


class TimedOut(Exception):
    """The request's seconds are over."""


class Generation:
    """The choices of one HTTP request. Leaving the ``async with`` ends those that have not, whatever happened: an answer, an
    error, or a client that is gone."""

    def __init__(
        self,
        loop: EngineLoop,
        tokens: TextTokens,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        stop: Sequence[str],
        seconds: float,
        each: int = 1,
    ) -> None:
        self.loop, self.prompts, self.params, self.seconds, self.each = loop, prompts, params, seconds, each
        self.texts = [Detokenizer(tokens, stop) for _ in range(len(prompts) * each)]
        self.generated = 0
        self.tickets: list[Ticket] = []
        self._events: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        self._early: list[tuple[int, Delta]] = []

    async def __aenter__(self) -> Generation:
        here = asyncio.get_running_loop()
        self._deadline = here.time() + self.seconds

        def sender(index: int) -> Callable[[Delta], None]:
            def send(delta: Delta) -> None:
                if not here.is_closed():
                    here.call_soon_threadsafe(self._events.put_nowait, (index, delta))

            return send

        try:
            for i, prompt in enumerate(self.prompts):
                for copy in range(self.each):
                    send = sender(i * self.each + copy)
                    self.tickets.append(self.loop.submit(prompt, self._own(copy), send))
        except BaseException:  # the loop closes: nobody leaves what nobody has entered
            self._leave()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        for ticket in self.tickets:
            self.loop.cancel(ticket)

    async def taken(self) -> None:
        """Until the engine has taken all of them. Raises its error where it refuses one, or TimedOut."""
        left = set(range(len(self.texts)))
        while left:
            index, delta = await self._event()
            if delta.error is not None:
                raise delta.error
            left.discard(index)
            self._early.append((index, delta))

    async def _event(self) -> tuple[int, Delta]:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._events.get()
        except TimeoutError:
            raise TimedOut(f"the request took more than {self.seconds:g} seconds") from None

    async def parts(self) -> AsyncIterator[tuple[int, str, str | None]]:
        """(choice, text that was added, why it ended) until all have ended. Raises the engine's error, or TimedOut."""
        left = set(range(len(self.texts)))
        early = iter(self._early)
        while left:
            index, delta = next(early, None) or await self._event()
            if index not in left:
                continue
            if delta.error is not None:
                raise delta.error
            text, reason = self._said(index, delta)
            if reason is not None:
                left.discard(index)
            if text or reason is not None:
                yield index, text, reason

    def usage(self) -> dict[str, int]:
        """Numbers of tokens so far."""
        return usage(sum(map(len, self.prompts)), self.generated)

    def _own(self, copy: int) -> SamplingParams:
        """A copy's parameters: of a seed, each has its own."""
        params = self.params
        if params.seed is None or not copy:
            return params
        return dataclasses.replace(params, seed=(params.seed + copy) % SEEDS)

    def _said(self, index: int, delta: Delta) -> tuple[str, str | None]:
        writer = self.texts[index]
        self.generated += len(delta.tokens)
        text = writer.add(delta.tokens, last=delta.ended is not None)
        if writer.stopped:
            self.loop.cancel(self.tickets[index], Ended.STOP)
            return text, Ended.STOP.value
        return text, delta.ended.value if delta.ended is not None else None


async def collected(generation: Generation, answer: Answer) -> dict[str, object]:
    """The whole answer."""
    texts = [""] * len(generation.texts)
    reasons = [""] * len(generation.texts)
    async for index, text, reason in generation.parts():
        texts[index] += text
        reasons[index] = reason or reasons[index]
    return answer.whole(list(zip(texts, reasons, strict=True)), generation.usage())


async def streamed(generation: Generation, answer: Answer) -> AsyncIterator[str]:
    """The answer as server-sent events; an error after the first becomes one of them."""
    begun: set[int] = set()
    try:
        async for index, text, reason in generation.parts():
            yield _event(answer.chunk(index, text, reason, index not in begun))
            begun.add(index)
    except Exception as error:
        yield _event(error_body(str(error), "server_error"))
        return
    if answer.counted:
        yield _event(answer.last(generation.usage()))
    yield "data: [DONE]\n\n"


def _event(body: object) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
