"""braze.serve at every level and border: a decoder with attention between its pieces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from braze import forward_context, serve
from braze.serving import CUDAGraphMode, direct_register_custom_op, get_forward_context
from tests.helpers import logged

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
pytestmark = pytest.mark.usefixtures("simulated")


def attend(q: torch.Tensor, out: torch.Tensor, layer: int) -> None:
    """Each token plus the rows of the cache that the step's slots name: what attention does with a cache, in small."""
    context = get_forward_context()
    if context.attn_metadata is None:
        out.copy_(q)
        return
    cache = context.kv_cache_data[f"layers.{layer}"]
    slots = context.attn_metadata["slot_mapping"]
    where = torch.where(slots < 0, len(cache) - 1, slots)
    cache.index_copy_(0, where, q)
    out.copy_(q + cache.index_select(0, (where - 1).clamp(min=0)))


ATTEND = direct_register_custom_op("served_attend", attend, ["out"], dispatch_key="CPU")
OPS = ["braze::served_attend"]


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.up, self.down = number, nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        q = torch.nn.functional.rms_norm(x, (8,))
        out = torch.empty_like(q)
        ATTEND(q, out, self.number)
        return x + self.down(torch.nn.functional.silu(self.up(out)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList(Layer(i) for i in range(2))

    def forward(self, input_ids, positions):
        x = self.embed(input_ids) + positions[:, None]
        for layer in self.layers:
            x = layer(x)
        return x


class Steps:
    """A served decoder beside the decoder itself, each with its caches."""

    def __init__(self, **words):
        self.model = Decoder().eval()
        self.m = serve(
            self.model,
            **{
                "capture_sizes": [2, 4, 8],
                "dynamic": {"input_ids": 0, "positions": 0},
                "split_ops": OPS,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 32,
                **words,
            },
        )
        self.caches = {f"layers.{i}": torch.zeros(32, 8) for i in range(2)}
        self.reference = {name: x.clone() for name, x in self.caches.items()}

    def step(self, n: int, **batch) -> None:
        """A step gives what the decoder gives, and leaves the same in the caches."""
        ids, positions = torch.randint(0, 50, (n,)), torch.randint(0, 9, (n,))
        metadata = {"slot_mapping": torch.randperm(31)[:n]}
        with forward_context(metadata, kv_cache_data=self.caches, **batch):
            found = self.m(ids, positions)
        with forward_context(metadata, kv_cache_data=self.reference), torch.no_grad():
            expected = self.model(ids, positions)
        torch.testing.assert_close(found, expected)
        for name, cache in self.caches.items():
            torch.testing.assert_close(cache[:31], self.reference[name][:31])

    def replayed(self) -> dict[str, int]:
        return dict(self.m.stats().replayed)


def test_full_and_piecewise_decodes_whole_and_runs_the_rest_by_pieces():
    steps = Steps(level="O2")
    for n in (3, 2, 8, 4, 3):
        steps.step(n)
    for n in (5, 3, 8):
        steps.step(n, num_reqs=2)
    steps.step(20, num_reqs=3)
    assert steps.replayed() == {"FULL": 5, "PIECEWISE": 3}
    assert steps.m.stats().failures == ()
    assert steps.m.stats().captured == 6


@pytest.mark.parametrize("split", ["graph", "schedule", "capture"])
def test_pieces_at_each_border(split):
    steps = Steps(level=3, cudagraph_mode="PIECEWISE", split=split)
    for n in (3, 8, 4, 2, 3):
        steps.step(n)
    assert steps.replayed() == {"PIECEWISE": 5}
    assert steps.m.stats().failures == ()


@pytest.mark.parametrize(
    ("level", "mode"),
    [(0, "FULL"), (0, "NONE"), (1, "FULL_DECODE_ONLY"), (2, "FULL"), (2, "NONE"), (3, "NONE"), (3, "FULL")],
)
def test_every_level_gives_the_modules_results(level, mode):
    sizes = "auto" if mode == "NONE" else [2, 4, 8]
    steps = Steps(level=level, cudagraph_mode=mode, capture_sizes=sizes)
    for n in (3, 5, 2):
        steps.step(n)
    assert steps.replayed() == ({} if mode == "NONE" else {"FULL": 3})


def test_an_uncompiled_module_is_recorded_by_a_broken_recording():
    steps = Steps(level=0, cudagraph_mode={"decode": "full", "mixed": "breakable"})
    steps.step(3)
    steps.step(5, num_reqs=2)
    assert steps.replayed() == {"FULL": 1, "PIECEWISE": 1}


def test_eagers_operators_are_split_and_recorded_alike():
    steps = Steps(level=3, use_inductor=False)
    steps.step(3)
    steps.step(7)
    assert steps.replayed() == {"PIECEWISE": 2}


def test_replays_of_pieces_are_verified():
    steps = Steps(level="O2", verify="always")
    for n in (3, 8, 5):
        steps.step(n)
        steps.step(n, num_reqs=1)
    stats = steps.m.stats()
    assert (stats.verified, stats.mismatches) == (6, ())


def test_the_first_bad_piece_is_named():
    """A piece whose recording computes something else: the second of three."""
    steps = Steps(level=3, cudagraph_mode="PIECEWISE", verify="always")
    steps.step(3)
    pieces = sorted(steps.m._runnable.pieces(), key=lambda wrapper: wrapper.name)
    bad = pieces[1]
    for entry in bad.entries.values():
        entry.recording.graph = Twice(entry.recording)
    with logged() as said:
        steps.step(3)
    (text,) = [line for line in said if "BZ7312" in line]
    assert f"piece {bad.name}: " in text
    assert steps.m.stats().failures[0][0] == "PIECEWISE 4"


class Twice:
    """A graph whose outputs are spoilt after each replay."""

    def __init__(self, recording):
        self.graph, self.leaves = recording.graph, recording.leaves

    def replay(self):
        self.graph.replay()
        for leaf in self.leaves:
            leaf.add_(1)


def test_pieces_are_compiled_once_and_the_cache_says_why_it_missed(tmp_path):
    words = dict(level=3, cache_dir=str(tmp_path))
    first = Steps(**words)
    first.step(3)
    assert isinstance(first.m.cache.explain_miss(), str)
    assert list(tmp_path.rglob("*"))


def test_lazy_capture_by_pieces():
    steps = Steps(level="O2", capture="lazy")
    steps.step(3)
    steps.step(5, num_reqs=2)
    assert steps.m.stats().captured == 0
    assert {mode for mode, _ in steps.m.idle(5)} == {FULL, PIECEWISE}
    steps.step(3)
    steps.step(5, num_reqs=2)
    assert steps.replayed() == {"FULL": 1, "PIECEWISE": 1}


def test_sizes_are_compiled_for_by_name():
    steps = Steps(level=3, capture_sizes=[4, 8], compile_sizes=["cudagraph_capture_sizes"])
    steps.step(3)
    steps.step(8)
    backend = steps.m.cache
    assert {n for piece in backend.backends.values() for n in piece.concrete_size_entries} == {4, 8}
    steps = Steps(level="O3", capture_sizes=[2, 4], num_speculative_tokens=2)
    steps.step(6, uniform_q=3)
    backend = steps.m.cache
    assert {n for piece in backend.backends.values() for n in piece.concrete_size_entries} == {2, 4, 6, 12}


def test_graphs_are_dumped(tmp_path):
    Steps(level=3, debug_dump_path=str(tmp_path)).step(3)
    assert list((tmp_path / "rank_0").iterdir())
