"""Packed weights follow the weight."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch

from braze.runtime.memory.packed import PackedWeights


def sample(weights: Sequence[torch.Tensor], sums: int, sizes: Sequence[int]) -> int:
    """What the generated sampler does, over all bytes."""
    write, n, *lengths = sizes
    kept = (ctypes.c_int64 * n).from_address(sums)
    differ = 0
    for k, (w, length) in enumerate(zip(weights, lengths, strict=True)):
        found = hash((w.data_ptr(), ctypes.string_at(w.data_ptr(), length))) >> 1
        if kept[k] != found:
            differ += 1
            if write:
                kept[k] = found
    return differ


def keeper_of(pack: Counted, count: int = 1) -> PackedWeights:
    return PackedWeights([pack] * count, [16] * count, [16] * count, sample)


class Counted:
    """A packer that copies the bytes and counts its calls."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.calls = 0

    def __call__(self, source: int, target: int, sizes: int) -> None:
        self.calls += 1
        ctypes.memmove(target, source, self.size)


def values(packed: torch.Tensor) -> list[float]:
    return packed[:16].view(torch.float32).tolist()


def test_weight_is_packed_once() -> None:
    """Calls with an unchanged weight reuse the copy."""
    pack = Counted(16)
    keeper = keeper_of(pack)
    w = torch.arange(4.0)
    assert keeper([w])[0] is keeper([w])[0]
    assert pack.calls == 1


def test_in_place_change_is_seen() -> None:
    """add_, copy_ under no_grad (load_state_dict does that) and optimizers bump the version."""
    pack = Counted(16)
    keeper = keeper_of(pack)
    w = torch.nn.Parameter(torch.arange(4.0))
    keeper([w])[0]
    with torch.no_grad():
        w.add_(1)
    assert values(keeper([w])[0]) == [1.0, 2.0, 3.0, 4.0]
    assert pack.calls == 2


def test_replaced_data_is_seen() -> None:
    """``p.data = other`` moves the pointer."""
    pack = Counted(16)
    keeper = keeper_of(pack)
    w = torch.nn.Parameter(torch.arange(4.0))
    keeper([w])[0]
    w.data = torch.full((4,), 7.0)
    assert values(keeper([w])[0]) == [7.0] * 4


def test_data_that_is_given_back_is_packed_anew() -> None:
    """Where a weight was elsewhere meanwhile, no counter of its own tells what was written to its former memory, nor does a sample show it all."""
    pack = Counted(16)
    keeper = PackedWeights(
        [pack], [16], [16], lambda weights, sums, sizes: sample(weights, sums, (*sizes[:2], 4))
    )
    memory = torch.arange(8.0).view(2, 4)
    w = torch.nn.Parameter(torch.zeros(4))
    w.data = memory[0]
    keeper([w])
    w.data = memory[1]
    assert values(keeper([w])[0]) == [4.0, 5.0, 6.0, 7.0]
    memory[0, 2] = 9
    w.data = memory[0]
    assert values(keeper([w])[0]) == [0.0, 1.0, 9.0, 3.0]


def test_write_through_data_is_seen() -> None:
    """``p.data.mul_`` leaves the version counter alone; the sample shows it."""
    pack = Counted(16)
    keeper = keeper_of(pack)
    w = torch.nn.Parameter(torch.arange(4.0))
    keeper([w])
    w.data.mul_(2)
    assert w._version == 0
    assert values(keeper([w])[0]) == [0.0, 2.0, 4.0, 6.0]


def test_only_the_changed_weight_is_packed() -> None:
    """The others keep their copies."""
    pack = Counted(16)
    keeper = keeper_of(pack, 3)
    weights = [torch.full((4,), float(k)) for k in range(3)]
    before = keeper(weights)
    weights[1].add_(1)
    after = keeper(weights)
    assert pack.calls == 4
    assert after[0] is before[0]
    assert after[2] is before[2]
    assert values(after[1]) == [2.0] * 4


def test_inference_tensor_is_packed_at_each_call() -> None:
    """It has no version counter, so a change could not be seen."""
    pack = Counted(16)
    keeper = keeper_of(pack)
    with torch.inference_mode():
        w = torch.arange(4.0)
        keeper([w])[0]
        w.add_(1)
        assert values(keeper([w])[0]) == [1.0, 2.0, 3.0, 4.0]
    assert pack.calls == 2


def test_old_copy_stays_whole_for_its_user() -> None:
    """A repack makes a new tensor: a call that still reads the old one is not disturbed."""
    keeper = keeper_of(Counted(16))
    w = torch.arange(4.0)
    old = keeper([w])[0]
    w.zero_()
    keeper([w])[0]
    assert values(old) == [0.0, 1.0, 2.0, 3.0]


def test_weights_that_take_turns_are_packed_once_each() -> None:
    """Equal layers share a graph; a change is seen in its turn, and copies go with their weights."""
    pack = Counted(16)
    keeper = keeper_of(pack)
    a, b = torch.arange(4.0), torch.arange(4.0) + 5
    for _ in range(3):
        assert values(keeper([a])[0]) == [0, 1, 2, 3]
        assert values(keeper([b])[0]) == [5, 6, 7, 8]
    assert pack.calls == 2
    a.add_(1)
    b.data[0] = 9
    assert values(keeper([b])[0]) == [9, 6, 7, 8]
    assert values(keeper([a])[0]) == [1, 2, 3, 4]
    assert pack.calls == 4
    copy = weakref.ref(keeper([b])[0])
    del b
    keeper([torch.zeros(4)])
    assert copy() is None


def test_another_tensor_over_the_same_memory_counts_its_own_writes() -> None:
    """As many as the first one, to places of which there is no sample; another name of the first is that one."""
    pack = Counted(16)
    keeper = PackedWeights([pack], [16], [16], lambda weights, sums, sizes: 0)
    with torch.no_grad():
        w = torch.nn.Parameter(torch.arange(4.0)).add_(0)
        keeper([w])
        other = torch.nn.Parameter(w.data)
        other[1:].mul_(2)
        assert other._version == w._version == 1
        assert values(keeper([other])[0]) == [0.0, 2.0, 4.0, 6.0]
        keeper([other.detach()])
    assert pack.calls == 2


def test_a_weight_that_was_packed_may_be_swapped() -> None:
    """PyTorch swaps no tensor that something refers to, be it weakly."""
    pack = Counted(16)
    keeper = keeper_of(pack)
    w = torch.nn.Parameter(torch.arange(4.0))
    old = weakref.ref(w.untyped_storage())
    keeper([w])
    torch.utils.swap_tensors(w, torch.nn.Parameter(torch.full((4,), 7.0)))
    assert values(keeper([w])[0]) == [7.0] * 4
    assert old() is None
