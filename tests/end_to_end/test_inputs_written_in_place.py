"""Parts of inputs are written where they lie, and whoever reads the old or the new contents gets them as in eager."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import braze
from braze.support import trace
from tests.helpers import logged

Tensor = torch.Tensor


def written(f: Any, *args: Any) -> int:
    """How many inputs are written in place by what one call compiles."""
    before = trace.snapshot()[0]["inputs_written_in_place"]
    f(*args)
    return trace.snapshot()[0]["inputs_written_in_place"] - before


class Cache(torch.nn.Module):
    """Keys and values as a decoder keeps them."""

    def __init__(self, rows: int = 16) -> None:
        super().__init__()
        self.register_buffer("k", torch.zeros(2, rows, 4))
        self.register_buffer("v", torch.zeros(2, rows, 4))

    def forward(self, x: Tensor, p: int) -> Tensor:
        b, n = x.shape[:2]
        self.k[:b, p : p + n] = x * 2
        self.v[:b, p : p + n] = x + 1
        keys, values = self.k[:b, : p + n], self.v[:b, : p + n]
        return torch.softmax(x @ keys.transpose(1, 2), -1) @ values


@torch.no_grad()
def test_a_decoder_reads_what_it_has_just_put_into_its_cache() -> None:
    eager, module = Cache(), Cache()
    compiled = braze.compile(module, options={"verify": 2})
    for p in range(8):
        x = torch.randn(2, 1, 4)
        torch.testing.assert_close(compiled(x, p), eager(x, p))
        torch.testing.assert_close(module.k, eager.k)
        torch.testing.assert_close(module.v, eager.v)


@torch.no_grad()
def test_only_the_elements_that_are_written_are_touched() -> None:
    """The rest of the memory is not even stored again: a second view of it, made by hand, keeps what it gets meanwhile."""

    def f(cache: Tensor, x: Tensor, i: Tensor) -> None:
        cache[2:3] = x
        cache.index_copy_(0, i, x)

    g = braze.compile(f)
    cache = torch.zeros(8, 4)
    assert written(g, cache, torch.ones(1, 4), torch.tensor([5])) == 1
    assert cache[:, 0].tolist() == [0, 0, 1, 0, 0, 1, 0, 0]


@torch.no_grad()
def test_parts_are_written_in_place_through_data_which_autograd_does_not_count() -> None:
    def f(cache: Tensor, x: Tensor, i: Tensor) -> Tensor:
        cache.data[2:3] = x
        cache.data.index_add_(0, i, x)
        return cache[2] + cache[5]

    cache = torch.zeros(8, 4)
    g = braze.compile(f)
    assert written(g, cache, torch.ones(1, 4), torch.tensor([5])) == 1
    made = g(cache, torch.ones(1, 4), torch.tensor([5]))
    assert cache[:, 0].tolist() == [0, 0, 1, 0, 0, 2, 0, 0]
    assert made.tolist() == [3] * 4
    assert cache._version == 0


def old_and_new(x: Tensor, y: Tensor) -> Any:
    before = x[1].clone()
    total = x.sum(0)
    x[1] = y[0]
    between = x * 2
    x[0:2, 1:3] = y[:2, :2]
    return before, total, between, x.sum(0), x[1]


def onto_itself(x: Tensor, y: Tensor) -> Any:
    x[1:] = x[:-1] + 0
    x[:2] += x[2:4]
    return x[3] * 1


def two_at_once(x: Tensor, y: Tensor) -> Any:
    x[0], y[0] = y[1] + 0, x[1] + 0
    return x @ y.t()


def empty_and_backwards(x: Tensor, y: Tensor) -> Any:
    x[3:3] = 1
    x[-1] = y[-2]
    x[-2:, -1:] = 7
    x[2:100] = y[2:100]
    return x[3:3], x


@pytest.mark.parametrize("f", [old_and_new, onto_itself, two_at_once, empty_and_backwards])
@pytest.mark.parametrize("layout", ["plain", "within", "transposed", "steps"])
@torch.no_grad()
def test_reads_before_between_and_after_writes_see_what_eager_shows(f: Any, layout: str) -> None:
    g = braze.compile(f, options={"verify": 2})

    def made() -> Tensor:
        whole = torch.arange(64.0).reshape(8, 8) / 7
        return {
            "plain": whole[:4, :4].clone(),
            "within": whole[2:6, 3:7],
            "transposed": whole[:4, :4].t(),
            "steps": whole[1::2, ::2],
        }[layout]

    x, y, a, b = made(), made().clone() + 1, made(), made().clone() + 1
    got, want = g(a, b), f(x, y)
    torch.testing.assert_close((got, a, b), (want, x, y))
    assert a._version > 0


@torch.no_grad()
def test_an_index_that_does_not_exist_writes_nothing() -> None:
    def f(x: Tensor, table: Tensor, i: Tensor) -> None:
        x[1:2] = torch.nn.functional.embedding(i, table)

    g = braze.compile(f)
    x, table = torch.zeros(4, 4), torch.ones(3, 4)
    g(x, table, torch.tensor([1]))
    x.zero_()
    with pytest.raises(IndexError):
        g(x, table, torch.tensor([9]))
    assert not x.any()


REFUSED = {
    "values of another type": (torch.ones(2, 4, dtype=torch.float64), torch.tensor([1, 3])),
    "too many values": (torch.ones(3, 4), torch.tensor([1, 3])),
    "values too long": (torch.ones(2, 5), torch.tensor([1, 3])),
    "places in bytes": (torch.ones(2, 4), torch.tensor([1, 3], dtype=torch.int8)),
    "one place for two rows": (torch.ones(2, 4), torch.tensor(1)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_write_at_places_that_eager_refuses_is_refused(name: str) -> None:
    """Values of another size were stored as if they fitted, beyond their memory too."""
    source, places = REFUSED[name]

    def put(x: Tensor) -> None:
        x[places] = source

    def copied(x: Tensor) -> None:
        x.index_copy_(0, places, source)

    for f in (put, copied):
        ours, theirs = torch.zeros(6, 4), torch.zeros(6, 4)
        with torch.no_grad():
            with pytest.raises((RuntimeError, IndexError)) as eagers:
                f(theirs)
            with pytest.raises(eagers.type):
                braze.compile(f)(ours)
        assert torch.equal(ours, theirs)


def test_what_a_backward_wants_is_not_written_over() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        y = ((x + 0) * w).sum()
        x[0] = 5
        return y

    x, w = torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)
    g = braze.compile(f)
    g(x, w).backward()
    assert x[0, 0] == 5 and torch.equal(w.grad, torch.ones(3, 3))


def test_autograd_and_inference_mode_notice_the_write() -> None:
    def f(x: Tensor) -> None:
        x[0] = 1

    g = braze.compile(f)
    x, w = torch.zeros(3), torch.ones(3, requires_grad=True)
    g(x.clone())
    loss = (w * x).sum()
    g(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        z = torch.zeros(3)
        g(z)
        assert z[0] == 1
    for call in (f, g):
        with torch.inference_mode():
            z.zero_()
        with pytest.raises(RuntimeError, match=r"[Ii]nference"):
            call(z)
        assert z[0] == 1, "eager writes, and refuses then"


def steps_of(seed: int) -> Any:
    """A program of five random writes and reads of ``x`` and ``c``."""
    draw = random.Random(seed)
    todo = [(draw.randrange(11), draw.randrange(6), draw.randrange(6)) for _ in range(5)]

    def f(x: Tensor, c: Tensor, p: int, i: Tensor, y: Tensor) -> list[Tensor]:
        out = []
        for kind, a, b in todo:
            if kind == 0:
                x[a : a + b] = y[:1]
            elif kind == 1:
                x[a, b // 2 : b] = y.sum() + b
            elif kind == 2:
                x[1:] = x[:-1] + a
            elif kind == 3:
                x.index_copy_(0, i, y[:2])
            elif kind == 4:
                x[i] = x[b] * c[a]
            elif kind == 5:
                x[a:][:, b:][:2] = c[0, 0]
            elif kind == 6:
                x[p : p + 2] = y[:2] + c[p]
            elif kind == 7:
                c[a, p : p + 1] = x[a, 0]
            elif kind == 8:
                out.append(x @ c.t())
            elif kind == 9:
                out.append(x[a].clone())
            else:
                out.append(x[: p + 1])
        return out

    return f


@pytest.mark.parametrize("seed", range(6))
@torch.no_grad()
def test_random_writes_and_reads_are_as_in_eager(seed: int) -> None:
    f = steps_of(seed)
    g = braze.compile(f, options={"verify": 2}, dynamic=True)
    for p in (1, 3):
        torch.manual_seed(10 * seed + p)
        x, c, y, i = torch.randn(6, 6), torch.randn(6, 6), torch.randn(6, 6), torch.randperm(6)[:2]
        a, b = x.clone(), c.clone()
        got, want = g(a, b, p, i, y), f(x, c, p, i, y)
        torch.testing.assert_close((got, a, b), (want, x, c))


#: writes to a cache of 8 x 8 numbers through views of all or some of it
THROUGH_VIEWS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "reshaped": lambda x, y, i: x.view(-1)[10:14].copy_(y[0, :4]),
    "blocks of slots": lambda x, y, i: x.view(16, 4).index_put_((i,), y[:2, :4]),
    "blocks of one half": lambda x, y, i: x.view(2, 4, 8)[1].view(-1, 4).index_copy_(0, i, y[:2, 4:]),
    "turned": lambda x, y, i: x.t()[3:5, 2:4].copy_(y[:2, :2]),
    "permuted": lambda x, y, i: x.view(2, 4, 8).permute(2, 0, 1)[5, :, 1:3].copy_(y[:2, :2]),
    "turned within a part": lambda x, y, i: x[2:7].t()[1].copy_(y[0, :5]),
    "with a dim more": lambda x, y, i: x[None][:, 3].add_(y[0]),
    "a diagonal": lambda x, y, i: x.diagonal(-1)[2:4].copy_(y[0, :2]),
    "a diagonal of a part": lambda x, y, i: x[1:, 2:].diagonal().add_(1),
    "the diagonal filled": lambda x, y, i: x.fill_diagonal_(3.0),
    "added twice": lambda x, y, i: x[None][0, 4].add_(1).mul_(2),
}


@pytest.mark.parametrize("how", THROUGH_VIEWS)
@torch.no_grad()
def test_a_write_through_a_view_of_an_input_touches_what_it_writes_alone(how: str) -> None:
    def f(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        before = x[3:5] * 2
        THROUGH_VIEWS[how](x, y, i)
        return before + x[3:5]

    g = braze.compile(f, options={"verify": 2})
    y, i = torch.randn(8, 8), torch.tensor([6, 1])
    x, a = torch.ones(8, 8), torch.ones(8, 8)
    assert written(g, a, y, i) == 1
    torch.testing.assert_close(f(x, y, i), g(torch.ones(8, 8), y, i))
    torch.testing.assert_close(a, x)


@torch.no_grad()
def test_old_contents_of_a_part_are_put_aside_rather_than_the_whole_copied() -> None:
    def swap(x: Tensor) -> Tensor:
        a, b = x[3].clone(), x[5].clone()
        x[3] = x[4]
        x[4] = a
        x[5] = a + b
        x[6] = b
        return a - b

    g = braze.compile(swap, options={"verify": 2})
    x = torch.arange(64.0).view(16, 4)
    y = x.clone()
    assert written(g, x) == 1
    assert torch.equal(swap(y), g(z := torch.arange(64.0).view(16, 4)))
    assert torch.equal(x, y) and torch.equal(z, y)


@pytest.mark.parametrize("how", ["copied turned", "scattered into turned contents"])
@torch.no_grad()
def test_contents_that_come_back_in_another_order_are_no_write_in_place(how: str) -> None:
    """A square input whose new contents are its old ones turned, with a row replaced."""

    def f(x: Tensor, y: Tensor) -> None:
        if how == "copied turned":
            x.copy_(x.t().clone())
            x[0] = y
        else:
            x.copy_(torch.select_scatter(x.t(), y, 0, 1))

    x, y = torch.arange(16.0).view(4, 4), torch.zeros(4)
    z = x.clone()
    braze.compile(f)(x, y)
    if how == "copied turned":
        want = z.t().clone()
        want[0] = y
    else:
        want = torch.select_scatter(z.t(), y, 0, 1)
    assert torch.equal(x, want)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64])
@torch.no_grad()
def test_caches_of_types_that_loops_do_not_compute_with_are_written_in_place(dtype: torch.dtype) -> None:
    def f(x: Tensor, y: Tensor, i: Tensor) -> None:
        x[3] = y[0].to(x.dtype)
        x.view(4, -1)[1:2] = y[:2].to(x.dtype).view(1, -1)

    g = braze.compile(f, options={"verify": 2})
    x, y, i = torch.zeros(8, 4), torch.randn(2, 4), torch.tensor([6, 1])
    x, a = x.to(dtype), x.to(dtype)
    assert written(g, a, y, i) == 1
    f(x, y, i)
    assert torch.equal(a.view(torch.uint8), x.view(torch.uint8))


#: writes to a tensor of what is made of its own contents before
WRITES_OF_ITS_OWN = {
    "scatter": lambda x, i: x.scatter_(0, i, x.clone()),
    "product": lambda x, i: x.scatter_reduce_(0, i, x.clone(), "prod"),
    "put": lambda x, i: x.put_(i[0], x.reshape(-1)[:3].clone()),
    "masked": lambda x, i: x.masked_scatter_(x.real > 0, x.clone()),
    "copied": lambda x, i: x.index_copy_(0, 1 - i[:, 0], x.clone()),
    "behind another": lambda x, i: x.mul_(2).index_copy_(0, 1 - i[:, 0], x.clone()),
}


@pytest.mark.parametrize("how", WRITES_OF_ITS_OWN)
@torch.no_grad()
def test_complex_numbers_are_written_with_what_they_were(how: str) -> None:
    def f(x: Tensor, i: Tensor) -> None:
        WRITES_OF_ITS_OWN[how](x, i)

    g = braze.compile(f, options={"verify": 2})
    x, i = torch.randn(2, 3, dtype=torch.complex64), torch.tensor([[0, 0, 0], [1, 1, 1]])
    a = x.clone()
    with logged() as told:
        g(a, i)
    f(x, i)
    assert torch.equal(a, x) and not [message for message in told if "BZ9003" in message]


@torch.no_grad()
def test_a_cache_seen_as_slots_is_written_in_place_at_sizes_that_vary() -> None:
    def f(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        x.view(-1, 2, 4)[i] = y
        x.transpose(0, 1)[:1] = 2
        return x[0, :2] + 1

    g = braze.compile(f, options={"verify": 2}, dynamic=True)
    for blocks in (3, 5):
        x, y, i = torch.zeros(blocks, 4, 8), torch.randn(2, 2, 4), torch.tensor([5, 2])
        a = x.clone()
        torch.testing.assert_close(g(a, y, i), f(x, y, i))
        assert torch.equal(a, x)


class Queue(torch.nn.Module):
    """A layer under training that puts its results into a buffer, as queues of negatives and replay buffers are filled."""

    def __init__(self, how: str, rows: int = 32) -> None:
        super().__init__()
        self.layer, self.how = torch.nn.Linear(4, 4), how
        self.register_buffer("rows", torch.zeros(rows, 4))
        self.register_buffer("next", torch.tensor(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        seen = self.rows[:8].clone()
        with torch.no_grad():
            if self.how == "slice":
                self.rows[4:6] = y.detach()
            elif self.how == "positions":
                self.rows[(torch.arange(2) + self.next) % len(self.rows)] = y.detach()
                self.next += 2
            elif self.how == "whole":
                self.rows.lerp_(y.detach().mean(0).expand_as(self.rows), 0.25)
        return (y @ seen.t()).square().mean() + y.square().sum()


@pytest.mark.parametrize("how", ["slice", "positions", "whole"])
def test_a_training_step_fills_a_buffer_where_it_lies(how: str) -> None:
    """Old contents that the backward wants are its own: two forwards may go before their backwards."""
    eager, module = Queue(how), Queue(how)
    module.load_state_dict(eager.state_dict())
    compiled = braze.compile(module, options={"verify": 2})
    place = module.rows.data_ptr()
    for _ in range(3):
        xs = [torch.randn(2, 4) for _ in range(2)]
        for f in (eager, compiled):
            losses = [f(x) for x in xs]
            for loss in losses:
                loss.backward()
        torch.testing.assert_close(module.state_dict(), eager.state_dict())
        for ours, theirs in zip(module.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert module.rows.data_ptr() == place and module.rows._version > 0


def test_a_training_step_copies_no_buffer_of_which_it_writes_a_part() -> None:
    module = Queue("slice")
    assert written(braze.compile(module), torch.randn(2, 4)) == 1


@pytest.mark.parametrize("reads", ["itself", "a view", "a product with it"])
def test_a_backward_that_reads_what_was_written_is_refused_as_in_eager_or_right(reads: str) -> None:
    def f(w: Tensor, rows: Tensor) -> Tensor:
        if reads == "itself":
            y = w * rows
        elif reads == "a view":
            y = w[:2] * rows[2:4]
        else:
            y = (w * (rows * 2)) * rows.sum()
        with torch.no_grad():
            rows[3] = 5
        return y.sum()

    def step(g: Callable[..., Tensor]) -> Tensor | str:
        w, rows = torch.ones(4, 4, requires_grad=True), torch.arange(16.0).view(4, 4)
        try:
            g(w, rows).backward()
        except RuntimeError as error:
            return str(error).partition(":")[0]
        assert w.grad is not None and rows[3, 0] == 5
        return w.grad

    wanted, found = step(f), step(braze.compile(f))
    if isinstance(wanted, str):
        assert isinstance(found, str) or not torch.equal(found, torch.full((4, 4), 5.0))
    else:
        torch.testing.assert_close(found, wanted)


def windows(size: int, *starts: int) -> tuple[list[Tensor], Tensor]:
    """Rows of one memory, and the memory."""
    memory = torch.arange(12.0 * size).view(-1, 4)
    return [memory[at : at + size] for at in starts], memory


@pytest.mark.unverified
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_inputs_of_one_memory_are_told_apart_by_where_they_begin_and_end(size: int, grad: bool) -> None:
    """Side by side, the written one first or last; with a row in common; the same rows."""

    def f(written: Tensor, read: Tensor) -> Any:
        written.add_(read.flip(0))
        return read * 2, written.sum()

    compiled, one_less = braze.compile(f, dynamic=False), max(size - 1, 0)
    with torch.set_grad_enabled(grad):
        for starts in [(0, size), (size, 0), (0, 2 * size), (0, one_less), (one_less, 0), (0, 0), (0, size)]:
            (ours, memory), (theirs, expected) = windows(size, *starts), windows(size, *starts)
            for got, want in zip((*compiled(*ours), memory), (*f(*theirs), expected), strict=True):
                assert torch.equal(got, want), starts


def seen_as_other_bits(x: Tensor) -> Any:
    x[0] += 1
    copied = x[4:8].view(torch.int32).clone()
    x[5] = 7
    return copied


def seen_through_a_window_of_a_part(x: Tensor) -> Any:
    x[0] += 1
    copied = x[-4:].as_strided((4,), (1,))[-2:].clone()
    x[30] = 7
    return copied


def seen_through_two_calls(x: Tensor) -> Any:
    x[0] += 1
    copied = x.view(torch.int32)[2:].view(torch.int64).clone()
    x[9] = 7
    return copied


def seen_as_real_numbers(x: Tensor) -> Any:
    x[0] += 1
    copied = x.imag.clone()
    x[3] = 7j
    return copied


def seen_as_real_numbers_behind_a_place_that_is_looked_up(x: Tensor) -> Any:
    x[torch.tensor([1])] = 3j
    return torch.view_as_real(x).clone()


@pytest.mark.parametrize(
    ("program", "dtype"),
    [
        (seen_as_other_bits, torch.uint8),
        (seen_through_a_window_of_a_part, torch.uint8),
        (seen_through_two_calls, torch.uint8),
        (seen_as_real_numbers, torch.complex64),
        (seen_as_real_numbers_behind_a_place_that_is_looked_up, torch.complex64),
    ],
    ids=lambda p: getattr(p, "__name__", str(p)),
)
def test_what_is_copied_of_a_view_that_a_call_takes_is_apart_from_the_input(program: Any, dtype: Any) -> None:
    """ATen's view of an input that the graph writes lies in its memory: what is to stay as it was is no such view."""
    x = torch.arange(32).to(dtype)
    y = x.clone()
    expected = program(x)
    actual = braze.compile(program, options={"verify": 2})(y)
    assert torch.equal(actual, expected)
    assert torch.equal(y, x)
    assert actual.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()


def test_a_compile_ends_where_an_input_cannot_be_renewed() -> None:
    """An argument without rows, of which views, a scatter and a checkpoint are written back (`tensors` 7200003560)."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        v0 = checkpoint(lambda: x.diagonal_scatter(x.diagonal() * 2), use_reentrant=False)
        v1 = v0[::2]
        v2 = torch.nn.functional.pairwise_distance(x, v1)
        v1[..., -1] = True
        v0.scatter_add_(1, torch.zeros_like(v0, dtype=torch.int64), v0.clone())
        x[...] = v1
        v4 = 2**x
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.functional.softmin(v4, 1)
        return v4, v1.isinf(), v2.cos()

    x = torch.zeros(0, 4, dtype=torch.float64)
    for ours, eager in zip(braze.compile(f)(x), f(x), strict=True):
        assert torch.equal(ours, eager) and ours.stride() == eager.stride()
