"""Nothing is trusted by its name: not to be pure, not to stay what it is, not to be PyTorch's."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import logging
import math
import re
import textwrap
from pathlib import Path

import pytest
import torch

import braze
from braze.options import Options
from braze.runtime.operators.purity import may_draw
from tests.helpers import breaks

X = torch.zeros(3)
LOG = logging.getLogger("braze_test_trust")


@torch.library.custom_op("braze_test::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(())


@noise.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", ["eager", "braze"])
def test_an_operator_of_the_program_is_called_at_each_call(backend):
    """Whatever it is given: constants, parameters, what it was given just before."""
    weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    @braze.compile(backend=backend, fullgraph=True)
    def f(x):
        return x + noise(torch.ones(3)), x + noise(weight), noise(x), noise(x)

    seen = {float(v[0]) for _ in range(2) for v in f(X)}
    assert len(seen) == 8


def test_an_operator_of_the_program_is_called_though_nobody_reads_its_result():
    calls = []

    @torch.library.custom_op("braze_test::told", mutates_args=())
    def told(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.clone()

    told.register_fake(torch.empty_like)

    @braze.compile(fullgraph=True)
    def f(x):
        told(x)
        return x + 1

    f(X)
    f(X)
    assert len(calls) == 2


def test_a_number_that_an_operator_of_the_program_gives_is_not_known():
    def f(x):
        return x + noise(torch.ones(3)).sum().item()

    assert len(breaks(f, X)) == 1


def test_what_the_program_registers_for_an_operator_of_atens_is_not_known():
    assert not may_draw(torch.ops.aten.special_bessel_j1.default)
    assert may_draw(torch.ops.aten.bernoulli.default)
    library = torch.library.Library("aten", "IMPL")
    library.impl("special_bessel_j1", lambda x: x + torch.rand(()), "CPU")
    try:
        assert may_draw(torch.ops.aten.special_bessel_j1.default)
    finally:
        library._destroy()
    assert not may_draw(torch.ops.aten.special_bessel_j1.default)


def test_a_function_that_says_it_is_pytorchs_is_the_programs():
    """A replacement for one of PyTorch's that took over its name and module is looked into."""
    drawn = []

    @functools.wraps(torch.nn.functional.relu)
    def relu(x):
        drawn.append(torch.rand(()))
        return x + drawn[-1]

    @braze.compile(backend="eager")
    def f(x):
        return relu(x)

    assert not torch.equal(f(X), f(X))
    assert len(drawn) == 2


@functools.lru_cache
def scale_once(n):
    return n * 2


@functools.lru_cache
def warned(text):
    LOG.warning(text)


def test_a_cached_function_of_any_name_gives_its_result():
    assert (
        braze.compile(lambda x: x + scale_once(3), backend="eager", fullgraph=True)(X).tolist() == [6.0] * 3
    )


def test_a_cached_function_that_only_logs_warns_once(caplog):
    warned.cache_clear()

    @braze.compile(backend="eager", fullgraph=True)
    def f(x):
        warned("told once")
        return x + 1

    with caplog.at_level(logging.WARNING):
        f(X)
        f(X)
        f(torch.zeros(5))
    assert [r.message for r in caplog.records].count("told once") == 1


def test_every_option_that_capture_reads_is_in_the_key_of_kept_captures():
    """But for what is done with a capture when it is there."""
    afterwards = {"fullgraph", "recompile_limit", "on_overflow", "keep_captures", "verify"}
    folder = Path(braze.__file__).parent / "capture"
    read = set(re.findall(r"options\.([a-z_]+)", "".join(p.read_text() for p in folder.rglob("*.py"))))
    known = {f.name for f in dataclasses.fields(Options)}
    assert read & known - afterwards <= {name for name, _ in Options().capture_key()}


QUESTIONS = (
    lambda n: divmod(n + 5, 3),
    lambda n: divmod(100, n),
    lambda n: divmod(n, 0),
    lambda n: ~n,
    lambda n: (n.real, n.imag, n.numerator, n.denominator),
    lambda n: abs(n).to_bytes(4, "big"),
    lambda n: pow(abs(n), 2, 5),
    lambda n: round(n, -1),
    lambda n: n + 1j,
    lambda n: n.__class__,
    lambda n: n.absent,
)


@pytest.mark.parametrize("question", QUESTIONS)
def test_integers_that_change_do_what_integers_do(question):
    def f(x, n):
        try:
            return x * 2, question(n)
        except Exception as error:
            return type(error).__name__, str(error)

    compiled = braze.compile(f, backend="eager", dynamic=True)
    for n in (3, 4, -7, 1, 0):
        assert repr(compiled(X, n)) == repr(f(X, n))


def test_no_handler_reads_of_symbols():
    def f(x, n):
        try:
            return x * 2, n[0]
        except TypeError as error:
            return x, str(error)

    compiled = braze.compile(f, backend="eager", dynamic=True)
    assert compiled(X, 7)[1] == f(X, 7)[1]


LINEAR = torch.nn.Linear(3, 3)


def shouted(*args, **kwargs):
    return args[-1] * 0 + 77


@pytest.mark.parametrize(
    ("home", "name", "function"),
    [
        (torch.nn.functional, "relu", lambda x: torch.nn.functional.relu(x)),
        (torch, "add", lambda x: torch.add(x, x)),
        (torch.nn.Linear, "forward", lambda x: LINEAR(x)),
        (torch.nn.Linear, "__call__", lambda x: LINEAR(x)),
        (torch.nn.Module, "__call__", lambda x: LINEAR(x)),
        (torch.nn.Linear, "extra_repr", lambda x: x + len(LINEAR.extra_repr())),
        (torch.Tensor, "relu", lambda x: x.relu()),
        (torch.Tensor, "norm", lambda x: x.norm()),
        (textwrap, "dedent", lambda x: x + len(textwrap.dedent("  a"))),
        (textwrap.TextWrapper, "fill", lambda x: x + len(textwrap.fill("a"))),
        (math, "floor", lambda x: x + math.floor(2.5)),
        (math, "pi", lambda x: x * math.pi),
        (builtins, "abs", lambda x: x + abs(-3)),
    ],
)
def test_what_a_library_holds_may_be_replaced(monkeypatch, home, name, function):
    """Also a method where the class inherits it, and a function behind the one that is called."""
    x = torch.tensor([-1.0, 2.0, 3.0])
    compiled = braze.compile(function, backend="eager")
    before = [compiled(x).tolist() for _ in range(4)]
    value = 3 if name == "pi" else (lambda *_: "seven77") if name in TEXTS else shouted
    monkeypatch.setattr(home, name, value)
    assert compiled(x).tolist() == function(x).tolist() != before[0]
    monkeypatch.undo()
    assert compiled(x).tolist() == before[0]


TEXTS = ("extra_repr", "dedent", "fill")


class Counted:
    total = 1


Counted.__module__ = "builtins"


def test_a_class_that_says_it_is_a_builtin_is_written():
    def f(x):
        Counted.total += 1
        return x + Counted.total

    compiled = braze.compile(f, backend="eager")
    assert [float(compiled(X)[0]) for _ in range(3)] == [2.0, 3.0, 4.0]
    assert Counted.total == 4


class Named:
    count = len

    @classmethod
    def level(cls):
        return 2


class Derived(Named):
    @classmethod
    def level(cls):
        return super().level() + 1


@pytest.mark.parametrize(
    ("name", "value", "function"),
    [
        ("count", sum, lambda x: x + Named().count((1, 2, 4))),
        ("count", sum, lambda x: x + Named.count((1, 2, 4))),
        ("level", classmethod(lambda cls: 10), lambda x: x + Derived.level()),
    ],
    ids=["a builtin, of an instance", "a builtin, of the class", "a class method, by super"],
)
def test_what_a_class_holds_is_looked_up_in_each_call(monkeypatch, name, value, function):
    compiled = braze.compile(function, backend="eager")
    before = compiled(X).tolist()
    assert before == function(X).tolist()
    monkeypatch.setattr(Named, name, value)
    assert compiled(X).tolist() == function(X).tolist() != before
