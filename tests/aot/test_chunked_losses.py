"""A linear layer and its cross entropy in chunks: which losses, with which numbers, in how much memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import braze
from braze.aot.passes import chunked_losses
from braze.inspect.memory import peak_bytes
from braze.runtime.operators import linear_loss
from braze.support import trace

CLASSES, WIDTH = 90, 16
ALWAYS = {"chunk_losses": True}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Chunks of one step of 32 rows, so that small losses have several."""
    monkeypatch.setattr(chunked_losses, "STEP", 32)
    monkeypatch.setitem(chunked_losses.CHUNK, "cpu", 1)
    torch.manual_seed(0)


def results(fn: Callable[..., Any], args: tuple[Any, ...], scale: float = 3.0) -> list[torch.Tensor]:
    """The loss, and gradients of ``scale`` times it."""
    loss = fn(*args)
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return [loss.detach(), *torch.autograd.grad(loss * scale, wanted)]


def doubled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        a.detach().double().requires_grad_(a.requires_grad)
        if isinstance(a, torch.Tensor) and a.is_floating_point()
        else a
        for a in args
    )


def told(
    fn: Callable[..., Any], args: tuple[Any, ...], options: Any = None, backend: Any = "braze"
) -> tuple[list[torch.Tensor], list[str]]:
    """What the compiled function gives, and what is said of its losses."""
    braze.reset()
    words = {"options": options or ALWAYS} if backend == "braze" else {}
    with trace.collect() as events:
        found = results(braze.compile(fn, backend=backend, **words), args)
    return found, [str(text) for kind, text in events if kind == "loss"]


def without_kernels(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """A backend that runs the captured graph with its losses in chunks."""
    return chunked_losses.chunk_losses(gm, True).forward


def check(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """The loss is made in chunks, and is no further from float64's than eager's is."""
    ours, said = told(fn, args)
    assert len(said) == 1 and "in chunks of 32 rows" in said[0], said
    eager, exact = results(fn, args), results(fn, doubled(args))
    for mine, theirs, true in zip(ours, eager, exact, strict=True):
        assert mine.dtype is theirs.dtype and mine.shape == theirs.shape
        size = float(true.abs().max()) + 1e-30
        assert float((mine - true).abs().max()) <= 2 * float((theirs - true).abs().max()) + 2e-6 * size


def hidden(*lead: int) -> torch.Tensor:
    return torch.randn(*lead, WIDTH, requires_grad=True)


def weight() -> torch.Tensor:
    return torch.randn(CLASSES, WIDTH, requires_grad=True)


def targets(*shape: int, ignored: int | None = None) -> torch.Tensor:
    made = torch.randint(0, CLASSES, shape)
    if ignored is not None:
        made.view(-1)[::3] = ignored
    return made


def plain(h: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(h, w), t)


def _as_many_as_classes(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Logits of two sequences that are as long as there are classes: which dimension is which, sizes do not tell."""
    return F.linear(h[:2, None] * torch.linspace(0, 1, CLASSES)[:, None], w)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [None, -100, 7])
def test_settings(reduction, smoothing, ignored):
    def loss(h, w, b, t):
        given = {} if ignored is None else {"ignore_index": ignored}
        logits = F.linear(h, w, b)
        return F.cross_entropy(logits, t, reduction=reduction, label_smoothing=smoothing, **given)

    bias = torch.randn(CLASSES, requires_grad=True)
    check(loss, (hidden(100), weight(), bias, targets(100, ignored=ignored)))


def test_classes_with_weights():
    def loss(h, w, t, c):
        return F.cross_entropy(F.linear(h, w), t, weight=c, ignore_index=3)

    check(loss, (hidden(70), weight(), targets(70, ignored=3), torch.rand(CLASSES)))


@pytest.mark.parametrize(
    "loss",
    [
        lambda h, w, t: F.cross_entropy(F.linear(h, w).view(-1, CLASSES), t.view(-1)),
        lambda h, w, t: F.cross_entropy(F.linear(h, w).float().flatten(0, 1), t.flatten()),
        lambda h, w, t: F.cross_entropy(F.linear(h, w)[:, :-1].reshape(-1, CLASSES), t[:, 1:].reshape(-1)),
        lambda h, w, t: F.cross_entropy(
            F.linear(h, w)[..., :-1, :].contiguous().view(-1, CLASSES), t[..., 1:].contiguous().view(-1)
        ),
        lambda h, w, t: F.cross_entropy(F.linear(h, w).transpose(1, 2), t),
        lambda h, w, t: F.cross_entropy(F.linear(h, w)[:, 1:].permute(0, 2, 1), t[:, 1:]),
        lambda h, w, t: F.cross_entropy(
            F.linear(h, w)[:, :-1][:, ::2].reshape(-1, CLASSES), t[:, :-1][:, ::2].reshape(-1)
        ),
        lambda h, w, t: F.cross_entropy((h @ w.t()).view(-1, CLASSES), t.view(-1)),
        lambda h, w, t: F.cross_entropy(
            (torch.tanh(F.linear(h, w) / 3.0) * 3.0).view(-1, CLASSES), t.view(-1)
        ),
        lambda h, w, t: F.nll_loss(F.log_softmax(F.linear(h, w).view(-1, CLASSES), -1), t.view(-1)),
        lambda h, w, t: F.cross_entropy(F.linear(h * 2, w).view(-1, CLASSES), t.view(-1)) * 2 + w.sum(),
    ],
    ids=[
        "view",
        "flatten",
        "shift",
        "dots",
        "transpose",
        "permute",
        "two slices",
        "matmul",
        "softcap",
        "nll",
        "around",
    ],
)
def test_ways_from_the_layer_to_the_loss(loss):
    check(loss, (hidden(3, 40), weight(), targets(3, 40)))


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda h, w, t: _and_logits(h, w, t)[0] + _and_logits(h, w, t)[1], "is read by"),
        (lambda h, w, t: F.cross_entropy(F.linear(h, w), t, reduction="none").sum(), "a number per row"),
        (lambda h, w, t: F.cross_entropy(F.linear(h, w), F.one_hot(t, CLASSES).float()), "probabilities"),
        (lambda h, w, t: F.cross_entropy(F.linear(h, w) * 2, t), "scaled"),
        (lambda h, w, t: F.cross_entropy(F.linear(h, w).relu(), t), "relu"),
        (lambda h, w, t: F.cross_entropy(F.linear(h, w)[:, :50], t % 50), "part of the classes"),
        (
            lambda h, w, t: F.cross_entropy(F.linear(h, w).view(2, -1, CLASSES)[:1].flatten(0, 1), t[:35]),
            "reshapes",
        ),
        (lambda h, w, t: F.cross_entropy(h.exp() + w[:70, :1], t % WIDTH), "between the layer and the loss"),
        (
            lambda h, w, t: F.cross_entropy(F.linear(h, w), t, w.detach()[:, 0].abs(), label_smoothing=0.1),
            "smoothed and classes weighted",
        ),
        (lambda h, w, t: F.cross_entropy(F.linear(h, w).to(torch.float64), t), "cast to torch.float64"),
        (lambda h, w, t: F.cross_entropy(torch.tanh(3.0 / F.linear(h, w)) * 3.0, t), "changes them"),
        (lambda h, w, t: F.cross_entropy(torch.tanh(F.linear(h, w) / 3.0) * 2.0, t), "scaled, not capped"),
        (lambda h, w, t: F.cross_entropy(F.linear(h, w), t, reduce=False).sum(), "size_average or reduce"),
        (lambda h, w, t: F.nll_loss(F.log_softmax(F.linear(h, w), 0), t), "not over the last"),
        (lambda h, w, t: F.nll_loss(F.linear(h, w).softmax(1), t), "no log_softmax"),
        (lambda h, w, t: F.nll_loss(F.softmax(F.linear(h, w), 1), t), "no log_softmax"),
        (
            lambda h, w, t: F.nll_loss(F.log_softmax(F.linear(h, w), -1, dtype=torch.float64), t),
            "not over the last",
        ),
        (
            lambda h, w, t: F.cross_entropy(
                F.linear(h.view(10, 7, WIDTH), w).transpose(0, 1), t[:7, None].expand(7, CLASSES) % 10
            ),
            "turns them",
        ),
        (
            lambda h, w, t: F.cross_entropy(
                _as_many_as_classes(h, w).transpose(1, 2).transpose(1, 2), t[:1].expand(2, CLASSES)
            ),
            "transpose stands between",
        ),
        (
            lambda h, w, t: F.cross_entropy(_as_many_as_classes(h, w).flip(1, 2), t[:1].expand(2, CLASSES)),
            "not the last dimension",
        ),
        (
            lambda h, w, t: F.cross_entropy(
                (h.view(2, 35, WIDTH) @ torch.stack([w.t(), w.t() * 2])).flatten(0, 1), t
            ),
            "no linear layer's",
        ),
        (lambda h, w, t: F.cross_entropy(F.linear(h[0], w).view(1, CLASSES), t[:1]), "one row"),
        (
            lambda h, w, t: F.cross_entropy(F.linear(h.view(2, 35, WIDTH), w).flatten(0, 1)[:50], t[:50]),
            "reshapes",
        ),
    ],
    ids=[
        "read", "none", "probabilities", "scaled", "relu", "classes", "reshape", "no layer", "both", "double",
        "number over them", "two caps", "reduce", "other dimension", "softmax alone", "softmax by name", "softmax in double",
        "turned", "turned and back", "the other way round", "batch of matrices", "one row", "rows of all",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:size_average and reduce args")
def test_what_stays_says_why(loss, why):
    args = (hidden(70), weight(), targets(70))
    ours, said = told(loss, args, backend=without_kernels)
    assert said and all("exist whole" in text for text in said) and why in said[0]
    for mine, theirs in zip(ours, results(loss, args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def _and_logits(h: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits = F.linear(h, w)
    return F.cross_entropy(logits, t), logits.square().mean()


def test_logits_that_are_returned_exist_whole():
    def loss(h, w, t):
        logits = F.linear(h, w)
        return F.cross_entropy(logits, t), logits

    args = (hidden(70), weight(), targets(70))
    with trace.collect() as events:
        found, logits = braze.compile(loss, options=ALWAYS)(*args)
    said = [text for kind, text in events if kind == "loss"]
    assert len(said) == 1 and "read by" in said[0] and "the caller" in said[0]
    torch.testing.assert_close(logits, F.linear(*args[:2]))
    torch.testing.assert_close(found, plain(*args))


def test_the_switch():
    args = (hidden(70), weight(), targets(70))
    assert told(plain, args, {"chunk_losses": False})[1] == []
    assert told(plain, args, {"verify": 0})[1] == []  # small logits


@pytest.mark.parametrize("bytes_of", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", [F.linear, lambda h, w: h @ w.t()], ids=["linear", "matmul"])
def test_a_chunk_is_as_many_rows_as_its_bytes_allow(layer, bytes_of, monkeypatch):
    monkeypatch.setitem(chunked_losses.CHUNK, "cpu", 100 * CLASSES * bytes_of.itemsize)
    args = (hidden(130).detach().to(bytes_of), weight().detach().to(bytes_of), targets(130))
    with torch.no_grad(), trace.collect() as events:
        found = braze.compile(lambda h, w, t: F.cross_entropy(layer(h, w), t), options=ALWAYS)(*args)
    assert [str(text).split(": ")[1] for kind, text in events if kind == "loss"] == ["in chunks of 96 rows"]
    torch.testing.assert_close(found, plain(*args))


def test_large_logits_are_chunked_unasked(monkeypatch):
    monkeypatch.setattr(chunked_losses, "LARGE", 70 * CLASSES * 4)
    assert len(told(plain, (hidden(70), weight(), targets(70)), {"verify": 0})[1]) == 1


def test_tied_weights_gather_both_gradients():
    def loss(w, ids, t):
        return plain(F.embedding(ids, w).tanh(), w, t)

    check(loss, (weight(), torch.randint(0, CLASSES, (100,)), targets(100)))


def test_without_gradients():
    args = (hidden(70), weight(), targets(70))
    with torch.no_grad(), trace.collect() as events:
        found = braze.compile(plain, options=ALWAYS)(*args)
    assert any(kind == "loss" for kind, _ in events)
    torch.testing.assert_close(found, plain(*args).detach())


def test_only_what_requires_grad_gets_one():
    args = (hidden(70).detach(), weight(), targets(70))
    check(plain, args)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_where_no_row_counts(reduction):
    def loss(h, w, t):
        return F.cross_entropy(F.linear(h, w), t, reduction=reduction)

    args = (hidden(70), weight(), torch.full((70,), -100))
    for mine, theirs in zip(told(loss, args)[0], results(loss, args), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("row", [1, 3])
def test_special_values(value, row):
    """Row 3 is ignored: what eager's loss does not see, ours does not."""

    def loss(h, w, b, t):
        return F.cross_entropy(F.linear(h, w, b), t)

    h, t = hidden(70).detach(), targets(70)
    h[row, 0] = value
    t[3] = -100
    args = (h.requires_grad_(), weight(), torch.zeros(CLASSES, requires_grad=True), t)
    for mine, theirs in zip(told(loss, args)[0], results(loss, args), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("target", [CLASSES, -1])
def test_a_target_out_of_range_raises_eagers_error(target):
    t = targets(70)
    t[40] = target
    with pytest.raises(IndexError, match=f"Target {target} is out of bounds"):
        told(plain, (hidden(70), weight(), t))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_rows(reduction, monkeypatch):
    """Whatever was in memory: the gradients of weight and bias are made without a chunk."""

    def loss(h, w, b, t):
        return F.cross_entropy(F.linear(h, w, b), t, reduction=reduction)

    args = (hidden(0), weight(), torch.randn(CLASSES, requires_grad=True), targets(0))
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    try:
        ours, _ = told(loss, args)
    finally:
        torch.use_deterministic_algorithms(False)
    for mine, theirs in zip(ours, results(loss, args), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_other_lengths_need_no_new_code():
    compiled = braze.compile(plain, options=ALWAYS, dynamic=True)
    w = weight()
    with trace.collect() as events:
        for rows in (70, 33, 129):
            args = (hidden(rows), w, targets(rows))
            for mine, theirs in zip(results(compiled, args), results(plain, args), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert sum(kind == "loss" for kind, _ in events) == 1


@pytest.mark.parametrize("pure", [False, True], ids=["autocast", "bfloat16"])
@pytest.mark.parametrize("padded", [False, True])
def test_bfloat16(pure, padded, monkeypatch):
    """``padded``: as on a GPU, where 90 classes become 96."""
    if padded:
        monkeypatch.setattr(linear_loss, "missing", lambda classes, dtype, device: -classes % 8)

    def loss(h, w, b, t):
        with torch.autocast("cpu", torch.bfloat16, enabled=not pure):
            return F.cross_entropy(F.linear(h, w, b).float(), t)

    h, w, b, t = hidden(100), weight(), torch.randn(CLASSES, requires_grad=True), targets(100)
    if pure:
        h, w, b = (x.detach().bfloat16().requires_grad_() for x in (h, w, b))
    ours, said = told(loss, (h, w, b, t))
    assert "in chunks" in said[0]
    exact = results(lambda h, w, b, t: F.cross_entropy(F.linear(h, w, b), t), doubled((h, w, b, t)))
    for mine, theirs, true in zip(ours, results(loss, (h, w, b, t)), exact, strict=True):
        assert mine.dtype is theirs.dtype
        assert (mine - true).norm() <= 1.2 * (theirs - true).norm() + 1e-6


def test_half_types_are_padded_on_gpus_only():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert linear_loss.missing(50257, torch.bfloat16, gpu) == 7
    assert linear_loss.missing(50264, torch.bfloat16, gpu) == 0
    assert (
        linear_loss.missing(50257, torch.float32, gpu) == linear_loss.missing(50257, torch.bfloat16, cpu) == 0
    )


def test_float16_stays_whole():
    h, w = (x.detach().half().requires_grad_() for x in (hidden(70), weight()))
    assert "float16" in told(plain, (h, w, targets(70)))[1][0]


def test_gradients_accumulate_and_a_graph_can_be_retained():
    h, w, t = hidden(70), weight(), targets(70)
    expected = [2 * g for g in results(plain, (h, w, t), 1.0)[1:]]
    loss = braze.compile(plain, options=ALWAYS)(h, w, t)
    loss.backward(retain_graph=True)
    first = w.grad.clone()
    loss.backward()
    torch.testing.assert_close(w.grad, 2 * first, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close((h.grad, w.grad), tuple(expected), rtol=1e-4, atol=1e-5)


def test_a_memory_budget_does_not_undo_it():
    """The logits are nowhere, so there is nothing to make again."""

    def loss(h, w, t):
        return plain((h.tanh() * h.sigmoid()).exp(), w, t)

    args = (hidden(70), weight(), targets(70))
    ours, said = told(loss, args, {"chunk_losses": True, "memory_budget": 0.5})
    assert len(said) == 1
    for mine, theirs in zip(ours, results(loss, args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_the_peak_is_without_the_logits():
    rows, classes = 1024, 2000
    layer = nn.Linear(32, classes)
    x, t = torch.randn(rows, 32), torch.randint(0, classes, (rows,))

    def step(x, t):
        return F.cross_entropy(layer(x), t)

    peaks = {}
    for chunked in (True, False):
        braze.reset()
        compiled = braze.compile(step, options={"chunk_losses": chunked})
        compiled(x, t).backward()
        layer.zero_grad(set_to_none=True)
        peaks[chunked] = peak_bytes(lambda: compiled(x, t).backward())
        layer.zero_grad(set_to_none=True)
    assert peaks[True] < rows * classes * 4 / 4
    assert peaks[False] > rows * classes * 4
