"""Running statistics of a batch norm are written as eager's kernels do: autograd counts none of it, nor refuses a backward for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")

BACKENDS = ["eager", "aot_eager", "braze"]


class Twice(nn.Module):
    """Of two types, so that two calls copy."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4, affine=False).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).double())


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch norms": Twice,
    "of pictures": lambda: nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.BatchNorm2d(1), nn.ReLU()),
    "an instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True)
    ),
}


def trained(make: Callable[[], nn.Module], backend: str | None, within: Any) -> Any:
    torch.manual_seed(0)
    module = make()
    run = module if backend is None else braze.compile(module, backend=backend)
    seen = []
    with within():
        for rows in (5, 7, 5):  # once as numbers, then as symbols
            x = torch.linspace(-1, 2, rows * 4).reshape(rows, 4)
            made = run(x)
            if made.requires_grad:
                made.square().sum().backward()
            seen.append([buffer._version for buffer in module.buffers()])
    return seen, [buffer.clone() for buffer in module.buffers()]


@pytest.mark.parametrize(
    "within",
    [contextlib.nullcontext, torch.no_grad, torch.inference_mode],
    ids=["grad", "no grad", "inference"],
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NORMS)
def test_versions_of_running_statistics_are_eagers(name: str, backend: str, within: Any) -> None:
    expected, wanted = trained(NORMS[name], None, within)
    with logged() as messages:
        found, made = trained(NORMS[name], backend, within)
    assert found == expected
    for mine, its in zip(made, wanted, strict=True):
        torch.testing.assert_close(mine, its)
    assert not messages


EVALUATED: dict[str, Callable[[], nn.Module]] = {
    "behind a convolution": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
    "channels last": lambda: nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).to(
        memory_format=torch.channels_last
    ),
    "without weights": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.GELU()),
    "of instances": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True, track_running_stats=True), nn.ReLU()
    ),
    "of rows": lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 4), nn.BatchNorm1d(4), nn.Tanh()),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", EVALUATED)
def test_a_backward_from_evaluation_goes_on_behind_a_step_in_training(
    name: str, backend: str, dynamic: bool
) -> None:
    """It has kept the statistics, which the step writes uncounted, and reads what they hold by then; it was refused for that."""

    def gradients(backend: str | None) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        module = EVALUATED[name]().double()
        options = {"verify": 2} if backend == "braze" else {}  # no step is left to autograd
        run = (
            module
            if backend is None
            else braze.compile(module, backend=backend, dynamic=dynamic, options=options)
        )
        x = torch.rand(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
        module.eval()
        loss = run(x).square().sum()
        module.train()
        (loss + run(x.detach() + 1).square().sum()).backward()
        return [x.grad, *(p.grad for p in module.parameters())]

    for mine, its in zip(gradients(backend), gradients(None), strict=True):
        torch.testing.assert_close(mine, its)


def of_the_program(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    """Written by the norm, and by the program besides, which counts."""
    made = torch.nn.functional.batch_norm(x.detach(), mean, var, training=True)
    mean.mul_(2)
    return made * x


def through_data(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    mean.data.add_(1)
    var.data.mul_(2)
    return x.square() + mean


def of_parts(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    """Statistics that are parts of one tensor."""
    both = torch.cat([mean, var])
    made = torch.nn.functional.batch_norm(x, both[:4], both[4:], training=True)
    return made * both.sum()


def written_by_name(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    """The form of the operator that tells what it writes, though not autograd."""
    return torch.ops.aten._native_batch_norm_legit(x, None, None, mean, var, True, 0.1, 1e-5)[0]


def parts_written(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
    """Views that are made for an operator without writes are written by the program."""
    mean.split(2)[1].add_(1)
    var.unbind()[0].mul_(2)
    return x + mean + var


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [of_the_program, through_data, of_parts, written_by_name, parts_written])
def test_what_is_counted_beside_them_is_counted(program: Any, backend: str, grad: bool) -> None:
    def run(fn: Any) -> Any:
        x = torch.linspace(-1, 1, 20).reshape(5, 4).requires_grad_(grad)
        mean, var = torch.zeros(8)[4:], torch.ones(4)
        made = [fn(x, mean, var) for _ in range(2)]
        if grad:
            sum(each.sum() for each in made).backward()
        return [mean._version, var._version], [mean, var, *made, x.grad]

    (mine, numbers), (its, expected) = run(braze.compile(program, backend=backend)), run(program)
    assert mine == its
    for a, b in zip(numbers, expected, strict=True):
        torch.testing.assert_close(a, b)


ROWS = torch.tensor([0, 2])

#: writes by operators that run as PyTorch's, into parts of what is written and into all of it
BY_OPERATORS: dict[str, Callable[[torch.Tensor], object]] = {
    "index_add_": lambda x: x.index_add_(0, ROWS, x.new_ones(2, 4)),
    "put_": lambda x: x.put_(ROWS, x.new_ones(2)),
    "scatter_add_": lambda x: x.scatter_add_(0, ROWS[:, None].expand(2, 4), x.new_ones(2, 4)),
    "masked_scatter_": lambda x: x.masked_scatter_(x.real > 3, x.new_ones(16)),
    "a part": lambda x: x[1:].add_(1),
    "every third": lambda x: x.view(-1)[::3].mul_(2),
    "a product": lambda x: torch.mm(x.new_ones(4, 4), x.new_ones(4, 4), out=x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", BY_OPERATORS)
def test_what_operators_write_through_data_is_not_counted_beside_gradients(
    name: str, backend: str, dtype: torch.dtype
) -> None:
    """Operators count what they write themselves, where a graph that goes backward has them write to its input."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        BY_OPERATORS[name](x.data)
        return w.sin()

    def run(fn: Any) -> Any:
        x = torch.arange(16).reshape(4, 4).to(dtype)
        made = fn(x, torch.ones(3, requires_grad=True))
        made.sum().backward()
        return x._version, x, made

    (mine, *numbers), (its, *expected) = run(braze.compile(program, backend=backend)), run(program)
    assert mine == its == 0
    for a, b in zip(numbers, expected, strict=True):
        torch.testing.assert_close(a, b)


def in_its_own_type(x: torch.Tensor) -> None:
    x.view(x.dtype).add_(1)


def in_another_type(x: torch.Tensor) -> None:
    x.view(torch.int32)[1:].fill_(7)


def by_out(x: torch.Tensor) -> None:
    seen = x.view(torch.int32).view(-1)
    torch.add(seen, 1, out=seen)


def then_itself(x: torch.Tensor) -> None:
    x.view(torch.int32).fill_(7)
    x[1:].add_(1)


def in_a_region(x: torch.Tensor) -> None:
    with torch.inference_mode():
        x.view(torch.int32).fill_(7)


@pytest.mark.parametrize("program", [in_its_own_type, in_another_type, by_out, then_itself, in_a_region])
@pytest.mark.parametrize("within", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("backend", BACKENDS)
def test_inference_mode_counts_no_writes_through_what_is_seen_in_another_type(
    backend: str, within: Any, program: Any
) -> None:
    def run(fn: Any) -> tuple[bool, list[int]]:
        x = torch.arange(8.0)
        with within():
            fn(x)
        return x._version > 0, x.view(torch.int32).tolist()

    assert run(braze.compile(program, backend=backend)) == run(program)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_of_inference_mode_are_written_through_data_outside_of_it(backend: str, grad: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.data.add_(1)
        return w.sin()

    with torch.inference_mode():
        x = torch.arange(4.0)
    braze.compile(program, backend=backend)(x, torch.ones(3, requires_grad=grad))
    assert x.tolist() == [1, 2, 3, 4]


def through_a_part(x: torch.Tensor) -> Any:
    part = x.unsafe_chunk(2)[0]
    part.sigmoid_()
    return part * 2, x + 1


def through_the_whole(x: torch.Tensor) -> Any:
    part = x.unsafe_chunk(2)[0][1:]
    x.sigmoid_()
    return part * 2


def before_a_part_is_turned(x: torch.Tensor) -> Any:
    part = torch.unsafe_split(x, 4)[1]
    part.t_()
    x.mul_(2)
    return part + 1


def parts_of_new_memory(x: torch.Tensor) -> Any:
    y = x + 1
    first, second = torch.unsafe_split_with_sizes(y, (2, x.shape[0] - 2))
    first.tanh_()
    y.mul_(2)
    return first * 3, second + 1, y


def returned(x: torch.Tensor) -> Any:
    part = x.unsafe_chunk(2)[1]
    x.mul_(2)
    part.add_(1)
    return part, x


PARTED = [through_a_part, through_the_whole, before_a_part_is_turned, parts_of_new_memory, returned]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("program", PARTED)
def test_parts_by_unsafe_split_share_memory_and_count_writes_for_themselves(
    program: Callable[..., Any], backend: str, dynamic: bool
) -> None:
    """They were values of their own to ``aot_eager``, whose graphs failed for it (BZ9024), and their writes counted as the whole's."""

    def called(compiled: bool) -> Any:
        call = braze.compile(program, backend=backend, dynamic=dynamic) if compiled else program
        found = []
        for rows in (6, 6, 8):
            x = torch.linspace(-1, 2, rows * 3).reshape(rows, 3)
            made = call(x)
            found.append((made, x, x._version))
            for part in made if isinstance(made, tuple) else (made,):
                with torch.no_grad():
                    part.mul_(3)
            found.append((x.clone(), x._version))
        return found

    with logged() as messages:
        ours = called(True)
    assert not messages
    for mine, its in zip(ours, called(False), strict=True):
        assert mine[-1] == its[-1]
        torch.testing.assert_close(mine[:-1], its[:-1])


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_gradients_past_parts_by_unsafe_split_are_eagers(backend: str) -> None:
    def gradient(program: Callable[..., Any], run: Callable[..., Any]) -> Any:
        x = torch.linspace(-1, 2, 18).reshape(6, 3).requires_grad_()
        made = run(lambda x: program(x * 1))(x)
        sum(part.square().sum() for part in (made if isinstance(made, tuple) else (made,))).backward()
        return x.grad

    for program in PARTED[:2] + PARTED[3:4]:
        mine = gradient(program, lambda fn: braze.compile(fn, backend=backend))
        torch.testing.assert_close(mine, gradient(program, lambda fn: fn))
