"""A model compiled by pieces gives what the model gives, in each mode, at each border, for each size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze
from braze.serving.pieces import piecewise
from braze.serving.pieces.backend import ServingBackend
from braze.serving.pieces.custom_ops import direct_register_custom_op
from braze.serving.pieces.specialise import SizeRange, ranges_of
from braze.serving.policy.config import CompilationConfig
from braze.serving.policy.dispatch import BatchDescriptor
from braze.serving.policy.engine_config import Config
from braze.serving.policy.modes import CUDAGraphMode
from braze.serving.step.context import forward_context, get_forward_context
from braze.support import log, trace
from braze.support.errors import UserError

NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


def attend(q: torch.Tensor, k: torch.Tensor, out: torch.Tensor, layer: str) -> None:
    scale = get_forward_context().attn_metadata
    out.copy_(q.cumsum(0) * (1.0 if scale is None else scale) + k)


def give(x: torch.Tensor) -> torch.Tensor:
    scale = get_forward_context().attn_metadata
    return x * (1.0 if scale is None else scale)


ATTEND = direct_register_custom_op("k_attend", attend, ["out"], dispatch_key="CPU")
GIVE = direct_register_custom_op("k_give", give, fake_impl=torch.empty_like, dispatch_key="CPU")
NAMES = ("braze::k_attend", "braze::k_give")


class Layer(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name, self.qk, self.down = name, nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x):
        q, k = self.qk(torch.nn.functional.layer_norm(x, (8,))).split([8, 8], -1)
        out = torch.empty_like(q)
        ATTEND(q, k, out, self.name)
        return x + GIVE(self.down(out).relu())


class Model(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Layer(f"layers.{i}") for i in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def configured(**words):
    return CompilationConfig(**{"level": 3, "splitting_ops": NAMES, "cudagraph_mode": "PIECEWISE", **words})


def compiled(model, config, **words):
    backend = ServingBackend(config, model=model, **words)
    made = braze.compile(
        model, backend=backend, fullgraph=True, shapes={"x": ("n", ...)}, options={"recompile_limit": 16}
    )

    def call(*args):
        with torch.no_grad():
            return made(*args)

    return call, backend


def step(mode, tokens, scale=None):
    return forward_context(scale, cudagraph_runtime_mode=mode, batch_descriptor=BatchDescriptor(tokens))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("compiler", ["braze", "eager"])
@pytest.mark.parametrize("split", ["graph", "schedule", "capture"])
def test_every_border_and_mode_gives_what_the_model_gives(simulated, split, compiler):
    if (split, compiler) == ("schedule", "eager"):
        pytest.skip("eager has no schedule")
    model = Model().eval()
    call, backend = compiled(model, configured(split=split, use_inductor=compiler == "braze"))
    buffer = torch.randn(16, 8)
    kept = []
    for n, mode, scale in [
        (8, NONE, 1.0),
        (8, PIECEWISE, 1.0),
        (8, PIECEWISE, 2.0),
        (4, PIECEWISE, 2.0),
        (8, NONE, 3.0),
        (4, PIECEWISE, 1.0),
        (8, PIECEWISE, 3.0),
        (16, PIECEWISE, 1.0),
        (8, PIECEWISE, 1.0),
    ]:
        buffer.copy_(torch.randn(16, 8))
        with step(NONE, n, scale), torch.no_grad():
            expected = model(buffer[:n])
        with step(mode, n, scale):
            out = call(buffer[:n])
        torch.testing.assert_close(out, expected)
        kept.append((out, expected))
    assert backend.wrappers
    for wrapper in backend.wrappers:
        assert {d.num_tokens for d in wrapper.captured()} == {4, 8, 16}
        assert not wrapper.reasons()
    for out, expected in kept:  # what a step returned is the caller's
        torch.testing.assert_close(out, expected)


def test_a_model_of_equal_layers_is_compiled_in_a_handful_of_pieces():
    counts = {}
    for layers in (3, 8):
        model = Model(layers).eval()
        call, backend = compiled(model, configured())
        x = torch.randn(4, 8)
        torch.testing.assert_close(call(x), model(x))
        counts[layers] = backend.manager.counts.compiled + backend.manager.counts.loaded
        assert sum(not item.is_splitting_graph for item in backend.items) == 2 * layers + 1
    assert counts[3] == counts[8] <= 4


def test_pieces_that_compute_the_same_are_looked_at_once_for_a_range(monkeypatch):
    """Whatever the number of layers: a warm start went through each layer's operators for what is there already."""
    looked = []
    real = piecewise.specialised
    monkeypatch.setattr(piecewise, "specialised", lambda *a: looked.append(a) or real(*a))
    model = Model(8).eval()
    call, backend = compiled(model, configured(compile_sizes=[4], compile_ranges_endpoints=[8]))
    for n in (4, 5, 20):
        x = torch.randn(n, 8)
        torch.testing.assert_close(call(x), model(x))
    pieces = {id(b.compiled_graph_for_general_shape) for b in backend.backends.values()}
    assert len(looked) == 2 * len(pieces) <= 8 < len(backend.backends)
    assert served(backend, 4) == {4} and served(backend, 5) == {SizeRange(2, 8)}


def test_in_mode_none_nothing_is_recorded(simulated):
    call, backend = compiled(Model().eval(), configured(cudagraph_mode="NONE"))
    before = trace.COUNTERS["cudagraph_recordings"]
    for mode in (NONE, PIECEWISE, FULL):
        with step(mode, 4):
            call(torch.randn(4, 8))
    assert trace.COUNTERS["cudagraph_recordings"] == before
    assert backend.wrappers == []


@pytest.mark.parametrize("split", ["graph", "schedule", "capture"])
def test_a_full_step_runs_pieces_unrecorded(simulated, split):
    call, backend = compiled(Model().eval(), configured(split=split))
    for _ in range(3):
        with step(FULL, 4):
            call(torch.randn(4, 8))
    assert not any(wrapper.captured() for wrapper in backend.wrappers)


def test_inputs_may_lie_elsewhere_at_each_step_where_they_are_copied(simulated):
    model = Model().eval()
    call, _ = compiled(model, configured(cudagraph_copy_inputs=True))
    for _ in range(4):
        x = torch.randn(8, 8)
        with step(PIECEWISE, 8):
            torch.testing.assert_close(call(x), model(x))


def test_without_copies_an_input_that_moved_is_told(simulated):
    call, _ = compiled(Model().eval(), configured())
    x = torch.randn(8, 8)
    with step(PIECEWISE, 8):
        call(x)
        with pytest.raises(UserError, match="BZ7207"):
            call(x.clone())


def test_weights_loaded_after_recording_are_used(simulated):
    model = Model().eval()
    call, _ = compiled(model, configured())
    x = torch.randn(8, 8)
    with step(PIECEWISE, 8):
        call(x)
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.randn_like(p) * 0.3)
        torch.testing.assert_close(call(x), model(x))


# -- sizes and ranges -------------------------------------------------------------------------------


def served(backend, n):
    """For which sizes what serves n was compiled, per piece: None for any."""
    found = set()
    for piece in backend.backends.values():
        run = piece.runnable_for(n)
        found |= {e.runtime_shape for e in piece.entries() if e.runnable is run} or {None}
    return found


def test_a_size_goes_before_a_range_and_a_range_before_the_rest():
    model = Model(2).eval()
    config = configured(compile_sizes=[4, "cudagraph_capture_sizes"], compile_ranges_endpoints=[8, 32])
    call, backend = compiled(model, config, capture_sizes=(6,))
    call(torch.randn(5, 8))
    assert [served(backend, n) for n in (4, 6)] == [{4}, {6}]
    assert served(backend, 5) == {SizeRange(2, 8)}
    assert served(backend, 20) == {SizeRange(9, 32)}
    assert served(backend, 33) == {None}
    for n in (2, 4, 5, 6, 8, 9, 32, 33, 70):
        x = torch.randn(n, 8)
        torch.testing.assert_close(call(x), model(x))
    assert not [e.reason for piece in backend.backends.values() for e in piece.entries() if e.reason]


@pytest.mark.parametrize("split", ["schedule", "capture"])
def test_a_graph_that_is_compiled_whole_has_its_sizes_too(simulated, split):
    model = Model(2).eval()
    config = configured(split=split, compile_sizes=[4], compile_ranges_endpoints=[8])
    call, backend = compiled(model, config)
    buffer = torch.randn(16, 8)
    for mode in (NONE, PIECEWISE, PIECEWISE):
        for n in (4, 6, 16):
            with step(mode, n):
                torch.testing.assert_close(call(buffer[:n]), model(buffer[:n]))
    assert [served(backend, n) for n in (4, 6, 16)] == [{4}, {SizeRange(2, 8)}, {None}]
    assert set().union(*({d.num_tokens for d in w.captured()} for w in backend.wrappers)) == {4, 6, 16}


def test_sizes_are_compiled_ahead_of_serving():
    call, backend = compiled(Model(2).eval(), configured(compile_sizes=[4, 8]))
    call(torch.randn(5, 8))
    made = backend.manager.counts.compiled
    for n in (4, 8, 4, 9):
        call(torch.randn(n, 8))
    assert backend.manager.counts.compiled == made


def test_sizes_compiled_beside_serving_serve_when_they_are_there():
    model = Model(2).eval()
    call, backend = compiled(model, configured(compile_sizes=[4]), background=True)
    x = torch.randn(4, 8)
    torch.testing.assert_close(call(x), model(x))
    backend.wait()
    assert served(backend, 4) == {4}
    torch.testing.assert_close(call(x), model(x))


def test_ranges_follow_from_their_ends():
    assert ranges_of([]) == ()
    assert ranges_of([1]) == ()
    assert ranges_of([8, 1, 8]) == (SizeRange(2, 8),)
    assert ranges_of([64, 8], 512) == (SizeRange(2, 8), SizeRange(9, 64), SizeRange(65, 512))
    assert 8 in SizeRange(2, 8)
    assert 9 not in SizeRange(2, 8)


def test_sizes_that_are_not_known_are_refused():
    config = configured(compile_sizes=["cudagraph_capture_sizes"])
    call, _ = compiled(Model(1).eval(), config)
    with pytest.raises(UserError, match="BZ7213"):
        call(torch.randn(4, 8))
    # an engine's configuration knows them
    call, backend = compiled(Model(1).eval(), Config(compilation_config=config, max_num_batched_tokens=4))
    call(torch.randn(3, 8))
    assert [served(backend, n) for n in (2, 3, 4)] == [{2}, {None}, {4}]


# -- the rest ---------------------------------------------------------------------------------------


def test_gradients_are_refused():
    made = braze.compile(Model(1), backend=ServingBackend(configured()), fullgraph=True)
    with pytest.raises(UserError, match="BZ7214"):
        made(torch.randn(4, 8))


def test_only_brazes_own_compiler_has_a_schedule():
    call, _ = compiled(Model(1).eval(), configured(split="schedule"), compiler=lambda gm, examples: gm)
    with pytest.raises(UserError, match="BZ7212"):
        call(torch.randn(4, 8))


def test_pieces_are_left_as_text_where_asked(tmp_path):
    call, backend = compiled(Model(1).eval(), configured(debug_dump_path=str(tmp_path / "dump")))
    call(torch.randn(4, 8))
    text = (tmp_path / "dump" / "rank_0" / "computation_graph.py").read_text()
    assert all(item.submod_name in text for item in backend.items)
    assert "k_attend" in text


@pytest.mark.parametrize("words", [dict(), dict(split="schedule"), dict(split="capture"), dict(whole=True)])
def test_the_code_of_each_stage_is_left_where_asked(tmp_path, words):
    whole = words.pop("whole", False)
    config = configured(debug_dump_path=str(tmp_path / "dump"), **words)
    call, _ = compiled(Model(1).eval(), config, whole=whole)
    call(torch.randn(4, 8))
    left = {path.name.partition("_")[2] for path in (tmp_path / "dump" / "rank_0").iterdir()}
    assert "graph.py" in left  # computation_graph.py
    assert {name.rpartition("_")[2] for name in left} >= {"graph.py", "loops.py", "schedule.txt", "host.py"}
    assert any("kernels" in name for name in left)


def test_an_operator_to_split_at_that_is_not_there_is_told_of():
    told: list[str] = []
    names = [*NAMES, "mylib::attention", "braze::k_attend.other"]
    with log.listen(told.append):
        call, _ = compiled(Model(1).eval(), configured(splitting_ops=names))
        call(torch.randn(4, 8))
    said = [line for line in told if line.startswith("BZ7218")]
    assert [line.split()[3].rstrip(",") for line in said] == ["mylib::attention", "braze::k_attend.other"]
