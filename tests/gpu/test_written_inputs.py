"""Inputs that a call writes where they lie: eager's contents, results, counts of writes and errors, and no copy."""

from __future__ import annotations

import pytest
import torch

import braze

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def sliced(x, y):
    x[1:4] = y[:3] * 2
    return x.sum()


def placed(x, y):
    x.index_copy_(0, torch.tensor([3, 0], device=x.device), y[:2])


def added(x, y):
    x.index_add_(0, torch.tensor([1, 1], device=x.device), y[:2])


def put(x, y):
    x[torch.tensor([2, 5], device=x.device), torch.tensor([0, 1], device=x.device)] = y[0, :2]


def twice(x, y):
    x.mul_(2)
    before = x + 1
    x.add_(y)
    return before


def crossed(x, y):
    z = x.clone()
    x.copy_(y.exp())
    y.copy_(z)


def turned(x, y):
    x.copy_(x.t() + y)


FUNCTIONS = {
    "lerp_": lambda x, y: x.lerp_(y, 0.3),
    "add_": lambda x, y: x.add_(y),
    "add_ of a number": lambda x, y: (x.add_(1), None)[1],
    "clamp_ and a result": lambda x, y: (x.clamp_(-0.5, 0.5), y + 1)[1],
    "zero_": lambda x, y: x.zero_(),
    "masked": lambda x, y: x.masked_fill_(y > 0, 3.0),
} | {f.__name__: f for f in (sliced, placed, added, put, twice, crossed, turned)}
LAYOUTS = {
    "plain": lambda: torch.randn(8, 8, device="cuda"),
    "large": lambda: torch.randn(512, 512, device="cuda"),
    "not aligned": lambda: torch.randn(65, device="cuda")[1:].view(8, 8),
    "turned": lambda: torch.randn(8, 8, device="cuda").t(),
    "with holes": lambda: torch.randn(8, 16, device="cuda")[:, ::2],
    "bfloat16": lambda: torch.randn(8, 8, device="cuda").bfloat16(),
}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_inputs_are_written_as_in_eager(name, layout, mode):
    fn = FUNCTIONS[name]
    compiled = braze.compile(fn, mode=mode)
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(3):
            x, y = LAYOUTS[layout](), LAYOUTS[layout]()
            a, b = _copied(x), _copied(y)
            address, version = x.data_ptr(), x._version
            wanted, found = fn(a, b), compiled(x, y)
            torch.testing.assert_close((x, y), (a, b))
            assert x.data_ptr() == address and x._version > version
            assert (found is x) == (wanted is a)
            if isinstance(wanted, torch.Tensor):
                torch.testing.assert_close(found, wanted)


def _copied(x: torch.Tensor) -> torch.Tensor:
    """A tensor as this one lies, with its numbers."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def test_what_is_written_whole_is_one_kernel():
    compiled = braze.compile(lambda x, y: x.lerp_(y, 0.3))
    x, y = torch.randn(1 << 20, device="cuda"), torch.randn(1 << 20, device="cuda")
    with torch.no_grad():
        compiled(x, y)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            compiled(x, y)
            torch.cuda.synchronize()
    assert sum(e.count for e in profiler.key_averages() if e.self_device_time_total > 0) == 1


def test_inputs_that_overlap_are_as_in_eager():
    """Those that are one are written, those that overlap otherwise are refused."""

    def fn(x, y):
        x.add_(y)
        return y * 2

    compiled = braze.compile(fn)
    with torch.no_grad():
        for shift in (0, 16, 0):
            a, b = torch.arange(32.0, device="cuda"), torch.arange(32.0, device="cuda")
            wanted, found = fn(a[:16], a[shift : shift + 16]), compiled(b[:16], b[shift : shift + 16])
            assert torch.equal(a, b) and torch.equal(wanted, found)
        for shift in (4, 8):
            a = torch.arange(32.0, device="cuda")
            for call in (fn, compiled):
                with pytest.raises(RuntimeError, match="single memory location"):
                    call(a[:16], a[shift : shift + 16])


class Cache(torch.nn.Module):
    """Keys and values of a decoder, in a buffer of the module and in a tensor of the caller's."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(2, rows, 8, 64, device="cuda"))

    def forward(self, x: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.k.index_copy_(1, at, x)
        v.transpose(1, 2).index_copy_(2, at, x.transpose(1, 2) * 2)
        keys, values = (c[:, :64].transpose(1, 2) for c in (self.k, v))
        return (x.transpose(1, 2) @ keys.transpose(2, 3)).softmax(-1) @ values


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_decoder_step_takes_no_memory_for_its_caches(mode):
    """A recorded step writes its caches where they lie, too: it holds no copy of them."""
    rows = 16384
    module, eager = Cache(rows), Cache(rows)
    v, w = (torch.zeros(2, rows, 8, 64, device="cuda") for _ in range(2))
    compiled = braze.compile(module, mode=mode)
    with torch.no_grad():
        x, at = torch.randn(2, 1, 8, 64, device="cuda"), torch.tensor([15], device="cuda")
        for f, other in ((compiled, v), (eager, w)):  # the libraries' workspaces are not what is asked for
            f(x, other, at)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for p in range(12):
            x, at = torch.randn(2, 1, 8, 64, device="cuda"), torch.tensor([p], device="cuda")
            torch.testing.assert_close(compiled(x, v, at), eager(x, w, at), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(module.k[:, :16], eager.k[:, :16])
            torch.testing.assert_close(v[:, :16], w[:, :16])
        assert torch.cuda.max_memory_allocated() - before < v.nbytes
