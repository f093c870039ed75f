"""Checkpoints that keep what a policy says: captured, and what the compiled forward saves is what it says."""

from __future__ import annotations

import collections
import contextlib
import functools

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import braze
from braze.support.errors import BrazeError
from tests.helpers import logged

aten = torch.ops.aten
MM, SIN, EXP = aten.mm.default, aten.sin.default, aten.exp.default
MUST_SAVE, PREFER_SAVE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE
MUST_RECOMPUTE, PREFER_RECOMPUTE = CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE


def body(x, w):
    for _ in range(3):
        x = torch.exp(torch.sin(x @ w))
    return x


def by(table, otherwise=PREFER_RECOMPUTE):
    """The policy that a table of operators makes."""

    def policy(context, op, *args, **kwargs):
        return table.get(op, otherwise)

    return policy


def contexts_of(policy):
    return functools.partial(create_selective_checkpoint_contexts, policy)


def function(context_fn, body=body):
    words = {} if context_fn is None else {"context_fn": context_fn}

    def f(x, w):
        return checkpoint(body, x, w, use_reentrant=False, **words).square().sum()

    return f


def inputs():
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(8, 8, dtype=torch.float64, generator=g) / 3 for _ in range(2))
    return x, w.requires_grad_()


def kept(f, backend="braze", **options):
    """How many values of its own the compiled forward keeps for the gradient, which is eager's."""
    braze.reset()
    x, w = inputs()
    loss = braze.compile(f, backend=backend, fullgraph=True, options=options or None)(x, w)
    own = {x.data_ptr(), w.data_ptr()}
    assert (type(loss.grad_fn).__name__ == "CompiledBackward") is (backend != "eager")
    saved = [t for t in getattr(loss.grad_fn, "saved_tensors", ()) if t.data_ptr() not in own]
    torch.testing.assert_close(torch.autograd.grad(loss, w), torch.autograd.grad(f(x, w), w))
    return len(saved)


def every_second(context_fn_calls):
    def make():
        context_fn_calls.append(1)
        seen = collections.defaultdict(int)

        def policy(context, op, *args, **kwargs):
            # before PyTorch 2.13 eager asks again when it computes again
            seen[op, context.is_recompute] += 1
            return MUST_SAVE if op is MM and seen[op, context.is_recompute] % 2 else PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return make


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("partition", ["min_cut", "default"])
def test_gradients_are_eagers(backend, partition):
    for context_fn in (
        None,
        contexts_of([MM]),
        contexts_of(by({MM: MUST_SAVE})),
        contexts_of(lambda context, op, *args, **kwargs: op is EXP),
        lambda: create_selective_checkpoint_contexts(by({EXP: PREFER_SAVE}), allow_cache_entry_mutation=True),
        every_second([]),
    ):
        kept(function(context_fn), backend, partition=partition)


def test_what_is_kept_is_what_the_policy_says():
    plain = kept(function(None))
    assert kept(function(contexts_of([]))) == plain
    assert kept(function(contexts_of([MM]))) == plain + 3
    assert kept(function(contexts_of(by({MM: MUST_SAVE})))) == plain + 3
    assert kept(function(contexts_of(by({MM: MUST_RECOMPUTE})))) == plain
    assert kept(function(contexts_of(by({MM: PREFER_SAVE})))) > plain
    assert kept(function(every_second([]))) == plain + 2


def test_what_must_be_saved_is_saved_though_it_costs_nothing_to_make_again():
    """The cut alone keeps the products only, from which sines are made again."""
    products = kept(function(contexts_of(by({MM: PREFER_SAVE, SIN: PREFER_SAVE}))))
    both = kept(function(contexts_of(by({MM: MUST_SAVE, SIN: MUST_SAVE}))))
    assert both > products


def test_what_must_be_saved_is_saved_under_any_budget():
    f = function(contexts_of(by({MM: MUST_SAVE})))
    with logged():
        assert kept(f, memory_budget=0.1) == kept(f)


def test_true_is_saved_and_false_is_computed_again():
    assert kept(function(contexts_of(lambda context, op, *args: op is MM))) == kept(
        function(contexts_of([MM]))
    )


def test_effects_of_a_context_function_are_those_of_eager():
    calls = []
    compiled = braze.compile(function(every_second(calls)), backend="aot_eager", fullgraph=True)
    for _ in range(3):
        compiled(*inputs())
    assert len(calls) == 3


def test_random_numbers_are_the_forwards():
    def drops(x, w):
        return torch.nn.functional.dropout(x @ w, 0.5).sin()

    for context_fn in (None, contexts_of([SIN]), contexts_of(by({}, MUST_RECOMPUTE))):
        for backend in ("aot_eager", "braze"):
            x, w = inputs()
            torch.manual_seed(3)
            compiled = braze.compile(function(context_fn, drops), backend=backend, fullgraph=True)
            loss = compiled(x, w)
            (have,) = torch.autograd.grad(loss, w)
            # the mask as the forward had it: what was dropped gives nothing
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(x, w), loss)
            step = 1e-6
            for i in ((0, 0), (3, 5)):
                torch.manual_seed(3)
                with torch.no_grad():
                    w[i] += step
                    more = compiled(x, w)
                    w[i] -= step
                torch.testing.assert_close((more - loss) / step, have[i], rtol=1e-3, atol=1e-4)


def test_writes_inside_a_region_belong_to_it():
    """What stands for ``relu_`` is computed again like the rest."""

    def writes(x, w):
        y = (x @ w).sin()
        y.mul_(2)
        return (y @ w).cos()

    assert kept(function(None, writes)) == kept(function(contexts_of([]), writes)) <= 1
    assert kept(function(contexts_of([MM]), writes)) > kept(function(None, writes))


def test_regions_in_regions_go_by_the_outer_policy():
    def outer(x, w):
        return checkpoint(body, x, w, use_reentrant=False, context_fn=contexts_of([MM])).sin()

    kept(function(contexts_of(by({EXP: MUST_SAVE})), outer), "aot_eager")
    kept(function(None, outer), "braze")


def keep_products(context, op, *args, **kwargs):
    return op is MM


def keep_nothing(context, op, *args, **kwargs):
    return False


CHOSEN = keep_products
LIST = [MM]


@contextlib.contextmanager
def chosen(policy):
    global CHOSEN
    before, CHOSEN = CHOSEN, policy
    try:
        yield
    finally:
        CHOSEN = before


def graphs(f, changes):
    """How many graphs three calls compile, between which something changes."""
    made = []

    def backend(gm, example_inputs):
        made.append(gm)
        return gm.forward

    compiled = braze.compile(f, backend=backend, fullgraph=True)
    x, w = inputs()
    compiled(x, w)
    compiled(x, w)
    with changes:
        compiled(x, w)
    return len(made)


def test_another_policy_is_another_graph():
    f = function(lambda: create_selective_checkpoint_contexts(CHOSEN))
    assert graphs(f, chosen(keep_nothing)) == 2
    assert graphs(f, chosen(keep_products)) == 1


def test_another_list_is_another_graph():
    @contextlib.contextmanager
    def longer():
        LIST.append(SIN)
        yield
        LIST.pop()

    assert graphs(function(lambda: create_selective_checkpoint_contexts(LIST)), longer()) == 2


def test_without_gradients_it_is_a_call():
    made = []

    def backend(gm, example_inputs):
        made.append([n.target for n in gm.graph.nodes if n.op == "call_function"])
        return gm.forward

    f = function(contexts_of([MM]))
    x, w = inputs()
    with torch.no_grad():
        torch.testing.assert_close(braze.compile(f, backend=backend, fullgraph=True)(x, w), f(x, w))
    assert len(made) == 1
    assert not any("checkpoint" in str(target) for target in made[0])


# -- what is left to eager ---------------------------------------------------------------------------


def test_contexts_of_another_kind_are_left_to_eager():
    entered = []

    @contextlib.contextmanager
    def noted(name):
        entered.append(name)
        yield

    f = function(lambda: (noted("forward"), noted("again")))
    with pytest.raises(BrazeError, match="BZ1019"):
        braze.compile(f, fullgraph=True)(*inputs())
    x, w = inputs()
    entered.clear()
    loss = braze.compile(f)(x, w)
    torch.testing.assert_close(torch.autograd.grad(loss, w), torch.autograd.grad(function(None)(x, w), w))
    assert entered == ["forward", "again"]


@pytest.mark.parametrize("given", [[aten.mm], ["mm"], 3])
def test_what_is_no_policy_is_eagers_error(given):
    f = function(contexts_of(given))
    with pytest.raises((ValueError, TypeError)) as theirs:
        f(*inputs())
    with pytest.raises(type(theirs.value)) as ours:
        braze.compile(f)(*inputs())
    assert str(ours.value) == str(theirs.value)


def test_an_exception_of_a_policy_is_eagers():
    def fails(context, op, *args, **kwargs):
        raise KeyError("mine")

    with logged(), pytest.raises(KeyError, match="mine"):
        braze.compile(function(contexts_of(fails)))(*inputs())
