"""A served model: each call is dispatched, padded, replayed, and sliced.

Calls of one model come from one thread at a time, as the steps of an engine do: they share the buffers that inputs are staged into.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from braze.serving.policy import sizes as size_lists
from braze.serving.policy.data_parallel import Batch, Reduce, dispatch_across, wanted_by
from braze.serving.policy.dispatch import BatchDescriptor, Decision, Key, in_words
from braze.serving.policy.engine_config import Config
from braze.serving.policy.fields import whole
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.policy.negotiation import Resolution
from braze.serving.policy.sizes import Suggestion
from braze.serving.served.batch import batch_of
from braze.serving.served.compiled import Runnable
from braze.serving.served.inputs import Inputs, unlike
from braze.serving.served.outputs import Outputs, given
from braze.serving.served.recordings import Recordings
from braze.serving.served.stats import Counts, Stats
from braze.serving.served.verify import Step, Verifier
from braze.serving.step.context import ForwardContext, forward_context, get_forward_context
from braze.serving.step.slots import Extent
from braze.support.errors import UserError
from braze.support.interrupts import is_of_handler

NONE = CUDAGraphMode.NONE


class ServedModel(nn.Module):
    """A module behind dispatch, padding and recordings; see ``braze.serve``.

    ``cache``: the compiler's cache, whose ``explain_miss()`` says what made it compile. ``outputs``: ``"own"``, or ``"borrow"``: inference
    tensors, valid until the next call.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        resolution: Resolution,
        runnable: Runnable,
        inputs: Inputs,
        *,
        outputs: str,
        reduce: Reduce,
        query_lens: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.model = model
        self.config, self.resolution = config, resolution
        self.cudagraph_mode = resolution.mode
        self.dispatcher = config.dispatcher(resolution.mode, query_lens)
        self._own = outputs == "own"
        self._reduce = reduce
        self._runnable, self._inputs, self._outputs = runnable, inputs, Outputs()
        self._counts = Counts()
        compilation = config.compilation_config
        self._recordings = Recordings(
            self.dispatcher, runnable.pools, self._record, self._forget, compilation.memory_budget, reduce
        )
        self._verifier = Verifier(compilation.verify, model, runnable, self._counts)
        self._eagerly = compilation.capture == "eager"
        #: a call's arguments and metadata, from which dummies of other sizes are made
        self._example: tuple[dict[str, Any], ForwardContext] | None = None
        self._lock = threading.RLock()

    @property
    def cache(self) -> Any:
        """What compiles the module, and keeps that on disk."""
        return self._runnable.manager

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """The module's result for this call, without padding.

        The forward context (``braze.forward_context``) says what kind of batch it is; without one each row is a request that decodes.
        UserError (BZ7307, BZ7308) for a call without a whole number of requests, or with arguments of different sizes.
        """
        with self._lock:
            # always the same, whatever the caller's: compiled code is of one mode, and so are recordings
            with torch.inference_mode():
                context = get_forward_context()
                values = self._inputs.bind(args, kwargs)
                batch = batch_of(context, self._inputs.tokens(values))
                self._prepare(values, context)
                wanted, decision = self._decide(batch, values)
                size = self.dispatcher.size_of(batch.num_tokens, batch.num_reqs, batch.max_query_len)
                self._counts.step(batch.num_tokens, size, wanted, decision)
                if decision.mode is NONE:
                    result = self._bare(values, context, decision)
                else:
                    result = self._padded(values, context, batch, decision)
            if not self._own:
                return result
            return given(result, copied=decision.mode is not NONE)

    def capture(self, /, *args: Any, **kwargs: Any) -> Stats:
        """Capture all sizes now, the largest first; ``args``: a call like those to come, where none has been made.

        The example is run, on the forward context that is set. UserError (BZ7311) without an example.
        """
        with self._lock, torch.inference_mode():
            if args or kwargs:
                self._learn(self._inputs.bind(args, kwargs), get_forward_context())
            if self._example is None:
                raise UserError(
                    "BZ7311",
                    "there is nothing yet to capture with",
                    hints=["m.capture(input_ids, positions) with a call like those to come, or a first call"],
                )
            self._recordings.all(progress=self.config.data_parallel_rank == 0)
        return self.stats()

    def idle(self, most: int = 1) -> tuple[Key, ...]:
        """Capture what steps have asked for most, at most so many sizes: for idle steps with ``capture="lazy"``. All ranks call it."""
        most = whole("most", most)
        done: list[Key] = []
        with self._lock, torch.inference_mode():
            while len(done) < most and self._example is not None:
                key = self._recordings.next(self._counts.heat)
                if key is None:
                    break
                done.append(key)
        return tuple(done)

    def dispatch(
        self, num_tokens: int, num_reqs: int | None = None, q: int = 1, variant: Hashable = None
    ) -> Decision:
        """How a step would run, with what is captured now; pure. ``num_reqs`` None: requests of ``q`` tokens each."""
        num_tokens, q = whole("num_tokens", num_tokens, 0), whole("q", q)
        requests = num_tokens // q if num_reqs is None else whole("num_reqs", num_reqs, 0)
        return self.dispatcher.dispatch(
            num_tokens, requests, max_query_len=q, variant=variant, captured=self._captured()
        )

    def stats(self) -> Stats:
        """What has been done so far."""
        found = self._recordings
        return self._counts.table(len(found.captured), found.held(), found.failed)

    def explain(self, num_tokens: int | None = None, num_reqs: int | None = None, q: int = 1) -> str:
        """How a step of ``num_tokens`` runs and why; without a number: the mode, its rules, the configuration, and what failed."""
        if num_tokens is not None:
            now = self.dispatch(num_tokens, num_reqs, q)
            return in_words(num_tokens, now)
        lines = [f"cudagraph_mode: {self.cudagraph_mode.name}", *map(str, self.resolution.downgrades)]
        lines += [
            f"{mode.name} of {key.num_tokens}: {why}" for (mode, key), why in self._recordings.failed.items()
        ]
        return "\n".join([*lines, self.config.compilation_config.explain()])

    def dropped_guards(self) -> tuple[str, ...]:
        """What compiled code takes for granted of all but a call's arguments, since it held when that was captured (levels 2 and 3)."""
        return self._runnable.dropped_guards()

    def suggest_sizes(self, k: int = size_lists.FROM_TRAFFIC) -> Suggestion:
        """The ``k`` capture sizes that would have padded the steps so far least, or that those there are do as well."""
        k = whole("k", k)
        if not self.config.graph_bs:
            return Suggestion((), 0.0, 0.0, True)
        return size_lists.suggest_sizes(self._counts.histogram, k, default=self.config.graph_bs)

    def reset_recordings(self) -> None:
        """Let go of all recordings, as when the caches that they read have been made anew; the next call captures again."""
        with self._lock:
            for key in list(self._recordings.captured):
                self._recordings.drop(key)
            self._recordings.failed.clear()
            self._runnable.pools.clear()
            self._example = None

    def _captured(self) -> Any:
        return None if self._recordings.complete else self._recordings

    def _decide(self, batch: Batch, values: dict[str, Any]) -> tuple[Decision, Decision]:
        """What the step would do with everything captured, and what it does, with all ranks.

        A call with other numbers than those in the recordings replays none; numbers that come again may be variants.
        """
        other = unlike(values, self._example[0]) if self._example is not None else ""
        captured = () if other else self._captured()
        found = dispatch_across(self.dispatcher, batch, self._reduce, captured)
        agreed = found.decision
        if other and agreed.mode is NONE and self.cudagraph_mode:
            agreed = Decision(NONE, agreed.descriptor, other)
        if other or self._recordings.complete:
            return agreed, agreed
        return wanted_by(self.dispatcher, found.rows, batch.variant), agreed

    def _prepare(self, values: dict[str, Any], context: ForwardContext) -> None:
        """At a first call, learn what the outputs are like, and capture."""
        if self._example is not None or not self.cudagraph_mode:
            return
        self._learn(values, context)
        if self._eagerly:
            self._recordings.all(progress=self.config.data_parallel_rank == 0)

    def _learn(self, values: dict[str, Any], context: ForwardContext) -> None:
        """Keep a call as the example, and find out by two dummies which dimensions of the outputs vary."""
        self._inputs.refuse_unknown(values, context.attn_metadata)
        with self._state_kept():
            for size in self._trial_sizes():
                arguments, metadata = self._inputs.dummies(values, context.attn_metadata, size)
                bare = Decision(NONE, BatchDescriptor(size.tokens, size.requests), "")
                with self._step(context, metadata, bare), self._inputs.watched(arguments):
                    self._outputs.learn(size, self._call(arguments))
        self._example = values, context

    def _trial_sizes(self) -> tuple[Extent, Extent]:
        """Two batches that differ in tokens and requests, and, where the limits allow, in one from the other."""
        most, requests = self.config.max_num_batched_tokens, self.config.max_num_seqs
        if requests >= 3 and most >= 5:
            return Extent(3, 2), Extent(5, 3)
        return Extent(min(2, most), 1), Extent(min(3, most), min(2, requests))

    def _record(self, key: Key) -> str:
        """Run a key's size on dummies, once as it is and once so that it is recorded; why it was not, if so."""
        assert self._example is not None
        (mode, descriptor), (values, context) = key, self._example
        size = Extent(descriptor.num_tokens, _requests(descriptor, self.config))
        with self._state_kept():
            try:
                arguments, metadata = self._inputs.dummies(
                    values, context.attn_metadata, size, _longest(mode, descriptor)
                )
                with self._step(context, metadata, Decision(NONE, descriptor, "")):
                    # what libraries make at a first call is made here
                    self._outputs.learn(size, self._call(arguments))
                with self._step(context, metadata, Decision(mode, descriptor, "")):
                    self._call(arguments)
            except UserError:
                raise
            except Exception as error:
                if is_of_handler(error):  # a time limit of the program's
                    raise
                return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return self._runnable.reason(key)

    def _forget(self, key: Key) -> None:
        self._runnable.pools.release(key[1])

    def _bare(self, values: dict[str, Any], context: ForwardContext, decision: Decision) -> Any:
        """A step without recordings and without padding."""
        with self._step(context, context.attn_metadata, decision):
            return self._call(values)

    def _padded(
        self, values: dict[str, Any], context: ForwardContext, batch: Batch, decision: Decision
    ) -> Any:
        """A step that replays."""
        real = Extent(batch.num_tokens, batch.num_reqs)
        padded = Extent(
            decision.descriptor.num_tokens, _requests(decision.descriptor, self.config, real.requests)
        )
        longest = _longest(decision.mode, decision.descriptor)
        if self._verifier.wants():
            return self._verified(values, context, real, padded, decision)
        arguments, metadata = self._inputs.stage(values, context.attn_metadata, real, padded, longest)
        with self._step(context, metadata, decision):
            result = self._call(arguments)
        self._inputs.give_back(values)
        return self._outputs.real(result, real)

    def _verified(
        self,
        values: dict[str, Any],
        context: ForwardContext,
        real: Extent,
        padded: Extent,
        decision: Decision,
    ) -> Any:
        """A step that replays, and is compared with one that does not; where they differ, the latter's result holds."""
        longest = _longest(decision.mode, decision.descriptor)
        padded_bare = Decision(NONE, decision.descriptor, "")
        bare = Decision(NONE, BatchDescriptor(real.tokens, real.requests), "")

        def run(how: Decision) -> Any:  # staged each time: the model may write to its inputs
            arguments, metadata = self._inputs.stage(values, context.attn_metadata, real, padded, longest)
            self._inputs.poison(real)
            with self._step(context, metadata, how):
                result = self._call(arguments)
            return given(self._outputs.real(result, real), copied=True)

        copies: dict[str, Any] = {}

        def eager() -> Any:
            copies.update((k, x.clone() if isinstance(x, torch.Tensor) else x) for k, x in values.items())
            with self._step(context, context.attn_metadata, bare):
                args, kwargs = self._inputs.call(copies)
                return self.model(*args, **kwargs)

        step = Step(decision, lambda: run(decision), lambda: run(padded_bare), eager)
        result, why = self._verifier.compare(step, context)
        self._inputs.give_back(values, copies)
        if why:
            self._forget((decision.mode, decision.descriptor))
            self._recordings.fail((decision.mode, decision.descriptor), why)
        return result

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        args, kwargs = self._inputs.call(arguments)
        return self._runnable(*args, **kwargs)

    def _step(
        self, context: ForwardContext, metadata: Any, decision: Decision
    ) -> contextlib.AbstractContextManager[ForwardContext]:
        """The forward context of a step that runs as ``decision`` says."""
        return forward_context(
            metadata,
            None,
            context.context,
            no_compile_layers=context.no_compile_layers,
            kv_cache_data=context.kv_cache_data,
            dp_metadata=context.dp_metadata,
            spec_decode_metadata=context.spec_decode_metadata,
            cudagraph_runtime_mode=decision.mode,
            batch_descriptor=decision.descriptor,
        )

    @contextlib.contextmanager
    def _state_kept(self) -> Iterator[None]:
        """A block after which the module's buffers hold what they held: dummies leave nothing behind."""
        kept = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        try:
            yield
        finally:
            for buffer, before in kept:
                buffer.copy_(before)


def _requests(descriptor: BatchDescriptor, config: Config, real: int | None = None) -> int:
    """The requests that metadata is padded to: the recording's, or where any number will do those there are."""
    if descriptor.num_reqs is not None:
        return descriptor.num_reqs
    return min(descriptor.num_tokens, config.max_num_seqs) if real is None else real


def _longest(mode: CUDAGraphMode, descriptor: BatchDescriptor) -> int | None:
    """The bound of a request's tokens that a recording of attention holds for all of its steps; None where attention is not recorded."""
    if mode is not CUDAGraphMode.FULL:
        return None
    return descriptor.uniform_query_len or descriptor.num_tokens
