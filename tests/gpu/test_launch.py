"""Launches by the driver: the same kernels as Triton's own launches, on the stream and the device that PyTorch has current."""

import os

import pytest
import torch

import braze
from braze import native
from tests.helpers import logged

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(
    interpreted or not torch.cuda.is_available(), reason="needs a GPU, and kernels that are built"
)
core = pytest.importorskip("braze.native._native")


@pytest.fixture
def counted(monkeypatch):
    """How often Triton itself launches."""
    from braze.runtime.triton.triton_launch import Launch

    calls, plain = [], Launch.general
    monkeypatch.setattr(Launch, "general", lambda self, *args: (calls.append(args), plain(self, *args))[1])
    return calls


def fused(x):
    return (x * 2 + 1).relu(), x.sum(-1)


def test_triton_builds_and_the_driver_launches(counted):
    assert native.bind_driver()
    compiled, x = braze.compile(fused), torch.randn(64, 64, device="cuda")
    for _ in range(5):
        torch.testing.assert_close(compiled(x), fused(x))
    for _ in range(5):
        y = torch.randn(64, 64, device="cuda")
        torch.testing.assert_close(compiled(y), fused(y))
    assert not counted


def test_sizes_of_a_kind_share_what_was_built(counted):
    compiled = braze.compile(lambda x: x * 2 + 1, dynamic=True)
    for n in (33, 35, 37, 39, 41, 1001, 70001):
        x = torch.randn(n, device="cuda")
        assert torch.equal(compiled(x), x * 2 + 1)
    assert not counted
    for n in (0, 1, 2, 16, 32, 48):
        x = torch.randn(n, device="cuda")
        assert torch.equal(compiled(x), x * 2 + 1)


def means(x):
    """A dozen kernels of which each needs all of the one before it."""
    for _ in range(6):
        x = x - x.mean(0)
        x = x * 1.5 - x.mean(1, keepdim=True)
    return x


def test_kernels_in_a_row_are_right_from_the_first_call_on():
    compiled, held = braze.compile(means), []
    fixed = [torch.randn(64, 64, device="cuda") for _ in range(3)]
    for k in range(24):  # of memory that stays, that comes in turn, that is new
        x = fixed[0] if k < 8 else fixed[k % 3] if k < 16 else torch.randn(64, 64, device="cuda")
        x.add_(0.125)
        made = compiled(x)
        held.append((made, means(x.double())))
        held = held[-4 if k % 2 else -2 :]
        for got, want in held:
            torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(64, 64), (4096, 64), (2, 8192)])
@pytest.mark.parametrize("early", ["none", "auto", "all"])
def test_kernels_in_a_row_that_begin_early_or_not(shape, early):
    compiled = braze.compile(means, options={"early_launches": early})
    x = torch.randn(shape, device="cuda")
    for k in range(60):
        x = x if k % 10 else torch.randn(shape, device="cuda")
        x.mul_(0.99)
        torch.testing.assert_close(compiled(x).double(), means(x.double()), atol=1e-4, rtol=1e-4)


def test_kernels_in_a_row_on_other_streams_and_in_the_program_s_own_recording():
    compiled, x = braze.compile(means), torch.randn(64, 64, device="cuda")
    want = means(x.double())
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(6):
        torch.testing.assert_close(compiled(x).double(), want, atol=1e-4, rtol=1e-4)
    for k in range(12):
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[k // 4 % 2]):
            made = compiled(x)
        torch.cuda.synchronize()
        torch.testing.assert_close(made.double(), want, atol=1e-4, rtol=1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(x)
    x.copy_(torch.randn(64, 64, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y.double(), means(x.double()), atol=1e-4, rtol=1e-4)


def test_kernels_in_a_row_of_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    compiled = braze.compile(means)
    rows = [torch.randn(64, 64, device="cuda") for _ in range(4)]
    for _ in range(6):
        compiled(rows[0])
    wants = [means(x.double()) for x in rows]

    def work(k):
        with torch.cuda.stream(torch.cuda.Stream()) if k % 2 else torch.cuda.stream(None):
            for _ in range(50):
                made = compiled(rows[k])
                torch.cuda.current_stream().synchronize()
                torch.testing.assert_close(made.double(), wants[k], atol=1e-4, rtol=1e-4)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_addresses_that_16_does_not_divide(counted):
    compiled, base = braze.compile(lambda x: x * 2 + 1), torch.randn(1025, device="cuda")
    for start in (0, 1, 0, 3, 2, 0):
        x = base[start : start + 1000]
        assert torch.equal(compiled(x), x * 2 + 1)
    assert not counted


def test_kernels_go_to_the_current_stream():
    compiled, x = braze.compile(lambda x: x * 2 + 1), torch.randn(1000, device="cuda")
    compiled(x), compiled(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = compiled(x)
    x.fill_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(x, 5.0))


def test_a_hook_of_triton_s_sees_every_launch():
    import triton

    compiled, x = braze.compile(lambda x: x * 2 + 1), torch.randn(1000, device="cuda")
    compiled(x), compiled(x)
    seen = []
    chain = triton.knobs.runtime.launch_enter_hook

    def hook(metadata):
        seen.append(metadata)

    chain.add(hook)
    try:
        compiled(x), compiled(x)
    finally:
        chain.remove(hook)
    compiled(x)
    assert len(seen) == 2


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_graph_of_another_device_than_the_current_one():
    compiled, x = braze.compile(fused), torch.randn(64, 64, device="cuda:1")
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fused(x))
    with torch.cuda.device(1):
        torch.testing.assert_close(compiled(x), fused(x))
    torch.testing.assert_close(compiled(x.to("cuda:0")), fused(x.to("cuda:0")))


def test_tensors_are_made_as_torch_makes_them():
    from braze.native import allocation

    assert allocation.agrees_on("cuda:0")
    made = native.empty_strided((2, 3), (3, 1), dtype=torch.float32, device="cuda:0")
    assert made.device == torch.device("cuda:0") and made.is_contiguous()
    with pytest.raises(RuntimeError):
        native.empty_strided((2,), (1,), dtype=torch.float32, device="cuda:9")


def turned(x):
    return (x.t() * 2).contiguous() + 1


def turned_of_some(x, mask):
    rows = x[mask.nonzero()[:, 0]]
    return turned(rows), rows.exp()


@pytest.mark.parametrize("sizes", ["known", "symbols", "told by data"])
def test_a_kernel_for_which_the_gpu_has_no_room_leaves_its_graph_to_aten(sizes, monkeypatch):
    """Squares of 256 by 256 doubles, turned in shared memory."""
    from braze.schedule.gpu import kernels

    braze.reset()
    monkeypatch.setattr(kernels, "SQUARE", 256)
    x = torch.randn(700, 600, device="cuda", dtype=torch.float64)
    mask = torch.arange(700, device="cuda") % 3 > 0
    fn, given = (turned_of_some, (x, mask)) if sizes == "told by data" else (turned, (x,))
    compiled = braze.compile(fn, dynamic=sizes == "symbols")
    with logged() as messages:
        for _ in range(2):
            torch.testing.assert_close(compiled(*given), fn(*given))
    said = "\n".join(messages)
    assert "BZ5012" in said and "shared memory" in said and "BZ6013" not in said
    braze.reset()
