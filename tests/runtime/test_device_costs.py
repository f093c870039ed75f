"""What work costs on a GPU: measured once, kept, followed by choices. The clock is a test's, and no GPU is needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from braze.cudagraphs.device import Costs
from braze.options import Options
from braze.runtime.gpu import device_costs
from braze.runtime.gpu.device_costs import costs_of, kept, known_costs, settled
from braze.schedule.facts.choices import Choices
from braze.support import trace
from braze.support.device_costs import H200, DeviceCosts, coarse
from braze.target import Target, cuda_target

SLOW = DeviceCosts(1.0e12, 4.0e-6, 4 << 20, 40)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU of a test's, whose measurements give what ``found`` holds next; an error is raised."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(device_costs, "_known", {})
    told = SimpleNamespace(name="GPU 5000", multi_processor_count=40, total_memory=8 << 30)
    told.found, told.asked, told.driver = [SLOW], 0, 12080
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: told)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(device_costs.native, "driver_version", lambda: told.driver)

    def measure(index):
        told.asked += 1
        found = told.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(device_costs, "measure", measure)
    return told


def another_process(monkeypatch):
    monkeypatch.setattr(device_costs, "_known", {})


def test_a_gpu_is_measured_once_and_later_processes_take_what_is_kept(gpu, monkeypatch):
    before = trace.COUNTERS["devices_measured"]
    assert known_costs(0) == H200 and kept(0) is None, "who asks what is known measures nothing"
    assert costs_of(0) == costs_of(0) == SLOW
    another_process(monkeypatch)
    assert costs_of(0) == known_costs(0) == kept(0) == SLOW
    assert gpu.asked == 1 and trace.COUNTERS["devices_measured"] == before + 1


@pytest.mark.parametrize("change", [{"name": "GPU 6000"}, {"driver": 13000}, {"multi_processor_count": 80}])
def test_another_gpu_and_another_driver_are_measured_anew(gpu, monkeypatch, change):
    costs_of(0)
    another_process(monkeypatch)
    vars(gpu).update(change, found=[H200])
    assert costs_of(0) == H200 and gpu.asked == 2


@pytest.mark.parametrize("found", [None, torch.OutOfMemoryError("none is left"), RuntimeError("CUDA error")])
def test_what_cannot_be_measured_now_is_an_h200s_and_not_kept(gpu, found):
    gpu.found = [found, SLOW]
    assert costs_of(0) == H200 and kept(0) is None
    assert costs_of(0) == SLOW, "the next compile tries again"


def test_nothing_is_measured_while_a_recording_is_made(gpu, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert costs_of(0) == H200 and not gpu.asked
    assert costs_of(0) == SLOW


def test_what_another_process_has_kept_meanwhile_is_taken(gpu, monkeypatch):
    """Ranks of a job begin at once, and are to make the same kernels."""
    real = device_costs.measure

    def measure(index):
        device_costs.keep(index, H200)
        return real(index)

    monkeypatch.setattr(device_costs, "measure", measure)
    assert costs_of(0) == H200 and kept(0) == H200


def test_a_damaged_note_is_measured_again(gpu):
    device_costs.cache.DiskCache().put(device_costs._key(0), b"[1, 2]", "txt")
    assert kept(0) is None and costs_of(0) == kept(0) == SLOW


def test_times_that_lie_far_apart_tell_nothing():
    assert settled([1.0, 1.1, 1.05, 1.2, 9.0]) == 1.1
    assert settled([1.0, 1.0, 2.0, 2.0, 1.5]) is None
    assert settled([0.0] * 5) is None, "the clock stood still"
    assert settled([1.0] * 4) is None, "few were queued in time"


def test_noise_changes_no_choice():
    for noise in (0.86, 0.95, 1.0, 1.05, 1.17):
        near = DeviceCosts(H200.copied * noise, H200.launched / noise**2, int(H200.cache * noise), H200.cores)
        assert (near.speed, near.kept) == (1, 1)
    assert coarse(0.5, 2.0) == 0.5 and coarse(2 * 1.1, 2.0) == 2 and coarse(0, 2.0) == coarse(1e9, 2.0) == 1


def test_choices_follow_what_was_measured():
    ours, slow = Choices(Options()), Choices(Options(), SLOW)
    assert Choices(Options(), H200).launch_bytes == ours.launch_bytes == Choices.launch_bytes
    assert slow.launch_bytes == int(ours.launch_bytes * SLOW.speed) < ours.launch_bytes
    assert slow.waited_bytes == int(ours.waited_bytes * SLOW.speed) < ours.waited_bytes
    costs = Costs(1e-6, 2e-6, 1e-12)
    assert costs.scaled(H200) == costs
    assert costs.scaled(SLOW) == Costs(1e-6, 2e-6, 1e-12 / SLOW.speed)


def test_a_target_without_a_gpu_is_an_h200():
    assert cuda_target((9, 0), 132).costs == Target("cuda", "gfx942").costs == H200
    assert cuda_target((7, 5), 40, SLOW).costs == SLOW
