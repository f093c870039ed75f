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


def returned_beside_a_write_of_nothing(x, y):
    part = x.expand(2, *x.shape)
    y.tanh_()
    return part


def read_beside_a_write_of_nothing(x, y):
    part = x[0]
    y.tanh_()
    return part * 2


def returned_beside_a_view_turned_in_place(x, y):
    part = x[0]
    y.expand(2, *y.shape).unsqueeze_(0)
    return part


def read_beside_a_view_turned_in_place(x, y):
    part = x[0]
    y.expand(2, *y.shape).unsqueeze_(0)
    return part * 2


def computed_before_a_write_of_nothing(x, y):
    twice = x * 2
    y.tanh_()
    return twice


def repeated_column(n: int) -> torch.Tensor:
    return torch.ones(n, 1).expand(n, 4).detach().requires_grad_()


def gradient(program: Program, n: int, *, shared: bool, of_a_part: bool) -> list[list[float]]:
    """Of a leaf whose columns are one column, by weights that differ from one to the next."""
    leaf = repeated_column(n)
    y = leaf.detach()[n:] if shared else torch.ones(0, 4)
    result = program(leaf[:, 1:] if of_a_part else leaf, y)
    (result * torch.arange(result.shape[-1])).sum().backward()
    assert leaf.grad is not None
    return leaf.grad.tolist()


@pytest.mark.parametrize(
    "program",
    [
        returned_beside_a_write_of_nothing,
        read_beside_a_write_of_nothing,
        returned_beside_a_view_turned_in_place,
        read_beside_a_view_turned_in_place,
        computed_before_a_write_of_nothing,
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("of_a_part", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_elements_of_one_place_share_the_gradients_of_a_view_older_than_a_write(
    program, backend, dynamic, of_a_part, first
):
    """Autograd makes the view again as a window on memory, whoever of those that share its count was written."""
    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    for n, shared in ((2, first), (3, not first), (2, True), (3, False)):
        ours = gradient(compiled, n, shared=shared, of_a_part=of_a_part)
        assert ours == gradient(program, n, shared=shared, of_a_part=of_a_part), (n, shared)


@pytest.mark.parametrize("make", [repeated_column, lambda n: torch.ones(n, 4).requires_grad_()])
def test_a_graph_stays_compiled_where_what_it_writes_shares_no_count_with_views(make):
    """Also of elements that share memory; and of those that share none, whatever else lies there."""
    compiled = braze.compile(read_beside_a_write_of_nothing)
    x = make(2)
    with logged() as told:
        compiled(x, x.detach()[2:] if x.is_contiguous() else torch.ones(0, 4)).sum().backward()
    assert not [line for line in told if "BZ2017" in line]


@pytest.mark.parametrize("shape", [(0, 1, 0), (0, 3), (3, 0, 2), (3, 0), (2, 3), (1, 1)])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_view_in_another_type_is_written_be_there_elements_or_not(shape, backend, dynamic):
    """Of none, strides of what is written may be such as no wider type can have (`rare` 6950003115)."""

    def of_a_result(x: torch.Tensor) -> torch.Tensor:
        made = x.sign()
        part = made.view(torch.uint8)
        part.add_(part, alpha=2)
        return made

    def of_an_argument(x: torch.Tensor) -> torch.Tensor:
        part = x.view(torch.int16)[..., 1:]
        part.fill_(3)
        return part

    for program in (of_a_result, of_an_argument):
        compiled = braze.compile(program, backend=backend, dynamic=dynamic)
        x, y = (torch.arange(-1, torch.Size(shape).numel() - 1).view(shape) for _ in range(2))
        with logged() as said:
            ours, eager = compiled(x), program(y)
        assert torch.equal(ours, eager) and ours.stride() == eager.stride() and torch.equal(x, y)
        assert not [text for text in said if "BZ9" in text or "BZ60" in text]
