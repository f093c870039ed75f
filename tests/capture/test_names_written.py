"""Which locals the rest of a frame writes in place, as its instructions name them."""

from __future__ import annotations

import pytest

from braze.capture.facts.bytecode import first_offset, written_from


def a_method(x, y):
    x.unsqueeze_(0)
    return y.add(x)


def a_method_of_a_part(x, y):
    x.t().narrow(0, y, 2).mul_(y)


def an_argument_that_is_written(x, y):
    x.join(y.add_(1))


def an_operator(x, y):
    x += y


def an_operator_on_a_part(x, y):
    x[0] += y


def a_part(x, y):
    x[..., y:] = y


def a_slice(x, y):
    x[1:2] = y


def its_data(x, y):
    x.data = y


def on_one_way(x, y):
    if y:
        x = x * 2
    x *= y
    return x


def in_a_loop(x, y):
    for _ in y:
        x += y
        x = x * y


def behind_an_assignment(x, y):
    n = 3
    x.add_(n)


def with_what_a_loop_gives(x, y):
    for n in y:
        x.add_(n)


def another_name_of_it(x, y):
    z = y
    z.add_(x)


def bound_anew(x, y):
    x = x * 2
    x.add_(y)
    y = x
    y -= 1


def no_write(x, y):
    y.__init__(x.add(y))
    x.data_ptr_of_ = y


CASES = [
    (a_method, {"x"}),
    (a_method_of_a_part, {"x"}),
    (an_argument_that_is_written, {"y"}),
    (an_operator, {"x"}),
    (an_operator_on_a_part, {"x"}),
    (a_part, {"x"}),
    (a_slice, {"x"}),
    (its_data, {"x"}),
    (on_one_way, {"x"}),
    (in_a_loop, {"x"}),
    (behind_an_assignment, {"x"}),
    (with_what_a_loop_gives, {"x"}),
    (another_name_of_it, set()),
    (bound_anew, set()),
    (no_write, set()),
]


@pytest.mark.parametrize(("function", "names"), CASES)
def test_a_local_is_written_where_an_instruction_names_it_and_its_object_is_still_the_same(function, names):
    code = function.__code__
    assert written_from(code, first_offset(code)) == names
