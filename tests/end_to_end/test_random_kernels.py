"""Random loop programs through the C generator and the host: the library computes what the interpreter does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from braze import pipeline
from braze.context import CompileContext
from braze.loops.ir import LoopProgram
from braze.options import Options
from braze.target import cpu_target
from tests.schedule.programs import run
from tests.schedule.test_random_programs import programs

CONTEXT = CompileContext(Options(verify=2), cpu_target())


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path / "cache"))


@settings(
    max_examples=8, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(programs())
def test_library_computes_the_program(program: LoopProgram) -> None:
    """Fused kernels, GEMM epilogues, mutated inputs and a reused arena, twice in a row."""
    call = pipeline.load_code(
        pipeline.generate_code(pipeline.schedule_program(program, CONTEXT), CONTEXT), CONTEXT
    )
    gen = torch.Generator().manual_seed(0)
    shapes = [[int(e.value or 0) for e in program.buffer(n).sizes] for n in program.inputs]
    inputs = [torch.randn(shape, generator=gen) for shape in shapes]
    expected = run(program)
    for _ in range(2):
        given_ = [x.clone() for x in inputs]
        found = [*call(given_), *(given_[program.inputs.index(n)] for n in program.mutated)]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
