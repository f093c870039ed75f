"""Grad mode, autocast and the like are after a compiled call what they are after an eager one, errors or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import braze
from braze.graph import modes
from braze.runtime.boxed import boxed
from tests.helpers import logged

pytestmark = pytest.mark.usefixtures("fresh")


def settings() -> tuple[object, ...]:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return (*modes, torch.get_default_dtype(), torch.backends.cuda.math_sdp_enabled(), depth)


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
