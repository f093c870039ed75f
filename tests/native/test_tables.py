"""Tables of addresses: the native walk and its stand-in write the same rows and refuse the same tensors."""

import numpy as np
import pytest
import torch

from braze import native
from braze.native import tables

WALKS = [native.tabulate, tables.tabulate]


@pytest.fixture(params=WALKS, ids=["native", "python"])
def tabulate(request):
    return request.param


def table(rows, columns):
    return np.full((rows, 3 + columns), 7, dtype=np.int64)


def test_rows_hold_counts_starts_and_addresses(tabulate):
    a = [torch.zeros(3, 5), torch.zeros(()), torch.zeros(0), torch.zeros(65)]
    b = [torch.ones_like(t) for t in a]
    out = table(4, 2)
    assert tabulate((a, b), torch.empty(0), out) == (-1, True)
    assert out[:, 0].tolist() == [15, 1, 0, 65]
    assert out[:, 1].tolist() == [0, 64, 128, 128]
    assert out[:, 2].tolist() == [t.data_ptr() for t in a]
    assert out[:, 3].tolist() == [t.data_ptr() for t in b]
    assert (out[:, 4] == 7).all(), "what the caller keeps behind is left alone"


def test_tells_whether_anything_but_the_second_column_changed(tabulate):
    a, b = [torch.zeros(4), torch.zeros(4)], [torch.zeros(4), torch.zeros(4)]
    out = table(2, 2)
    tabulate((a, b), torch.empty(0), out)
    b[1] = torch.zeros(4)
    assert tabulate((a, b), torch.empty(0), out) == (-1, False)
    assert out[1, 3] == b[1].data_ptr()
    a[0] = torch.zeros(4)
    assert tabulate((a, b), torch.empty(0), out) == (-1, True)


def odd_ones():
    base = torch.zeros(4, 6)
    with torch.inference_mode():
        inference = torch.zeros(4, 6)
    return {
        "other dtype": base.double(),
        "other size": torch.zeros(6, 4),
        "transposed": torch.zeros(6, 4).t(),
        "holes": torch.zeros(8, 6)[::2],
        "expanded": torch.zeros(1, 6).expand(4, 6),
        "sparse": base.to_sparse(),
        "meta": torch.zeros(4, 6, device="meta"),
        "negative bit": torch.zeros(4, 6, dtype=torch.complex64).conj().imag,
        "inference": inference,
        "none": None,
        "number": 3.0,
        "list": [1, 2],
    }


@pytest.mark.parametrize("name", odd_ones())
@pytest.mark.parametrize("column", [0, 1])
def test_odd_tensors_are_irregular(tabulate, name, column):
    columns = ([torch.zeros(4, 6) for _ in range(3)], [torch.zeros(4, 6) for _ in range(3)])
    columns[column][1] = odd_ones()[name]
    out = table(3, 2)
    like = torch.empty(0)
    assert tabulate(columns, like, out)[0] == 1
    assert tabulate(columns, like, out, 2)[0] == -1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(2, 3, 4).permute(2, 0, 1),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(1, 3).as_strided((1, 3), (99, 1)),
        torch.nn.Parameter(torch.zeros(3)),
        torch.zeros(2, 0, 3),
    ],
)
def test_any_order_of_dims_without_holes_is_regular(tabulate, tensor):
    out = table(1, 2)
    assert tabulate(([tensor], [torch.empty_like(tensor)]), torch.empty(0), out)[0] == -1
    assert out[0, 0] == tensor.numel()


def test_goes_on_at_a_row(tabulate):
    a = [torch.zeros(n) for n in (10, 70, 3)]
    whole, rest = table(3, 1), table(3, 1)
    tabulate((a,), torch.empty(0), whole)
    rest[:2] = whole[:2]
    tabulate((a,), torch.empty(0), rest, 2)
    assert (whole == rest).all()


def test_refuses_what_is_no_table(tabulate):
    with pytest.raises(TypeError):
        tabulate(([torch.zeros(1)], []), torch.empty(0), table(1, 2))
    with pytest.raises(ValueError):
        tabulate(([torch.zeros(1)],), torch.empty(0), np.zeros((1, 2), dtype=np.int64))
    with pytest.raises(TypeError):
        tabulate(([torch.zeros(1)],), None, table(1, 1))
