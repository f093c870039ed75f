"""What was captured and compiled for a served module, or a class that compiles itself, is there for the next process."""

from __future__ import annotations

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from braze import serve
from braze.cudagraphs.registry import register
from braze.cudagraphs.simulated import SimulatedGraphs
from braze.graph.private.torch_compat import pytree
from braze.runtime.memory.arena import clear_arenas, pool_of
from braze.serving import CompilationConfig, compiled_forward, support_torch_compile
from braze.serving.pieces import custom_ops
from braze.serving.pieces.custom_ops import mark_splitting_op
from braze.support import trace
from braze.support.errors import UserError
from tests import processes
from tests.serving.engine.test_warm import rewritten, spoilt

#: a served module in a process of its own: its results, what was done for them
PROGRAM = """
import json, sys
from tests.serving.served.test_warm import ran
print(json.dumps([*ran(3, "graph"), "sympy" in sys.modules]))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty cache. The verifiers, which want to see each stage, are off."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRAZE_VERIFY", "0")
    return tmp_path / "cache"


class Layers(nn.Module):
    """Equal layers between which something splits."""

    def __init__(self, config=None, scale: float = 2.0):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(32, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.scale = scale

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor):
        x = self.embed(input_ids) + positions[:, None]
        for layer in self.layers:
            x = torch.cumsum(torch.tanh(layer(x)) * self.scale, -1)
        return x


def inputs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(n) % 32, torch.arange(n) % 5


def counted(call) -> tuple[object, Counter[str]]:
    before = Counter(trace.snapshot()[0])
    found = call()
    return found, Counter(trace.snapshot()[0]) - before


def ran(level: int, split: str, model: nn.Module | None = None, **words) -> tuple[list[float], Counter[str]]:
    """Sums of what a module that is served anew gives for one token and for several, and what was counted."""
    m = serve(
        model or Layers(), level=level, split=split, cudagraph_mode=words.pop("mode", "NONE"), split_ops=["aten::cumsum"],
        max_num_seqs=8, max_num_batched_tokens=32, **words,
    )  # fmt: skip
    with torch.inference_mode():
        return counted(lambda: [m(*inputs(n)).double().sum().item() for n in (5, 1, 8, 2)])  # type: ignore[return-value]


def is_warm(did: Counter[str]) -> bool:
    """Whether both kinds of call, of one token and of several, came from disk."""
    return did["calls_loaded"] == 2 and not did["captures"] + did["pieces_compiled"] + did["kernels_built"]


def is_cold(did: Counter[str]) -> bool:
    return did["captures"] == 2 and not did["calls_loaded"]


KINDS = pytest.mark.parametrize(
    ("level", "split"), [(2, "graph"), (3, "graph"), (3, "schedule"), (3, "capture")]
)


@KINDS
def test_a_module_that_was_served_is_neither_captured_nor_compiled_again(level, split):
    first, did = ran(level, split)
    assert is_cold(did)
    again, did = ran(level, split)
    assert (again, is_warm(did)) == (first, True)


class Windows(Layers):
    """Windows on a weight are made before something splits, and used behind it."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor):
        window = self.embed.weight.view(4, 8, 8)[:, 1:3]
        x = torch.cumsum(self.embed(input_ids) * positions[:, None], -1)
        return x + window.sum()


class Holding(Layers):
    """The graph holds tensors, and writes to a cache beside one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(32, 8))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor):
        x = self.embed(input_ids) * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])
        self.cache.index_copy_(0, input_ids, x + torch.tensor(0.25))
        return torch.cumsum(x, -1) * torch.tensor([0.5, -0.5] * 4) + self.cache.sum(0), self.cache[1:3]


@pytest.fixture
def simulated():
    """The processor records."""
    register("cpu", SimulatedGraphs)
    yield
    register("cpu", None)


def recorded(split: str, model: nn.Module, **words) -> tuple[list[object], int, Counter[str]]:
    """What a module that records gives step by step, how much it has recorded, and what was counted."""
    m = serve(
        model, level=3, split=split, cudagraph_mode="PIECEWISE", capture_sizes=[1, 2, 8],
        split_ops=words.pop("split_ops", ["aten::cumsum"]), max_num_seqs=8, max_num_batched_tokens=32, **words,
    )  # fmt: skip
    with torch.inference_mode():
        found, did = counted(lambda: [pytree.tree_map(torch.clone, m(*inputs(n))) for n in (5, 1, 8, 2, 5)])
    wrappers = m.cache.wrappers
    return found, sum(len(wrapper.captured()) for wrapper in wrappers), did  # type: ignore[return-value]


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("split", ["graph", "schedule", "capture"])
@pytest.mark.parametrize("kind", [Layers, Windows, Holding])
def test_what_comes_from_disk_is_recorded_like_what_was_compiled(split, kind):
    first, many, did = recorded(split, kind())
    assert many and is_cold(did)
    again, as_many, did = recorded(split, kind())
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert as_many == many
    assert is_warm(did)


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("split", ["graph", "schedule"])
def test_what_comes_from_disk_keeps_no_memory_that_a_recording_would_lose(split):
    """Memory for temporaries is each call's own: what is kept between calls goes when a larger call wants more, and replays write there."""
    for kept in (is_cold, is_warm):
        clear_arenas()
        _, _, did = recorded(split, Layers())
        assert kept(did)
        assert not pool_of("cpu")._free


def test_parts_that_are_recorded_are_no_others():
    """A schedule that nothing of is recorded is not cut."""
    first, did = ran(3, "schedule")
    register("cpu", SimulatedGraphs)
    try:
        _, many, did = recorded("schedule", Layers())
    finally:
        register("cpu", None)
    assert many and not did["calls_loaded"]
    assert ran(3, "schedule")[0] == first


@pytest.mark.usefixtures("simulated")
def test_another_border_after_fusion_is_compiled_for_itself(monkeypatch):
    """An operator that is marked later cuts there, too."""
    monkeypatch.setattr(custom_ops, "_marked", set())
    first, many, _ = recorded("schedule", Layers(), split_ops=["aten::sort"])
    mark_splitting_op("aten::cumsum")
    found, more, did = recorded("schedule", Layers(), split_ops=["aten::sort"])
    assert not did["calls_loaded"]
    assert more > many
    torch.testing.assert_close(found, first)


def test_pieces_that_give_views_are_kept_whole():
    first, did = ran(3, "graph", Windows())
    assert is_cold(did)
    again, did = ran(3, "graph", Windows())
    assert (again, is_warm(did)) == (first, True)
    with torch.inference_mode():
        plain = [Windows()(*inputs(n)).double().sum().item() for n in (5, 1, 8, 2)]
    assert again == pytest.approx(plain, rel=1e-5)


@KINDS
def test_pieces_that_hold_tensors_are_kept_whole(level, split):
    plain = Holding()
    with torch.inference_mode():
        wanted = [[t.clone() for t in plain(*inputs(n))] for n in (5, 1, 8)]
    for kept in (is_cold, is_warm):
        m = serve(Holding(), level=level, split=split, cudagraph_mode="NONE", split_ops=["aten::cumsum"])
        with torch.inference_mode():
            found, did = counted(lambda m=m: [[t.clone() for t in m(*inputs(n))] for n in (5, 1, 8)])
        torch.testing.assert_close(found, wanted)
        assert kept(did)


class Writing(Layers):
    """Rows are written into a cache and a count is kept before something splits, columns of the cache behind it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.zeros(32, 8))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor):
        x = self.embed(input_ids) * positions[:, None]
        self.cache.index_copy_(0, input_ids, x)
        self.count.add_(1)
        y = torch.cumsum(x, -1)
        self.cache.t()[2:4].mul_(0.5)
        return y + self.cache.sum(0), self.cache[1:3]


@KINDS
def test_pieces_that_write_to_their_inputs_are_kept_whole(level, split):
    def steps(model, called) -> list[torch.Tensor]:
        with torch.inference_mode():
            found = [t.clone() for n in (5, 1, 8) for t in called(*inputs(n))]
        return [*found, model.cache, model.count]

    def served_anew() -> tuple[list[torch.Tensor], Counter[str]]:
        model = Writing()
        m = serve(model, level=level, split=split, cudagraph_mode="NONE", split_ops=["aten::cumsum"])
        return counted(lambda: steps(model, m))

    plain = Writing()
    wanted = steps(plain, plain)
    for kept in (is_cold, is_warm):
        found, did = served_anew()
        torch.testing.assert_close(found, wanted)
        assert kept(did)


class Adding(nn.Module):
    """Writes to an argument."""

    def forward(self, a: torch.Tensor, b: torch.Tensor):
        a.add_(1.0)
        return a + b


def test_a_call_whose_inputs_share_memory_is_right_from_disk():
    """It runs as it was captured: the kernels would not see the write through the other."""

    def served_anew():
        return serve(Adding(), level=2, cudagraph_mode="NONE")

    with torch.inference_mode():
        for _ in range(2):
            m = served_anew()
            _, did = counted(lambda: m(torch.ones(4, 8), torch.ones(4, 8)))
        assert did["calls_loaded"] == 1
        memory, plain = torch.arange(48.0).view(6, 8), torch.arange(48.0).view(6, 8)
        found, did = counted(lambda: m(memory[:5], memory[1:]))
        torch.testing.assert_close(found, Adding()(plain[:5], plain[1:]), rtol=0, atol=0)
        torch.testing.assert_close(memory, plain)
    assert did["calls_run_as_captured"] == 1


class Margins(Layers):
    """What compiles this asks whether there are as many tokens as features, which its capture leaves open."""

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor):
        x = super().forward(input_ids, positions)
        return nn.functional.soft_margin_loss(x, torch.tanh(self.embed.weight[0]), reduction="none")


def test_what_a_compiler_asks_of_sizes_is_kept_with_the_capture():
    def first_call_of(n: int) -> tuple[list[str], Counter[str]]:
        m = serve(Margins(), level=3, cudagraph_mode="NONE", split_ops=["aten::cumsum"])
        with torch.inference_mode():
            found, did = counted(lambda: m(*inputs(n)))
            torch.testing.assert_close(found, Margins()(*inputs(n)))
        return [text for text in m.dropped_guards() if "!= (8)" in text], did

    guards, did = first_call_of(5)
    assert (did["captures"], len(guards)) == (1, 1)
    again, did = first_call_of(3)
    assert again == guards
    assert (did["calls_loaded"], did["captures"] + did["pieces_compiled"]) == (1, 0)


def test_a_second_process_has_it_without_capturing():
    def begin():
        done = processes.run(PROGRAM)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first, did, _ = begin()
    assert is_cold(Counter(did))
    again, did, sympy = begin()
    assert (again, is_warm(Counter(did))) == (first, True)
    assert not sympy


def test_what_is_taken_for_granted_is_the_same_from_disk():
    def guards():
        m = serve(Layers(), level=3, cudagraph_mode="NONE", split_ops=["aten::cumsum"])
        with torch.inference_mode():
            m(*inputs(4))
        return m.dropped_guards()

    first = guards()
    found, did = counted(guards)
    assert did["calls_loaded"] == 1
    assert found == first != ()


@KINDS
def test_a_model_with_other_numbers_in_its_code_is_captured_for_itself(level, split):
    first, _ = ran(level, split)
    other, did = ran(level, split, Layers(scale=0.5))
    assert is_cold(did)
    assert other != first
    assert ran(level, split)[0] == first


@pytest.mark.parametrize(
    "change", [dict(inductor_compile_config={"numerics": "eager"}), dict(compile_sizes=(4,)), dict(use_inductor=False)], ids=str
)  # fmt: skip
def test_another_configuration_is_compiled_for_itself(change):
    ran(3, "graph")
    assert not ran(3, "graph", **change)[1]["calls_loaded"]


def test_a_whole_and_its_pieces_are_not_taken_for_each_other():
    first, _ = ran(2, "graph")
    pieces, did = ran(3, "graph")
    assert not did["calls_loaded"]
    assert pieces == pytest.approx(first, rel=1e-5)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Of each kind, a cache that a module has filled, and its results."""

    @functools.cache
    def of(level, split):
        place = tmp_path_factory.mktemp("kept")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BRAZE_CACHE_DIR", str(place))
            patch.setenv("BRAZE_VERIFY", "0")
            return place, ran(level, split)[0]

    return of


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "no fields": rewritten(lambda body: b"{}"),
    "a field": rewritten(lambda body: body.replace(b'"handles"', b'"handlez"')),
    "machine": rewritten(lambda body: body.replace(b"x86-64", b"another")),
    "no pieces": rewritten(lambda body: body.replace(b'"sized": {', b'"sized": null, "other": {')),
}


@pytest.mark.parametrize(
    ("level", "split", "how"),
    [
        *((2, "graph", how) for how in DAMAGES),
        *((3, "graph", how) for how in ("a field", "no pieces")),
        *((3, split, "no pieces") for split in ("schedule", "capture")),
    ],
)
def test_what_is_damaged_or_foreign_is_refused_and_made_again(folder, kept, level, split, how):
    place, first = kept(level, split)
    shutil.copytree(place, folder)
    assert spoilt(folder, DAMAGES[how]) == 2
    again, did = ran(level, split)
    assert (again, did["calls_loaded"]) == (first, 0)
    assert is_warm(ran(level, split)[1])


def test_a_miss_is_explained_by_what_changed(monkeypatch):
    ran(3, "graph")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    m = serve(Layers(), level=3, cudagraph_mode="NONE", split_ops=["aten::cumsum"])
    with torch.inference_mode():
        _, did = counted(lambda: m(*inputs(4)))
    assert not did["calls_loaded"]
    assert "environment.NVIDIA_TF32_OVERRIDE" in m.cache.explain_miss()


# -- a class that compiles itself ---------------------------------------------------------------------


def called(level: int) -> tuple[list[float], Counter[str]]:
    module = Layers2(CompilationConfig(level=level, cudagraph_mode="NONE", splitting_ops=["aten::cumsum"]))
    with torch.inference_mode():
        return counted(lambda: [module(*inputs(n)).double().sum().item() for n in (5, 1, 8)])  # type: ignore[return-value]


@support_torch_compile
class Layers2(Layers):
    pass


@pytest.mark.parametrize("level", [2, 3])
def test_a_class_that_compiles_itself_finds_what_was_kept(level):
    first, did = called(level)
    assert is_cold(did)
    again, did = called(level)
    assert (again, is_warm(did)) == (first, True)


class Counting(nn.Module):
    """Writes to a buffer of its own."""

    def __init__(self, config=None):
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor):
        self.seen.add_(x.sum(0))
        return x * 2


@support_torch_compile(mutable_buffers=("seen",))
class MayWrite(Counting):
    pass


def test_what_may_be_written_is_part_of_what_is_kept():
    """A class of the same forward that may not write is refused, whatever lies on disk."""
    config = CompilationConfig(level=2)
    with torch.inference_mode():
        for _ in range(2):
            module = MayWrite(config)
            module(torch.ones(3, 8))
            assert module.seen.tolist() == [3.0] * 8
        plan = type(module).__braze_plan__
        before, plan.mutable_buffers = plan.mutable_buffers, frozenset()
        try:
            with pytest.raises(UserError, match="BZ7216"):
                MayWrite(config)(torch.ones(3, 8))
        finally:
            plan.mutable_buffers = before
    assert compiled_forward(module) is not None
