"""Triton's text is shown where C is, and where there can be no kernels that is said once, and what to do."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from braze import pipeline
from braze.backends.uncompiled import compiled_or_as_captured
from braze.context import CompileContext
from braze.options import Options
from braze.runtime.triton import triton_load
from braze.support import log
from braze.support.caches import Latest
from braze.support.errors import Unsupported
from braze.target import cuda_target
from tests.codegen.triton_models import on_gpu, two_sizes

CTX = CompileContext(Options(verify=2), cuda_target((9, 0), 132), "shown")


def test_kernels_are_dumped_and_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    monkeypatch.setattr(log.logger("output_code"), "propagate", True)
    caplog.set_level("INFO", "braze.output_code")
    with torch.no_grad():
        partition = pipeline.partition_graph(*on_gpu(two_sizes, [(20, 50), (50, 150)]), CTX)
        plan = pipeline.schedule_program(pipeline.lower_graph(partition, CTX), CTX)
        host = pipeline.generate_code(plan, CTX)
    assert host.kernels
    dumped = [path.read_text() for path in tmp_path.glob("*_shown_triton_*.py")]
    assert sorted(dumped) == sorted(text.source for text in host.kernels)
    for text in host.kernels:
        assert text.source in caplog.text


@pytest.fixture
def asked_anew():
    triton_load._missing.cache_clear()
    yield
    triton_load._missing.cache_clear()


def test_gpus_that_triton_builds_for_are_usable(asked_anew):
    assert not any(map(triton_load.unusable, ("sm_70", "sm_90", "sm_100", "gfx942")))
    assert "sm_70 or newer" in triton_load.unusable("sm_61")


def test_without_triton_graphs_run_as_captured_which_is_said_once(asked_anew, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(log, "_seen", Latest(8))
    monkeypatch.setattr(log.logger("aot"), "propagate", True)
    graph, examples = on_gpu(two_sizes, [(4, 5), (5, 6)])
    with pytest.raises(Unsupported, match="Triton cannot be imported"):
        pipeline.compile_graph(graph, examples, CTX)
    for _ in range(2):
        call = compiled_or_as_captured(
            graph, "g", lambda: pipeline.compile_graph(graph, examples, CTX), strict=True
        )
        assert call == graph.forward
    assert caplog.text.count("BZ5011") == 1


def test_on_a_gpu_that_is_too_old_graphs_run_as_captured_which_is_said_once(asked_anew, monkeypatch, caplog):
    monkeypatch.setattr(log, "_seen", Latest(8))
    monkeypatch.setattr(log.logger("aot"), "propagate", True)
    graph, examples = on_gpu(two_sizes, [(4,), (5,)])
    old = CompileContext(Options(), cuda_target((6, 1), 20), "old")
    for _ in range(2):
        call = compiled_or_as_captured(
            graph, "g", lambda: pipeline.compile_graph(graph, examples, old), strict=True
        )
        assert call == graph.forward
    assert caplog.text.count("BZ5011") == 1 and "sm_61" in caplog.text


def test_a_graph_whose_kernel_the_machine_refuses_runs_as_captured_and_says_what_to_do(
    monkeypatch, caplog, tmp_path
):
    def refused(launches, device):
        assert [numbers for _, numbers in launches] == [()] * 2 and device == "cuda:0"
        raise Unsupported("BZ5012", "triton_poi_fused_exp_0 cannot be built or loaded", why="PTXASError: 255")

    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        triton_load, "ahead", lambda: SimpleNamespace(add=lambda jobs: None, add_shared=lambda jobs: [])
    )
    monkeypatch.setattr(triton_load, "require_ready", refused)
    monkeypatch.setattr(log.logger("aot"), "propagate", True)
    graph, examples = on_gpu(two_sizes, [(4, 5), (5, 6)])
    call = compiled_or_as_captured(
        graph, "g", lambda: pipeline.compile_graph(graph, examples, CTX), strict=True
    )
    assert call == graph.forward
    assert caplog.text.count("BZ5012") == 1 and "PTXASError: 255" in caplog.text and "do:" in caplog.text


def test_expressions_whose_parts_are_used_twice_are_walked_once():
    """Of each there are a trillion ways to its leaves."""

    def deep(x):
        y = x - x.amax(-1, keepdim=True)
        for _ in range(40):
            y = y * y + y
        return y.sum(-1), y

    with torch.no_grad():
        partition = pipeline.partition_graph(*on_gpu(deep, [(64, 1000)]), CTX)
        plan = pipeline.schedule_program(pipeline.lower_graph(partition, CTX), CTX)
        (text,) = pipeline.generate_code(plan, CTX).kernels
    assert text.source.count(" * ") >= 40
