"""Models of diffusion, as those that draw pictures from text are built: a U-Net with attention over a text, and a transformer over patches.

``UNet`` has the blocks of Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models (2022), ``DiT`` those of Peebles and Xie,
Scalable Diffusion Models with Transformers (2023), at size B/2. Weights are random.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Tensor = torch.Tensor


def _times(steps: Tensor, width: int) -> Tensor:
    """[batch] steps of the diffusion as [batch, width] sines and cosines."""
    places = torch.arange(width // 2, device=steps.device)
    angles = steps[:, None].float() * torch.exp(places * (-math.log(10_000) / (width // 2)))
    return torch.cat([angles.cos(), angles.sin()], 1)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(context, width, bias=False)
        self.v, self.out = nn.Linear(context, width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[batch, tokens, width] and [batch, words, context]: [batch, tokens, width]."""
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, y in ((self.q, x), (self.k, context), (self.v, context))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class _Residual(nn.Module):
    """Two convolutions with group norms, moved by the step of the diffusion."""

    def __init__(self, before: int, after: int, step: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(32, before), nn.GroupNorm(32, after)
        self.conv_1, self.conv_2 = (
            nn.Conv2d(before, after, 3, padding=1),
            nn.Conv2d(after, after, 3, padding=1),
        )
        self.step = nn.Linear(step, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        """[batch, before, height, width] and [batch, step]: [batch, after, height, width]."""
        y = self.conv_1(F.silu(self.norm_1(x))) + self.step(F.silu(step))[:, :, None, None]
        return self.skip(x) + self.conv_2(F.silu(self.norm_2(y)))


class _Text(nn.Module):
    """A layer of a transformer over the pixels of a picture, which attends to a text, too."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.group, self.into, self.back = (
            nn.GroupNorm(32, width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.itself, self.text = _Attention(width, heads, width), _Attention(width, heads, context)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """[batch, width, height, width of the picture], the same."""
        y = self.into(self.group(x).flatten(2).transpose(1, 2))
        normed = self.norms[0](y)
        y = y + self.itself(normed, normed)
        y = y + self.text(self.norms[1](y), context)
        value, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * F.gelu(gate))
        return x + self.back(y).transpose(1, 2).unflatten(2, x.shape[2:])


class _Level(nn.Module):
    def __init__(self, before: int, after: int, step: int, context: int) -> None:
        super().__init__()
        self.residual = _Residual(before, after, step)
        self.text = _Text(after, 8, context) if context else None

    def forward(self, x: Tensor, step: Tensor, context: Tensor) -> Tensor:
        x = self.residual(x, step)
        return x if self.text is None else self.text(x, context)


class UNet(nn.Module):
    """Three levels of two blocks each, down and up again, of 160, 320 and 640 channels; attention at the two smaller ones."""

    def __init__(self, channels: int = 4, base: int = 160, context: int = 768) -> None:
        super().__init__()
        self.base, step = base, 4 * base
        self.step = nn.Sequential(nn.Linear(base, step), nn.SiLU(), nn.Linear(step, step))
        self.first, self.norm = nn.Conv2d(channels, base, 3, padding=1), nn.GroupNorm(32, base)
        self.last = nn.Conv2d(base, channels, 3, padding=1)
        self.down, self.up, kept, now = nn.ModuleList(), nn.ModuleList(), [base], base
        for level, width in enumerate((base, 2 * base, 4 * base)):
            for _ in range(2):
                self.down.append(_Level(now, width, step, context if level else 0))
                kept.append(now := width)
            if level < 2:
                self.down.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                kept.append(width)
        self.middle = _Level(now, now, step, context)
        for level, width in reversed(list(enumerate((base, 2 * base, 4 * base)))):
            for _ in range(3):
                self.up.append(_Level(now + kept.pop(), width, step, context if level else 0))
                now = width
            if level:
                self.up.append(nn.Conv2d(width, width, 3, padding=1))

    def forward(self, x: Tensor, steps: Tensor, context: Tensor) -> Tensor:
        """[batch, channels, height, width], [batch], [batch, words, context]: the noise in x, of its shape."""
        step = self.step(_times(steps, self.base).to(x.dtype))
        x = self.first(x)
        kept = [x]
        for part in self.down:
            x = part(x, step, context) if isinstance(part, _Level) else part(x)
            kept.append(x)
        x = self.middle(x, step, context)
        for part in self.up:
            if isinstance(part, _Level):
                x = part(torch.cat([x, kept.pop()], 1), step, context)
            else:
                x = part(F.interpolate(x, scale_factor=2.0))
        return self.last(F.silu(self.norm(x)))


class _Block(nn.Module):
    """A layer of a diffusion transformer: norms whose scales and shifts, and gates, are made of the step and the class."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.made = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, given: Tensor) -> Tensor:
        """[batch, patches, width] and [batch, width]: [batch, patches, width]."""
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.made(F.silu(given))[:, None].chunk(6, -1)
        normed = self.norm_1(x) * (1 + scale_1) + shift_1
        q, k, v = self.qkv(normed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + gate_1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        normed = self.norm_2(x) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(F.gelu(self.up(normed), approximate="tanh"))


class DiT(nn.Module):
    """DiT-B/2: twelve layers of 768 over patches of two by two of a latent picture."""

    def __init__(
        self, channels: int = 4, side: int = 32, width: int = 768, heads: int = 12, layers: int = 12
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, 2, stride=2)
        self.places = nn.Parameter(torch.randn(1, (side // 2) ** 2, width))
        self.step = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm, self.made = (
            nn.LayerNorm(width, elementwise_affine=False, eps=1e-6),
            nn.Linear(width, 2 * width),
        )
        self.last = nn.Linear(width, 2 * 2 * 2 * channels)

    def forward(self, x: Tensor, steps: Tensor, classes: Tensor) -> Tensor:
        """[batch, channels, side, side], [batch], [batch]: [batch, 2 * channels, side, side], noise and its variance."""
        side = x.shape[-1] // 2
        given = self.step(_times(steps, 256).to(x.dtype)) + self.classes(classes)
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, given)
        shift, scale = self.made(F.silu(given))[:, None].chunk(2, -1)
        x = self.last(self.norm(x) * (1 + scale) + shift)
        return (
            x.unflatten(1, (side, side))
            .unflatten(-1, (2, 2, -1))
            .permute(0, 5, 1, 3, 2, 4)
            .flatten(4)
            .flatten(2, 3)
        )


def unet() -> tuple[nn.Module, dict[str, Any]]:
    """Four latent pictures of 64 by 64 and texts of 77 words."""
    inputs = {
        "x": torch.randn(4, 4, 64, 64),
        "steps": torch.randint(0, 1000, (4,)),
        "context": torch.randn(4, 77, 768),
    }
    return UNet(), inputs


def dit() -> tuple[nn.Module, dict[str, Any]]:
    """32 latent pictures of 32 by 32."""
    steps, classes = torch.randint(0, 1000, (32,)), torch.randint(0, 1000, (32,))
    return DiT(), {"x": torch.randn(32, 4, 32, 32), "steps": steps, "classes": classes}
