"""Parts of decoders, as ordinary code: norms, rotary embeddings, the gated MLP."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from braze.serving.engine.attention.reference import normalised
from braze.serving.engine.models.config import Rope
from braze.serving.engine.models.parallel import ONE, Ranks, row_parallel, summed


class Part(nn.Module):
    """A part of a layer, which knows where its share of a checkpoint goes."""

    def places(self) -> dict[str, torch.Tensor]:
        """A parameter, or a part of one, for each of the checkpoint's names: its own parameters."""
        return {name: parameter.data for name, parameter in self.named_parameters()}

    def choose(self, uses: Callable[[str], bool]) -> None:
        """Whether this part calls a custom operator, of those that there is ordinary code for, or that code."""


class RMSNorm(nn.Module):
    """Rows divided by their root mean square, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return normalised(x, self.weight, self.eps)


class Linear(nn.Linear):
    """A linear layer whose weights are not set: they are loaded."""

    def reset_parameters(self) -> None:
        """Leave them."""


class Rotary(nn.Module):
    """Tables of cosines and sines (positions, dim / 2), and what layers get of them."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, rope: Rope, dim: int, positions: int, dtype: torch.dtype) -> None:
        super().__init__()
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies(rope, dim)
        self.register_buffer("cos", (angles.cos() * rope.stretch).to(dtype), persistent=False)
        self.register_buffer("sin", (angles.sin() * rope.stretch).to(dtype), persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tokens' cosines and sines, (tokens, 1, dim / 2) each."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)


class RotaryTables(Rotary):
    """For layers whose attention looks up the tables by itself."""

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Positions, and all cosines and sines."""
        return positions, self.cos, self.sin


def frequencies(rope: Rope, dim: int) -> torch.Tensor:
    """The angle that each pair turns by at one step, (dim / 2) float32."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    if rope.kind == "default":
        return plain
    if rope.kind == "linear":
        return plain / rope.factors[0]
    if rope.kind == "yarn":
        return _yarn(rope, plain, dim)
    factor, low, high, length = rope.factors
    waves = 2 * math.pi / plain
    # 0: long waves, all slowed; 1: short ones, as they are
    share = ((length / waves - low) / (high - low)).clamp(0, 1)
    mixed = (1 - share) * plain / factor + share * plain
    slow = torch.where(waves > length / low, plain / factor, mixed)
    return torch.where(waves < length / high, plain, slow)


def _yarn(rope: Rope, plain: torch.Tensor, dim: int) -> torch.Tensor:
    """Waves that turn often within the original length as they are, those that turn less than ``slow`` times slowed, between them both in parts."""
    factor, fast, slow, length, whole = rope.factors

    def border(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = border(fast), border(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    slowed = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / factor * slowed + plain * (1 - slowed)


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn neighbours; the results' firsts stand before their seconds."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class RowLinear(Linear):
    """A linear layer whose inputs are shared out among ranks; ``part`` gives one rank's part of the sum."""

    def __init__(self, rows: int, columns: int, bias: bool, ranks: Ranks) -> None:
        super().__init__(rows, columns, bias)
        self.ranks = ranks

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """What is to be summed over the ranks."""
        return row_parallel(x, self.weight, self.bias, self.ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return summed(self.part(x), self.ranks)


class MLP(Part):
    """SiLU of a gate times a value, and back; gate and value are one product."""

    def __init__(self, width: int, inner: int, bias: bool = False, ranks: Ranks = ONE) -> None:
        super().__init__()
        self.inner = inner
        self.gate_up_proj = Linear(width, 2 * inner, bias)
        self.down_proj = RowLinear(inner, width, bias, ranks)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        """What is to be summed over the ranks."""
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj.part(F.silu(gate) * up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return summed(self.part(x), self.down_proj.ranks)

    def places(self) -> dict[str, torch.Tensor]:
        """Where the tensors of a checkpoint go."""
        found = parts_of(self.gate_up_proj, gate_proj=self.inner, up_proj=self.inner)
        return found | named("down_proj", self.down_proj)


def parts_of(linear: nn.Linear, **rows: int) -> dict[str, torch.Tensor]:
    """The rows of a merged layer that each of a checkpoint's layers is."""
    found: dict[str, torch.Tensor] = {}
    begin = 0
    for name, count in rows.items():
        found[f"{name}.weight"] = linear.weight.data[begin : begin + count]
        if linear.bias is not None:
            found[f"{name}.bias"] = linear.bias.data[begin : begin + count]
        begin += count
    return found


def named(prefix: str, module: nn.Module) -> dict[str, torch.Tensor]:
    """A module's own parameters by their names in a checkpoint."""
    return {f"{prefix}.{name}": parameter.data for name, parameter in module.named_parameters()}


def under(prefix: str, places: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same below a name."""
    return {f"{prefix}.{name}": place for name, place in places.items()}
