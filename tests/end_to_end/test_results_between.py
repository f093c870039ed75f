"""A result from which others are computed gets the gradient that they lead to it, as in eager: by hooks, ``retain_grad``, and where it is asked for."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze

pytestmark = pytest.mark.usefixtures("fresh")

BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", "braze"])


class Layers(nn.Module):
    """Two layers, whose weights the programs share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


def features_and_logits(m, x):
    features = m.first(x).relu()
    return features, m.second(features).log_softmax(-1)


def hidden_states(m, x):
    states = [m.first(x)]
    for _ in range(3):
        states.append(states[-1] + m.second(states[-1]).tanh())
    return tuple(states)


def logits_and_loss(m, x):
    logits = m.second(m.first(x).tanh())
    return logits, F.cross_entropy(logits, logits.argmax(-1))


def beside_its_taker(m, x):
    """The last takes two results, of which one takes the other, and the input besides."""
    a = m.first(x).sin()
    b = a.exp() * x
    return a, b, (a * b + x.cos()).sum()


def first_in_its_operation(m, x):
    """Both take what was computed before either, which would run twice: they are one operation."""
    h = m.first(x).exp()
    a = h.sin()
    return a, (a * h).sum()


def views_of_one_memory(m, x):
    a = m.first(x).tanh()
    return a.t(), a.view(-1), (a * a).sum()


def written_after(m, x):
    a = m.first(x).sin()
    b = a.cos() + 1
    a = a.clone()
    a.mul_(2)
    return a, b, (a + b).sum()


def part_of_several(m, x):
    one, other = m.first(x).tanh().split(2, dim=1)
    one, other = one.clone(), other.clone()
    return one, other, (one * other).sum()


CLEAN = [features_and_logits, hidden_states, logits_and_loss, beside_its_taker, part_of_several]
PROGRAMS = [*CLEAN, first_in_its_operation, views_of_one_memory, written_after]


def layers():
    torch.manual_seed(0)
    return Layers().double()


def numbers():
    return torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()


def hooked(results, x, m):
    """A hook on each result but the last, which changes its gradient, and what comes to each."""
    seen = {}
    for i, result in enumerate(results[:-1]):
        result.register_hook(lambda g, i=i: (seen.setdefault(i, g.clone()), g * 2)[1])
    results[-1].square().sum().backward()
    return seen, [p.grad for p in (x, *m.parameters())]


def retained(results, x, m):
    for result in results[:-1]:
        result.retain_grad()
    (results[-1].sum() + results[0].exp().sum()).backward()
    return [r.grad for r in results[:-1]], [p.grad for p in (x, *m.parameters())]


def asked_for(results, x, m):
    found = torch.autograd.grad(results[-1].exp().sum(), results[:-1], retain_graph=True)
    return found, torch.autograd.grad(results[-1].sum(), [*results[:-1], x])


def in_turn(results, x, m):
    """A backward from each, the last first: what one frees and what the others still have."""
    errors = []
    for result in reversed(results):
        try:
            result.sum().backward()
        except RuntimeError as error:
            errors.append(str(error)[:60])
    return [], [p.grad for p in (x, *m.parameters())], errors


def let_go_of(results, x, m):
    """The result is gone when its gradient comes; its hook is not."""
    results = list(results)
    seen = []
    results[0].register_hook(lambda g: (seen.append(g.clone()), -g)[1])
    loss = results[-1].sum()
    del results
    loss.backward()
    return seen, x.grad


@BACKENDS
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("use", [hooked, retained, asked_for, in_turn, let_go_of], ids=lambda u: u.__name__)
@pytest.mark.parametrize("program", CLEAN, ids=lambda p: p.__name__)
def test_a_result_between_gets_the_gradient_of_what_is_computed_from_it(program, use, dynamic, backend):
    found = []
    for compiled in (False, True):
        m, x = layers(), numbers()
        call = braze.compile(lambda x, m=m: program(m, x), backend=backend, dynamic=dynamic, fullgraph=True)
        found.append(use((call if compiled else lambda x, m=m: program(m, x))(x), x, m))
    torch.testing.assert_close(found[1][:2], found[0][:2])
    assert found[1][2:] == found[0][2:]


@BACKENDS
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients_of_all_results_together_are_eagers(program, backend):
    found = []
    for compiled in (False, True):
        m, x = layers(), numbers()
        call = braze.compile(lambda x, m=m: program(m, x), backend=backend, fullgraph=True)
        results = (call if compiled else lambda x, m=m: program(m, x))(x)
        sum((i + 1) * r.sin().sum() for i, r in enumerate(results)).backward()
        found.append([p.grad for p in (x, *m.parameters())])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_a_hook_behind_a_slice_that_breaks_the_graph_is_called_for_gradients_alone(backend):
    """What the graph gave before it is one operation; nothing comes to the hook's tensor."""

    def program(x):
        y = x.exp()
        first, other, y = y.cos(), y.sin(), None
        part = first[1:]
        first.register_hook(lambda g: g * 3)
        return other, part

    found = []
    for call in (program, braze.compile(program, backend=backend)):
        for chosen in (0, 1):
            x = numbers()
            call(x)[chosen].sum().backward()
            found.append(x.grad)
    torch.testing.assert_close(found[2:], found[:2])


def test_a_hook_behind_a_graph_break_meets_what_was_computed_before_it():
    def program(x):
        a = x.sin()
        b = a.exp()
        braze.graph_break()
        a.register_hook(lambda g: g * 3)
        return b.sum()

    found = []
    for call in (program, braze.compile(program)):
        x = numbers()
        call(x).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])


def test_what_leads_to_no_result_is_not_computed_for_one_between():
    """The loss is of the first alone: the second operation does not run, and its weights get no gradient."""
    m, x = layers(), numbers()
    features, _ = braze.compile(lambda x: features_and_logits(m, x), fullgraph=True)(x)
    features.sum().backward()
    assert m.second.weight.grad is None
    assert m.first.weight.grad is not None


def test_sizes_that_only_a_backward_of_one_operation_asks_for_come_with_it():
    """Of varying sizes; nothing of the inputs is read but these."""

    def pads(x, y):
        return F.pad(x, (2, 2)), F.pad(y, (1, 2), value=2.0)

    compiled = braze.compile(pads, dynamic=True, fullgraph=True, options={"verify": 2})
    for n in (3, 5):
        found = []
        for call in (pads, compiled):
            x, y = (torch.ones(n, m, dtype=torch.float64, requires_grad=True) for m in (n, n + 1))
            a, b = call(x, y)
            (a.square().sum() + b.cos().sum()).backward()
            found.append([x.grad, y.grad])
        torch.testing.assert_close(found[1], found[0])


def test_the_backwards_of_such_operations_are_made_once(monkeypatch):
    modules = [import_module(f"braze.aot.{name}") for name in ("calls.autograd", "stage.partition")]
    usual = modules[0].apart
    made = []

    def counted(backward):
        made.append(backward)
        return usual(backward)

    for module in modules:
        monkeypatch.setattr(module, "apart", counted)
    model = Layers()
    features, logits = braze.compile(features_and_logits)(model, torch.randn(2, 4))
    features.retain_grad()
    logits.sum().backward()
    assert features.grad is not None
    assert len(made) == 1
