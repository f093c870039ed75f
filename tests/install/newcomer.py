"""What somebody sees who has just installed braze: a model is compiled, trains, and nothing is said about it.

`make test-install` runs this with the Python of an environment in which a wheel of braze was installed and nothing else was named.
"""

from __future__ import annotations

import copy
import importlib.metadata
import sys
from pathlib import Path

import torch
from torch import nn

import braze
from braze import native
from braze.capture.dispatch.untested import examined
from braze.support import log

TREE = Path(__file__).resolve().parents[2]


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return gradient * s * (1 + x * (1 - s))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.norm = nn.LayerNorm(32)
        self.mix = nn.Linear(32, 64)
        self.head = nn.Linear(64, 50)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        return self.head(Swish.apply(self.mix(x)))


def step(model, optimizer, tokens):
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def losses(model, optimizer, tokens):
    """As the single precision that they are computed in, whose tolerance they are held to."""
    return torch.tensor([step(model, optimizer, tokens[:, :n]) for n in (8, 8, 9, 10)])


def main() -> None:
    assert TREE / "braze" not in Path(braze.__file__).resolve().parents, "braze is the installed one"
    said = []
    with log.listen(said.append):
        torch.manual_seed(0)
        tokens, model = torch.randint(0, 50, (4, 10)), Model()
        other = copy.deepcopy(model)
        with torch.inference_mode():
            found = braze.explain(braze.compile(model, fullgraph=True))(tokens)
            torch.testing.assert_close(braze.compile(model, fullgraph=True)(tokens), model(tokens))
        compiled = braze.compile(model, fullgraph=True)
        own = braze.compile_optimizer(torch.optim.AdamW(compiled.parameters(), lr=0.01))
        theirs = torch.optim.AdamW(other.parameters(), lr=0.01)
        torch.testing.assert_close(losses(compiled, own, tokens), losses(other, theirs, tokens))
    assert "braze" in torch.compiler.list_backends()  # torch.compile(model, backend="braze")
    assert not said, "\n".join(said)
    assert native.native_available and native.hook_available(), "the C core is not built"
    assert not found.breaks, found
    broken = [(name, fault) for name, fault, _ in examined() if fault]
    assert not broken, broken
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("braze", "torch")]
    print(
        f"{', '.join(versions)}, Python {sys.version.split()[0]}: compiles, trains, and nothing is said about it"
    )


if __name__ == "__main__":
    main()
