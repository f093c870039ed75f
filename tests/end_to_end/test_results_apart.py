"""Results of one compiled call that have nothing in common go backward apart, as in eager: losses of two players, of actor and critic."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch import nn

import braze
from tests.end_to_end.training import flat
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")

BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", "braze"])


class Players(nn.Module):
    """Two networks, each with a loss; the second's is of both where ``both``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(3, 4), nn.Linear(4, 2), nn.BatchNorm1d(4)


def detached(m, x):
    h = m.first(x).tanh()
    return h, m.second(h.detach()).square().sum(), x.sum()


def shared_weights(m, x):
    return m.first(x).tanh().sum(), m.first(x * 2).sigmoid().sum()


def shared_trunk(m, x):
    h = m.first(x).tanh()
    return m.second(h).sum(), m.second(h * 2).exp().sum()


def trunk_that_saves_nothing(m, x):
    h = (m.first.weight + 1).t()
    return h.sin().sum(), h.exp().sum()


def game(m, x):
    h = m.norm(m.first(x)).tanh()
    return m.second(h.detach()).square().mean(), -m.second(h).square().mean(), h.view(-1), h.argmax(-1)


def three(m, x):
    h = m.first(x).tanh()
    return h.sum(), m.second(h).sum(), (m.second.bias * x[:, :2]).exp().sum()


def written(m, x):
    y = x.clone()
    y[0] = m.first.bias[:3]
    return y * 2, m.second(m.first(x).detach().sigmoid()).sum()


def mixed_views(m, x):
    h = m.first(x)
    return h[0], h.t(), m.second.weight.view(-1), m.second.weight * 2


PROGRAMS = [
    detached,
    shared_weights,
    shared_trunk,
    trunk_that_saves_nothing,
    game,
    three,
    written,
    mixed_views,
]


def players():
    torch.manual_seed(0)
    return Players().double()


def run(model, call, order, x):
    """Gradients after a backward from each of some results in turn, and the first error."""
    results, error = [t for t in flat(call(x)) if t.requires_grad], ""
    needs = [(t.is_leaf, t.shape, t.stride()) for t in results]
    try:
        for i in order:
            if i < len(results):
                results[i].square().sum().backward()
    except RuntimeError as raised:
        error = str(raised)[:60]
    found = [p.grad for p in model.parameters()]
    return needs, error, found if not error else [], list(model.buffers())


@BACKENDS
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_in_any_order_and_not_all(program, dynamic, backend):
    """A backward is compiled when it first runs: for each result that begins anew, else what others have compiled serves."""
    for first in range(3):
        model, start = players(), players().state_dict()
        call = lambda x, model=model: program(model, x)
        compiled = braze.compile(call, backend=backend, dynamic=dynamic, fullgraph=True)
        for order in [o for o in ORDERS if o[0] == first]:
            in_order(program, order, model, compiled, start)


ORDERS = [*itertools.permutations(range(3), 2), (0, 1, 2), (1,), (0, 0)]


def in_order(program, order, model, compiled, start):
    model.load_state_dict(start)
    model.zero_grad(set_to_none=True)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    with logged() as told:
        ours = run(model, compiled, order, x)
    eager = players()
    theirs = run(eager, lambda x: program(eager, x), order, x)
    assert not [message for message in told if "as captured" in message]
    assert ours[:2] == theirs[:2], order
    for a, b in zip((*ours[2], *ours[3]), (*theirs[2], *theirs[3]), strict=True):
        torch.testing.assert_close(a, b)


def test_two_optimizers_in_one_compiled_step():
    def train(compile):
        torch.manual_seed(0)
        first, second = nn.Linear(3, 4), nn.Linear(4, 1)
        a, b = torch.optim.SGD(first.parameters(), 0.1), torch.optim.SGD(second.parameters(), 0.1)

        @compile
        def step(x):
            fake = first(x).tanh()
            b.zero_grad()
            loss = (second(fake.detach()) - 1).square().mean()
            loss.backward()
            b.step()
            a.zero_grad()
            adversarial = second(fake).square().mean()
            adversarial.backward()
            a.step()
            return loss.detach(), adversarial.detach()

        found = [step(torch.randn(n, 3)) for n in (4, 4, 3, 2)]
        return found, [p.detach() for m in (first, second) for p in m.parameters()]

    torch.testing.assert_close(train(braze.compile), train(lambda fn: fn))


def test_what_is_kept_for_one_is_let_go_of_with_it():
    big = nn.Linear(64, 64)

    def two(x, y):
        return (big(x).tanh() * x.cos()).sum(), (y * y.detach().sin()).exp().sum()

    x, y = torch.randn(64, 64), torch.randn(64, requires_grad=True)
    first, second = braze.compile(two)(x, y)
    seen = weakref.ref(x)
    del x
    gc.disable()
    try:
        first.backward()
        assert seen() is None  # the operation of the second loss, which lives, does not hold it
        second.backward()
    finally:
        gc.enable()


def test_results_that_are_kept_for_each_other_are_no_cycle():
    def two(x, y):
        a, b = x.exp(), y.exp()
        return a * b.detach(), b * a.detach(), a, b

    x, y = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    call = braze.compile(two)
    call(x, y)
    gc.collect()
    gc.disable()
    try:
        results = call(x, y)
        seen = [weakref.ref(t.grad_fn) for t in results]
        del results
        assert [ref() for ref in seen] == [None] * 4
    finally:
        gc.enable()


@BACKENDS
@pytest.mark.parametrize("which", range(3))
def test_changes_in_place_are_seen(backend, which):
    """What one loss saves is changed between the two backwards: eager's error; what it does not save: none."""
    x = torch.linspace(1, 2, 3)

    def losses(w, v, x):
        return (w * x).exp().sum(), (v * v).sum() + (w.detach() * v).sum()

    def run(compile):
        args = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), x.clone()
        first, second = compile(losses)(*args)
        first.backward()
        with torch.no_grad():
            args[which].add_(1)
        try:
            second.backward()
        except RuntimeError as error:
            return str(error)[:80], []
        return "", [args[0].grad, args[1].grad]

    ours, theirs = run(lambda fn: braze.compile(fn, backend=backend)), run(lambda fn: fn)
    assert ours[0] == theirs[0]
    torch.testing.assert_close(ours[1], theirs[1])


def test_many_tangents_at_once():
    w, v = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    first, second = braze.compile(lambda w, v: (w.sin(), v.exp() * w.detach()))(w, v)
    for result, leaf, theirs in ((first, w, w.cos()), (second, v, v.exp() * w)):
        (ours,) = torch.autograd.grad(result, leaf, torch.eye(3), is_grads_batched=True)
        torch.testing.assert_close(ours, torch.diag(theirs).detach())
