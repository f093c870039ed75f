"""Which recording a step replays: a pure function of the step's counts.

There is one ladder of sizes for each mode, number of tokens a request and variant, and never a merged one: a step is padded to the
least rung of its own ladder that holds it. FULL goes before PIECEWISE, and that before NONE, which pads nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Hashable, Iterable, Sequence

from braze.serving.policy.fields import distinct, refuse, switch, whole, wholes
from braze.serving.policy.modes import CUDAGraphMode
from braze.support.record import record

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


@record
class BatchDescriptor:
    """What recordings are kept by: sizes as they are after padding.

    ``num_reqs``: None where any number of requests will do, as for pieces without attention. ``uniform_query_len``: the tokens
    that every request has, where all have as many; 0 where they need not. ``variant``: what else tells recordings apart, such
    as whether an adapter is active; any hashable value.
    """

    num_tokens: int
    num_reqs: int | None = None
    uniform_query_len: int = 0
    variant: Hashable = None

    @property
    def uniform(self) -> bool:
        """Whether every request has as many tokens."""
        return self.uniform_query_len > 0


#: a recording's name: the mode of the step, and its sizes
Key = tuple[CUDAGraphMode, BatchDescriptor]


@record
class Decision:
    """How one step runs: its mode (NONE, PIECEWISE or FULL), its sizes after padding, and why."""

    mode: CUDAGraphMode
    descriptor: BatchDescriptor
    reason: str


@record
class Ladder:
    """The rungs of one mode, uniform query length (0: any batch) and variant, ascending by tokens."""

    mode: CUDAGraphMode
    uniform_query_len: int
    rungs: tuple[BatchDescriptor, ...]
    tokens: tuple[int, ...]
    reason: str

    def find(self, num_tokens: int, num_reqs: int, captured: Container[Key] | None) -> BatchDescriptor | None:
        """The least rung that holds as much and has been captured (all have, where that is None)."""
        for rung in self.rungs[bisect_left(self.tokens, num_tokens) :]:
            if rung.num_reqs is not None and rung.num_reqs < num_reqs:
                continue
            if captured is None or (self.mode, rung) in captured:
                return rung
        return None


def make_ladder(mode: CUDAGraphMode, uniform_query_len: int, rungs: Iterable[BatchDescriptor]) -> Ladder:
    """A ladder of rungs in any order."""
    ordered = tuple(sorted(rungs, key=lambda rung: rung.num_tokens))
    what = f"decoding {uniform_query_len} a request" if uniform_query_len else "any batch"
    return Ladder(
        mode, uniform_query_len, ordered, tuple(rung.num_tokens for rung in ordered), f"{mode.name}, {what}"
    )


class Dispatcher:
    """Says for each step which recording it replays; changes nothing, and remembers nothing.

    ``mode``: of the configuration. ``sizes``: capture sizes: requests where batches only decode, tokens elsewhere.
    ``uniform_query_lens``: tokens a request that decoding steps come with. ``variants``: the variants that are
    recorded.
    """

    def __init__(
        self,
        mode: CUDAGraphMode,
        sizes: Sequence[int],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        uniform_query_lens: Sequence[int] = (1,),
        variants: Sequence[Hashable] = (None,),
        enforce_eager: bool = False,
    ) -> None:
        if not isinstance(mode, CUDAGraphMode):
            raise refuse("mode", mode, "a CUDAGraphMode")
        sizes = wholes("sizes", sizes)
        self.enforce_eager = switch("enforce_eager", enforce_eager)
        self.mode = NONE if enforce_eager else mode
        self.max_num_seqs = whole("max_num_seqs", max_num_seqs)
        self.max_num_batched_tokens = whole("max_num_batched_tokens", max_num_batched_tokens)
        self.uniform_query_lens = wholes("uniform_query_lens", uniform_query_lens)
        self.variants = distinct("variants", variants)
        self._decode = {
            (q, variant): make_ladder(FULL, q, self._decode_rungs(sizes, q, variant))
            for q in self.uniform_query_lens
            for variant in self.variants
            if self.mode.separate_routine() and self.mode.decode_mode() is FULL
        }
        mixed = self.mode.mixed_mode()
        self._mixed = {
            variant: make_ladder(mixed, 0, self._mixed_rungs(sizes, mixed, variant))
            for variant in self.variants
            if mixed
        }

    def dispatch(
        self,
        num_tokens: int,
        num_reqs: int,
        *,
        max_query_len: int,
        variant: Hashable = None,
        valid_modes: Container[CUDAGraphMode] | None = None,
        captured: Container[Key] | None = None,
    ) -> Decision:
        """How a step of ``num_reqs`` requests with ``num_tokens`` tokens in all, at most ``max_query_len`` each, runs.

        ``valid_modes``: the modes that may be chosen, besides NONE (all). ``captured``: the recordings that there are (all of
        :meth:`keys`); a step takes the next larger one that there is.
        """
        if not (
            type(num_tokens) is type(num_reqs) is type(max_query_len) is int
            and min(num_tokens, num_reqs, max_query_len) >= 0
        ):
            num_tokens, num_reqs = whole("num_tokens", num_tokens, 0), whole("num_reqs", num_reqs, 0)
            max_query_len = whole("max_query_len", max_query_len, 0)
        uniform = num_reqs * max_query_len == num_tokens and num_reqs > 0
        ladders = self._ladders(max_query_len if uniform else 0, variant)
        for ladder in ladders:
            if valid_modes is not None and ladder.mode not in valid_modes:
                continue
            rung = ladder.find(num_tokens, num_reqs, captured) if num_tokens else None
            if rung is not None:
                return Decision(ladder.mode, rung, ladder.reason)
        bare = BatchDescriptor(num_tokens, num_reqs, max_query_len if uniform else 0, variant)
        return Decision(NONE, bare, self._why_none(bare, ladders, valid_modes, captured))

    def size_of(self, num_tokens: int, num_reqs: int, max_query_len: int) -> int:
        """What a step counts as among capture sizes: its requests where each decodes as many tokens as are recorded, its tokens elsewhere."""
        decodes = num_reqs * max_query_len == num_tokens and max_query_len in self.uniform_query_lens
        return num_reqs if decodes else num_tokens

    def keys(self, mode: CUDAGraphMode) -> tuple[BatchDescriptor, ...]:
        """All that is to be captured for steps of one mode, largest first."""
        rungs = [rung for ladder in self._all() if ladder.mode is mode for rung in ladder.rungs]
        return tuple(sorted(rungs, key=lambda rung: (rung.num_tokens, rung.num_reqs or 0), reverse=True))

    def every_key(self) -> tuple[Key, ...]:
        """All that is to be captured: pieces first, whose activations are the larger; what they leave free in a shared pool holds the rest."""
        return tuple((mode, key) for mode in (PIECEWISE, FULL) for key in self.keys(mode))

    def _all(self) -> list[Ladder]:
        return [*self._decode.values(), *self._mixed.values()]

    def _ladders(self, query_len: int, variant: Hashable) -> list[Ladder]:
        """The ladders that would serve a batch, best first; ``query_len``: 0 where the batch is not uniform."""
        found = [self._decode.get((query_len, variant)), self._mixed.get(variant)]
        return [ladder for ladder in found if ladder is not None]

    def _decode_rungs(self, sizes: Sequence[int], q: int, variant: Hashable) -> set[BatchDescriptor]:
        """Whole requests, of ``q`` tokens each."""
        return {
            BatchDescriptor(size * q, size, q, variant)
            for size in sizes
            if size <= self.max_num_seqs and size * q <= self.max_num_batched_tokens
        }

    def _mixed_rungs(
        self, sizes: Sequence[int], mode: CUDAGraphMode, variant: Hashable
    ) -> set[BatchDescriptor]:
        """Tokens; as a whole also with their requests, as many as there may be: attention is recorded, too.

        Where decoding has no ladder of its own, it climbs this one, which therefore has its sizes too.
        """
        tokens = set(sizes)
        if not self.mode.separate_routine():
            tokens |= {
                size * q for q in self.uniform_query_lens for size in sizes if size <= self.max_num_seqs
            }
        return {
            BatchDescriptor(n, min(n, self.max_num_seqs) if mode is FULL else None, 0, variant)
            for n in tokens
            if n <= self.max_num_batched_tokens
        }

    def _why_none(
        self,
        batch: BatchDescriptor,
        ladders: list[Ladder],
        valid_modes: Container[CUDAGraphMode] | None,
        captured: Container[Key] | None,
    ) -> str:
        """Why a step is not recorded, in words."""
        if self.enforce_eager:
            return "enforce_eager"
        if not self.mode:
            return "cudagraph_mode is NONE"
        if not batch.num_tokens:
            return "the batch is empty"
        if batch.variant not in self.variants:
            return f"variant {batch.variant!r} is not recorded"
        if not ladders:
            q = batch.uniform_query_len
            what = f"decoding {q} a request" if q else "a mixed batch"
            return f"{what} is not recorded under {self.mode.name}"
        allowed = [ladder for ladder in ladders if valid_modes is None or ladder.mode in valid_modes]
        if not allowed:
            return "the ranks agreed on another mode"
        most = max((ladder.tokens[-1] for ladder in allowed if ladder.tokens), default=0)
        if captured is not None and batch.num_tokens <= most:
            return "no recording of this size or a larger one has been captured"
        return f"{batch.num_tokens} tokens are more than {most}, the most that is recorded"


def in_words(tokens: int, decision: Decision) -> str:
    """A decision about a step of so many tokens as a sentence."""
    if decision.mode is NONE:
        return f"{tokens} tokens run unrecorded and unpadded: {decision.reason}"
    padding = decision.descriptor.num_tokens - tokens
    return f"{tokens} tokens replay {decision.reason}, of {decision.descriptor.num_tokens} tokens ({padding} of padding)"
