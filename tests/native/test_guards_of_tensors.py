"""Guards over numpy's numbers and the sizes of PyTorch's tensors (the other guards are tested without either)."""

import itertools

import numpy as np
import pytest
import torch

from braze.capture.guards.tables import compile_relation
from braze.native import GuardProgram, calibrate
from tests.native.test_guards import check_of, holds
from tests.native.test_seal import function, sealed


def test_numbers_of_numpy_are_equal_in_type_and_value():
    for expected in (np.float64(2.5), np.int32(2), np.bool_(True)):
        assert check_of(type(expected)(expected), "equal", expected)
        assert not check_of(expected.item(), "equal", expected)
    assert not check_of(np.int64(2), "equal", np.int32(2))
    assert not check_of(np.float64(2), "equal", np.float64(2.5))


@pytest.mark.parametrize("shape", [(), (3,), (0, 7), (2**40, 0, 5)])
def test_a_size_is_read_of_tensors_alone(shape):
    calibrate.facts()  # as a check of a tensor asks for
    tensor = torch.empty(shape)
    for dim in range(-1, 4):
        nodes = [(-1, "local", 0), (0, "size", dim)]
        there = 0 <= dim < len(shape)
        assert holds(nodes, [], (tensor,)) is there
        assert holds(nodes, [(1, "equal", shape[dim] if there else 3)], (tensor,)) is there
        for other in (None, 3, "abc", [1, 2, 3], torch.Tensor, tensor.numpy()):
            assert not holds(nodes, [], (other,))


def test_how_a_tensor_lies_in_its_memory_is_read_of_tensors_alone():
    """The bytes of that, below zero where it does not begin it; or whether it is all of it."""
    calibrate.facts()  # as a check of a tensor asks for
    whole = torch.empty(6, 4)
    for tensor, bytes, is_all in (
        (whole, 96, 1),
        (whole.t(), 96, 1),
        (whole[:5], 96, 0),
        (whole[1:], -96, 0),
        (whole[:, ::2], 96, 0),
        (whole[0, 0], 96, 0),
        (torch.empty(0, 3), 0, 1),
        (torch.empty(1).expand(5), 4, 1),
        (torch.tensor(2.0), 4, 1),
    ):
        for key, expected in ((0, bytes), (4, is_all)):
            nodes = [(-1, "local", 0), (0, "memory", key)]
            assert holds(nodes, [(1, "equal", expected)], (tensor,))
            assert not holds(nodes, [(1, "equal", expected + 1)], (tensor,))
            for other in (None, 3, "abc", torch.Tensor, whole.numpy()):
                assert not holds(nodes, [], (other,))


def test_what_is_computed_is_read_after_all_that_it_is_made_of():
    """Whichever lies deepest, or was made first; the size of a tensor that the seal has seen is read anew."""
    calibrate.facts()  # as a check of a tensor asks for
    relation = compile_relation("n0 * 10 + n1 % n2", {"n0": 0, "n1": 1, "n2": 2})
    leaves = [
        (-1, "local", 0),
        (0, "item", 0),
        (1, "item", 0),
        (-1, "local", 1),
        (3, "item", 0),
        (-1, "local", 2),
    ]
    nodes = [*leaves, (5, "size", 0)]
    for order in itertools.permutations((2, 4, 6)):
        made = (order[0], "computed", (relation, order))
        program = GuardProgram(
            [*nodes, made, (-1, "local", 3), (8, "item_at", 7)], [(9, "type", int)], (7, 9), 0
        )
        for turn in range(40):
            a, b, c = turn % 3 + 1, turn // 9 + 1, turn % 5 + 1
            found = dict(zip((2, 4, 6), (a, b, c), strict=True))
            numbers = [found[node] for node in order]
            index = numbers[0] * 10 + numbers[1] % numbers[2]
            held = list(range(100, 200))
            assert program.match(function, ([[a]], [b], torch.empty(c), held)) == (index, held[index])
        assert sealed(program)
        assert program.match(function, ([[a]], [b], torch.empty(0), [])) is None
