"""An engine: requests in, tokens out, a step at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from braze.serving.engine.drafter import NgramDrafter
from braze.serving.engine.drawing import Flight
from braze.serving.engine.heads import HeadDrafter
from braze.serving.engine.requests import Request
from braze.serving.engine.runner import ModelRunner
from braze.serving.engine.sampling import SamplingParams, seed_of
from braze.serving.engine.scheduler import Scheduler
from braze.serving.policy.data_parallel import alone
from braze.serving.policy.fields import refuse
from braze.support.errors import UserError
from braze.support.record import record


@record
class Output:
    """What a step added to a request."""

    request: Request
    tokens: tuple[int, ...]


class Engine:
    """A scheduler over a runner whose cache is there. Used by one thread."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        drafts = runner.options.drafts
        self.scheduler = Scheduler(
            runner.limits, runner.blocks, runner.model.config.eos, NgramDrafter(drafts) if drafts else None
        )
        self._heads = HeadDrafter(runner, drafts) if drafts and runner.model.heads else None
        self._numbers = itertools.count()
        overlap = runner.options.overlap
        self._overlap = runner.reduce is alone and (
            runner.device.type == "cuda" if overlap is None else overlap
        )
        #: the step that has begun already
        self._flight: Flight | None = None

    def add(self, prompt: Sequence[int], params: SamplingParams | None = None, id: str = "") -> Request:
        """A request that waits for its turn. Raises what ``Scheduler.add`` does, and BZ7406 for tokens outside the vocabulary."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise refuse("params", params, "SamplingParams")
        if not isinstance(prompt, Sequence) or isinstance(prompt, (str, bytes)):
            raise UserError(
                "BZ7406", f"{prompt!r} is no prompt", hints=("a list of tokens, as a tokenizer gives it",)
            )
        id = id or f"request-{next(self._numbers)}"
        request = Request(id, tuple(prompt), params, seed=seed_of(params))
        self.scheduler.check(request)
        self.runner.check_tokens(request.id, request.prompt)
        self.runner.check_tokens(request.id, [token for token, _ in params.logit_bias])
        self.scheduler.add(request)
        return request

    def step(self, only: Request | None = None) -> list[Output]:
        """Run one step; what it added to each request that got tokens. ``only``: a step of this request alone.

        Where the next one is certain to be for the same requests, it begins before this one's tokens are waited for: they are on the device.
        """
        if self.runner.renewed():
            self.forget_prefixes()
        flight, self._flight = self._flight, None
        if flight is None or all(work.request.ended is not None for work in flight.works):
            flight = self.runner.launch(self.scheduler.schedule(only))
        if self._overlap and only is None and flight.tokens is not None:
            works = self.scheduler.ahead(flight.works)
            if works is not None:
                self._flight = self.runner.launch(works, flight)
        drawn = flight.wait()
        kept = [self.scheduler.finish(work, tokens) for work, tokens in zip(flight.works, drawn, strict=True)]
        if flight.scores is not None:
            for work, new, scores in zip(flight.works, kept, flight.scores.by_work(drawn), strict=True):
                work.request.scores += scores[: len(new)]
        if self._heads is not None:
            self._heads.propose(flight, drawn, kept)
        return [Output(work.request, tuple(new)) for work, new in zip(flight.works, kept, strict=True) if new]

    def forget_prefixes(self) -> None:
        """Share nothing of what the cache holds with requests that have not begun: for after weights were written in place, which no step notices."""
        self.scheduler.forget_prefixes()

    def retreat(self) -> tuple[list[Request], list[Request]]:
        """After a step that raised, of which nobody knows what was done: those that ran, and the one, if any, that might have begun. They keep the tokens that they have, wait, and are
        computed again; a step that had begun is dropped."""
        scheduler, self._flight = self.scheduler, None
        ran, following = list(scheduler.running), list(scheduler.waiting)[:1]
        scheduler.retreat()
        return ran, following

    def idle(self) -> bool:
        """Use a moment in which no request runs to record what steps asked for, one size (``RunnerOptions.capture``); whether there may be more to do. All ranks call it."""
        flight, self._flight = self._flight, None
        if flight is not None:
            flight.wait()
        failed = self.runner.failures
        return bool(self.runner.idle()) or self.runner.failures > failed

    def abort(self, request: Request) -> None:
        """End a request; its blocks are free at once."""
        self.scheduler.abort(request)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[list[int]]:
        """What is generated for each prompt, all at once."""
        each = params if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise UserError(
                "BZ7405",
                f"{len(each)} sampling parameters were given for {len(prompts)} prompts",
                hints=("one for each prompt, or one for all",),
            )
        requests: list[Request] = []
        try:
            for prompt, p in zip(prompts, each, strict=True):
                requests.append(self.add(prompt, p))
        except BaseException:  # all of them or none
            for request in requests:
                self.abort(request)
            raise
        while not self.scheduler.idle():
            self.step()
        return [request.output for request in requests]
