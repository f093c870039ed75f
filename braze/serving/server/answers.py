"""One HTTP request's generations: sent to the engine, collected or streamed, and always ended."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from braze.serving.engine.requests import Ended, Score
from braze.serving.engine.sampling import SEEDS, SamplingParams
from braze.serving.server.logprobs import Told
from braze.serving.server.loop import Delta, EngineLoop, Ticket
from braze.serving.server.protocol import Answer, Choice, error_body, usage
from braze.serving.server.tokens import Detokenizer, TextTokens
from braze.serving.server.tools import Call, CallReader

#: tokens of a prompt behind which its answer's text is found
_BEHIND = 4
#: scores that are written in a millisecond or so
_FEW = 128


class TimedOut(Exception):
    """The request's seconds are over."""


class Part(NamedTuple):
    """What a step added to choice ``place``: text, scores of its tokens (the first of an echoed prompt has none), why it ended, and calls of tools."""

    place: int
    text: str
    scores: list[Score | int]
    reason: str | None
    calls: Sequence[Call] = ()


@dataclass(frozen=True)
class Asked:
    """What is asked for beside the tokens of ``prompts``: ``answers`` to each, the best of ``copies``; texts that end one; ``echoed``: its prompt before each, as text or tokens, None: none is;
    ``silent``: nothing but that. ``calls``: calls of tools are taken out of an answer (None: they are not), and more than one is given."""

    prompts: Sequence[Sequence[int]]
    answers: int = 1
    copies: int = 1
    stop: Sequence[str] = ()
    echoed: Sequence[str | Sequence[int]] | None = None
    silent: bool = False
    calls: bool | None = None


class Generation:
    """The choices of one HTTP request. Leaving the ``async with`` ends those that have not, whatever happened: an answer, an
    error, or a client that is gone."""

    def __init__(
        self,
        loop: EngineLoop,
        tokens: TextTokens,
        asked: Asked,
        params: SamplingParams,
        told: Told,
        seconds: float,
    ) -> None:
        self.loop, self.asked, self.params, self.told, self.seconds = loop, asked, params, told, seconds
        # a chat's answer begins a text, any other goes on with its prompt's
        behind = [() if told.chat else prompt[-_BEHIND:] for prompt in asked.prompts]
        self.texts = [Detokenizer(tokens, asked.stop, b) for b in behind for _ in range(asked.copies)]
        if asked.echoed is None:
            for i in range(len(self.texts)):
                told.goes_on(i, behind[i // asked.copies])
        self.readers = (
            None if asked.calls is None else [CallReader(asked.calls) for _ in range(len(self.texts))]
        )
        self.generated = 0
        self.tickets: list[Ticket] = []
        self._events: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        self._early: list[tuple[int, Delta]] = []
        #: of each choice: scores whose text is not out yet, each with where its token begins; and how much text is out
        self._held: dict[int, list[tuple[int, Score | int]]] = defaultdict(list)
        self._out: Counter[int] = Counter()
        self._echoes: dict[int, str] = {}

    async def __aenter__(self) -> Generation:
        here = asyncio.get_running_loop()
        self._deadline = here.time() + self.seconds

        def sender(index: int) -> Callable[[Delta], None]:
            def send(delta: Delta) -> None:
                if not here.is_closed():
                    here.call_soon_threadsafe(self._events.put_nowait, (index, delta))

            return send

        try:
            for i, prompt in enumerate(self.asked.prompts):
                for copy in range(self.asked.copies):
                    send = sender(i * self.asked.copies + copy)
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

    async def parts(self) -> AsyncIterator[Part]:
        """What is added until all have ended. Raises the engine's error, or TimedOut."""
        left = set(range(len(self.texts)))
        early = iter(self._early)
        while left:
            index, delta = next(early, None) or await self._event()
            if index not in left:
                continue
            if delta.error is not None:
                raise delta.error
            text, reason = self._said(index, delta)
            calls: list[Call] = []
            if self.readers is not None:
                text, calls = self.readers[index].add(text, last=reason is not None)
                if reason == Ended.STOP.value and self.readers[index].count:
                    reason = "tool_calls"
            if reason is not None:
                left.discard(index)
            if text or calls or reason is not None:
                scores = [score for _, score in self._held.pop(index, ())]
                yield Part(index, text, scores, reason, calls)

    def usage(self) -> dict[str, int]:
        """Numbers of tokens so far."""
        return usage(sum(map(len, self.asked.prompts)), self.generated)

    def _own(self, copy: int) -> SamplingParams:
        """A copy's parameters: of a seed, each has its own."""
        params = self.params
        if params.seed is None or not copy:
            return params
        return dataclasses.replace(params, seed=(params.seed + copy) % SEEDS)

    def _said(self, index: int, delta: Delta) -> tuple[str, str | None]:
        """The text that a step adds, after the prompt's where that is echoed, and why the choice has ended; scores are held with it."""
        begins = not self.texts[index].begun and bool(delta.tokens)
        opening = self._opening(index, delta) if begins else ""
        reason = delta.ended.value if delta.ended is not None else None
        if self.asked.silent:  # whatever the one token is that the engine draws
            return opening, Ended.LENGTH.value if delta.ended is Ended.STOP else reason
        self.generated += len(delta.tokens)
        writer = self.texts[index]
        if delta.scores:
            text = self._scored(index, delta)
        else:
            text = writer.add(delta.tokens, last=delta.ended is not None)
        self._out[index] += len(text)
        if writer.stopped:
            # of a text that ends before a stop text, the tokens that are in it
            self._held[index] = [(at, score) for at, score in self._held[index] if at < self._out[index]]
            self.loop.cancel(self.tickets[index], Ended.STOP)
            reason = Ended.STOP.value
        return opening + text, reason

    def _opening(self, index: int, delta: Delta) -> str:
        if self.asked.echoed is None:
            return ""
        place = index // self.asked.copies
        if self.params.prompt_logprobs is not None:
            scores: list[Score | int] = [self.asked.prompts[place][0], *delta.before]
            self._held[index] += [(-1, score) for score in scores]
        if place not in self._echoes:
            given = self.asked.echoed[place]
            self._echoes[place] = given if isinstance(given, str) else self.told.tokens.decode(given)
        return self._echoes[place]

    def _scored(self, index: int, delta: Delta) -> str:
        """The text of tokens whose scores are held with it; a token that ends an answer and has no text is none of it."""
        writer, text = self.texts[index], ""
        held = self._held[index]
        for k, score in enumerate(delta.scores, 1):
            last = k == len(delta.scores) and delta.ended is not None
            begin = writer.length
            text += writer.add((score.token,), last=last)
            if not (last and delta.ended is Ended.STOP and not self.told.tokens.decode((score.token,))):
                held.append((begin, score))
            if writer.stopped:
                break
        return text


async def collected(generation: Generation, answer: Answer) -> dict[str, object]:
    """The whole answer."""
    count = len(generation.texts)
    texts, reasons = [""] * count, [""] * count
    scores: list[list[Score | int]] = [[] for _ in range(count)]
    calls: list[list[Call]] = [[] for _ in range(count)]
    async for index, text, more, reason, called in generation.parts():
        texts[index] += text
        scores[index] += more
        calls[index] += called
        reasons[index] = reason or reasons[index]
    choices = []
    for i in _best(generation, scores):
        told = await _told(generation, i, scores[i])
        choices.append(Choice(texts[i], reasons[i], told, calls[i]))
    return answer.whole(choices, generation.usage())


def _best(generation: Generation, scores: Sequence[Sequence[Score | int]]) -> list[int]:
    """Which choices are given: of each prompt's those whose generated tokens are likeliest on average, the first of equal ones."""
    asked, found = generation.asked, []
    for first in range(0, len(scores), asked.copies):
        each = list(range(first, first + asked.copies))
        if asked.answers < asked.copies:
            echoed = generation.params.prompt_logprobs is not None
            before = len(asked.prompts[first // asked.copies]) if echoed else 0
            each = sorted(each, key=lambda i: -_mean(scores[i][before:]))[: asked.answers]
        found += each
    return found


def _mean(scores: Sequence[Score | int]) -> float:
    values = [score.logprob for score in scores if isinstance(score, Score)]
    return sum(values) / len(values) if values else float("-inf")


async def _told(generation: Generation, index: int, scores: Sequence[Score | int]) -> dict[str, Any] | None:
    """As the protocol has it; other requests go on while a long prompt's are written."""
    if len(scores) < _FEW:
        return generation.told.form(index, scores)
    return await asyncio.to_thread(generation.told.form, index, scores)


async def streamed(generation: Generation, answer: Answer) -> AsyncIterator[str]:
    """The answer as server-sent events; an error after the first becomes one of them."""
    begun: set[int] = set()
    try:
        async for index, text, scores, reason, calls in generation.parts():
            choice = Choice(text, reason, await _told(generation, index, scores), calls)
            yield _event(answer.chunk(index, choice, index not in begun))
            begun.add(index)
    except Exception as error:
        yield _event(error_body(str(error), "server_error"))
        return
    if answer.counted:
        yield _event(answer.last(generation.usage()))
    yield "data: [DONE]\n\n"


def _event(body: object) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
