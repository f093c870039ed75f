"""Which calls of PyTorch's functions may draw random numbers is read out of their code, and of the tags of operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from braze.capture.facts.purity import computes, is_random


def call(target, *args) -> torch.fx.Node:
    graph = torch.fx.Graph()
    make = graph.call_method if isinstance(target, str) else graph.call_function
    return make(target, (graph.placeholder("x"), *args))


def named(target):
    return target if isinstance(target, str) else target.__name__


@pytest.mark.parametrize(
    "target",
    [F.dropout, F.rrelu, F.gumbel_softmax, F.multi_head_attention_forward, F.fractional_max_pool2d]
    + [F.scaled_dot_product_attention, torch.bernoulli, torch.pca_lowrank, "normal_", "exponential_"],
    ids=named,
)
def test_what_draws_is_random(target):
    assert is_random(call(target)) and not computes(call(target))


@pytest.mark.parametrize(
    "target",
    [
        F.normalize,
        F.poisson_nll_loss,
        F.relu,
        F.cross_entropy,
        F.layer_norm,
        torch.add,
        torch.stft,
        "sum",
        "view",
    ],
    ids=named,
)
def test_what_only_computes_is_not_random_whatever_its_name(target):
    assert not is_random(call(target)) and computes(call(target))
