"""Grad mode, autocast and the like are after a compiled call what they are after an eager one, errors or not."""

from __future__ import annotations

import decimal
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import braze
from braze.graph.operators import modes
from braze.graph.private.torch_settings import function_modes, set_modes_back
from braze.runtime.call.boxed import boxed
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")


def settings() -> tuple[object, ...]:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    device = torch.get_default_device(), len(function_modes())
    return (*modes, torch.get_default_dtype(), torch.backends.cuda.math_sdp_enabled(), depth, *device)


def under_autocast(x, places):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x)[places]


def without_gradients(x, places):
    with torch.no_grad():
        return x[places]


def both(x, places):
    with (
        torch.enable_grad(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autocast("cpu", enabled=False),
    ):
        return x[places]


def caught(x, places):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            return x[places]
        except IndexError:
            return x @ x


def by_attention_kernel(x, places):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return x[places]


def in_inference_mode(x, places):
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode():
            y = y + 1
        with torch.inference_mode():
            return y[places]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze", lambda gm, inputs: gm])
@pytest.mark.parametrize(
    "function",
    [under_autocast, without_gradients, both, by_attention_kernel, in_inference_mode,
     pytest.param(caught, marks=pytest.mark.provokes("BZ6013"))],
)  # fmt: skip
def test_a_graph_that_fails_leaves_settings_alone(function, backend, grad):
    compiled = braze.compile(function, backend=backend)
    x = torch.ones(4, 4, requires_grad=True)
    with torch.set_grad_enabled(grad):
        before = settings()
        errors = []  # held, with all that their tracebacks hold
        for places in ([0, 1], [0, 99]):
            try:
                compiled(x, torch.tensor(places))
            except IndexError as error:
                errors.append(error)
                assert places == [0, 99] and function is not caught
            assert settings() == before
        del errors
        assert settings() == before


def left_before_the_error(x):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        braze.graph_break()
    x.add_(1)
    return torch.linalg.inv(x)


def left_by_the_error(x):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        braze.graph_break()
        x.add_(1)
        return torch.linalg.inv(x)


def of_a_device_before_the_error(x):
    with torch.device("meta"):
        braze.graph_break()
    x.add_(1)
    return torch.linalg.inv(x)


def of_devices_by_the_error(x):
    with torch.device("cpu"), torch.device("meta"), torch.no_grad():
        braze.graph_break()
        x.add_(1)
        return torch.linalg.inv(x)


def left_by_the_error_of_another(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return left_before_the_error(x) + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze", lambda gm, inputs: gm])
@pytest.mark.parametrize(
    "function",
    [
        left_before_the_error,
        left_by_the_error,
        left_by_the_error_of_another,
        of_a_device_before_the_error,
        of_devices_by_the_error,
    ],
)
def test_a_graph_that_fails_behind_a_break_leaves_the_blocks_that_the_break_was_in(function, backend):
    """Once it has written an argument it cannot begin again in Python, whose ``with`` would leave them."""
    compiled = braze.compile(function, backend=backend)
    before = settings()
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.full((4, 4), -1.0))
    found = settings()
    set_modes_back([])  # or every test from here on would be on this device
    assert found == before


def broken_in_a_block(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        braze.graph_break()
    return x + 1


def broken_between_blocks(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            braze.graph_break()
            y = y @ y
        braze.graph_break()
        return y * 2


def fails(x):
    raise ValueError


def broken_by_an_error(x):
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            braze.graph_break()
            braze.disable(fails)(y)
    except ValueError:
        return x + 1


def broken_in_a_loop(x):
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = x @ x
            braze.graph_break()
    return x


@torch.autocast("cpu", dtype=torch.bfloat16)
def under_a_decorator(x):
    braze.graph_break()
    return x @ x


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze", lambda gm, inputs: gm])
@pytest.mark.parametrize(
    "function",
    [broken_in_a_block, broken_between_blocks, broken_by_an_error, broken_in_a_loop, under_a_decorator],
)
def test_contexts_of_autocast_are_counted_where_a_graph_breaks_in_them(
    function, backend, kept, tmp_path, monkeypatch
):
    """What they cast is forgotten when the last is left: with one too few in the count weights would stay as they were cast first."""
    monkeypatch.setenv("BRAZE_CACHE_DIR", str(tmp_path))
    layer = nn.Linear(4, 4)
    before = settings()
    for value in (1.0, 2.0, 3.0) if kept else (1.0, 2.0):
        if kept:
            braze.reset()
        compiled = braze.compile(function, backend=backend, options={"keep_captures": True} if kept else {})
        x = torch.full((4, 4), value)
        torch.testing.assert_close(compiled(x), function(x))
        torch.testing.assert_close(compiled(x), function(x))
        assert settings() == before
        with torch.no_grad():
            layer.weight.fill_(value)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            seen = layer(torch.ones(1, 4)) - layer.bias.to(torch.bfloat16)
        torch.testing.assert_close(
            seen, torch.full((1, 4), 4 * value), check_dtype=False, rtol=0.02, atol=0.0
        )


def test_what_autocast_has_cast_is_not_kept_beyond_a_compile_that_is_refused():
    """A region that writes to buffers is not traced: what finds it stands under autocast."""
    block = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return checkpoint(block, x, use_reentrant=False)

    before = settings()
    with logged() as told:
        braze.compile(step)(torch.ones(3, 4)).sum().backward()
    assert [message for message in told if "as captured" in message]  # or this shows nothing
    assert settings() == before


def test_what_a_signals_handler_raises_as_a_graph_turns_grad_mode_off_leaves_it_on(monkeypatch):
    """Handlers run between two instructions, also right after the call that has turned it off."""
    switch = modes.set_grad_mode

    def struck(on):
        switch(on)
        if not on:
            raise KeyboardInterrupt

    monkeypatch.setattr(modes, "set_grad_mode", struck)
    call = modes.with_modes(boxed(lambda inputs: inputs))
    with pytest.raises(KeyboardInterrupt):
        getattr(call, "general", call)([torch.ones(2)])  # C runs no handlers there
    assert torch.is_grad_enabled()


def test_numpys_settings_are_asked_in_each_call():
    """How errors of floats are handled, and the size of buffers: what the trace was told holds for no other call."""

    def function(x):
        return np.geterr()["divide"], np.getbufsize(), x + 1

    compiled = braze.compile(function)
    x = torch.ones(2)
    for divide, size in (("warn", 8192), ("ignore", 1600), ("raise", 8192)):
        before = np.seterr(divide=divide), np.setbufsize(size)
        try:
            assert compiled(x)[:2] == (divide, size)
        finally:
            np.seterr(**before[0])
            np.setbufsize(before[1])


THIRD = decimal.Decimal("0.333333333333")


@pytest.mark.parametrize(
    "compute",
    [
        lambda given: str(given / 3),
        lambda given: str(decimal.Decimal(1) / decimal.Decimal(3)),
        lambda given: str(THIRD * THIRD),
        lambda given: str(THIRD.sqrt()),
        lambda given: str(sum([THIRD, THIRD])),
        lambda given: str(decimal.Decimal.from_float(0.1) + 0),
    ],
)
def test_decimals_are_rounded_as_each_call_has_it(compute):
    compiled = braze.compile(lambda x, given: (compute(given), x + 1))
    for digits in (28, 5, 28, 7):
        with decimal.localcontext(decimal.Context(prec=digits)):
            assert compiled(torch.ones(2), THIRD)[0] == compute(THIRD)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.arange(3) / 2,
        lambda x: x.sum() / 3,
        lambda x: x.sqrt(),
        lambda x: x * 1.5,
        lambda x: torch.ones(2),
        lambda x: torch.where(x > 1, 1.5, 2.0),
        lambda x: torch.complex(torch.ones(2), torch.zeros(2)),
    ],
    ids=["quotient", "sum", "root", "product", "ones", "choice", "complex"],
)
def test_what_takes_its_type_from_a_default_that_the_function_sets_has_it(
    made: Callable[[torch.Tensor], torch.Tensor], backend: str
) -> None:
    """Operators of ATen's ask for the default of the call: they gave single precision where eager gives double."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = made(x)
        torch.set_default_dtype(torch.float64)
        try:
            return before, made(x), x.to(torch.float32) + 1
        finally:
            torch.set_default_dtype(torch.float32)

    x = torch.arange(3)
    for found, wanted in zip(braze.compile(f, backend=backend)(x), f(x), strict=True):
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted)
