"""Where results of decompositions lie: as eager's do, without a copy where they lie so already."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.decomp.families import ours
from braze.graph.fakes import fakes
from braze.graph.private import torch_compat
from tests.aot.cuda_fakes import partition_on_gpu

aten = torch.ops.aten


class Called(TorchDispatchMode):
    """The operators that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func)
        return func(*args, **(kwargs or {}))


def pictures(order: tuple[int, ...], *sizes: int) -> torch.Tensor:
    """Numbers of these sizes whose dims lie in an order, the last innermost."""
    made = torch.randn([sizes[d] for d in order])
    return made.permute([order.index(d) for d in range(len(order))])


ORDERS = {
    "rows": (0, 1, 2, 3),
    "channels last": (0, 2, 3, 1),
    "pictures inside": (1, 0, 2, 3),
    "turned": (3, 2, 1, 0),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_batch_norm_on_the_cpu_copies_only_what_eager_lays_out_anew(order, training):
    x, mean, var = pictures(ORDERS[order], 2, 3, 4, 5), torch.zeros(3), torch.ones(3)
    with Called() as called:
        found = ours()[aten.batch_norm.default](x, None, None, mean, var, training, 0.1, 1e-5)
    wanted = torch.nn.functional.batch_norm(x, mean, var, training=training)
    assert found.stride() == wanted.stride()
    assert (aten.clone.default in called.names) is (order not in ("rows", "channels last"))


@pytest.mark.parametrize("order", ORDERS)
def test_batch_norm_on_a_gpu_leaves_dims_in_their_order(order):
    x = pictures(ORDERS[order], 2, 3, 4, 5)
    mode, device = fakes.new_mode(), torch.device("cuda:0")
    given = [
        torch_compat.assemble_fake(mode.dispatch, t.to("meta"), device, False)
        for t in (x, torch.zeros(3), torch.ones(3))
    ]
    assert given[0].stride() == x.stride()
    with mode:
        found = ours()[aten.batch_norm.default](given[0], None, None, *given[1:], False, 0.1, 1e-5)
    assert found.stride() == x.stride()


def test_a_gpu_is_given_back_the_statistics_that_no_training_reads():
    def f(x, weight, mean, var):
        return aten._native_batch_norm_legit_no_training.default(x, weight, None, mean, var, 0.1, 1e-5)

    made = partition_on_gpu(f, [torch.randn(6, 5), *(torch.ones(5) for _ in range(3))])
    nodes = made.forward.graph.nodes
    assert aten._native_batch_norm_legit_no_training.default not in [n.target for n in nodes]
    assert [tuple(n.meta["val"].shape) for n in made.forward.graph.output_node().args[0]] == [
        (6, 5),
        (5,),
        (5,),
    ]


@pytest.mark.parametrize("beside", [False, True], ids=["statistics in rows", "statistics in steps"])
@pytest.mark.parametrize("order", ORDERS)
def test_batch_norm_of_large_means_is_as_near_as_eagers_in_each_layout(order, beside):
    """Eager takes the mean off first where something does not lie in order, and has a scale and a shift per channel elsewhere."""
    torch.manual_seed(0)
    x = pictures(ORDERS[order], 6, 3, 4, 5) + 1e4
    mean, var = x.mean([0, 2, 3]), torch.ones(3)
    if beside:
        mean = torch.stack([mean, mean], 1)[:, 0]
    weight, bias = torch.tensor([0.5, -2.0, 3.0]), torch.tensor([1.0, 0.0, -1.0])
    norm = torch.nn.functional.batch_norm
    exact = norm(*(t.double() for t in (x, mean, var, weight, bias)))
    eager = norm(x, mean, var, weight, bias)
    found = ours()[aten.batch_norm.default](x, weight, bias, mean, var, False, 0.1, 1e-5)
    error, allowed = ((t.double() - exact).abs().max() for t in (found, eager))
    assert error <= 1.5 * allowed
    assert bool(error < 1e-5) is (beside or order not in ("rows", "channels last"))


@pytest.mark.parametrize("dynamic", [False, True])
def test_channels_that_a_gpu_leaves_in_their_order_lie_row_by_row(dynamic):
    """Its kernel copies what lies otherwise; PyTorch's fake has the operand's strides (`tensors` 16800000471)."""
    x = torch.rand(4, 2, 6).permute(2, 1, 0)
    partition = partition_on_gpu(lambda t: torch.channel_shuffle(t, 2), [x], dynamic=dynamic)
    (made,) = partition.forward.graph.output_node().args[0]
    assert made.meta["val"].is_contiguous()
    assert made.target is aten.view.default and made.args[0].target is aten.clone.default
