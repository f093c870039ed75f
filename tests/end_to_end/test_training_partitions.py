"""The programs of test_training.py under every way to divide a joint graph: ours, ours as somebody else's, functorch's."""

from __future__ import annotations

import functools

import pytest
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

from braze import aot
from braze.graph.private.torch_import import VERSION
from tests.end_to_end.test_training import PROGRAMS
from tests.end_to_end.training import check
from tests.helpers import logged


def wrapped(partition_fn):
    def partition(joint_module, joint_inputs, *, num_fwd_outputs):
        return partition_fn(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs)

    return partition


WAYS = {
    "default": "default",
    "default of another": wrapped(aot.default_partition),
    "cut of another": wrapped(aot.min_cut_partition),
    "functorch's default": default_partition,
    "functorch's cut": functools.partial(min_cut_rematerialization_partition, compiler="inductor"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("program", "inputs"), PROGRAMS, ids=[f"{p.__name__}{i}" for i, (p, _) in enumerate(PROGRAMS)]
)
def test_gradients_are_eagers(program, inputs, way):
    if program.__name__ == "checks_in_the_backward" and way == "functorch's default" and VERSION < (2, 13):
        pytest.skip("that partition wants a tensor of every operator, before PyTorch 2.13")

    def backend(gm, example_inputs):
        return aot.aot_module_simplified(gm, example_inputs, aot.nop, partition_fn=WAYS[way])

    with logged():
        check(program, inputs, backend)
