"""Values stored and added at computed places on a GPU: no further from float64 than eager is, and the same each time where that is asked for."""

from __future__ import annotations

import pytest
import torch

import braze

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def relu_of_edges(h, w, s, d):
    return torch.zeros_like(h).index_add(0, d, torch.relu(h[s] * w[0])) * 0.5


#: name -> function of rows of 1,000 x 64, values of 20,000 x 64, and two lists of numbers of rows
SUMS = {
    "index_add": lambda x, v, i, j: x.index_add(0, i, v),
    "index_add, scaled": lambda x, v, i, j: x.index_add(0, i, v, alpha=0.5),
    "scatter_add": lambda x, v, i, j: x.scatter_add(0, i[:, None].expand_as(v), v),
    "index_put": lambda x, v, i, j: x.index_put((i - 1000,), v, accumulate=True),
    "scatter_reduce": lambda x, v, i, j: x.scatter_reduce(0, i[:, None].expand_as(v), v, "sum"),
    "edges": lambda x, v, i, j: relu_of_edges(x, v, j, i),
    "few places": lambda x, v, i, j: x[:7].index_add(0, i % 7, v),
    "in place": lambda x, v, i, j: x.clone().index_add_(0, i, v),
}
STORES = {
    "index_copy": lambda x, v, i: x.index_copy(0, i, -v[: len(i)]),
    "index_put": lambda x, v, i: x.index_put((i - 1000,), -v[: len(i)]),
    "scatter": lambda x, v, i: x.scatter(0, i[:, None].expand(-1, 64), -v),
    "scatter of a number": lambda x, v, i: x.scatter(1, i[:, None] % 64, 2.0),
    "index_fill": lambda x, v, i: x.index_fill(0, i, 2.0),
}


def made(dtype):
    g = torch.Generator("cuda").manual_seed(0)
    x, v = (torch.randn(n, 64, device="cuda", generator=g).to(dtype) for n in (1000, 20000))
    i, j = (torch.randint(0, 1000, (20000,), device="cuda", generator=g) for _ in range(2))
    return x, v, i, j


def errors(fn, *inputs):
    """How far ours and eager's are from float64, in the largest number's size."""
    exact = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
    ours, eager = braze.compile(fn)(*inputs), fn(*inputs)
    assert ours.dtype is eager.dtype and ours.stride() == eager.stride()
    scale = float(exact.abs().max())
    return [float((a.double() - exact).abs().max()) / scale for a in (ours, eager)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SUMS)
def test_sums_are_no_further_from_float64_than_eager_s(name, dtype):
    ours, eager = errors(SUMS[name], *made(dtype))
    assert ours <= eager + 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8])
@pytest.mark.parametrize("name", STORES)
def test_values_stand_where_eager_s_do(name, dtype):
    x, v, *_ = made(torch.float32)
    x, v = (x * 9).to(dtype), (v * 9).to(dtype)
    i = torch.randperm(1000, device="cuda")[:300]
    fn = STORES[name]
    assert torch.equal(braze.compile(fn)(x, v, i), fn(x, v, i))


@pytest.mark.parametrize("name", ["index_add", "index_put", "scatter_add"])
def test_integers_add_up_to_the_same(name):
    x, v, i, j = made(torch.float32)
    x, v = (x * 9).long(), (v * 9).long()
    assert torch.equal(braze.compile(SUMS[name])(x, v, i, j), SUMS[name](x, v, i, j))


@pytest.mark.parametrize("name", ["index_add", "index_put", "scatter_add", "edges"])
def test_the_same_each_time_where_the_program_asks_for_it(name):
    inputs = made(torch.float32)
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        compiled = braze.compile(SUMS[name])
        first = compiled(*inputs)
        assert all(torch.equal(first, compiled(*inputs)) for _ in range(5))
        torch.testing.assert_close(first, SUMS[name](*inputs), rtol=1e-4, atol=1e-4)
    finally:
        torch.use_deterministic_algorithms(was)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "taken",
    [
        lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 64)),
        lambda x, i: torch.index_select(x, 0, i),
        lambda x, i: x[i],
        lambda x, i: x[:, i % 64],
        lambda x, i: torch.take_along_dim(x, i[:1000, None] % 64, 1),
    ],
)
def test_gradients_of_what_is_taken(taken, dtype):
    x, _, i, _ = made(dtype)

    def gradient(fn, x):
        x = x.detach().requires_grad_()
        fn(x, i).sin().sum().backward()
        return x.grad

    exact, eager, ours = gradient(taken, x.double()), gradient(taken, x), gradient(braze.compile(taken), x)
    scale = float(exact.abs().max())
    far, allowed = (float((g.double() - exact).abs().max()) / scale for g in (ours, eager))
    # hundreds of values are added in any order, where eager's index_put sorts them
    assert far <= allowed + 64 * torch.finfo(torch.float32).eps + 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["index_add", "index_put", "scatter_add"])
def test_sizes_that_change(name):
    fn = SUMS[name]
    compiled = braze.compile(fn, dynamic=True)
    x, v, i, j = made(torch.float32)
    for n in (20000, 333, 1):
        given = x, v[:n], i[:n], j[:n]
        torch.testing.assert_close(compiled(*given), fn(*given), rtol=1e-4, atol=1e-3)
