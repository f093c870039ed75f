"""A second engine of the same model neither captures nor lowers it: what the first one made is on disk."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from braze.cudagraphs.simulated import SimulatedGraphs
from braze.serving.engine.compiled import compile_decoder
from braze.serving.pieces import custom_ops
from braze.serving.pieces.custom_ops import mark_splitting_op
from braze.serving.policy.modes import CUDAGraphMode
from braze.support import trace
from tests import processes
from tests.serving.engine.tiny import engine, tiny

PROMPTS = [[5, 6, 7, 8], [9]]
#: an engine in a process of its own: the tokens it drew, what it did for them
PROGRAM = """
import json, sys
from tests.serving.engine.test_warm import served
tokens, did = served()
print(json.dumps([tokens, did, "sympy" in sys.modules]))
"""
#: one token, and more
CALLS = 2


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty cache. The verifiers, which want to see each stage, are off."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRAZE_VERIFY", "0")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[list[int]]]:
    """A cache that an engine of the tiny model has filled, and its tokens."""
    place = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRAZE_CACHE_DIR", str(place))
        patch.setenv("BRAZE_VERIFY", "0")
        tokens, did = served()
    assert is_cold(did)
    return place, tokens


@pytest.fixture
def filled(made, folder) -> list[list[int]]:
    """The cache is a copy of that one; its tokens."""
    shutil.copytree(made[0], folder)
    return made[1]


def served(model=None, mode: str = "NONE", graphs=None, **fields) -> tuple[list[list[int]], Counter[str]]:
    """The tokens of a new engine, and what was counted while they were made."""
    model = model or tiny()
    before = Counter(trace.snapshot()[0])
    pieces = compile_decoder(model, CUDAGraphMode[mode], **fields)
    found = engine(model, graphs=graphs, cudagraph_mode=mode, compiled=pieces)
    found.runner.warm_up()
    tokens = found.generate(PROMPTS)
    return tokens, Counter(trace.snapshot()[0]) - before


def is_warm(did: Counter[str]) -> bool:
    """Whether nothing was captured or compiled."""
    return (
        did["calls_loaded"] == CALLS and not did["captures"] + did["pieces_compiled"] + did["kernels_built"]
    )


def is_cold(did: Counter[str]) -> bool:
    """Whether everything was captured."""
    return did["captures"] == CALLS and not did["calls_loaded"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("llama", {}),
        ("llama", dict(split="schedule")),
        ("qwen3", dict(custom_ops=["+rope_attention_with_output"])),
        ("deepseek", {}),
    ],
)
def test_a_second_engine_of_the_same_model_neither_captures_nor_compiles(name, fields):
    """DeepSeek's pieces give windows on weights."""
    tokens, did = served(tiny(name), **fields)
    assert is_cold(did)
    again, did = served(tiny(name), **fields)
    assert (again, is_warm(did)) == (tokens, True)


@pytest.mark.parametrize("fields", [{}, dict(compile_ranges_endpoints=(16,)), dict(split="schedule")])
def test_pieces_from_disk_are_recorded_as_those_that_were_compiled(filled, fields):
    first = served(mode="PIECEWISE", graphs=SimulatedGraphs("cpu"), **fields)
    tokens, did = served(mode="PIECEWISE", graphs=SimulatedGraphs("cpu"), **fields)
    assert tokens == first[0] == filled
    assert is_warm(did)


def test_processes_that_start_together_keep_what_a_third_one_uses(folder):
    def begin():
        words = [sys.executable, "-c", PROGRAM]
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ))

    both = [json.loads(p.communicate()[0]) for p in [begin(), begin()]]
    tokens, did, sympy = json.loads(processes.run(PROGRAM).stdout)
    assert [tokens, tokens] == [found[0] for found in both]
    assert is_warm(Counter(did))
    assert not sympy  # which only sizes that vary need, while they are captured


# -- what must not be used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        dict(inductor_compile_config={"numerics": "eager"}),
        dict(custom_ops=["+rope_attention_with_output"]),
        dict(compile_ranges_endpoints=(16,)),
        dict(compile_sizes=(4,)),
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_configuration_is_compiled_for_itself(filled, change):
    tokens, did = served(**change)
    assert not did["calls_loaded"]
    again, did = served(**change)
    assert (again, did["captures"] + did["kernels_built"]) == (tokens, 0)


@pytest.mark.parametrize("change", [dict(rms_norm_eps=0.1), dict(num_hidden_layers=1), dict(hidden_size=64)])
def test_another_model_of_the_same_class_is_captured_for_itself(filled, change):
    assert is_cold(served(tiny(**change))[1])
    assert is_warm(served(tiny(**change))[1])


def test_a_variable_of_the_environment_that_changes_code_is_seen(filled, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert not served()[1]["calls_loaded"]


def test_an_operator_that_is_marked_later_is_seen(filled, monkeypatch):
    monkeypatch.setattr(custom_ops, "_marked", set())
    mark_splitting_op("aten::silu")
    assert not served()[1]["calls_loaded"]


class Scaled(torch.nn.Module):
    """A module whose forward calls a function of a file."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return sys.modules["layer_of_mine"].scaled(self.inner(x))


def test_another_file_of_a_traced_function_is_seen(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def with_scale(number: str, compiled: bool = True):
        (tmp_path / "layer_of_mine.py").write_text(f"def scaled(x):\n    return x * {number}\n")
        importlib.invalidate_caches()
        sys.modules.pop("layer_of_mine", None)
        importlib.import_module("layer_of_mine")
        model = tiny()
        model.model.layers[0].mlp = Scaled(model.model.layers[0].mlp)
        return served(model) if compiled else engine(model).generate(PROMPTS)

    assert is_cold(with_scale("2.0")[1])
    assert is_warm(with_scale("2.0")[1])
    tokens, did = with_scale("0.5")
    assert not did["calls_loaded"]
    assert tokens == with_scale("0.5", compiled=False)


def spoilt(folder: Path, how) -> int:
    """Change the bytes of all kept calls; how many there are."""
    files = list((folder / "calls").rglob("*.json"))
    for file in files:
        file.write_bytes(how(file.read_bytes()))
    return len(files)


def rewritten(change):
    """A file as somebody would write it who gets its hash right."""

    def how(data: bytes) -> bytes:
        body = change(data.partition(b"\n")[2])
        return b"braze1 " + hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    return how


@pytest.mark.parametrize(
    "how",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data.replace(b"forward", b"forwarb") + b" ",
        rewritten(lambda body: body[:-20]),
        rewritten(lambda body: b"{}"),
        rewritten(lambda body: b"[1, 2]"),
        rewritten(lambda body: body.replace(b'"format": 1', b'"format": 0')),
        rewritten(lambda body: body.replace(b'"handles"', b'"handlez"')),
        rewritten(lambda body: body.replace(b"x86-64", b"another")),
        rewritten(lambda body: body.replace(b"def make(", b"def made(")),
        rewritten(lambda body: body.replace(b"unified_attention_with_output", b"unified_attention_of_nobody")),
    ],
    ids=["half", "empty", "flipped", "short", "no fields", "a list", "format", "a field", "machine", "a name", "an operator"],
)  # fmt: skip
def test_what_is_damaged_is_refused_and_made_again(folder, filled, how):
    tokens = filled
    assert spoilt(folder, how) == CALLS
    again, did = served()
    assert (again, did["calls_loaded"]) == (tokens, 0)
    again, did = served()
    assert (again, did["calls_loaded"]) == (tokens, CALLS)


def test_a_model_of_code_without_a_file_is_not_kept(folder):
    scope: dict = {"torch": torch}
    exec("def scaled(x):\n    return x * 2.0\n", scope)
    model = tiny()

    class Mine(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return scope["scaled"](self.inner(x))

    model.model.layers[0].mlp = Mine(model.model.layers[0].mlp)
    tokens, _ = served(model)
    assert not (folder / "calls").exists()
    again, did = served(model)
    assert (again, is_cold(did)) == (tokens, True)
