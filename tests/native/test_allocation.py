"""Tensors that the C core makes are those of torch.empty_strided; what it does not make is made there."""

import gc
import sys
import threading

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from braze import native
from braze.native import allocation, torch_state

core = pytest.importorskip("braze.native._native")
native.bind_torch()

LAYOUTS = [
    ((), ()),
    ((5,), (1,)),
    ((2, 3), (3, 1)),
    ((2, 3), (1, 2)),
    ((0, 3), (3, 1)),
    ((4, 4), (0, 1)),
    ((1,) * 20, (1,) * 20),
]


def seen(tensor):
    return (
        *torch_state.metadata(tensor),
        tensor.is_inference(),
        tensor.untyped_storage().nbytes(),
        tensor.device,
    )


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in allocation.DTYPES])
def test_they_are_those_of_torch(dtype):
    for inference in (False, True):
        with torch.inference_mode(inference):
            for sizes, strides in LAYOUTS:
                ours = native.empty_strided(sizes, strides, dtype=dtype)
                assert seen(ours) == seen(torch.empty_strided(sizes, strides, dtype=dtype))
                assert type(ours) is torch.Tensor and not ours.requires_grad


def test_they_can_be_used_as_any_other():
    made = native.empty_strided((2, 3), (3, 1), dtype=torch.float32).fill_(2.0).requires_grad_()
    (made * made).sum().backward()
    assert made.grad.tolist() == [[4.0] * 3] * 2
    made = native.empty_strided((3,), (1,), dtype=torch.int64)
    made.copy_(torch.arange(3))
    assert made.resize_(2).tolist() == [0, 1]
    assert made._version == 2


def test_nothing_but_the_caller_holds_them():
    made = native.empty_strided((1000,), (1,), dtype=torch.float32)
    storage = StorageWeakRef(made.untyped_storage())
    assert sys.getrefcount(made) == 2
    assert not storage.expired()
    del made
    gc.collect()
    assert storage.expired()


@pytest.mark.skipif(not native.native_available, reason="the stand-in asks PyTorch")
def test_torch_is_not_asked(monkeypatch):
    class Asked(torch.overrides.TorchFunctionMode):
        """Sees what goes through PyTorch's Python functions."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    names = []
    with Asked():
        native.empty_strided((2,), (1,), dtype=torch.float32)
        assert names == []
        native.empty_strided([2], (1,), dtype=torch.float32)
        native.empty_strided((2,), (1,), dtype=torch.float32, device="cpu")
        native.empty_strided((2,), (1,), dtype=torch.complex32)
    assert names == ["empty_strided"] * 3


@pytest.mark.parametrize(
    ("sizes", "strides", "given"),
    [
        ((2,), (1, 1), {"dtype": torch.float32}),
        ((-2,), (1,), {"dtype": torch.float32}),
        ((2.0,), (1,), {"dtype": torch.float32}),
        ((2,), (1,), {"dtype": "float32"}),
        ((2,), (1,), {"kind": torch.float32}),
        ((2**62, 2**62), (1, 1), {"dtype": torch.float32}),
        ((2**70,), (1,), {"dtype": torch.float32}),
    ],
)
def test_what_torch_refuses_is_refused_as_there(sizes, strides, given):
    with pytest.raises(Exception) as theirs:
        torch.empty_strided(sizes, strides, **given)
    with pytest.raises(theirs.type) as ours:
        native.empty_strided(sizes, strides, **given)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


def test_another_device():
    assert native.empty_strided((2,), (1,), dtype=torch.float32, device="meta").device.type == "meta"


def test_from_many_threads():
    found = []

    def work():
        for n in range(2000):
            made = native.empty_strided((n % 7, 3), (3, 1), dtype=torch.float32)
            if made.shape != (n % 7, 3):
                found.append(made.shape)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == []


@pytest.mark.skipif(not native.native_available, reason="needs the C extension")
def test_a_dtype_that_does_not_agree_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(allocation, "_agrees", lambda core, dtype: dtype is not torch.float32)
    try:
        allocation.configure(core)
        with torch.device("meta"):
            assert native.empty_strided((2,), (1,), dtype=torch.float32).device.type == "meta"
            assert native.empty_strided((2,), (1,), dtype=torch.float64).device.type == "cpu"
    finally:
        monkeypatch.undo()
        allocation.configure(core)
    with torch.device("meta"):
        assert native.empty_strided((2,), (1,), dtype=torch.float32).device.type == "cpu"
