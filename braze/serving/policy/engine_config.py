"""What an engine adds to the compilation's configuration: its limits, and what follows from both."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from typing import Any

from braze.options import near
from braze.serving.policy import sizes as size_lists
from braze.serving.policy.config import CompilationConfig, contradiction
from braze.serving.policy.dispatch import Dispatcher
from braze.serving.policy.fields import refuse, switch, whole
from braze.serving.policy.levels import CompilationLevel
from braze.serving.policy.modes import AttentionCGSupport, CUDAGraphMode, support_of
from braze.serving.policy.negotiation import Capabilities, Resolution, resolve_mode
from braze.serving.policy.sizes import Limits, Sizes, Suggestion
from braze.support import log
from braze.support.errors import UserError


class Config:
    """The configuration of an engine.

    ``enforce_eager``: nothing is compiled and nothing recorded. ``max_num_seqs``: requests in a batch at most;
    ``max_num_batched_tokens``: tokens. ``num_speculative_tokens``: what a drafter proposes for each request, so that it decodes one more.
    ``variants``: what else recordings are kept apart by. ``compilation_config``: all about compiling; ``graph_bs``: the capture
    sizes that the buffers hold, ascending; empty where nothing is recorded.
    """

    def __init__(
        self,
        model: str = "",
        *,
        compilation_config: CompilationConfig | None = None,
        enforce_eager: bool = False,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        num_speculative_tokens: int = 0,
        data_parallel_size: int = 1,
        data_parallel_rank: int = 0,
        variants: Sequence[Hashable] = (None,),
        **unknown: Any,
    ) -> None:
        if unknown:
            name, known = min(unknown), inspect.signature(Config).parameters.keys() - {"unknown"}
            raise UserError("BZ7101", f"Config has no field {name!r}", hints=[near(name, known)])
        self.model = model
        self.compilation_config = CompilationConfig() if compilation_config is None else compilation_config
        if not isinstance(self.compilation_config, CompilationConfig):
            raise refuse("compilation_config", compilation_config, "a CompilationConfig")
        self.enforce_eager = switch("enforce_eager", enforce_eager)
        self.max_num_seqs = whole("max_num_seqs", max_num_seqs)
        self.max_num_batched_tokens = whole("max_num_batched_tokens", max_num_batched_tokens)
        self.num_speculative_tokens = whole("num_speculative_tokens", num_speculative_tokens, 0)
        self.data_parallel_size = whole("data_parallel_size", data_parallel_size)
        self.data_parallel_rank = whole("data_parallel_rank", data_parallel_rank, 0)
        self.variants = _variants(variants)
        self._check()
        self.traffic: Suggestion | None = None
        self.graph_bs: tuple[int, ...] = ()
        if self.cudagraph_mode:
            found = self._capture_sizes()
            self.graph_bs = tuple(reversed(found.sizes))
            for note in found.notes:
                log.warn_once(("capture sizes", note), note, "serving")
        self.compile_sizes = self._compile_sizes()

    @property
    def uniform_query_len(self) -> int:
        """Tokens of each decoding request: one, and what a drafter adds."""
        return 1 + self.num_speculative_tokens

    @property
    def level(self) -> CompilationLevel:
        """The level of compilation that holds: none where eager is enforced."""
        return CompilationLevel.NO_COMPILATION if self.enforce_eager else self.compilation_config.level

    @property
    def cudagraph_mode(self) -> CUDAGraphMode:
        """The mode that is wanted: none where eager is enforced; see :meth:`resolve` for what can be had."""
        return CUDAGraphMode.NONE if self.enforce_eager else self.compilation_config.cudagraph_mode

    def resolve(
        self,
        support: AttentionCGSupport = AttentionCGSupport.ALWAYS,
        *,
        state_blocks: int | None = None,
    ) -> Resolution:
        """The mode that can be had with attention that can be recorded as ``support`` says; downgrades are told (BZ7108)."""
        config = self.compilation_config
        have = Capabilities(
            support=support_of(support),
            pieces=self.level >= CompilationLevel.PIECEWISE or config.split == "capture",
            split_nowhere=config.splitting_ops == (),
            uniform_query_len=self.uniform_query_len,
            state_blocks=state_blocks,
            max_num_seqs=self.max_num_seqs,
            enforce_eager=self.enforce_eager,
        )
        given = config.sources["cudagraph_mode"].by_user
        found = resolve_mode(config.cudagraph_mode, have, given=given and not self.enforce_eager)
        for downgrade in found.downgrades:
            text = f"BZ7108: cudagraph_mode: {downgrade}"
            log.warn_once(("downgrade", text), text, "serving")
        return found

    def dispatcher(self, mode: CUDAGraphMode, query_lens: Sequence[int] = ()) -> Dispatcher:
        """The dispatcher of a mode that :meth:`resolve` gave; ``query_lens``: other tokens a request that steps decode, besides."""
        return Dispatcher(
            mode,
            self.graph_bs,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            uniform_query_lens=(self.uniform_query_len, *query_lens),
            variants=self.variants,
            enforce_eager=self.enforce_eager,
        )

    def _check(self) -> None:
        """Refuse what contradicts itself."""
        config = self.compilation_config
        if self.data_parallel_rank >= self.data_parallel_size:
            raise contradiction(
                f"data_parallel_rank={self.data_parallel_rank}",
                f"data_parallel_size={self.data_parallel_size}",
                "ranks count from 0",
            )
        if self.uniform_query_len > self.max_num_batched_tokens:
            raise contradiction(
                f"num_speculative_tokens={self.num_speculative_tokens}",
                f"max_num_batched_tokens={self.max_num_batched_tokens}",
                "one request's tokens do not fit",
            )
        if not self.enforce_eager:
            return
        for name in ("level", "cudagraph_mode"):
            value = getattr(config, name)
            if value and config.sources[name].by_user:
                raise contradiction("enforce_eager=True", f"{name}={value.name}", "leave one of them out")

    def _capture_sizes(self) -> Sizes:
        """What the fields ask for, within the buffers."""
        config = self.compilation_config
        said: Sequence[int] | str | None = config.cudagraph_capture_sizes
        if said is None and len(config.cuda_graph_sizes) > 1:
            said = config.cuda_graph_sizes
        asked = size_lists.asked_for(said, self._pattern())
        wanted, self.traffic = asked.sizes, asked.traffic
        limits = Limits(self.max_num_seqs, self.max_num_batched_tokens, self.uniform_query_len)
        tokens = bool(self.cudagraph_mode.mixed_mode())
        most = config.max_cudagraph_capture_size
        if most is not None and most < max(wanted):
            wanted = (*(size for size in wanted if size < most), most)
        return size_lists.within(wanted, limits, listed=asked.listed, tokens=tokens)

    def _pattern(self) -> tuple[int, ...]:
        sizes = self.compilation_config.cuda_graph_sizes
        # of a pattern beyond the buffers its first size there stands for all: it is left out, and told of
        beyond = self.max_num_batched_tokens + size_lists.STRIDE
        return size_lists.pattern(min(sizes[0], beyond)) if len(sizes) == 1 else sizes

    def recorded_tokens(self) -> tuple[int, ...]:
        """The numbers of tokens that steps are padded to, ascending: of requests that decode several each, whole requests' too."""
        keys = self.dispatcher(self.cudagraph_mode, (1,)).every_key()
        return tuple(sorted({key.num_tokens for _, key in keys}))

    def _compile_sizes(self) -> tuple[int, ...]:
        """The sizes that pieces are compiled for: each one that a piece can be called with (BZ7106)."""
        found: dict[int, None] = {}
        recorded = self.recorded_tokens() if self.compilation_config.compile_sizes else ()
        for size in self.compilation_config.compile_sizes or ():
            if isinstance(size, str):
                found.update(dict.fromkeys(recorded))
                continue
            padded = min((s for s in recorded if s >= size), default=size)
            # where mixed batches are not recorded, they come with any number of tokens
            if padded != size and self.cudagraph_mode.mixed_mode():
                raise UserError(
                    "BZ7106",
                    f"compile_sizes has {size}, which no piece is called with",
                    why=f"steps of {size} tokens are padded to {padded}",
                    hints=[f"compile for {padded}, or capture {size}, too"],
                )
            found[size] = None
        return () if self.enforce_eager else tuple(found)


def _variants(given: Any) -> tuple[Hashable, ...]:
    """What recordings are kept apart by: at least one value, each of which can be looked up."""
    try:
        found = () if isinstance(given, str) else tuple(dict.fromkeys(given))
    except TypeError:  # nothing that has values, or one that cannot be looked up
        found = ()
    if not found:
        raise refuse("variants", given, "a sequence of hashable values, as (None,) or (None, 'adapter')")
    return found
