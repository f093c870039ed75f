"""The C core replays a recording: for inputs that fit, when nobody holds its outputs."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
import torch

from braze import native
from braze.cudagraphs.outputs import Held
from braze.native import allocation

pytestmark = pytest.mark.skipif(not native.native_available, reason="the C core is not built")


class Recorded:
    """A recording of ``y = 2 * x + w``: memory for x and y, and w where it lies."""

    def __init__(self) -> None:
        assert native.replays_natively()
        self.x, self.w, self.y = torch.zeros(4), torch.ones(4), torch.zeros(4)
        self.like = allocation.again(self.y), self._inference()
        self.held = Held(self.y.untyped_storage())
        self.held.settle()
        self.holders = native.Holders()
        self.holders.fill(((0, *self.held.row()),))
        self.placed = 0
        self.made = native.Replay(
            self.holders,
            0,
            7,
            -1,
            ((1, self.w.data_ptr(), 0),),
            ((0, self.x.data_ptr(), 16),),
            (),
            self.place,
            self.move,
            self.run,
            (self.like, lambda inputs: inputs[1], lambda inputs: 3),
        )

    def _inference(self) -> torch.Tensor:
        with torch.inference_mode():
            return allocation.again(self.y)

    def place(self, inputs):
        self.placed += 1
        self.x.copy_(inputs[0])

    def move(self, k, address):
        raise AssertionError("nothing is to be moved")

    def run(self):
        self.y.copy_(2 * self.x + self.w)


@pytest.fixture
def recorded():
    return Recorded()


@pytest.mark.parametrize("kind", [list, tuple])
def test_outputs_are_those_of_the_inputs(recorded, kind):
    for k in range(5):
        y, w, three = recorded.made(kind((torch.full((4,), float(k)), recorded.w)))
        assert torch.equal(y, torch.full((4,), 2.0 * k + 1)) and w is recorded.w and three == 3
        del y


def test_outputs_are_tensors_of_their_own_over_the_recordings_memory(recorded):
    y, *_ = recorded.made([torch.ones(4), recorded.w])
    assert y.data_ptr() == recorded.y.data_ptr()
    assert not y._is_view() and y.is_leaf and y._version == 0 and not y.is_inference()
    del y
    with torch.inference_mode():
        y, *_ = recorded.made([torch.ones(4), recorded.w])
        assert y.is_inference()


def test_an_input_that_lies_elsewhere_does_not_fit(recorded):
    assert recorded.made([torch.ones(4), recorded.w.clone()]) is None
    assert recorded.made([torch.ones(4)]) is None
    assert recorded.made([torch.ones(4), "w"]) is None
    assert recorded.made(iter(())) is None


@pytest.mark.parametrize(
    "held",
    [lambda y: y, lambda y: y[1:], lambda y: y.detach(), lambda y: y.untyped_storage(), lambda y: y.numpy()],
)
def test_nothing_is_replayed_over_an_output_that_is_held(recorded, held):
    kept = held(recorded.made([torch.ones(4), recorded.w])[0])
    assert recorded.made([torch.ones(4), recorded.w]) is None
    del kept
    assert recorded.made([torch.ones(4), recorded.w]) is not None


def test_memory_of_earlier_recordings_does_not_count(recorded):
    kept = recorded.made([torch.ones(4), recorded.w])
    assert not recorded.holders.free_from(0) and recorded.holders.free_from(1)
    del kept
    assert recorded.holders.free_from(0)


def test_the_last_use_is_counted(recorded):
    other = native.Holders()
    recorded.made([torch.ones(4), recorded.w])
    assert recorded.holders.used > other.used
    other.touch()
    assert other.used > recorded.holders.used


def test_errors_of_a_replay_come_through():
    class Failing(Recorded):
        def run(self):
            raise IndexError("out of range")

    recorded = Failing()
    lock = threading.RLock()
    table = native.Replays(lock.acquire, lock.release, lambda: False, lambda: 7)
    table.fill((recorded.made,))
    for call in (recorded.made, table):
        with pytest.raises(IndexError, match="out of range"):
            call([torch.ones(4), recorded.w])
    assert lock.acquire(blocking=False)


def test_a_table_serves_its_stream_unless_it_is_busy(recorded):
    lock, stream, busy = threading.RLock(), [7], [False]
    table = native.Replays(lock.acquire, lock.release, lambda: busy[0], lambda: stream[0])
    inputs = [torch.ones(4), recorded.w]
    assert table(inputs) is None
    table.fill((recorded.made,))
    assert table(inputs) is not None
    busy[0] = True
    assert table(inputs) is None
    busy[0], stream[0] = False, 8
    assert table(inputs) is None
    table.fill(())
    assert table(inputs) is None


@pytest.mark.parametrize(("device", "copied_by_python"), [(-1, 0), (0, 3)])
def test_an_output_is_copied_into_memory_of_its_own(recorded, device, copied_by_python):
    """By the core, or where it cannot copy (device 0 has no memory of the processor's) by the function beside."""
    asked = []
    plain = lambda inputs: asked.append(inputs) or recorded.y.clone()
    how = lambda: torch.empty(4), recorded.y.data_ptr(), 16, plain
    made = native.Replay(
        recorded.holders, 0, 7, device, (), (), (), recorded.place, recorded.move, recorded.run, (how, recorded.like)
    )  # fmt: skip
    kept = []
    for k in range(3):
        recorded.x.fill_(k)
        y, seen = made([])
        kept.append(y)
        assert torch.equal(y, torch.full((4,), 2.0 * k + 1)) and torch.equal(y, seen)
        del seen
    assert (
        torch.equal(torch.stack(kept)[:, 0], torch.tensor([1.0, 3.0, 5.0])) and len(asked) == copied_by_python
    )


@pytest.mark.parametrize(
    "how", [(int, "address", 16, int), (int, 1 << 70, 16, int), (lambda: 1 / 0, 8, 16, int)]
)
def test_an_output_that_cannot_be_copied_raises(recorded, how):
    made = native.Replay(
        recorded.holders, 0, 7, -1, (), (), (), recorded.place, recorded.move, recorded.run, (how,)
    )
    with pytest.raises((TypeError, OverflowError, ZeroDivisionError)):
        made([])


def test_what_is_of_another_kind_is_refused(recorded):
    table = native.Replays(int, int, int, int)
    for wrong in ([recorded.made], (1,), None):
        with pytest.raises(TypeError):
            table.fill(wrong)
    with pytest.raises(TypeError):
        recorded.holders.fill([1])
    with pytest.raises(TypeError):
        recorded.holders.fill(((1, 2),))
    with pytest.raises(TypeError):
        native.Replay(recorded.holders, 0, 0, -1, ((1,),), (), (), int, int, int, ())
    assert recorded.made([torch.ones(4), recorded.w]) is not None, "a table that was refused changes nothing"


def test_all_goes_with_the_recording():
    recorded = Recorded()
    known = weakref.ref(recorded)
    before = sys.getrefcount(recorded.w)
    for _ in range(50):
        recorded.made([torch.ones(4), recorded.w])
    after = sys.getrefcount(recorded.w)
    assert after == before
    del recorded
    gc.collect()
    assert known() is None
