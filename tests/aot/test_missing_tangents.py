"""Backwards of calls in which some results have no part in the loss."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import braze
from braze.aot.calls import autograd
from braze.inspect.memory import peak_bytes
from braze.runtime.memory.arena import clear_arenas
from braze.support import trace


class Encoder(nn.Module):
    """Like an encoder with a pooled output, which most losses do not read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.pooler, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return hidden, torch.tanh(self.pooler(hidden[:, 0])), self.unused(hidden)


LOSSES = {
    "hidden": lambda out: out[0].square().sum(),
    "pooled": lambda out: out[1].square().sum(),
    "two": lambda out: out[0].sum() + out[2].exp().sum(),
    "all": lambda out: sum(part.square().sum() for part in out),
}


def gradients(call, model, x, loss):
    model.zero_grad(set_to_none=True)
    x.grad = None
    loss(call(x)).backward()
    return [x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("order", [["hidden", "pooled", "two", "all"], ["all", "hidden", "all", "pooled"]])
@pytest.mark.parametrize("most", [4, 1])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_gradients_are_eagers_whatever_comes_in(monkeypatch, order, most, backend):
    monkeypatch.setattr(autograd, "MOST", most)
    torch.manual_seed(0)
    model, x = Encoder(), torch.randn(4, 5, 8, requires_grad=True)
    compiled = braze.compile(model, backend=backend)
    for name in order:
        ours = gradients(compiled, model, x, LOSSES[name])
        theirs = gradients(model, model, x, LOSSES[name])
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_what_only_missing_tangents_reach_is_not_computed():
    """The backwards for the hidden values alone, of which others are computed, have fewer kernels and calls than those for all."""
    torch.manual_seed(0)
    x = torch.randn(4, 5, 8, requires_grad=True)
    sizes = {}
    for name in ("hidden", "all"):
        braze.reset()
        model = Encoder()
        with trace.collect() as events:
            gradients(braze.compile(model), model, x, LOSSES[name])
        found = [e for kind, e in events if kind == "compiled" and "backward" in e.name]
        sizes[name] = len(found), sum(len(e.kernels) + len(e.externs) for e in found)
    assert sizes["hidden"][0] == 1
    assert sizes["all"][0] == 3
    assert sizes["hidden"][1] < sizes["all"][1]


def test_symbolic_sizes():
    torch.manual_seed(0)
    model = Encoder()
    compiled = braze.compile(model, dynamic=True)
    for rows in (4, 6):
        x = torch.randn(rows, 5, 8, requires_grad=True)
        ours = gradients(compiled, model, x, LOSSES["hidden"])
        theirs = gradients(model, model, x, LOSSES["hidden"])
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_no_zeros_stand_for_a_large_result_without_a_gradient():
    """As for the logits of a language model that returns them beside its loss."""
    w = torch.randn(64, 4096)

    def both(x):
        wide = x @ w
        return wide.square().mean(), wide

    x = torch.randn(512, 64, requires_grad=True)

    def peak(call):
        for _ in range(2):
            call(x)[0].backward()
            x.grad = None
        clear_arenas()
        found = peak_bytes(lambda: call(x)[0].backward())
        x.grad = None
        return found

    assert peak(braze.compile(both)) <= 2.2 * 512 * 4096 * 4


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_gradient_that_no_other_joins_keeps_the_signs_of_its_zeros_in_any_layout(
    dynamic: bool | None,
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.abs_()
        turned = x.flip(-1)
        part = turned[..., -1]
        turned.neg_()
        return part

    found = []
    for call in (
        program,
        *(braze.compile(program, backend=b, dynamic=dynamic) for b in ("aot_eager", "braze")),
    ):
        leaf = (torch.arange(8.0).view(2, 2, 2) - 3.5).permute(2, 1, 0).requires_grad_()
        (call(leaf * 1) * 2).sum().backward()
        assert leaf.grad is not None
        found.append((leaf.grad.tolist(), leaf.grad.signbit().tolist(), leaf.grad.stride()))
    assert found[1] == found[0] and found[2] == found[0]


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(3, 16, 1), (1, 16, 3), (3, 1, 16), (1, 1, 2)])
def test_a_gradient_that_no_other_joins_keeps_the_signs_of_its_zeros_beside_dims_of_one_element(
    shape: tuple[int, ...], dtype: torch.dtype, backend: str
) -> None:
    """Sizes vary, so that the strides of such dims are not those of the missing gradient."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x[..., 0].add_(3)
        return torch.linalg.vector_norm(x.mT, 3)

    found = []
    for call in (program, braze.compile(program, backend=backend, dynamic=True)):
        leaf = torch.full(shape, -0.0).to(dtype).permute(2, 1, 0).requires_grad_()
        call(leaf * 1).backward()
        assert leaf.grad is not None
        parts = torch.view_as_real(leaf.grad) if dtype.is_complex else leaf.grad
        found.append(parts.signbit().tolist())
    assert found[1] == found[0]


def behind_infinite_slopes(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results with an operation in common, to which some lead with infinite slopes."""
    y = x.exp()
    return y.sin(), y.sqrt(), y.log(), y.cos(), y.tanh()


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_what_does_not_come_in_is_left_out_for_any_number_of_choices(monkeypatch, backend):
    """Zeros for it, times an infinite slope, would be no number."""
    monkeypatch.setattr(autograd, "MOST", 2)
    compiled = braze.compile(behind_infinite_slopes, backend=backend)
    for chosen in itertools.combinations(range(5), 2):
        found = []
        for call in (behind_infinite_slopes, compiled):
            x = torch.full((300,), -torch.inf)
            x[0] = 1.0
            x.requires_grad_()
            results = call(x)
            torch.stack([results[i] for i in chosen]).sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0], equal_nan=True)


def turned_parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of numbers that lie turned in memory."""
    first, second = x.permute(2, 1, 0).exp().split(1)
    return first.sqrt(), second.sin()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_zeros_stand_for_a_missing_part_that_lies_turned(backend, dynamic):
    """Not what its formula makes of zeros."""
    compiled = braze.compile(turned_parts, backend=backend, dynamic=dynamic)
    for rows in (300, 200):
        found = []
        for call in (turned_parts, compiled):
            x = torch.linspace(-1, 1, 6 * rows).view(rows, 3, 2)
            x[..., 0] = -torch.inf
            x.requires_grad_()
            (call(x * 1)[1] * -1).sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0])
        assert torch.equal(found[1].signbit(), found[0].signbit())


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_gradient_of_three_parts_keeps_the_one_whose_tangent_comes_in(backend: str) -> None:
    """A sum of sums, of which all parts but a widened one are missing: that one has other strides than the sum."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x + x)[None], x.sum(0, keepdim=True)

    found = []
    for call in (program, braze.compile(program, backend=backend)):
        leaf = torch.arange(7.0).requires_grad_()
        doubled, total = call(leaf)
        (doubled * 0.5).sum().backward(retain_graph=True)
        first, leaf.grad = leaf.grad, None
        (total * 0.25).sum().backward()
        assert first is not None and leaf.grad is not None
        found.append((first.tolist(), leaf.grad.tolist()))
    assert found[1] == found[0] == ([1.0] * 7, [0.25] * 7)


def zeroed_and_written(x: torch.Tensor) -> torch.Tensor:
    """A result whose gradient is zeros times something, of an argument that is written besides."""
    x.sin_()
    both = torch.cat([x, x])
    both.fill_(0.5)
    return both


def divided_after_it_was_read(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """An argument whose new value has a gradient of zeros by zeros, which eager takes only where one comes in for it."""
    result = x.softmax(-1)
    whole = x[...]
    whole.div_(by)
    whole.eq_(1)
    return result


def two_ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results with no operation in common that saves tensors, of which one's gradient is zeros."""
    v = 0.5 - x
    return v.mT, v.trunc().ceil()


def parts_of_a_sum(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results with operations in common; none saves anything."""
    first, second = (x + x).split(1)
    return first, -second


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_results_that_save_nothing_go_backward_one_after_the_other_without_the_graph_being_retained(backend):
    found = []
    for call in (parts_of_a_sum, braze.compile(parts_of_a_sum, backend=backend)):
        x = torch.ones(2, 3, requires_grad=True)
        first, second = call(x)
        first.sum().backward()
        found.append(x.grad.tolist())
        second.sum().backward()
        found.append(x.grad.tolist())
    assert found[2:] == found[:2] == [[[2.0] * 3, [0.0] * 3], [[2.0] * 3, [-2.0] * 3]]


def signed_beside_another(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient by what gives the sign is zeros. What is written to y is an operation of its own, so that the tangents of this one have other numbers."""
    y[1:] = 3
    x[:1].add_(1)
    return torch.copysign(x, x) * -0.0


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize(
    ("program", "others"),
    [
        (parts_of_a_sum, ()),
        (signed_beside_another, (torch.ones(3, requires_grad=True) * 1,)),
        (zeroed_and_written, ()),
        (divided_after_it_was_read, (torch.zeros(2, 3, dtype=torch.float64),)),
        (two_ends, ()),
    ],
)
def test_a_gradient_that_reads_no_tangent_is_of_the_tangents_that_lead_to_it(program, others, backend):
    """Else the sign of a zero is lost where another tangent is missing, or zeros that eager does not make meet an infinity."""
    found = []
    for call in (program, braze.compile(program, backend=backend)):
        x = torch.tensor([[1.0, 2.0, 3.0], [4.0, -1.0, 0.5]], requires_grad=True)
        results = call(x * 1, *others)
        ends = results if isinstance(results, tuple) else (results,)
        torch.autograd.backward(
            ends, [torch.zeros_like(t) if len(ends) > 1 else torch.ones_like(t) for t in ends]
        )
        found.append(x.grad)
    theirs, ours = found
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    zeros = (ours == 0) & (theirs == 0)
    assert torch.equal(ours.signbit() & zeros, theirs.signbit() & zeros)


def custom(backward, save=lambda x: x):
    """A function with a backward of the gradient and of what is saved."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(save(x))
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient, *ctx.saved_tensors)

    return Function.apply


ADDS = custom(lambda g, saved: g + saved)
ADDS_WHAT_IT_COMPUTES = custom(lambda g, saved: saved.exp() + g)
SAVED = custom(lambda g, saved: saved)
SEEN = custom(lambda g, saved: saved.view(2), torch.exp)
TWICE = custom(lambda g, saved: saved * 2)
ONES = custom(lambda g, saved: torch.ones_like(saved))


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("use", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.logcumsumexp(0), x.digamma()),
        lambda x: (ADDS(x), x.sin()),
        lambda x: (ADDS_WHAT_IT_COMPUTES(x), x.exp()),
        lambda x: (SAVED(x), x.sin()),
        lambda x: (SEEN(x * 2), x.exp()),
        lambda x: (TWICE(x), (x * 2).exp()),
        lambda x: (ONES(x), x.sin() * torch.ones_like(x)),
        lambda x: (SAVED(x), TWICE(x)),
        lambda x: (SAVED(x), SAVED(x * 3), ONES(x) * x.sin()),
    ],
    ids=["logcumsumexp", "adds", "adds exp", "saved", "seen", "twice", "ones", "two saved", "three"],
)
def test_what_a_derivative_adds_to_its_tangent_is_not_what_another_gives(program, use, backend):
    """A sum of gradients is the other one where one does not come in; of a formula that is not linear nothing is run."""
    compiled = braze.compile(program, backend=backend)
    found = []
    for call in (program, compiled):
        x = torch.tensor([1.4, 0.5], requires_grad=True)
        results = call(x)
        torch.autograd.backward([results[i] for i in use], [torch.full((2,), 1.5) for _ in use])
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_result_without_a_history_that_equals_new_contents_with_one_has_none(backend):
    """Both are zeros of one form, which the graph makes once."""

    def program(x, w):
        x.zero_()
        return torch.zeros_like(x), w * w

    found = []
    for call in (program, braze.compile(program, backend=backend)):
        x, w = (torch.rand(3, 4, requires_grad=True) for _ in range(2))
        written = x * 1
        zeros, squares = call(written, w)
        assert written.requires_grad
        squares.sum().backward()
        found.append((zeros.requires_grad, w.grad is not None, x.grad is None))
    assert found[1] == found[0] == (False, True, True)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_two_arguments_whose_new_contents_are_equal_have_histories_of_their_own(backend):
    def program(x, y, w):
        x.zero_()
        y.zero_()
        return w * w

    compiled = braze.compile(program, backend=backend)
    x, y, w = (torch.rand(3, 4, requires_grad=True) for _ in range(3))
    first, second = x * 1, y * 1
    compiled(first, second, w)
    first.sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 4))
    assert y.grad is None and w.grad is None
    second.sum().backward()
    assert torch.equal(y.grad, torch.zeros(3, 4))


def compared(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """An argument that is written by a comparison, whose gradient is zeros, beside a result of which it is no part."""
    v.gt_(v)
    return x * x


def multiplied(v: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """An argument that is written by what the result is, too: both have one backward."""
    result = x.exp()
    v.mul_(result)
    return result


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize(
    ("program", "producer"), [(compared, "eager"), (compared, "compiled"), (multiplied, "compiled")]
)
def test_what_made_a_written_argument_is_not_asked_where_no_gradient_comes_to_it(program, producer, backend):
    """It has saved its result, which is written since: eager does not come by there, and autograd would refuse it."""
    found = []
    for compiled in (False, True):
        x = torch.tensor([[0.5, 2.0], [1.0, -1.0]], requires_grad=True)
        make = torch.exp
        if compiled:
            program = braze.compile(program, backend=backend)
            make = braze.compile(make, backend=backend) if producer == "compiled" else make
        program(make(x), x).sum().backward()
        found.append(x.grad)
    theirs, ours = found
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("dims", [(0, 1, 2), (2, 1, 0)])
def test_the_sign_of_a_zero_outlives_a_missing_tangent_at_varying_sizes(dims, backend):
    """An argument that was written after it was read has a tangent that does not come in: zeros for it would make -0 to 0."""

    def fn(x, number):
        v = torch.hstack([x, x]) ** 2
        x[::2] = number
        return v

    compiled = braze.compile(fn, backend=backend)
    for sizes in ((5, 4, 3), (9, 4, 8)):
        found = []
        for call in (fn, compiled):
            x = (
                (-torch.rand(sizes, generator=torch.Generator().manual_seed(3)) - 1)
                .permute(dims)
                .requires_grad_()
            )
            result = call(x * 1, torch.tensor(2.0, requires_grad=True))
            result.backward(torch.zeros_like(result))
            found.append(x.grad)
        assert found[0].signbit().all() and found[1].signbit().all()


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("taken", [0, 2])
def test_parts_without_a_gradient_are_zeros_at_varying_sizes(taken, backend):
    """Zeros that come in for what eager does not run would be multiplied by what is negative."""

    def fn(x, weight):
        first, second, third = x.unbind(0)
        return first * weight, second * weight, -third

    compiled = braze.compile(fn, backend=backend, dynamic=True)
    for n in (3, 5):
        found = []
        for call in (fn, compiled):
            x = torch.ones(3, n, requires_grad=True)
            call(x, torch.full((n,), -1.0))[taken].sum().backward()
            found.append(x.grad)
        theirs, ours = found
        assert torch.equal(theirs, ours) and torch.equal(theirs.signbit(), ours.signbit())


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("written", ["zero_", "cleared after a result"])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_the_zeros_that_a_program_writes_are_not_those_of_its_backward(backend, written, dynamic):
    """Equal numbers, but a gradient of zeros is left out where no tangent leads to it: added, it takes the sign of a zero."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        doubled = x * 2
        y = x if written == "zero_" else x + 0.0
        y.zero_()
        return (doubled,) if written == "zero_" else (doubled, y)

    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    for rows in (3, 5):
        for both in (False, True):
            found = []
            for call in (program, compiled):
                leaf = torch.ones(rows).requires_grad_()
                x = leaf * 1
                doubled, other = (*call(x), x)[:2]
                ends = [doubled, other] if both else [doubled]
                torch.autograd.backward(ends, [torch.full((rows,), -0.0), torch.ones(rows)][: len(ends)])
                assert leaf.grad is not None
                found.append((leaf.grad.tolist(), leaf.grad.signbit().tolist()))
            assert found[1] == found[0], (rows, both)


def sign_beside(x):
    return torch.linalg.slogdet(x)


def sign_of_a_product(x):
    sign, log = torch.linalg.slogdet(x @ x.mT + 1)
    return sign, log, sign * x


def sign_alone(x):
    return torch.linalg.slogdet(x.sin())[0], x.exp()


def sign_of_complex_numbers(x):
    sign, log = torch.linalg.slogdet(torch.complex(x, x.mT))
    return sign.real, log


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", [sign_beside, sign_of_a_product, sign_alone, sign_of_complex_numbers])
def test_a_result_whose_formula_makes_nothing_of_its_gradient_gives_none(program, backend, dynamic):
    options = {"verify": 2} if backend == "braze" else {}  # no step is left to autograd
    compiled = braze.compile(program, backend=backend, dynamic=dynamic, options=options)
    values = torch.arange(9.0, dtype=torch.float64).reshape(3, 3).sin() + torch.eye(3) * 2
    for chosen in [(0,), (1,), (0, 1), (1, 2), (2,)]:
        found = []
        for call in (program, compiled):
            x = values.clone().requires_grad_()
            results = [r for i, r in enumerate(call(x)) if i in chosen]
            if results:
                found += torch.autograd.grad([r.sum() for r in results], x, allow_unused=True)
        if found:
            assert (found[0] is None) == (found[1] is None), chosen
            torch.testing.assert_close(found[1], found[0])
