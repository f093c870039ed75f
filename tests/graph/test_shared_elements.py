"""Writes to tensors whose elements share memory, which eager refuses where each element would be computed from what it holds."""

import pytest
import torch

import braze

WRITES = {
    "add": lambda shared, x: shared.add_(1),
    "iadd": lambda shared, x: shared.__iadd__(x),
    "exp": lambda shared, x: shared.exp_(),
    "lerp": lambda shared, x: shared.lerp_(x, 0.5),
    "out": lambda shared, x: torch.mul(x, 2, out=shared),
    "fill": lambda shared, x: shared.fill_(1),
    "empty": lambda shared, x: shared[:0].add_(1),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_write_that_eager_refuses_for_shared_elements_reaches_a_handler_of_the_program(write, dynamic):
    def program(x):
        shared = (x[:1] * 1).expand(x.shape)
        try:
            write(shared, x)
        except RuntimeError as error:
            return x + 1, str(error)
        return shared + x, ""

    compiled = braze.compile(program, dynamic=dynamic)
    for rows in (4, 5):
        x = torch.arange(3.0 * rows).view(rows, 3)
        (theirs, said), (ours, told) = program(x), compiled(x)
        assert torch.equal(theirs, ours) and said == told
    assert said == "" if write in (WRITES["fill"], WRITES["empty"]) else "single memory location" in said
