"""braze.serve on decoders with attention over a paged cache: prefill, decode and mixed steps give the decoder's hidden states."""

from __future__ import annotations

import pytest
import torch

from braze import forward_context, serve
from braze.serving import AttentionMetaData
from braze.serving.engine.attention.operators import KVCache, layer_key
from tests.serving.engine.tiny import tiny

pytestmark = pytest.mark.usefixtures("simulated")
BLOCK, BLOCKS, LONGEST = 4, 24, 16


def caches(model) -> dict[str, KVCache]:
    shape = model.cache_shape
    found = {}
    for i in range(model.config.layers):
        key = torch.zeros(BLOCKS, BLOCK, shape.heads, shape.key_dim)
        value = (
            key[..., : shape.value_dim]
            if shape.latent
            else torch.zeros(BLOCKS, BLOCK, shape.heads, shape.value_dim)
        )
        found[layer_key(i)] = KVCache(key, value, shape.latent)
    return found


def metadata(starts: list[int], lengths: list[int]) -> tuple[AttentionMetaData, torch.Tensor]:
    """A step in which request i has ``lengths[i]`` tokens behind ``starts[i]``; request i owns the blocks from 4 i on."""
    positions = [s + j for s, n in zip(starts, lengths) for j in range(n)]
    owners = [i for i, n in enumerate(lengths) for _ in range(n)]
    tables = torch.arange(4 * len(lengths), dtype=torch.int32).view(-1, 4)
    slots = [(int(tables[i, p // BLOCK])) * BLOCK + p % BLOCK for i, p in zip(owners, positions)]
    ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    total = torch.tensor([s + n for s, n in zip(starts, lengths)], dtype=torch.int32)
    step = AttentionMetaData(ends, total, tables, torch.tensor(slots), max(lengths), LONGEST, len(positions))
    return step, torch.tensor(positions)


#: (where each request is, its tokens in this step): prefill, decode, mixed, decode with fewer requests
STEPS = [
    ([0, 0, 0], [5, 3, 7]),
    ([5, 3, 7], [1, 1, 1]),
    ([6, 4, 8], [1, 4, 1]),
    ([7, 8], [1, 1]),
    ([8, 9, 9, 0, 0], [1] * 5),
]


def run(call, model, held):
    """The hidden states of all steps."""
    torch.manual_seed(1)
    found = []
    for starts, lengths in STEPS:
        step, positions = metadata(starts, lengths)
        ids = torch.randint(3, model.config.vocab, (len(positions),))
        with forward_context(step, kv_cache_data=held), torch.no_grad():
            found.append(call(ids, positions))
    return found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama", dict(level="O2")),
        ("qwen3", dict(level=3, cudagraph_mode="PIECEWISE")),
        ("qwen3", dict(level=3, cudagraph_mode="FULL", verify="always")),
        ("deepseek", dict(level=0, cudagraph_mode="FULL_DECODE_ONLY")),
    ],
)
def test_steps_of_a_decoder(name, words):
    model = tiny(name).eval()
    m = serve(
        model,
        dynamic={"input_ids": 0, "positions": 0},
        capture_sizes=[4, 16],
        max_num_seqs=6,
        max_num_batched_tokens=32,
        **words,
    )
    held = caches(model)
    for found, expected in zip(run(m, model, held), run(model, model, caches(model)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    stats = m.stats()
    assert stats.failures == ()
    assert stats.mismatches == ()
    assert dict(stats.replayed)
