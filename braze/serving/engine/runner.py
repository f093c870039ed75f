"""Runs a decoder's steps: fills its buffers, chooses and replays recordings, draws tokens."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import torch

from braze.cudagraphs.device import DeviceGraphs, Graph
from braze.cudagraphs.reasons import note
from braze.serving.engine.attention.kernels import graph_support
from braze.serving.engine.attention.operators import KVCache
from braze.serving.engine.buffers import Batch, Buffers
from braze.serving.engine.drawing import Drawing, Flight
from braze.serving.engine.kv_cache import allocate, block_bytes, blocks_for
from braze.serving.engine.models.decoder import Decoder
from braze.serving.engine.models.parallel import records_for
from braze.serving.engine.ranges import CAPTURE, SHARE, SWITCH, Range, refuse_others, whole
from braze.serving.engine.recordings import Recordings
from braze.serving.engine.requests import Work
from braze.serving.engine.scheduler import LIMITS, Limits
from braze.serving.engine.scores import score_prompts
from braze.serving.pieces.pools import GraphPools
from braze.serving.pieces.replaced import Tensors
from braze.serving.pieces.wrapper import clear_all_graphs
from braze.serving.policy import sizes as size_lists
from braze.serving.policy.data_parallel import Batch as Step
from braze.serving.policy.data_parallel import Reduce, alone, dispatch_across, wanted_by
from braze.serving.policy.dispatch import BatchDescriptor, Decision, Dispatcher, Key, in_words
from braze.serving.policy.fields import number_of_bytes
from braze.serving.policy.fields import whole as whole_number
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.policy.sizes import Suggestion
from braze.serving.step.context import DPMetadata, forward_context
from braze.support import log
from braze.support.errors import UserError
from braze.support.record import record

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


@record
class RunnerOptions:
    """How a runner records. ``sizes``: requests (decoding) or tokens (mixed) of each recording, a list, ``"traffic:<file>"``, or ``"auto"``: 1, 2, 4... 512 as far as the limits go, and the largest batch; ``drafts``: guesses a decoding request
    brings along; ``memory_share``: of the GPU's memory, for weights, activations and cache together; ``overlap``: a step that is certain to follow begins
    before the tokens of the one before it are known to the host (None: on a GPU). ``capture``: "eager", all sizes before serving, or "lazy", those that steps ask for, in
    ``idle``; ``memory_budget``: what all recordings may hold, in bytes or as "2GiB" (None: no limit)."""

    cudagraph_mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE
    sizes: tuple[int, ...] | str = "auto"
    drafts: int = 0
    enforce_eager: bool = False
    memory_share: float = 0.9
    overlap: bool | None = None
    capture: str = "eager"
    memory_budget: int | str | None = None


def _are_sizes(x: Any) -> bool:
    """Whether sizes of recordings can be read of it."""
    if isinstance(x, str):
        return x == "auto" or bool(re.fullmatch("traffic:.+", x))
    return all(type(n) is int and n >= 1 for n in x)


#: the options with which a runner can run
RANGES = {
    "cudagraph_mode": Range((CUDAGraphMode,), lambda x: True, "a CUDAGraphMode"),
    "enforce_eager": SWITCH,
    "overlap": Range((bool, NoneType), lambda x: True, "True, False or None"),
    "sizes": Range((tuple, list, str), _are_sizes, "whole numbers from 1 on, 'auto', or 'traffic:<file>'"),
    "drafts": whole(0),
    "memory_share": SHARE,
    "capture": CAPTURE,
}


class ModelRunner:
    """One model on one device. First ``profile_memory``, ``allocate_cache`` and ``capture_cudagraph``, then ``execute`` each step.

    ``piecewise``: the model compiled in pieces that record themselves, as ``forward(input_ids, positions)``; without it a mode that
    needs pieces is refused (BZ7408). ``compiled``: what runs in the model's place elsewhere. ``graphs``: the device's recorder, where there is
    one. ``reduce``: gathers rows from all data-parallel ranks, which then step together, each with work or without, and record the same. ``pools``: those that ``piecewise`` records into
    (``compile_decoder(pools=)``), which count in ``memory_budget``.
    """

    def __init__(
        self,
        model: Decoder,
        limits: Limits,
        options: RunnerOptions | None = None,
        *,
        graphs: DeviceGraphs | None = None,
        piecewise: Callable[..., torch.Tensor] | None = None,
        compiled: Callable[..., torch.Tensor] | None = None,
        reduce: Reduce = alone,
        pools: GraphPools | None = None,
    ) -> None:
        self.model, self.limits, self.options = model, limits, options or RunnerOptions()
        refuse_others("BZ7411", "limits of an engine that mean nothing", limits, LIMITS)
        refuse_others("BZ7411", "limits of an engine that mean nothing", self.options, RANGES)
        if limits.max_model_len > (most := model.config.max_position):
            raise UserError(
                "BZ7411",
                f"requests of {limits.max_model_len} tokens, where the model has {most} positions",
                hints=(f"max_model_len={most}",),
            )
        parameter = next(model.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.buffers = Buffers(limits, self.device)
        self.hidden = torch.zeros(
            limits.max_num_batched_tokens, model.config.width, dtype=self.dtype, device=self.device
        )
        #: what runs where nothing is recorded, and inside of whole recordings; and in pieces
        self.forward = compiled or model
        self.piecewise = piecewise
        self.caches: dict[str, KVCache] = {}
        self.blocks = 0
        self._tensors = Tensors(model)
        #: steps by how they ran; tokens, real and with padding
        self.counts: Counter[str] = Counter()
        #: steps by what they count as among capture sizes
        self.histogram: Counter[int] = Counter()
        self.reduce = reduce
        self.recordings: Recordings | None = None
        budget = number_of_bytes("memory_budget", self.options.memory_budget)
        if graphs is not None:
            self.recordings = Recordings(graphs, pools, budget, self._of_all_ranks())
        self.dispatcher = self._dispatcher()
        self._refuse_budget(budget, pools)
        self.drawing = Drawing(model, self.device)
        if self.recordings is not None:
            self.recordings.beside = self.drawing.held
        records_for(model.config.ranks, self)

    @torch.inference_mode()
    def profile_memory(self, capacity: int | None = None) -> int:
        """Bytes that are left for the cache, after a step of the longest batch without any; ``capacity``: of the device."""
        tokens = self.limits.max_num_batched_tokens
        before = _allocated(self.device)
        _reset_peak(self.device)
        self._eager(
            self.buffers.fill_dummy(tokens, min(tokens, self.limits.max_num_seqs), tokens), profile=True
        )
        rows = min(tokens, self.limits.max_num_seqs * (self.options.drafts + 1))
        self.model.compute_logits(self.hidden[:rows]).argmax(-1)
        activations = _peak(self.device) - before
        whole = capacity if capacity is not None else _capacity(self.device)
        return int(whole * self.options.memory_share) - before - activations

    def allocate_cache(self, blocks: int | None = None, memory: int | None = None) -> int:
        """Make the cache of so many blocks, or as many as ``memory`` bytes hold; how many there are.

        Recordings hold the cache's addresses, so those made before are let go of. Raises BZ7409 where not one request fits.
        """
        blocks = None if blocks is None else whole_number("blocks", blocks)
        memory = None if memory is None else whole_number("memory", memory, 0)
        config, size = self.model.config, self.limits.block_size
        each = block_bytes(self.model.cache_shape, config.cached_layers, size, self.dtype)
        if blocks is None:
            blocks = (self.profile_memory() if memory is None else memory) // each
            # more than all requests at their longest can have are of no use
            blocks = min(blocks, self.limits.max_num_seqs * blocks_for(self.limits.max_model_len, size))
        blocks = min(config.ranks.common(blocks))
        if blocks < 1:
            raise UserError(
                "BZ7409",
                "there is no memory left for the cache",
                why=f"a block of {size} tokens takes {each / 1e6:.1f} MB",
                hints=("lower max_num_batched_tokens, or raise the share of memory",),
            )
        self.blocks = blocks
        self.caches = allocate(
            self.model.cache_shape,
            config.cached_layers,
            blocks,
            size,
            self.dtype,
            self.device,
            self.limits.max_num_seqs,
        )
        if self.recordings is not None:
            self.recordings.clear()
            self.drawing.draws = None
        return blocks

    @torch.inference_mode()
    def capture_cudagraph(self, progress: bool = False) -> tuple[float, list[int]]:
        """Record every size, the largest first: (seconds, the sizes recorded as a whole, ascending). Nothing where they are recorded lazily. All ranks call it.

        A size that cannot be recorded is left to the next larger one, or to a step without recordings; ``stats`` tells why.
        """
        begun = time.perf_counter()
        if self.recordings is not None:
            self.recordings.open = True
        if self.recordings is not None and self.options.capture == "eager":
            self.recordings.capture_all(self.dispatcher.every_key(), self._capture, progress)
            self._capture_draws()
        _wait(self.device)
        return time.perf_counter() - begun, sorted({bs for bs, _ in self.graphs})

    @torch.inference_mode()
    def idle(self, most: int = 1) -> tuple[Key, ...]:
        """Record what steps have asked for most, at most so many sizes, while no step is on its way; nothing but where sizes are recorded lazily. All ranks call it."""
        most = whole_number("most", most)
        done: list[Key] = []
        recordings = self.recordings
        if recordings is None or not recordings.open or self.options.capture != "lazy":
            return ()
        while len(done) < most:
            key = recordings.capture_hottest(self.dispatcher.every_key(), self._capture)
            if key is None:
                break
            done.append(key)
        if any(key.uniform_query_len for _, key in done):
            self._capture_draws()
        return tuple(done)

    def explain(self, num_tokens: int, num_reqs: int | None = None, q: int = 1) -> str:
        """How a step of so many tokens runs with what is recorded now, and why. ``num_reqs`` None: requests of ``q`` tokens each."""
        num_tokens, q = whole_number("num_tokens", num_tokens, 0), whole_number("q", q)
        requests = num_tokens // q if num_reqs is None else whole_number("num_reqs", num_reqs, 0)
        captured = self.recordings.captured if self.recordings is not None else ()
        decision = self.dispatcher.dispatch(num_tokens, requests, max_query_len=q, captured=captured)
        return in_words(num_tokens, decision)

    def suggest_sizes(self, k: int = size_lists.FROM_TRAFFIC) -> Suggestion:
        """The ``k`` sizes that would have padded the steps so far least, or that those there are do as well; ``write_traffic(runner.histogram, file)`` keeps the steps for ``sizes="traffic:<file>"``."""
        k = whole_number("k", k)
        if not self.sizes:
            return Suggestion((), 0.0, 0.0, True)
        return size_lists.suggest_sizes(self.histogram, k, default=self.sizes)

    def _capture_draws(self) -> None:
        """Record the draws of the decoding steps that are recorded."""
        assert self.recordings is not None
        decoding = {key.num_tokens for key in self.recordings.full if key.uniform_query_len}
        self.drawing.capture(self.recordings, decoding)

    def _of_all_ranks(self) -> Reduce:
        """Gathers rows of all that must record alike: data-parallel ranks, and those that share the model."""
        ranks, reduce = self.model.config.ranks, self.reduce
        if ranks.size == 1:
            return reduce
        return lambda row: [list(found) for rows in ranks.common(list(reduce(row))) for found in rows]

    def _refuse_budget(self, budget: int | None, pools: GraphPools | None) -> None:
        """A budget that would not be kept to."""
        mode = self.dispatcher.mode
        if budget is not None and pools is None and mode.requires_piecewise_compilation():
            raise UserError(
                "BZ7411",
                f"memory_budget with {mode.name}, and nobody knows what the pieces hold",
                hints=("pools=GraphPools() for compile_decoder and ModelRunner",),
            )

    def renewed(self) -> bool:
        """Whether the model has other weights than a step ago; what was recorded with them is let go of."""
        which = self._tensors.replaced()
        if not which:
            return False
        self._tensors = Tensors(self.model)
        if self.recordings is not None and self.recordings.captured:
            why = f"has another tensor in the place of {which}: what was recorded is let go of"
            note("BZ7219", type(self.model).__name__, why, tell=self)
            self._let_go()
        return True

    def release(self) -> None:
        """Let go of all that was recorded, whole and in pieces; steps run as they are from now on, until ``capture_cudagraph`` is called. All ranks call it."""
        if self.recordings is not None:
            self.recordings.open = False
        self._let_go()

    def _let_go(self) -> None:
        if self.recordings is not None:
            self.recordings.clear()
            self.drawing.draws = None
        clear_all_graphs()

    @property
    def graphs(self) -> dict[tuple[int, int], Graph]:
        """Whole recordings by (requests, tokens of each; 0: any)."""
        found = self.recordings.full if self.recordings is not None else {}
        return {(key.num_reqs or 0, key.uniform_query_len): graph for key, graph in found.items()}

    @property
    def failures(self) -> int:
        """How many sizes could not be recorded."""
        return len(self.recordings.failed) if self.recordings is not None else 0

    def prepare_inputs(self, works: Sequence[Work]) -> tuple[Decision, Batch]:
        """How a step runs, and its inputs in the buffers, padded as its recording has them."""
        tokens = sum(len(work.tokens) for work in works)
        longest = max((len(work.tokens) for work in works), default=0)
        if works:
            self.histogram[self.dispatcher.size_of(tokens, len(works), longest)] += 1
        captured = self.recordings.captured if self.recordings is not None else frozenset()
        agreed = dispatch_across(self.dispatcher, Step(tokens, len(works), longest), self.reduce, captured)
        if self.options.capture == "lazy" and self.recordings is not None:
            wanted = wanted_by(self.dispatcher, agreed.rows)
            if wanted.mode:
                self.recordings.heat[wanted.mode, wanted.descriptor] += 1
        decision, sizes = agreed.decision, agreed.decision.descriptor
        padded = sizes.num_tokens if decision.mode else tokens
        requests = (sizes.num_reqs or len(works)) if decision.mode is FULL else len(works)
        batch = self.buffers.fill(works, padded, requests, decision.mode is FULL)
        if self.reduce is not alone:
            ranks = agreed.tokens_across_ranks
            batch.ranks = DPMetadata(torch.tensor(ranks, dtype=torch.int32), max(ranks))
        return decision, batch

    def run_model(self, decision: Decision, batch: Batch) -> torch.Tensor:
        """Hidden states (real tokens, width), in memory that the next step writes over."""
        self.counts[f"steps_{decision.mode.name.lower()}"] += 1
        self.counts["tokens"] += batch.tokens
        self.counts["tokens_padded"] += batch.input_ids.shape[0]
        if decision.mode is FULL:
            assert self.recordings is not None
            self.recordings.full[decision.descriptor].replay()
            return self.hidden[: batch.tokens]
        if decision.mode is PIECEWISE:
            return self._pieces(batch, decision.descriptor)[: batch.tokens]
        return self._eager(batch)[: batch.tokens]

    def execute(self, works: Sequence[Work]) -> list[list[int]]:
        """Run a step: for each of its requests the tokens drawn, one for each guess and one more; none where it does not sample."""
        return self.launch(works).wait()

    @torch.inference_mode()
    def launch(self, works: Sequence[Work], before: Flight | None = None) -> Flight:
        """Begin a step; its ``wait`` gives what ``execute`` does. ``before``: the step on its way whose tokens this one's requests begin with."""
        nothing = Flight(works, (0,) * len(works))
        if not works and self.reduce is alone:
            return nothing
        decision, batch = self.prepare_inputs(works)
        if not batch.input_ids.shape[0]:  # of other ranks alone, which run without recordings
            if batch.ranks is not None and batch.ranks.max_tokens_across_dp:
                self.dummy_run(1)
            return nothing
        if before is not None and before.tokens is not None:
            batch.input_ids[: batch.tokens].copy_(before.tokens)
        hidden = self.run_model(decision, batch)
        asking = [work for work in works if work.request.asks]
        if asking:
            score_prompts(self.model, works, hidden)
        flight = nothing
        if any(batch.drawn):
            rows = hidden if batch.rows is None else hidden[batch.rows]
            along = batch.rows is None and self.draws_along(decision)
            flight = self.drawing.draw(works, batch.drawn, None if along else rows, asked=bool(asking))
        flight.batch, flight.hidden = batch, hidden
        return flight

    def draws_along(self, decision: Decision) -> bool:
        """Whether a step's recording has logits and their greatest in it: that of steps which only decode."""
        return decision.mode is FULL and decision.descriptor.uniform_query_len > 0

    def warm_up(self) -> None:
        """Run steps of padding of one token, two, and the most: all that is compiled at a first call is then there."""
        for tokens in (1, 2, self.limits.max_num_batched_tokens):
            self.dummy_run(tokens)
        self.drawing.warm_up(self.dtype)

    @torch.inference_mode()
    def dummy_run(self, tokens: int, requests: int | None = None) -> torch.Tensor:
        """A step of padding: for warming up, and for a rank that has nothing to do while others do."""
        tokens = whole_number("tokens", tokens, 0)
        batch = self.buffers.fill_dummy(tokens, requests or min(tokens, self.limits.max_num_seqs), tokens)
        return self._eager(batch)

    def check_tokens(self, id: str, tokens: Sequence[int]) -> None:
        """Raise BZ7406 for a token that the model has no embedding of, which on a GPU would end the process."""
        wrong = [t for t in tokens if type(t) is not int or not 0 <= t < self.model.config.vocab]
        if wrong:
            raise UserError(
                "BZ7406",
                f"request {id} can never run",
                why=f"token {wrong[0]!r} is not in 0..{self.model.config.vocab - 1}",
                hints=("tokens of this model's tokenizer",),
            )

    def stats(self) -> dict[str, Any]:
        """What ran how, and what could not be recorded."""
        found: dict[str, Any] = dict(self.counts)
        if self.recordings is not None:
            heat, keys = self.recordings.heat, self.recordings.captured
            found |= {
                "graphs": len(keys),
                "graph_bytes": self.recordings.held(),
                "not_recorded": dict(self.recordings.failed),
                "asked_for": {key: count for key, count in heat.most_common() if key not in keys},
            }
        return found

    def _dispatcher(self) -> Dispatcher:
        mode, options = self.options.cudagraph_mode, self.options
        if self.recordings is None and mode and not options.enforce_eager:
            text = f"BZ7410: {mode.name} records nothing: {self.device} cannot, or no recorder was given (graphs=)"
            log.warn_once(("no recorder", text), text, "cudagraphs")
        if self.recordings is None or options.enforce_eager:
            mode = NONE
        if mode.requires_piecewise_compilation() and self.piecewise is None:
            raise UserError(
                "BZ7408",
                f"{mode.name} needs the model in pieces",
                why="the runner was given no piecewise= callable",
                hints=("pass one, or take FULL, FULL_DECODE_ONLY or NONE",),
            )
        if mode.has_full_cudagraphs() and not graph_support(self.device):
            raise UserError(
                "BZ7408",
                f"{mode.name} records attention, which cannot be recorded on {self.device}",
                why="Triton is not installed",
                hints=("pip install 'braze[triton]', or take PIECEWISE or NONE",),
            )
        self.sizes = self._sizes(mode)
        return Dispatcher(
            mode,
            self.sizes,
            max_num_seqs=self.limits.max_num_seqs,
            max_num_batched_tokens=self.limits.max_num_batched_tokens,
            uniform_query_lens=(options.drafts + 1,),
            enforce_eager=options.enforce_eager,
        )

    def _sizes(self, mode: CUDAGraphMode) -> tuple[int, ...]:
        """The sizes that are recorded, as far as the buffers hold them, ascending; those that were named and are left out are told of."""
        if not mode:
            return ()
        said = self.options.sizes
        asked = size_lists.asked_for(said, size_lists.DOUBLING)
        limits = size_lists.Limits(
            self.limits.max_num_seqs, self.limits.max_num_batched_tokens, self.options.drafts + 1
        )
        found = size_lists.within(asked.sizes, limits, listed=asked.listed, tokens=bool(mode.mixed_mode()))
        for text in found.notes if said != "auto" else ():
            log.warn_once(("capture sizes", text), text, "serving")
        return tuple(reversed(found.sizes))

    def _eager(self, batch: Batch, profile: bool = False) -> torch.Tensor:
        with forward_context(
            None if profile else batch.metadata,
            context=batch.context,
            kv_cache_data=self.caches,
            dp_metadata=batch.ranks,
        ):
            return self.forward(batch.input_ids, batch.positions)

    def _pieces(self, batch: Batch, descriptor: BatchDescriptor) -> torch.Tensor:
        assert self.piecewise is not None
        with forward_context(
            batch.metadata,
            context=batch.context,
            kv_cache_data=self.caches,
            dp_metadata=batch.ranks,
            cudagraph_runtime_mode=PIECEWISE,
            batch_descriptor=descriptor,
        ):
            return self.piecewise(batch.input_ids, batch.positions)

    def _capture(self, mode: CUDAGraphMode, key: BatchDescriptor) -> Callable[[], Any] | None:
        """Warm one size up, and what is to be recorded as a whole; pieces have recorded themselves by then."""
        requests = key.num_reqs or min(key.num_tokens, self.limits.max_num_seqs)
        longest = key.uniform_query_len or key.num_tokens
        batch = self.buffers.fill_dummy(key.num_tokens, requests, longest)
        self._eager(batch)
        if mode is PIECEWISE:
            self._pieces(batch, key)
            return None
        if key.uniform_query_len:
            # for all at once: those recorded later must not move it
            every = (k.num_tokens for _, k in self.dispatcher.every_key() if k.uniform_query_len)
            self.drawing.reserve(max(every), self.dtype)

        def run() -> torch.Tensor:
            hidden = self.hidden[: key.num_tokens].copy_(self._eager(batch))
            if key.uniform_query_len:
                self.drawing.record(hidden)
            return hidden

        return run


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def _capacity(device: torch.device) -> int:
    """Bytes of a GPU; on the processor a gigabyte is taken."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 1 << 30


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
