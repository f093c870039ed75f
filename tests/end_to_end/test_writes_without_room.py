"""An operator in place whose operands broadcast beyond what it writes is refused as in eager, not given more room."""

from __future__ import annotations

import pytest
import torch

import braze

pytestmark = pytest.mark.usefixtures("fresh")

FLOATS = (
    "add_ mul_ sub_ div_ atan2_ clamp_min_ clamp_max_ copysign_ fmod_ remainder_ pow_ hypot_ xlogy_ nextafter_ heaviside_ floor_divide_ "
    "eq_ ne_ lt_ le_ gt_ ge_ logical_and_ igamma_"
).split()
INTEGERS = (
    "gcd_ lcm_ bitwise_and_ bitwise_or_ bitwise_xor_ bitwise_left_shift_ remainder_ floor_divide_ eq_".split()
)
CASES = [(name, torch.float32) for name in FLOATS] + [(name, torch.int64) for name in INTEGERS]
#: a few of each kind that kernels are made of: arithmetic, bounds, what ATen computes, comparisons, logic, bits
WITH_KERNELS = (
    "add_ div_ clamp_min_ pow_ xlogy_ igamma_ eq_ logical_and_ gcd_ bitwise_and_ bitwise_left_shift_".split()
)


@pytest.mark.parametrize(
    ("name", "dtype", "backend"),
    [(*case, backend) for case in CASES for backend in ("eager", "braze") if backend == "eager" or case[0] in WITH_KERNELS],
)  # fmt: skip
def test_what_has_no_room_for_a_broadcast_is_not_written(name: str, dtype: torch.dtype, backend: str) -> None:
    def of_an_input(x, y):
        try:
            getattr(x, name)(y)
        except RuntimeError as error:
            return x + 1, str(error)
        return x + 2, ""

    def of_an_intermediate(x, y):
        v = x * 2
        getattr(v, name)(y)
        return v

    def of_inputs(given):
        return [of_an_input(x, y) for x, y in given]

    sizes = [((1,), (4,)), ((1,), (3,)), ((3,), (3,)), ((1,), (1,)), ((), (2,)), ((1, 3), (2, 3))]
    operands = [(torch.ones(x, dtype=dtype), torch.full(y, 2, dtype=dtype)) for x, y in sizes]
    for dynamic in (None, True):
        handled = braze.compile(of_inputs, backend=backend, dynamic=dynamic)
        raised = braze.compile(of_an_intermediate, backend=backend, dynamic=dynamic)
        found, eager = (f([(x.clone(), y) for x, y in operands]) for f in (handled, of_inputs))
        for (x, y), (got, said), (wanted, expected) in zip(operands, found, eager, strict=True):
            torch.testing.assert_close(got, wanted)
            assert said == expected
            if expected:
                with pytest.raises(RuntimeError) as caught:
                    raised(x, y)
                assert str(caught.value) == expected
            else:
                torch.testing.assert_close(raised(x, y), of_an_intermediate(x, y))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["eq_", "ge_", "copysign_", "floor_divide_", "heaviside_", "add_"])
def test_elements_that_share_memory_are_not_compared_in_place(name: str, dynamic: bool | None) -> None:
    def f(x):
        v = (x * 2).expand(4, 3)
        try:
            getattr(v, name)(torch.ones(3))
        except RuntimeError as error:
            return v + 1, str(error)
        return v, ""

    x = torch.ones(1, 3)
    got, said = braze.compile(f, dynamic=dynamic)(x)
    wanted, expected = f(x)
    assert torch.equal(got, wanted) and said == expected != ""
