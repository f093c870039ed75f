"""The proof that removing writes changed nothing: it holds of what is right, and fails on every graph broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from braze.aot.functional.functionalize import Functional, functionalize
from braze.aot.functional.proof import check, observe
from braze.aot.functional.proof_terms import Names
from braze.aot.joint.outputs import Outputs
from braze.aot.trace.trace import trace
from braze.graph.fakes.fakes import on_fakes
from braze.support.errors import InternalError, Unsupported
from braze.support.trace import COUNTERS
from tests.aot.recording import compile_aot, record

aten = torch.ops.aten
Node = torch.fx.Node


class Removed:
    """A function's graph before (as a program) and after its writes were removed."""

    def __init__(self, function: Callable[..., Any], *inputs: torch.Tensor) -> None:
        gm, made, self.mode = record(function, inputs)
        traced = trace(gm, made, {})
        self.graph = traced.module.graph
        wanted = Outputs(self.graph, traced.outputs, traced.ways).wanted()
        with on_fakes(self.mode):
            self.program = observe(self.graph, wanted)
            self.functional = functionalize(traced.module, self.mode, wanted, unite=True)

    def nodes(self, target: Any) -> list[Node]:
        return [n for n in self.graph.nodes if n.target is target]

    def check(self) -> None:
        assert self.program is not None
        with on_fakes(self.mode):
            check(self.program, self.graph, self.functional)

    def replace(self, old: Node, new: Node) -> None:
        """Let all readers of a node, results and contents too, take another."""
        old.replace_all_uses_with(new)
        latest = {k: new if v is old else v for k, v in self.functional.latest.items()}
        mutated = [(n, new if v is old else v, c) for n, v, c in self.functional.mutated]
        self.functional = Functional(mutated, latest, self.functional.shared)


X, Y = torch.zeros(4, 4), torch.zeros(4, 4)


def rows_written(x, y):
    x[1].add_(y[0])
    x[2].mul_(y[1])
    return x.sum(), x[0] * 1


def read_between(x, y):
    before = x.clone()
    x.add_(y)
    between = x * 2
    x.mul_(y)
    return before, between


def copied_then_written(x, y):
    c = y.clone()
    y.mul_(2)
    return c, y + c


def noise(x, y):
    x.uniform_()
    y.normal_()
    return x + y


def scattered_then_written(x, y):
    """A scatter has memory of its own: what is written to it is not what was scattered into."""
    z = x.slice_scatter(y[:1], 0, 0, 1)
    z.mul_(2)
    z.add_(y)
    return z, x * 1


def nothing_written(x, y):
    """A write to no element leaves what was there."""
    rows = y[4:]
    rows.view(rows.shape).mul_(rows)
    return x + y


def one_number_twice(x, y):
    """What holds one number in each place is the same whichever shape it was written in."""
    x.view(-1).fill_(2)
    total = x.sum()
    x.fill_(2)
    return total, y + 1


def a_window_of_rows_that_are_repeated(x, y):
    """A window may look at what lies in one place several times."""
    repeated = y[0].expand(3, 4)
    seen = repeated.as_strided((3, 4), (0, 1)) * 1
    y[0].add_(x[0])
    return seen, x + y


def a_window_beside_its_view(x, y):
    """A window of a view sees what lies beside the view, in the memory of what that is a view of."""
    made = (x + y).t() * 1
    seen = made[:-1].as_strided((2, 3), (1, 1)) * 1
    made[:-1].mul_(2)
    return seen, made, y * 1


def a_window_of_nothing(x, y):
    """What is a view of no element still lies in memory."""
    seen = x[1][4:].as_strided((3, 2), (1, 1)) * 1
    x[1].mul_(y[0])
    return seen, y * 1


def rows_read_in_order_and_written(x, y):
    """What an operator cannot read as it lies is copied first: that is the same value."""
    made = F.embedding_bag(torch.zeros(1, 2, dtype=torch.int64), x[:, 1:])
    made.t()[0].relu_()
    return made, y * 1


PROGRAMS = [
    rows_read_in_order_and_written, a_window_of_rows_that_are_repeated, a_window_beside_its_view, a_window_of_nothing, rows_written, read_between, copied_then_written, noise, scattered_then_written, nothing_written, one_number_twice
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_what_functionalize_makes_is_proved(program):
    Removed(program, X, Y).check()


def test_writes_to_an_input_without_elements_are_proved():
    def halves(x, y):
        x.view(x.shape)[2:].mul_(2)
        return y * 1

    Removed(halves, torch.zeros(0, 3), Y).check()


def test_writes_to_a_part_of_nothing_are_proved():
    """Split into parts of no elements, nothing is one part."""

    def parts(x, y):
        part = x.split(0)[0]
        x.add_(1)
        part.add_(1)
        return part, y * 1

    Removed(parts, torch.zeros(0, 3), Y).check()


def test_a_lost_write_is_found():
    made = Removed(rows_written, X, Y)
    scatter = made.nodes(aten.select_scatter.default)[-1]
    made.replace(scatter, scatter.args[0])
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_a_write_in_the_wrong_place_is_found():
    made = Removed(rows_written, X, Y)
    scatter = made.nodes(aten.select_scatter.default)[0]
    scatter.args = (*scatter.args[:3], 3)
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_two_writes_swapped_are_found():
    """(x + y) * y as (x * y) + y: the same operators on the same input, in another order."""
    made = Removed(read_between, X, Y)
    (add,), (last,) = made.nodes(aten.add.Tensor), made.nodes(aten.mul.Tensor)[1:]
    assert last.args[0] is add
    add.target, last.target = last.target, add.target
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_a_reader_that_sees_a_later_write_is_found():
    made = Removed(read_between, X, Y)
    (add,), (between, last) = made.nodes(aten.add.Tensor), made.nodes(aten.mul.Tensor)
    assert between.args[0] is add
    last.append(between)
    between.args = (last, 2)
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_a_dropped_clone_whose_source_is_written_later_is_found():
    """The published failure: the copy becomes its source, as written."""
    made = Removed(copied_then_written, X, Y)
    (clone,), (product,) = made.nodes(aten.clone.default), made.nodes(aten.mul.Tensor)
    made.replace(clone, product)
    with pytest.raises(InternalError, match="clone"):
        made.check()


def test_a_dropped_clone_whose_source_stays_is_no_matter():
    made = Removed(copied_then_written, X, Y)
    (clone,) = made.nodes(aten.clone.default)
    made.replace(clone, clone.args[0])
    made.check()


def test_contents_that_do_not_reach_their_input_are_found():
    made = Removed(copied_then_written, X, Y)
    made.functional = Functional([], made.functional.latest)
    with pytest.raises(InternalError, match="last contents of the input x1"):
        made.check()


def test_contents_that_reach_the_wrong_input_are_found():
    made = Removed(noise, X, Y)
    (x, a, c), (y, b, d) = made.functional.mutated
    made.functional = Functional([(x, b, c), (y, a, d)], made.functional.latest)
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_draws_in_another_order_are_found():
    """The numbers would be each other's."""
    made = Removed(noise, X, Y)
    (uniform,), (normal,) = made.nodes(aten.uniform.default), made.nodes(aten.normal_functional.default)
    uniform.prepend(normal)
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_what_inputs_that_overlap_hold_is_proved():
    b = torch.zeros(8)

    def f(x, y):
        x.add_(y.sum())
        y.mul_(x.sum())
        return x * 1, y * 1

    made = Removed(f, b[:4], b[2:7])
    assert made.functional.shared
    made.check()
    scatter = made.nodes(aten.slice_scatter.default)[-1]
    made.replace(scatter, scatter.args[0])
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def over_one_memory() -> Removed:
    memory = torch.zeros(8)

    def f(x, y):
        x.add_(1)
        return y * 2

    return Removed(f, memory[:4], memory[2:7])


def test_shared_memory_that_is_not_written_back_is_found():
    made = over_one_memory()
    made.functional = Functional([], made.functional.latest, made.functional.shared)
    with pytest.raises(InternalError, match="the memory that several inputs share"):
        made.check()


def test_shared_memory_of_which_no_element_is_written_is_proved():
    """The write is to an input without elements, which lies in the others' memory."""
    memory = torch.zeros(9, 1)

    def f(x, y, z):
        x.fill_(1)
        return y + z

    made = Removed(f, memory.as_strided((1, 0), (1, 1)), memory, memory.unsqueeze(0))
    assert made.functional.shared
    made.check()


def test_shared_memory_with_other_last_contents_is_found():
    made = over_one_memory()
    ((base, _, counted),) = made.functional.mutated
    made.functional = Functional([(base, base, counted)], made.functional.latest, made.functional.shared)
    with pytest.raises(InternalError, match="the memory that several inputs share"):
        made.check()


def filled(x, y):
    x.fill_(2)
    y.add_(1)
    return x.sum()


def test_a_constant_of_another_size_is_found():
    """All its elements have the name of the right one's."""
    made = Removed(filled, X, Y)
    (full,) = made.nodes(aten.full.default)
    full.args = ([2, 4], 2)
    full.meta["val"] = full.meta["val"][:2]
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_another_name_of_memory_that_nobody_writes_is_no_matter():
    def f(x, y):
        y.add_(1)
        return x.data * 2 + y

    Removed(f, X, Y).check()


def counted(function: Callable[..., Any], *inputs: torch.Tensor) -> dict[str, int]:
    """What one ahead-of-time stage counts of proofs."""
    before = COUNTERS.copy()
    compile_aot(function, inputs)
    return {k: n for k, n in (COUNTERS - before).items() if k.startswith("writes_")}


def test_large_tensors_that_nobody_writes_are_no_matter():
    def f(big, small):
        small.add_(1)
        return big.exp().sum() + small.sum()

    assert counted(f, torch.zeros(4000, 400), X) == {"writes_proved": 1}


def test_large_tensors_that_are_written_whole_are_proved():
    assert counted(lambda big: big.exp_().add_(1).relu_().sum(), torch.zeros(4000, 400)) == {
        "writes_proved": 1
    }


def test_large_tensors_that_are_written_in_parts_are_left_unproved_and_counted():
    assert counted(lambda big: big[1:].add_(1).sum(), torch.zeros(4000, 400)) == {"writes_unproved_large": 1}


def test_a_window_beyond_an_input_is_proved_to_see_what_was_there():
    def f(x):
        seen = x.as_strided((4, 4), (4, 1)) * 1
        x[1].add_(1)
        return seen, x * 1

    assert counted(f, torch.zeros(4, 4)[:2]) == {"writes_proved": 1}


def test_memory_seen_in_elements_of_two_sizes_is_left_unproved_and_counted():
    def f(x):
        x[0].add_(1)
        x.view(torch.int16)[1].zero_()
        return x * 1

    assert counted(f, X) == {"writes_unproved_element sizes": 1}


def whole(x, y):
    before = x.clone()
    x.add_(1).mul_(y)
    return before * x


def seen_in_bytes(x: torch.Tensor) -> torch.Tensor:
    y = x.long()
    y.copy_(y.flip(0))
    z = y.diagonal_scatter(y.diagonal() * 2)
    z.view(torch.uint8).squeeze((0, -1))
    return z


def test_parts_of_elements_are_what_an_unknown_operator_makes():
    """The names of elements lie in the shape of the tensor that is seen, which is another."""
    made = Removed(seen_in_bytes, torch.arange(8.0)[None])
    made.check()
    (scattered,) = made.nodes(aten.diagonal_scatter.default)
    scattered.args = (made.nodes(aten._to_copy.default)[0], scattered.args[1])
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_what_is_broken_of_tensors_written_whole_is_found():
    """One name stands for all their elements."""
    made = Removed(whole, X, Y)
    assert made.program.single
    made.check()
    (add,), (product, last) = made.nodes(aten.add.Tensor), made.nodes(aten.mul.Tensor)
    product.args = (add.args[0], product.args[1])
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()
    product.args = (add, product.args[1])
    made.check()
    last.args = (add, product)
    with pytest.raises(InternalError, match="BZ9024"):
        made.check()


def test_a_user_gets_the_graph_as_captured_and_is_told(monkeypatch):
    made = Removed(copied_then_written, X, Y)
    made.functional = Functional([], made.functional.latest)
    with pytest.raises(Unsupported, match="BZ9024"), on_fakes(made.mode):
        check(made.program, made.graph, made.functional, strict=False)


def test_equal_names_mean_equal_elements():
    names = Names()
    a, b = names.elements(1, (3, 2)), names.elements(2, (3, 2))
    assert names.name(a) == 1 and names.name(b) == 2 and names.name(a.t()) not in (1, 2)
    assert len({int(n) for n in torch.cat([a.flatten(), b.flatten()])}) == 12
    assert names.name(torch.cat([a[:1], b[1:]])) != names.name(a)
