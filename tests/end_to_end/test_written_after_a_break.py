"""Backwards of graphs whose inputs and results the program writes, or turns in place, once the graph has run: eager's, where eager has one."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.support import trace
from tests.helpers import logged


def turned_by_the_break(x: torch.Tensor) -> torch.Tensor:
    v = F.tanhshrink(x)
    x.unsqueeze_(0)
    return v * 2


def turned_by_the_break_as_an_alias(x: torch.Tensor) -> torch.Tensor:
    same = torch.broadcast_tensors(x, x)[0]
    v = F.tanhshrink(same)
    with torch.no_grad():
        x.squeeze_()
    return v


def written_by_name(x: torch.Tensor) -> torch.Tensor:
    v = F.tanhshrink(x)
    braze.graph_break()
    x.mul_(2)
    return v * 3


def a_part_written(x: torch.Tensor) -> torch.Tensor:
    v = F.tanhshrink(x)
    braze.graph_break()
    x[0] = 2
    return v


def written_by_an_operator(x: torch.Tensor) -> torch.Tensor:
    v = F.tanhshrink(x)
    braze.graph_break()
    if v.shape[0] > 1:
        x += 1
    return v


def a_result_written(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.stack([x, x]).clone()
    flat = whole.data
    spread = torch.hstack([flat, whole]).std(1)
    braze.graph_break()
    whole.copy_(spread.tanh().mean())
    return spread, flat


def a_result_that_eager_reads_for_another(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = x * 2
    chosen = torch.where(whole > 0, whole, whole + 1)
    lost = F.huber_loss(whole, chosen)
    braze.graph_break()
    whole.abs_()
    del lost
    return chosen, whole


def a_result_that_eagers_formula_computes_again(x: torch.Tensor) -> torch.Tensor:
    v = torch.erfinv((x / 8).cummax(0).values)
    braze.graph_break()
    seen = v.transpose(0, -1)
    v[1:] = -1
    return seen


def a_result_given_other_memory(x: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(x.shape).copy_(x)
    v = copy.tanh().mean()
    copy.set_(torch.zeros(3))
    return v


def written_in_the_caller(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        v = F.tanhshrink(y)
        braze.graph_break()
        return v

    v = inner(x)
    x.t_()
    return v


PROGRAMS = [
    turned_by_the_break,
    turned_by_the_break_as_an_alias,
    written_by_name,
    a_part_written,
    written_by_an_operator,
    a_result_written,
    a_result_that_eager_reads_for_another,
    a_result_that_eagers_formula_computes_again,
    a_result_given_other_memory,
    written_in_the_caller,
]


def shared_and_written(x: torch.Tensor) -> torch.Tensor:
    v, other = 255 / (x + 1), torch.zeros(2, 3)
    other.set_(x)
    other.fill_(2)
    return v * x


def shared_behind_a_break(x: torch.Tensor) -> torch.Tensor:
    v, other = F.tanhshrink(x), torch.zeros(2, 3)
    braze.graph_break()
    torch.Tensor.set_(other, x)
    other.mul_(2)
    return v


def shared_by_its_storage(x: torch.Tensor) -> torch.Tensor:
    v, other = F.tanhshrink(x), torch.zeros(3)
    other.set_(x.untyped_storage(), 0, (3,))
    other.mul_(2)
    return v


def shared_in_a_call(x: torch.Tensor) -> torch.Tensor:
    def share(to: torch.Tensor, of: torch.Tensor) -> None:
        to.set_(source=of)

    v, other = F.tanhshrink(x), torch.zeros(2, 3)
    share(other, x)
    other.mul_(2)
    return v


def given_as_data(x: torch.Tensor) -> torch.Tensor:
    v, other = F.tanhshrink(x), torch.zeros(2, 3)
    other.data = x
    other.mul_(2)
    return v


def given_as_data_behind_a_break(x: torch.Tensor) -> torch.Tensor:
    v, other = F.tanhshrink(x), torch.zeros(3)
    braze.graph_break()
    other.data = x.data[0]
    other.mul_(2)
    return v


def what_is_made_is_given(x: torch.Tensor) -> torch.Tensor:
    h = x * 2
    v, other = F.tanhshrink(h), torch.zeros(2, 3)
    other.set_(h.detach())
    other.mul_(2)
    return v * h


GIVEN = [
    shared_and_written,
    shared_behind_a_break,
    shared_by_its_storage,
    shared_in_a_call,
    given_as_data,
    given_as_data_behind_a_break,
    what_is_made_is_given,
]


def gradient(call, make=lambda leaf: leaf * 1) -> torch.Tensor:
    leaf = torch.arange(6.0).reshape(2, 3).div(5).requires_grad_()
    results = call(make(leaf))
    first = results[0] if isinstance(results, tuple) else results
    first.sum().backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_backward_does_not_count_on_what_is_written_after_the_graph(program, backend, dynamic):
    """Eager saves tanh's result: to keep its argument, which is there anyway, would have autograd refuse the backward."""
    theirs = gradient(program)
    ours = gradient(braze.compile(program, backend=backend, dynamic=dynamic))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", GIVEN)
def test_a_backward_does_not_count_on_memory_that_another_tensor_is_given(program, backend):
    """What is written through the other tensor is counted as that one's: no error tells that the argument has changed."""
    ours = gradient(braze.compile(program, backend=backend))
    torch.testing.assert_close(ours, gradient(program), rtol=1e-5, atol=1e-6)


def test_a_kept_capture_knows_what_is_written_after_its_graph(tmp_path, monkeypatch):
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    for counter in ("captures", "captures_loaded"):
        braze.reset()
        before, _ = trace.snapshot()
        found = gradient(braze.compile(turned_by_the_break, options={"keep_captures": True}))
        after, _ = trace.snapshot()
        assert after[counter] > before[counter]
        torch.testing.assert_close(found, gradient(turned_by_the_break), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_what_eager_reads_itself_is_refused_as_in_eager(backend):
    def program(x):
        v = x.sin()
        braze.graph_break()
        x.mul_(2)
        return v

    for call in (program, braze.compile(program, backend=backend)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(call)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("function", [torch.cummax, torch.cummin])
def test_a_gradient_that_is_the_argument_itself_is_kept_though_that_is_turned(function, backend, capfd):
    """Where there are no elements; that such an argument could not be kept had no way out (BZ9023). Eager refuses the backward."""

    def program(x):
        v = function(x, 0).values
        x.transpose_(0, 1)
        return v

    leaf = torch.ones(0, 3, requires_grad=True)
    v = braze.compile(program, backend=backend)(leaf * 1)
    with contextlib.suppress(RuntimeError):
        v.sum().backward()
    told = capfd.readouterr().err
    assert v.shape == (0, 3) and "BZ9023" not in told and "runs eagerly" not in told


def test_what_a_checkpoint_runs_again_is_made_of_its_argument_all_the_same():
    """Eager keeps the argument of a region that is computed again, so that there is nothing else to keep."""

    def program(x):
        v = torch.utils.checkpoint.checkpoint(F.tanhshrink, x, use_reentrant=False)
        braze.graph_break()
        return v, x.add_

    leaf = torch.arange(6.0).requires_grad_()
    v, _ = braze.compile(program)(leaf * 1)
    v.sum().backward()
    torch.testing.assert_close(leaf.grad, torch.tanh(torch.arange(6.0)).square(), rtol=1e-5, atol=1e-6)


def kept_bytes(program) -> int:
    """What the graphs of a call save for their backwards, in memory that the program has not."""
    seen: dict[int, int] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    x = torch.randn(64, 64, requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = braze.compile(program)(x)
    seen.pop(x.untyped_storage()._cdata, None)
    result.sum().backward()
    return sum(seen.values())


def test_nothing_more_is_kept_where_the_name_is_bound_anew_before_it_is_written():
    """The object that the graph saves is written nowhere: its argument is kept, which is there anyway."""

    def bound_anew(x):
        v = x - x.sigmoid()  # whose gradient reads a result that is cheap to make again
        braze.graph_break()
        x = v * 2
        x += 1
        return x

    def written(x):
        v = x - x.sigmoid()
        braze.graph_break()
        x += 1
        return v * 2

    assert kept_bytes(bound_anew) == 0
    assert kept_bytes(written) == 64 * 64 * 4


def kept_and_written_beside_new_contents(x):
    x[[0], ...] += 1
    v = x.sinh()
    with torch.no_grad():
        v.retain_grad()
    v.sub_(x)
    return v


def kept_and_written_beside_another(x):
    h = x.exp()
    a, b = h.sin(), h.cos() * h.sin()
    braze.graph_break()
    b.retain_grad()
    b.mul_(2)
    return b, a


def kept_and_written_beside_a_constant(x):
    a = torch.ones(3) * 2
    b = x.sin()
    braze.graph_break()
    b.retain_grad()
    b.mul_(2)
    return b, a


def kept_and_written_before_another(x):
    h = x.exp()
    b, a = h.cos() * h.sin(), h.sin()
    braze.graph_break()
    b.retain_grad()
    b.mul_(2)
    return b, a


def kept_and_written_of_two(x):
    a, b = x[0].cos(), x[1].sin()
    braze.graph_break()
    b.retain_grad()
    b.mul_(2)
    a.retain_grad()
    a.mul_(3)
    return b, a


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize(
    "program",
    [
        kept_and_written_beside_new_contents,
        kept_and_written_beside_another,
        kept_and_written_beside_a_constant,
        kept_and_written_before_another,
        kept_and_written_of_two,
    ],
)
def test_a_result_that_keeps_its_gradient_may_be_written(program, backend):
    """PyTorch looks for what keeps the gradient with the operation's first result, and has an error of its own where that is another."""
    found = []
    for call in (program, braze.compile(program, backend=backend)):
        leaf = torch.arange(6.0).reshape(2, 3).div(5).requires_grad_()
        results = call(leaf * 1)
        first = results[0] if isinstance(results, tuple) else results
        first.square().sum().backward()
        found.append((leaf.grad, first.grad))
    torch.testing.assert_close(*found)


def kept_and_written_in_a_list(x):
    a, b = F.interpolate(x, scale_factor=2), x % 3
    b.retain_grad()
    torch._foreach_clamp_min_([b], 0.5)
    return b, a


def kept_and_written_in_another_function(x):
    a, b = F.interpolate(x, scale_factor=2), x % 3
    b.retain_grad()
    torch.func.vmap(lambda t: t.add_(1))(b)
    return b, a


def kept_and_written_by_a_module(x):
    a, b = F.interpolate(x, scale_factor=2), x % 3
    b.retain_grad()
    return torch.nn.ReLU(inplace=True)(b), a


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize(
    "program",
    [kept_and_written_in_a_list, kept_and_written_in_another_function, kept_and_written_by_a_module],
)
def test_a_result_that_keeps_its_gradient_may_be_written_by_whom_the_code_does_not_name(program, backend):
    found = []
    for call in (program, braze.compile(program, backend=backend)):
        leaf = torch.arange(6.0).reshape(1, 2, 3).div(2).requires_grad_()
        written, _ = call(leaf)
        written.square().sum().backward()
        found.append((leaf.grad, written.grad))
    torch.testing.assert_close(*found)


NORM = torch.nn.BatchNorm1d(3).double()


def kept_behind_statistics(x):
    h = NORM(x).relu()
    h.retain_grad()
    return [h], h.mean(0)


def kept_beside_two_branches(x):
    h, y = x.exp(), torch.ones(3) * 2
    a, b = (h * 2).cos(), (h * 3).sin()
    a.retain_grad()
    b.retain_grad()
    torch._foreach_mul_([a, b], 2.0)
    return [a, b], a * b * y + h


def kept_parts(x):
    y = torch.ones(3) * 2
    h = x.exp()
    q, k, v = h.chunk(3, 1)
    q.retain_grad()
    k.retain_grad()
    return [q, k], q * k * v * y


def kept_as_saved_and_written(x):
    h, y = x.exp(), torch.ones(3) * 2
    h.retain_grad()
    torch._foreach_mul_([h], 2.0)
    return [h], h * y


def kept_by_a_hook_and_on_the_way(x):
    y = torch.ones(3) * 2
    h = x.sigmoid() * 2
    h.register_hook(lambda gradient: gradient * 3)
    h.retain_grad()
    g = h.sigmoid() * 2
    g.retain_grad()
    return [h, g], g * y


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize(
    "program",
    [kept_behind_statistics, kept_beside_two_branches, kept_parts, kept_as_saved_and_written, kept_by_a_hook_and_on_the_way],
)  # fmt: skip
def test_results_that_keep_their_gradients_are_compiled_whatever_stands_before_them(program, backend):
    """Results without gradients, statistics that are written and other results: each has an operation of its own, and views have theirs."""
    found = []
    with logged() as messages:
        for call in (program, braze.compile(program, backend=backend)):
            leaf = torch.arange(12.0).double().reshape(4, 3).div(20).requires_grad_()
            kept, result = call(leaf * 1)
            try:
                result.square().sum().backward(retain_graph=True)
                result.sum().backward()
            except RuntimeError as error:
                found.append(str(error)[:80])
            else:
                found.append([leaf.grad, *kept, *(value.grad for value in kept), result])
    assert not [message for message in messages if message.startswith("graph") and "runs eagerly" in message]
    if isinstance(found[0], str):
        assert isinstance(found[1], str)
    else:
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_parts_that_are_made_twice_are_two_where_one_is_written(backend):
    """What they come with was made once (`rare` 7410003306)."""

    def program(x):
        first, second = torch.unbind_copy(x)[0], torch.unbind_copy(x)[0]
        braze.graph_break()
        second.zero_()
        return first, second

    x = torch.arange(6.0).reshape(2, 3) + 1
    for ours, theirs in zip(braze.compile(program, backend=backend)(x), program(x), strict=True):
        assert torch.equal(ours, theirs)
