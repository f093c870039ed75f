"""Arrays of numpy as inputs: how often a function of them is compiled, what its graphs hold, what is said."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.graph.nodes.facts import InputRole, facts
from braze.graph.private.holders import owns_all
from braze.support import trace
from braze.support.errors import CaptureError, UserError
from braze.support.log import forget_warnings


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    forget_warnings()
    yield
    braze.reset()


class Counted:
    """A compiled function, and the graphs that its backend got."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.graphs: list[Any] = []
        self.compiled = braze.compile(fn, backend=self.backend, **options)

    def backend(self, gm: Any, examples: Any, **words: Any) -> Any:
        self.graphs.append(gm)
        return gm.forward

    def __call__(self, *args: Any) -> Any:
        return self.compiled(*args)


def add(x: torch.Tensor, a: Any) -> Any:
    return x + torch.from_numpy(a) * a.shape[0], len(a)


def test_sizes_that_change_become_symbols() -> None:
    f = Counted(add)
    for n in (3, 3, 5, 7, 4, 9, 12):
        a = np.arange(2.0 * n).reshape(n, 2)
        result, length = f(torch.ones(n, 2), a)
        assert torch.equal(result, 1 + torch.from_numpy(a) * n) and length == n
    assert len(f.graphs) == 2


def test_dynamic_from_the_first_call() -> None:
    f = Counted(add, dynamic=True)
    for n in (3, 5, 7):
        f(torch.ones(n, 2), np.ones((n, 2)))
    assert len(f.graphs) == 1


def test_sizes_of_arrays_have_names() -> None:
    f = Counted(add, shapes={"x": ("B<=8", 2), "a": ("B", 2)})
    for n in (3, 5, 7):
        f(torch.ones(n, 2), np.ones((n, 2)))
    assert len(f.graphs) == 1
    with pytest.raises(UserError, match="BZ0021"):
        f(torch.ones(9, 2), np.ones((9, 2)))
    with pytest.raises(UserError, match="BZ0021"):
        f(torch.ones(9, 2), np.ones(9))


def test_what_an_array_holds_is_not_asked() -> None:
    f = Counted(add, fullgraph=True)
    for n in range(5):
        a = np.full((2, 2), float(n))
        assert torch.equal(f(torch.ones(2, 2), a)[0], torch.full((2, 2), 1.0 + 2 * n, dtype=torch.float64))
    assert len(f.graphs) == 1


def test_one_variant_for_each_dtype_and_number_of_dimensions() -> None:
    f = Counted(add)
    arrays = [
        np.ones((2, 2), np.float32),
        np.ones((2, 2), np.int8),
        np.ones((2, 2, 2)),
        np.ones((2, 2)).T.copy(),
    ]
    for a in arrays * 3:
        f(torch.ones(2, 2), a)
    assert len(f.graphs) == 4


def test_one_array_is_one_input() -> None:
    def f(a: Any) -> Any:
        return torch.from_numpy(a) + torch.as_tensor(a), torch.tensor(a)

    g = Counted(f, fullgraph=True)
    g(np.ones(3))
    (graph,) = g.graphs
    (given,) = [node for node in graph.graph.nodes if node.op == "placeholder"]
    assert facts(given).role is InputRole.USER and given.meta["val"].dtype is torch.float64


def test_metadata_alone_need_no_graph() -> None:
    f = Counted(lambda a: (a.shape, a.dtype, len(a), np.ndim(a)), fullgraph=True)
    assert f(np.ones((2, 3), np.uint8)) == ((2, 3), np.dtype("uint8"), 2, 2)
    assert f(np.ones((2, 3), np.float16)) == ((2, 3), np.dtype("float16"), 2, 2)
    assert not f.graphs


def test_an_array_of_a_module_is_no_parameter() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = np.ones(3, np.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.from_numpy(self.table)

    model = Model()
    f = Counted(model, fullgraph=True)
    for n in range(3):
        model.table = np.full(3, n, np.float32)
        assert torch.equal(f(torch.ones(3)), torch.full((3,), float(n)))
    (graph,) = f.graphs
    assert {facts(node).role for node in graph.graph.nodes if node.op == "placeholder"} == {InputRole.USER}


def test_an_overlap_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def f(a: Any, b: Any) -> Any:
        y, z = torch.from_numpy(a), torch.from_numpy(b)
        y.add_(1)
        return z + 0

    g = Counted(f)
    with caplog.at_level(logging.WARNING, logger="braze"):
        assert g(np.zeros(3), np.zeros(3)).tolist() == [0, 0, 0]
        assert not caplog.records
        for _ in range(2):
            base = np.zeros(5)
            assert g(base[:3], base[2:]).tolist() == [1, 0, 0]
    assert [r.getMessage()[:7] for r in caplog.records if "BZ2017" in r.getMessage()] == ["BZ2017:"]


def test_copies_of_arrays_that_may_not_be_written_warn_no_more_than_in_eager() -> None:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        frozen = np.broadcast_to(np.float32(2), (3,))
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            f = braze.compile(lambda a: torch.tensor(a) * 2, backend="eager")
            for a in (np.ones(3, np.float32), frozen, frozen):
                f(a)
            g = braze.compile(lambda a: torch.tensor(a) * 2, backend="eager")
            for a in (frozen, np.ones(3, np.float32), frozen):
                g(a)
        assert not [w for w in heard if "not writable" in str(w.message)]
        with pytest.warns(UserWarning, match="not writable"):
            braze.compile(lambda a: torch.from_numpy(a) * 2, backend="eager")(frozen)
    finally:
        torch.set_warn_always(before)


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (lambda a: np.sum(a), "BZ1014"),
        (lambda a: a.sum(), "BZ1014"),
        (lambda a: a * 2, "BZ1014"),
        (lambda a: a[0], "BZ1014"),
        (lambda a: torch.ones(3) + a, "BZ1014"),
        (lambda a: a.__setitem__(0, 1), "BZ1014"),
        (lambda a: torch.from_numpy(a).numpy(), "BZ1004"),
        (lambda a: torch.from_numpy(a[::-1]), "BZ1014"),
        (lambda a: torch.stack([torch.from_numpy(a), a]) if a is None else torch.as_tensor([a, a]), "BZ1013"),
    ],
)
def test_what_numpy_computes_breaks_the_graph(fn: Any, code: str) -> None:
    with pytest.raises(CaptureError, match=code):
        braze.compile(fn, backend="eager", fullgraph=True)(np.ones(3))


@pytest.mark.parametrize(
    "array", [np.ones(3)[::-1], np.ones(3, ">f4"), np.array([None]), np.zeros(2, "f4,i4")], ids=repr
)
def test_of_what_pytorch_refuses_no_input_is_made(array: Any) -> None:
    with pytest.raises(CaptureError, match="BZ1013"):
        braze.compile(lambda a: torch.from_numpy(a), fullgraph=True)(array)


def test_a_recompile_says_what_array_it_met() -> None:
    f = braze.compile(lambda a: torch.from_numpy(a) + 1, backend="eager")
    frozen = np.ones(3)
    frozen.flags.writeable = False
    texts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for array in (np.ones(3), np.ones(3, np.int8), frozen):
            with trace.collect() as events:
                f(array)
            texts += [miss.text for kind, event in events if kind == "recompile" for miss in event.misses[:1]]
    assert "torch.from_numpy(a) is float64[3]" in texts[0] and "now int8[3]" in texts[0]
    assert "now an array that may not be written" in texts[1]


def test_an_array_that_is_refused_does_not_stand_in_the_way_of_others() -> None:
    f = Counted(lambda a: torch.from_numpy(a) + 1)
    g = Counted(lambda a: torch.tensor(a) + 1)
    frozen = np.ones(3, np.int16)
    frozen.flags.writeable = False
    for array in (np.ones(3)[::-1], np.ones(3, ">f4"), np.array([None])):
        for fn in (f, g):
            with pytest.raises((TypeError, ValueError)):
                fn(array)
    assert g(frozen).tolist() == [2, 2, 2]
    f.graphs.clear()
    g.graphs.clear()
    for dtype in (np.float32, np.float64, np.int16, np.float32):
        with trace.collect() as events:
            f(np.ones(3, dtype))
            g(np.ones(3, dtype))
        assert not [event for kind, event in events if kind == "break"]
    assert (len(f.graphs), len(g.graphs)) == (3, 3)


def test_many_threads_with_arrays_of_their_own() -> None:
    f = Counted(lambda x, a: (x + torch.from_numpy(a), a.shape))
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(30):
            n = 2 + (7 * i + k) % 11
            result, shape = f(torch.ones(n, 2), np.full((n, 2), float(k), np.float32))
            if shape != (n, 2) or not torch.equal(result, torch.full((n, 2), 1.0 + k)):
                wrong.append((k, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(f.graphs) <= 2


def test_a_backward_leaves_the_memory_of_arrays_alone() -> None:
    """Large saved values that nobody else holds may be written over; an array holds this one."""

    def f(a: Any, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.sin(torch.from_numpy(a) * w) + 1) * 2

    compiled = braze.compile(f)
    n = 1 << 18
    for _ in range(2):
        a, given = np.full(n, 0.5, np.float32), np.full(n, 0.25, np.float32)
        w, theirs = (torch.linspace(-1, 1, n).requires_grad_() for _ in range(2))
        compiled(a, w).backward(torch.from_numpy(given))
        assert (a == 0.5).all() and (given == 0.25).all()
        f(a, theirs).backward(torch.from_numpy(given))
        torch.testing.assert_close(w.grad, theirs.grad)


def test_memory_of_an_array_is_held() -> None:
    """The count of references to a tensor says nothing of an array below it."""

    assert owns_all(torch.zeros(4))
    assert not owns_all(torch.from_numpy(np.zeros(4))) and not owns_all(torch.zeros(4)[1:])
    assert not owns_all(torch.frombuffer(bytearray(16), dtype=torch.float32))


NUMBERS = (
    np.bool_(True),
    np.int8(3),
    np.uint8(3),
    np.float16(1.5),
    np.float32(2.5),
    np.float64(2.5),
    np.longdouble(1.5),
    np.complex128(2.5),
    np.complex64(2.5),
)


def told(fn: Any, *args: Any) -> Any:
    """Type and numbers of a result, or the type of the error."""
    try:
        results = fn(*args)
    except Exception as error:
        return type(error)
    listed = results if isinstance(results, (list, tuple)) else [results]
    return [(r.dtype, r.tolist()) for r in listed]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x * n,
        lambda x, n: n + x,
        lambda x, n: torch.full((2,), n),
        lambda x, n: torch.where(x > 1, x, n),
        lambda x, n: x.clamp(max=n),
        lambda x, n: torch.add(x, x, alpha=n),
        lambda x, n: x.clone().add_(n),
        lambda x, n: torch._foreach_mul([x, x + 1], [n, n]),
        lambda x, n: torch.tensor(n),
        lambda x, n: torch.tensor([n, 1]),
        lambda x, n: torch.tensor(data=n),
        lambda x, n: torch.as_tensor(data=n),
        lambda x, n: torch.asarray(obj=n),
        lambda x, n: x.new_tensor(n),
        lambda x, n: (x * 1j).new_tensor(data=n),
    ],
)
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_a_number_of_numpys_is_of_the_kind_that_pytorch_takes_it_for(fn: Any, number: Any) -> None:
    compiled = braze.compile(fn, backend="eager")
    for x in (torch.tensor([1, 2]), torch.tensor([1.5, 2.0]), torch.tensor([True, False])):
        assert told(compiled, x, number) == told(fn, x, number)
