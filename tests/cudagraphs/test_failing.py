"""An operator that turns out to fail while it is recorded, of which nothing told before, becomes a cut; the rest is recorded."""

from __future__ import annotations

import functools
import gc
import threading
import weakref

import pytest
import torch

import braze
from braze.cudagraphs import recorded
from braze.cudagraphs.registry import device_of
from braze.cudagraphs.simulated import on_the_host
from braze.recorded_calls import Cutter
from tests.cudagraphs import helpers
from tests.cudagraphs.helpers import Place, assert_equal, numbers, placed, recording, recordings

pytestmark = pytest.mark.usefixtures("simulated")

tried: list[str] = []


def recorder():
    return device_of("cuda:0" if Place.device == "cuda" else "cpu")


def waits(x, name):
    """What CUDA does where the host waits for a device that records."""
    tried.append(name)
    if Place.device == "cuda":
        return float(x.sum().item())
    if recorder().busy():
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
    return float(x.sum())


@torch.library.custom_op("braze_failing::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    """The argument by its sum, for which the host waits; no tag says so."""
    return x * waits(x, "scaled")


@torch.library.custom_op("braze_failing::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    """The argument and its sum, likewise."""
    return x + waits(x, "shifted")


@torch.library.custom_op("braze_failing::put", mutates_args=("to",))
def put(to: torch.Tensor, x: torch.Tensor) -> None:
    """Add to the first argument in place, likewise."""
    to += x * waits(x, "put")


for op in (scaled, shifted):
    op.register_fake(torch.empty_like)


@pytest.fixture(autouse=True)
def no_gradients():
    tried.clear()
    with torch.no_grad():
        yield


#: a second try and its recordings take calls; small numbers stay small
run = functools.partial(helpers.run, times=8, make=lambda: numbers(4, 4) / 4)


def test_what_stands_before_and_after_is_recorded():
    made, codes = run(lambda x: scaled(torch.relu(x @ x) + 1).sin() @ x)
    assert (made, codes) == (2, ["BZ6212"])


def test_the_operator_runs_at_each_call():
    f = recording(lambda x: scaled(x @ x + 1) * 3)
    for _ in range(3):
        f(numbers(3, 3))
    tried.clear()
    for k in range(5):
        f(numbers(3, 3))
        assert len(tried) == k + 1


def test_one_after_another_is_found():
    program = lambda x: shifted(scaled(x @ x).sin() @ x).cos() @ x
    made, codes = run(program, times=10)
    assert made == 4 and set(codes) == {"BZ6212"}, (
        "what stands before the first is recorded before the second is met"
    )
    assert len(codes) == 3, "one cut first, then both"


def test_an_operator_that_fails_in_a_part():
    from tests.cudagraphs.test_cuts import counted

    program = lambda x: counted(scaled(x @ x) @ x).cos() @ x
    made, codes = run(program, times=10)
    assert made >= 3 and set(codes) == {"BZ6212"}


def test_an_operator_that_writes_a_value_and_one_that_writes_an_input():
    def program(x):
        y = x @ x
        put(y, x)
        return y @ x, y

    made, codes = run(program)
    assert made >= 2 and codes[0] == "BZ6212"

    def writing(cache, x):
        put(cache, x @ x)
        return (cache @ x).relu()

    f, ours = recording(writing), numbers(3, 3)
    theirs = ours.clone()
    with recordings() as made:
        for _ in range(8):
            x = numbers(3, 3) / 3
            assert_equal(f(ours, x), writing(theirs, x))
            assert_equal(ours, theirs)
        assert made() == 2


def test_outputs_that_are_held_and_fed_back():
    program = lambda x: (torch.tanh(x @ x), scaled(x @ x + 1).sin())
    f, kept = recording(program), []
    x = numbers(3, 3)
    for _ in range(12):
        theirs = program(x)  # of the same values: a chain of its own would drift away by roundings
        kept.append((f(x), theirs))
        x = kept[-1][0][0]
        for ours, theirs in kept:
            assert_equal(ours, theirs)


def test_nothing_but_the_operator():
    made, codes = run(scaled)
    assert made == 0 and codes == ["BZ6208"]


def test_what_fails_without_an_operator_runs_unrecorded(monkeypatch):
    device = recorder()
    end = type(device).end

    def ends(self):
        end(self)
        raise RuntimeError("the capture has work that did not join")

    monkeypatch.setattr(type(device), "end", ends)
    made, codes = run(lambda x: scaled(x @ x) if x.shape[0] > 9 else x.cumsum(0) @ x)
    assert made == 0 and codes == ["BZ6208"]


def test_an_error_of_the_operators_own_is_the_programs():
    @torch.library.custom_op("braze_failing::refuses", mutates_args=())
    def refuses(x: torch.Tensor) -> torch.Tensor:
        if not Place.device == "cuda" and recorder().busy():
            raise AssertionError("it is not recorded")
        raise ZeroDivisionError("never")

    refuses.register_fake(torch.empty_like)
    f = recording(lambda x: refuses(x @ x))
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            f(numbers(3, 3))
    assert_equal(*[recording(lambda x: x @ x)(torch.ones(2, 2))] * 2)


def test_gradients_through_it():
    @torch.library.custom_op("braze_failing::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * (2 + 0 * waits(x, "doubled"))

    doubled.register_fake(torch.empty_like)
    torch.library.register_autograd("braze_failing::doubled", lambda ctx, grad: doubled(grad))
    with torch.enable_grad():
        layer, twin = placed(torch.nn.Linear(4, 4)), placed(torch.nn.Linear(4, 4))
        twin.load_state_dict(layer.state_dict())
        program = lambda of, x: (doubled(of(x).tanh()) @ x.t()).sum()
        f = recording(lambda x: program(layer, x))
        with recordings() as made:
            for _ in range(7):
                x = numbers(2, 4)
                f(x).backward()
                program(twin, x).backward()
                assert_equal(layer.weight.grad, twin.weight.grad)
                layer.zero_grad()
                twin.zero_grad()
            assert made() >= 3


def test_sizes_that_vary():
    program = lambda x: scaled(x @ x.t()).relu() @ x
    f = braze.compile(program, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1})
    with recordings() as made:
        for _ in range(5):
            for rows in (2, 3, 5):
                x = numbers(rows, 4)
                assert_equal(f(x), program(x))
        assert made() == 6


def test_what_is_needed_to_cut_is_let_go_of_when_all_is_recorded(monkeypatch):
    braze.reset()
    others = set(recorded._live)
    cutters, init = [], Cutter.__init__

    def noting(self, *words):
        cutters.append(weakref.ref(self))
        init(self, *words)

    monkeypatch.setattr(Cutter, "__init__", noting)
    f = recording(lambda x: scaled(x @ x).sin() @ x)
    inputs = [
        numbers(3, 3) for _ in range(5)
    ]  # all alive: one that lay where another had been would be read in place, and recorded for
    for x in inputs:
        f(x)
    gc.collect()
    assert len(cutters) == 1 and cutters[0]() is None
    ours = set(recorded._live) - others
    assert sum(len(g.recordings) for each in ours for g in each.sizes.groups.values()) == 2


def test_threads_meet_a_graph_that_is_cut_anew():
    import threading

    program = lambda x: scaled(x @ x).sin() @ x
    f, failed = recording(program), []

    def calls(inputs):
        with torch.no_grad():
            for x in inputs:
                try:
                    assert_equal(f(x), program(x))
                except BaseException as error:
                    failed.append(error)

    # a GPU draws no numbers for one thread while another records
    inputs = [[numbers(4, 4) for _ in range(12)] for _ in range(3)]
    threads = [threading.Thread(target=calls, args=(each,)) for each in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, GeneratorExit])
@pytest.mark.parametrize("call", [2, 3, 4])
def test_whatever_ends_a_rehearsal_or_a_recording_leaves_the_device_and_later_calls_right(
    simulated, error, call
):
    """The operator is called as it is, rehearsed, recorded, and recorded for a second slot."""
    calls, kept, wanted = [0], [], []

    def body(x):
        calls[0] += 1
        if calls[0] == call:
            raise error
        return x + 1

    name = f"ends_{error.__name__}_{call}".lower()
    operator = torch.library.custom_op(
        f"braze_tests::{name}", body, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    operator.register_fake(torch.empty_like)
    on_the_host(getattr(torch.ops.braze_tests, name).default, body)
    f, raised = recording(lambda x: torch.cumsum(operator(torch.cumsum(x, 0)), 0) * 2), []
    with torch.no_grad():
        for _ in range(8):
            x = numbers(4)
            try:
                kept.append(f(x))
            except BaseException as found:
                raised.append(type(found))
            else:
                wanted.append(torch.cumsum(torch.cumsum(x, 0) + 1, 0) * 2)
            assert not simulated.busy()
            assert_equal(kept, wanted)
    assert set(raised) <= {error} and len(raised) <= 1
    assert gc.isenabled()
    thread = threading.Thread(
        target=lambda: kept.append(f(x))
    )  # which waits for ever where the device is not free
    thread.start()
    thread.join()
    assert_equal(kept[-1], torch.cumsum(torch.cumsum(x, 0) + 1, 0) * 2)
