"""What was made in inference mode and is read in training: autograd refuses to save it, and lets it be read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.capture.facts import replay
from braze.graph.private import torch_compat
from tests.helpers import logged


class Counted(nn.Module):
    """Multiplies by a buffer that each call makes anew, and saves what it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=torch.float64)
        self.register_buffer("count", torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return (self.layer(x) * self.count).tanh()


class Averaged(Counted):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        y = y * self.count.view(1, -1).exp()
        self.count = y.detach().mean()
        return y


class Read(Counted):
    """Multiplies by the buffer itself, which eager cannot save."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) * self.count
        self.count = self.count + 1
        return y


def gradients(model: Any, call: Any) -> list[torch.Tensor | str]:
    """Those of steps before and after a call in inference mode."""
    found: list[torch.Tensor | str] = []
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)
    for again in range(4):
        if again == 1:
            with torch.inference_mode():
                call(x)
        model.zero_grad()
        try:
            call(x).sum().backward()
            found.append(model.layer.weight.grad.clone())
        except RuntimeError as error:
            found.append(str(error).split(".")[0])
    return found


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("partition", ["min_cut", "default"])
@pytest.mark.parametrize("kind", [Counted, Averaged])
def test_what_eager_makes_of_a_tensor_of_inference_mode_is_saved_in_its_stead(kind, partition, backend):
    torch.manual_seed(0)
    model, other = kind(), kind()
    other.load_state_dict(model.state_dict())
    compiled = braze.compile(model, backend=backend, options={"partition": partition})
    with logged() as said:
        torch.testing.assert_close(gradients(model, compiled), gradients(other, other))
    assert not any("BZ6013" in each for each in said)


@pytest.mark.parametrize("unpacks", [True, False])
@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_a_tensor_of_inference_mode_that_eager_would_save_is_refused(backend, unpacks, monkeypatch):
    if not unpacks:  # as on PyTorch 2.11, of whose saved values braze counts the writes itself
        monkeypatch.setattr(torch_compat, "can_unpack_saved", False)
    failed, again = [], replay._again
    monkeypatch.setattr(
        replay, "_again", lambda error, *rest: (failed.append(str(error)), again(error, *rest))[1]
    )
    torch.manual_seed(0)
    model, other = Read(), Read()
    other.load_state_dict(model.state_dict())
    ours, theirs = gradients(model, braze.compile(model, backend=backend)), gradients(other, other)
    assert theirs[1] == "Inference tensors cannot be saved for backward"
    assert ours[1] == theirs[1]
    # the graph's own error, too, which is the call's where nothing begins it again
    assert failed and all(text.startswith(str(theirs[1])) for text in failed)
    torch.testing.assert_close(ours[0], theirs[0])
