"""Products on a GPU whose sizes 16 bytes do not divide are padded, where that pays; executed here on the CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from braze import pipeline
from braze.aot import partition
from braze.aot.passes import layouts, padding
from braze.decomp import table
from braze.loops.ir import ExternCall
from braze.options import Options
from braze.runtime.operators import cut_product
from braze.schedule.facts.records import GroupKind
from braze.target import cuda_target
from tests.aot.cuda_fakes import CTX, partition_on_gpu
from tests.aot.recording import record

aten = torch.ops.aten
BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def no_costs(monkeypatch):
    """Small products as if they were large ones."""
    monkeypatch.setattr(padding, "LAUNCH", 0)
    monkeypatch.setattr(padding, "PER_BYTE", 1e-3)


def products(graph):
    return [n for n in graph.nodes if n.target in padding._PRODUCTS]


def sizes(node):
    return [tuple(a.meta["val"].shape) for a in node.args if isinstance(a, torch.fx.Node)]


def executed(part, inputs):
    return part.forward(*inputs)


def logits(x, w, b):
    return F.linear(x, w, b).relu(), F.linear(x, w)


def test_a_vocabulary_that_8_does_not_divide_is_padded_once():
    shapes = [(4, 6, 16), (21, 16), (21,)]
    part = partition_on_gpu(logits, [torch.randn(s, dtype=BF16) for s in shapes], (1, 2))
    first, second = products(part.forward.graph)
    assert sizes(first) == [(4, 6, 16), (24, 16), (24,)] and sizes(second) == [(4, 6, 16), (24, 16)]
    assert first.args[1] is second.args[1]
    items = part.forward.graph.output_node().args[0]
    assert [n.meta["val"].stride() for n in items] == [(6 * 21, 21, 1)] * 2
    plan = pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)
    assert sum(isinstance(g.call, ExternCall) for g in plan.groups) == 2
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    for ours, want in zip(executed(part, inputs), logits(*inputs), strict=True):
        torch.testing.assert_close(ours, want)


CASES = {
    "mm": (lambda a, b: torch.mm(a, b).relu(), [(9, 11), (11, 13)]),
    "mm turned": (lambda a, b: torch.mm(a.t(), b.t()), [(11, 9), (13, 11)]),
    "bmm": (lambda a, b: torch.bmm(a, b) + 1, [(3, 9, 11), (3, 11, 13)]),
    "bmm turned": (lambda a, b: torch.bmm(a.transpose(1, 2), b).sum(1), [(3, 11, 9), (3, 11, 13)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b).view(-1), [(13,), (9, 11), (11, 13)]),
    "addmm row": (torch.addmm, [(1, 13), (9, 11), (11, 13)]),
    "addmm column": (torch.addmm, [(9, 1), (9, 11), (11, 13)]),
    "addmm whole": (lambda c, a, b: torch.addmm(c, a.t(), b), [(9, 13), (11, 9), (11, 13)]),
    "addmm scalar": (torch.addmm, [(), (9, 11), (11, 13)]),
    "a chain": (lambda a, b, c: torch.mm(torch.mm(a, b), c), [(9, 11), (11, 13), (13, 5)]),
    "by place": (lambda a, b: torch.mm(a, b).as_strided((4, 3), (7, 2), 1), [(9, 11), (11, 13)]),
    "one column": (torch.mm, [(9, 16), (16, 1)]),
    "one element": (torch.mm, [(1, 1), (1, 1)]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_padded_products_are_the_products(case, dtype):
    f, shapes = CASES[case]
    part = partition_on_gpu(f, [torch.randn(s, dtype=dtype) for s in shapes], (1,))
    for node in products(part.forward.graph):
        a, b = sizes(node)[-2:]
        assert b[-1] % 8 == 0 or b[-1] == 1
        assert a[-1] % 8 == 0 or a[-1] == 1 or node.args[-2].meta["val"].stride(-1) != 1
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    want = f(*inputs)
    (ours,) = executed(part, inputs)
    torch.testing.assert_close(ours, want)
    (result,) = part.forward.graph.output_node().args[0]
    assert result.meta["val"].stride() == want.stride()
    pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)


@pytest.mark.parametrize(
    "shapes", [[(9, 0), (0, 13)], [(0, 11), (11, 13)], [(9, 11), (11, 0)], [(8, 16), (16, 24)]]
)
def test_nothing_is_padded_where_there_is_nothing_to_pad(shapes):
    part = partition_on_gpu(torch.mm, [torch.randn(s, dtype=BF16) for s in shapes])
    (node,) = products(part.forward.graph)
    assert sizes(node) == shapes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_tensor_cores_do_not_multiply_stays(dtype):
    assert torch.get_float32_matmul_precision() == "highest"
    part = partition_on_gpu(torch.mm, [torch.randn(9, 11, dtype=dtype), torch.randn(11, 13, dtype=dtype)])
    assert sizes(products(part.forward.graph)[0]) == [(9, 11), (11, 13)]


def test_float32_is_padded_where_tf32_may_multiply_it():
    torch.set_float32_matmul_precision("high")
    try:
        part = partition_on_gpu(torch.mm, [torch.randn(9, 11), torch.randn(11, 13)])
    finally:
        torch.set_float32_matmul_precision("highest")
    assert sizes(products(part.forward.graph)[0]) == [(9, 12), (12, 16)]


def test_few_rows_are_not_padded_since_memory_is_what_they_wait_for(monkeypatch):
    monkeypatch.undo()
    few = partition_on_gpu(
        F.linear, [torch.empty(4, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16)], (1,)
    )
    assert sizes(products(few.forward.graph)[0])[1] == (50257, 768)
    given = [torch.empty(4096, 768, dtype=BF16), torch.empty(768, 50257, dtype=BF16)]
    many = partition_on_gpu(torch.mm, given, (1,))
    (cut,) = (n for n in many.forward.graph.nodes if n.target is cut_product.OPERATOR)
    assert sizes(cut)[1] == (768, 50264) and cut.args[-1] == 50257


@pytest.mark.parametrize("bias", [False, True])
def test_large_results_whose_rows_are_no_whole_vectors_are_the_templates(monkeypatch, bias):
    """Where the matrices' rows are, nothing is padded or copied; elsewhere, by rows of columns, or of another architecture, the result is cut."""
    monkeypatch.undo()
    given = [torch.empty(4096, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16)]
    given += [torch.empty(50257, dtype=BF16)] * bias
    part = partition_on_gpu(F.linear, given, (1, 2)[: 1 + bias])
    (product,) = products(part.forward.graph)
    assert sizes(product)[1] == (50257, 768)
    plan = pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)
    assert [g.kind for g in plan.groups] == [GroupKind.TEMPLATE]
    other = dataclasses.replace(CTX, target=cuda_target((8, 0), 108))
    never = dataclasses.replace(CTX, options=Options(matmul_template=False))
    for ctx in (other, never):
        targets = [n.target for n in partition_on_gpu(F.linear, given, (1,), ctx).forward.graph.nodes]
        assert cut_product.OPERATOR in targets
    narrow = [torch.empty(4096, 770, dtype=BF16), torch.empty(50257, 770, dtype=BF16)]
    targets = [n.target for n in partition_on_gpu(F.linear, narrow, (1,)).forward.graph.nodes]
    assert cut_product.OPERATOR in targets


@pytest.mark.parametrize("weights", [(), (1,)])
def test_large_results_of_weights_that_are_cast_are_the_templates(monkeypatch, weights):
    """As autocast casts them: nothing is padded, so that ATen would write rows that are no whole vectors."""
    monkeypatch.undo()
    given = [torch.empty(4096, 768, dtype=BF16), torch.empty(50257, 768)]
    part = partition_on_gpu(lambda x, w: F.linear(x, w.to(BF16)), given, weights)
    assert sizes(products(part.forward.graph)[0])[1] == (50257, 768)
    plan = pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)
    assert not any(isinstance(g.call, ExternCall) for g in plan.groups)
    assert [g.kind for g in plan.groups].count(GroupKind.TEMPLATE) == 1


def test_copies_that_cost_more_than_they_save_are_not_made(monkeypatch):
    """Operands that change with each call, of a product that is soon done."""
    monkeypatch.undo()
    part = partition_on_gpu(torch.mm, [torch.empty(64, 511, dtype=BF16), torch.empty(511, 64, dtype=BF16)])
    assert sizes(products(part.forward.graph)[0]) == [(64, 511), (511, 64)]


def test_an_operand_that_keeps_its_sizes_is_not_copied_and_costs_nothing(monkeypatch):
    """A large matrix by few columns, which alone grow."""
    monkeypatch.undo()
    given = [torch.empty(16384, 4096, dtype=BF16), torch.empty(4096, 65, dtype=BF16)]
    part = partition_on_gpu(torch.mm, given)
    assert sizes(products(part.forward.graph)[0]) == [(16384, 4096), (4096, 72)]


def test_gradients_of_logits_are_written_padded(monkeypatch):
    """One padded gradient serves both products of a backward; on the CPU's fakes, since autograd takes no others here."""
    monkeypatch.setattr(layouts, "is_on_gpu", lambda val: True)
    monkeypatch.setattr(padding, "is_on_gpu", lambda val: True)

    def loss(x, w, y):
        return F.cross_entropy(x @ w.t(), y)

    torch.manual_seed(0)
    inputs = [torch.randn(6, 16, dtype=BF16), torch.randn(21, 16, dtype=BF16), torch.randint(0, 21, (6,))]
    gm, fakes, _ = record(
        loss, [inputs[0].requires_grad_(), inputs[1].requires_grad_(), inputs[2]], grad=True
    )
    part = partition(gm, fakes, CTX, table(), free_layouts=True)
    (forward,) = products(part.forward.graph)
    assert sizes(forward) == [(6, 16), (16, 24)]
    found = products(part.backward.graph.graph)
    assert sorted(sizes(n)[0] for n in found) == [(6, 24), (24, 6)]
    pads = part.backward.graph.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default)
    assert sorted(tuple(n.meta["val"].shape) for n in pads) == [(6, 24), (24, 16)]


CUTS = {
    "linear": (F.linear, [(4, 6, 16), (21, 16), (21,)]),
    "no bias": (F.linear, [(4, 6, 16), (21, 16)]),
    "one row": (F.linear, [(1, 16), (21, 16), (21,)]),
    "five rows": (F.linear, [(5, 16), (21, 16), (21,)]),
    "mm": (torch.mm, [(9, 11), (11, 13)]),
    "addmm": (torch.addmm, [(13,), (9, 11), (11, 13)]),
    "a turned one": (lambda a, b: torch.mm(a, b.t()), [(9, 11), (13, 11)]),
}


@pytest.mark.parametrize("case", CUTS)
def test_a_large_product_that_is_copied_is_cut_some_rows_at_a_time(case, monkeypatch):
    monkeypatch.setattr(padding, "LARGE_RESULT", 0)
    f, shapes = CUTS[case]
    part = partition_on_gpu(f, [torch.randn(s, dtype=BF16) for s in shapes], (1,))
    targets = [n.target for n in part.forward.graph.nodes]
    assert cut_product.OPERATOR in targets and not products(part.forward.graph)
    assert aten.clone.default not in targets
    inputs = [torch.randn(s, dtype=torch.float64) for s in shapes]
    want = f(*inputs)
    (ours,) = executed(part, inputs)
    torch.testing.assert_close(ours, want)
    assert ours.stride() == want.stride()
    plan = pipeline.schedule_program(pipeline.lower_graph(part, CTX), CTX)
    called = [g.call.target for g in plan.groups if isinstance(g.call, ExternCall)]
    assert called == ["braze.cut_product.default"]


def test_a_large_product_whose_readers_read_past_the_padding_stays_whole(monkeypatch):
    monkeypatch.setattr(padding, "LARGE_RESULT", 0)
    shapes = [(4, 6, 16), (21, 16), (21,)]

    def both(x, w, b):
        y = F.linear(x, w, b)
        return y, y.exp().sum()

    for f in (lambda x, w, b: F.linear(x, w, b).exp().sum(), both):
        part = partition_on_gpu(f, [torch.randn(s, dtype=BF16) for s in shapes], (1, 2))
        assert len(products(part.forward.graph)) == 1
    f, shapes = CASES["bmm turned"]
    part = partition_on_gpu(
        lambda a, b: torch.bmm(a.transpose(1, 2), b), [torch.randn(s, dtype=BF16) for s in shapes]
    )
    assert len(products(part.forward.graph)) == 1
    f, shapes = CASES["addmm whole"]
    part = partition_on_gpu(f, [torch.randn(s, dtype=BF16) for s in shapes])
    assert len(products(part.forward.graph)) == 1


@pytest.mark.parametrize("rows", [(0,), (1,), (3,), (4,), (1, 0), (2, 7), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cut_product_is_the_product_of_any_rows(rows, bias):
    x, w = torch.randn(*rows, 16), torch.randn(24, 16)
    b = torch.randn(24) if bias else None
    want = F.linear(x, w[:21], None if b is None else b[:21])
    for given in (x, x.expand(x.shape), x.flip(-1).flip(-1)):
        ours = torch.ops.braze.cut_product(given, w, b, True, 21)
        torch.testing.assert_close(ours, want)
        assert ours.is_contiguous() and ours.shape == want.shape
    torch.testing.assert_close(torch.ops.braze.cut_product(x, w.t().contiguous(), b, False, 21), want)
    x[..., 0] = float("nan")
    assert torch.ops.braze.cut_product(x, w, b, True, 21).isnan().all()
