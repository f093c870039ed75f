"""Which mode of CUDA graphs can be had: what is wanted, against what attention and the compiler can do.

Rules, in order. Each changes a mode that nobody asked for, and says so; one that the user gave is never changed: BZ7104.

1. ``enforce_eager``: nothing is recorded.
2. Mixed batches as a whole need attention that can always be recorded. Else decoding alone is recorded as a whole, and the rest by
   pieces, or not at all where there are none.
3. Decoding as a whole needs attention that can be recorded at all.
4. Decoding of more tokens a request than one needs attention that can be recorded with them.
5. Decoding as a whole keeps a block of state per request, where a model has such state: as many requests as blocks.
6. Pieces need a graph that is split, or a recording that is broken; without any, what was to run by pieces runs without graphs.
7. A graph that is split nowhere is one piece, attention in it: it is recorded as a whole, and only where attention can always be.
"""

from __future__ import annotations

from braze.serving.policy.modes import AttentionCGSupport, CUDAGraphMode
from braze.support.errors import UserError
from braze.support.record import record

FULL, PIECEWISE, NONE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE


@record
class Capabilities:
    """What there is to record with.

    ``support``: of all attention layers, the least. ``pieces``: the model comes in pieces, or its recording can be broken.
    ``split_nowhere``: it was said that no operator splits the graph. ``uniform_query_len``: tokens that each decoding request
    has. ``state_blocks``: blocks of recurrent state, None where the model has none; ``max_num_seqs``: requests in a batch at most.
    """

    support: AttentionCGSupport = AttentionCGSupport.ALWAYS
    pieces: bool = True
    split_nowhere: bool = False
    uniform_query_len: int = 1
    state_blocks: int | None = None
    max_num_seqs: int = 0
    enforce_eager: bool = False


@record
class Downgrade:
    """One rule's change of the mode, with its reason in words."""

    rule: int
    before: CUDAGraphMode
    after: CUDAGraphMode
    text: str

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.before.name} -> {self.after.name}: {self.text}"


@record
class Resolution:
    """The mode that steps are run in, and how it came about."""

    mode: CUDAGraphMode
    downgrades: tuple[Downgrade, ...] = ()


def resolve_mode(wanted: CUDAGraphMode, have: Capabilities, *, given: bool = False) -> Resolution:
    """The mode that can be had; ``given``: the user asked for ``wanted``, so that any change is an error (BZ7104)."""
    mode = wanted
    downgrades: list[Downgrade] = []
    for number, rule in enumerate(RULES, 1):
        changed = rule(mode, have)
        if changed is None or changed[0] is mode:
            continue
        after, text = changed
        if given:
            raise UserError(
                "BZ7104",
                f"cudagraph_mode={wanted.name} cannot be had",
                why=f"rule {number}: {text}",
                hints=[
                    f"ask for {after.name}, or leave cudagraph_mode out and let the rules choose",
                    "docs/serving.md lists the rules",
                ],
            )
        downgrades.append(Downgrade(number, mode, after, text))
        mode = after
    return Resolution(mode, tuple(downgrades))


def _eager(mode: CUDAGraphMode, have: Capabilities) -> tuple[CUDAGraphMode, str] | None:
    return (NONE, "enforce_eager is set") if have.enforce_eager else None


def _mixed_full(mode: CUDAGraphMode, have: Capabilities) -> tuple[CUDAGraphMode, str] | None:
    if mode.mixed_mode() is not FULL or have.support is AttentionCGSupport.ALWAYS:
        return None
    after = CUDAGraphMode.FULL_AND_PIECEWISE if _splits(have) else CUDAGraphMode.FULL_DECODE_ONLY
    return after, f"attention can be recorded with {_words(have.support)}, not with mixed batches"


def _decode_never(mode: CUDAGraphMode, have: Capabilities) -> tuple[CUDAGraphMode, str] | None:
    if mode.decode_mode() is not FULL or have.support is not AttentionCGSupport.NEVER:
        return None
    return _without_full(have), "attention can be recorded with no batch"


def _decode_many(mode: CUDAGraphMode, have: Capabilities) -> tuple[CUDAGraphMode, str] | None:
    if mode.decode_mode() is not FULL or have.uniform_query_len <= 1:
        return None
    if have.support >= AttentionCGSupport.UNIFORM_BATCH:
        return None
    text = f"attention can be recorded with {_words(have.support)}, and requests decode {have.uniform_query_len} at a time"
    return _without_full(have), text


def _decode_state(mode: CUDAGraphMode, have: Capabilities) -> tuple[CUDAGraphMode, str] | None:
    if mode.decode_mode() is not FULL or have.state_blocks is None or have.max_num_seqs <= have.state_blocks:
        return None
    text = f"{have.max_num_seqs} requests need a block of state each, and there are {have.state_blocks}"
    return _without_full(have), text


def _no_pieces(mode: CUDAGraphMode, have: Capabilities) -> tuple[CUDAGraphMode, str] | None:
    if have.pieces or have.split_nowhere or not mode.requires_piecewise_compilation():
        return None
    return mode.without_piecewise(), "the model is not compiled in pieces, and its recording is not broken"


def _one_piece(mode: CUDAGraphMode, have: Capabilities) -> tuple[CUDAGraphMode, str] | None:
    if not have.split_nowhere or not mode.requires_piecewise_compilation():
        return None
    if have.support is AttentionCGSupport.ALWAYS:
        return FULL, "splitting_ops is empty: the one piece is the whole, attention in it"
    return (
        mode.without_piecewise(),
        f"splitting_ops is empty, and attention can be recorded with {_words(have.support)}",
    )


#: in the order of their numbers, from 1
RULES = (_eager, _mixed_full, _decode_never, _decode_many, _decode_state, _no_pieces, _one_piece)


def _splits(have: Capabilities) -> bool:
    return have.pieces and not have.split_nowhere


def _without_full(have: Capabilities) -> CUDAGraphMode:
    return PIECEWISE if _splits(have) else NONE


def _words(support: AttentionCGSupport) -> str:
    return {
        AttentionCGSupport.NEVER: "no batch",
        AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE: "one token a request",
        AttentionCGSupport.UNIFORM_BATCH: "as many tokens for every request",
        AttentionCGSupport.ALWAYS: "any batch",
    }[support]
