"""Modes that a graph enters while it is traced are left where the trace ends, wherever that is."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch.autograd import grad_mode

from braze.aot.trace.control_flow import leave_inference


@pytest.mark.parametrize("end", ["no exit", "before the exit", "after the exit"])
def test_an_inference_mode_that_was_entered_is_left_once(end: str) -> None:
    graph = torch.fx.Graph()
    enter = graph.call_function(grad_mode._enter_inference_mode, (True,))
    env: dict[torch.fx.Node, Any] = {enter: grad_mode._enter_inference_mode(True)}
    if end != "no exit":
        leave = graph.call_function(grad_mode._exit_inference_mode, (enter,))
        if end == "after the exit":
            env[leave] = grad_mode._exit_inference_mode(env[enter])
    graph.output(())
    leave_inference(torch.fx.GraphModule(torch.nn.Module(), graph), env, contextlib.nullcontext())
    assert not torch.is_inference_mode_enabled()
