"""braze.serve on a GPU: every mode gives the module's results, verified replays pass with spoilt pools, budgets hold: pytest tests/gpu/test_serve.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from braze import forward_context, serve
from braze.serving import direct_register_custom_op, get_forward_context

SLOTS = 257


def attend(q: torch.Tensor, out: torch.Tensor, layer: int) -> None:
    """Writes each token's row into the cache, and adds the row before it."""
    context = get_forward_context()
    if context.attn_metadata is None:
        out.copy_(q)
        return
    cache = context.kv_cache_data[f"layers.{layer}"]
    slots = context.attn_metadata["slot_mapping"]
    where = torch.where(slots < 0, SLOTS - 1, slots)
    cache.index_copy_(0, where, q)
    out.copy_(q + cache.index_select(0, (where - 1).clamp(min=0)))


ATTEND = direct_register_custom_op("g_attend", attend, ["out"], dispatch_key="CUDA")


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.up, self.down = number, nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        q = torch.nn.functional.rms_norm(x, (64,))
        out = torch.empty_like(q)
        ATTEND(q, out, self.number)
        return x + self.down(torch.nn.functional.silu(self.up(out)))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 64)
        self.layers = nn.ModuleList(Layer(i) for i in range(3))

    def forward(self, input_ids, positions):
        x = self.embed(input_ids) + positions[:, None]
        for layer in self.layers:
            x = layer(x)
        return x


class Steps:
    """A served decoder beside the decoder itself, each with its caches."""

    def __init__(self, **words):
        self.model = Decoder().eval().cuda()
        known = dict(
            capture_sizes=[2, 8, 64], dynamic={"input_ids": 0, "positions": 0}, split_ops=["braze::g_attend"],
            max_num_seqs=64, max_num_batched_tokens=256,
        )  # fmt: skip
        self.m = serve(self.model, **{**known, **words})
        self.caches = {f"layers.{i}": torch.zeros(SLOTS, 64, device="cuda") for i in range(3)}
        self.reference = {name: x.clone() for name, x in self.caches.items()}

    def step(self, n: int, **batch) -> None:
        ids, positions = torch.randint(0, 50, (n,), device="cuda"), torch.randint(0, 9, (n,), device="cuda")
        metadata = {"slot_mapping": torch.randperm(SLOTS - 1, device="cuda")[:n]}
        with forward_context(metadata, kv_cache_data=self.caches, **batch):
            found = self.m(ids, positions)
        with forward_context(metadata, kv_cache_data=self.reference), torch.no_grad():
            expected = self.model(ids, positions)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        for name, cache in self.caches.items():
            torch.testing.assert_close(
                cache[: SLOTS - 1], self.reference[name][: SLOTS - 1], rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("pool", ["per_tier", "shared"])
@pytest.mark.parametrize(
    "words",
    [
        dict(level=0, cudagraph_mode="FULL"),
        dict(level=0, cudagraph_mode={"decode": "full", "mixed": "breakable"}),
        dict(level="O2"),
        dict(level=3, cudagraph_mode="PIECEWISE"),
        dict(level=3, cudagraph_mode="PIECEWISE", split="schedule"),
        dict(level=3, cudagraph_mode="PIECEWISE", split="capture"),
        dict(level=3, cudagraph_mode="FULL_DECODE_ONLY"),
    ],
    ids=lambda words: "-".join(str(v) for v in words.values()),
)
def test_any_mode_gives_the_modules_results_verified(words, pool):
    steps = Steps(verify="always", pool=pool, **words)
    for n in (3, 64, 1, 8, 5, 33, 2):
        steps.step(n)
        if n > 1:
            steps.step(n, num_reqs=2)
    steps.step(100)
    stats = steps.m.stats()
    assert stats.failures == ()
    assert stats.mismatches == ()
    assert stats.verified == sum(dict(stats.replayed).values()) > 0


def test_a_budget_holds():
    """The allocator takes memory in segments, so that the largest size alone is over a budget of a few bytes."""
    steps = Steps(level=0, cudagraph_mode="FULL", memory_budget=1 << 10)
    steps.step(8)
    stats = steps.m.stats()
    assert stats.bytes <= 1 << 10
    assert all("memory_budget" in why for _, why in stats.failures)


def test_lazy_capture():
    steps = Steps(level="O2", capture="lazy")
    steps.step(5)
    steps.step(5, num_reqs=2)
    assert len(steps.m.idle(4)) == 2
    steps.step(5)
    steps.step(5, num_reqs=2)
    assert dict(steps.m.stats().replayed) == {"FULL": 1, "PIECEWISE": 1}
