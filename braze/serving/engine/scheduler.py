"""Continuous batching: which requests the next step runs, and how many tokens of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from braze.serving.engine.drafter import NgramDrafter, accepted
from braze.serving.engine.kv_cache import BlockPool, Prefixes, blocks_for
from braze.serving.engine.ranges import SWITCH, whole
from braze.serving.engine.requests import Ended, Request, Work
from braze.support.errors import UserError
from braze.support.record import record

#: the token of a step that is on its way
_UNKNOWN = (0,)


@record
class Limits:
    """What bounds a step and a request. ``chunked``: a prompt may be run in parts, beside others' decoding; ``share_prefixes``: requests that begin alike
    share the blocks of what they have in common, also with those that have ended."""

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    block_size: int = 16
    chunked: bool = True
    share_prefixes: bool = True
    #: requests that may wait; more are refused
    max_waiting: int = 1024


#: the limits under which an engine can run
LIMITS = {
    "max_num_seqs": whole(1),
    "max_num_batched_tokens": whole(1),
    "max_model_len": whole(1),
    "block_size": whole(1),
    "max_waiting": whole(0),
    "chunked": SWITCH,
    "share_prefixes": SWITCH,
}


class Scheduler:
    """Who runs, who waits, and whose blocks are whose.

    Running requests go first, in the order in which they came. Where blocks run out the youngest gives all of its own back, waits at
    the head of the queue, and is computed again later. So the oldest always goes on. Who begins with full blocks of tokens that the cache still holds
    has these, and computes what follows; the last token always is.
    """

    def __init__(
        self, limits: Limits, blocks: int, eos: Sequence[int] = (), drafter: NgramDrafter | None = None
    ) -> None:
        self.limits = limits
        self.pool = BlockPool(blocks)
        self.prefixes = Prefixes(limits.block_size) if limits.share_prefixes else None
        self.eos = frozenset(eos)
        self.drafter = drafter
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        #: tokens that were found in the cache; guesses that were made, and that were right
        self.shared = self.guessed = self.right = 0

    def check(self, request: Request) -> None:
        """Raises BZ7406 for a request that could never run, BZ7407 where too many wait."""
        limits, size = self.limits, len(request.prompt)
        guesses = self.drafter.count if self.drafter else 0
        longest = min(size + request.params.max_tokens + guesses, limits.max_model_len)
        need = blocks_for(longest, limits.block_size)
        if never := self._never(size, need):
            why, hint = never
            raise UserError("BZ7406", f"request {request.id} can never run", why=why, hints=(hint,))
        if len(self.waiting) >= limits.max_waiting:
            raise UserError(
                "BZ7407",
                f"request {request.id} is refused",
                why=f"{len(self.waiting)} requests wait already",
                hints=("send it again later, or raise Limits.max_waiting",),
            )

    def _never(self, size: int, need: int) -> tuple[str, str] | None:
        """Why a request with a prompt of that size, and need of so many blocks, could never run, and what to do; None where it can."""
        limits, blocks = self.limits, self.pool.blocks
        if not size:
            return "its prompt is empty", "a token at least: what begins a text"
        if size >= limits.max_model_len:
            return (
                f"its prompt has {size} tokens, and with what it generates there may be {limits.max_model_len}",
                "a shorter prompt, or larger Limits(max_model_len=), which is braze serve --max-model-len",
            )
        if not blocks:
            return "there is no cache", "runner.allocate_cache() before the engine is made"
        if need > blocks:
            return (
                f"it may need {need} blocks of the cache, which has {blocks}",
                "a shorter prompt or fewer max_tokens, or more blocks: allocate_cache(blocks), which is braze serve --blocks",
            )
        if not limits.chunked and size > limits.max_num_batched_tokens:
            return (
                f"its prompt has {size} tokens, and a step takes {limits.max_num_batched_tokens}",
                "a shorter prompt, or larger Limits(max_num_batched_tokens=), or chunked=True",
            )
        return None

    def add(self, request: Request) -> None:
        """Let a request wait for its turn. Raises what ``check`` does."""
        self.check(request)
        limits, size = self.limits, len(request.prompt)
        request.longest = min(size + request.params.max_tokens, limits.max_model_len)
        request.stops = frozenset(request.params.stop) | (
            frozenset() if request.params.ignore_eos else self.eos
        )
        self.waiting.append(request)

    def schedule(self, only: Request | None = None) -> list[Work]:
        """The next step's work; empty where nobody has any. ``only``: for this request alone, with the whole cache; the others wait."""
        if only is not None:
            self._alone(only)
        budget, found, before = self.limits.max_num_batched_tokens, [], self.preemptions
        for request in list(self.running):
            if not request.blocks or not budget:
                continue  # without blocks: it was preempted for one before it
            work = self._work(request, budget)
            if self._room(request, work.begin + len(work.tokens)):
                found.append(work)
                budget -= len(work.tokens)
        most = 1 if only is not None else self.limits.max_num_seqs
        while budget and self.waiting and len(self.running) < most:
            if self.preemptions > before:
                break  # there is no room; whoever lost its own waits a step
            admitted = self._admitted(budget)
            if admitted is None:
                break
            found.append(admitted)
            budget -= len(admitted.tokens)
        return found

    def ahead(self, works: Sequence[Work]) -> list[Work] | None:
        """The step after one that is on its way, for the same requests, whose tokens (0 here) are not known yet.

        None where it might be another: a request draws not just one token, or ends with it at the latest, or draws by what it has said; one that waits could begin; or there is no
        room without preempting. Who ends by its token is found out too late, and gets one more that ``finish`` drops.
        """
        if self.drafter is not None or (self.waiting and len(self.running) < self.limits.max_num_seqs):
            return None
        found = []
        for request, begin, tokens, _, samples in works:
            if not samples or request.ended is not None or len(request.tokens) + 1 >= request.longest:
                return None
            if request.asks and request.params.remembers:
                return None
            after = begin + len(tokens)
            if len(request.blocks) * self.limits.block_size <= after:
                blocks = self.pool.take(1)
                if blocks is None:
                    return None
                request.blocks += blocks
            found.append(Work(request, after, _UNKNOWN))
        return found if len(found) == len(self.running) else None

    def finish(self, work: Work, drawn: Sequence[int]) -> list[int]:
        """Note what a step has computed for a request; the tokens that this adds to it. ``drawn``: one a verified token."""
        request = work.request
        if request.ended is not None:  # aborted while the step ran
            return []
        real = len(work.tokens) - work.drafts
        request.computed = work.begin + real
        kept = self._kept(work, drawn, real) if work.samples else []
        if request.computed >= (request.known + 1) * self.limits.block_size:
            self._known(request)
        if request.ended is not None:
            self._leave(request)
        return kept

    def _kept(self, work: Work, drawn: Sequence[int], real: int) -> list[int]:
        """The tokens that were drawn for a request, up to the one that ends it."""
        request = work.request
        kept = []
        request.drafts = ()
        for token in accepted(drawn, work.tokens[real:]) if work.drafts else drawn:
            request.tokens.append(token)
            kept.append(token)
            if token in request.stops:
                request.ended = Ended.STOP
                break
            if len(request.tokens) >= request.longest:
                request.ended = Ended.LENGTH
                break
        self.guessed += work.drafts
        self.right += len(kept) - 1
        # guesses that were right are in the cache; the last token never is
        request.computed += len(kept) - 1
        return kept

    def _known(self, request: Request) -> None:
        """Blocks that are full now can be found by others."""
        full = request.computed // self.limits.block_size
        if self.prefixes is not None:
            for block, key in zip(
                request.blocks[request.known : full],
                self.prefixes.keys(request, full)[request.known :],
                strict=True,
            ):
                self.pool.know(block, key)
        request.known = full

    def forget_prefixes(self) -> None:
        """Requests that wait, and those that come, find nothing of what is in the cache."""
        if self.prefixes is not None:
            self.prefixes.forget()
            for request in self.waiting:
                request.keys.clear()

    def abort(self, request: Request) -> None:
        """End a request at once and free its blocks; nothing where it has ended."""
        if request.ended is None:
            request.ended = Ended.ABORT
            self._leave(request)

    def idle(self) -> bool:
        """Whether nobody runs or waits."""
        return not self.running and not self.waiting

    def _work(self, request: Request, budget: int) -> Work:
        begin = request.computed
        left = len(request.tokens) - begin
        if left == 1 and self.drafter is None:
            return Work(request, begin, (request.tokens[-1],))
        count = min(left, budget)
        samples = count == left
        tokens = tuple(request.tokens[begin : begin + count])
        guesses: tuple[int, ...] = ()
        if self.drafter is not None and left == 1:
            room = min(budget - 1, self.limits.max_model_len - begin - 1)
            guesses = (request.drafts or self.drafter.propose(request.tokens))[:room]
        return Work(request, begin, tokens + guesses, len(guesses), samples)

    def _admitted(self, budget: int) -> Work | None:
        """The first who waits, running from now on, if there is room."""
        request, size = self.waiting[0], self.limits.block_size
        found: list[int] = []
        # what a request is to tell of its prompt's tokens it has to compute
        if self.prefixes is not None and request.params.prompt_logprobs is None:
            found = self.pool.find(self.prefixes.keys(request, (len(request.tokens) - 1) // size))
        request.computed = len(found) * size
        work = self._work(request, budget)
        blocks = None
        if work.samples or self.limits.chunked:
            blocks = self.pool.take(blocks_for(work.begin + len(work.tokens), size) - len(found), found)
        if blocks is None:
            request.computed = 0
            return None
        request.blocks, request.known = blocks, len(found)
        self.shared += request.computed
        self.waiting.popleft()
        self.running.append(request)
        return work

    def retreat(self) -> None:
        """All that run give their blocks back and wait, in the order in which they came: what they have is computed again."""
        for request in reversed(list(self.running)):
            self._preempt(request)

    def _alone(self, request: Request) -> None:
        """A request is the one that runs, or the first that waits."""
        if self.running != [request]:
            self.retreat()
            self.waiting.remove(request)
            self.waiting.appendleft(request)

    def _room(self, request: Request, tokens: int) -> bool:
        """Give a request the blocks for so many tokens, if need be those of the youngest; False where it was itself the youngest."""
        if tokens <= len(request.blocks) * self.limits.block_size:
            return True
        more = blocks_for(tokens, self.limits.block_size) - len(request.blocks)
        while more > 0:
            blocks = self.pool.take(more)
            if blocks is not None:
                request.blocks += blocks
                break
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.give_back(request.blocks)
        request.blocks, request.computed, request.known = [], 0, 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        self.pool.give_back(request.blocks)
        request.blocks = []
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
