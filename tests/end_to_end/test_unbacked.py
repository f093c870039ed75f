"""Numbers and sizes that only the data tell, in one graph: one capture serves all data, and equals eager."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.support import trace
from braze.support.errors import CaptureError, UserError

OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
BACKENDS = ["eager", "braze"]


pytestmark = pytest.mark.usefixtures("fresh")


def captures(
    fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], backend: str = "eager", **words: Any
) -> int:
    """How many captures some calls take; each is compared with eager, layouts and types included."""
    compiled = braze.compile(fn, backend=backend, options=OPTIONS, **words)
    with trace.collect() as events:
        for args in calls:
            same(compiled(*args), fn(*args))
    return sum(kind == "capture" for kind, _ in events)


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(got, wanted, equal_nan=True)
        assert got.stride() == wanted.stride() or not wanted.numel()
    elif isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            same(a, b)
    else:
        assert got == wanted


X = torch.linspace(-2, 2, 15).reshape(3, 5)
NUMBERS = [(X, torch.tensor(n)) for n in (3, 2, 1, 0)]
MASKS = [(X, m) for m in (X > 0, X > 1.9, X > 100, X < 100)]


def arithmetic(x: Any, k: Any) -> Any:
    n = k.item()
    return x * n + n, n + 1, -n * 3 // 2


def as_int(x: Any, k: Any) -> Any:
    return x + int(k), int(k.float() * 1.5)


def as_float(x: Any, k: Any) -> Any:
    s = k.float().item()
    return x * s, s * 2 + 0.5, float(k)


def as_size(x: Any, k: Any) -> Any:
    n = k.item()
    return torch.zeros(n, 3) + 1, torch.arange(n), x.new_ones((n, 2)).sum(0)


def as_bound(x: Any, k: Any) -> Any:
    n = k.item()
    torch._check(n >= 0)
    torch._check(n <= x.size(0), lambda: "too long")
    return x[:n] * 2, x[:n].sum(0)


def as_list(x: Any, k: Any) -> Any:
    a, b = torch.stack([k, k + 1]).tolist()
    return x + a, b - a


def greatest(x: Any, k: Any) -> Any:
    return x + max(k.item(), 2), min(k.item(), 1)


def truth(x: Any, k: Any) -> Any:
    return x, (k > 1).item(), k.item() == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [arithmetic, as_int, as_float, as_size, as_bound, as_list, greatest, truth],
    ids=lambda f: f.__name__,
)
def test_numbers_read_out_of_tensors(fn: Callable[..., Any], backend: str) -> None:
    assert captures(fn, NUMBERS, backend, fullgraph=True) == 1


def selected(x: Any, m: Any) -> Any:
    y = x[m]
    return y * 2 + y.sum(), y.shape[0]


def positions(x: Any, m: Any) -> Any:
    return torch.nonzero(m).float() @ torch.ones(2, 3)


def each_position(x: Any, m: Any) -> Any:
    i, j = torch.nonzero(m, as_tuple=True)
    return x[i, j], i + j


def rows(x: Any, m: Any) -> Any:
    y = x[m[:, 0]]
    return F.linear(y, torch.ones(4, 5)), y.transpose(0, 1)


def kinds(x: Any, m: Any) -> Any:
    values, counts = torch.unique(m.long().sum(0), return_counts=True)
    return values.float().softmax(0), counts


def repeated(x: Any, m: Any) -> Any:
    return torch.repeat_interleave(x, m.long().sum(-1), dim=0) + 1


def reshaped(x: Any, m: Any) -> Any:
    y = x.masked_select(m)
    return torch.cat([y, y + 1]), y.view(-1, 1).expand(-1, 4).sum(0), y.reshape(1, -1) @ y.reshape(-1, 1)


def written(x: Any, m: Any) -> Any:
    y = x.clone()
    y[m] = x[m] * 2
    return y, y[~m]


def joined(x: Any, m: Any) -> Any:
    """Parts of an empty result are never read, not even at addresses before it."""
    y = x[m[:, 0]]
    return torch.cat([y, x[:2], y * 2]), torch.stack([y, y + 1], 1), F.pad(y, (1, 0, 2, 1))


def normalized(x: Any, m: Any) -> Any:
    y = x[m[:, 0]]
    return (
        F.layer_norm(y, (5,)),
        y.softmax(-1),
        y.log_softmax(0),
        y.std(1),
        F.cross_entropy(y, y[:, 0].long() * 0),
    )


def sized_only(x: Any, m: Any) -> Any:
    n = x[m].shape[0]
    return torch.arange(n) * 2, x.new_ones(n, 2), torch.ones(n, n).tril(), n


def left_to_pytorch(x: Any, m: Any) -> Any:
    y = x[m[:, 0]]
    return (
        y.roll(1, 0),
        y.logsumexp(1),
        F.batch_norm(y, torch.zeros(5), torch.ones(5)),
        y.sort(0),
        y.cumsum(0),
    )


def parts(x: Any, m: Any) -> Any:
    y = x[m[:, 0]] + 1
    return y.split(2, 1), y.unbind(1), y[1:], y[::2]


#: before PyTorch 2.12 its rule of a logarithm of softmax over a dimension assumes that it is not empty
ASSUMES = [pytest.mark.provokes("BZ6013")] if torch.__version__ < "2.12" else []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn",
    [
        joined,
        pytest.param(normalized, marks=ASSUMES),
        sized_only,
        left_to_pytorch,
        parts,
        selected,
        positions,
        each_position,
        rows,
        kinds,
        repeated,
        reshaped,
        written,
    ],
    ids=lambda f: f.__name__,
)
def test_sizes_that_only_the_data_tell(fn: Callable[..., Any], backend: str) -> None:
    assert captures(fn, MASKS, backend, fullgraph=True) == 1


def test_off_they_break_the_graph_and_the_option_is_named() -> None:
    for fn, option in ((as_int, "capture_scalar_outputs"), (positions, "capture_dynamic_output_shape_ops")):
        with pytest.raises(CaptureError, match=option):
            braze.compile(fn, backend="eager", fullgraph=True)(*NUMBERS[0][:1], X[0, 0] > 0)


def test_a_decision_by_one_breaks_there() -> None:
    def fn(x: Any, k: Any) -> Any:
        n = k.item()
        y = x * n
        if n > 2:
            return y + 1, n
        return y - 1, n

    with pytest.raises(CaptureError, match=r"BZ1020.*n > 2|BZ1020.*u0 > 2") as error:
        braze.compile(fn, backend="eager", options=OPTIONS, fullgraph=True)(*NUMBERS[0])
    assert "^" in str(error.value.origin and error.value.origin.excerpt())
    assert "torch._check" in str(error.value)
    captures(fn, NUMBERS)


def test_a_check_that_fails_is_the_users_error() -> None:
    compiled = braze.compile(as_bound, backend="eager", options=OPTIONS, fullgraph=True)
    compiled(*NUMBERS[0])
    with pytest.raises(RuntimeError, match="too long"):
        compiled(X, torch.tensor(7))


def test_floats_are_computed_in_the_order_written() -> None:
    def fn(x: Any, k: Any) -> Any:
        s = k.double().item()
        return (s + 1e16) - 1e16, s * 3.0

    assert captures(fn, [(X, torch.tensor(n)) for n in (1.0, 3.0, 0.5)], fullgraph=True) == 1


def test_a_number_read_again_after_a_write_is_another() -> None:
    def fn(x: Any, k: Any) -> Any:
        k = k.clone()
        first = k.item()
        k.add_(1)
        return x + first, k.item() - first, k.item()

    assert captures(fn, NUMBERS, fullgraph=True) == 1


ASSERTS = """
def fn(x, k):
    n = k.item()
    assert n <= x.size(0), f"{n} is too long"
    assert not n < 0
    assert (k >= 0).all()
    return x * n
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_assert_becomes_a_check(backend: str) -> None:
    scope: dict[str, Any] = {}
    exec(ASSERTS, scope)  # pytest rewrites the asserts of this file
    fn = scope["fn"]
    assert captures(fn, NUMBERS, backend, fullgraph=True) == 1
    compiled = braze.compile(fn, backend=backend, options=OPTIONS, fullgraph=True)
    compiled(*NUMBERS[0])
    for wrong, message in ((5, "^5 is too long"), (-1, "^$")):
        with pytest.raises(AssertionError, match=message):
            compiled(X, torch.tensor(wrong))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_longest_of_several(backend: str) -> None:
    def fn(x: Any, m: Any) -> Any:
        parts = [row[chosen] for row, chosen in zip(x, m, strict=True)]
        longest = max(part.shape[0] for part in parts)
        out = x.new_zeros(len(parts), longest)
        for i, part in enumerate(parts):
            out[i, : part.shape[0]] = part
        return out, min(part.shape[0] for part in parts)

    assert captures(fn, MASKS, backend, fullgraph=True) == 1


def test_a_symbolic_number_as_a_key_is_guarded() -> None:
    table = {3: 1.0, 4: 2.0}

    def fn(x: Any, n: int) -> Any:
        return x * table.get(n, 0.0), n in table, {n: 1}[n], {n, 3} == {3}, {x.shape: n}[x.shape]

    compiled = braze.compile(fn, backend="eager", dynamic=True, fullgraph=True)
    for n in (3, 4, 5, 3):
        same(compiled(torch.ones(n), n), fn(torch.ones(n), n))


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_such_sizes_are_rebuilt(backend: str) -> None:
    def of_an_input(x: Any, k: Any) -> Any:
        n = k.item()
        torch._check(n >= 0)
        torch._check(n <= x.size(0))
        return x[:n], x[n:], n

    def of_each_other(x: Any, m: Any) -> Any:
        y = x[m[:, 0]]
        return *y.unbind(1), *y.split(2, 1), y[:, 1:]

    with trace.collect() as events:
        assert captures(of_an_input, NUMBERS, backend, fullgraph=True) == 1
        assert captures(of_each_other, MASKS, backend, fullgraph=True) == 1
        got = braze.compile(of_each_other, backend=backend, options=OPTIONS)(*MASKS[0])
        assert got[0].untyped_storage().data_ptr() == got[-1].untyped_storage().data_ptr()
    assert not [what for kind, what in events if kind == "fallback" and "graph" in str(what)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_greatest_of_none_is_the_error_of_eager(backend: str) -> None:
    for fn in (lambda x, m: x[m].max(), lambda x, m: x[m[:, 0]].amax(0), lambda x, m: x[m].argmin()):
        compiled = braze.compile(fn, backend=backend, options=OPTIONS, fullgraph=True)
        for x, m in MASKS:
            try:
                wanted = fn(x, m)
            except (RuntimeError, IndexError) as error:
                with pytest.raises(type(error), match=re.escape(str(error))):
                    compiled(x, m)
            else:
                same(compiled(x, m), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_marked_size_serves_every_size(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = torch.cat([x, x[:1] * 0 + 1 if x.dim() > 5 else x]).softmax(1)
        return y.sum(0), F.linear(x, torch.ones(3, 5)), x.shape[0] * 2, x.reshape(-1)

    calls = [(torch.linspace(-1, 1, 5 * n).reshape(n, 5),) for n in (4, 1, 0, 7)]
    for (x,) in calls:
        braze.mark_unbacked(x, 0)
    assert captures(fn, calls, backend, fullgraph=True) == 1


def test_a_decision_by_a_marked_size_breaks_and_a_need_is_checked() -> None:
    x = torch.rand(4, 3)
    braze.mark_unbacked(x, 0)
    with pytest.raises(CaptureError, match="BZ1020"):
        braze.compile(lambda x: x + 1 if x.shape[0] > 3 else x, backend="eager", fullgraph=True)(x)
    compiled = braze.compile(lambda x: x.view(2, -1) + 1, backend="eager", fullgraph=True)
    same(compiled(x), x.view(2, -1) + 1)
    odd = torch.rand(5, 3)
    with pytest.raises(RuntimeError, match="invalid for input of size 15"):
        compiled(odd)


def test_the_environment_sets_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAZE_CAPTURE_SCALAR_OUTPUTS", "1")
    x, k = NUMBERS[0]
    same(braze.compile(as_int, backend="eager", fullgraph=True)(x, k), as_int(x, k))
    off = braze.compile(as_int, backend="eager", fullgraph=True, options={"capture_scalar_outputs": False})
    with pytest.raises(CaptureError):
        off(x, k)
    monkeypatch.setenv("BRAZE_CAPTURE_SCALAR_OUTPUTS", "yes")
    with pytest.raises(UserError, match="takes 0 or 1"):
        braze.compile(as_int, backend="eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_such_sizes(backend: str) -> None:
    def selects(x: Any, w: Any, m: Any) -> Any:
        y = x[m[:, 0]]
        return F.layer_norm(y @ w.T, (3,)).softmax(-1).square().sum() * m.sum().item()

    def slices(x: Any, w: Any, m: Any) -> Any:
        return x[: m[:, 0].sum().item()].exp().sum() + (x[torch.nonzero(m)[:, 0]] @ w[0]).sum()

    weight = torch.linspace(-1, 1, 15).double().reshape(3, 5)
    for fn in (selects, slices):
        compiled = braze.compile(fn, backend=backend, options=OPTIONS, fullgraph=True)
        with trace.collect() as events:
            for x, m in MASKS:
                mine, theirs = (
                    [t.double().requires_grad_() for t in (x.clone(), weight.clone())] for _ in range(2)
                )
                got, wanted = compiled(*mine, m), fn(*theirs, m)
                torch.testing.assert_close(got, wanted)
                got.backward()
                wanted.backward()
                for a, b in zip(mine, theirs, strict=True):
                    torch.testing.assert_close(a.grad, b.grad)
        assert sum(kind == "capture" for kind, _ in events) == 1
        assert not [what for kind, what in events if kind == "fallback" and "graph" in str(what)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_place_that_only_the_data_tell(backend: str) -> None:
    def reads(x: Any, k: Any) -> Any:
        return x[k] + 1, x[:, k] * 2, x[k.item(), 1] + 1, x[k, 1:3] + 1, x[:k] + 1

    def writes(x: Any, k: Any) -> Any:
        y = x.clone()
        y[k] = 7.0
        y[k.item(), 2] = x[0, 0]
        y[1:k] = 3
        y[:, k] += 1
        return y

    places = [(X, torch.tensor(n)) for n in (2, 0, 1, -1, 9, -7)]
    for fn in (reads, writes):
        compiled = braze.compile(fn, backend=backend, options=OPTIONS, fullgraph=True)
        for x, k in places:
            try:
                wanted = fn(x, k)
            except IndexError:
                with pytest.raises(IndexError):
                    compiled(x, k)
            else:
                same(compiled(x, k), wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ctc_loss_of_lengths_in_tensors(backend: str, reduction: str) -> None:
    """What its gradient needs is as wide as the longest target, which only the data tell."""

    def loss(scores: Any, targets: Any, lengths: Any, targets_lengths: Any) -> Any:
        return F.ctc_loss(
            scores.log_softmax(-1), targets, lengths, targets_lengths, reduction=reduction, zero_infinity=True
        )

    scores = torch.sin(torch.arange(90.0)).reshape(9, 2, 5)
    calls = [
        (torch.tensor([1, 2, 3, 1]), torch.tensor([9, 7]), torch.tensor([3, 1])),
        (torch.tensor([4, 3, 2, 2]), torch.tensor([5, 9]), torch.tensor([1, 3])),
        (torch.tensor([1, 1, 1, 1]), torch.tensor([2, 9]), torch.tensor([2, 2])),
    ]
    assert captures(loss, [(scores, *call) for call in calls], backend) == 1
    compiled = braze.compile(loss, backend=backend, options=OPTIONS)
    for call in calls:
        ours, theirs = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        compiled(ours, *call).sum().backward()
        loss(theirs, *call).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.provokes("BZ6013")
def test_sizes_are_taken_for_neither_0_nor_1_and_that_is_checked(backend: str) -> None:
    """An early exit for nothing found: the graph serves all other data, Python the exit."""

    def selected(x: Any, mask: Any) -> Any:
        y = x[mask]
        if y.shape[0] == 0:
            return x.new_zeros(())
        several = y.numel() > 1 and x.dim() > 1
        return y.sum() if several else y - 1

    def cut(x: Any, sizes: Any) -> Any:
        parts = [row[None, ..., : n[0] // 2] for row, n in zip(x, sizes, strict=True)]
        whole = torch.cat(parts, dim=-1)
        return whole.T if whole.shape[-1] > 1 else whole

    sizes = [(X, torch.tensor(n)[:, None]) for n in ([4, 2, 9], [9, 9, 8], [0, 2, 0], [0, 0, 0])]
    assert captures(selected, MASKS, backend) == 1
    assert captures(cut, sizes, backend) == 1


def test_a_size_decides_where_python_cannot_run_again() -> None:
    """What was written is not written twice: the graph ends at the decision."""

    def counted(x: Any, mask: Any, total: Any) -> Any:
        total += 1
        y = x[mask]
        if y.shape[0] == 0:
            return x, total
        return y, total

    compiled = braze.compile(counted, backend="eager", options=OPTIONS)
    for x, mask in MASKS:
        ours, theirs = torch.zeros(()), torch.zeros(())
        same(compiled(x, mask, ours), counted(x, mask, theirs))
        same(ours, theirs)


def test_a_view_of_planned_memory_has_a_size_that_the_data_tell_when_that_is_known():
    """Sizes of the memory are known before the call computes anything, that of the view of it only then: an operator of ATen's gets it."""

    def f(x: Any, k: Any) -> Any:
        row = (x * 2).cumsum(0).sum(0, keepdim=True) * 2
        return row.expand(k.item(), x.shape[1]).cumsum(0) + 1

    calls = [(torch.randn(m, 9), torch.tensor(n)) for m in (5, 6) for n in (2, 4)]
    assert captures(f, calls, backend="braze", dynamic=True) == 1


@pytest.mark.parametrize("first", [7, -7])
def test_what_two_numbers_of_any_sign_have_in_common_may_be_negative(first: int) -> None:
    """PyTorch takes it for no less than 0 where they have no lower bound."""

    def common(x: torch.Tensor) -> torch.Tensor:
        number = x.item()
        return x + 1 if number & (number + 1) < 0 else x - 1

    compiled = braze.compile(common, backend="eager", options=OPTIONS)
    for number in (first, 3, -7, 0, -(2**40)):
        same(compiled(torch.tensor(number)), common(torch.tensor(number)))
