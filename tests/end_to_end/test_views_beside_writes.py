"""Views of one argument beside writes to another: autograd counts writes of all that lie in one memory together, in whichever call they do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze
from tests.helpers import logged

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def made_after_the_write(x, y):
    y.mul_(2)
    with torch.no_grad():
        part = x[::2]
    return part[1:]


def made_before_the_write(x, y):
    with torch.no_grad():
        part = x[::2]
    y.mul_(2)
    return part


def of_memories_of_their_own(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(n, 3).requires_grad_(), torch.ones(n, 3)


def halves(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.ones(2 * n, 3)
    return whole[:n].detach().requires_grad_(), whole[n:]


def history(program: Program, given: tuple[torch.Tensor, torch.Tensor]) -> tuple[object, ...]:
    """What autograd says of a result, or why it does not."""
    result = program(*given)
    try:
        told: object = result.grad_fn is not None
    except RuntimeError as error:
        told = "refused" if "created in no_grad mode" in str(error) else str(error)
    return told, result.requires_grad, result._version > 0, [t.tolist() for t in (result, *given)]


@pytest.mark.parametrize("program", [made_after_the_write, made_before_the_write])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (0, 0, 0), (4, 0, 6)])
def test_a_view_is_older_than_a_write_to_another_argument_of_its_memory(program, backend, dynamic, sizes):
    """Whose memory is one is not the same in each call, and of what has no elements it makes no difference but for this."""
    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    for make, n in zip((of_memories_of_their_own, halves, of_memories_of_their_own), sizes, strict=True):
        assert history(compiled, make(n)) == history(program, make(n)), (make.__name__, n)


def test_a_view_of_what_has_no_history_is_made_in_the_graph_beside_writes_to_its_memory():
    """Nothing tells then whether it is older: parts of one buffer are what optimizers and collectives write."""
    compiled = braze.compile(made_after_the_write)
    with logged() as told:
        for make in (of_memories_of_their_own, halves):
            x, y = make(4)
            assert compiled(x.detach(), y).shape == (1, 3)
    assert not [line for line in told if "BZ2017" in line]
