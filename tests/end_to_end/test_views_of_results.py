"""What operators give, and views of it: whose they are, and what history they have, is eager's."""

import pytest
import torch

import braze


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.logsumexp(0),
        lambda x: torch.nn.functional.mish(x).logsumexp(-2),
        lambda x: x.logsumexp((0, 1)),
        lambda x: x.var(1),
        lambda x: x.exp(),
    ],
    ids=["logsumexp", "of mish", "of all", "var", "exp"],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_an_operator_gives_is_no_view_of_what_it_is_made_of_in_the_graph(made, dynamic):
    """What is viewed without gradients requires one as in eager, and what it is a view of is a view of nothing."""

    def alone(x):
        whole = made(x)
        with torch.no_grad():
            return whole.view_as(whole)

    def beside(x):
        whole = made(x)
        return whole, whole[...]

    x = torch.arange(12.0).reshape(3, 4).requires_grad_()
    part = braze.compile(alone, dynamic=dynamic)(x)
    assert alone(x).requires_grad and part.requires_grad
    assert part.grad_fn is None
    whole, part = braze.compile(beside, dynamic=dynamic)(x)
    assert part._base is whole and not whole._is_view()
