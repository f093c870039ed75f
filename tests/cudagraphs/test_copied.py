"""Outputs that are copied out, since those of two recordings are held: the C core does it where each is all of its memory."""

from __future__ import annotations

import pytest
import torch

from braze import native
from braze.cudagraphs import recorded
from braze.cudagraphs.recording import Leave, Recording
from tests.cudagraphs.helpers import assert_equal, numbers, recording, recordings

pytestmark = [
    pytest.mark.usefixtures("simulated"),
    pytest.mark.skipif(not native.native_available, reason="the C core is not built"),
]


def copying() -> list[Recording]:
    """The recordings that there are whose outputs are copied out."""
    groups = [group for each in recorded._live for group in each.sizes.groups.values()]
    return [r for group in groups for r in group.recordings if r.leave is Leave.COPIED]


def check(program, make, native_copies, calls=8):
    """Calls whose results are all kept are as in eager, and copied out by the C core or by Python."""
    f, kept, before = recording(program), [], copying()
    with torch.no_grad(), recordings() as made:
        for _ in range(calls):
            x = make()
            kept.append((f(x), program(x)))
        assert made() == 3
    for ours, theirs in kept:
        assert_equal(ours, theirs)
    (mine,) = [r for r in copying() if r not in before]
    assert (mine.quick is not None) == native_copies
    return [ours for ours, _ in kept]


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(4, 3),
        lambda: numbers(4, 3).t(),
        lambda: numbers(2, 3, 4).permute(2, 0, 1),
        lambda: numbers(4, 3).bfloat16(),
        lambda: numbers(4, 3).double(),
        lambda: (numbers(4, 3) * 9).long(),
        lambda: numbers(4, 3) > 0,
        lambda: numbers(1)[0],
    ],
)
def test_results_of_every_layout_and_type(make):
    check(lambda x: x.flip(0) if x.dim() else x.sign(), make, True)


def test_several_results_and_what_is_no_tensor():
    check(lambda x: (x + 1, (x * 2).t(), None, 3, x.sum(0), x), lambda: numbers(4, 3), True)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x + 1)[1:],
        lambda x: (x + 1)[:, :2],
        lambda x: (x + 1)[:1].expand(5, 3),
    ],
)
def test_results_that_are_a_part_of_their_memory_are_pythons(program):
    """What is beyond a view stays."""
    check(program, lambda: numbers(4, 3), False)


def test_a_result_in_inference_mode_is_an_inference_tensor():
    program = lambda x: x * 2 + 1
    f, kept = recording(program), []
    for k in range(12):
        with torch.inference_mode(k % 3 == 2), torch.no_grad():
            x = numbers(5)
            kept.append((f(x), x, k % 3 == 2))
    for y, x, inside in kept:
        assert_equal(y.clone(), program(x).clone())
        assert y.is_inference() == inside and not y.requires_grad and y._base is None


def test_copies_are_the_callers_own():
    """They may be changed and held, and no later call is seen in them."""
    kept = check(lambda x: x * 2, lambda: numbers(3), True)
    copies = kept[-3:]
    copies[0].fill_(7)
    assert len({y.untyped_storage().data_ptr() for y in kept}) == len(kept)
    assert not bool((copies[1] == 7).any())
    assert all(y.untyped_storage().nbytes() == 12 for y in copies)


def test_inputs_are_placed_and_parameters_read_before_a_copy_is_made():
    weight = torch.nn.Parameter(numbers(3, 3), requires_grad=False)
    program = lambda x, y: (x @ weight).relu() * y
    f, kept = recording(program), []
    with torch.no_grad():
        for _ in range(8):
            x, y = numbers(2, 3), numbers(2, 3)
            kept.append((f(x, y), program(x, y)))
            weight.mul_(0.5)
    for ours, theirs in kept:
        assert_equal(ours, theirs)
