"""What is decided by a float that changes is a guard on the decision: one variant serves every float that decides so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze
from braze.support import trace

#: of both signs, small and large, and what is none
FLOATS = (0.5, 0.75, 2.5, 3.0, 7.25, -1.5, 1e300, 0.0, -0.0, math.inf, -math.inf, math.nan, 1e-300, 5)


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def same(ours: Any, theirs: Any) -> bool:
    """Whether two results are equal in type and value, NaN and the signs of zeros among these; tensors of doubles but for the last bits."""
    if isinstance(theirs, torch.Tensor):
        close = torch.allclose(ours, theirs, rtol=1e-14, atol=0, equal_nan=True)
        return ours.dtype == theirs.dtype and ours.shape == theirs.shape and close
    if isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if type(theirs) is float:
        return type(ours) is float and (repr(ours) == repr(theirs))
    return type(ours) is type(theirs) and bool(ours == theirs)


def captures(function: Callable[..., Any], values: Sequence[Any], **kwargs: Any) -> int:
    """How many captures calls with these numbers take; each gives what eager gives."""
    compiled = braze.compile(function, **kwargs)
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    before = trace.snapshot()[0]["captures"]
    for value in values:
        ours, theirs = outcome(compiled, x.clone(), value), outcome(function, x.clone(), value)
        assert same(ours, theirs), (value, ours, theirs)
    return int(trace.snapshot()[0]["captures"] - before)


def side(x: Any, k: float) -> Any:
    return x * k if k > 2 else x - k


def between(x: Any, k: float) -> Any:
    return x + 1 if 1.0 < k * 2 < 6.0 else x * k


def truth(x: Any, k: float) -> Any:
    return x / k if k else x


def chosen(x: Any, k: float) -> Any:
    return x * max(k, 3.0), x + min(k, 1), k == 3.0, k != 2.5


QUESTIONS = (side, between, truth, chosen)
#: a variant for the first float, one for each side, and ints beside floats (zeros, infinities and NaN are no symbols)
MOST = {side: 4, between: 4, truth: 4, chosen: 7}


@pytest.mark.parametrize("function", QUESTIONS, ids=lambda f: f.__name__)
def test_a_question_has_a_variant_for_each_answer(function: Callable[..., Any]) -> None:
    drawn = [0.6 + i / 7 for i in range(40)]
    assert captures(function, drawn) <= MOST[function]


@pytest.mark.parametrize("function", QUESTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [None, True])
def test_questions_about_all_kinds_of_floats_are_answered_as_in_python(
    function: Callable[..., Any], dynamic: bool | None
) -> None:
    captures(function, [*FLOATS, *reversed(FLOATS)], dynamic=dynamic, backend="eager")


OPERATIONS = {
    "quotient": lambda x, k: (x * (1 / k), 3.5 / (k + 0.5)),
    "power": lambda x, k: (x * k**2, x + 0.9**k, k**-1.5),
    "in place": lambda x, k: _in_place(x, k),
    "sqrt": lambda x, k: (x * math.sqrt(k), math.sqrt(k * 2 + 1)),
    "exp": lambda x, k: (x * math.exp(-k), math.exp(k)),
    "log": lambda x, k: (x * math.log(k), math.log1p(k), math.log2(k)),
    "sin": lambda x, k: (x * math.sin(k), math.cos(k) + 1),
    "nested": lambda x, k: (x * (1 - 0.9**k) / math.sqrt(1 - 0.99**k),),
}


def _in_place(x: Any, k: float) -> Any:
    k **= 2
    k /= 3
    return x * k, k


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_may_raise_is_computed_for_every_float_for_which_it_does_not(name: str) -> None:
    assert captures(OPERATIONS[name], [2.0 + i / 7 for i in range(20)]) == 2


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_raises_what_python_raises(name: str) -> None:
    captures(OPERATIONS[name], [0.5, *FLOATS, 800.0, 0.75, -2.0, *FLOATS], backend="eager")


@pytest.mark.parametrize(
    "function", [int, round, math.floor, math.ceil, math.trunc], ids=lambda f: f.__name__
)
def test_what_a_float_is_as_an_integer_has_a_variant_each(function: Callable[..., Any]) -> None:
    def of_size(x: Any, k: float) -> Any:
        return x.new_ones(function(k * 2)), function(k)

    assert captures(of_size, [3.1, 3.15, 3.2, 3.05, 3.2, 3.1]) == 2
    captures(of_size, [v for v in FLOATS if abs(v) < 100], backend="eager")


NUMBERS = {
    "fill_": lambda x, k: x.fill_(k),
    "an item": lambda x, k: torch.Tensor.__setitem__(x, 0, k) or x,
    "sub": lambda x, k: x.sub_(x * 2, alpha=k),
    "addr": lambda x, k: torch.addmm(x, x[:, None], x[None], beta=k, alpha=1 / k),
    "softshrink": lambda x, k: torch.nn.functional.softshrink(x, k),
    "a sum": lambda x, k: x.add_(x, alpha=k * 2 + 1),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_what_pytorch_asks_of_a_number_is_guarded_as_it_was_answered(name: str) -> None:
    assert captures(NUMBERS[name], [0.6 + i / 7 for i in range(12)]) == 2
    captures(NUMBERS[name], [0.6, *FLOATS, 0.75, *FLOATS], backend="eager")


def test_questions_whether_a_float_is_finite() -> None:
    def asked(x: Any, k: float) -> Any:
        return x * 2 if math.isfinite(k) else x, math.isnan(k), math.isinf(k * 1e10)

    assert captures(asked, [2.5, 3.5, 4.5, 5.5]) == 2
    captures(asked, FLOATS, backend="eager")


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.5
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        if self.scale != 1.0:
            x = x * self.scale
        return x * self.weight * math.sqrt(self.scale)


def test_a_modules_attribute_and_gradients() -> None:
    module, compiled = Scaled(), Scaled()
    compiled = braze.compile(compiled)
    before = trace.snapshot()[0]["captures"]
    for i in range(10):
        module.scale = compiled.scale = 1.5 + i / 3
        for m in (module, compiled):
            m(torch.arange(4.0)).sum().backward()
        assert torch.allclose(module.weight.grad, compiled.weight.grad)
    module.scale = compiled.scale = 1.0
    assert torch.allclose(module(torch.arange(4.0)), compiled(torch.arange(4.0)))
    assert trace.snapshot()[0]["captures"] - before == 3


def test_what_a_tensor_held_decides_behind_a_break() -> None:
    def step(x: Any, k: Any) -> Any:
        k += 1
        t = k.item()
        return x / (1 - 0.9**t) if t > 3 else x * (1 - 0.9**t)

    compiled, ours, theirs = braze.compile(step), torch.tensor(0.0), torch.tensor(0.0)
    before = trace.snapshot()[0]["captures"]
    for _ in range(12):
        x = torch.randn(3, dtype=torch.float64)
        assert torch.allclose(compiled(x, ours), step(x, theirs), rtol=1e-14)
    assert trace.snapshot()[0]["captures"] - before <= 5


def test_a_miss_names_the_decision(caplog: pytest.LogCaptureFixture) -> None:
    compiled = braze.compile(lambda x, k: x * k if k * 2 > 5 else x, backend="eager")
    x = torch.ones(2)
    compiled(x, 1.0), compiled(x, 1.5)
    with braze.set_stance("fail_on_recompile"), pytest.raises(braze.RecompileError) as raised:
        compiled(x, 3.5)
    assert "k * 2 > 5 == False; now k = 3.5" in str(raised.value).replace("(", "").replace(")", "")


def test_many_operations_make_no_long_guard() -> None:
    def long(x: Any, k: float) -> Any:
        for _ in range(200):
            k = k * 1.01 + 0.5
        return x if k > 3 else -x

    captures(long, [1.5, 2.5, 3.5], backend="eager")


def test_a_step_of_adafactor_is_not_captured_in_each_step() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(4, 4, bias=False) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    first, second = (torch.optim.Adafactor(m.parameters()) for m in (ours, theirs))
    step, late = braze.compile(first.step, backend="eager"), 0
    for i in range(8):
        x = torch.randn(3, 4)
        for m in (ours, theirs):
            m.zero_grad()
            m(x).pow(2).mean().backward()
        before = trace.snapshot()[0]["captures"]
        step(), second.step()
        late += trace.snapshot()[0]["captures"] - before if i > 3 else 0
    assert late == 0
    assert torch.allclose(ours.weight, theirs.weight, rtol=1e-5)


# -- floats made of integers and sizes


OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "a floor": lambda x, n: (x * max(0.5, math.exp(-0.03 * n)), n),
    "a cosine": lambda x, n: (x * max(0.1, 0.5 * (1 + math.cos(math.pi * n / 60))),),
    "a question": lambda x, n: (x * 2 if math.exp(-0.03 * n) < 0.5 else x - n,),
    "between": lambda x, n: (x + 1 if 0.3 < math.exp(-n / 30) <= 0.8 else x * n,),
    "a warm-up": lambda x, n: (x * (n / 10 if n < 10 else max(0.0, math.cos((n - 10) / 40))),),
    "a size": lambda x, n: (x.new_ones(n) * max(0.25, math.log(n) - 1.5),),
    "two": lambda x, n: (x * min(math.log(n + 1), math.sqrt(n + 1) / 2, 2.5), n * 2),
    "a quotient": lambda x, n: (x / (1 + math.exp(-n)), 1 / math.cosh(n / 30), math.log(n + 2) ** 2),
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_what_is_decided_by_a_float_made_of_an_integer_has_a_variant_for_each_decision(name: str) -> None:
    assert captures(OF_INTEGERS[name], list(range(3, 43))) <= 5
    captures(OF_INTEGERS[name], [*range(-3, 60, 5), 700, -700, 1 << 40, 0, 1, 2], backend="eager")


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_decision_by_a_float_made_of_a_float_and_an_integer_serves_both(dynamic: bool | None) -> None:
    def annealed(x: Any, step: int, rate: float) -> Any:
        scale = max(rate * step, 0.5)
        return (x * scale, scale) if rate * step < 2 else (x - step, rate)

    compiled = braze.compile(annealed, dynamic=dynamic, backend="eager")
    x = torch.linspace(-2, 2, 5, dtype=torch.float64)
    for i in range(40):
        args = x, 2 + i * 7 % 13, 0.05 + i / 90
        assert same(compiled(*args), annealed(*args)), args
    assert compiled.misses <= 6


def test_a_decision_by_sizes_that_are_found_to_be_one_later() -> None:
    def f(x: Any, y: Any, n: int) -> Any:
        scale = 2.0 if math.exp(-0.1 * x.size(0)) < math.exp(-0.1 * n) / 2 else 3.0
        return (x + y) * scale + torch.zeros(n, dtype=x.dtype)

    compiled = braze.compile(f, backend="eager")
    for n in (4, 5, 6, 9, 30, 7):
        x = torch.randn(n, dtype=torch.float64)
        assert torch.equal(compiled(x, x, n), f(x, x, n))
    assert compiled.misses == 2
    other = torch.randn(20, dtype=torch.float64)
    assert torch.equal(compiled(other, other[:1], 20), f(other, other[:1], 20))


def test_a_miss_names_the_decision_by_an_integer() -> None:
    compiled = braze.compile(lambda x, n: x * n if math.exp(-n) < 0.01 else x, backend="eager")
    x = torch.ones(2)
    compiled(x, 2), compiled(x, 3)
    with braze.set_stance("fail_on_recompile"), pytest.raises(braze.RecompileError) as raised:
        compiled(x, 8)
    assert "(math.exp(-1 * n) < 0.01) == False; now n = 8" in str(raised.value)


WHOLE: dict[str, Callable[..., Any]] = {
    "remainder": lambda x, k: (x + k % 2, x * (k % 2), k % 0.3, f"{k % 2}"),
    "of a negative": lambda x, k: (x * (k % -2), k // -2, k % -2.5, x * (k // -0.3)),
    "quotient": lambda x, k: (x + k // 2, x * (k // 2), k // 0.3, divmod(k, 2)),
    "by it": lambda x, k: (x * (2.5 % k), x + 7 // k),
    "decided": lambda x, k: x + 1 if k % 2 > 1 else x - k // 3,
    "rounded": lambda x, k: (x + 1, round(k, 2), round(k * 1.5, ndigits=1), {"loss": round(k, -1)}),
    "rounded in a graph": lambda x, k: x * round(k, 2),
}
OF_ALL_KINDS = (
    0.7, 1.5, 2.0, 4.0, -4.0, -0.5, 1e300, -1e300, 5e-324, -5e-324, -1e-17, 0.3, 0.6, -0.9, 1e16 + 2, 2.0**53,
    -7.25, 2.675, 1.005, -2.5, 0.0, -0.0, math.inf, math.nan, 3.3,
)  # fmt: skip


def bits(value: Any) -> Any:
    """A value of which floats compare by their bits, but for what is no number."""
    if isinstance(value, torch.Tensor):
        return bits(value.tolist())
    if isinstance(value, list | tuple):
        return list(map(bits, value))
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    return (value.hex() if value == value else "nan") if isinstance(value, float) else value


def tried(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return bits(function(*args))
    except (ArithmeticError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_quotients_remainders_and_digits_are_pythons_to_the_last_bit(name: str, backend: str) -> None:
    program, x = WHOLE[name], torch.tensor([0.0, -0.0, 1.0, -3.5], dtype=torch.float64)
    compiled = braze.compile(program, backend=backend)
    for k in OF_ALL_KINDS:
        assert tried(compiled, x, k) == tried(program, x, k)


@pytest.mark.parametrize("name", [name for name in WHOLE if name not in ("by it", "rounded in a graph")])
def test_a_float_of_which_these_are_taken_has_no_variant_for_each_value(name: str) -> None:
    compiled = braze.compile(WHOLE[name], backend="eager")
    trace.reset_counters()
    for i in range(30):
        compiled(torch.ones(2), 0.37 + 0.71 * i)
    assert trace.COUNTERS["captures"] <= 3
