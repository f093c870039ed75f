"""Numbers that integers of a tensor's type do not hold, and zeros that integers are divided by: eager's errors, where eager raises them."""

import pytest
import torch

import braze

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
