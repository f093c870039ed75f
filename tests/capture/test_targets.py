"""What graphs call of the program's, by one target each, lives as long as the graphs do."""

from __future__ import annotations

import gc
import weakref

import torch

from braze.capture.dispatch import skip
from braze.capture.facts.libraries import is_library_name
from braze.capture.features.torch_objects import scripted
from braze.graph.calls.autograd_calls import applied


def test_an_autograd_function_is_let_go_with_its_last_target():
    class Double(torch.autograd.Function):
        pass

    one, other = applied(Double), applied(Double)
    assert one is other
    one.scales = False
    assert not applied(Double).scales
    seen = weakref.ref(Double)
    del one, other, Double
    gc.collect()
    assert seen() is None


def test_a_scripted_function_is_let_go_with_its_last_target():
    function = torch.jit.script(torch.nn.functional.relu)
    target = scripted(function)
    assert scripted(function) is target
    seen = weakref.ref(target)
    del target
    assert seen() is None
    assert scripted(function).function is function


def test_libraries_of_models_are_libraries():
    assert all(is_library_name(name) for name in skip.MODEL_LIBRARIES)
