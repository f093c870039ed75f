"""A training step recorded from end to end: forward, backward, and the optimizer's step under ``capturable``."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch

import braze
from braze.cudagraphs import recorded
from braze.support.errors import UserError
from tests.cudagraphs.helpers import (
    assert_equal,
    noted,
    numbers,
    placed,
    recording,
    recordings,
    tensor,
)

#: ``torch.optim.adam`` is not a name that PyTorch keeps
ADAM = importlib.import_module("torch.optim.adam")

pytestmark = pytest.mark.usefixtures("simulated")


@pytest.fixture(autouse=True)
def capturable_here(monkeypatch):
    """PyTorch allows ``capturable`` on devices that record; here that is the simulated one."""
    monkeypatch.setattr(ADAM, "_get_capturable_supported_devices", lambda *args, **named: ["cuda", "cpu"])


def twins(make=torch.optim.AdamW, mode="reduce-overhead", lr=0.05, **options):
    """A model with a compiled optimizer whose steps are recorded, and its twin in eager."""
    ours = placed(torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)))
    theirs = copy.deepcopy(ours)
    one, two = (
        make(
            m.parameters(), lr=lr.clone() if isinstance(lr, torch.Tensor) else lr, capturable=True, **options
        )
        for m in (ours, theirs)
    )
    return ours, theirs, braze.compile_optimizer(one, mode=mode), two


def train(ours, theirs, one, two, steps=8, each=lambda k: None, loss=lambda model, x: (model(x) ** 2).mean()):
    """Steps of both, which agree."""
    step = recording(lambda x: loss(ours, x))
    for k in range(steps):
        each(k)
        x = numbers(5, 6)
        one.zero_grad()
        two.zero_grad()
        a, b = step(x), loss(theirs, x)
        a.backward()
        b.backward()
        assert_equal(a.detach(), b.detach())
        one.step()
        two.step()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_equal(p.detach(), q.detach())
            assert_equal(one.state[p]["step"], two.state[q]["step"])


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_a_training_step_is_recorded_from_end_to_end(make):
    given = twins(make, foreach=False)
    with recordings() as made, noted() as codes:
        # how many are made hangs on where gradients come to lie in the first steps
        many: list[int] = []
        train(*given, steps=24, each=lambda k: many.append(made()))
        assert many[14] >= 3 and made() == many[14], many
        assert set(codes()) == {"BZ6201"}
    names = {each.plan.name for each in recorded._live}
    assert any(name.startswith("adam_step") for name in names)


def test_a_step_that_cannot_be_recorded_is_taken_as_it_is():
    train(*twins(foreach=True))


def test_steps_are_replayed_without_pytorchs_python(monkeypatch):
    ours, _, one, _ = twins()
    for p in ours.parameters():
        p.grad = numbers(*p.shape)
    calls = []
    before = ADAM.adam
    monkeypatch.setattr(ADAM, "adam", lambda *a, **k: calls.append(1) or before(*a, **k))
    for _ in range(6):
        one.step()
    assert len(calls) == 3, "the first makes the state, the second runs, the third is recorded"


def test_a_rate_that_is_a_number_is_seen_when_it_changes():
    given = twins()
    train(
        *given, steps=9, each=lambda k: [o.param_groups[0].update(lr=0.1 / (1 + k // 3)) for o in given[2:]]
    )


def test_a_rate_on_the_device_is_read_at_each_step():
    given = twins(lr=tensor(0.1))
    with noted() as codes:
        train(*given, steps=9, each=lambda k: [o.param_groups[0]["lr"].mul_(0.9) for o in given[2:]])
        assert "BZ6206" not in codes()


def test_a_schedule_of_the_rate():
    given = twins(lr=tensor(0.1))
    plans = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in given[2:]]
    train(*given, steps=6, each=lambda k: [plan.step() for plan in plans] if k else None)


def test_states_that_are_loaded_are_used():
    ours, theirs, one, two = twins()
    train(ours, theirs, one, two, steps=4)
    kept = copy.deepcopy(one.state_dict()), copy.deepcopy(two.state_dict())
    train(ours, theirs, one, two, steps=3)
    one.load_state_dict(kept[0])
    two.load_state_dict(kept[1])
    train(ours, theirs, one, two, steps=5)


def test_gradients_that_are_missing_come_and_go():
    ours, theirs, one, two = twins()

    def loss(model, x):
        return (model[0](x) ** 2).mean()

    train(ours, theirs, one, two, steps=3)
    step = lambda model, opt, x: (opt.zero_grad(), loss(model, x).backward(), opt.step())
    for _ in range(3):
        x = numbers(5, 6)
        step(ours, one, x)
        step(theirs, two, x)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_equal(p.detach(), q.detach())
    train(ours, theirs, one, two, steps=3)


def test_autograd_sees_that_parameters_changed():
    ours, _, one, _ = twins()
    for p in ours.parameters():
        p.grad = numbers(*p.shape)
    for _ in range(5):
        p = next(ours.parameters())
        before = p._version
        one.step()
        assert p._version > before


def test_gradients_accumulate_over_steps():
    ours, theirs, one, two = twins()
    step = recording(lambda x: (ours(x) ** 2).mean())
    for _ in range(5):
        for _ in range(2):
            x = numbers(5, 6)
            step(x).backward()
            (theirs(x) ** 2).mean().backward()
        one.step()
        two.step()
        one.zero_grad()
        two.zero_grad()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert_equal(p.detach(), q.detach())


def test_without_the_mode_nothing_is_recorded():
    ours, theirs, one, two = twins(mode=None)
    for _ in range(4):
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            p.grad = numbers(*p.shape)
            q.grad = p.grad.clone()
        with recordings() as made:
            one.step()
            assert made() == 0
        two.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_equal(p.detach(), q.detach())


def test_other_modes_are_refused():
    model = placed(torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match="BZ0002"):
        braze.compile_optimizer(torch.optim.SGD(model.parameters(), 0.1), mode="max-autotune")
