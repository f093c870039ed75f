"""Training steps in which kernels would do too little to pay for a node of ours: eager's own nodes carry them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

import braze
from braze import aot, pipeline
from braze.context import CompileContext
from braze.options import Options
from braze.small_steps import calls_of_eager, is_as_quick_on_gpu, moved_by_eager
from braze.support import trace
from braze.support.device_costs import H200
from braze.target import cpu_target

pytestmark = pytest.mark.unverified  # with all verifiers each graph is compiled

CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "a pool": (lambda x: F.max_pool2d(x, 2), ((1, 2, 4, 4),)),
    "a pool of large windows": (lambda x: F.max_pool2d(x, 6), ((4, 8, 64, 64),)),
    "products in a chain": (lambda a, b: torch.bmm(torch.bmm(a, b), b), ((2, 4, 4), (2, 4, 4))),
    "a sort": (lambda x: x.sort(0).values, ((16,),)),
    "a running sum": (lambda x: x.cumsum(0), ((16,),)),
    "a large running sum": (lambda x: x.cumsum(1), ((64, 1024),)),
    "one function": (lambda x: x.sin(), ((16,),)),
    "a softmax": (lambda x: x.softmax(-1), ((256, 64),)),
    "a logarithm of one": (lambda x: F.log_softmax(x, 0), ((16, 64),)),
    "a norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), ((4, 8), (8,), (8,))),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), ((1, 2, 4, 8),)),
    "a window": (lambda x: F.conv2d(x[:1], x[1:]), ((2, 2, 4, 4),)),
    "a view of a result": (lambda a, b: (a @ b).t(), ((3, 4), (4, 5))),
    "a result without a history": (lambda x: (x.sin(), x.detach().cos()), ((16,),)),
}


@pytest.fixture(autouse=True)
def fresh() -> Any:
    braze.reset()
    yield
    braze.reset()


def left() -> int:
    return trace.snapshot()[0].get("steps_left_to_autograd", 0)


def inputs_of(sizes: tuple[tuple[int, ...], ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*size, requires_grad=True) for size in sizes]


def losses(x: torch.Tensor, **words: Any) -> torch.Tensor:
    return F.nll_loss(x, torch.zeros(len(x), dtype=torch.long), **words)


def is_left(fn: Callable[..., Any], *inputs: Any, **words: Any) -> bool:
    before = left()
    braze.compile(fn, **words)(*inputs)
    return left() > before


def step(fn: Callable[..., Any], sizes: tuple[tuple[int, ...], ...]) -> tuple[list[Any], list[Any]]:
    """Results, gradients, and the sizes of what is kept on the way."""
    inputs, kept = inputs_of(sizes), []

    def note(x: torch.Tensor) -> torch.Tensor:
        kept.append(tuple(x.shape))
        return x

    with saved_tensors_hooks(note, lambda x: x):
        found = fn(*inputs)
    found = found if isinstance(found, tuple) else (found,)
    sum(x.sum() * 2 for x in found if x.requires_grad).backward()
    return [*found, *(x.grad for x in inputs)], kept


@pytest.mark.parametrize("name", CASES)
def test_a_step_of_few_operators_has_eagers_results_gradients_and_keeps_what_eager_keeps(name: str) -> None:
    fn, sizes = CASES[name]
    before = left()
    found, kept = step(braze.compile(fn), sizes)
    assert left() == before + 1
    expected, wanted = step(fn, sizes)
    assert kept == wanted
    for ours, eager in zip(found, expected, strict=True):
        assert torch.equal(ours, eager)
        assert ours.stride() == eager.stride()
        assert type(ours.grad_fn) is type(eager.grad_fn)


def test_a_step_that_is_left_to_autograd_has_a_second_derivative() -> None:
    x = torch.randn(8, requires_grad=True)
    (first,) = torch.autograd.grad(braze.compile(torch.sin)(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(second, -x.sin())


def test_a_step_that_is_left_to_autograd_raises_eagers_errors() -> None:
    x = torch.randn(8, requires_grad=True)
    y = braze.compile(torch.sin)(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    y = braze.compile(torch.exp)(x)
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_of_a_step_that_is_left_to_autograd_go_backward_apart() -> None:
    """As in eager, where one's backward frees nothing of the other's."""
    x = torch.randn(4, requires_grad=True)
    a, b = braze.compile(lambda x: (x.sin(), x.detach().view(2, 2) @ x.view(2, 2)))(x)
    a.sum().backward()
    b.sum().backward()


@pytest.mark.parametrize(
    ("fn", "sizes"),
    [
        (lambda x: x.sin(), ((100_000,),)),
        (lambda x: x.sin().sin(), ((16,),)),
        (lambda x: x.logsumexp(-1), ((4, 4),)),
        (lambda x: F.group_norm(x, 2), ((4, 4),)),
        (lambda x: x.softmax(-1), ((512, 64),)),
        (lambda x: x.softmax(-1) * 2, ((4, 4),)),
        (lambda x: F.dropout(x, 0.5), ((16,),)),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), ((1, 2, 4, 8),)),
    ],
    ids=[
        "of many bytes",
        "of more operators",
        "of one whose gradient is many",
        "of one that takes eager long",
        "of a large softmax",
        "of a softmax and more",
        "that draws",
        "of attention that drops",
    ],
)
def test_a_step_in_which_kernels_pay_or_numbers_are_drawn_is_compiled(fn: Any, sizes: Any) -> None:
    assert not is_left(fn, *inputs_of(sizes))


@pytest.mark.parametrize("options", [{"memory_budget": 1e9}, {"partition": "default"}, {"verify": 2}])
def test_a_step_is_compiled_where_an_option_asks_for_what_only_that_has(options: dict[str, Any]) -> None:
    assert not is_left(torch.sin, *inputs_of(((16,),)), options=options)


def test_a_step_that_writes_an_input_is_compiled() -> None:
    assert not is_left(lambda x, y: (x.sin(), y.add_(1))[0], *inputs_of(((16,),)), torch.ones(16))


def test_one_of_unknown_sizes_is_compiled_if_a_kernel_does_a_part() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    assert not is_left(torch.sin, x, dynamic=True)


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_a_step_of_unknown_sizes_that_is_all_calls_serves_all_of_them(batch: int) -> None:
    call = braze.compile(lambda x: F.max_pool2d(x, 2), dynamic=True)
    before = left()
    call(torch.randn(4, 2, 4, 4, requires_grad=True))
    assert left() == before + 1
    x = torch.randn(batch, 2, 4, 4, requires_grad=True)
    call(x).sum().backward()
    ours, x.grad = x.grad, None
    F.max_pool2d(x, 2).sum().backward()
    assert torch.equal(ours, x.grad)


@pytest.mark.parametrize("first", [False, True], ids=["rows in order", "rows to be copied"])
def test_a_layer_of_an_lstm_is_atens_call_each_way(first: bool) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(8, 16, batch_first=first), torch.randn(4, 5, 8, requires_grad=True)
    assert is_left(lambda x: layer(x)[0], x)
    braze.reset()
    assert not is_left(lambda x: layer(x)[0].sin().sin() * x.sum(), x)


def test_views_alone_need_no_node_of_ours() -> None:
    x = torch.randn(4, 4, requires_grad=True)
    assert not is_left(lambda x: x.view(-1), x)


def written_since_it_was_divided(x: torch.Tensor) -> torch.Tensor:
    whole = x.sin()
    part = whole.split(4)[0]
    whole.detach().mul_(2)
    return whole.cos() * part.shape[0]


def test_a_step_with_a_part_of_what_was_written_since_is_no_fault() -> None:
    x = torch.linspace(0, 1, 16, requires_grad=True)
    compiled = braze.compile(written_since_it_was_divided, options={"verify": 1})  # raises what fails inside
    written_since_it_was_divided(x).sum().backward()
    expected, x.grad = x.grad, None
    y = compiled(x)
    y.sum().backward()
    torch.testing.assert_close(y, written_since_it_was_divided(x))
    torch.testing.assert_close(x.grad, expected)


def test_a_call_without_gradients_is_not_such_a_step() -> None:
    with torch.no_grad():
        assert not is_left(torch.sin, *inputs_of(((16,),)))


def captured(fn: Callable[..., Any], *inputs: Any) -> torch.fx.GraphModule:
    graphs: list[torch.fx.GraphModule] = []
    braze.compile(fn, backend=lambda gm, _: graphs.append(gm) or gm.forward)(*inputs)
    (found,) = graphs
    return found


@pytest.mark.parametrize(
    ("fn", "sizes", "calls"),
    [
        (torch.sin, ((4, 4),), 2),
        (lambda x, y: x * y, ((4, 4), (4, 4)), 3),
        (lambda x, w, v: torch.relu(x @ w) @ v, ((4, 4), (4, 4), (4, 4)), 8),
        (lambda x, w: F.conv2d(x, w), ((1, 2, 4, 4), (2, 2, 3, 3)), 3),
        (lambda x: (x.sin(), x.detach().cos()), ((4, 4),), 4),
        (lambda x: x.sort(0), ((4, 4),), 2),
        (written_since_it_was_divided, ((16,),), 9),
    ],
    ids=[
        "one",
        "two gradients",
        "a chain",
        "a window",
        "with others",
        "of several results",
        "what was written since",
    ],
)
def test_the_calls_of_an_eager_step_are_counted_by_autograds_nodes(fn: Any, sizes: Any, calls: int) -> None:
    assert calls_of_eager(captured(fn, *inputs_of(sizes))) == calls


@pytest.mark.parametrize(
    ("fn", "sizes", "moved"),
    [
        (torch.sin, ((4, 4),), 5 * 64),
        (lambda x, y: x * y, ((4, 4), (4, 4)), 7 * 64),
        (lambda x: x.t().sin(), ((4, 4),), 5 * 64),
        (lambda x: x.sum(0), ((4, 4),), 2 * 64 + 3 * 16),
    ],
    ids=["one", "two operands", "a view", "a sum"],
)
def test_what_an_eager_step_moves_is_counted_by_operands_and_results(fn: Any, sizes: Any, moved: int) -> None:
    assert moved_by_eager(captured(fn, *inputs_of(sizes))) == moved


@pytest.mark.parametrize(
    ("fn", "sizes", "left"),
    [
        (torch.sin, ((64, 64),), True),
        (lambda x, w, v: torch.relu(x @ w) @ v, ((64, 64), (64, 64), (64, 64)), True),
        (lambda x, w, b: F.layer_norm(x, (64,), w, b), ((64, 64), (64,), (64,)), True),
        (lambda x: (F.gelu(x) * x + 1).sum(), ((64, 64),), False),
        (torch.sin, ((4096, 1024),), True),
        (lambda x: F.glu(x, 1), ((32, 128, 56, 56),), True),
        (torch.sin, ((16384, 2048),), False),
        (lambda x: x.softmax(-1), ((2048, 128),), True),
        (lambda x: x.softmax(-1), ((2048, 1024),), True),
        (lambda x: x.softmax(-1), ((4096, 1024),), False),
        (lambda x: x.softmax(0), ((2048, 128),), False),
        (lambda x: x.softmax(-1), ((128, 128),), True),
        (lambda x: x.sum((2, 3)), ((64, 64, 8, 8),), True),
        (lambda x: x.unfold(2, 4, 4).mean(-1), ((64, 64, 28, 28),), False),
        (lambda x: F.max_pool2d(x, 200, 200).sum(), ((2, 16, 400, 400),), True),
        (lambda x: F.max_pool2d(x.sin(), 200, 200).sum(), ((2, 16, 400, 400),), False),
        (lambda x: losses(x), ((1 << 15, 2),), True),
        (lambda x: losses(x), (((1 << 15) + 1, 2),), False),
        (lambda x: losses(x, reduction="none"), (((1 << 15) + 1, 2),), True),
    ],
    ids=[
        "one function",
        "products",
        "a norm",
        "a chain",
        "of as many bytes as move in the host's time",
        "and more operands than results",
        "of many bytes",
        "rows that are walked twice",
        "more of them, of 8 MiB",
        "many of them",
        "columns that are walked twice",
        "a few of such rows",
        "a sum",
        "windows of more than few bytes",
        "few bytes of what ATen makes of many",
        "many bytes for what ATen does",
        "losses",
        "losses of many rows",
        "each of these",
    ],
)
def test_on_a_gpu_a_step_is_left_if_eager_calls_no_more_than_kernels_and_a_node_take(
    fn: Any, sizes: Any, left: bool
) -> None:
    """Calls are compared with calls; the halves are those of a processor, which has as few of them for these."""
    gm, asked = captured(fn, *inputs_of(sizes)), CompileContext(Options(), cpu_target(), "g")
    examples = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    partition = pipeline.partition_graph(gm, examples, asked)
    _, forward = pipeline.scheduled(partition, pipeline.of_forward(asked))
    backward = pipeline.scheduled(aot.backward_partition(partition), pipeline.of_backward(asked))[1]
    assert is_as_quick_on_gpu(gm, partition, forward, lambda: backward) is left


def test_on_a_gpu_of_slower_memory_eagers_kernels_take_longer() -> None:
    """Than the host does for the step: ours is worth it there."""
    gm, asked = captured(torch.sin, *inputs_of(((4096, 1024),))), CompileContext(Options(), cpu_target(), "g")
    examples = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    partition = pipeline.partition_graph(gm, examples, asked)
    _, forward = pipeline.scheduled(partition, pipeline.of_forward(asked))
    backward = pipeline.scheduled(aot.backward_partition(partition), pipeline.of_backward(asked))[1]
    for ratio, left in ((1.0, True), (1 / 8, False)):
        costs = dataclasses.replace(H200, copied=H200.copied * ratio)
        assert is_as_quick_on_gpu(gm, partition, forward, lambda: backward, costs) is left
