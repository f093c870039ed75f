"""``as_strided`` of what is seen in another type: it counts in that type's elements, from where the memory begins."""

from __future__ import annotations

import pytest
import torch

import braze


def read(x):
    return x.view(torch.uint8).as_strided((2,), (1,), 1) * 1


def read_of_a_value(x):
    return (x * 3).view(torch.int16).as_strided((2, 2), (4, 1), 3) + 1


def written(x):
    y = x * 1
    y.view(torch.uint8).as_strided((2,), (1,), 1).fill_(7)
    return y


def written_into_an_argument(x):
    x.view(torch.uint8).as_strided((2,), (1,), 1).fill_(7)
    return x.sum()


def returned(x):
    return x.view(torch.uint8).as_strided((2,), (0,), 1)


def returned_with_what_is_read(x):
    y = x.view(torch.int16).as_strided((2, 2), (4, 1), 3)
    return y.sum(), y


def of_the_same_size(x):
    return x.view(torch.float64).as_strided((3,), (2,), 1).view(torch.int64) * 1


def parts_of_complex_numbers(x):
    y = torch.complex(x.double(), x.double() + 0.5)
    return torch.view_as_real(y).as_strided((3,), (3,), 1) * 2


def complex_numbers_of_parts(x):
    return torch.view_as_complex(x.double().reshape(-1, 2)).as_strided((3,), (2,), 1) * 2


PROGRAMS = [
    read,
    read_of_a_value,
    written,
    written_into_an_argument,
    returned,
    returned_with_what_is_read,
    of_the_same_size,
    parts_of_complex_numbers,
    complex_numbers_of_parts,
]


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_windows_count_in_the_elements_that_are_seen(program, dynamic, backend):
    compiled = braze.compile(program, backend=backend, dynamic=dynamic, options={"verify": 2})
    for made in (
        torch.arange(16) + 300,
        torch.arange(24) + 300,
        (torch.arange(20) + 300)[2:],
        torch.arange(40)[::2],
    ):
        found = []
        for call in (program, compiled):
            base = made.clone() if made.is_contiguous() and not made.storage_offset() else torch.arange(60)
            x = base.as_strided(made.shape, made.stride(), made.storage_offset())
            try:
                results = call(x)
            except RuntimeError as error:
                found.append(type(error))
                continue
            results = results if isinstance(results, tuple) else (results,)
            found.append([base, *[r.clone() for r in results]])
        if isinstance(found[0], type):
            assert found[0] is found[1]
        else:
            torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
