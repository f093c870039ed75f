"""Which kernels begin before those ahead of them have ended, and that they wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")

from braze.codegen.triton import generate
from braze.codegen.triton.waits import early_of, is_step, require_turns, require_wait_first
from braze.context import CompileContext
from braze.loops.ir import Axis, TemplateCall
from braze.options import Options
from braze.schedule.facts.records import Group, GroupKind
from braze.support.errors import InternalError
from braze.symbolic.expr import Symbol, as_expr, axis_symbol
from braze.target import Target, cuda_target
from tests.codegen.triton_bench import planned, run, weighing

HOPPER = cuda_target((9, 0), 132)
SYMBOLIC = Axis(axis_symbol("i", 4), as_expr(Symbol("s0", 0, None)))


def step(x, norm, w, cos, out):
    """A norm in a product's prologue, a kernel of points, one of rows, a product."""
    q, k = F.linear(F.rms_norm(x, (64,), norm), w).chunk(2, -1)
    rows = torch.cat((q * cos, k), 0)
    return F.linear(torch.softmax(rows, -1).sum(0, keepdim=True), out) + x


def tensors():
    torch.manual_seed(0)
    return [torch.randn(s) for s in ((1, 64), (64,), (128, 64), (64,), (64, 64))]


def plan_of(weights=(1, 2, 4)):
    return weighing(planned(step, *tensors(), matmul_template=True), weights)


def texts_of(plan, told, target=HOPPER, **options):
    return generate(plan, CompileContext(Options(early_launches=told, **options), target))


def early(text):
    return dict(text.launch.constants).get("EARLY", 0)


@pytest.mark.parametrize("recorded", [False, True])
def test_all_but_the_first_begin_early(recorded):
    texts = texts_of(plan_of(), "all", cudagraphs=recorded)
    assert len(texts) > 3
    assert [early(t) for t in texts] == [0] + [1] * (len(texts) - 1)
    assert [t.source.count("gdc_wait()") for t in texts] == [early(t) for t in texts]
    assert [t.source.count("gdc_launch_dependents()") for t in texts] == [0] + [1] * (len(texts) - 2) + [0]


@pytest.mark.parametrize(
    "target", [cuda_target((8, 0), 108), cuda_target((10, 0), 148), Target("cuda", "gfx942")]
)
def test_none_does_where_it_cannot_wait(target):
    for told in ("following", "products", "all"):
        assert all("gdc" not in t.source and not early(t) for t in texts_of(plan_of(), told, target))


def test_none_does_where_nobody_asks():
    for told in ("none", "following"):
        assert not any(map(early, texts_of(plan_of(), told, cudagraphs=True)))


def test_products_alone_but_for_the_first_kernel():
    first, *others = texts_of(plan_of(), "products")
    assert not early(first) and [early(t) for t in others] == ["_tem_" in t.name for t in others]
    assert any(map(early, others))


def with_a_call_at(plan, place):
    """The plan with a call of a library before its group at a place."""
    groups = plan.groups
    call = Group("call", GroupKind.EXTERN, (), device=groups[0].device)
    return replace(plan, groups=(*groups[:place], call, *groups[place:]))


@pytest.mark.parametrize("told", ["following", "products", "all"])
def test_calls_stand_in_turn_with_what_is_around_them(told):
    """What a library launches may begin early, too, and nobody can read when it waits."""
    plan = plan_of()
    for place in range(1, len(plan.groups)):
        texts = texts_of(with_a_call_at(plan, place), told)
        assert not early(texts[place]) and "gdc" not in texts[place].source
        assert "gdc_launch_dependents()" not in texts[place - 1].source


def test_a_kernel_that_begins_early_beside_a_call_is_refused():
    plan = plan_of()
    texts = texts_of(plan, "all")
    require_turns(plan, texts)
    for place in range(1, len(texts)):
        with pytest.raises(InternalError, match="begins early behind"):
            require_turns(with_a_call_at(plan, place), texts[place:])
    for place in range(2, len(texts)):
        with pytest.raises(InternalError, match="lets begin early"):
            require_turns(with_a_call_at(plan, place), texts[:place])


def test_a_graph_between_waiting_kernels_begins_early_and_lets_what_is_behind_it():
    """As a piece between two attention operators: the first product too, and the last lets the attention behind it begin."""
    plan = weighing(
        planned(lambda x, a, b: F.linear(F.linear(x, a), b), *products(), matmul_template=True), (1, 2)
    )
    alone, between = (texts_of(plan, told) for told in ("products", "between"))
    assert [early(t) for t in alone] == [0, 1] and [early(t) for t in between] == [1, 1]
    assert ["gdc_launch_dependents()" in t.source for t in between] == [True, True]
    assert not any("gdc_launch_dependents()" in t.source for t in alone)
    require_turns(plan, between, between=True)
    with pytest.raises(InternalError, match="begins early behind"):
        require_turns(plan, between)
    called = with_a_call_at(plan, 1)
    assert early_of(called, CompileContext(Options(early_launches="between"), HOPPER)).turns == {
        plan.groups[1].name
    }


def test_a_graph_between_others_waits_for_what_computes_its_constants():
    """In a recording these kernels are right ahead of the graph's first, which would read what they write before it waits."""
    plan = weighing(
        planned(lambda x, a, b: F.linear(F.linear(x, a), b), *products(), matmul_template=True), (1, 2)
    )
    computed = replace(plan, fixed=planned(lambda w: w * 2, torch.empty(128, 64)))
    texts = texts_of(computed, "between")
    assert [early(t) for t in texts] == [0, 1]
    assert "gdc_launch_dependents()" in texts[-1].source, "what is behind it begins as before"
    with pytest.raises(InternalError, match="begins early behind"):
        require_turns(computed, texts_of(plan, "between"), between=True)


def products():
    return [torch.empty(s) for s in ((1, 64), (128, 64), (64, 128))]


def test_a_product_of_several_steps_asks_for_its_weights_before_it_waits():
    plan = weighing(
        planned(
            lambda x, w: F.linear(x, w), torch.empty(1, 16384), torch.empty(64, 16384), matmul_template=True
        ),
        (1,),
    )
    (text,) = texts_of(plan, "between")
    before, after = text.source.split("gdc_wait()\n")
    assert "bz_fetch(in_ptr" in before and "tl.load(" not in before.split(f"def {text.name}")[1]
    assert "tl.load(" in after and early(text)
    ahead = frozenset([plan.program.inputs[1]])
    require_wait_first(text, ahead)
    for broken, told in ((text.source, frozenset()), (text.source.replace("bz_fetch(", "tl.store("), ahead)):
        with pytest.raises(InternalError, match="touches memory before it waits"):
            require_wait_first(replace(text, source=broken), told)


def test_what_no_sum_gives_is_loaded_before_the_sums(tmp_path):
    """A norm's weight with the product's before the wait, what is added to the product right behind it."""

    def layer(x, norm, w, y):
        return F.linear(F.rms_norm(x, (64,), norm), w) + y

    torch.manual_seed(0)
    inputs = [torch.randn(s) for s in ((1, 64), (64,), (128, 64), (1, 128))]
    plan = weighing(planned(layer, *inputs, matmul_template=True), (1, 2))
    (text,) = texts_of(plan, "between")
    pointers = {name: f"in_ptr{text.args.index(name)}" for name in plan.program.inputs}
    before, after = text.source.split("gdc_wait()\n")
    x, norm, w, y = pointers.values()
    loads, sums = after.split("tl.sum(", 1)
    assert [f"tl.load({p} + " in before for p in (x, norm, w, y)] == [False, True, True, False]
    assert [f"tl.load({p} + " in loads for p in (x, norm, w, y)] == [True, False, False, True]
    assert "tl.load(" not in sums
    (found,) = run(plan, tmp_path, *inputs, texts=[text])
    torch.testing.assert_close(found, layer(*inputs), rtol=1e-5, atol=1e-5)


def test_what_is_loaded_in_some_places_alone_is_not_loaded_sooner():
    """A load that a condition guards may lie outside of its tensor elsewhere."""
    plan = planned(
        lambda x, w, y: F.linear(x, w) + F.pad(y, (28, 0)),
        *(torch.empty(s) for s in ((1, 64), (128, 64), (1, 100))), matmul_template=True,
    )  # fmt: skip
    (text,) = texts_of(weighing(plan, (1,)), "between")
    pointer = f"in_ptr{text.args.index(plan.program.inputs[2])}"
    (line,) = (line for line in text.source.splitlines() if f"{pointer} + " in line)
    assert early(text) and "other=0" in line


def test_a_product_whose_weights_are_no_constants_begins_in_its_turn():
    found = [t for t in texts_of(plan_of(weights=()), "all") if "_tem_" in t.name]
    assert found and not any(map(early, found))


@pytest.mark.parametrize("without", [{0}, {1}, {0, 1}], ids=["rows", "columns", "both"])
def test_what_may_have_no_program_is_not_the_first(without):
    """A size that may be 0 leaves the next kernel in its turn, too, whatever the others are."""
    plan = plan_of()
    first, *others = plan.groups
    ctx = CompileContext(Options(early_launches="all"), HOPPER)
    assert early_of(plan, ctx).turns == {first.name}
    axes = (replace(a, extent=a.extent * (k not in without)) for k, a in enumerate(first.call.axes))
    none = replace(first.call, axes=tuple(axes))
    empty = replace(plan, groups=(replace(first, call=none), *others))
    assert early_of(empty, ctx).turns == {first.name, others[0].name}


def test_the_interpreter_gets_the_same_numbers(tmp_path):
    plan, inputs = plan_of(), tensors()
    (found,) = run(plan, tmp_path, *inputs, texts=texts_of(plan, "all"))
    torch.testing.assert_close(found, step(*inputs), rtol=1e-5, atol=1e-5)


def test_a_kernel_that_does_not_wait_is_refused():
    plan = plan_of()
    for text in texts_of(plan, "all")[1:]:
        ahead = frozenset(plan.program.inputs[i] for i in (1, 2, 4))
        require_wait_first(text, ahead)
        wait = "    if EARLY:\n        gdc_wait()"
        load = f"    early = tl.load(out_ptr{len(text.args) - 1} + 0)\n"
        store = load.replace("early = tl.load", "tl.store").replace(" + 0)", " + 0, 1)")
        for broken in (
            text.source.replace(wait, ""),
            text.source.replace(wait, load + wait),
            text.source.replace(wait, store + wait),
            text.source.replace(wait, "    for i in range(n):\n" + wait),
            text.source + "    gdc_wait()\n",
        ):
            assert broken != text.source
            with pytest.raises(InternalError, match="BZ9073"):
                require_wait_first(replace(text, source=broken), ahead)
    constants = tuple(c for c in text.launch.constants if c[0] != "EARLY")
    plain = replace(text, launch=replace(text.launch, constants=constants))
    with pytest.raises(InternalError, match="BZ9073"):
        require_wait_first(plain, ahead)


@pytest.mark.parametrize(
    ("fn", "shapes", "every"),
    [
        (lambda x, w: F.linear(x.exp(), w).relu(), ((1, 64), (128, 64)), True),
        (lambda x, w: F.linear(x.exp(), w).relu(), ((16, 64), (128, 64)), True),
        (lambda x, w: F.linear(x.exp(), w).relu(), ((17, 64), (128, 64)), False),
        (lambda x, w: F.linear(F.linear(x, w).relu().narrow(0, 0, 1), w), ((64, 64), (64, 64)), False),
        (lambda x, w: F.linear(F.conv2d(x, w).flatten(1), w.flatten(1)).relu(), ((2, 8, 1, 1), (8, 8, 1, 1)), False),
        (lambda x, w: (x.exp() * w).sum(0), ((8, 64), (8, 64)), False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("template", [True, False])
def test_all_kernels_of_a_step_begin_early_by_default(fn, shapes, every, template):
    plan = planned(fn, *[torch.randn(s) for s in shapes], matmul_template=template)
    assert early_of(plan, CompileContext(Options(), HOPPER)).others == every


def test_a_product_of_symbolic_rows_is_no_step():
    plan = planned(step, *tensors(), matmul_template=True)
    groups = tuple(
        replace(g, call=replace(g.call, axes=(SYMBOLIC, *g.call.axes[1:]))) if isinstance(g.call, TemplateCall) else g
        for g in plan.groups
    )  # fmt: skip
    assert is_step(plan) and not is_step(replace(plan, groups=groups))
