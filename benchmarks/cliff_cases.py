"""Small programs among which cliffs are looked for: a row each, with its inputs and the rows that it is measured with.

``make`` draws the inputs of ``n`` rows. Two numbers of rows are given: the larger makes some 16 to 256 MB, the smaller some 64 KB to
1 MB, where the host and single launches decide. With ``grad`` a call is a forward and its backward.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Tensor = torch.Tensor


class Draw:
    """Draws the inputs of a case on a device, the same ones each time."""

    def __init__(self, device: str, seed: int = 0) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def f32(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, device=self.device, generator=self.generator).to(dtype)

    def bf(self, *shape: int) -> Tensor:
        return self.f32(*shape, dtype=torch.bfloat16)

    def half(self, *shape: int) -> Tensor:
        return self.f32(*shape, dtype=torch.float16)

    def f64(self, *shape: int) -> Tensor:
        return self.f32(*shape, dtype=torch.float64)

    def c64(self, *shape: int) -> Tensor:
        return torch.view_as_complex(self.f32(*shape, 2))

    def ints(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.randint(high, shape, device=self.device, generator=self.generator).to(dtype)

    def zipf(self, high: int, *shape: int) -> Tensor:
        """Numbers below ``high`` of which a few are most, as tokens are."""
        u = torch.rand(shape, device=self.device, generator=self.generator)
        return (high**u - 1).long().clamp_(0, high - 1)

    def bools(self, *shape: int) -> Tensor:
        return self.f32(*shape) > 0


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A program, what draws its inputs, and its rows (few, many); ``random``: results are not those of eager."""

    fn: Callable[..., Any]
    make: Callable[[int, Draw], tuple[Any, ...]]
    rows: tuple[int, int]
    grad: bool = False
    random: bool = False


CASES: dict[str, Case] = {}


def _add(
    name: str, rows: tuple[int, int], make: Any, fn: Any, grad: bool = False, random: bool = False
) -> None:
    assert name not in CASES
    CASES[name] = Case(fn, make, rows, grad, random)


def _both(name: str, rows: tuple[int, int], make: Any, fn: Any) -> None:
    """A program alone, and with its backward."""
    _add(name, rows, make, fn)
    _add(f"{name}, backward", rows, make, fn, grad=True)


# a row a program, however long
# fmt: off

# --- layouts
_add("add of a permuted 3d", (4, 256), lambda n, g: (g.bf(n, 256, 512), g.bf(512, n, 256)), lambda x, y: x + y.permute(1, 2, 0))
_add("copy of 4d reversed", (2, 32), lambda n, g: (g.bf(n, 64, 128, 128),), lambda x: x.permute(3, 2, 1, 0).contiguous() + 1)
_add("heads to rows", (2, 64), lambda n, g: (g.bf(n, 32, 512, 64),), lambda x: (x * 2).transpose(1, 2).reshape(x.shape[0], 512, -1))
_add("heads to rows, float32", (2, 32), lambda n, g: (g.f32(n, 16, 512, 64),), lambda x: (x * 2).transpose(1, 2).reshape(x.shape[0], 512, -1))
_add("patches of a picture", (1, 64), lambda n, g: (g.bf(n, 3, 448, 448),), lambda x: (x - 0.5).unfold(2, 14, 14).unfold(3, 14, 14).permute(0, 2, 3, 1, 4, 5).reshape(x.shape[0], 1024, -1))
_add("window partition", (1, 64), lambda n, g: (g.bf(n, 56, 56, 192),), lambda x: (x + 1).view(-1, 8, 7, 8, 7, 192).transpose(2, 3).reshape(-1, 49, 192))
_add("pixel shuffle", (1, 32), lambda n, g: (g.bf(n, 64, 128, 128),), lambda x: F.pixel_shuffle(x.relu(), 4))
_add("pixel unshuffle", (1, 32), lambda n, g: (g.bf(n, 4, 512, 512),), lambda x: F.pixel_unshuffle(x.relu(), 4))
_add("channel shuffle", (1, 32), lambda n, g: (g.bf(n, 256, 64, 64),), lambda x: F.channel_shuffle(x.relu(), 8))
_add("every third column", (64, 8192), lambda n, g: (g.bf(n, 3072),), lambda x: x[:, ::3] * 2 + 1)
_add("every second row and column back", (64, 8192), lambda n, g: (g.bf(n, 4096), g.bf(n, 4096)), lambda x, y: x[::2, ::2] + y[1::2, 1::2])
_add("odd strides", (64, 16384), lambda n, g: (g.bf(n, 2051)[:, 1:2050],), lambda x: x.sigmoid() * x)
_add("outer sum", (128, 8192), lambda n, g: (g.bf(n), g.bf(8192)), lambda x, y: x[:, None] * y + x[:, None])
_add("pairwise distances", (64, 2048), lambda n, g: (g.f32(n, 3), g.f32(2048, 3)), lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt())
_add("channels last to first", (1, 32), lambda n, g: (g.bf(n, 224, 224, 16),), lambda x: x.permute(0, 3, 1, 2).contiguous().float())
_add("tiny last dim", (4096, 1 << 22), lambda n, g: (g.bf(n, 3), g.bf(3)), lambda x, y: x * y + 1)
_add("transposed uint8 pictures", (1, 64), lambda n, g: (g.ints(256, n, 512, 512, 3, dtype=torch.uint8), g.f32(3)), lambda x, m: x.permute(0, 3, 1, 2).float().div(255).sub(m[:, None, None]).to(torch.bfloat16, memory_format=torch.contiguous_format))

# --- reductions
_add("sum of the first of 3", (4, 256), lambda n, g: (g.bf(n, 512, 512),), lambda x: x.sum(0))
_add("sum of the middle of 3", (4, 256), lambda n, g: (g.bf(n, 512, 512),), lambda x: x.sum(1))
_add("sum of first and last of 4", (2, 64), lambda n, g: (g.bf(n, 64, 128, 128),), lambda x: x.sum((0, 3)))
_add("sum of second and last of 4", (2, 64), lambda n, g: (g.bf(n, 64, 128, 128),), lambda x: x.float().square().sum((1, 3)))
_add("sum of a permuted", (4, 256), lambda n, g: (g.bf(n, 512, 512),), lambda x: x.permute(2, 0, 1).sum(-1))
_add("mean over a transposed matrix's rows", (64, 8192), lambda n, g: (g.f32(n, 4096),), lambda x: x.t().mean(1))
_add("softmax over the first", (64, 16384), lambda n, g: (g.bf(n, 2048),), lambda x: x.softmax(0))
_add("softmax over the middle", (2, 128), lambda n, g: (g.bf(n, 1024, 512),), lambda x: x.softmax(1))
_both("var over the middle", (2, 128), lambda n, g: (g.f32(n, 512, 512),), lambda x: x.var(1))
_add("std over channels of 4", (1, 64), lambda n, g: (g.f32(n, 64, 112, 112),), lambda x: x.std(1, keepdim=True))
_add("var_mean of everything", (64, 8192), lambda n, g: (g.f32(n, 4096),), lambda x: torch.var_mean(x))
_add("amax and amin over the middle", (2, 128), lambda n, g: (g.bf(n, 512, 512),), lambda x: (x.amax(1), x.amin(1)))
_add("max with places over the middle", (2, 128), lambda n, g: (g.bf(n, 512, 512),), lambda x: x.max(1))
_add("argmin along short rows", (4096, 1 << 20), lambda n, g: (g.f32(n, 64),), lambda x: x.argmin(1))
_add("argmin along rows of 1,024", (64, 65536), lambda n, g: (g.bf(n, 1024),), lambda x: x.argmin(1))
_add("argmax down columns", (64, 32768), lambda n, g: (g.bf(n, 1024),), lambda x: x.argmax(0))
_add("any and all of comparisons", (64, 16384), lambda n, g: (g.f32(n, 2048),), lambda x: ((x > 5).any(1), (x > -5).all(0)))
_add("count of a mask", (64, 65536), lambda n, g: (g.bools(n, 1024),), lambda x: (x.sum(), x.sum(1)))
_add("sum of few long rows", (1, 7), lambda n, g: (g.bf(n, 10_000_019),), lambda x: x.float().sum(1))
_add("sum of many rows of 3", (4096, 1 << 22), lambda n, g: (g.f32(n, 3),), lambda x: x.sum(1))
_add("sum of many rows of 17", (4096, 1 << 21), lambda n, g: (g.bf(n, 17),), lambda x: x.sum(1))
_add("product along rows", (64, 16384), lambda n, g: (g.f32(n, 1000).sigmoid(),), lambda x: x.prod(1))
_add("norm of everything in float32 from bf16", (64, 16384), lambda n, g: (g.bf(n, 4096),), lambda x: torch.linalg.vector_norm(x, 2, dtype=torch.float32))
_add("norm 1 and inf along rows", (64, 16384), lambda n, g: (g.f32(n, 2048),), lambda x: (x.norm(1, 1), torch.linalg.vector_norm(x, math.inf, 1)))
_add("logsumexp over the middle", (2, 128), lambda n, g: (g.f32(n, 256, 512),), lambda x: x.logsumexp(1))
_add("cosine similarity", (64, 65536), lambda n, g: (g.bf(n, 768), g.bf(n, 768)), lambda x, y: F.cosine_similarity(x, y))
_both("normalize", (64, 65536), lambda n, g: (g.f32(n, 256),), lambda x: F.normalize(x, dim=-1))

# --- scans, orders
_add("cumsum along rows", (64, 16384), lambda n, g: (g.f32(n, 1024),), lambda x: (x * 2).cumsum(1))
_add("cumsum along long rows", (1, 16), lambda n, g: (g.f32(n, 1 << 21),), lambda x: x.cumsum(1) + 1)
_add("cumsum down columns", (64, 16384), lambda n, g: (g.f32(n, 1024),), lambda x: x.cumsum(0) * 2)
_add("cumsum of a mask", (64, 8192), lambda n, g: (g.bools(n, 2048),), lambda x: x.long().cumsum(1) - 1)
_both("cumprod along rows", (64, 8192), lambda n, g: (g.f32(n, 256).sigmoid() + 0.5,), lambda x: x.cumprod(1))
_add("logcumsumexp", (64, 8192), lambda n, g: (g.f32(n, 512),), lambda x: x.logcumsumexp(1))
_add("cummax", (64, 8192), lambda n, g: (g.f32(n, 512),), lambda x: x.cummax(1)[0] + 1)
_add("reverse cumsum", (64, 16384), lambda n, g: (g.f32(n, 1024),), lambda x: x.flip(1).cumsum(1).flip(1))
_add("sort of rows", (64, 16384), lambda n, g: (g.f32(n, 1024),), lambda x: (x * 2).sort(1)[0])
_add("sort of one long row", (65536, 1 << 24), lambda n, g: (g.f32(n),), lambda x: x.sort()[0] + 1)
_add("argsort of short rows", (256, 65536), lambda n, g: (g.f32(n, 64),), lambda x: x.argsort(1))
_add("topk of a vocabulary", (4, 512), lambda n, g: (g.f32(n, 32000),), lambda x: x.softmax(-1).topk(50))
_add("topk of experts", (128, 65536), lambda n, g: (g.bf(n, 64),), lambda x: x.softmax(-1).topk(8))
_add("median of rows", (64, 4096), lambda n, g: (g.f32(n, 1001),), lambda x: x.median(1)[0] * 2)
_add("top-p mask", (4, 256), lambda n, g: (g.f32(n, 32000),), lambda x: _top_p(x))
_add("searchsorted and bucketize", (4096, 1 << 22), lambda n, g: (g.f32(n), g.f32(1000).sort()[0]), lambda x, b: torch.bucketize(x * 2, b) + 1)
_add("histogram by one-hot", (4096, 1 << 20), lambda n, g: (g.ints(64, n),), lambda x: F.one_hot(x, 64).sum(0))
_add("bincount", (4096, 1 << 24), lambda n, g: (g.ints(1000, n),), lambda x: x.bincount(minlength=1000) + 1)

# --- indices
_add("gather along rows", (64, 16384), lambda n, g: (g.bf(n, 2048), g.ints(2048, n, 512)), lambda x, i: x.gather(1, i) * 2)
_add("softmax of long gathered rows", (2, 1024), lambda n, g: (g.f32(n, 65536), g.ints(65536, n, 65536)), lambda x, i: x.gather(1, i).softmax(1))
_add("softmax of long rows of functions", (2, 1024), lambda n, g: (g.bf(n, 65536),), lambda x: (torch.sin(x).exp() + torch.erf(x) * torch.log1p(x.abs())).softmax(1))
_add("entropy of long rows of functions", (2, 2048), lambda n, g: (g.bf(n, 32768),), lambda x: _entropy(torch.sin(x).exp() + torch.erf(x) * torch.log1p(x.abs())))
_add("softmax of a long sum across", (2, 2048), lambda n, g: (g.bf(n, 32768), g.bf(32768, n)), lambda x, y: (x + y.t()).softmax(1))
_add("gather, backward", (64, 8192), lambda n, g: (g.f32(n, 2048), g.ints(2048, n, 512)), lambda x, i: x.gather(1, i) * 2, grad=True)
_add("scatter along rows", (64, 16384), lambda n, g: (g.bf(n, 2048), g.ints(2048, n, 1), g.bf(n, 1)), lambda x, i, v: (x * 2).scatter(1, i, v))
_add("scatter_add, few rows", (4096, 1 << 20), lambda n, g: (g.f32(n, 16), g.ints(10, n)), lambda x, i: x.new_zeros(10, 16).scatter_add(0, i[:, None].expand(-1, 16), x.exp()))
_add("scatter_add, many rows", (4096, 1 << 20), lambda n, g: (g.f32(n, 16), g.ints(500_000, n)), lambda x, i: x.new_zeros(500_000, 16).scatter_add(0, i[:, None].expand(-1, 16), x * 2))
_add("scatter_reduce amax", (4096, 1 << 20), lambda n, g: (g.f32(n), g.ints(1000, n)), lambda x, i: x.new_zeros(1000).scatter_reduce(0, i, x * 2, "amax"))
_add("index_add, few equal", (256, 65536), lambda n, g: (g.f32(100_000, 128), g.ints(100_000, n), g.f32(n, 128)), lambda t, i, x: t.index_add(0, i, x.relu()))
_add("index_add, many equal", (256, 65536), lambda n, g: (g.f32(8, 128), g.ints(8, n), g.f32(n, 128)), lambda t, i, x: t.index_add(0, i, x.relu()))
_add("index_add in bfloat16", (256, 65536), lambda n, g: (g.bf(10_000, 256), g.ints(10_000, n), g.bf(n, 256)), lambda t, i, x: t.index_add(0, i, x * 2))
_add("index_put accumulating", (256, 65536), lambda n, g: (g.f32(1000, 64), g.zipf(1000, n), g.f32(n, 64)), lambda t, i, x: t.index_put((i,), x * 2, accumulate=True))
_add("index_put of pairs", (256, 65536), lambda n, g: (g.f32(2048, 2048), g.ints(2048, n), g.ints(2048, n), g.f32(n)), lambda t, i, j, v: (t + 1).index_put((i, j), v * 2, accumulate=True))
_add("index of two dims", (256, 1 << 18), lambda n, g: (g.bf(512, 512, 64), g.ints(512, n), g.ints(512, n)), lambda x, i, j: x[i, j] * 2)
_add("index of the last dim", (64, 16384), lambda n, g: (g.bf(n, 2048), g.ints(2048, 700)), lambda x, i: x[:, i] + 1)
_add("index of rows, backward", (256, 65536), lambda n, g: (g.f32(10_000, 256), g.ints(10_000, n)), lambda x, i: x[i].relu(), grad=True)
_add("embedding and position", (128, 32768), lambda n, g: (g.zipf(50_257, n // 128, 128), g.bf(50_257, 768), g.bf(128, 768)), lambda i, w, p: F.embedding(i, w) + p)
_add("embedding, few rows, backward", (256, 65536), lambda n, g: (g.ints(4, n), g.f32(4, 512)), lambda i, w: F.embedding(i, w) * 2, grad=True)
_add("embedding, backward", (256, 32768), lambda n, g: (g.zipf(32_000, n), g.bf(32_000, 512)), lambda i, w: F.embedding(i, w) * 2, grad=True)
_add("embedding with padding, backward", (256, 32768), lambda n, g: (g.zipf(1000, n), g.f32(1000, 128)), lambda i, w: F.embedding(i, w, padding_idx=0), grad=True)
_add("embedding bag", (256, 32768), lambda n, g: (g.ints(100_000, n, 20), g.f32(100_000, 64)), lambda i, w: F.embedding_bag(i, w) * 2)
_add("embedding bag, backward", (256, 8192), lambda n, g: (g.ints(100_000, n, 20), g.f32(100_000, 64)), lambda i, w: F.embedding_bag(i, w), grad=True)
_add("masked_fill and masked sum", (64, 16384), lambda n, g: (g.bf(n, 2048), g.bools(n, 1)), lambda x, m: (x.masked_fill(m, 0).sum(0), (x * ~m).sum(1)))
_add("where with broadcasts", (64, 8192), lambda n, g: (g.bools(n, 1), g.bf(4096), g.bf(n, 4096)), lambda m, a, b: torch.where(m, a, b * 2))
_add("one-hot of classes as floats", (256, 65536), lambda n, g: (g.ints(1000, n),), lambda x: F.one_hot(x, 1000).to(torch.bfloat16))
_add("tril and triu", (1, 16), lambda n, g: (g.bf(n, 2048, 2048),), lambda x: x.tril() - x.triu(1))
_add("diagonal and its embedding", (1, 64), lambda n, g: (g.f32(n, 1024, 1024),), lambda x: torch.diag_embed(x.diagonal(0, 1, 2)) + x)
_add("take along argsort", (64, 16384), lambda n, g: (g.f32(n, 512), g.f32(n, 512)), lambda x, y: torch.take_along_dim(y, x.argsort(1), 1))
_add("select backward", (64, 8192), lambda n, g: (g.f32(n, 16, 256),), lambda x: x[:, 3].relu() + x[:, 7], grad=True)

# --- joining and moving
_add("cat of the last dim", (64, 16384), lambda n, g: (g.bf(n, 1000), g.bf(n, 24), g.bf(n, 1024)), lambda a, b, c: torch.cat((a * 2, b + 1, c), -1))
_add("cat of odd columns", (64, 16384), lambda n, g: (g.bf(n, 333), g.bf(n, 555)), lambda a, b: torch.cat((a, b), -1).relu())
_add("cat of 16 channels", (1, 32), lambda n, g: tuple(g.bf(n, 32, 64, 64) for _ in range(16)), lambda *t: torch.cat([x.relu() for x in t], 1))
_add("stack of the last dim", (64, 16384), lambda n, g: (g.bf(n, 1024), g.bf(n, 1024)), lambda a, b: torch.stack((a * b, a - b), -1).flatten(-2))
_add("stack of the first dim", (64, 8192), lambda n, g: tuple(g.f32(n, 1024) for _ in range(4)), lambda *t: torch.stack(t).mean(0))
_add("cat, backward", (64, 16384), lambda n, g: (g.bf(n, 1000), g.bf(n, 1048)), lambda a, b: torch.cat((a, b), -1) * 2, grad=True)
_add("split and swapped", (64, 16384), lambda n, g: (g.bf(n, 3072),), lambda x: torch.cat(x.split((512, 1536, 1024), -1)[::-1], -1))
_add("pad with a constant", (1, 64), lambda n, g: (g.bf(n, 64, 111, 111),), lambda x: F.pad(x, (1, 2, 3, 4)).relu())
_both("pad by reflection", (1, 32), lambda n, g: (g.f32(n, 16, 224, 224),), lambda x: F.pad(x, (3, 3, 3, 3), mode="reflect") * 2)
_both("pad in circles", (1, 32), lambda n, g: (g.f32(n, 16, 224, 224),), lambda x: F.pad(x, (3, 3, 3, 3), mode="circular") * 2)
_add("roll of two dims", (1, 64), lambda n, g: (g.bf(n, 56, 56, 192),), lambda x: x.roll((-3, -3), (1, 2)) + 1)
_add("flip of two dims", (1, 64), lambda n, g: (g.bf(n, 3, 512, 512),), lambda x: x.flip(2, 3) * 2)
_add("repeat_interleave and tile", (2, 64), lambda n, g: (g.bf(n, 8, 512, 128),), lambda x: (x.repeat_interleave(4, 1) + x.repeat(1, 4, 1, 1)))
_add("unfold of windows", (1, 16), lambda n, g: (g.f32(n, 64, 64, 64),), lambda x: F.unfold(x.relu(), 3, padding=1))
_add("fold of windows", (1, 16), lambda n, g: (g.f32(n, 64 * 9, 64 * 64),), lambda x: F.fold(x * 2, (64, 64), 3, padding=1))
_add("meshgrid and ravel", (64, 8192), lambda n, g: (g.f32(n), g.f32(4096)), lambda x, y: torch.stack(torch.meshgrid(x, y, indexing="ij"), -1).view(-1, 2))
_add("conv by sliding windows", (64, 8192), lambda n, g: (g.f32(n, 2048),), lambda x: x.unfold(1, 8, 1).mean(-1))

# --- norms
_both("group norm", (1, 32), lambda n, g: (g.bf(n, 256, 64, 64), g.bf(256), g.bf(256)), lambda x, w, b: F.group_norm(x, 32, w, b))
_add("group norm and SiLU, channels last", (1, 32), lambda n, g: (g.bf(n, 256, 64, 64).to(memory_format=torch.channels_last), g.bf(256), g.bf(256)), lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)))
_both("instance norm", (1, 32), lambda n, g: (g.f32(n, 64, 112, 112),), lambda x: F.instance_norm(x))
_both("batch norm, training", (1, 64), lambda n, g: (g.bf(n, 64, 112, 112), g.f32(64), g.f32(64)), lambda x, w, b: F.batch_norm(x, None, None, w, b, True))
_add("batch norm, channels last, backward", (1, 64), lambda n, g: (g.bf(n, 64, 112, 112).to(memory_format=torch.channels_last), g.f32(64), g.f32(64)), lambda x, w, b: F.batch_norm(x, None, None, w, b, True).relu(), grad=True)
_both("batch norm of rows, training", (64, 65536), lambda n, g: (g.f32(n, 512), g.f32(512), g.f32(512)), lambda x, w, b: F.batch_norm(x, None, None, w, b, True))
_both("layer norm over two dims", (2, 256), lambda n, g: (g.f32(n, 64, 1024), g.f32(64, 1024)), lambda x, w: F.layer_norm(x, (64, 1024), w))
_both("layer norm of channels first", (1, 64), lambda n, g: (g.bf(n, 96, 112, 112), g.bf(96)), lambda x, w: F.layer_norm(x.permute(0, 2, 3, 1), (96,), w).permute(0, 3, 1, 2))
_both("RMS norm of heads", (16, 4096), lambda n, g: (g.bf(n, 32, 128), g.bf(128)), lambda x, w: F.rms_norm(x, (128,), w))
_add("local response norm", (1, 32), lambda n, g: (g.f32(n, 64, 56, 56),), lambda x: F.local_response_norm(x, 5))

# --- windows over pictures
for _name, _pool in {
    "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "average pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average pool to 7 x 7": lambda x: F.adaptive_avg_pool2d(x, 7),
}.items():
    _both(_name, (1, 64), lambda n, g: (g.bf(n, 64, 112, 112),), _pool)
_both("upsample nearest", (1, 32), lambda n, g: (g.bf(n, 64, 64, 64),), lambda x: F.interpolate(x, scale_factor=2, mode="nearest") * 2)
_both("upsample bilinear", (1, 32), lambda n, g: (g.bf(n, 64, 64, 64),), lambda x: F.interpolate(x, size=(128, 128), mode="bilinear") * 2)
_add("upsample bicubic", (1, 32), lambda n, g: (g.f32(n, 16, 64, 64),), lambda x: F.interpolate(x, size=(128, 128), mode="bicubic") * 2)
_add("resize antialiased", (1, 16), lambda n, g: (g.f32(n, 3, 512, 512),), lambda x: F.interpolate(x, size=(224, 224), mode="bilinear", antialias=True) * 2)
_add("grid sample", (1, 32), lambda n, g: (g.f32(n, 16, 128, 128), g.f32(n, 128, 128, 2).tanh()), lambda x, s: F.grid_sample(x, s, align_corners=False))
_both("depthwise convolution", (1, 32), lambda n, g: (g.bf(n, 128, 56, 56), g.bf(128, 1, 7, 7)), lambda x, w: F.gelu(F.conv2d(x, w, padding=3, groups=128)))
_add("causal depthwise convolution of rows", (1, 16), lambda n, g: (g.bf(n, 1024, 2048), g.bf(1024, 1, 4), g.bf(1024)), lambda x, w, b: F.silu(F.conv1d(x, w, b, padding=3, groups=1024)[..., :2048]))
_add("convolution 1 x 1 and batch norm", (1, 32), lambda n, g: (g.bf(n, 128, 56, 56), g.bf(128, 128, 1, 1), g.f32(128), g.f32(128)), lambda x, k, m, v: F.batch_norm(F.conv2d(x, k), m, v.square() + 1).relu())
_add("transposed convolution", (1, 16), lambda n, g: (g.bf(n, 64, 32, 32), g.bf(64, 32, 4, 4)), lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1).relu())

# --- products
_add("batch of small products", (64, 65536), lambda n, g: (g.bf(n, 16, 16), g.bf(n, 16, 16)), lambda x, y: torch.bmm(x, y) * 2)
_add("batch of 3 x 3 by 3", (1024, 1 << 20), lambda n, g: (g.f32(n, 3, 3), g.f32(n, 3, 1)), lambda x, y: (x @ y).squeeze(-1) + 1)
_add("odd sizes", (33, 4097), lambda n, g: (g.bf(n, 1023), g.bf(1023, 777)), lambda x, y: (x @ y).relu())
_add("odd sizes, float32", (33, 2049), lambda n, g: (g.f32(n, 1023), g.f32(1023, 777)), lambda x, y: (x @ y).relu())
_add("matrix by vector", (64, 16384), lambda n, g: (g.bf(n, 4096), g.bf(4096)), lambda x, y: (x @ y) * 2)
_add("vector by matrix", (64, 16384), lambda n, g: (g.bf(n), g.bf(n, 4096)), lambda x, y: (x @ y) * 2)
_add("thin product", (64, 1 << 20), lambda n, g: (g.f32(n, 8), g.f32(8, 8)), lambda x, y: (x @ y).relu())
_add("inner dim long", (256, 1 << 18), lambda n, g: (g.bf(64, n), g.bf(n, 64)), lambda x, y: (x @ y) + 1)
_add("einsum of heads", (1, 16), lambda n, g: (g.bf(n, 512, 16, 64), g.bf(n, 512, 16, 64)), lambda q, k: torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1))
_add("einsum of three", (1, 32), lambda n, g: (g.f32(n, 64, 64), g.f32(n, 64, 64), g.f32(64)), lambda a, b, c: torch.einsum("bij,bjk,k->bi", a, b, c))
_add("einsum as a trace", (4, 4096), lambda n, g: (g.f32(n, 64, 64), g.f32(n, 64, 64)), lambda a, b: torch.einsum("bij,bji->b", a, b))
_both("linear and GELU", (64, 8192), lambda n, g: (g.bf(n, 768), g.bf(3072, 768), g.bf(3072)), lambda x, w, b: F.gelu(F.linear(x, w, b)))
_add("bilinear", (64, 2048), lambda n, g: (g.f32(n, 64), g.f32(n, 64), g.f32(32, 64, 64)), lambda x, y, w: F.bilinear(x, y, w))
_add("outer products summed", (64, 8192), lambda n, g: (g.f32(n, 32), g.f32(n, 32)), lambda x, y: (x[:, :, None] * y[:, None]).flatten(1).relu())
_add("int8 weight, dequantised", (16, 1024), lambda n, g: (g.bf(n, 4096), g.ints(127, 4096, 4096, dtype=torch.int8), g.bf(4096, 1)), lambda x, w, s: x @ (w.to(x.dtype) * s).t())

# --- attention and what stands beside it
_add("attention by hand", (1, 8), lambda n, g: tuple(g.bf(n, 16, 512, 64) for _ in range(3)), lambda q, k, v: (q @ k.mT * 0.125).softmax(-1) @ v)
_both("attention by hand, causal", (1, 8), lambda n, g: tuple(g.bf(n, 16, 512, 64) for _ in range(3)), lambda q, k, v: (q @ k.mT * 0.125).masked_fill(~torch.ones(512, 512, dtype=torch.bool, device=q.device).tril(), -math.inf).softmax(-1) @ v)
_add("attention, bool mask", (1, 8), lambda n, g: (*(g.bf(n, 16, 512, 64) for _ in range(3)), g.bools(n, 1, 512, 512)), lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m))
_add("attention, key padding", (1, 8), lambda n, g: (*(g.bf(n, 16, 512, 64) for _ in range(3)), g.ints(512, n) + 1), lambda q, k, v, l: F.scaled_dot_product_attention(q, k, v, (torch.arange(512, device=q.device) < l[:, None])[:, None, None]))
_both("attention with a bias", (1, 8), lambda n, g: (*(g.bf(n, 16, 512, 64) for _ in range(3)), g.bf(1, 16, 512, 512)), lambda q, k, v, b: F.scaled_dot_product_attention(q, k, v, b))
_add("attention, ALiBi", (1, 8), lambda n, g: tuple(g.bf(n, 16, 512, 64) for _ in range(3)), lambda q, k, v: _alibi(q, k, v))
_add("attention, grouped heads", (1, 8), lambda n, g: (g.bf(n, 32, 512, 64), g.bf(n, 8, 512, 64), g.bf(n, 8, 512, 64)), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
_add("attention of one query", (1, 32), lambda n, g: (g.bf(n, 32, 1, 128), g.bf(n, 32, 2048, 128), g.bf(n, 32, 2048, 128)), lambda q, k, v: F.scaled_dot_product_attention(q, k, v))
_add("attention, odd head", (1, 8), lambda n, g: tuple(g.bf(n, 12, 500, 72) for _ in range(3)), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
_add("linear attention", (1, 16), lambda n, g: tuple(g.bf(n, 16, 1024, 64) for _ in range(3)), lambda q, k, v: (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v))
_both("rope by halves", (1, 32), lambda n, g: (g.bf(n, 1024, 32, 64), g.f32(1024, 32), g.f32(1024, 32)), lambda x, c, s: _rope_halves(x, c, s))
_both("rope by pairs", (1, 32), lambda n, g: (g.bf(n, 1024, 32, 64), g.f32(1024, 32), g.f32(1024, 32)), lambda x, c, s: _rope_pairs(x, c, s))
_add("rope by complex numbers", (1, 32), lambda n, g: (g.f32(n, 512, 32, 64), g.c64(512, 32)), lambda x, f: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * f[:, None]).flatten(-2))
_add("rope of a packed projection", (1, 16), lambda n, g: (g.bf(n, 1024, 3 * 1024), g.f32(1024, 32), g.f32(1024, 32)), lambda x, c, s: tuple(_rope_halves(t.unflatten(-1, (16, 64)), c, s).transpose(1, 2) for t in x.chunk(3, -1)[:2]))
_add("key and value caches", (1, 16), lambda n, g: (g.bf(n, 16, 2048, 64), g.bf(n, 16, 4, 64), g.ints(2000, 4)), lambda cache, k, p: cache.index_copy(2, p, k * 2))
_add("router of experts", (128, 32768), lambda n, g: (g.bf(n, 512), g.bf(512, 64)), lambda x, w: _route(x, w))
_add("experts by masks", (64, 2048), lambda n, g: (g.bf(n, 256), g.bf(8, 256, 512), g.ints(8, n)), lambda x, w, e: sum(F.silu(x @ w[k]) * (e == k)[:, None] for k in range(8)))
_add("experts by batches", (64, 2048), lambda n, g: (g.bf(n, 256), g.bf(8, 256, 256), g.ints(8, n)), lambda x, w, e: torch.bmm(x[:, None], w[e]).squeeze(1))
_both("SwiGLU of one projection", (64, 8192), lambda n, g: (g.bf(n, 8192),), lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1])
_both("GLU of channels", (1, 32), lambda n, g: (g.f32(n, 128, 56, 56),), lambda x: F.glu(x, 1))

# --- losses
_both("cross entropy", (64, 8192), lambda n, g: (g.bf(n, 8000), g.ints(8000, n)), lambda x, y: F.cross_entropy(x, y))
_both("cross entropy, smoothed, weighted", (64, 8192), lambda n, g: (g.f32(n, 4001), g.ints(4001, n), g.f32(4001).sigmoid()), lambda x, y, w: F.cross_entropy(x, y, w.detach(), label_smoothing=0.1))
_both("cross entropy of pixels", (1, 16), lambda n, g: (g.f32(n, 21, 256, 256), g.ints(21, n, 256, 256)), lambda x, y: F.cross_entropy(x, y, ignore_index=3))
_both("cross entropy of two classes", (4096, 1 << 20), lambda n, g: (g.f32(n, 2), g.ints(2, n)), lambda x, y: F.cross_entropy(x, y))
_both("binary cross entropy with logits", (64, 16384), lambda n, g: (g.f32(n, 1000), g.f32(n, 1000).sigmoid()), lambda x, y: F.binary_cross_entropy_with_logits(x, y.detach()))
_both("KL divergence", (64, 8192), lambda n, g: (g.f32(n, 2000), g.f32(n, 2000)), lambda x, y: F.kl_div(x.log_softmax(-1), y.detach().softmax(-1), reduction="batchmean"))
_add("CTC", (4, 64), lambda n, g: (g.f32(200, n, 100), g.ints(99, n, 30) + 1, g.ints(1, n) + 200, g.ints(1, n) + 30), lambda x, y, a, b: F.ctc_loss(x.log_softmax(-1), y, a, b), grad=True)
_both("smooth L1 and Huber", (64, 16384), lambda n, g: (g.f32(n, 1000), g.f32(n, 1000)), lambda x, y: F.smooth_l1_loss(x, y) + F.huber_loss(x, y))
_add("triplet margin", (64, 65536), lambda n, g: tuple(g.f32(n, 128) for _ in range(3)), lambda a, p, q: F.triplet_margin_loss(a, p, q), grad=True)
_add("contrastive", (64, 4096), lambda n, g: (g.bf(n, 256), g.bf(n, 256)), lambda x, y: F.cross_entropy((x @ y.t()).float() * 0.1, torch.arange(x.shape[0], device=x.device)), grad=True)
_add("focal", (64, 16384), lambda n, g: (g.f32(n, 80), g.bools(n, 80)), lambda x, y: _focal(x, y), grad=True)
_add("dice", (1, 16), lambda n, g: (g.f32(n, 4, 512, 512), g.f32(n, 4, 512, 512).sigmoid()), lambda x, y: _dice(x, y.detach()), grad=True)

# --- random numbers, optimizers, other types
_add("dropout and residual", (64, 16384), lambda n, g: (g.bf(n, 2048), g.bf(n, 2048)), lambda x, y: x + F.dropout(y, 0.1), random=True)
_add("dropout, backward", (64, 16384), lambda n, g: (g.bf(n, 2048),), lambda x: F.dropout(x.relu(), 0.1), grad=True, random=True)
_add("noise added", (64, 16384), lambda n, g: (g.f32(n, 2048),), lambda x: x + 0.1 * torch.randn_like(x), random=True)
_add("Gumbel softmax", (64, 16384), lambda n, g: (g.f32(n, 512),), lambda x: F.gumbel_softmax(x), random=True)
_add("Adam by hand on lists", (16, 4096), lambda n, g: tuple(g.f32(n, 1024) for _ in range(4)), lambda p, d, m, v: _adam(p, d, m, v))
_add("foreach of 64 tensors", (16, 1024), lambda n, g: tuple(g.f32(n, 256) for _ in range(64)), lambda *t: torch._foreach_add(torch._foreach_mul(t[:32], 0.9), t[32:], alpha=0.1))
_add("norms of 64 tensors", (16, 1024), lambda n, g: tuple(g.f32(n, 256) for _ in range(64)), lambda *t: torch.stack([x.norm() for x in t]).norm())
_add("moving averages in place", (16, 4096), lambda n, g: (g.f32(n, 1024), g.f32(n, 1024)), lambda e, p: e.lerp_(p, 0.01))
_add("sum in place", (16, 16384), lambda n, g: (g.bf(n, 2048), g.bf(n, 2048)), lambda x, y: x.add_(y))
_add("tokens into a cache, in place", (1, 16), lambda n, g: (g.bf(n, 16, 2048, 64), g.bf(n, 16, 4, 64), g.ints(2000, 1)), lambda cache, k, p: cache.index_copy_(2, p + torch.arange(4, device=p.device), k * 2))
_add("part of a matrix, in place", (16, 8192), lambda n, g: (g.bf(n, 4096), g.bf(n, 128)), lambda x, y: (x[:, 128:256].copy_(y * 2), None)[1])
_add("complex products", (64, 8192), lambda n, g: (g.c64(n, 1024), g.c64(n, 1024)), lambda x, y: (x * y.conj()).abs())
_add("spectrum and back", (16, 1024), lambda n, g: (g.f32(n, 4096), g.c64(2049)), lambda x, f: torch.fft.irfft(torch.fft.rfft(x) * f, 4096))
_add("int32 arithmetic", (64, 16384), lambda n, g: (g.ints(1000, n, 2048, dtype=torch.int32), g.ints(1000, n, 2048, dtype=torch.int32)), lambda x, y: (x * 31 + y) % 1009)
_add("int64 division", (64, 8192), lambda n, g: (g.ints(1 << 40, n, 1024), g.ints(1000, n, 1024) + 1), lambda x, y: x // y + x % y)
_add("bits and shifts", (64, 16384), lambda n, g: (g.ints(256, n, 4096, dtype=torch.uint8),), lambda x: torch.stack((x & 15, x >> 4), -1).flatten(-2))
_add("logic of masks", (64, 32768), lambda n, g: (g.bools(n, 2048), g.bools(n, 2048), g.bools(2048)), lambda a, b, c: (a & ~b) | (b ^ c))
_add("doubles", (64, 8192), lambda n, g: (g.f64(n, 1024), g.f64(n, 1024)), lambda x, y: (x * y).sin() + y.exp())
_add("softmax of doubles", (64, 8192), lambda n, g: (g.f64(n, 1024),), lambda x: x.softmax(-1))
_add("double sums by columns", (64, 16384), lambda n, g: (g.f64(n, 512),), lambda x: x.sum(0))
_add("float16 chain", (64, 16384), lambda n, g: (g.half(n, 2048), g.half(n, 2048)), lambda x, y: F.gelu(x * y) + F.mish(y))
_add("costly functions", (64, 8192), lambda n, g: (g.f32(n, 2048),), lambda x: x.lgamma() + x.erfinv().nan_to_num() + torch.special.i0(x))
_add("powers", (64, 8192), lambda n, g: (g.f32(n, 2048).abs(), g.f32(n, 2048)), lambda x, y: x**y + x**1.5)
_add("quantise by rows", (64, 16384), lambda n, g: (g.bf(n, 4096),), lambda x: _quantise(x))
_add("quantise to float8 by blocks", (64, 8192), lambda n, g: (g.bf(n, 4096),), lambda x: _float8(x))
_add("hundred steps of one chain", (64, 8192), lambda n, g: (g.f32(n, 1024),), lambda x: _steps(x))

# fmt: on


def _entropy(x: Tensor) -> Tensor:
    return -(x.softmax(1) * x.log_softmax(1)).sum(1)


def _top_p(x: Tensor) -> Tensor:
    values, places = x.sort(-1, descending=True)
    gone = values.softmax(-1).cumsum(-1) > 0.9
    return x.masked_fill(torch.zeros_like(gone).scatter(-1, places, gone), -math.inf)


def _alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2], device=q.device)
    slopes = 2.0 ** -torch.arange(1, q.shape[1] + 1, device=q.device)
    bias = -(places[:, None] - places).abs() * slopes[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype))


def _rope_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def _rope_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2).to(x.dtype)


def _route(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    weights, experts = (x @ w).float().softmax(-1).topk(2)
    order = experts.flatten().argsort(stable=True)
    counts = F.one_hot(experts, 64).sum((0, 1))
    return x[order // 2], weights.flatten()[order], counts.cumsum(0)


def _focal(x: Tensor, y: Tensor) -> Tensor:
    p, y = x.sigmoid(), y.to(x.dtype)
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    return (loss * (1 - (p * y + (1 - p) * (1 - y))) ** 2).mean()


def _dice(x: Tensor, y: Tensor) -> Tensor:
    p = x.sigmoid()
    return 1 - (2 * (p * y).sum((2, 3)) / (p.sum((2, 3)) + y.sum((2, 3)) + 1)).mean()


def _adam(p: Tensor, d: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    m = m.lerp(d, 0.1)
    v = v.abs() * 0.999 + d * d * 0.001
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def _quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / 127 + 1e-8
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


def _float8(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.unflatten(-1, (-1, 128)).float()
    scale = blocks.abs().amax(-1, keepdim=True) / 448 + 1e-8
    return (blocks / scale).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def _steps(x: Tensor) -> Tensor:
    for k in range(50):
        x = x * 0.99 + math.sin(k)
    return x
