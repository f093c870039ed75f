"""How much is recorded: sizes, memory, and what comes of recordings that fail; modes and options."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.cudagraphs.trees import forest_of
from braze.support import log, trace
from braze.support.errors import UserError
from tests.cudagraphs.helpers import assert_equal, filled, noted, numbers, recording, recordings
from tests.helpers import logged


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def fn(x):
    return torch.relu(x) @ x.t() + 1


def varying(**options):
    return braze.compile(fn, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1, **options})


# -- sizes


@pytest.mark.usefixtures("simulated")
def test_each_size_has_a_recording():
    f, kept = varying(), []
    with recordings() as made:
        for _ in range(4):
            for rows in range(2, 7):
                # at an address of its own: one that stays would be read in place
                kept.append(numbers(rows, 4))
                assert_equal(f(kept[-1]), fn(kept[-1]))
        assert made() == 5


@pytest.mark.usefixtures("simulated")
def test_past_the_limit_sizes_run_unrecorded_and_that_is_told_once():
    log.forget_warnings()
    f, kept = varying(cudagraph_sizes=2), []
    with recordings() as made, logged() as messages:
        for _ in range(5):
            for rows in range(2, 7):
                kept.append(numbers(rows, 4))
                assert_equal(f(kept[-1]), fn(kept[-1]))
        assert made() == 2
    assert sum(m.startswith("BZ6206") for m in messages) == 1


@pytest.mark.usefixtures("simulated")
def test_the_size_that_is_used_least_gives_way_to_one_that_is_used_much():
    f = varying(cudagraph_sizes=2)
    for rows in (2, 3):
        for _ in range(3):
            f(numbers(rows, 4))
    with recordings() as made:
        for _ in range(12):
            x = numbers(5, 4)
            assert_equal(f(x), fn(x))
        assert made() == 1
    with recordings() as made:
        for _ in range(3):
            f(numbers(5, 4))
        assert made() == 0


@pytest.mark.usefixtures("simulated")
def test_a_list_of_sizes_is_all_that_is_recorded():
    f = varying(cudagraph_sizes=[2, 4])
    with recordings() as made, noted() as codes:
        kept = []  # none lies where one before it lay, which would be read there
        for _ in range(3):
            for rows in (2, 3, 4, 5):
                kept.append(x := numbers(rows, 4))
                assert_equal(f(x), fn(x))
        assert made() == 2
        assert codes().count("BZ6206") == 6


@pytest.mark.usefixtures("simulated")
def test_no_sizes_means_no_recordings_and_that_is_told_once():
    f = varying(cudagraph_sizes=0)
    with recordings() as made, noted() as codes, logged() as messages:
        for _ in range(4):
            x = numbers(3, 4)
            assert_equal(f(x), fn(x))
        assert made() == 0 and codes() == ["BZ6206"] * 4
    assert [m for m in messages if "cudagraph_sizes=0 records nothing" in m] == messages[:1], messages


# -- memory


def test_what_was_used_longest_ago_makes_room(simulated):
    limit = forest_of(simulated).held() + 6000
    one, two = (recording(f, cudagraph_memory=float(limit)) for f in (lambda x: x * 2, lambda x: x * 3))
    x = filled(1.0, 1000)
    with recordings() as made, noted() as codes:
        for f in (one, two):
            for _ in range(3):
                f(x)
        assert made() == 2
        assert codes() == ["BZ6209"]
        assert forest_of(simulated).held() <= limit
    assert_equal((one(x), two(x)), (x * 2, x * 3))


def test_recordings_that_drive_each_other_out_are_given_up(simulated):
    limit = float(forest_of(simulated).held() + 6000)
    one, two = (recording(f, cudagraph_memory=limit) for f in (lambda x: x * 2, lambda x: x * 3))
    x = filled(1.0, 1000)
    with recordings() as made:
        for _ in range(20):
            assert_equal((one(x), two(x)), (x * 2, x * 3))
        assert made() <= 12


def test_a_graph_larger_than_the_budget_runs_unrecorded(simulated):
    log.forget_warnings()
    held = forest_of(simulated).held()
    f = recording(lambda x: x * 2, cudagraph_memory=float(held + 2000))
    with logged() as messages:
        for _ in range(5):
            x = numbers(1000)
            assert_equal(f(x), x * 2)
    assert sum(m.startswith("BZ6209") for m in messages) == 1
    assert forest_of(simulated).held() == held


def test_running_out_of_memory_leaves_the_function_running_and_is_told_once(simulated, monkeypatch):
    log.forget_warnings()
    f = recording(lambda x: x * 2)
    f(numbers(3))

    def short(pool, asked):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore of it")

    monkeypatch.setattr(simulated, "begin", short)
    with logged() as messages:
        for _ in range(4):
            x = numbers(3)
            assert_equal(f(x), x * 2)
    assert [m[:6] for m in messages] == ["BZ6207"]
    assert "2.00 GiB" in messages[0] and "More" not in messages[0]
    assert not simulated.busy()


# -- what is not recorded


def test_on_a_processor_nothing_is_recorded():
    f = recording(fn)
    with noted() as codes:
        x = numbers(3, 3)
        assert_equal((f(x), f(x)), (fn(x), fn(x)))
        assert codes() == ["BZ6202"]


def test_explain_tells_what_is_not_recorded_and_why():
    page = braze.explain(fn, mode="reduce-overhead")(numbers(3, 3))
    ((text, times),) = page.cudagraphs
    assert text.startswith("BZ6202") and times == 1
    assert "BZ6202" in str(page).split("CUDA graphs\n")[1]


@pytest.mark.usefixtures("simulated")
def test_memory_of_recordings_is_counted_explained_and_logged(caplog):
    explained = braze.explain(fn, options={"cudagraphs": True, "cudagraph_launches": 1})
    assert "recordings made" not in str(explained(numbers(3, 3)))
    before = trace.COUNTERS["cudagraph_bytes"]
    caplog.set_level("INFO", logger="braze.cudagraphs")
    with logged() as messages:
        page = explained(numbers(3, 3))
    taken = trace.COUNTERS["cudagraph_bytes"] - before
    assert taken > 0
    assert f"recordings made: 1, whose pools grew by {taken:,} bytes" in str(page)
    assert any(f"grew by {taken} bytes" in message for message in messages)


@pytest.mark.usefixtures("simulated")
def test_what_befalls_a_recording_is_counted_explained_and_logged_with_its_code(caplog):
    kept = []

    def program(x):
        kept.append(f(x))
        return kept[-1] * 2

    f = recording(fn)
    caplog.set_level("INFO", logger="braze.cudagraphs")
    before = trace.COUNTERS["cudagraphs_BZ6201"]
    with trace.collect() as events, logged() as messages:
        for _ in range(5):
            program(numbers(3, 3))
    slots = "BZ6201 graph: is recorded again, into a second slot: outputs of the first are held"
    copied = "BZ6201 graph: is recorded with its outputs copied out: those of 2 recordings are held"
    told = [str(note) for kind, note in events if kind == "cudagraph"]
    assert told == [slots, copied]
    assert [m for m in messages if m.startswith("BZ")] == told
    assert trace.COUNTERS["cudagraphs_BZ6201"] - before == 2


# -- modes and options


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("default", 0), ("reduce-overhead", 1), ("max-autotune", 1), ("max-autotune-no-cudagraphs", 0)],
)
def test_the_modes_that_record(mode, wanted):
    f = braze.compile(fn, mode=mode)
    with recordings() as made:
        for _ in range(4):
            x = numbers(3, 3)
            assert_equal(f(x), fn(x))
        assert made() == wanted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cudagraph_sizes", -1),
        ("cudagraph_sizes", True),
        ("cudagraph_sizes", "16"),
        ("cudagraph_sizes", [1, -2]),
        ("cudagraph_sizes", [1.0]),
        ("cudagraph_sizes", None),
        ("cudagraph_memory", 0.0),
        ("cudagraph_memory", -1.0),
        ("cudagraph_memory", 17),
        ("cudagraph_memory", "1GB"),
        ("cudagraph_memory", float("nan")),
        ("cudagraph_launches", -1),
        ("cudagraph_launches", True),
        ("cudagraph_launches", 2.0),
        ("cudagraph_measure", 1),
        ("outputs", "lend"),
        ("outputs", None),
        ("cudagraph_size", 4),
    ],
)
def test_options_of_the_wrong_kind_are_refused(name, value):
    with pytest.raises(UserError) as refused:
        braze.compile(fn, options={name: value})
    assert refused.value.code == "BZ0003"
    assert name in str(refused.value)


def test_sizes_beyond_any_tensor_are_taken():
    assert_equal(varying(cudagraph_sizes=[2**63, 0, 0])(filled(1.0, 2, 2)), fn(filled(1.0, 2, 2)))


@pytest.mark.usefixtures("simulated")
def test_an_operator_that_takes_tensors_without_dimensions_is_recorded():
    """It is a number argument that makes the host wait, not a tensor beside one."""

    @torch.library.custom_op("braze_graphs::scaled", mutates_args=())
    def scaled(x: torch.Tensor, seed: torch.Tensor, by: float) -> torch.Tensor:
        return x * by + seed

    @scaled.register_fake
    def _(x, seed, by):
        return torch.empty_like(x)

    program = lambda x, seed: scaled(x * 2, seed + 1, 0.5) + 1
    f = recording(program)
    with recordings() as made:
        for k in range(4):
            x, seed = numbers(3), torch.tensor(float(k))
            assert_equal(f(x, seed), program(x, seed))
        assert made() >= 1
