"""Compiled graphs inside PyTorch's autograd: its errors, hooks, accumulation, and state that changes between steps."""

from __future__ import annotations

import contextlib
import copy
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

import braze
from tests.helpers import logged


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    braze.reset()
    yield
    braze.reset()


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def both(act: Callable[[Callable[..., torch.Tensor], nn.Module], object]) -> tuple[object, object]:
    """What ``act(call, model)`` gives with an eager model and with a compiled one of the same weights."""
    eager, model = small(), small()
    model.load_state_dict(eager.state_dict())
    return act(eager, eager), act(braze.compile(model), model)


def raised(act: Callable[..., object]) -> Callable[..., tuple[type, str]]:
    """The type and message of what ``act`` raises."""

    def run(call: Callable[..., torch.Tensor], model: nn.Module) -> tuple[type, str]:
        with pytest.raises(Exception) as info:
            act(call, model)
        return info.type, str(info.value).split("\n")[0][:60]

    return run


X = torch.linspace(-1, 1, 24).reshape(4, 6)


@raised
def second_backward(call, model):
    loss = call(X).sum()
    loss.backward()
    loss.backward()


@raised
def parameter_changed_before_backward(call, model):
    loss = call(X).sum()
    with torch.no_grad():
        model[3].weight.add_(1)
    loss.backward()


@raised
def backward_without_grad(call, model):
    with torch.no_grad():
        loss = call(X).sum()
    loss.backward()


@raised
def backward_of_many(call, model):
    call(X).backward()


@raised
def tangent_of_other_shape(call, model):
    call(X).backward(torch.ones(2, 2))


@raised
def modules_without_gradients(call, model):
    model.requires_grad_(False)
    call(X).sum().backward()


@pytest.mark.parametrize(
    "act",
    [second_backward, parameter_changed_before_backward, backward_without_grad, backward_of_many,
     tangent_of_other_shape, modules_without_gradients],
)  # fmt: skip
def test_errors_are_eagers(act):
    eager, ours = both(act)
    assert ours == eager


def grads(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same(pair: tuple[object, object]) -> None:
    eager, ours = pair
    torch.testing.assert_close(ours, eager)


def test_retained_graphs_run_twice():
    def act(call, model):
        loss = call(X).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return grads(model)

    same(both(act))


def test_gradients_accumulate_and_are_not_shared():
    def act(call, model):
        call(X).sum().backward()
        first = grads(model)
        call(X * 2).square().sum().backward()
        return first, grads(model)

    same(both(act))


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, c: (c + a.reshape(-1).view(c.shape),),
        lambda a, c: (c + a.t(),),
        lambda a, c: (c + a.view(c.shape), (a * c).exp()),
    ],
    ids=["view", "transposed", "of two results"],
)
def test_gradients_have_memory_of_their_own(function, dynamic, backend):
    """One is a view of what the other is: what is accumulated into one must not be in the other."""
    a, c = torch.randn(5, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    call = braze.compile(function, dynamic=dynamic, backend=backend)
    for step in (1, 2, 3):
        (call(a, c)[0] * 2).sum().backward()
        for leaf in (a, c):
            torch.testing.assert_close(leaf.grad, torch.full((5, 5), 2.0 * step))


def test_hooks_run():
    def act(call, model):
        seen = []
        model[0].weight.register_hook(lambda g: g * 2)
        model[3].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        out = call(X)
        out.register_hook(lambda g: seen.append(g.clone()))
        out.square().sum().backward()
        return grads(model), seen

    same(both(act))


@pytest.mark.parametrize("layout", ["expanded", "transposed", "undefined", "strided"])
def test_tangents_of_other_layouts(layout):
    def act(call, model):
        x = X.clone().requires_grad_()
        out = call(x)
        if layout == "expanded":
            out.sum().backward()
        elif layout == "transposed":
            out.backward(torch.arange(12.0).reshape(3, 4).t())
        elif layout == "strided":
            out.backward(torch.arange(24.0).reshape(4, 6)[:, ::2])
        else:
            torch.autograd.backward([out.sum(), x.sum()])
        return grads(model), x.grad

    same(both(act))


def test_an_output_without_a_tangent():
    def two(x, w):
        return x * w, (x + w).exp()

    x, w = torch.randn(4), torch.randn(4, requires_grad=True)
    first, _ = braze.compile(two)(x, w)
    first.sum().backward()
    torch.testing.assert_close(w.grad, x)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_gradient_that_does_not_read_what_came_in_is_zeros(dynamic):
    def apart(x):
        return x**0, x * 2

    def together(x):
        y = x.exp()
        return y.cummax(0).values, y.erf()

    for program in (apart, together):
        compiled = braze.compile(program, dynamic=dynamic, backend="aot_eager")
        for size, place in ((3, 0), (3, 1), (0, 0), (0, 1)):
            gradients = []
            for call in (program, compiled):
                x = torch.ones(size, requires_grad=True)
                call(x)[place].sum().backward()
                gradients.append(x.grad)
            torch.testing.assert_close(gradients[1], gradients[0])


def test_what_only_an_unused_output_needs_gets_no_gradient():
    """As the pooler of a BERT of which only the hidden states enter the loss."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x):
            h = self.first(x)
            return h, self.second(h).tanh()

    def act(call, model):
        call(X)[0].sum().backward()
        return [p.grad for p in model.parameters()]

    torch.manual_seed(0)
    model = Two()
    expected = act(model, model)
    model.zero_grad()
    found = act(braze.compile(model), model)
    assert [g is None for g in found] == [g is None for g in expected] == [False, False, True, True]
    torch.testing.assert_close(found[:2], expected[:2])


def test_nan_gradients_pass_and_anomaly_mode_names_them():
    w = torch.zeros(3, requires_grad=True)
    braze.compile(lambda w: (w / w).sum())(w).backward()
    assert w.grad.isnan().all()
    with pytest.raises(RuntimeError, match="nan values"), torch.autograd.detect_anomaly(check_nan=True):
        braze.compile(lambda w: (w / w).sum())(w).backward()


def test_a_power_by_a_mask_whose_derivative_eager_refuses_fails_in_the_backward_alone():
    told = []
    x, mask = torch.arange(3.0), torch.tensor([True, False, True])
    with logged() as heard:
        for fn in (torch.pow, braze.compile(torch.pow)):
            y = fn(x.clone().requires_grad_(), mask)
            with pytest.raises(RuntimeError, match="with a bool tensor is not supported") as refused:
                y.sum().backward()
            told.append((y.tolist(), str(refused.value).split("\n")[0]))
    assert told[0] == told[1] and not any("BZ6013" in message for message in heard)


def test_parameters_frozen_and_thawed_between_steps():
    def act(call, model):
        found = []
        for frozen in (False, True, False):
            model[0].requires_grad_(not frozen)
            model.zero_grad()
            call(X).square().sum().backward()
            found.append([p.grad is None for p in model.parameters()])
            found.append(grads(model))
        return found

    same(both(act))


def test_second_derivatives_are_refused_with_a_way_out():
    x = torch.randn(3, requires_grad=True)
    compiled = braze.compile(lambda x: (x**3).sum())
    with pytest.raises(RuntimeError, match="BZ2023") as info:
        torch.autograd.grad(compiled(x), x, create_graph=True)
    assert 'with braze.set_stance("force_eager"):' in str(info.value)
    with braze.set_stance("force_eager"):
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x)


def test_a_disabled_part_of_a_compiled_step_takes_second_derivatives():
    """The other way out: the part that takes them is marked, and calls a model that is not compiled by itself."""

    @braze.disable
    def penalty(model, x):
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return gradient.square().sum()

    def act(call, model):
        def step(x):
            return model(x).square().mean() + penalty(model, x)

        run = step if call is model else braze.compile(step)
        run(X.clone().requires_grad_()).backward()
        return grads(model)

    same(both(act))


def test_training_and_inference_are_variants_of_one_function():
    model = small()
    compiled = braze.compile(model)
    with torch.no_grad():
        plain = compiled(X)
    out = compiled(X)
    assert out.requires_grad and not plain.requires_grad
    torch.testing.assert_close(out.detach(), plain)


def test_many_batch_sizes_train_without_a_compile_each():
    model = small()
    compiled = braze.compile(model, dynamic=True)
    with logged() as messages:
        for rows in (2, 3, 5, 7, 11):
            model.zero_grad()
            x = torch.randn(rows, 6)
            compiled(x).square().sum().backward()
            ours = grads(model)
            model.zero_grad()
            model(x).square().sum().backward()
            torch.testing.assert_close(ours, grads(model))
    assert not messages
    assert braze.explain(model)(torch.randn(4, 6)) is not None


def test_optimizers_and_schedulers_are_untouched():
    def act(call, model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        losses = []
        for _ in range(6):
            optimizer.zero_grad(set_to_none=True)
            loss = call(X).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        return losses, [p.detach() for p in model.parameters()]

    same(both(act))


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where):
    def act(call, model):
        with torch.autocast("cpu", dtype=torch.bfloat16) if where == "outside" else contextlib.nullcontext():
            out = call(X)
        out.float().square().sum().backward()
        return [out.dtype, *(g.dtype for g in grads(model))]

    def inside(model):
        def run(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return model(x)

        return run

    eager, model = small(), small()
    if where == "outside":
        assert act(eager, eager) == act(braze.compile(model), model)
    else:
        assert act(inside(eager), eager) == act(braze.compile(inside(model)), model)


def test_nothing_is_cast_twice():
    """The casts of autocast stand in the graph: what the program keeps in float32 stays so, forward and backward."""

    def act(call, model, backward_inside):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(X)
            if backward_inside:
                out.square().sum().backward()
        if not backward_inside:
            out.square().sum().backward()
        return [out.detach(), *grads(model)]

    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                exact = (x.unsqueeze(0) @ self.linear.weight.unsqueeze(0)).squeeze(0)
            return self.linear(x).float() + exact

    eager = Apart()
    model = copy.deepcopy(eager)
    same((act(eager, eager, False), act(braze.compile(model, options={"numerics": "eager"}), model, True)))


@pytest.mark.parametrize(
    "norm", [nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.BatchNorm1d(6)], ids=lambda m: type(m).__name__
)
def test_statistics_of_norms_under_autocast(norm):
    """Of an input in bfloat16 and parameters in float32: PyTorch's fakes tell another type than its kernels."""

    def act(call, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(X)
        (out.float() * X).square().sum().backward()
        return [out.detach(), *grads(model)]

    eager = nn.Sequential(nn.Linear(6, 6), norm)
    model = copy.deepcopy(eager)
    with logged() as told:
        found = act(braze.compile(model), model)
    assert not [message for message in told if "BZ9022" in message]
    for ours, theirs in zip(found, act(eager, eager), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=4e-2)


def test_attention_under_autocast_is_cast_as_a_whole():
    """A mask that is learned: PyTorch computes in float32 what the arguments in bfloat16 give, and so do we."""

    def act(call, model):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = call(x)
        out.float().square().sum().backward()
        return [out.detach(), *grads(model)]

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.Linear(32, 96)
            self.mask = nn.Parameter(torch.randn(1, 4, 8, 8))

        def forward(self, x):
            x = x * 2
            x[:, 0] = 1  # what reads this is looked at again, later in the compile
            q, k, v = (t.view(2, 8, 4, 8).transpose(1, 2) for t in self.heads(x).chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)

    x = torch.randn(2, 8, 32)
    eager = Attention()
    model = copy.deepcopy(eager)
    for ours, theirs in zip(act(braze.compile(model), model), act(eager, eager), strict=True):
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=4e-2)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.cross_entropy])
def test_means_of_nothing(loss):
    """A batch from which everything was filtered: eager's loss is nan, and its gradients are empty."""
    x = torch.randn(0, 3, requires_grad=True)
    out = braze.compile(lambda x, y: loss(x, y))(x, torch.randn(0, 3))
    out.backward()
    assert out.isnan() and x.grad.shape == x.shape


def test_an_input_that_only_the_backward_reads():
    """The forward of nothing reads no mask; its backward asks where the mask is set."""
    x = torch.randn(5, 0, 0, requires_grad=True)
    compiled = braze.compile(lambda x, mask: torch.masked.softmax(x, -1, mask=mask))
    with logged() as told:
        compiled(x, torch.zeros(0, dtype=torch.bool)).sum().backward()
    assert x.grad.shape == x.shape
    assert not [message for message in told if "as captured" in message]


def test_gradients_of_scaled_losses():
    def act(call, model):
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(call(X).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        return [p.detach() for p in model.parameters()]

    same(both(act))


def test_batch_norm_keeps_its_statistics():
    found = []
    for compile in (False, True):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU())
        call = braze.compile(model) if compile else model
        for _ in range(3):
            call(X).sum().backward()
        found.append(([b.clone() for b in model.buffers()], grads(model)))
    same((found[0], found[1]))


def test_threads_train_at_once():
    model = small()
    compiled = braze.compile(model)
    model(X).sum().backward()
    expected = grads(model)
    failures: list[BaseException] = []

    def work():
        try:
            for _ in range(5):
                found = torch.autograd.grad(compiled(X).sum(), list(model.parameters()))
                torch.testing.assert_close(list(found), expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_graph_break_in_training():
    def act(call, model):
        def step(x):
            h = model[1](model[0](x))
            braze.graph_break()
            return model[3](model[2](h * 2)).square().sum()

        run = step if call is model else braze.compile(step)
        run(X).backward()
        return grads(model)

    same(both(act))


@pytest.mark.parametrize(
    "write", [lambda y: y.mul_(3), lambda y: y[0].mul_(3), lambda y: y.view(-1)[1:].add_(1)]
)
def test_results_may_be_written_through_their_views(write):
    """Whether the graph ends with a view or not."""

    def run(compile):
        x = torch.ones(4, requires_grad=True)
        y = compile(lambda x: (x * 2).view(2, 2))(x)
        write(y)
        (y * y.detach()).sum().backward()
        return y.detach(), x.grad

    torch.testing.assert_close(run(braze.compile), run(lambda fn: fn))


@pytest.mark.parametrize("kept", [lambda y: y.sum(), lambda y: y.view(-1)[1:], lambda y: (y, y[0])])
def test_a_function_that_turns_gradients_on_is_called_without(kept):
    def run(compile):
        w = torch.linspace(0, 1, 4).requires_grad_()

        @torch.enable_grad()
        def f(x):
            return kept((x * w).sin())

        with torch.no_grad():
            out = compile(f)(torch.ones(2, 4))
        out = out if isinstance(out, tuple) else (out,)
        sum(y.sum() for y in out).backward()
        return [y.detach() for y in out], w.grad

    torch.testing.assert_close(run(braze.compile), run(lambda fn: fn))


def test_gradients_are_asked_for_in_a_function_called_without():
    w = torch.linspace(0, 1, 4).requires_grad_()

    def f(x):
        with torch.enable_grad():
            loss = (x * w).sin().sum()
            found = torch.autograd.grad(loss, w)[0]
        return found * 2

    with torch.no_grad():
        torch.testing.assert_close(braze.compile(f)(torch.ones(2, 4)), f(torch.ones(2, 4)))


def test_gradients_of_many_tangents_at_once():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))

    def rows(call):
        every = torch.eye(12).view(12, 4, 3)
        return torch.autograd.grad(call(X), list(model.parameters()), every, is_grads_batched=True)

    torch.testing.assert_close(rows(braze.compile(model)), rows(model))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_gradients_of_many_tangents_at_once_lie_as_they_may(backend, dynamic):
    """Behind attention: what is a view of a gradient in the trace is none of many gradients."""
    attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def rows(call):
        every = torch.eye(24).view(24, 1, 6, 4)
        x = torch.linspace(-1, 1, 24).view(1, 6, 4).requires_grad_()
        result = call(x, x, x, need_weights=False)[0]
        return torch.autograd.grad(result, [x, *attention.parameters()], every, is_grads_batched=True)

    compiled = braze.compile(attention, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(rows(compiled), rows(attention), rtol=1e-4, atol=1e-5)


def test_tangents_of_forward_mode_are_not_lost():
    """Called before, inside and after a level of forward-mode differentiation."""

    def f(x, y):
        return torch.sin(x) * y + 1

    compiled = braze.compile(f)
    x, y, tangent = torch.randn(3, 3).double().unbind(0)
    expected = f(x, y)
    for _ in range(3):
        assert torch.allclose(compiled(x, y), expected)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            assert torch.equal(compiled(x, y), expected)
            found, wanted = (forward_ad.unpack_dual(g(dual, y)).tangent for g in (compiled, f))
            assert torch.equal(found, wanted)
    assert torch.equal(
        torch.func.jvp(compiled, (x, y), (tangent, y))[1], torch.func.jvp(f, (x, y), (tangent, y))[1]
    )


def test_a_backward_compiled_inside_a_compiled_step_is_not_captured():
    """``loss.backward()`` breaks the graph, and frames under it are captured: not those of the compiler that it calls."""
    stacks = []

    def compiler(gm: torch.fx.GraphModule, example_inputs: object) -> Callable[..., object]:
        stacks.append([frame.filename for frame in traceback.extract_stack()])
        return braze.aot.nop(gm, example_inputs)

    def backend(gm: torch.fx.GraphModule, example_inputs: object) -> Callable[..., object]:
        return braze.aot.aot_module_simplified(gm, example_inputs, fw_compiler=compiler, bw_compiler=compiler)

    model = small()

    @braze.compile(backend=backend)
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    step(X)
    captured = [name.partition(" of ")[2] for stack in stacks for name in stack if name.startswith("<braze")]
    assert any(name.endswith(".step>") for name in captured)
    assert not any(name.endswith(".compiler>") for name in captured)
