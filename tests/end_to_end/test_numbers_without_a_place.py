"""Numbers that integers of a tensor's type do not hold, and zeros that integers are divided by: eager's errors, where eager raises them."""

import pytest
import torch

import braze
from tests.helpers import logged

X = torch.tensor([5, -5, 7, 0, 2**31 - 1, -(2**31)], dtype=torch.int32)


def caught(x, n):
    try:
        y = x.to(torch.uint8).fill_(300)
    except RuntimeError:
        return x + 1
    return y


def quotient_caught(x, n):
    try:
        y = x // 0
    except RuntimeError:
        return x + 1
    return y


def unread_quotient(x, n):
    torch.div(x, x * 0, rounding_mode="floor")
    return x * 2


def unread_remainder(x, n):
    x % (x * n)
    return x * 2


KNOWN = {
    "fill": lambda x, n: x.fill_(n),
    "full": lambda x, n: torch.full((2,), n, dtype=torch.int16),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "clamp": lambda x, n: x.clamp(max=n),
}


def both(program, *args, **settings):
    """What two calls come to."""
    found = []
    for call in (program, braze.compile(program, **settings)):
        try:
            made = call(X.clone(), *args)
            found.append((made.dtype, made.tolist()))
        except RuntimeError as error:
            found.append(str(error).split("\n")[0])
    return found


@pytest.mark.parametrize("program", [*KNOWN.values(), caught], ids=[*KNOWN, "caught"])
@pytest.mark.parametrize("n", [-(2**40), 2**31, 7])
def test_a_number_that_the_type_does_not_hold_is_refused_where_eager_refuses_it(program, n):
    theirs, ours = both(program, n, dynamic=False, backend="eager")
    assert ours == theirs


@pytest.mark.parametrize("program", KNOWN.values(), ids=KNOWN)
def test_a_number_that_comes_to_have_no_place_is_refused(program):
    compiled = braze.compile(program, dynamic=True)
    for n in (5, 2**15 - 1):
        assert torch.equal(compiled(X.clone(), n), program(X.clone(), n))
    for call in (program, compiled):
        with pytest.raises(RuntimeError, match=r"value cannot be converted to type int.* without overflow"):
            call(X.clone(), 2**31 + 5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16], ids=str)
def test_a_number_may_come_to_either_end_of_its_type(dtype):
    """Eager lets what has no sign be negated: -255 has a place in bytes."""
    fill = lambda x, n: x.to(dtype).fill_(n)
    compiled, (low, high) = (
        braze.compile(fill, dynamic=True),
        (torch.iinfo(dtype).min, torch.iinfo(dtype).max),
    )
    ends = {high, -high, low, high + 1, low - 1, -high - 2}
    found = []
    for n in (3, 5, *sorted(ends)):
        for call in (fill, compiled):
            try:
                found.append(call(X, n).tolist())
            except RuntimeError as error:
                found.append(str(error).split("\n")[0])
    assert found[::2] == found[1::2]
    assert sum(type(told) is str for told in found[::2]) >= 2


@pytest.mark.parametrize("n", [-(2**40), 2**32, 3])
def test_a_divisor_that_wraps_to_zero_is_zero(n):
    for program in (lambda x, n: x.remainder(n), lambda x, n: x // n, lambda x, n: torch.fmod(x, n)):
        theirs, ours = both(program, n)
        assert ours == theirs


@pytest.mark.parametrize("program", [quotient_caught, unread_quotient, unread_remainder])
@pytest.mark.parametrize("dynamic", [False, True])
def test_integers_divided_by_zero_are_an_error_whoever_reads_the_result(program, dynamic):
    theirs, ours = both(program, 3, dynamic=dynamic)
    assert ours == theirs
    assert program is quotient_caught or "ZeroDivision" in ours


FLOATS = {
    "fill": lambda x, v: x.fill_(v),
    "full": lambda x, v: torch.full((2,), v, dtype=torch.float32),
    "clamp": lambda x, v: x.clamp(-v, v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v * 2),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "alpha": lambda x, v: torch.add(x, x, alpha=-v),
    "alphas": lambda x, v: torch._foreach_add([x, x + 1], [x, x], alpha=v)[1],
    "value": lambda x, v: torch.addcdiv(x, x, x + 9, value=v),
    "weight": lambda x, v: torch.lerp(x, x + 1, v),
    "normalize": lambda x, v: torch.nn.functional.normalize(x, dim=0, eps=v),
}


@pytest.mark.parametrize("program", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_float_that_comes_to_have_no_place_is_refused(program, backend):
    x = torch.tensor([1.5, -2.0, 0.0])
    compiled = braze.compile(program, backend=backend, dynamic=True)
    for v in (0.5, 3e38 / 2, float("inf")):
        assert torch.allclose(compiled(x.clone(), v), program(x.clone(), v), equal_nan=True)
    for call in (program, compiled):
        with pytest.raises(RuntimeError, match="value cannot be converted to type float without overflow"):
            call(x.clone(), 1e300)


@pytest.mark.parametrize(
    "program", [lambda x, v: x + v, lambda x, v: x * v, lambda x, v: x - torch.tensor(v)]
)
def test_a_float_beyond_the_type_is_infinite_where_eager_lets_it_be(program):
    x = torch.tensor([1.5, -2.0, 1.0])
    compiled = braze.compile(program, dynamic=True)
    with logged() as told:
        for v in (0.5, 1.5, 1e300):
            assert torch.equal(compiled(x, v), program(x, v))
    assert not [line for line in told if "BZ6013" in line]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.full((3,), 1 << 63),
        lambda x: torch.nn.functional.pad(x.half(), (1, 1), value=1e5),
        lambda x: torch.nn.functional.hardtanh(x.half(), -1e5, 1e5),
    ],
)
def test_a_number_of_the_programs_that_has_no_place_is_refused(program):
    theirs, ours = both(lambda x, _: program(x), None)
    assert ours == theirs and "overflow" in ours


@pytest.mark.parametrize("operator", [torch.add, torch.sub, torch.rsub])
def test_integers_are_not_added_by_a_float(operator):
    theirs, ours = both(lambda x, alpha: operator(x, x, alpha=alpha), 1.5)
    assert ours == theirs and "alpha must not be a floating point number" in ours
    theirs, ours = both(lambda x, alpha: operator(x, x, alpha=alpha), 1.5, dynamic=True)
    assert ours == theirs


ONE_ELEMENT = {
    "fill": lambda x, k, n: x[k:].fill_(n),
    "full_like": lambda x, k, n: torch.full_like(x[k:], n),
    "pad": lambda x, k, n: torch.nn.functional.pad(x[k:], (1, 0), value=n),
    "float": lambda x, k, n: x[k:].fill_(n / 2),
    "known": lambda x, k, n: x[k:].fill_(1e5),
}


@pytest.mark.parametrize("program", ONE_ELEMENT.values(), ids=ONE_ELEMENT)
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_element_of_a_half_type_is_filled_with_what_overflows(program, backend, dtype):
    def told(call, *args):
        try:
            return call(torch.ones(4, dtype=dtype), *args).tolist()
        except RuntimeError as error:
            return str(error).split("\n")[0]

    compiled = braze.compile(program, backend=backend, dynamic=True)
    for args in ((2, 7), (1, 7), (3, 1 << 40), (2, 1 << 40), (4, 1 << 40), (-1, -(1 << 40)), (3, 9)):
        assert told(compiled, *args) == told(program, *args)
