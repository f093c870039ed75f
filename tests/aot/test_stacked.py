"""Recurrent layers drop between each other as in eager, whatever the mode: PyTorch's decompositions leave it out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import braze

KINDS = {
    "tanh": nn.RNN,
    "relu": lambda *args, **words: nn.RNN(*args, nonlinearity="relu", **words),
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "words", [{}, {"bidirectional": True, "batch_first": True, "bias": False}], ids=["plain", "both"]
)
def test_dropout_between_layers(kind, dynamic, grad, words):
    braze.reset()
    torch.manual_seed(0)
    layers = KINDS[kind](3, 5, num_layers=3, dropout=0.5, **words).double()
    x = torch.randn(2, 2, 3, dtype=torch.float64)
    compiled = braze.compile(layers, dynamic=dynamic, fullgraph=True, backend="aot_eager")

    def run(call):
        torch.manual_seed(5)
        layers.zero_grad()
        with torch.set_grad_enabled(grad):
            out, end = call(x)
        if grad:
            out.square().sum().backward()
        end = end if isinstance(end, tuple) else (end,)
        return [
            out.detach(),
            *(t.detach() for t in end),
            *(p.grad for p in layers.parameters()),
            torch.rand(1),
        ]

    torch.testing.assert_close(run(compiled), run(layers))


@pytest.mark.parametrize("grad", [False, True])
def test_dropout_between_layers_of_packed_sequences(grad):
    """As torch.nn's modules call it for a PackedSequence, in a graph without the packing."""
    braze.reset()
    torch.manual_seed(0)
    layers = nn.LSTM(3, 5, num_layers=2, dropout=0.5).double()
    packed = nn.utils.rnn.pack_sequence([torch.randn(n, 3, dtype=torch.float64) for n in (4, 2, 1)])
    state = (torch.zeros(2, 3, 5, dtype=torch.float64), torch.zeros(2, 3, 5, dtype=torch.float64))
    sizes = packed.batch_sizes

    def run(data):
        return torch.lstm(data, sizes, state, layers._flat_weights, True, 2, 0.5, True, False)

    found = []
    for call in (run, braze.compile(run, backend="aot_eager")):
        torch.manual_seed(5)
        with torch.set_grad_enabled(grad):
            found.append([t.detach() for t in call(packed.data)] + [torch.rand(1)])
    torch.testing.assert_close(*found)


def test_dropout_between_layers_by_kernels():
    """The numbers are not eager's: as many are dropped."""
    braze.reset()
    torch.manual_seed(0)
    layers = nn.RNN(4, 1000, num_layers=2, dropout=0.5)
    nn.init.zeros_(layers.weight_ih_l0)
    for name in ("weight_hh_l0", "weight_hh_l1"):
        nn.init.zeros_(getattr(layers, name))
    nn.init.eye_(layers.weight_ih_l1)  # what comes out shows what went in
    with torch.no_grad():
        out, _ = braze.compile(layers, dynamic=True)(torch.randn(2, 2, 4))
    bias = (layers.bias_ih_l1 + layers.bias_hh_l1).tanh()
    dropped = torch.isclose(out, bias.expand_as(out)).double().mean().item()
    assert 0.4 < dropped < 0.6


@pytest.mark.parametrize("dynamic", [False, True])
def test_end_states_of_an_lstm_have_the_sizes_of_its_start_states(dynamic):
    """Before PyTorch 2.12 its decomposition gives them a dimension more."""
    braze.reset()
    torch.manual_seed(0)
    lstm, x = torch.nn.LSTM(3, 5).double(), torch.randn(2, 2, 3, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(braze.compile(lstm, dynamic=dynamic)(x), lstm(x))
