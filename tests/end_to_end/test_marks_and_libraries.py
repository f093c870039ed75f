"""Code of PyTorch and of libraries that a model calls: marks of the profiler, einops."""

from __future__ import annotations

import time

import pytest
import torch

import braze
from braze.support import trace

pytestmark = pytest.mark.usefixtures("fresh")


def test_a_break_inside_a_mark_of_the_profiler_compiles_what_is_around_it():
    lin = torch.nn.Linear(4, 4)

    def clocked(x):
        time.time()
        return x + 1

    def marked(x):
        x = x * 2
        with torch.profiler.record_function("outer"):
            x = clocked(x)
            x = lin(x)
        return x * 3

    x = torch.ones(2, 4)
    found = braze.explain(marked, backend="eager")(x)
    assert [b.code for b in found.breaks] == ["BZ1017", "BZ1019"]
    assert sum(g.size for g in found.graphs) == 4
    compiled = braze.compile(marked, backend="eager")
    compiled(x)
    with torch.profiler.profile() as profile:
        assert torch.equal(compiled(x), marked(x))
    assert [event.name for event in profile.events()].count("outer") == 2


def test_einops_whose_table_of_backends_is_empty_is_one_graph():
    einops = pytest.importorskip("einops")
    backends = pytest.importorskip("einops._backends")
    layers = pytest.importorskip("einops.layers.torch")
    backends._type2backend.clear()
    backends._loaded_backends.clear()
    norm = layers.Rearrange("b c h w -> b (h w) c")

    def mixed(x):
        rows = norm(x) + einops.repeat(einops.reduce(x, "b c h w -> b c", "mean"), "b c -> b n c", n=16)
        return einops.einsum(rows, rows, "b n c, b m c -> b n m")

    x = torch.arange(96.0).view(2, 3, 4, 4)
    compiled = braze.compile(mixed, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(x), mixed(x))
    assert torch.allclose(compiled(x), mixed(x))
    assert trace.snapshot()[0]["captures"] == 1
