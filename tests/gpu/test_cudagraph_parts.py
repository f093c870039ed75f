"""Cut graphs, filled-up batches, recorded steps of optimizers and the C core's replays on a GPU: the tests of the simulated device, and what it cannot show."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from torch import nn

import braze
from braze import native
from braze.cudagraphs import recorded
from braze.support import log
from tests.cudagraphs.helpers import assert_equal, noted, recording, recordings
from tests.cudagraphs.test_cuts import *  # noqa: F403  the same tests, on this device
from tests.cudagraphs.test_optimizer import *  # noqa: F403
from tests.cudagraphs.test_padding import *  # noqa: F403

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("simulated"),
]

# counts what the simulated device has written down
del test_what_is_computed_of_parameters_is_not_replayed  # noqa: F821
# turned gradients off for their files; here each test says so itself
del no_gradients  # noqa: F821


@pytest.fixture(autouse=True)
def gradients_as_in_the_file(request):
    """Tests of optimizers need gradients, those of cuts and batches are without; what was told or counted before does not count."""
    log.forget_warnings()
    calls.clear()  # noqa: F405
    named = request.function.__module__.endswith(("test_cuts", "test_padding"))
    with torch.set_grad_enabled(not named):
        yield


def numbers(*shape):
    return torch.randn(*shape, device="cuda")


def small():
    return nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.GELU()))).cuda()


@torch.no_grad()
def test_launches_limit_a_small_model_and_not_large_products():
    """A host that does much else keeps the device waiting between products too: one of several measurements must find that it did not."""
    model = small()
    f = braze.compile(model, mode="auto")
    with recordings() as made:
        for _ in range(8):
            x = numbers(2, 64)
            assert_equal(f(x), model(x))
        assert made() >= 1
    big, found = numbers(8192, 8192), []
    while len(found) < 5 and (0, ["BZ6214"]) not in found:
        g = braze.compile(lambda x: ((x @ big) @ big).relu() @ big, mode="auto")
        with recordings() as made, noted() as codes:
            for _ in range(6):
                g(big)
            found.append((made(), codes()))
    assert found[-1] == (0, ["BZ6214"]), found


@torch.no_grad()
def test_a_product_on_the_processor_cuts_the_graph():
    model = small()

    def program(x):
        y = model(x)
        z = (y.cpu() @ torch.ones(64, 64)).to(x.device)
        return model(z * 1e-2)

    f = recording(program)
    with recordings() as made, noted() as codes:
        for _ in range(6):
            x = numbers(2, 64)
            torch.testing.assert_close(f(x), program(x), rtol=1e-4, atol=1e-4)
        assert made() >= 2 and "BZ6212" in codes()


@torch.no_grad()
def test_one_to_six_inputs_are_copied_to_where_they_are_read():
    for count in range(1, 7):
        program = lambda *xs: torch.relu(sum(x * (k + 1) for k, x in enumerate(xs))) @ xs[0]
        f, kept = recording(program), []
        for _ in range(6):
            kept.append([numbers(16, 16) for _ in range(count)])
            torch.testing.assert_close(f(*kept[-1]), program(*kept[-1]), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not native.native_available, reason="the C core is not built")
@torch.no_grad()
def test_the_c_core_replays():
    assert native.replays_natively()
    model = small()
    f = recording(model)
    for _ in range(4):
        f(numbers(2, 64))
    quick = [r.quick for each in recorded._live for g in each.sizes.groups.values() for r in g.recordings]
    assert quick and all(each is not None for each in quick)


@torch.no_grad()
def test_a_replay_takes_less_of_the_host_than_the_launches():
    """A recorded call of eight layers comes back to the host in a part of the time of its launches."""
    model, x = small(), numbers(2, 64)
    spent = {}
    for mode in ("default", "reduce-overhead"):
        f = braze.compile(model, mode=mode)
        for _ in range(10):
            f(x)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            f(x)
        spent[mode] = time.perf_counter() - start
        torch.cuda.synchronize()
    assert spent["reduce-overhead"] < spent["default"]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_training_with_pytorchs_own_kernels_for_many_tensors(make):
    ours = small()
    theirs = copy.deepcopy(ours)
    rate = torch.tensor(0.01, device="cuda")
    one = braze.compile_optimizer(
        make(ours.parameters(), lr=rate.clone(), capturable=True), mode="reduce-overhead"
    )
    two = make(theirs.parameters(), lr=rate.clone(), capturable=True)
    step = recording(lambda x: (ours(x) ** 2).mean())
    with recordings() as made:
        for _ in range(12):
            x = numbers(8, 64)
            one.zero_grad()
            two.zero_grad()
            step(x).backward()
            (theirs(x) ** 2).mean().backward()
            one.step()
            two.step()
        assert made() >= 3
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)
