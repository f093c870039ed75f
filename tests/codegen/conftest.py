"""Hand-made groups, compiled, run, and compared with the loop IR's interpreter."""

from __future__ import annotations

import pytest

from braze.target import Target, cpu_target
from tests.codegen.c_bench import Bench


def _targets() -> list[Target]:
    here = cpu_target()
    if here.arch != "x86-64-avx512":
        return [here]
    return [here, Target("cpu", "x86-64-avx2", ("avx2", "fma", "f16c"), 32, here.cores)]


@pytest.fixture(params=_targets(), ids=lambda t: t.arch)
def bench(request, tmp_path) -> Bench:
    """Kernels for every instruction set that this machine can run."""
    return Bench(request.param, tmp_path)


@pytest.fixture
def native_bench(tmp_path) -> Bench:
    """Kernels for this machine's widest vectors."""
    return Bench(cpu_target(), tmp_path)
