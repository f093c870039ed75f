"""What the data make a graph raise finds the arguments as eager leaves them: written before, and not after; and the program's handlers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import braze
from tests.helpers import logged

Tensor = torch.Tensor

pytestmark = pytest.mark.usefixtures("fresh")


def before(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x.add_(1)
    return y[i]


def before_and_after(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x.add_(1)
    z = y[i]
    x.mul_(z.sum())
    return z


def after(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    z = y[i]
    x.add_(1)
    return z


def parts(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x[0] = y.sum()
    x[1].mul_(3)
    z = F.embedding(i, y[:, None])
    x[2] = 0
    return z


def parts_that_lead_to_it(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x[0] += 1
    z = torch.linalg.inv(y[:4].view(2, 2) * n + x[0] * 0)
    x[1] = 7
    return z


def twice(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x.mul_(2)
    x.index_copy_(0, i, y[:2])
    return x * 2


def both_written(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x.add_(1)
    y.mul_(2)
    return (x.sin() + y[:4])[i]


def handled(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x.add_(1)
    try:
        return y[i]
    except IndexError:
        x.mul_(7)
        return x * 2


def number_handled(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x.add_(1)
    try:
        x.masked_fill_(x > 0, n << 50)
    except RuntimeError:
        return x * 2
    return x.sum()


def statistics(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    h = F.batch_norm(y[:4].view(2, 2), x[:2], x[2:], training=True)
    return F.nll_loss(h, i)


def drawn(x: Tensor, y: Tensor, i: Tensor, n: int) -> Tensor:
    x.add_(F.dropout(y[:4], 0.5))
    z = y[i]
    return z + torch.rand(2)


OUTSIDE, NO_INVERSE, LARGE = (torch.tensor([0, 9]), 1), (torch.tensor([0, 1]), 0), (torch.tensor([0, 1]), 2)
CASES = {
    f.__name__: (f, bad)
    for f, bad in (
        (before, OUTSIDE), (before_and_after, OUTSIDE), (after, OUTSIDE), (parts, OUTSIDE), (parts_that_lead_to_it, NO_INVERSE),
        (twice, OUTSIDE), (both_written, OUTSIDE), (handled, OUTSIDE), (number_handled, LARGE), (statistics, OUTSIDE), (drawn, OUTSIDE),
    )
}  # fmt: skip


def outcome(call: Callable[..., Any], x: Tensor, y: Tensor, i: Tensor, n: int) -> list[Any]:
    """What a call gives or raises, what its arguments hold then, how often they were written, and what is drawn next."""
    torch.manual_seed(0)
    try:
        told: Any = call(x, y, i, n)
    except Exception as error:
        told = (type(error), str(error), error.__dict__)
    return [told, x, y, x._version, torch.rand(())]


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return all(
        torch.allclose(a, b) if isinstance(b, Tensor) else a == b for a, b in zip(ours, theirs, strict=True)
    )


def arguments(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.arange(1.0, 5.0).to(dtype), torch.tensor([1.0, 2.0, 3.0, 7.0, 5.0]).to(dtype)


@pytest.mark.provokes("BZ6013")
@pytest.mark.parametrize("name", ["handled", "number_handled"])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_program_that_writes_handles_what_its_data_raise(
    name: str, backend: str, dynamic: bool | None
) -> None:
    program, (i, n) = CASES[name]
    dtype = torch.float16 if name == "number_handled" else torch.float32
    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    with logged() as told:
        for index, number in ((torch.tensor([0, 1]), 0), (i, n), (torch.tensor([1, 0]), 0), (i, n)):
            ours, theirs = (outcome(f, *arguments(dtype), index, number) for f in (compiled, program))
            assert same(ours, theirs) if index is i else same(ours[:3], theirs[:3])
    assert [m for m in told if m.startswith("BZ6013")]


@pytest.mark.parametrize("name", [name for name in CASES if "handled" not in name])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_was_written_before_an_error_stands_and_what_comes_after_it_is_not_written(
    name: str, backend: str, dynamic: bool | None
) -> None:
    program, (i, n) = CASES[name]
    compiled = braze.compile(
        program, backend=backend, dynamic=dynamic, options={"fallback_random": True, "verify": 2}
    )
    for index, number in ((torch.tensor([0, 1]), 1), (i, n), (torch.tensor([1, 0]), 1), (i, n)):
        ours, theirs = (outcome(f, *arguments(), index, number) for f in (compiled, program))
        assert isinstance(ours[0], tuple) is (index is i)
        assert same(ours, theirs) if index is i else same(ours[:3], theirs[:3])


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_in_training_too_what_was_written_stands(backend: str) -> None:
    def program(x: Tensor, w: Tensor, i: Tensor) -> Tensor:
        x.mul_(2)
        loss = (w * x.sum()).sin()[i].sum()
        x.add_(1)
        return loss

    compiled = braze.compile(program, backend=backend)
    for index in (torch.tensor([1, 2]), torch.tensor([1, 9])):
        found = []
        for call in (compiled, program):
            x, w = torch.ones(3), torch.ones(4, requires_grad=True)
            try:
                call(x, w, index).backward()
            except IndexError as error:
                found.append([str(error), x])
            else:
                found.append([w.grad, x])
        assert same(*found)


def test_a_part_that_is_written_in_place_is_written_once_where_something_fails_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones are: what they lead to may find them written, and then Python does not write them again."""

    def program(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        x[0] += 1
        return torch.linalg.inv(y + x[0, :2] * 0) + x[0, :2]

    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    compiled = braze.compile(program)
    x, good, bad = torch.zeros(64, 512), torch.eye(2), torch.zeros(2, 2)
    compiled(x, good, None)
    (host,) = tmp_path.glob("*_graph_host.py")
    assert "x_w1" in host.read_text() and "note_written" in host.read_text()
    with pytest.raises(torch.linalg.LinAlgError) as caught:
        compiled(x, bad, None)
    assert torch.equal(x[0], torch.full((512,), 2.0)) and not x[1:].any()
    assert not caught.value.__dict__


def test_a_write_that_fails_halfway_is_not_done_twice() -> None:
    def program(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        x.index_add_(0, i, y)
        return x * 2

    compiled = braze.compile(program)
    for shape in ((4,), (20_000,)):  # as it was is put back, or what is there counts
        for index in (torch.tensor([1, 2]), torch.tensor([0, 99_999])):
            x, other, y = torch.ones(shape), torch.ones(shape), torch.ones(2)
            for call, written in ((compiled, x), (program, other)):
                if index[1] == 2:
                    call(written, y, index)
                else:
                    with pytest.raises(IndexError):
                        call(written, y, index)
            assert torch.equal(x, other)


@pytest.mark.provokes("BZ6013")
def test_the_handler_of_a_write_that_fails_halfway_finds_what_eager_has_written() -> None:
    def program(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
        try:
            x.index_add_(0, i, y)
        except IndexError:
            return x * 2
        return x

    compiled = braze.compile(program)
    for index in (torch.tensor([1, 2]), torch.tensor([0, 99_999])):
        x, other, y = torch.ones(4), torch.ones(4), torch.ones(2)
        assert torch.equal(compiled(x, y, index), program(other, y, index)) and torch.equal(x, other)


def test_what_may_fail_comes_before_the_first_part_that_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of keys: the table of embeddings is looked up after it is written, and no cache is copied for that."""

    def program(cache: Tensor, at: Tensor, key: Tensor, table: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        cache.index_copy_(0, at, key)
        cache[5:7] *= 2
        return cache.sum(), table[i]

    monkeypatch.setenv("BRAZE_DUMP", str(tmp_path))
    compiled = braze.compile(program)
    at, key, table = torch.tensor([3]), torch.ones(1, 8), torch.ones(10, 8)
    compiled(torch.ones(4096, 8), at, key, table, torch.tensor([1]))
    told = []
    for call in (compiled, program):
        cache = torch.ones(4096, 8)
        with pytest.raises(IndexError) as caught:
            call(cache, at, key, table, torch.tensor([10]))
        told.append((str(caught.value), cache.sum().item()))
    assert told[0] == told[1], "Python raises it, from the beginning of the call"
    (host,) = tmp_path.glob("*_graph_host.py")
    assert "cache_w2" in host.read_text()


def test_what_the_programs_own_code_raises_in_a_graph_that_writes_is_raised_once() -> None:
    calls = []

    @torch.library.custom_op("braze_tests::refuses", mutates_args=())
    def refuses(x: Tensor) -> Tensor:
        calls.append(x.sum().item())
        if len(calls) == 2:
            raise ValueError("mine")
        return x.clone()

    refuses.register_fake(lambda x: torch.empty_like(x))

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return refuses(y) * 2

    compiled = braze.compile(program)
    x, y = torch.zeros(3), torch.ones(3)
    compiled(x, y)
    with pytest.raises(ValueError, match="mine"):
        compiled(x, y)
    assert len(calls) == 2


@pytest.mark.parametrize("region", [torch.tanh, lambda t: torch.dropout(t, 0.5, True)])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_what_a_call_has_done_before_an_error_behind_a_checkpoint_is_done(
    region: Callable[[Tensor], Tensor], backend: str
) -> None:
    """A region that only computes, and draws random numbers, is begun again by Python as all else is."""

    def seen(compiling: Callable[[Any], Any]) -> list[Any]:
        calls: list[int] = []
        count, weight = torch.zeros(()), torch.ones(3, 3, dtype=torch.float64, requires_grad=True)

        def program(x: Tensor) -> Tensor:
            calls.append(len(x))
            count.add_(1)
            return checkpoint(region, x, use_reentrant=False) @ weight

        called, found = compiling(program), []
        for dtype in (torch.float64, torch.float32, torch.float64, torch.float32):
            torch.manual_seed(0)
            try:
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.float32):
                    found.append(str(called(torch.ones(2, 3, dtype=dtype)).dtype))
            except RuntimeError as error:
                found.append(str(error))
            found.append((len(calls), float(count), float(torch.rand(()))))
        return found

    options = {"fallback_random": True}
    assert seen(lambda f: braze.compile(f, backend=backend, options=options)) == seen(lambda f: f)


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 2


class DrawsAlong(Doubles):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.rand_like(x) * 2 + x


class WritesItsArgument(Doubles):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.add_(1)
        ctx.mark_dirty(x)
        return x


def hooked(x: Tensor) -> Tensor:
    h = x * 1
    h.register_hook(lambda g: g * 2)
    return h


@pytest.mark.parametrize("own", [Doubles.apply, DrawsAlong.apply, WritesItsArgument.apply, hooked])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
def test_what_a_call_has_done_before_an_error_beside_a_backward_of_its_own_is_done(
    own: Callable[[Tensor], Tensor], backend: str
) -> None:
    """Functions that only compute and hooks, which run backward, do not keep Python from beginning again."""

    def seen(compiling: Callable[[Any], Any]) -> list[Any]:
        calls: list[int] = []

        def program(x: Tensor, y: Tensor, i: Tensor) -> Tensor:
            calls.append(len(x))
            x.add_(1)
            return own(y).sum() + x[i]

        called, found = compiling(program), []
        for index in (torch.tensor([0]), torch.tensor([9]), torch.tensor([1]), torch.tensor([9])):
            y = torch.ones(3, requires_grad=True) * 1
            told = outcome(lambda x, y, i, n: called(x, y, i).sum(), torch.ones(4), y, index, 0)
            found += [*(x.detach() if isinstance(x, Tensor) else x for x in told), len(calls)]
        return found

    options = {"fallback_random": True}
    assert same(seen(lambda f: braze.compile(f, backend=backend, options=options)), seen(lambda f: f))


def test_as_captured_too_an_argument_that_a_function_of_the_programs_writes_is_written_once() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return WritesItsArgument.apply(y).sum() + torch.linalg.inv(x).sum()

    compiled = braze.compile(program, backend="eager")
    for x in (torch.eye(2), torch.zeros(2, 2)):
        found = [
            outcome(lambda x, y, i, n, f=f: f(x, y).detach(), x, torch.ones(3, requires_grad=True) * 1, x, 0)
            for f in (compiled, program)
        ]
        assert same(*([v.detach() if isinstance(v, Tensor) else v for v in told] for told in found))
