"""A graph with something that cannot be recorded is cut there, after fusion; the rest is recorded."""

from __future__ import annotations

import gc

import pytest
import torch

import braze
from braze.cudagraphs import recorded
from braze.cudagraphs.trees import forest_of
from braze.support.errors import UserError
from tests.cudagraphs.helpers import (
    assert_equal,
    filled,
    noted,
    numbers,
    placed,
    recording,
    recordings,
    run,
    tensor,
)

pytestmark = pytest.mark.usefixtures("simulated")

calls: list[tuple[int, ...]] = []


@torch.library.custom_op("braze_cuts::counted", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def counted(x: torch.Tensor) -> torch.Tensor:
    """Twice the argument; counts its calls, as a recording would not."""
    calls.append(tuple(x.shape))
    return x * 2


@counted.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("braze_cuts::put", mutates_args=("to",), tags=(torch.Tag.cudagraph_unsafe,))
def put(to: torch.Tensor, x: torch.Tensor) -> None:
    """Add to the first argument in place."""
    to += x


@torch.library.custom_op("braze_cuts::attend", mutates_args=("out",))
def attend(x: torch.Tensor, out: torch.Tensor) -> None:
    """Write a result into the last argument."""
    out.copy_(x.cumsum(0))


@pytest.fixture(autouse=True)
def no_gradients():
    calls.clear()
    with torch.no_grad():
        yield


def test_what_stands_before_and_after_is_recorded():
    made, codes = run(lambda x: counted(torch.relu(x @ x) + 1).sin() @ x)
    assert (made, codes) == (2, ["BZ6212"])


def test_the_operator_runs_at_each_call():
    f = recording(lambda x: counted(x + 1) * 3)
    for k in range(5):
        x = numbers(3)
        assert_equal(f(x), (x + 1) * 2 * 3)
        assert len(calls) == k + 1


def test_values_live_across_several_cuts():
    def program(x):
        a, b = torch.sin(x) @ x, x * 3
        c = counted(a + b)
        d = (c @ a).relu()
        e = counted(d - b)
        return a, e + c, (d @ x).sum(0)

    made, codes = run(program, times=8)
    assert made >= 3 and codes.count("BZ6212") == 2


def test_two_operators_beside_each_other_are_one_cut():
    made, codes = run(lambda x: counted(counted(x @ x)) @ x)
    assert (made, codes) == (2, ["BZ6212"])


def test_what_is_too_little_between_two_cuts_runs_with_them():
    program = lambda x: counted(counted(x @ x @ x) + 1) @ x @ x
    made, codes = run(program, cudagraph_launches=3)
    assert (made, codes) == (2, ["BZ6212"])


def test_a_graph_of_few_launches_is_left_unrecorded():
    made, codes = run(lambda x: x + 1, cudagraph_launches=3)
    assert (made, codes) == (0, ["BZ6213"])
    page = braze.explain(lambda x: x + 1, mode="reduce-overhead")(numbers(3))
    assert any("too few" in text for text, _ in page.cudagraphs)


def test_sizes_that_only_data_tell_cut_the_graph():
    made, codes = run(
        lambda x: (x[x > 0] * 2).sum(), make=lambda: numbers(9), capture_dynamic_output_shape_ops=True
    )
    assert made >= 1 and "BZ6212" in codes


def test_control_flow_cuts_the_graph():
    def program(x):
        y = x @ x
        y = torch.cond(y.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))
        return y @ x

    made, codes = run(program, times=10)
    assert made >= 2 and "BZ6212" in codes  # the branches are graphs of their own, and recorded too


def test_a_mask_that_makes_the_host_wait_cuts_the_graph():
    def program(x):
        y = x @ x
        y[x > 0] = 1.0
        return y @ x

    made, codes = run(program)
    assert made >= 1 and set(codes) <= {"BZ6212"}


def test_an_operator_that_writes_a_value_of_before():
    def program(x):
        y = x @ x
        put(y, x)
        return y @ x, y

    made, codes = run(program, times=8)
    assert made >= 2 and codes[0] == "BZ6212"


def test_an_operator_that_writes_an_input():
    def program(cache, x):
        put(cache, x @ x)
        return (cache @ x).relu()

    f, ours, theirs = recording(program), numbers(3, 3), None
    theirs = ours.clone()
    with recordings() as made:
        for _ in range(6):
            x = numbers(3, 3)
            assert_equal(f(ours, x), program(theirs, x))
            assert_equal(ours, theirs)
        assert made() == 2


def test_a_part_that_writes_an_input_of_the_graph():
    def program(cache, x):
        y = counted(x @ x)
        cache[1] = y[0]
        return (cache @ y).relu()

    f, ours = recording(program), numbers(3, 3)
    theirs = ours.clone()
    with recordings() as made:
        for _ in range(6):
            x = numbers(3, 3)
            assert_equal(f(ours, x), program(theirs, x))
            assert_equal(ours, theirs)
        assert made() == 2


def test_operators_that_are_named_cut_the_graph():
    def program(x):
        y = torch.relu(x @ x)
        out = torch.empty_like(y)
        attend(y, out)
        return out @ x

    for name in ("braze_cuts::attend", "braze_cuts.attend", "braze_cuts.attend.default"):
        made, codes = run(program, splitting_ops=[name])
        assert (made, codes) == (2, ["BZ6212"])
        braze.reset()
    assert run(program) == (1, [])


@pytest.mark.parametrize("value", ["aten::mm", [1], ["mm"], ["a.b.c.d"], None])
def test_names_that_are_none_of_operators_are_refused(value):
    with pytest.raises(UserError, match="splitting_ops"):
        braze.compile(lambda x: x, options={"splitting_ops": value})


def test_outputs_are_never_overwritten_while_they_are_held():
    program = lambda x: (x @ x, counted(x @ x + 1).sin(), counted(x).relu() @ x)
    f, kept = recording(program), []
    for _ in range(10):
        x = numbers(3, 3)
        kept.append((f(x), program(x)))
        for ours, theirs in kept:
            assert_equal(ours, theirs)


def test_outputs_fed_back():
    program = lambda x: counted(torch.tanh(x @ x)) @ x * 0.1
    f = recording(program)
    x = y = numbers(4, 4)
    for _ in range(10):
        x, y = f(x), program(y)
        assert_equal(x, y)


def test_parameters_that_change_are_seen():
    layer = placed(torch.nn.Linear(4, 4))
    program = lambda x: layer(counted(layer(x)).relu())
    f = recording(program)
    with recordings() as made:
        for k in range(6):
            layer.weight.add_(0.1)
            layer.bias.data.fill_(k)
            x = numbers(2, 4)
            assert_equal(f(x), program(x))
        assert made() == 2


def test_sizes_that_vary():
    program = lambda x: counted(x @ x.t()).relu() @ x
    f = braze.compile(program, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1})
    with recordings() as made:
        for _ in range(4):
            for rows in (2, 3, 5):
                x = numbers(rows, 4)
                assert_equal(f(x), program(x))
        assert made() <= 9


def test_random_numbers_on_both_sides_of_a_cut():
    program = lambda x: torch.nn.functional.dropout(counted(torch.nn.functional.dropout(x, 0.5)), 0.5) @ x
    f, g = recording(program), braze.compile(program)
    x = filled(1.0, 8, 8)
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        ours = [f(x) for _ in range(3)]
        torch.manual_seed(seed)
        assert_equal(ours, [g(x) for _ in range(3)])


def test_training_with_a_cut_in_the_forward():
    @torch.library.custom_op("braze_cuts::doubled", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(lambda x: torch.empty_like(x))
    torch.library.register_autograd("braze_cuts::doubled", lambda ctx, grad: grad * 2)
    with torch.enable_grad():
        layer, twin = placed(torch.nn.Linear(4, 4)), placed(torch.nn.Linear(4, 4))
        twin.load_state_dict(layer.state_dict())
        program = lambda of, x: (doubled(of(x).tanh()) @ x.t()).sum()
        f = recording(lambda x: program(layer, x))
        with recordings() as made:
            for _ in range(5):
                x = numbers(2, 4)
                f(x).backward()
                program(twin, x).backward()
                assert_equal(layer.weight.grad, twin.weight.grad)
                layer.zero_grad()
                twin.zero_grad()
            assert made() >= 3


def test_what_crosses_a_cut_is_let_go_of(simulated):
    @torch.library.custom_op("braze_cuts::kept", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
    def kept(x: torch.Tensor) -> torch.Tensor:
        made.append(x * 2)
        return made[-1]

    kept.register_fake(lambda x: torch.empty_like(x))
    made: list[torch.Tensor] = []
    braze.reset()
    gc.collect()
    before = forest_of(simulated).held()
    f = recording(lambda x: kept(x @ x + 1) @ x)
    inputs = [
        numbers(64, 64) for _ in range(14)
    ]  # nothing lies where another lay: what moves is copied from the start
    for x in inputs[:4]:
        f(x)
    one = forest_of(simulated).held() - before
    for x in inputs[4:]:
        f(x)
    assert forest_of(simulated).held() - before == one
    del f
    braze.reset()
    gc.collect()
    assert forest_of(simulated).held() <= before


def test_an_index_on_the_far_side_of_a_cut_is_checked():
    if filled(0.0, 1).is_cuda:
        pytest.skip("a bad index ends a process that uses a GPU")
    table = numbers(4, 3)
    f = recording(lambda i, x: table[i] @ counted(x))
    for _ in range(3):
        x = numbers(3, 3)
        assert_equal(f(tensor([1, 2]), x), table[[1, 2]] @ (x * 2))
    with pytest.raises(IndexError):
        f(tensor([9, 0]), numbers(3, 3))


# -- what is computed once


def replayed_steps(f_calls):
    """How many operations the recordings that ``f_calls`` makes replay."""
    before = set(recorded._live)
    f_calls()
    new = [r for r in recorded._live if r not in before]
    return sum(len(x.graph.works) for r in new for g in r.sizes.groups.values() for x in g.recordings)


def test_what_is_computed_of_parameters_is_not_replayed():
    weight = torch.nn.Parameter(numbers(16, 16), requires_grad=False)
    program = lambda x: x @ (weight.t() @ weight).softmax(-1) + 1
    f, g = recording(program), recording(program, hoist=False)

    def calls(of):
        for _ in range(3):
            x = numbers(2, 16)
            assert_equal(of(x), program(x))

    assert replayed_steps(lambda: calls(f)) < replayed_steps(lambda: calls(g))


def test_changes_of_what_was_computed_of_are_seen():
    weight = torch.nn.Parameter(numbers(8, 8), requires_grad=False)
    program = lambda x: x @ (weight.t() @ weight).softmax(-1) + 1
    f = recording(program)
    with recordings() as made:
        for k in range(24):
            if k % 2 and k < 20:
                weight.add_(0.1) if k % 4 == 1 else weight.data.mul_(0.9)
            x = numbers(3, 8)
            assert_equal(f(x), program(x))
        assert made() <= 6, "where it is made anew often, it is copied"


def test_tables_of_nothing_are_computed_once():
    program = lambda x: (x @ torch.ones(5, 5, device=x.device).tril().softmax(-1)).relu()
    f = recording(program)
    with recordings() as made:
        for _ in range(4):
            x = numbers(5, 5)
            assert_equal(f(x), program(x))
        assert made() == 1


@pytest.fixture
def alone():
    """A group of one process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.group.WORLD.group_name
    torch.distributed.destroy_process_group()


def test_a_collective_cuts_the_graph(alone):
    sums = torch.ops._c10d_functional

    def f(x):
        y = sums.wait_tensor(sums.all_reduce((x.sin() + 1).sum(0), "sum", alone))
        return (y.cos() * x).sum(1)

    with noted() as codes, recordings() as made:
        g = recording(f)
        for _ in range(4):
            x = numbers(5, 4)
            assert_equal(g(x), f(x))
        assert "BZ6212" in codes() and made() >= 2


def test_a_graph_of_nothing_else_is_left_unrecorded_and_says_why():
    made, codes = run(lambda x: counted(x), times=4)
    assert (made, codes) == (0, ["BZ6204"])
    page = braze.explain(lambda x: counted(x), options={"cudagraphs": True, "cudagraph_launches": 1})(
        numbers(3)
    )
    ((text, times),) = page.cudagraphs
    assert times == 1 and "braze_cuts.counted.default is tagged cudagraph_unsafe" in text
