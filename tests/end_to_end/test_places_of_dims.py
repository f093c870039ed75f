"""A place that a dim does not have is refused as in eager, also where PyTorch's fakes would pick it (2.11's do)."""

import pytest
import torch
import torch.nn.functional as F

import braze

PICKED = {
    "select": lambda y: y.select(0, 5) * 2,
    "select_before_the_first": lambda y: y.select(0, -5) * 2,
    "select_of_a_size": lambda y: y.select(1, y.shape[1]) * 2,
    "select_of_none": lambda y: y[:0].select(0, 0) + 1,
    "a_write": lambda y: y.clone().select(0, 5).fill_(1.0),
    "unread": lambda y: (y.select(-1, 9), y * 2)[1],
    "select_scatter": lambda y: y.select_scatter(y[0], 0, 5) + 1,
    "select_scatter_unread": lambda y: (y.select_scatter(y[0], 0, -5), y * 2)[1],
    "instance_norm_of_no_pictures": lambda y: F.instance_norm(y[:0, :, None].repeat(1, 1, 2), weight=y[0]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("name", PICKED)
def test_a_place_that_a_dim_does_not_have_is_refused(name, backend, dynamic):
    """It would be read, or written, in memory that is not the tensor's."""
    with pytest.raises(IndexError) as wanted:
        PICKED[name](torch.ones(3, 4))
    with pytest.raises(IndexError) as found:
        braze.compile(PICKED[name], backend=backend, dynamic=dynamic)(torch.ones(3, 4))
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_places_that_a_dim_has_are_picked(dynamic):
    def ends(y):
        return y.select(0, -3) + y.select(0, 2), y.select_scatter(y[0] * 2, 0, 2)

    compiled, y = braze.compile(ends, dynamic=dynamic), torch.rand(3, 4)
    for ours, theirs in zip(compiled(y), ends(y), strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(IndexError, match="out of range for tensor of size"):
        compiled(torch.rand(2, 4))


KNOWN = {
    "gather_beyond": lambda x: x.gather(0, torch.full((1, 2), 3)),
    "gather_before": lambda x: x.gather(0, torch.full((1, 2), -1)),
    "gather_row": lambda x: x.gather(0, torch.arange(-1, 3)[None]),
    "slices_beyond": lambda x: x.index_select(0, torch.full((2,), 3)),
    "slices_before": lambda x: x.index_select(0, torch.arange(-1, 2)),
    "slices_row": lambda x: x.index_select(0, torch.arange(x.shape[1])),
    "embedding_beyond": lambda x: F.embedding(torch.full((2,), 3), x),
    "embedding_before": lambda x: F.embedding(torch.arange(-1, 2), x),
    "index_beyond": lambda x: x[torch.full((2,), 3)],
    "index_before": lambda x: x[torch.arange(-4, 2)],
    "take_beyond": lambda x: x.take(torch.full((2,), 12)),
    "scatter_beyond": lambda x: x.scatter(0, torch.full((1, 4), 3), x),
    "index_add_before": lambda x: x.index_add(0, torch.full((2,), -1), x[:2]),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", KNOWN)
def test_places_that_the_trace_knows_are_looked_at_where_they_do_not_exist(name, dynamic):
    """Numbers and counts are read without a look, but only where they are known to lie in the tensor."""
    x = torch.rand(3, 4)
    with pytest.raises((IndexError, RuntimeError)) as wanted:
        KNOWN[name](x)
    with pytest.raises(wanted.type) as found:
        braze.compile(KNOWN[name], dynamic=dynamic)(x)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_places_that_the_trace_knows_are_read_where_they_exist(dynamic):
    def read(x):
        last = torch.full((1, 4), 2)
        return x.gather(0, last), x[torch.arange(-2, 2)], x.index_select(0, torch.arange(x.shape[0]))

    x = torch.rand(3, 4)
    for ours, theirs in zip(braze.compile(read, dynamic=dynamic)(x), read(x), strict=True):
        torch.testing.assert_close(ours, theirs)
