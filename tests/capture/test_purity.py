"""Which calls of PyTorch's functions may draw random numbers is read out of their code, and of the tags of operators."""

from __future__ import annotations

import base64
import binascii
import cmath
import unicodedata
import zlib

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.capture.facts.purity import computes, draws, is_random


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


def drawn_from(target, *args, device="cpu", **kwargs) -> str:
    """What a graph of one call of a function draws from, its tensors on a device."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(target, tuple(x if a is ... else a for a in args), kwargs)
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2, device=device)
    return draws(graph)


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (F.dropout, (..., 0.5, False), {}),
        (F.dropout, (..., 0.0), {}),
        (F.dropout2d, (...,), {"p": 0.5, "training": False}),
        (F.alpha_dropout, (...,), {}),
        (F.rrelu, (...,), {}),
        (F.scaled_dot_product_attention, (..., ..., ...), {}),
        (F.scaled_dot_product_attention, (..., ..., ..., None, 0.0, True), {"enable_gqa": True}),
        (F.scaled_dot_product_attention, (..., ..., ...), {"dropout_p": 0.0, "is_causal": True}),
        (torch.add, (..., ...), {}),
    ],
)
def test_what_is_told_to_drop_nothing_draws_nothing(target, args, kwargs):
    """So that no call keeps the generators' states beforehand."""
    assert drawn_from(target, *args, **kwargs) == ""


@pytest.mark.parametrize(
    ("target", "args", "kwargs"),
    [
        (F.dropout, (...,), {}),
        (F.dropout, (..., 0.5, ...), {}),
        (F.dropout, (...,), {"p": ..., "training": True}),
        (F.alpha_dropout, (..., 0.5, True), {}),
        (F.rrelu, (...,), {"training": True}),
        (F.scaled_dot_product_attention, (..., ..., ..., None, 0.1), {}),
        (F.scaled_dot_product_attention, (..., ..., ...), {"dropout_p": ...}),
        (torch.bernoulli, (...,), {}),
    ],
)
def test_what_may_drop_draws_from_the_generator_of_its_tensors_device(target, args, kwargs):
    assert drawn_from(target, *args, **kwargs) == "cpu"
    assert drawn_from(target, *args, **kwargs, device="meta") == "all"


def test_what_braze_does_not_look_into_may_draw_from_any_generator():
    assert drawn_from(lambda x: x, ...) == "all"


def test_functions_of_numbers_bytes_and_text_stay_in_the_graph():
    def function(x, n, t):
        text = "abc".translate(str.maketrans("ab", "cd", "c")), unicodedata.normalize("NFC", "e\u0301")
        raw = (
            base64.b64encode(b"ab" * n),
            base64.b64decode("YWI="),
            binascii.hexlify(b"a"),
            bytes.maketrans(b"a", b"b"),
        )
        return x * cmath.phase(complex(n, t)), text, raw, zlib.crc32(raw[0])

    compiled, x = braze.compile(function, backend="eager", fullgraph=True), torch.ones(2)
    for n, t in ((3, 1.5), (4, 2.5), (5, 2.5)):
        assert repr(compiled(x, n, t)) == repr(function(x, n, t))
