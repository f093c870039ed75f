"""Programs of rarer statements: sizes in indices, lists, other types, complex numbers, functions that few programs call.

They stand beside the rows of ``grammar.py``, whose programs stay those of their seeds. ``{z}`` is a complex tensor.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.fuzz.machine import Machine
from tests.fuzz.tensors import generate as ordinary
from tests.fuzz.tensors.check import check
from tests.fuzz.tensors.grammar import rows
from tests.fuzz.tensors.program import Given, TensorProgram

VIEWS = """
{v}.view(2, -1)
{v}.view(-1, 2)
{v}.reshape(2, -1)[1]
{v}.unflatten(0, (2, -1))
{v}.unflatten({d}, (-1, 2))
{v}[: {0}.shape[0] // 2]
{v}[{0}.shape[0] // 2 :]
{v}[{0}.shape[0] // 3 : {0}.shape[0] // 2 + 1]
{v}[: {0}.shape[0] - {n}]
{v}[: {0}.shape[0] // 2 - {n}]
{v}[: {0}.shape[-1] % 3]
{v}[..., {0}.shape[-1] // 2 :]
{v}[-({0}.shape[0] // 2) :]
{v}[:: {0}.shape[0] // 2 + 1]
{v}.tensor_split(2, {d})[0]
{v}.tensor_split(3, {d})[{k}]
{v}.chunk(3, {d})[{k}]
{v}.split({0}.shape[0] // 2 + 1)[0]
{v}.split([1, {0}.shape[0] - 1])[1]
{v}.narrow(0, {0}.shape[0] // 2, {0}.shape[0] - {0}.shape[0] // 2)
{v}.narrow(-1, {0}.shape[-1] // 2, 1)
{x}.expand({n}, *{0}.shape)
{v}.as_strided(({0}.shape[0] // 2,), (2,))
{v}.unfold({d}, {0}.shape[0] // 2, 1)
{v}.diagonal({n})
{v}.movedim((0, -1), (-1, 0))
{v}.flatten({d})
{v}.view({0}.numel())
{v}.view({0}.shape[0], {0}.numel() // max({0}.shape[0], 1))
{v}.squeeze((0, -1))
{v}.vsplit(2)[1]
{v}.mH
{i}.view(torch.int16)
{i}.view(torch.uint8)
{i}.view(torch.int64)
torch.atleast_1d({x})
torch.atleast_3d({x})
[t for t in {v}.unbind()][{k}]
{z}.real
{z}.imag
{z}.conj()
{z}.mH
torch.view_as_real({z})
{z}[..., 0]
"""

EXACT = """
torch.slice_copy({v}, 0, 1)
torch.expand_copy({x}, (2, *{0}.shape))
torch.select_copy({v}, 0, 0)
torch.unbind_copy({v})[0]
torch.diagonal_copy({v})
torch.permute_copy({v}, tuple(reversed(range({0}.dim()))))
torch.view_copy({x}, (-1,))
torch.unfold_copy({v}, 0, 2, 1)
torch.narrow_copy({v}, 0, 0, 1)
{x} + {0}.to({T})
{x} * {0}.to({T})
{x} - torch.tensor({c})
{x} * torch.tensor(2, dtype={T})
{i} + {f}
{i} * {c}
{b} + {i}
{b} * {x}
torch.where({b}, {i}, 1.5)
torch.where({b}, {x}.to({T}), {0})
torch.cat([{v}, {0}.to({T})])
torch.stack([{x}, {0}.to({T})])
torch.maximum({x}, {0}.to({T}))
torch.add({i}, {y}, alpha=2)
{i}.clamp(min=0.5)
{i}.sum({d}, dtype=torch.uint8)
{i}.cumsum({d}, dtype=torch.int8)
{i}.prod({d}, dtype=torch.int32)
{b}.sum({d})
{b}.cumsum({d})
{i} ** 2
{i} ** {p}
{i}.to(torch.uint16)
{i}.to(torch.uint32)
{i}.to(torch.uint64)
torch.zeros({v}.shape[0] + 2)
torch.ones({v}.shape[0] // 2 + 1, {p})
torch.arange({v}.shape[0])
torch.arange(2, 2 + {v}.shape[0])
torch.full(({v}.shape[0],), {n})
{x} * {0}.numel()
{v} + {0}.shape[0]
{v} * ({0}.shape[0] // 2)
{x} + {n} * 2
{x} * float({n})
{x} + ({n} > 1)
{x} - {n} % 3
({x} + 1 if {n} > 1 else {0} * 2)
({v} + 1 if {0}.shape[0] > 2 else {0} * 2)
{v}.repeat({0}.shape[0] % 3, *[1] * ({0}.dim() - 1))
F.pad({v}, (0, {0}.shape[-1] % 4))
F.pad({v}, (0, -{0}.shape[-1] % 4))
F.pad({v}, (1, -({0}.shape[-1] // 2)))
{v}.roll({0}.shape[0] // 2, 0)
torch.cat([{v}[{0}.shape[0] // 2 :], {0}[: {0}.shape[0] // 2]])
{v}.view(2, -1).flip(0).view({0}.shape)
{v}.unflatten(0, (-1, 2)).sum(1)
{v}.reshape({0}.shape[0] // 2, -1)
{v}[: {0}.shape[0] // 2 - {n}] + {0}
{v}.tensor_split(2)[1][{n}:] * {0}
{v}.chunk(2)[0] + {0}.chunk(2)[1]
sum({v}.unbind())
torch.stack([t * 2 for t in {v}.unbind()])
[t + 1 for t in {v}.chunk(2)][-1]
{v} * max({0}.shape)
{v}.new_zeros({0}.shape[::-1])
{v}.new_full({0}.shape[1:], {n})
torch.diag_embed({v})
torch.diagflat({v})
torch.msort({v})
{v}.kthvalue(1, {d}).values
{v}.contiguous().nanmedian({d}).values
{v}.cummin({d}).values
{v}.topk(2, {d}).values
torch.topk({v}, 1, {d}, largest=False).values
{v}.sum((0, -1))
{v}.amax((0, -1))
{x}.masked_select({b})
{x}.masked_scatter({b}, {0})
{v}.index_reduce({d}, torch.tensor({J}), {0}.index_select({d}, torch.tensor({J})), "amax")
{v}.scatter_reduce({d}, torch.zeros_like({0}, dtype=torch.int64), {0}, "amin")
{v}.put(torch.tensor([0, -1]), torch.tensor([1, 2], dtype={0}.dtype))
torch.bincount({i}.clamp(0, 9).flatten())
F.pixel_unshuffle({g}, 2)
F.adaptive_max_pool1d({g}, 2)
F.adaptive_max_pool2d({g}, 2)
F.max_pool1d({g}, 3, 2, 1, ceil_mode=True)
F.max_pool2d({g}, 2, dilation=2)
F.pad({g}, (1, 1, 1, 1), mode="reflect")
F.fold({g}, (3, 3), 2)
F.conv1d({g}, {g}, dilation=2)
F.conv1d({g}, {g}, padding="same")
torch.linalg.cross({v}, {s})
torch.inner({g}, {g})
torch.addr({g}, {g}, {g})
torch.addmv({g}, {g}, {g})
torch.einsum("i...,i...->...", {g}, {s})
torch.einsum("...i,...i->...", {g}, {s})
torch.einsum("ii->i", {g})
torch.matrix_power({g}, 2)
torch.matrix_power({g}, 0)
F.embedding({i}.clamp(0, 0), {g})
F.embedding(torch.tensor([0, 1]), {g}, padding_idx=0)
torch.bucketize({f}, torch.tensor([-1.0, 0.0, 1.0]), right=True)
torch.fliplr({v})
{v}.rot90(2)
torch.column_stack([{v}, {0}])
torch.dstack([{v}, {0}])
torch._foreach_add([{x}, {0}], 1)[1]
torch._foreach_mul([{x}, {0}], [{0}, {0}])[1]
torch._foreach_maximum([{x}], 1)[0]
torch._foreach_neg([{f}, {0}])[0]
torch.func.vmap(lambda t: t * 2)({v})
torch.func.vmap(lambda t: t.sum(), in_dims=-1)({v})
torch.func.grad(lambda t: (t * t).sum())({f})
torch.complex({f}, {s})
torch.view_as_complex(torch.stack([{f}, {s}], -1))
{z} + {z}
{z} + {f}
{z} * 2
{z} * 1j
{z}.conj() + {0}
{z}.sum({d})
{z}.resolve_conj()
{z}.clone()
torch.cat([{z}, {0}.conj()])
"""

INEXACT = """
{i} / {i}
{i}.sqrt()
{i}.sin()
{i}.sigmoid()
{b}.exp()
{i}.mean(dtype={F})
{f}.tan()
{f}.asin()
{f}.atanh()
{f}.erfc()
torch.special.ndtr({f})
torch.special.i0e({f})
torch.special.i1({f})
torch.special.bessel_j0({f})
torch.logaddexp2({f}, {y})
{g}.logsumexp((0, -1))
{g}.mean((0, -1))
{g}.var((0, -1))
{g}.norm(dim=(0, -1))
{g}.softmax({d}, dtype=torch.float64)
{g}.log_softmax({d}, dtype=torch.float32)
torch.linalg.det({g})
torch.linalg.matrix_norm({g})
torch.linalg.vector_norm({g}, inf, {d})
torch.linalg.vector_norm({g}, 0.5, {d})
torch.cdist({g}, {g})
torch.fft.rfft({g}).abs()
torch.fft.irfft(torch.fft.rfft({g}))
torch.quantile({g}, 0.3, {d})
F.layer_norm({g}, {0}.shape[-1:], {0}.new_ones({0}.shape[-1:]), {0}.new_zeros({0}.shape[-1:]))
F.batch_norm({g}, torch.zeros({0}.shape[1]), torch.ones({0}.shape[1]))
F.group_norm({g}, 2)
F.dropout({f}, 0.5, False)
F.scaled_dot_product_attention({g}, {0}, {0}, is_causal=True)
F.scaled_dot_product_attention({g}, {0}, {0}, scale=0.5)
F.cross_entropy({g}, torch.zeros({0}.shape[0], dtype=torch.int64))
F.cross_entropy({g}, torch.zeros({0}.shape[0], dtype=torch.int64), label_smoothing=0.25)
F.nll_loss({g}.log_softmax(-1), torch.zeros({0}.shape[0], dtype=torch.int64))
F.poisson_nll_loss({f}, {s})
F.multilabel_soft_margin_loss({g}, {s})
F.interpolate({g}, scale_factor=2, mode="bilinear")
F.interpolate({g}, size=({p}, {p}), mode="bicubic")
F.interpolate({g}, size=3, mode="area")
F.adaptive_avg_pool2d({g}, 2)
F.avg_pool1d({g}, 3, 2, 1, True, False)
F.conv_transpose2d({g}, {g})
F.conv_transpose1d({g}, {g}, stride=2)
F.bilinear({g}, {g}, {g})
torch._foreach_exp([{f}, {0}])[1]
torch._foreach_div([{f}], 3)[0]
torch._foreach_norm([{g}, {0}])[1]
torch.func.vmap(torch.sin)({f})
torch.func.grad(lambda t: t.sin().sum())({f})
torch.func.vmap(torch.func.grad(lambda t: t.cos().sum()))({g})
({v} * 0.5)[: {0}.shape[0] // 2 - {n}] + {0}
{g} / {0}.shape[0]
{g}.sum({d}) / {0}.numel()
{g} * {0}.shape[-1] ** -0.5
{z}.abs()
{z} * {z}
{z}.exp()
"""

STEPS = """
{v}[{0} > 0]
{x}.nonzero()
torch.argwhere({x} > 0)
{x}.count_nonzero(0)
{v}.unique()
{v}.mode({d}).values
{v}.argsort({d}, descending=True, stable=True)
torch.histc({f}, 4, -3, 3)
torch.lcm({i}, {s})
{f}.frexp().exponent
torch.searchsorted({v}.sort().values, {0})
{x} // {n}
{x} % {n}
({x} > {n}) | {b}
torch.eq({z}, {0}.conj())
"""

WRITES = """
for part in {w}.unbind(): part.mul_(2)
for part in {w}.chunk(2): part.add_({c})
for part in {w}.split(1)[1:]: part.copy_({0}[:1].clone())
[t.add_(1) for t in ({w}, {w})]
torch._foreach_add_([{w}], [{y}])
torch._foreach_mul_([{w}, {w}], {c})
torch._foreach_zero_([{w}])
torch._foreach_copy_([{w}], [{y}])
torch._foreach_clamp_min_([{w}], 0)
torch._foreach_lerp_([{w}], [{s}], 0.5)
torch._foreach_addcmul_([{w}], [{s}], [{s}], 2)
torch._foreach_sub_(list({w}.unbind()), 1)
torch._foreach_mul_(list({w}.split(1)), 2)
{w}.set_({x}.clone())
{w}.data = {x}.clone()
{w}.data = {0}.data * 2
{w}.resize_({0}.shape)
{w}.resize_as_({0}.t()).fill_(2)
{w}.unbind()[0].add_(1)
{w}.split(1)[-1].mul_(2)
{w}.chunk(2)[0].zero_()
{w}.tensor_split(2)[1].add_({c})
{w}.view(2, -1)[0].add_(1)
{w}.view(-1, 2)[:, 1].mul_(2)
{w}[: {0}.shape[0] // 2] = {c}
{w}[{0}.shape[0] // 2 :].add_(1)
{w}[: {0}.shape[0] // 2 - {n}] += 1
{w}[{0}.shape[0] // 2] = {c}
{w}.narrow(0, {0}.shape[0] // 2, 1).fill_(2)
{w}.unfold(0, 2, 2).add_(1)
{w}.diagonal({k}).add_({c})
{w}.as_strided(({0}.shape[0] // 2,), (2,)).add_(1)
{w}.masked_scatter_({b}, {0}.clone())
{w}[{b}] += 1
{w}.scatter_reduce_({d}, torch.zeros_like({0}, dtype=torch.int64), {0}.clone(), "prod")
{w}.index_add_({d}, torch.tensor({J}), {0}.index_select({d}, torch.tensor({J})).clone(), alpha=2)
{w}[..., [0, -1]] = {c}
{w}[[0], ...] += 1
{w}.triu_(1)
{w}.add_({y}, alpha=2)
{w}.sub_({n})
{w}.mul_({b})
{w}.bitwise_and_(6)
{w}.flatten().mul_(2)
{w}.contiguous().add_(1)
{w}.reshape(-1).add_(1)
{w}.to({F}).add_(1)
{w}.mT.add_(1)
torch.cat([{v}, {v}], out={w})
torch.sum({v}, 0, out={w})
torch.clamp({x}, 0, 1, out={w})
{w}.as_strided_(({p},), (1,))
{w}.swapdims_(0, 1)
{w}.retain_grad()
{z}.real.add_(1)
{z}.imag.zero_()
{z}.mul_(2)
"""

ROUGH_WRITES = """
torch._foreach_exp_([{w}])
torch._foreach_div_([{w}, {w}], 3)
{w}[: {0}.shape[0] // 2].mul_(0.1)
{w}.erf_()
{w}.add_({g}.mean(), alpha=0.5)
"""

PAIRS = """
{v}.tensor_split(2)
{v}.tensor_split(3, {d})
{v}.chunk(3, {d})
{v}.split([1, {0}.shape[0] - 1])
{v}.topk(1, {d})
{v}.min({d})
torch._foreach_add([{x}, {0}], 1)
torch.std_mean({g}, {d})
torch.linalg.slogdet({g})
"""

#: family -> its rows of both tables, these as often as those
TABLES = {
    family: [usual, rows(text)]
    for (family, usual), text in zip(
        ordinary.TABLES.items(), (VIEWS, EXACT, INEXACT, STEPS, WRITES, ROUGH_WRITES, PAIRS), strict=True
    )
}


def generate(seed: int) -> TensorProgram:
    """The program of a seed."""
    return ordinary.generate(seed, TABLES, in_part_complex)


def in_part_complex(rng: random.Random, given: tuple[Given, ...]) -> tuple[Given, ...]:
    """Arguments, some of which are complex numbers that lie as the floats did."""
    return tuple(
        replace(one, calls=tuple(f"{text} * (1 - 2j)" for text in one.calls))
        if re.search("'float(32|64)'", one.calls[0]) and rng.random() < 0.2
        else one
        for one in given
    )


MACHINE = Machine(generate, check)
