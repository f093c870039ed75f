"""Version counters are read natively, as PyTorch tells them."""

import sys

import pytest
import torch

from braze import native
from braze.native import calibrate, layout, torch_state


def counted(*times):
    made = []
    for count in times:
        tensor = torch.zeros(2)
        for _ in range(count):
            tensor.add_(1)
        made.append(tensor)
    return tuple(made)


def numbers_in(told):
    """The numbers of counters, without which they are."""
    rows = [told[i : i + native.COUNTER] for i in range(0, len(told), native.COUNTER)]
    return [int.from_bytes(row[native.WHICH :], sys.byteorder) for row in rows]


def test_versions_are_those_that_python_reads():
    native.bind_torch()
    tensors = (*counted(0, 1, 300, 70000), torch.nn.Parameter(torch.zeros(3)), torch.zeros(2, device="meta"))
    tensors = (*tensors, tensors[2].detach(), tensors[2].view(2, 1))
    assert numbers_in(native.counters(tensors)) == [tensor._version for tensor in tensors]
    assert native.counters(tensors) == b"".join(native.counters((tensor,)) for tensor in tensors)
    assert native.counters(()) == b""


def test_an_operation_in_place_is_a_new_version():
    (tensor,) = counted(3)
    before = native.counters((tensor,))
    tensor.detach().mul_(2)
    after = native.counters((tensor,))
    assert after != before and after[: native.WHICH] == before[: native.WHICH]


@pytest.mark.parametrize("counters", [native.counters, torch_state.counters], ids=["as built", "python"])
def test_who_counts_for_itself_has_another_counter(counters):
    native.bind_torch()
    first, second = counted(2, 2)
    beside = first.data.add_(0).add_(0)
    told = [counters((t,)) for t in (first, second, beside)]
    assert len({*told}) == 3 and {text[native.WHICH :] for text in told} == {(2).to_bytes(4, "little")}
    first.add_(1)
    assert counters((first, second)) == told[0][: native.WHICH] + (3).to_bytes(4, "little") + told[1]
    with torch.inference_mode(), pytest.raises(RuntimeError):
        counters((torch.zeros(2),))


@pytest.mark.skipif(not native.native_available, reason="needs the C extension")
def test_other_names_of_a_tensor_have_its_counter():
    (tensor,) = counted(2)
    names = (tensor.detach(), tensor.view(2, 1), tensor[1:])
    assert {native.counters((name,)) for name in names} == {native.counters((tensor,))}


def test_tensors_of_inference_mode_have_none():
    with torch.inference_mode():
        tensor = torch.zeros(2)
    with pytest.raises(RuntimeError):
        native.counters((torch.zeros(2), tensor))


def test_other_objects_are_refused():
    with pytest.raises((TypeError, AttributeError)):
        native.counters((3,))


@pytest.mark.skipif(not native.native_available, reason="needs the C extension")
def test_without_known_places_python_reads_them(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(layout, "find_counter", lambda: None)
        calibrate.calibrate()
        tensors = counted(1, 2)
        assert native.counters(tensors) == torch_state.counters(tensors)
    calibrate.calibrate()


@pytest.mark.skipif(not native.native_available, reason="needs the C extension")
def test_the_places_are_found_on_the_versions_we_know():
    assert layout.find_counter() is not None
