"""A few models of the machine, and what it sees of them; `python -m tests.fuzz modules` runs more."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.fuzz.modules import grammar, machine, rare
from tests.fuzz.modules.machine import Trained

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
ONCE = "loss = c(data(3)).pow(2).mean(); loss.backward(); step(); see(loss)"
PROGRAM = Trained(
    "rows",
    (
        ("self.l0 = nn.Linear(8, 8)", "h = self.l0(h)"),
        ("self.l1 = Counted()", "h = self.l1(h)"),
        ("self.l2 = nn.BatchNorm1d(8)", "h = self.l2(h)"),
    ),
    ("model.register_forward_hook(seen_forward)",),
    "c = compiled(model)",
    "SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "step = compiled(opt.step)",
    (ONCE, ONCE),
    "aot_eager",
)


@pytest.mark.parametrize("seed", [2, 3, 5, 8])
def test_a_model_is_trained_compiled_as_in_eager(seed):
    assert machine.check(machine.generate(seed)) is None


@pytest.mark.parametrize("made", [machine.generate, rare.generate])
def test_programs_are_the_same_each_time(made):
    assert [made(seed) for seed in range(20)] == [made(seed) for seed in range(20)]


@pytest.mark.parametrize("seed", [1, 4])
def test_a_rarer_model_is_trained_compiled_as_in_eager(seed):
    assert rare.check(rare.generate(seed)) is None


def test_rows_of_rarer_models_are_of_both_tables():
    programs = [rare.generate(seed) for seed in range(60)]
    actions = [row for program in programs for row in program.actions]
    ours = [row for row in actions if row in rare.ACTIONS]
    usual = [row for row in actions if row in grammar.ACTIONS]
    assert min(len(ours), len(usual)) > 50
    assert not {*rare.ACTIONS} & {*grammar.ACTIONS} and not {*rare.ANY} & {*grammar.ANY}


def test_what_a_transform_leaves_behind_is_told_by_its_kind_alone():
    """Its numbers are nobody's to read (9250000309)."""
    left = []
    torch.vmap(lambda x: left.append(x) or x)(torch.ones(2))
    assert machine.frozen(left) == ("list", ["what a transform that has ended left behind"])


def spoils(effect):
    """A compiler that compiles nothing, but has an effect on what is called: on the model's results, or behind the optimizer's step."""

    def compiling(backend):
        def compiled(target, **options):
            def call(*args):
                made = target(*args)
                changed = effect(target, made)
                return made if changed is None else changed

            return call

        return compiled

    return compiling


def at_model(effect):
    return lambda target, made: effect(target, made) if isinstance(target, torch.nn.Module) else None


def _more_momentum(target, made):
    for state in getattr(getattr(target, "__self__", None), "state", {}).values():
        state["momentum_buffer"].mul_(1.001)


def _product_off(by):
    """NAdam's product of momenta, off after each step."""

    def effect(target, made):
        for state in getattr(getattr(target, "__self__", None), "state", {}).values():
            state["mu_product"].mul_(1 + by)

    return effect


def _other_mean(model, made):
    model.l2.running_mean = model.l2.running_mean + 0.001


def _refuses(model, made):
    raise RuntimeError("no")


#: what a compiler may do wrong -> where the machine sees it first
PLANTED = {
    "a value": (at_model(lambda model, made: made * 1.001), "value"),
    "a type": (at_model(lambda model, made: made.float()), "value"),
    "a draw": (at_model(lambda model, made: torch.rand(()) and None), "random state"),
    "a gradient": (
        at_model(lambda model, made: made.register_hook(lambda g: g * 1.001) and None),
        "parameter",
    ),
    "a buffer": (at_model(_other_mean), "buffer"),
    "a number of calls": (at_model(lambda model, made: setattr(model.l1, "calls", 9)), "attribute"),
    "an optimizer's state": (_more_momentum, "optimizer"),
    "an error": (at_model(_refuses), "value or error"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_difference_is_seen(name, monkeypatch):
    effect, where = PLANTED[name]
    monkeypatch.setattr(machine, "compiling", spoils(effect))
    found = machine.check(PROGRAM)
    assert found is not None
    assert sorted(found.kind.split(" or ")) == sorted(where.split(" or "))


def test_a_gradient_and_a_layout_are_seen_where_nothing_steps(monkeypatch):
    program = replace(PROGRAM, actions=("c(data(3)).sum().backward()", "see(c(data(3)))"))
    turned = at_model(lambda model, made: made.mT.contiguous().mT)
    for effect, where in ((PLANTED["a gradient"][0], "gradient"), (turned, "value")):
        monkeypatch.setattr(machine, "compiling", spoils(effect))
        found = machine.check(program)
        assert found is not None and found.kind == where


def test_what_does_nothing_wrong_is_not_told(monkeypatch):
    monkeypatch.setattr(machine, "compiling", spoils(lambda target, made: None))
    assert machine.check(PROGRAM) is None


def test_what_eager_reads_of_memory_that_nobody_has_written_is_not_compared(monkeypatch):
    """Factors that eager saves before it draws them, and a hook copies (9820001532)."""
    monkeypatch.setattr(machine, "compiling", spoils(PLANTED["an error"][0]))
    layers = (("self.l0 = nn.Linear(8, 8)", "h = self.l0(h)"), ("self.l1 = nn.RReLU()", "h = self.l1(h)"))
    copied = "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t): c(data(3)).sum().backward()"
    plain = "c(data(3)).sum().backward()"
    program = replace(PROGRAM, layers=layers)
    assert machine.check(replace(program, actions=(copied,))) is None
    assert machine.check(replace(program, actions=(plain,))) is not None
    assert machine.check(replace(PROGRAM, actions=(copied,))) is not None


def test_numbers_are_held_to_the_least_exact_type_so_far():
    """A double that was added up from floats has the roundings of floats (8600000458)."""
    program = replace(
        PROGRAM, actions=("model.float()", "with torch.autocast('cpu', dtype=torch.bfloat16): c(data(3))")
    )
    lines = [*program.script()]
    before = lines.index("model.float()")
    assert [program.least(k) for k in (0, before - 1, before, before + 1)] == [F64, F64, F32, BF16]
    assert replace(program, single=True).least(0) is F32
    ours, theirs = (torch.tensor([x], dtype=F64) for x in (1.0269931763690083, 1.0269930571597188))
    assert machine.far(ours, theirs, [], F32) is None and machine.far(ours, theirs, [], F64)


@pytest.mark.parametrize(("by", "kind"), [(2**-23, None), (1e-2, "optimizer")])
def test_a_product_of_momenta_in_single_precision_may_be_off_by_its_roundings(by, kind, monkeypatch):
    """Beside parameters in double precision (18200000056)."""
    monkeypatch.setattr(machine, "compiling", spoils(_product_off(by)))
    found = machine.check(
        replace(PROGRAM, optimizer="NAdam(model.parameters(), lr=0.01)", actions=(ONCE,) * 3)
    )
    assert (found and found.kind) == kind


def test_what_is_zero_but_for_roundings_is_not_compared():
    """Gradients in front of a norm (8600003428), and behind a saturated tanh (8600000092)."""
    for ours, theirs in ((-1.1e-30, 1.6e-47), (1.560004429928672e-09, 1.5600043764894997e-09)):
        assert machine.far(torch.tensor(ours, dtype=F64), torch.tensor(theirs, dtype=F64), []) is None
    assert machine.far(torch.tensor(1.1e-10, dtype=F64), torch.tensor(0.0, dtype=F64), [])
    assert machine.far(torch.tensor(1.1e-5), torch.tensor(0.0), [])


def test_beside_what_is_no_number_others_are_compared():
    theirs = torch.tensor([float("nan"), 1.0], dtype=F64)
    off = [theirs.clone() for _ in range(3)]
    assert machine.far(theirs.clone(), theirs, off) is None
    assert machine.far(torch.tensor([float("nan"), 1.1], dtype=F64), theirs, off)
    assert machine.far(torch.tensor([0.0, 1.0], dtype=F64), theirs, off)
