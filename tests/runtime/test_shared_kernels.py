"""The kernels of operators of ours are built with those of the graph that calls them, and are just those that a call launches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from braze import pipeline
from braze.loops.ir import ExternCall
from braze.runtime.gpu import counted_sums, groups, running, table_sums
from braze.runtime.triton import triton_load
from braze.runtime.triton.triton_build import Ahead, Job
from braze.runtime.triton.triton_launch import Launch
from tests.aot.cuda_fakes import CTX, partition_on_gpu

CPU = torch.device("cpu")
CACHES = (
    groups.kernel, groups._sorting, table_sums._last, table_sums._few, counted_sums._kernels, running._kernel,
    running._launches,
)  # fmt: skip


@pytest.fixture
def noted(monkeypatch):
    """The launches of operators' kernels by name, which compute nothing."""
    launches = []

    def load(job, sizes, grid):
        count = len(job.dtypes)
        return lambda *args: launches.append((job.name, job.constants, args[count:]))

    monkeypatch.setattr(triton_load, "load_shared", load)
    for known in CACHES:
        known.cache_clear()
    yield launches
    for known in CACHES:
        known.cache_clear()


def told(target, *args):
    """What the operator says that it launches, as it is noted."""
    found = []
    for kernel, numbers in triton_load.LAUNCHED[target](CPU, *args):
        kernel(*[None] * 20, *numbers)
        found.append(numbers)
    return found


CALLS = [
    *(
        ("braze.table_sums.default", table_sums.by_kernels, (torch.ones(n, width), torch.zeros(n, dtype=torch.int64), rows, padding))
        for n, width, rows, padding in ((1, 8, 5, -1), (300, 64, 1000, 3), (3000, 64, 50, -1), (8192, 768, 1024, -1), (8192, 768, 50304, 0))
    ),
    ("braze.groups.default", groups.by_counting, (torch.zeros(5000, dtype=torch.int32), 70_000)),
    ("braze.running.default", running.by_kernels, (torch.ones(300, 1000), 1, "sum", False)),
    ("braze.running.default", running.by_kernels, (torch.ones(1 << 20, 2), 0, "sum", True)),
]  # fmt: skip


@pytest.mark.parametrize(("target", "function", "args"), CALLS)
def test_what_an_operator_says_that_it_launches_it_launches(noted, target, function, args):
    function(*args)
    launched, noted[:] = list(noted), []
    assert launched
    described = [torch.empty_like(a, device="meta") if isinstance(a, torch.Tensor) else a for a in args]
    numbers = told(target, *described)
    assert [(name, how) for name, how, _ in noted] == [(name, how) for name, how, _ in launched]
    assert numbers == [given for _, _, given in launched]


def test_kernels_of_one_file_are_asked_for_once_and_known_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(triton_load, "load_module", lambda path: SimpleNamespace(a=None, b=None))
    monkeypatch.setattr(Launch, "launcher", lambda self: self.general)
    submitted = []

    def submit(jobs):
        submitted.extend(jobs)
        return [SimpleNamespace(job=job, endless=False, why="") for job in jobs]

    ahead = Ahead(
        SimpleNamespace(submit=submit, take=lambda ticket: False), lambda path: path.with_suffix(".t")
    )
    kernels = [
        triton_load.load_shared(
            Job(str(tmp_path / "file.py"), name, ("*i32",), (), (), 4, 1), ("n", "rows"), "n"
        )
        for name in "ab"
    ]
    wanted = triton_load.begin_shared([(kernel, (100, 7)) for kernel in kernels], ahead)
    assert [(launch.job.name, numbers) for launch, numbers in wanted] == [("a", (100, 7)), ("b", (100, 7))]
    assert [job.sizes for job in submitted] == [(100, 7)] * 2
    assert len({launch.first.path for launch, _ in wanted}) == 2
    triton_load.begin_shared([(kernel, (100, 7)) for kernel in kernels], ahead)
    assert len(submitted) == 2, "they are under way"
    for launch, _ in wanted:
        ahead.after(launch.first.path)
        launch.first = None
    triton_load.begin_shared([(kernel, (100, 7)) for kernel in kernels], ahead)
    assert len(submitted) == 2, "a process has built them"


def test_a_graph_tells_of_the_calls_that_launch_kernels():
    def gradient(grad, ids):
        return torch.ops.aten.embedding_dense_backward(grad, ids, 50304, -1, False)

    given = [torch.empty(8192, 768, dtype=torch.bfloat16, device="meta"), torch.empty(8192, dtype=torch.int64, device="meta")]  # fmt: skip
    plan = pipeline.schedule_program(pipeline.lower_graph(partition_on_gpu(gradient, given), CTX), CTX)
    calls = pipeline.calls_with_kernels(plan)
    assert [call.target for call in calls] == ["braze.table_sums.default"]
    assert all(isinstance(call, ExternCall) for call in calls)
    found = pipeline.launched_by(calls[0], CPU)
    assert len(found) >= 3 and all(numbers[1] == 50304 for _, numbers in found)
