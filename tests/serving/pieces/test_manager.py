"""Pieces are found again under all that they depend on, and under nothing else; what changed is told by its name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import braze
from braze.graph.fakes.fakes import new_mode
from braze.serving.pieces import cache_key
from braze.serving.pieces.backend import ServingBackend
from braze.serving.pieces.cache_key import explain, factors_of, key_of, sources_of
from braze.serving.pieces.compiler import (
    CallableAdaptor,
    CompilerInterface,
    EagerAdaptor,
    InductorAdaptor,
    make_compiler,
)
from braze.serving.pieces.manager import CompilerManager
from braze.serving.pieces.structure import structure_of
from braze.serving.policy.config import CompilationConfig
from braze.support import trace
from braze.support.errors import UserError
from tests.helpers import logged
from tests.serving.cases import share


class Kept(CompilerInterface):
    """A compiler that keeps an eager graph, and counts."""

    name = "kept"

    def __init__(self, version="1"):
        self.version, self.compiled, self.loaded = version, 0, 0

    def compute_hash(self, config):
        return self.version

    def compile(self, graph, example_inputs, compiler_config, runtime_shape=None, key=""):
        self.compiled += 1
        return graph.forward, {"key": key}

    def load(self, handle, graph, example_inputs, compiler_config, runtime_shape=None):
        self.loaded += 1
        return graph.forward


def configured(folder, **words):
    return CompilationConfig(level=3, cache_dir=str(folder), **words)


def graph_of(function, *inputs):
    """A traced graph with fakes, and these."""
    gm, mode = torch.fx.symbolic_trace(function), new_mode()
    examples = [mode.fake(x) for x in inputs]
    for node, example in zip(gm.graph.find_nodes(op="placeholder"), examples, strict=True):
        node.meta["val"] = example
    return gm, examples


def managed(folder, model=None, compiler=None, functions=(), **words):
    made = CompilerManager(configured(folder, **words), compiler or Kept())
    made.initialize_cache(model=model or nn.Linear(2, 2), functions=functions)
    return made


# -- structure --------------------------------------------------------------------------------------


def test_graphs_alike_but_for_names_and_tensors_have_one_structure():
    one = graph_of(lambda x, w: (x @ w).relu() * 2, torch.randn(3, 4), torch.randn(4, 4))[0]
    two = graph_of(lambda a, b: (a @ b).relu() * 2, torch.randn(3, 4), torch.randn(4, 4))[0]
    assert structure_of(one) == structure_of(two)
    assert structure_of(one).portable


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: (x @ w).relu() * 3, ((3, 4), (4, 4))),
        (lambda x, w: (x @ w).relu() * 2.0, ((3, 4), (4, 4))),
        (lambda x, w: (x @ w).sigmoid() * 2, ((3, 4), (4, 4))),
        (lambda w, x: (x @ w).relu() * 2, ((4, 4), (3, 4))),
        (lambda x, w: (x @ w).relu() * 2, ((5, 4), (4, 4))),
    ],
    ids=["number", "type of number", "operator", "order", "size"],
)
def test_what_computes_otherwise_has_another(function, inputs):
    one = graph_of(lambda x, w: (x @ w).relu() * 2, torch.randn(3, 4), torch.randn(4, 4))[0]
    other = graph_of(function, *(torch.randn(s) for s in inputs))[0]
    assert structure_of(one).digest != structure_of(other).digest


def test_minus_zero_is_another_number_and_layout_counts():
    f = lambda x: x + 0.0
    g = lambda x: x + -0.0
    x = torch.randn(4, 4)
    assert structure_of(graph_of(f, x)[0]) != structure_of(graph_of(g, x)[0])
    assert structure_of(graph_of(f, x)[0]) != structure_of(graph_of(f, x.t())[0])
    assert structure_of(graph_of(f, x)[0]) != structure_of(graph_of(f, x.double())[0])


def test_a_graph_with_an_object_of_no_name_is_like_no_other():
    thing = lambda x: x + 1
    torch.fx.wrap
    gm, _ = graph_of(lambda x: x, torch.ones(2))
    with gm.graph.inserting_before(gm.graph.output_node()):
        gm.graph.call_function(thing, (next(iter(gm.graph.nodes)),))
    assert not structure_of(gm).portable


# -- the key ----------------------------------------------------------------------------------------


def here():
    """A function whose file is a factor."""


def test_the_key_holds_config_model_sources_environment_versions_and_compiler(tmp_path):
    found = factors_of(configured(tmp_path), Kept(), model=nn.Linear(2, 3), functions=[here])
    for name in ("config.split", "model", "model.structure", f"source.{__name__}", "environment.CC"):
        assert name in found
    for name in ("version.torch", "version.python", "setting.matmul_precision", "compiler.hash", "platform"):
        assert found[name]


def test_the_key_holds_no_address_rank_port_or_folder(tmp_path):
    """Two ranks on two hosts, with caches elsewhere, have one key."""
    one = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RANK": "0", "HOSTNAME": "a", "CC": "gcc"}
    two = {"MASTER_ADDR": "10.0.0.2", "MASTER_PORT": "29501", "RANK": "7", "HOSTNAME": "b", "CC": "gcc"}
    keys = {
        key_of(factors_of(configured(tmp_path / str(k)), Kept(), model=nn.Linear(2, 3), environ=env)).digest
        for k, env in enumerate((one, two))
    }
    assert len(keys) == 1
    text = json.dumps(factors_of(configured(tmp_path), Kept(), model=nn.Linear(2, 3), functions=[here]))
    assert str(tmp_path) not in text
    assert os.path.dirname(__file__) not in text
    assert "0x" not in text


CHANGES = {
    "config.splitting_ops": {"config": {"splitting_ops": ("a::b",)}},
    "config.inductor_compile_config": {"config": {"inductor_compile_config": {"fusion": False}}},
    "model.structure": {"model": nn.Linear(2, 5)},
    "model": {"model": nn.Sequential(nn.Linear(2, 3))},
    "compiler.hash": {"compiler": Kept("2")},
    "environment.CC": {"environ": {"CC": "clang"}},
    "source.json": {"functions": [json.dumps]},
}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_factor_that_changes_makes_another_key_and_is_named(tmp_path, name):
    change = dict(CHANGES[name])
    words = {"model": nn.Linear(2, 3), "functions": (), "environ": {}, "compiler": Kept()}
    before = factors_of(configured(tmp_path), **words)
    config = configured(tmp_path, **change.pop("config", {}))
    after = factors_of(config, **{**words, **change})
    assert key_of(before) != key_of(after)
    assert name in explain(
        after, [before, {**before, "version.torch": "1", "version.python": "2", "platform": "3"}]
    )


def test_a_source_file_that_changes_makes_another_key(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "a_model.py"
    path.write_text("def forward(x):\n    return helper(x)\n")
    import a_model

    before = sources_of([a_model.forward])
    path.write_text("def forward(x):\n    return helper(x + 1)\n")
    assert list(before) == ["a_model"]
    assert sources_of([a_model.forward]) != before


MODEL_OF_TWO_FILES = """
import torch
import other_file
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        with other_file.named():
            return other_file.shifted(self.linear(x))
"""
OTHER_FILE = """
import contextlib
def shifted(x):
    return x.relu() + 1
@contextlib.contextmanager
def named():
    yield
"""


def test_a_kept_capture_tells_the_key_the_files_that_it_inlined(tmp_path, monkeypatch):
    """Captured anew or read back, a model has one key, in which the files of all functions that were interpreted count."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "captures"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "two_files.py").write_text(MODEL_OF_TWO_FILES)
    (tmp_path / "other_file.py").write_text(OTHER_FILE)
    import two_files

    found = []
    for _ in range(2):
        model = two_files.Net()
        backend = ServingBackend(configured(tmp_path / "pieces"), model=model)
        made = braze.compile(model, backend=backend, fullgraph=True, options={"keep_captures": True})
        before = trace.COUNTERS["captures_loaded"]
        with torch.inference_mode():
            torch.testing.assert_close(made(x := torch.randn(3, 4)), model(x))
        found.append((trace.COUNTERS["captures_loaded"] - before, backend.manager.factors))
    assert [loaded for loaded, _ in found] == [0, 1]
    assert found[0][1] == found[1][1]
    assert {"source.two_files", "source.other_file"} <= found[1][1].keys()


def test_functions_that_say_they_are_of_another_module_count_by_their_own_files(tmp_path):
    def made(name, text):
        (tmp_path / name).write_text(text)
        scope = {"__name__": "one"}
        exec(compile(text, str(tmp_path / name), "exec"), scope)
        return scope["f"]

    one, two = made("a.py", "def f(x):\n    return x"), made("b.py", "def f(x):\n    return x + 1")
    both = sources_of([one, two])
    assert both == sources_of([two, one])
    assert both != sources_of([one])


def test_keys_that_are_known_are_bounded(tmp_path):
    made = managed(tmp_path)
    known = cache_key.KnownKeys(made.cache, "m")
    for k in range(40):
        known.add({"model": "m", "x": str(k)})
    assert len(known.read()) == cache_key.REMEMBERED


# -- compile, keep, load ----------------------------------------------------------------------------


def test_pieces_that_compute_the_same_are_compiled_once(tmp_path):
    made = managed(tmp_path)
    first = made.compile(*graph_of(lambda x: x + 1, torch.ones(3)))
    again = made.compile(*graph_of(lambda y: y + 1, torch.ones(3)))
    other = made.compile(*graph_of(lambda y: y + 2, torch.ones(3)))
    assert first is again
    assert torch.equal(other(torch.ones(3)), torch.full((3,), 3.0))
    assert (made.counts.compiled, made.counts.shared, made.compiler.compiled) == (2, 1, 2)


def test_a_second_manager_loads_and_a_changed_factor_compiles(tmp_path):
    piece = graph_of(lambda x: x.cos() + 1, torch.ones(3))
    first = managed(tmp_path)
    assert "before" in first.explain_miss()
    y = first.compile(*piece)(torch.ones(3))
    second = managed(tmp_path)
    assert torch.equal(second.compile(*piece)(torch.ones(3)), y)
    assert (second.counts.loaded, second.counts.compiled) == (1, 0)
    assert second.explain_miss().startswith("nothing")
    third = managed(tmp_path, compiler=Kept("2"))
    third.compile(*piece)
    assert (third.counts.loaded, third.counts.compiled) == (0, 1)
    assert third.explain_miss() == "compiler.hash: 1 -> 2"


def test_a_size_is_kept_apart_from_others(tmp_path):
    piece = graph_of(lambda x: x + 1, torch.ones(3))
    made = managed(tmp_path)
    for shape in (None, 3, 4):
        made.compile(*piece, runtime_shape=shape)
    assert made.counts.compiled == 3
    again = managed(tmp_path)
    again.compile(*piece, runtime_shape=4)
    assert again.counts.loaded == 1


def test_without_a_cache_nothing_is_written(tmp_path):
    made = CompilerManager(configured(tmp_path), Kept(), disable_cache=True)
    made.initialize_cache(model=nn.Linear(2, 2))
    made.compile(*graph_of(lambda x: x + 1, torch.ones(3)))
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("damage", ["another graph", "no json", "cut off"])
def test_an_artifact_that_is_wrong_is_not_used(tmp_path, damage):
    piece = graph_of(lambda x: x + 1, torch.ones(3))
    first = managed(tmp_path)
    first.compile(*piece)
    place = first._place(structure_of(piece[0]).digest, None)
    if damage == "another graph":
        first.cache.put(place, json.dumps({"graph": "0" * 64, "handle": {}}).encode(), "json")
    elif damage == "no json":
        first.cache.put(place, b"[]", "json")
    else:
        path = first.cache.path(place, "json")
        path.write_bytes(path.read_bytes()[:-3])
    second = managed(tmp_path)
    with logged() as said:
        assert torch.equal(second.compile(*piece)(torch.ones(3)), torch.full((3,), 2.0))
    assert (second.counts.loaded, second.counts.compiled) == (0, 1)
    assert any("BZ7210" in text for text in said) == (damage == "another graph")


def test_writers_at_the_same_time_leave_whole_artifacts(tmp_path):
    def times(k):
        return lambda x: x * k + 1

    functions = [times(k) for k in range(6)]
    graphs = [graph_of(f, torch.ones(3)) for f in functions]
    failures = []

    def work():
        try:
            made = managed(tmp_path)
            for (gm, examples), f in zip(graphs, functions, strict=True):
                if not torch.equal(made.compile(gm, examples)(torch.ones(3)), f(torch.ones(3))):
                    failures.append("wrong")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failures
    last = managed(tmp_path)
    for gm, examples in graphs:
        last.compile(gm, examples)
    assert (last.counts.loaded, last.counts.compiled) == (6, 0)
    assert not list(tmp_path.rglob(".new-*"))


PROGRAM = """
import sys, torch, braze
from torch import nn
from braze.serving.pieces.backend import ServingBackend
from braze.serving.policy.config import CompilationConfig
from braze.support import trace
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()
backend = ServingBackend(CompilationConfig(level=3, cache_dir=sys.argv[1]), model=model)
made = braze.compile(model, backend=backend, fullgraph=True)
with torch.inference_mode():
    y = made(torch.linspace(-1, 1, 32).view(4, 8))
c = backend.manager.counts
print(c.compiled, c.loaded, trace.COUNTERS["kernels_built"], y.view(torch.int32).sum().item(), backend.explain_miss().split(":")[0])
"""


def test_another_process_builds_no_kernels_and_gives_the_same_bits(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(sys, "argv", ["-c", str(tmp_path / "pieces")])
    before = trace.COUNTERS["kernels_built"]
    exec(PROGRAM, {"__name__": "__main__"})
    compiled, loaded, built, bits, *_ = capsys.readouterr().out.split()
    assert (compiled, loaded) == ("1", "0")
    assert int(built) > before
    env = {
        **os.environ,
        "PYTHONHASHSEED": "4",
        "RANK": "1",
        "MASTER_ADDR": "10.0.0.9",
        "MASTER_PORT": "29501",
    }
    warm = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "pieces")], capture_output=True, text=True, env=env
    )
    assert warm.stdout.split()[:5] == ["0", "1", "0", bits, "nothing"], warm.stderr


@settings(max_examples=max(40, share(1)))
@given(
    st.lists(st.sampled_from(["add", "mul", "relu", "sin"]), min_size=1, max_size=5),
    st.integers(1, 6),
    st.sampled_from([None, *sorted(CHANGES)]),
)
def test_a_hit_gives_the_same_bits_and_a_changed_factor_a_miss(program, n, change):
    """Property (h) of the caches of serving engines."""
    import tempfile

    def f(x):
        for k, kind in enumerate(program):
            x = {"add": x + k, "mul": x * (k + 0.5), "relu": x.relu(), "sin": x.sin()}[kind]
        return x

    with tempfile.TemporaryDirectory() as folder:
        words = {"model": nn.Linear(2, 3), "functions": ()}
        made = CompilerManager(configured(folder), Kept())
        made.initialize_cache(**words)
        x = torch.randn(n)
        y = made.compile(*graph_of(f, x))(x)
        changed = dict(CHANGES[change]) if change else {}
        environ = changed.pop("environ", None)
        config = configured(folder, **changed.pop("config", {}))
        compiler = changed.pop("compiler", None) or Kept()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            other = CompilerManager(config, Kept(compiler.version))
            other.initialize_cache(**{**words, **changed})
        z = other.compile(*graph_of(f, x))(x)
        assert torch.equal(y, z)
        assert (other.counts.loaded, other.counts.compiled) == ((1, 0) if change is None else (0, 1))
        if change is not None:
            assert change in other.explain_miss()


# -- compilers --------------------------------------------------------------------------------------


def test_compilers_by_name_and_of_callables(tmp_path):
    assert isinstance(make_compiler("eager"), EagerAdaptor)
    assert isinstance(make_compiler(lambda gm, examples: gm), CallableAdaptor)
    mine = Kept()
    assert make_compiler(mine) is mine
    assert CompilerManager(configured(tmp_path, use_inductor=False)).compiler.name == "eager"
    assert CompilerManager(configured(tmp_path)).compiler.name == "braze"
    for wrong in ("inducktor", 3, EagerAdaptor):
        with pytest.raises(UserError, match="BZ7209"):
            make_compiler(wrong)


def test_a_callable_that_gives_no_callable_is_refused(tmp_path):
    made = managed(tmp_path, compiler=lambda gm, examples: 3)
    with pytest.raises(UserError, match="BZ0009"):
        made.compile(*graph_of(lambda x: x + 1, torch.ones(3)))


def test_inductor_is_asked_by_torch_compile_alone(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda graph, **words: asked.append(words) or graph)
    call = managed(tmp_path, compiler=InductorAdaptor()).compile(*graph_of(lambda x: x + 1, torch.ones(3)))
    assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))
    assert asked == [{"fullgraph": True, "dynamic": False, "backend": "inductor", "options": None}]


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_pieces_that_a_foreign_compiler_has_run(tmp_path, monkeypatch, around):
    """PyTorch's own tracer goes through each piece; what stands behind it is left out, which takes a C++ compiler half a minute."""
    real, asked = torch.compile, []
    monkeypatch.setattr(
        torch, "compile", lambda gm, **words: asked.append(gm) or real(gm, **{**words, "backend": "eager"})
    )
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    backend = ServingBackend(configured(tmp_path, cudagraph_mode="NONE"), compiler="inductor")
    call = braze.compile(model, backend=backend, fullgraph=True, shapes={"input": ("n", ...)})
    with logged() as told, around():
        for n in (2, 5, 7):
            x = torch.randn(n, 4)
            torch.testing.assert_close(call(x), model(x))
    assert asked
    assert not [line for line in told if "BZ6013" in line]
