"""Programs of large tensors: what compiled code does in tasks, tiles, blocks and parts, and the remainders of these.

Sums are of quarters mostly, so that they are exact in any order: an element that is left out or taken twice is seen among millions.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from tests.fuzz.machine import Machine
from tests.fuzz.tensors import extents
from tests.fuzz.tensors import generate as ordinary
from tests.fuzz.tensors.check import check
from tests.fuzz.tensors.grammar import rows
from tests.fuzz.tensors.program import TensorProgram

#: rows of the usual tables whose work, or parts, grow as a square of their operands
SQUARES = re.compile(
    r"outer|kron|meshgrid|cartesian_prod|combinations|block_diag|conv|attention|unfold\(0, 1, 1\)|unbind|split\(1\)"
    r"|diag_embed|cov\(|lgamma|polygamma|digamma|erfinv|log_ndtr|renorm|quantile|einsum|tensordot"
)

VIEWS = """
{v}[{0}.shape[0] // 2 :]
{v}[..., : {0}.shape[-1] // 3 + 1]
{v}[..., {0}.shape[-1] // 2 :]
{v}[1:-1]
{v}[..., ::3]
{v}[::7]
{v}.mT
{v}.transpose(0, -1)
{v}.flatten()
{v}.unflatten(-1, (-1, 2))
{v}.unflatten(0, (2, -1))
{v}[None].expand(3, *{0}.shape)
"""

EXACT = """
{x}.sum()
{v}.sum({d})
{v}.sum(0)
{v}.sum(-1)
{v}.sum(({d}, {e}))
{v}.sum({d}, keepdim=True) - {0}
{v}.sum((0, -1))
({v} * {y}).sum({d})
({v} * 2 + 1).sum({d})
({v} + {y}).sum(0)
{f}.relu().sum()
{f}.abs().sum()
{v}.sum({d}, dtype=torch.float64)
{v}.contiguous().cumsum({d})
{v}.cumsum(-1)
{v}.cumsum(0)
{v}.flip(-1).cumsum(-1).flip(-1)
{v}.cumsum({d}) - {0}
{v}.clamp(-1, 1).cumsum({d}).amax({d})
{v}.clamp(1, 1).cumprod({d})
{v}.cummax({d}).values
{v}.amax({d})
{v}.amin({d}, keepdim=True)
{v}.amax(({d}, {e}))
{v} - {0}.amax({d}, keepdim=True)
{x}.amax()
{x}.min()
{v}.max({d}).values
{v}.sort({d}).values
{v}.sort(-1, descending=True).values
{v}.topk(3, {d}).values
{v}.topk({0}.shape[-1] // 2, -1).values
{v}.kthvalue(2, {d}).values
{v}.contiguous().median({d}).values
{v}.mT.contiguous()
{v}.transpose({d}, {e}).contiguous()
{v}.permute(*reversed(range({0}.dim()))).contiguous()
{v}.movedim({d}, {e}).clone(memory_format=torch.contiguous_format)
{v}.mT.reshape({0}.shape) + {0}
{v}.mT.contiguous().sum({d})
{v}.transpose(0, -1).reshape(-1)
torch.cat([{v}.mT.contiguous(), {0}.mT], {d})
{v}.flip({d})
{v}.flip(0, -1)
{v}.roll({k}, {d})
{v}.roll({0}.shape[0] // 2, 0)
{v}.roll((1, -1), (0, -1))
{v}.rot90()
F.pad({v}, (1, 2))
F.pad({v}, (3, -1), value=2)
F.pad({v}, (0, 1, 1, 0))
F.pad({v}, (2, 2), mode="reflect")
F.pad({v}, (1, 1, 1, 1), mode="replicate")
torch.cat([{v}, {0}[:1]])
torch.cat([{v}, {0} * 2], {d})
torch.cat([{v}[..., :1], {0}, {0}[..., 1:]], -1)
torch.cat([{v}, {0}], {d}).sum({d})
torch.stack([{x}, {s}], -1)
torch.stack([{x}, {0} + 1])
torch.stack([{x}, {0}], -1).sum(-1)
{v}.split(({0}.shape[-1] + 1) // 2, -1)[0]
{v}.chunk(3, {d})[-1]
{v}.repeat_interleave(2, {d})
{v}.repeat(2, *[1] * ({0}.dim() - 1))
{v}.unfold({d}, 3, 2).sum(-1)
{v}.diff(dim={d})
{v}[..., ::2] + {0}[..., ::2]
{v}[1:] - {0}[:-1]
{v}[..., 1:] * {0}[..., :-1]
{v}.tril({k})
{v}.triu()
{v}.diagonal().sum()
{v}.gather({d}, {0}.new_zeros({0}.shape, dtype=torch.int64))
{v}.index_select(0, torch.arange({0}.shape[0] - 1, -1, -1, device={0}.device))
{v}[torch.arange({0}.shape[0], device={0}.device) // 3]
{v}[torch.arange({0}.shape[0] * 2, device={0}.device) % max({0}.shape[0], 1)]
{v}[:, torch.arange(300, device={0}.device) % {0}.shape[1]]
{v}[..., torch.arange({0}.shape[-1], device={0}.device) // 2].sum(-1)
{v}.take(torch.arange({0}.numel(), device={0}.device).flip(0) // 2)
{v}.new_zeros(5, *{0}.shape[1:]).index_add(0, torch.arange({0}.shape[0], device={0}.device) % 5, {0})
{v}.new_zeros(1000, *{0}.shape[1:]).index_add(0, torch.arange({0}.shape[0], device={0}.device) * 7 % 1000, {0})
{v}.new_zeros(3, *{0}.shape[1:]).index_put((torch.arange({0}.shape[0], device={0}.device) % 3,), {0}, accumulate=True)
{v}.new_zeros({0}.shape).index_add(0, torch.arange({0}.shape[0], device={0}.device) // 9, {0})
{v}.new_zeros({0}.shape).scatter_add({d}, {0}.new_zeros({0}.shape, dtype=torch.int64), {0})
{v}.new_zeros({0}.shape).scatter_add(-1, torch.arange({0}.shape[-1], device={0}.device).expand({0}.shape) // 3, {0})
{v}.scatter_reduce(-1, torch.arange({0}.shape[-1], device={0}.device).expand({0}.shape) % 2, {0}, "amax")
{v}.index_copy(0, torch.arange({0}.shape[0], device={0}.device).flip(0), {0} * 2)
F.embedding(torch.arange(5000, device={g}.device) % max({0}.shape[0], 1), {0})
F.embedding(torch.arange(5000, device={g}.device) * 31 % min(max({0}.shape[0], 1), 17), {0}).sum(0)
F.embedding({i}.long().clamp(0, 3), {g})
{g}[{i}.long().clamp(-1, 1)]
F.one_hot({i}.long().clamp(0, 4), 5).sum(0)
torch.bincount({i}.clamp(0, 6).flatten(), minlength=7)
F.max_pool1d({g}, 3, 2)
F.max_pool2d({g}, 3, 2, 1)
{g}.contiguous(memory_format=torch.channels_last) * 2
{g}.contiguous(memory_format=torch.channels_last).sum((0, 2, 3))
{g}.unsqueeze(0).unsqueeze(0).contiguous(memory_format=torch.channels_last).amax(-1)
F.pixel_unshuffle({g}, 2)
F.interpolate({g}[None, None], scale_factor=2)
F.interpolate({g}[None], size=1031)
{g} @ {g}
{g} @ {g}.mT
{g}.mT @ {0}
({g} @ {g}).relu()
({g} @ {g}.mT + {c}).sum(0)
{g} @ {0}.mT[..., :65]
F.linear({g}, {0}[:33])
F.linear({g}, {0}[:5], {0}[:5, 0])
torch.bmm({g}, {g}.mT)
{g}.reshape(-1).dot({0}.reshape(-1))
{x}.to({F}).sum()
{b}.sum({d})
{b}.long().cumsum({d})
{i}.sum({d})
{i}.amax({d})
{i}.cumsum({d})
{i}.sort({d}).values
torch.where({b}, {x}, {y})
{x}.masked_fill({b}, 2).sum()
{v}.count_nonzero({d})
{v}[:, None] - {0}
"""

INEXACT = """
{g}.softmax({d})
{g}.softmax(-1)
{g}.softmax(0)
{g}.log_softmax({d})
{g}.logsumexp({d})
({g} * 0.5).softmax(-1).sum({d})
{g}.softmax(-1) @ {0}.mT[..., :9]
{g}.mean({d})
{g}.mean(({d}, {e}))
{f}.mean()
{g}.var({d})
{g}.std({d}, correction=0)
torch.var_mean({g}, (0, -1))[0]
({g} - {0}.mean({d}, keepdim=True)).square().mean({d})
({g} - {0}.mean()) * 2
{f}.exp().sum()
{g}.exp().sum({d})
{g}.tanh().sum(0)
{g}.sigmoid().cumsum({d})
{g}.sin().cumsum(-1)
{g}.cos().amax({d})
({g}.tanh() * {0}).sum({d})
{g}.exp() / {0}.exp().sum({d}, keepdim=True)
{g}.norm()
{g}.norm(dim={d})
F.normalize({g}, dim={d})
{g}.logcumsumexp({d})
F.layer_norm({g}, {0}.shape[-1:])
F.layer_norm({g}, {0}.shape[-1:], {0}[0].flatten()[: {0}.shape[-1]], {0}[-1].flatten()[: {0}.shape[-1]])
F.layer_norm({g}, {0}.shape)
F.rms_norm({g}, {0}.shape[-1:])
F.group_norm({g}, 1)
F.group_norm({g}[None], 1)
F.batch_norm({g}, None, None, training=True)
F.batch_norm({g}.mT, None, None, training=True)
F.instance_norm({g})
F.gelu({g} @ {g})
F.silu({g}.mT @ {0} * 0.1)
({g} @ {g}.mT).softmax(-1)
F.linear({g}, {g}).tanh()
F.linear({g}, {0}[:33]).sigmoid().sum(0)
F.cross_entropy({g}, torch.arange({0}.shape[0], device={0}.device) % {0}.shape[1])
F.cross_entropy({g} * 0.1, {0}.softmax(-1))
F.nll_loss({g}.log_softmax(1), torch.arange({0}.shape[0], device={0}.device) % 2, reduction="sum")
F.mse_loss({f}, {s})
F.smooth_l1_loss({f}, {s}, reduction="none").mean({d})
F.binary_cross_entropy_with_logits({f}, {s}.sigmoid())
F.scaled_dot_product_attention({g}[..., :257, :65], {0}[..., :257, :65], {0}[..., :257, :65])
F.scaled_dot_product_attention({g}[None, None, :300, :33], {0}[None, None, :300, :33], {0}[None, None, :300, :33], is_causal=True)
F.conv1d({g}, {0}[:3, :, :5], padding=2)
F.conv1d({g}[:, None], {0}[:5, None, :3])
F.conv2d({g}, {0}[:4, :, :3, :3], padding=1)
F.conv2d({g}[None, None], {0}[None, None, :3, :3].expand(4, 1, 3, 3), stride=2)
F.avg_pool1d({g}, 3, 2)
F.avg_pool2d({g}, 3, 2, 1)
F.adaptive_avg_pool2d({g}, 7)
F.interpolate({g}[None, None], scale_factor=2, mode="bilinear")
F.interpolate({g}[None], size=777, mode="linear")
F.embedding_bag(torch.arange(4096, device={g}.device).view(-1, 4) % max({0}.shape[0], 1), {0})
{f}.sin() + {y}
{f} * {y}.cos()
{g}.tanh().mT.contiguous()
{g}.exp().flip({d})
torch.cat([{g}.sin(), {0}.cos()], {d})
torch.stack([{g}.sin(), {0}.cos()], -1).flatten(-2)
F.pad({g}.tanh(), (1, 1))
{g}.sigmoid().roll(1, {d})
F.glu({g}, {d})
torch.addcmul({f}, {s}, {s}, value=0.1)
{g}.new_zeros(7, *{0}.shape[1:]).index_add(0, torch.arange({0}.shape[0], device={0}.device) % 7, {0}.sin())
{g}.exp().sort({d}).values
"""

STEPS = """
{x}.argmax()
{v}.argmax({d})
{v}.argmin({d})
{v}.argmax(-1)
{v}.argmax(0)
{v}.max({d}).indices
{v}.cummax({d}).indices
{v}.argsort({d}, stable=True)
{v}.sort(-1, descending=True, stable=True).indices
({x} > 0).sum()
({v} > 0).sum({d})
({v} > {y}).sum({d})
({v} == 0).any({d})
{v}.all({d})
{x}.any()
{x}.count_nonzero()
torch.where({x} > 0, {0}, -1).sum()
torch.where({v} > 0, {0}, -{0}).cumsum({d})
{v} >= {0}.amax({d}, keepdim=True)
({v} > 0).cumsum({d})
{v}.sign().sum({d})
torch.searchsorted({v}.sort(-1).values, {0})
torch.bucketize({v}, torch.arange(-2, 3, device={0}.device))
{v}.gather({d}, {0}.argsort({d}, stable=True))
{v}.flatten()[{0}.flatten().argsort(stable=True)]
{v}.take({0}.flatten().argsort(stable=True)) + 1
{v}.new_zeros({0}.numel()).index_add(0, {0}.flatten().argsort(stable=True), {0}.flatten())
F.one_hot({v}.argmax({d}), 300000 // max({0}.numel() // max({0}.shape[0], 1), 1) + 1).sum(0)
{v}.scatter(-1, {0}.argmax(-1, keepdim=True), 9)
{v}.gather(-1, {0}.argmax(-1, keepdim=True))
torch.unique({x})
{x}[{0} > 2]
{x}.nonzero()
"""

WRITES = """
{w}.add_(1)
{w}.mul_({y})
{w}[{0}.shape[0] // 2 :] = 0
{w}[{0}.shape[0] // 2 :].add_(1)
{w}[..., : {0}.shape[-1] // 2] += 1
{w}[..., : {0}.shape[-1] // 2] = {0}[..., {0}.shape[-1] - {0}.shape[-1] // 2 :].clone()
{w}[1:] = {0}[:-1].clone()
{w}[..., 1:].copy_({0}[..., :-1].clone())
{w}[1:] = {0}[:-1] + 1
{w}[::3] *= 2
{w}[..., ::2] = -1
{w}[-1] = {0}[0].clone()
{w}.copy_({0}.flip(0))
{w}.copy_({0}.flip(-1))
{w}.copy_({0}.roll(1, {d}))
{w}.copy_({0}.mT.reshape({0}.shape))
{w}.add_({0}.mT.reshape({0}.shape))
{w}.copy_({0}.cumsum({d}))
{w}.cumsum_({d})
{w}.sub_({0}.amax({d}, keepdim=True))
{w}.add_({0}.sum(0))
{w}.add_({0}.sum(-1, keepdim=True))
{w}.copy_({0}.sort({d}).values)
{w}.index_add_(0, torch.arange({0}.shape[0], device={0}.device) // 2, {0}.clone())
{w}.index_put_((torch.arange({0}.shape[0], device={0}.device) // 2,), {0}.clone(), accumulate=True)
{w}.scatter_add_(-1, torch.arange({0}.shape[-1], device={0}.device).expand({0}.shape) // 2, {0}.clone())
{w}.index_copy_(0, torch.arange({0}.shape[0], device={0}.device).flip(0), {0}.clone())
{w}.put_({0}.flatten().argsort(stable=True), {0}.flatten().clone())
{w}.index_fill_({d}, torch.arange(1, device={0}.device), 3)
{w}.masked_fill_({b}, 0)
{w}[{b}] = 1
{w}.clamp_(-1, 1)
{w}.tril_()
{w}.view(-1)[{0}.numel() // 2 :] = 3
{w}.view(-1)[-5:].add_(1)
{w}.transpose(0, -1).add_(1)
{w}.mT.mul_(2)
{w}.diagonal().add_(1)
{w}.select({d}, -1).zero_()
{w}.narrow({d}, 0, 1).add_(1)
{w}.addcmul_({s}, {s})
{w}.copy_({y})
{w}.zero_()
"""

ROUGH_WRITES = """
{w}.sin_()
{w}[{0}.shape[0] // 2 :].mul_(0.1)
{w}.sub_({g}.mean())
{w}.copy_({0}.double().softmax({d}))
{w}[..., 1:].tanh_()
{w}.div_({0}.abs().amax({d}, keepdim=True) + 1)
"""

PAIRS = """
{v}.sort({d}, stable=True)
{v}.max({d})
{v}.aminmax(dim={d})
torch.var_mean({g}, {d})
torch.std_mean({g}, (0, -1))
{v}.chunk(2, {d})
{v}.tensor_split(3)
{v}.cummax({d})
"""

#: family -> its rows: those that fit of the usual table, and twice as often those of this file
TABLES = {
    family: [[row for row in usual if not SQUARES.search(row)], rows(text), rows(text)]
    for (family, usual), text in zip(
        ordinary.TABLES.items(), (VIEWS, EXACT, INEXACT, STEPS, WRITES, ROUGH_WRITES, PAIRS), strict=True
    )
}
FAMILIES = {
    "VIEWS": 2.0,
    "EXACT": 6.0,
    "INEXACT": 4.0,
    "STEPS": 2.0,
    "WRITES": 4.0,
    "ROUGH_WRITES": 0.7,
    "PAIRS": 0.6,
}
SCALE = ordinary.Scale(extents.make, elements=1 << 22, changing=0.55, families=FAMILIES)


def generate(seed: int) -> TensorProgram:
    """The program of a seed: compiled to kernels, for one thread or more of those that the process has."""
    program = ordinary.generate(seed, TABLES, scale=SCALE)
    threads = random.Random(seed).choice((1, 2, 2, 3, 0))
    return replace(program, backend="braze", options=(*program.options, ("threads", threads)))


MACHINE = Machine(generate, check)
