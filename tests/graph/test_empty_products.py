"""A product without elements gives what eager's kernel does of what is added to it."""

import itertools

import pytest
import torch

import braze


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("beta", [0, 1, 2.0])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_number_added_to_a_matrix_without_elements_stays_a_number(
    shape: tuple[int, ...], beta: float, backend: str
) -> None:
    """Eager's kernel gives it as it is, whatever the rows; beside none that is to be added (``beta``) there are zeros."""

    def program(y: torch.Tensor, a: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.addmv(y, a, x, beta=beta)
        return made, made * 2

    for rows, columns in itertools.product((0, 1, 3), repeat=2):
        given = (torch.full(shape, 3.0), torch.ones(rows, columns), torch.ones(columns))
        braze.reset()
        theirs, ours = program(*given), braze.compile(program, backend=backend)(*given)
        for mine, its in zip(ours, theirs, strict=True):
            assert (mine.shape, mine.stride()) == (its.shape, its.stride())
            torch.testing.assert_close(mine, its)
