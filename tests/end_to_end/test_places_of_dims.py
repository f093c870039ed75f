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
