"""What kernels read row by row lies so in a compiled call, whatever the program has written into it."""

import pytest
import torch
import torch.nn.functional as F

import braze


def turned(x):
    """What is written lies otherwise than what it is written into."""
    return torch.arange(float(x.numel())).reshape(x.mT.shape).sin().mT


def repeated(x):
    return torch.tensor([0.5]).expand(x.shape)


def group_norm(x, w):
    return F.group_norm(x, 2, w[0], w[1])


def mean_distance(x, w):
    return F.pdist(x[0]) + w.mean()


def picked(x, w):
    return F.nll_loss(x[None], torch.zeros(1, *x.shape[1:], dtype=torch.int64)) + w.mean()


def bags(x, w):
    return F.embedding_bag(torch.tensor([[1, 2], [3, 0]]), w, mode="sum") * x.mean()


def attention(x, w):
    return F.scaled_dot_product_attention(x[None], x[None], x[None]) + w.mean()


def middle(x, w):
    return x.median(0).values + x.nanmedian(1).values.mean() + w.median(-1).values.mean()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("written", [turned, repeated])
@pytest.mark.parametrize("read", [group_norm, mean_distance, picked, bags, attention, middle])
def test_what_is_written_is_read_as_in_eager(read, written, dynamic, backend):
    def program(x, w, new_x, new_w):
        x, w = x * 2, w * 2
        x.copy_(new_x)
        w.copy_(new_w)
        return read(x, w)

    compiled = braze.compile(program, backend=backend, dynamic=dynamic, options={"verify": 2})
    for width in (4, 6):
        x, w = torch.ones(4, 4, width), torch.ones(4, 4)
        found = []
        for call in (compiled, program):
            new = [written(v).requires_grad_() for v in (x, w)]
            result = call(x, w, *new)
            found.append((result, *torch.autograd.grad(result.square().sum(), new)))
        torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_the_median_of_what_one_number_was_written_into_is_that_number(backend):
    """Eager's kernel takes a repeated tensor for one that is laid out, and reads beyond its end."""

    def program(x, y):
        x[:-1].copy_(y)
        return x[:-1].unfold(0, 1, 1).contiguous().median(-2).values

    compiled = braze.compile(program, backend=backend, options={"verify": 2})
    for size in (3, 9, 5):
        assert compiled(torch.ones(size), torch.tensor(7.0)).tolist() == [7.0]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_viewed_beside_a_write_lies_as_in_eager_at_all_sizes(dynamic, backend):
    """Of rows with gaps eager's attention takes another kernel than of a copy of them, which gives zeros where a score is NaN."""

    def program(x, count):
        count.add_(1)
        rows = x.unflatten(-1, (1, -1))
        return F.scaled_dot_product_attention(rows, rows, rows)

    compiled = braze.compile(program, backend=backend, dynamic=dynamic, options={"verify": 2})
    for size in (3, 4):
        x = torch.ones(size, size, 6)[..., ::2]
        x[0, 0, :2] = torch.tensor([torch.inf, torch.nan])
        found = compiled(x, torch.zeros(()))
        torch.testing.assert_close(found, program(x, torch.zeros(())), equal_nan=True)
        assert found[0, 0].isnan().all()
