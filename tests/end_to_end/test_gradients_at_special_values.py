"""Gradients where numbers are special: what eager writes as a zero is no product with one."""

import math

import pytest
import torch
from torch.nn import functional as F

import braze
from tests.helpers import logged

NUMBERS = torch.tensor([1.0, 3.0, 3.0, -2.0, 0.1, -0.0, 0.2])


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    equal = torch.equal(found.nan_to_num(7.0), wanted.nan_to_num(7.0)) and torch.equal(
        found.isnan(), wanted.isnan()
    )
    return equal and torch.equal(found.signbit() & (found == 0), wanted.signbit() & (wanted == 0))


@pytest.mark.parametrize("reduce", [torch.max, torch.min, torch.median, torch.nanmedian])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_gradient_that_is_shared_evenly_is_nothing_elsewhere(reduce, dynamic, backend):
    compiled = braze.compile(lambda x: reduce(x), dynamic=dynamic, backend=backend)
    for numbers in (NUMBERS, NUMBERS.where(NUMBERS > 0, math.nan), NUMBERS.double(), NUMBERS[0]):
        for tangent in (-1.5, math.inf, math.nan):
            found = []
            for call in (reduce, compiled):
                x = numbers.clone().requires_grad_()
                y = call(x)
                y.backward(torch.full_like(y, tangent))
                found.append(x.grad)
            assert same(found[1], found[0]), (numbers, tangent)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_backward_that_shares_many_gradients_evenly_is_compiled(backend):
    """A formula of a program's own, of the form in which PyTorch's share one: each element has its own gradient."""

    class Shared(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x > 0)
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            (mask,) = ctx.saved_tensors
            return mask * (grad / mask.sum())

    found = []
    with logged() as lines:
        for call in (Shared.apply, braze.compile(lambda x: Shared.apply(x), backend=backend)):
            x = NUMBERS.clone().requires_grad_()
            call(x).backward(NUMBERS.flip(0))
            found.append(x.grad)
    assert same(found[1], found[0]) and not lines


@pytest.mark.parametrize("shrink", [F.softshrink, F.hardshrink])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_gradient_of_infinity_ends_in_a_dead_zone(shrink, dynamic, backend):
    compiled = braze.compile(lambda x: shrink(x), dynamic=dynamic, backend=backend)
    for tangent in (-1.5, math.inf, math.nan):
        found = []
        for call in (shrink, compiled):
            x = NUMBERS.clone().requires_grad_()
            call(x).backward(torch.full_like(x, tangent))
            found.append(x.grad)
        assert same(found[1], found[0]), tangent


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss])
@pytest.mark.parametrize("exact", ["input", "target"])
def test_the_gradient_of_a_loss_of_two_types_is_eagers_or_its_error(loss, exact):
    found = []
    for call in (loss, braze.compile(loss)):
        x = torch.arange(4.0, dtype=torch.float64 if exact == "input" else torch.float32).requires_grad_()
        y = torch.ones(4, dtype=torch.float64 if exact == "target" else torch.float32)
        try:
            call(x, y).backward()
            found.append((x.grad.dtype, x.grad.tolist()))
        except RuntimeError as error:
            found.append(str(error))
    assert found[1] == found[0]


@pytest.mark.parametrize("loss", [F.mse_loss, F.huber_loss])
@pytest.mark.parametrize("wide", ["input", "target"])
@pytest.mark.parametrize("one", [False, True])
def test_of_two_gradients_that_are_refused_eagers_first_one_tells_why(loss, wide, one):
    """One for an input and one for its target, of two types, be the target one number or as many."""
    found = []
    for call in (loss, braze.compile(loss)):
        x = torch.arange(4.0, dtype=torch.float64 if wide == "input" else torch.float32).requires_grad_()
        y = torch.ones(1 if one else 4, dtype=torch.float64 if wide == "target" else torch.float32)
        y.requires_grad_()
        try:
            call(x, y.expand(4)).backward()
            found.append((x.grad.dtype, y.grad.dtype))
        except RuntimeError as error:
            found.append(str(error))
    assert found[1] == found[0]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("loss", [F.mse_loss, F.huber_loss])
def test_a_gradient_that_reaches_no_argument_is_refused_as_eagers(loss, backend):
    """It ends at a leaf that the function makes: nobody reads it, but eager makes it."""

    def fn(x):
        v = x.detach().double().requires_grad_()
        return loss(v, torch.zeros(4)), x + 1

    found = []
    for call in (fn, braze.compile(fn, backend=backend)):
        try:
            call(torch.ones(4, requires_grad=True))[0].backward()
            found.append("")
        except RuntimeError as error:
            found.append(str(error))
    assert found[1] == found[0]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("graded", [False, True])
def test_a_cross_entropy_of_two_types_is_refused_as_in_eager(graded, backend):
    compiled = braze.compile(F.binary_cross_entropy, backend=backend)
    for x, y in (
        (torch.full((3,), 0.5), torch.ones(3).double()),
        (torch.full((3,), 0.5).half(), torch.ones(3)),
    ):
        errors = []
        for call in (F.binary_cross_entropy, compiled):
            with pytest.raises(RuntimeError) as caught:
                call(x.requires_grad_(graded), y)
            errors.append(str(caught.value))
        assert errors[1] == errors[0]


def of_each(functions):
    """Each function of a tensor of its own, in one graph."""
    return lambda given: [f(x) for f, x in zip(functions.values(), given)]


#: which of the functions: each half meets both backends and both kinds of sizes, and these each other
HALVES = pytest.mark.parametrize(
    ("half", "backend", "dynamic"),
    [(0, "aot_eager", None), (0, "braze", True), (1, "aot_eager", True), (1, "braze", None)],
)


def half_of(functions, half):
    return {name: f for i, (name, f) in enumerate(functions.items()) if i % 2 == half}


PRODUCTS = {
    "whole": lambda x: x.prod(),
    "first": lambda x: x.prod(0),
    "last": lambda x: x.prod(-1),
    "kept": lambda x: x.prod(-1, keepdim=True),
    "doubles": lambda x: x.prod(0, dtype=torch.float64),
}


@HALVES
def test_the_gradient_of_a_product_is_divided_where_none_is_zero(half, backend, dynamic):
    """An infinite factor is no number in its own gradient, two zeros make all others zero without a sign."""
    products = half_of(PRODUCTS, half)
    program = of_each(products)
    compiled = braze.compile(program, dynamic=dynamic, backend=backend)
    some = [0.0, -0.0, math.inf, 2.0, -4.0, math.nan]
    numbers = [torch.tensor([a, b, c]) for a in some for b in some for c in some][::5]
    numbers += [torch.tensor(2.0), torch.tensor(0.0), torch.ones(0), torch.tensor([math.inf]), torch.zeros(1)]
    numbers += [torch.tensor([[1.0, 0.0], [2.0, math.inf]]), torch.tensor([[1.0, math.inf], [2.0, 4.0]])]
    numbers += [torch.tensor([[1.0, math.inf, 2.0]]).expand(2, 3), torch.ones(0, 3)]
    for given in numbers:
        found = []
        for call in (program, compiled):
            x = [given.detach().requires_grad_() for _ in products]
            y = call(x)
            found.append(torch.autograd.grad(y, x, [torch.full_like(v, -0.5) for v in y]))
        for name, theirs, ours in zip(products, *found, strict=True):
            assert theirs.dtype == ours.dtype and same(ours, theirs), (name, given)


RUNNING_PRODUCTS = {
    "first": lambda x: x.cumprod(0),
    "last": lambda x: x.cumprod(-1),
    "in place": lambda x: (x * 1).cumprod_(0),
}


@HALVES
def test_the_gradient_of_a_running_product_is_divided_before_its_first_zero(half, backend, dynamic):
    """Of (-2.5, 1e-38, 3e38) that of the second is 2.5 / 1e-38: the product of the two others is beyond its type."""
    products = half_of(RUNNING_PRODUCTS, half)
    program = of_each(products)
    compiled = braze.compile(program, dynamic=dynamic, backend=backend)
    some = [0.0, -0.0, math.inf, -4.0, math.nan, 1.2e-38, 3e38]
    numbers = [torch.tensor([a, b, c]) for a in some for b in some for c in some][::3]
    numbers += [torch.tensor(2.0), torch.tensor(0.0), torch.ones(0), torch.zeros(1), torch.ones(0, 3)]
    numbers += [torch.tensor([-2.5, 1.2e-38, 3e38]), torch.tensor([3e38, 10.0, 0.0, math.inf, 0.0, 1.0])]
    numbers += [torch.tensor([[1.0, 0.0], [2.0, 4.0]]), torch.tensor([[1.0, 3.0, 2.0]]).expand(2, 3)]
    for given in numbers:
        found = []
        for call in (program, compiled):
            x = [given.detach().requires_grad_() for _ in products]
            y = call(x)
            tangents = [torch.arange(v.numel()).view(v.shape).to(v.dtype) / 4 - 0.5 for v in y]
            found.append(torch.autograd.grad(y, x, tangents))
        for name, theirs, ours in zip(products, *found, strict=True):
            assert theirs.dtype == ours.dtype and same(ours, theirs), (name, given)


@pytest.mark.parametrize("zeros", [False, True])
def test_the_gradient_of_a_running_product_is_autograds_own_call_and_lies_as_eagers(
    tmp_path, monkeypatch, zeros
):
    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))

    def program(x, y):
        return (x.sigmoid() * y).cumprod(-1).sin(), y.t().cumprod(0).exp()

    given = torch.randn(70, 9), torch.randn(70, 9).t().contiguous().t()
    if zeros:
        given[1][3, 2] = given[1][4, 0] = given[1][4, 8] = 0.0
    found = []
    for call in (program, braze.compile(program)):
        leaves = [x.detach().requires_grad_() for x in given]
        made = call(*leaves)
        found.append(torch.autograd.grad(made, leaves, [torch.full_like(v, 0.5) for v in made]))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()
    (backward,) = tmp_path.glob("*backward_aten.py")
    text = backward.read_text()
    assert text.count("braze.running_product_gradient.default(") == 2 and "cumsum" not in text


def with_gradient(rule):
    """A function that gives what it is given, and whose gradient is made by a rule: of the gradient that came, and of the argument."""

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return rule(gradient, *ctx.saved_tensors)

    return Given.apply


MULTIPLE_ADDED = with_gradient(lambda gradient, x: torch.add(gradient, x, alpha=-2))
NUMBER_ADDED = with_gradient(lambda gradient, x: gradient + 1)
DIVIDED_BY_IT = with_gradient(lambda gradient, x: x / gradient)

OF_SIGNS = {
    "divided": lambda x: (x / 0.0).sgn(),
    "divided by elements": lambda x: torch.frexp(x)[0].sgn(),
    "multiplied by infinity": lambda x: (x * float("inf")).sgn(),
    "a view": lambda x: x.log().view(2, -1).t().sgn(),
    "by a number": lambda x: (x * x.detach().sum()).sgn(),
    "of a number": lambda x: (x.sum() * x.detach()).sgn(),
    "an earlier gradient below zero": lambda x: x.sgn() + x * -0.0,
    "a later gradient below zero": lambda x: (lambda y: x.sgn() + y)(x * -0.0),
    "two of them": lambda x: (x / 0.0).sgn() + x.sgn(),
    "a multiple is added": lambda x: MULTIPLE_ADDED(x).sgn(),
    "a number is added": lambda x: NUMBER_ADDED(x).sgn(),
    "what is divided by them": lambda x: DIVIDED_BY_IT(x).sgn(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("case", OF_SIGNS)
def test_the_zeros_that_sgn_leads_back_stay_zeros(case, backend):
    """They have no memory in eager: nothing is computed with them."""
    f, found = OF_SIGNS[case], []
    for call in (f, braze.compile(f, backend=backend)):
        x = torch.tensor([0.0, -0.0, 1, 2, -3, math.inf, math.nan, 1e-320], dtype=torch.float64)
        x.requires_grad_()
        made = call(x * 1)
        made.backward(torch.ones_like(made))
        found.append(torch.empty_like(x).copy_(x.grad))
    assert same(found[1], found[0])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("norm", ["layer", "group"])
def test_the_zeros_that_a_norm_leads_back_have_eagers_signs(norm, weighted, dynamic):
    """Of rows of zeros, beside one that is none; their means have either sign."""

    def program(x, w):
        given = (w, w) if weighted else ()
        return F.layer_norm(x, x.shape[2:], *given) if norm == "layer" else F.group_norm(x, 2, *given)

    compiled = braze.compile(program, dynamic=dynamic)
    torch.manual_seed(0)
    for width in (16, 40):
        x = torch.randn(6, 4, width) - torch.tensor([-9.0, -0.1, 0.0, 0.1, 9.0, 0.5])[:, None, None]
        w = torch.randn(width if norm == "layer" else 4)
        tangent = torch.where(torch.rand(x.shape) < 0.5, 0.0, -0.0)
        tangent[5] = 1.0
        found = []
        for call in (program, compiled):
            given = x.clone().requires_grad_()
            call(given, w).backward(tangent)
            found.append(given.grad[:5])
        assert same(found[1], found[0])


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_zeros_of_a_gated_unit_have_eagers_signs_at_all_sizes(dim, backend):
    """Of two halves of a size that varies, which are of the size that they are halves of: beside another use nothing is added."""

    def program(x):
        return F.hardswish(x), F.glu(x, dim)

    compiled = braze.compile(program, backend=backend)
    for sizes in ((4, 6), (8, 10), (6, 16)):
        x = torch.full(sizes, -2.0)
        x.narrow(dim, 0, sizes[dim] // 2).zero_()
        found = []
        for call in (program, compiled):
            given = x.clone().requires_grad_()
            beside, gated = call(given)
            torch.autograd.backward([beside, gated], [torch.zeros(sizes), torch.full_like(gated, -0.25)])
            found.append(given.grad)
        assert torch.allclose(*found)
        assert torch.equal(found[0].signbit(), found[1].signbit())
