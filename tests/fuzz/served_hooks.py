"""Served models with code of their own where ``braze.serve`` calls it: the forward, the attention between pieces, the metadata of a step, the ranks' reduce.

A step is calls of several sizes, so that recordings are made, padded and replayed; it leaves their results and the model's cache.
Without ``compile`` the model itself is called, on the same forward contexts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from braze import forward_context, serve
from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving import get_forward_context
from braze.serving.step.slots import Slot

Ask = Callable[[], None]
IDS = torch.tensor([3, 1, 4, 1])
#: rows of the cache; the last one is nobody's, and padding goes there
ROWS = 9
LEVEL0 = dict(level=0, cudagraph_mode="FULL")
DEVICE = SimulatedGraphs("cpu")
#: what the attention between pieces calls
between: list[Ask] = [lambda: None]


@torch.library.custom_op("served_hooks::attend", mutates_args=("rows",))
def attend(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Writes each token's row where the metadata says, and reads it: what attention does with a cache, in small."""
    between[0]()
    slots = get_forward_context().attn_metadata.slot_mapping
    where = torch.where(slots < 0, ROWS - 1, slots)
    rows.index_copy_(0, where, x)
    return rows.index_select(0, where) * 2


@attend.register_fake
def _(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@dataclasses.dataclass
class Metadata:
    """A step's metadata; made anew for each step that is padded."""

    ask: Ask
    slot_mapping: torch.Tensor

    def __post_init__(self) -> None:
        self.ask()


class Model(nn.Module):
    """A layer around attention."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(16, 4)
        self.register_buffer("rows", torch.zeros(ROWS, 4))
        self.ask = ask

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.ask()
        return attend(self.embed(ids).sin(), self.rows) + 1


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """The processor records, by a simulated device: always the same one, to which what has been compiled is bound."""
    register("cpu", lambda name: DEVICE)
    try:
        yield
    finally:
        register("cpu", None)


def nothing() -> None:
    pass


def served(at: str, words: dict[str, Any], strike: Any, compile: Any) -> Callable[[], list[torch.Tensor]]:
    """A step of a served model; ``at``: what calls ``strike``."""
    asks: dict[str, Ask] = {at: strike}
    model = Model(asks.get("forward", nothing))
    call: Any = model
    if compile.__name__ != "as_it_is":

        def reduce(row: Sequence[int]) -> list[list[int]]:
            asks.get("reduce", nothing)()
            return [list(row)]

        call = serve(
            model, slots={"slot_mapping": Slot(pad=-1)}, capture_sizes=[1, 2, 4], max_num_seqs=4, max_num_batched_tokens=16,
            reduce=reduce, **words,
        )  # fmt: skip

    def step() -> list[torch.Tensor]:
        between[0] = asks.get("attention", nothing)
        found = []
        try:
            with simulated(), torch.no_grad():
                for n in (3, 1, 4):
                    with forward_context(Metadata(asks.get("metadata", nothing), torch.arange(n) * 2 % 7)):
                        found.append(call(IDS[:n]).clone())
                if call is not model and words.get("capture") == "lazy":
                    call.idle(3)
        finally:
            between[0] = nothing
        return [*found, model.rows[:-1].clone()]

    return step


LAZY = LEVEL0 | dict(capture="lazy")
PIECES = dict(level=3, cudagraph_mode="PIECEWISE", split_ops=["served_hooks::attend"])
#: where the code is -> (what calls it, how the model is served)
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "forward of a served model": ("forward", LEVEL0),
    "forward of a served model captured when idle": ("forward", LAZY),
    "forward of a served model that is verified": ("forward", LEVEL0 | dict(verify="always")),
    "attention of a served model": ("attention", LEVEL0),
    "attention between served pieces": ("attention", PIECES),
    "metadata of a served step": ("metadata", LEVEL0),
    "metadata of a step of served pieces": ("metadata", PIECES),
    "reduce of a served model's ranks": ("reduce", LAZY),
}
