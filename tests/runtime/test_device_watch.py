"""What a GPU keeps of constants is made again when one changes; the kernel that looks runs in Triton's interpreter."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from braze.runtime.gpu.device_watch import SAMPLES, Device, DeviceWatch, sampled
from tests.codegen.triton_bench import computed_bounds

pytestmark = computed_bounds


class Here(Device):
    """The CPU as a device: launches are over when they return."""

    def __init__(self):
        super().__init__("cpu")
        self.recording = False
        self.waits = 0

    def current(self):
        return contextlib.nullcontext()

    def is_recording(self):
        return self.recording

    def new_answer(self):
        return torch.zeros(1, dtype=torch.int32), SimpleNamespace(
            record=lambda: None, synchronize=lambda: None
        )

    def wait(self):
        self.waits += 1


def watch_of(*tensors, device=None):
    calls = []

    def remake(given):
        calls.append(len(given))
        return [t.double().sum() for t in given]

    items = [(t.numel() * t.element_size(), t.element_size()) for t in tensors]
    return DeviceWatch(items, remake, device or Here()), calls


TYPES = [torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("write", ["in place", "data", "numpy"])
def test_a_change_is_noticed(dtype, write):
    tensors = (torch.ones(3, dtype=torch.float32), torch.ones(100, dtype=dtype))
    watch, calls = watch_of(*tensors)
    made, look = watch(tensors)
    assert not look.differs() and len(calls) == 1
    made, look = watch(tensors)
    assert not look.differs() and len(calls) == 1
    if write == "in place":
        tensors[1].zero_()
    elif write == "data":
        tensors[1].data.zero_()
    elif dtype is torch.bfloat16:
        tensors[1].view(torch.int16).numpy()[:] = 0
    else:
        tensors[1].numpy()[:] = 0
    made, look = watch(tensors)
    if look.differs():  # what was made is stale, and this call is made again
        assert write != "in place" and made[1] == 100
        made, look = watch(tensors)
        assert not look.differs()
    assert made[1] == 0 and len(calls) == 2
    watch(tensors)[1].differs()
    assert len(calls) == 2


def test_other_memory_is_noticed():
    first, second = torch.ones(8), torch.full((8,), 2.0)
    watch, calls = watch_of(first)
    assert watch((first,))[0][0] == 8
    made, look = watch((second,))
    assert made[0] == 16 and not look.differs() and len(calls) == 2


def test_who_cannot_run_twice_gets_what_is_right_at_once():
    x = torch.ones(8)
    watch, calls = watch_of(x)
    assert watch.now((x,))[0] == 8
    x.data.zero_()
    assert watch.now((x,))[0] == 0 and len(calls) == 2


def test_a_graph_that_is_recorded_computes_everything():
    device, x = Here(), torch.ones(8)
    watch, calls = watch_of(x, device=device)
    watch((x,))
    device.recording = True
    for _ in range(2):
        made, look = watch((x,))
        assert made[0] == 8 and not look.differs()
    assert len(calls) == 3 and device.waits == 2


def test_tensors_without_a_counter_are_never_taken_for_unchanged():
    with torch.inference_mode():
        x = torch.ones(8)
    watch, calls = watch_of(x)
    for _ in range(2):
        made, look = watch((x,))
        assert made[0] == 8 and not look.differs()
    assert len(calls) == 2


def test_nothing_to_watch_is_made_once():
    watch, calls = watch_of()
    for _ in range(3):
        made, look = watch(())
        assert made == [] and not look.differs()
    assert len(calls) == 1


def test_samples_lie_within_each_tensor():
    places = sampled([1000, 5000, 9000, 9100], [(2 * SAMPLES + 2, 2), (12, 4), (0, 4), (800, 8)])
    rows = [tuple(map(int, row)) for row in places.t()]
    assert [at for at, size in rows if size == 4] == [5000, 5004, 5008]
    large = [at for at, size in rows if size == 8]
    assert len(large) == SAMPLES and large[0] == 9100 and max(large) + 8 <= 9900
    halves = [at for at, size in rows if size == 2]
    assert len(halves) == SAMPLES and halves[0] == 1000 and max(halves) <= 1000 + 2 * SAMPLES
    assert all((at - base) % size == 0 for (at, size), base in zip(rows[:1], [1000], strict=True))
    assert sampled([], []).shape == (2, 0)


def test_constants_that_take_turns_are_computed_once_each():
    """Equal layers share a graph, and each brings its own weights."""
    a, b, made = torch.ones(8), torch.zeros(8), []
    watch = DeviceWatch([(32, 4)], lambda tensors: made.append(1) or tensors[0] + 1, Here())
    for _ in range(3):
        assert watch.now((a,)).tolist() == [2.0] * 8
        assert watch.now((b,)).tolist() == [1.0] * 8
    assert len(made) == 2
    b.add_(4)
    assert watch.now((a,)).tolist() == [2.0] * 8
    assert watch.now((b,)).tolist() == [5.0] * 8
    assert len(made) == 3
