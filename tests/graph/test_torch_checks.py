"""On a PyTorch that is not tested with, what braze takes for granted is tried first: what fails is done without, or refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze
from braze import native
from braze.capture.dispatch import untested
from braze.cli import env
from braze.graph.fakes import fake_dispatch, torch_probes
from braze.graph.private import (
    holders,
    torch_checks,
    torch_compat,
    torch_import,
    torch_settings,
    torch_symbols,
)
from braze.support import log
from braze.support.errors import CaptureError, UserError
from tests.helpers import logged

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2 + x.sum()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Another PyTorch than those that are tested; what is broken in it is patched into the modules."""
    with monkeypatch.context() as patched:
        patched.setattr(torch_import, "VERSION", (9, 9))
        forget()
        yield patched
    forget()
    while (
        torch.autocast_decrement_nesting() < -1
    ):  # who was told of more blocks of autocast than there are has ended them
        torch.autocast_increment_nesting()
        torch.autocast_increment_nesting()
    torch.autocast_increment_nesting()


def forget() -> None:
    torch_checks.forget()
    untested.forget()
    log.forget_warnings()
    braze.reset()


def test_all_assumptions_hold_on_this_version() -> None:
    found = {name: fault for name, fault, _ in untested.examined()}
    assert len(found) >= 10
    assert not any(found.values()), found


def test_another_version_of_which_all_is_true_compiles_and_says_so_once(other: Any) -> None:
    with logged() as said:
        f = braze.compile(program, fullgraph=True)
        torch.testing.assert_close(f(X), program(X))
        braze.compile(program)(X)
    (message,) = said
    assert f"is tested with PyTorch {torch_import.RANGE}" in message and "braze env" in message


def raising(*args: Any, **kwargs: Any) -> Any:
    raise AttributeError("no such name in this version")


@pytest.mark.parametrize(
    ("name", "home", "attribute", "value"),
    [
        ("private names", untested, "LOADED", ("braze.graph.no_such_module",)),
        ("function modes", torch.nn.functional, "gelu", lambda x: torch._C._nn.gelu(x)),
        ("fake tensors", torch_probes, "storage_key", lambda tensor: 1),
        ("dispatch modes", torch_probes, "watched", lambda: False),
        ("gradients of fakes", torch.autograd, "grad", raising),
        ("autograd functions", torch_probes, "apply_function", lambda cls, args, kwargs: args[0] * 2),
        ("counted writes", native, "counters", lambda tensors: bytes(12)),
        ("counted writes", native, "counters", lambda tensors: bytes([*bytes(11), tensors[0]._version])),
        ("settings", torch_settings, "autocast_depth", lambda counted=iter(range(99)): next(counted)),
    ],
)
def test_what_answers_depend_on_is_refused(
    other: Any, name: str, home: Any, attribute: str, value: Any
) -> None:
    other.setattr(home, attribute, value)
    with logged() as said:
        f = braze.compile(program, backend="eager")
        torch.testing.assert_close(f(X), program(X))
        torch.testing.assert_close(braze.compile(lambda x: program(x))(X), program(X))
    _, message = said
    assert message.startswith("BZ6004") and f"why: {name}: " in message and torch_checks.WANTED in message
    with pytest.raises(CaptureError, match=f"BZ6004(?s:.*){name}"):
        braze.compile(program, fullgraph=True)(X)
    if home is not untested and name != "function modes":
        with pytest.raises(UserError, match="BZ6004"):
            braze.aot.aot_function(program, braze.aot.nop)
    assert any(line[0] == name and line[1].startswith("NOT SO") for line in env.facts())


def said_of(name: str, said: list[str]) -> None:
    """The consequence is told, once, and nothing is refused."""
    (known,) = (a for a in torch_checks.ASSUMPTIONS if a.name == name)
    _, message = said
    assert name in message and known.otherwise in message and "BZ6004" not in message


def test_fakes_are_made_by_pytorch_where_ours_are_not_as_they_should_be(other: Any) -> None:
    other.setattr(torch_compat, "told", raising)
    with logged() as said:
        braze.compile(lambda x: x + 1, backend="eager")(X)  # all is tried here
        hits = fake_dispatch.OPERATORS.hits
        f = braze.compile(program, backend="aot_eager", dynamic=True, fullgraph=True)
        for x in (X, X[:, :2], X.t()):
            torch.testing.assert_close(f(x), program(x))
    said_of("making of fakes", said)
    assert fake_dispatch.OPERATORS.hits == hits


def test_memory_does_not_change_hands_where_counts_do_not_tell(other: Any) -> None:
    other.setattr(torch._C, "_storage_Use_Count", lambda storage: 7)
    holders._holders_of_one.cache_clear()
    try:
        with logged() as said:
            x = X.clone().requires_grad_()
            braze.compile(program, backend="aot_eager")(x).sum().backward()
        alone = torch.ones(3)
        assert not holders.is_held_once(alone)
        given = (torch.ones(1000),)
        assert holders.taken_over(given, 1)[0] is given[0]
    finally:
        holders._holders_of_one.cache_clear()
    said_of("counts of who holds a tensor", said)


def test_sizes_are_compiled_one_by_one_where_symbols_are_otherwise(other: Any) -> None:
    other.setattr(torch_symbols, "make_symbol", raising)
    kinds = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        kinds.append([type(n) for n in inputs[0].shape])
        return module.forward

    with logged() as said:
        f = braze.compile(program, backend=backend, fullgraph=True, dynamic=True)
        for n in (1, 2, 3):
            torch.testing.assert_close(f(X[:, :n]), program(X[:, :n]))
    said_of("symbolic sizes", said)
    assert kinds == [[int, int]] * 3


def test_tensors_read_through_python_are_told(other: Any) -> None:
    other.setattr(native, "bind_torch", lambda: {"tensors": False})
    other.setattr(native, "native_available", True)
    with logged() as said:
        torch.testing.assert_close(braze.compile(program, backend="eager")(X), program(X))
    said_of("reading of tensors in C", said)


WITHOUT_A_NAME = """
import torch
torch.__version__ = "9.9.0"
del torch._C._AutoDispatchBelowAutograd
import braze
from braze.cli.env import facts
try:
    braze.compile
except Exception as error:
    print(type(error).__name__, error)
print(dict(facts())["private names"])
"""


def test_a_name_that_is_gone_is_refused_in_plain_words() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_A_NAME], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("UserError BZ6004: PyTorch 9.9.0 is not one that"), done.stderr
    assert "'_AutoDispatchBelowAutograd'" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("NOT SO: AttributeError: "), done.stderr
