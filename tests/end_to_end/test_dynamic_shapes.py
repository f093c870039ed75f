"""Sizes, ints and floats that change: what becomes a symbol, what is checked, what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import braze
from braze.support import trace
from braze.support.errors import UserError
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")


def captures(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], **words: Any) -> int:
    """How many captures some calls take; each is compared with eager."""
    compiled = braze.compile(fn, **words)
    with trace.collect() as events:
        for args in calls:
            torch.testing.assert_close(compiled(*args), fn(*args), equal_nan=True)
    return sum(kind == "capture" for kind, _ in events)


def matrices(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.rand(n, 8),) for n in sizes]


# -- kernels at every size


KERNELS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: torch.relu(x) * 2 + 1,
    "softmax": lambda x: torch.softmax(x * 2, -1),
    "columns": lambda x: (x * 2).sum(0),
    "transposed": lambda x: (x * 2).t().contiguous() + 1,
    "outer": lambda x: x[:, 0, None] + x[:, 0][None, :],
    "cat": lambda x: torch.cat([x, x * 2]),
    "scaled": lambda x: x / math.sqrt(x.shape[0]),
    "half": lambda x: x[: math.ceil(x.shape[0] / 2)] * 3,
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_dynamic_kernel_is_right_at_every_tail(name: str) -> None:
    """Sizes 1 to 70: below, at and above every vector width and unrolling."""
    assert captures(KERNELS[name], matrices(*range(1, 71)), dynamic=True) <= 3


# -- which numbers become symbols


def test_each_of_several_numbers_is_its_own_in_kernels() -> None:
    """Whole numbers and floats, before tensors, between them and behind."""

    def f(a: int, x: torch.Tensor, b: int, c: float, y: torch.Tensor, d: int) -> Any:
        return x * a + b, y * b - c, (x * d).sum() + a, a * b - d

    x, y = torch.rand(3), torch.rand(4)
    calls = [(2, x, 5, 0.5, y, 9), (7, x, 3, 1.5, y, 4), (4, y, 6, -2.5, x, 3)]
    assert captures(f, calls, dynamic=True) == 1


def test_only_the_size_that_changes_becomes_symbolic() -> None:
    graphs: list[Any] = []

    def backend(gm: Any, examples: Any) -> Any:
        graphs.append(examples[0].shape)
        return gm.forward

    compiled = braze.compile(lambda x: x + 1, backend=backend)
    for n in (4, 5, 6):
        compiled(torch.rand(n, 8, 4))  # the last size is that of the first, by chance
    assert len(graphs) == 2
    assert [type(n) is int for n in graphs[1]] == [False, True, True]


def test_sizes_that_are_equal_by_chance_stay_apart() -> None:
    calls = [(torch.rand(4, 4),), (torch.rand(4, 7),), (torch.rand(9, 2),)]
    assert captures(lambda x: x * 2, calls, dynamic=True) == 1


def test_a_size_of_one_does_not_fix_its_neighbours() -> None:
    calls = [(torch.rand(1, n),) for n in (4, 7, 9, 12)]
    assert captures(lambda x: x * 2, calls, dynamic=True) == 1


@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_a_size_stays_symbolic_across_a_break(backend: str) -> None:
    def f(x: torch.Tensor) -> Any:
        n = x.shape[0] * 2
        y = x + 1
        braze.graph_break()
        return y * n, n, torch.arange(n)

    assert captures(f, matrices(4, 5, 6, 9), backend=backend) == 4
    assert captures(f, matrices(4, 5, 6, 9), backend=backend, dynamic=True) == 2


def test_sizes_come_out() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.shape[0], x.size(0) * 2, x.numel(), x.shape, x + 1

    assert captures(f, matrices(4, 5, 6)) == 2


def test_mark_static_holds_a_size() -> None:
    calls = matrices(4, 5, 6)
    for (x,) in calls:
        braze.mark_static(x, 0)
    assert captures(lambda x: x * 2, calls, dynamic=True) == 3


def test_never_symbolic() -> None:
    assert captures(lambda x: x * 2, matrices(4, 5, 6), dynamic=False) == 3


# -- floats


FLOATS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "scaled": lambda x, k: x * k,
    "of ints": lambda x, k: x.int() * k,
    "and out": lambda x, k: (x * k + 1, k * 2, k / 3, -k, abs(k)),
    "in order": lambda x, k: (x + k, (k + 1e16) - 1e16, 0.1 + k + 0.2, k * 3 * 0.1, k - k),
    "operand": lambda x, k: torch.where(x > k, k, x) + torch.full((4,), k),
    "alpha": lambda x, k: torch.add(x, x, alpha=k).clamp(min=-k, max=k),
    "value": lambda x, k: x.addcmul(x, x, value=k).masked_fill(x > 1, k),
    "power": lambda x, k: torch.relu(x) ** k,
    "with sizes": lambda x, k: x * (k * x.shape[0]),
    "broken": lambda x, k: (x * k, braze.graph_break(), k + 1)[2],
}


#: PyTorch 2.11 looks at exponents
OLD = torch.__version__ < "2.12"


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_a_float_that_changes_is_an_input(name: str, backend: str) -> None:
    calls = [(torch.rand(4), 0.3 + i) for i in range(6)]
    decides = name == "power" and OLD  # on the exponent
    assert captures(FLOATS[name], calls, backend=backend) <= (6 if decides else 4 if name == "broken" else 2)


def test_learning_rates_do_not_recompile() -> None:
    def step(p: torch.Tensor, g: torch.Tensor, group: dict[str, float]) -> torch.Tensor:
        return p - group["lr"] * (g + group["decay"] * p)

    p, g = torch.rand(9), torch.rand(9)
    assert captures(step, [(p, g, {"lr": 0.1 / (i + 1), "decay": 0.01}) for i in range(6)]) == 2


def test_special_floats_are_what_they_are() -> None:
    calls = [(torch.rand(4) - 0.5, k) for k in (1.5, 2.5, math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0)]
    compiled = braze.compile(lambda x, k: (x * k, k * 0.5, -k), backend="eager")
    for x, k in calls:
        assert repr(compiled(x, k)[1:]) == repr((k * 0.5, -k))
        assert torch.equal(torch.nan_to_num(compiled(x, k)[0]), torch.nan_to_num(x * k))


def test_a_branch_on_a_float_is_a_guard() -> None:
    def f(x: torch.Tensor, k: float) -> torch.Tensor:
        return x * 2 if k > 2 else x * k

    compiled = braze.compile(f)
    for k in (0.5, 1.5, 2.5, 3.5, 1.5):
        x = torch.rand(3)
        assert torch.equal(compiled(x, k), f(x, k))


def test_text_of_a_float_is_that_of_the_call() -> None:
    compiled = braze.compile(lambda x, k: (x * k, f"{k:.2f}", str(k), hash(k)), backend="eager")
    for k in (0.5, 1.5, 2.25):
        assert compiled(torch.ones(1), k)[1:] == (f"{k:.2f}", str(k), hash(k))


# -- marks and names


def test_a_mark_makes_a_size_symbolic_at_once() -> None:
    calls = matrices(4, 5, 9)
    for (x,) in calls:
        braze.mark_dynamic(x, 0, min=2, max=16)
    assert captures(lambda x: x * 2, calls) == 1


def test_what_dynamo_leaves_on_a_tensor_counts() -> None:
    calls = matrices(4, 5, 9)
    for (x,) in calls:
        x._dynamo_dynamic_indices = {0}  # type: ignore[attr-defined]
    assert captures(lambda x: x * 2, calls) == 1


def test_unbacked_sizes_are_never_an_error() -> None:
    calls = matrices(4, 1, 0, 9, 5)
    for (x,) in calls:
        braze.mark_unbacked(x, 0)
    assert captures(lambda x: x * 2, calls, backend="eager") == 1
    assert captures(lambda x: x.view(5, -1), [calls[-1]], backend="eager") == 1


def test_a_promise_that_is_broken_at_once() -> None:
    with pytest.raises(UserError, match=r"BZ0021: dimension 0 is 4.*at least 5"):
        braze.mark_dynamic(torch.rand(4), 0, min=5)


@pytest.mark.parametrize("dim", ["0", 1.0, None, torch.tensor(0), [0, "1"], [0.0], {0}, 2, -3, [0, 2]])
@pytest.mark.parametrize("mark", [braze.mark_dynamic, braze.mark_batch])
def test_dimensions_that_are_none_are_refused_and_leave_no_mark(mark, dim) -> None:
    x = torch.rand(4, 3)
    with pytest.raises(
        UserError, match=r"BZ0020: a (dimension is a whole number|tensor of 2 dimensions has no)"
    ):
        mark(x, dim)
    assert captures(lambda x: x * 2, [(x,), (torch.rand(5, 3),)], dynamic=False, backend="eager") == 2


def test_named_sizes_are_checked_at_each_call() -> None:
    compiled = braze.compile(lambda x, w: x @ w, shapes={"x": ("B<=16 %4", 8), "w": (8, None)})
    w = torch.rand(8, 3)
    with trace.collect() as events:
        for n in (4, 8, 16):
            torch.testing.assert_close(compiled(torch.ones(n, 8), w), torch.ones(n, 8) @ w)
        for n, why in ((20, "20; shapes= says 'B<=16 %4'"), (10, "pad it to 12")):
            with pytest.raises(UserError, match=f"(?s)BZ0021: dimension 0 of x is.*{why}"):
                compiled(torch.ones(n, 8), w)
        with pytest.raises(UserError, match="dimension 1 of x is 9"):
            compiled(torch.ones(4, 9), w)
        with pytest.raises(UserError, match="x has 1 dimensions; shapes= gives 2"):
            compiled(torch.ones(8), w)
    assert sum(kind == "capture" for kind, _ in events) == 1


def test_a_bound_that_stands_at_one_of_a_names_places_holds_of_the_name() -> None:
    for shapes in ({"x": ("B", 2), "y": ("B<=8", 2)}, {"x": ("B<=8", 2), "y": ("B", 2)}):
        compiled = braze.compile(lambda x, y: x + y, shapes=shapes, fullgraph=True)
        for n in (4, 8, 2):
            x = torch.rand(n, 2)
            assert torch.equal(compiled(x, x), x + x)
        fixed = braze.compile(lambda x, y: x + 1 if x.shape[0] <= 8 else y, shapes=shapes, fullgraph=True)
        assert torch.equal(fixed(x, x), x + 1)
        with pytest.raises(UserError, match="is 9; shapes= says 'B<=8'"):
            compiled(torch.rand(9, 2), torch.rand(9, 2))
    with pytest.raises(UserError, match="no size obeys both"):
        braze.compile(lambda x, y: x + y, shapes={"x": ("B<=3",), "y": ("4<=B",)})


def test_the_same_name_is_the_same_size() -> None:
    compiled = braze.compile(lambda x, y: x + y.sum(), shapes={"x": ("B",), "y": ("B",)})
    for n in (3, 4):
        compiled(torch.ones(n), torch.ones(n))
    with pytest.raises(UserError, match=r"dimension 0 of y is 5, but dimension 0 of x is 4.*both 'B'"):
        compiled(torch.ones(4), torch.ones(5))


def test_names_of_forward() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x * 2 if mask is None else x * mask

    compiled = braze.compile(Net(), shapes={"x": ("B<8", ...), "mask": ("B", 1)})
    for n in (2, 5, 7):
        compiled(torch.ones(n, 3), mask=torch.ones(n, 1))
    with pytest.raises(UserError, match="dimension 0 of x is 9"):
        compiled(torch.ones(9, 3))


def test_a_name_that_is_no_argument() -> None:
    with pytest.raises(UserError, match=r"(?s)'xs', which is no argument.*did you mean 'x'"):
        braze.compile(lambda x: x, shapes={"xs": ("B",)})


def test_a_size_that_the_program_fixes_is_an_error_at_its_line() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if x.shape[0] * 2 == 10:  # here
            y = y + 1
        return y

    with pytest.raises(UserError, match=r"(?s)BZ0022: x, dimension 0 can only be 5.*# here") as caught:
        braze.compile(f, shapes={"x": ("B",)})(torch.rand(5))
    assert "2 * x.size(0)" in str(caught.value) and "== 10" in str(caught.value)
    marked = torch.rand(5)
    braze.mark_dynamic(marked, 0)
    with pytest.raises(UserError, match=r"(?s)BZ0022.*marked dynamic.*# here"):
        braze.compile(f)(marked)


# -- what is assumed is guarded


CONDITIONS = st.lists(
    st.tuples(
        st.sampled_from(["x.shape[0]", "x.shape[1]", "x.shape[0] + x.shape[1]", "x.shape[0] * x.shape[1]"]),
        st.sampled_from(["% 2 ==", "% 3 ==", "// 2 >", ">", "<=", "!="]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=15, deadline=None)
@given(conditions=CONDITIONS, data=st.data())
def test_guards_accept_exactly_where_the_branches_taken_hold(conditions: Any, data: Any) -> None:
    """A variant serves another shape if, and only if, each branch would go the same way there."""
    tests = [f"({size} {relation} {number})" for size, relation, number in conditions]
    taken: Any = eval(f"lambda x: ({', '.join(tests)},)")
    traced: Any = eval(f"lambda x: (x + 1, tuple([1 if c else 0 for c in ({', '.join(tests)},)]))")
    braze.reset()
    compiled = braze.compile(traced, backend="eager", dynamic=True)
    sizes = st.tuples(st.integers(2, 12), st.integers(2, 12))
    first, *others = data.draw(st.lists(sizes, min_size=5, max_size=12))
    start = torch.empty(first)
    compiled(start)
    (variant,) = compiled.variants
    program = getattr(variant, "program", variant)
    program = program[0] if isinstance(program, tuple) else program
    for shape in others:
        x = torch.empty(shape)
        assert (program.match(traced, (x,)) is not None) == (taken(x) == taken(start))


def test_what_a_backend_asks_is_guarded_too() -> None:
    def backend(gm: Any, examples: Any) -> Any:
        big = bool(examples[0].shape[0] > 6)
        return lambda *inputs: (torch.tensor(float(big)),)

    compiled = braze.compile(lambda x: x.sum(), backend=backend, dynamic=True)
    assert [compiled(torch.ones(n)).item() for n in (8, 4, 9, 5)] == [1, 0, 1, 0]


@pytest.mark.parametrize("words", [{"dynamic": True}, {}], ids=["dynamic", "as they change"])
def test_lstm_over_any_batch(words: Any) -> None:
    """PyTorch's composite in C++ wants plain sizes; the one in Python does not."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 5).eval()
    batches = [(torch.rand(3, n, 4),) for n in (2, 3, 5)]
    with torch.no_grad():
        assert captures(layer, batches, backend="eager", **words) == (1 if words else 2)


@pytest.mark.parametrize("words", [{"dynamic": False}, {"dynamic": True}], ids=["static", "dynamic"])
def test_a_window_on_memory_counts_from_its_start_wherever_the_input_starts(words: Any) -> None:
    memory = torch.arange(40.0)
    inputs = [(memory[k : k + 10].view(2, 5),) for k in (0, 5, 3, 30)]
    captures(lambda x: x.as_strided((2, 2), (3, 1), 1) * 2, inputs, **words)
    captures(lambda x: x.view(-1).as_strided((2, 2), (3, 1)) * 2, inputs, **words)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic", "area"])
@pytest.mark.parametrize("grad", [False, True])
def test_upsampling_to_the_size_of_another_picture(mode, grad):
    """As segmentation heads and pyramids do; in C++ it takes no symbols for sizes."""

    def resized(x, like):
        return torch.nn.functional.interpolate(x, size=like.shape[-2:], mode=mode) + like

    call = braze.compile(resized, backend="aot_eager", fullgraph=True)
    before = trace.COUNTERS["captures"]
    for rows in (4, 6, 8, 5):
        x = torch.randn(1, 2, 3, rows, requires_grad=grad)
        like = torch.randn(1, 2, 2 * rows, rows + 1)
        ours, theirs = call(x, like), resized(x, like)
        torch.testing.assert_close(ours, theirs)
        if grad:
            torch.testing.assert_close(
                torch.autograd.grad(ours.sin().sum(), x), torch.autograd.grad(theirs.sin().sum(), x)
            )
    assert trace.COUNTERS["captures"] == before + 2


@pytest.mark.parametrize("kind", ["conjugated", "sparse"])
def test_a_marked_tensor_that_no_graph_takes_is_captured_once(kind: str) -> None:
    """Its sizes are no symbols: no call could tell them, and no variant would fit."""
    x = torch.randn(4, 3, dtype=torch.complex64).conj() if kind == "conjugated" else torch.eye(4).to_sparse()
    braze.mark_dynamic(x, 0)
    compiled = braze.compile(lambda t: t * 2, backend="eager")
    with logged() as said:
        for _ in range(2):
            assert torch.equal(compiled(x).to_dense(), (x * 2).to_dense())
    assert not [message for message in said if "BZ9013" in message]


def test_an_input_that_no_operation_reads_tells_what_sizes_of_others_are_made_of() -> None:
    """Behind a relation of sizes the one input has ``s + 4`` elements, which does not tell s: the other's size does."""

    def four_more(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] - y.shape[0] == 4 else x

    compiled = braze.compile(four_more, dynamic=True)
    with logged() as said:
        for sizes in ((8, 4), (9, 5), (9, 4), (10, 6), (4, 0)):
            x, y = map(torch.rand, sizes)
            assert torch.equal(compiled(x, y), four_more(x, y))
    assert not said
