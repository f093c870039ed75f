"""Programs about places: positions that are joined, turned, padded and compared, masks that are made of them, and what is read, chosen and written by them.

What a graph computes of positions alone is decided while it is compiled wherever it can be, so that loops have neither the test nor what is not chosen.
"""

from __future__ import annotations

from tests.fuzz.machine import Machine
from tests.fuzz.tensors import generate as ordinary
from tests.fuzz.tensors.check import check
from tests.fuzz.tensors.grammar import rows
from tests.fuzz.tensors.program import TensorProgram

#: positions along the first dim of a tensor
POSITIONS = """
torch.arange({v}.shape[0])
torch.arange({v}.shape[0]).flip(0)
torch.arange({v}.shape[0]).roll({k})
torch.arange({v}.shape[0]).repeat(2)
torch.arange({v}.shape[0]) % {p}
torch.arange({v}.shape[0]) * 2 - {p}
F.pad(torch.arange({v}.shape[0]), (1, 2), value={k})
torch.cat([torch.arange({v}.shape[0]), torch.arange({p})])
torch.cat([torch.arange({v}.shape[0]), torch.arange({0}.shape[0]) + {k}])
torch.cat([torch.arange({p}), torch.arange({v}.shape[0]), torch.arange({0}.shape[-1])])
torch.stack([torch.arange({v}.shape[0]), torch.arange({0}.shape[0]) * 2])
torch.stack([torch.arange({v}.shape[0]), torch.arange({0}.shape[0]).flip(0)], -1).flatten()
torch.where(torch.arange({v}.shape[0]) < {p}, torch.arange({0}.shape[0]), {k})
torch.arange({v}.shape[0])[:, None] - torch.arange({0}.shape[0])
torch.eye({v}.shape[0], dtype=torch.int64)
torch.arange({v}.shape[0]).diag_embed({k})
"""

#: what is asked of positions, and done where they say so
ASKED = """
(@) < {p}
(@) <= {k}
(@) == {k}
(@) >= {n}
((@) > {k}) & ((@) < {p})
"""
DONE = """
torch.where((@) < {p}, 1.5, {f})
torch.where((@) > {k}, @, -1)
{f}.sum() * ((@) <= {p})
((@) == {p}).cumsum(-1)
{v}[(@).abs() % {0}.shape[0]]
torch.ones_like(@).masked_fill((@) < {k}, {c})
"""


def asked(table: str) -> list[str]:
    """The rows of a table with each kind of positions in them."""
    return [row.replace("@", of) for row in rows(table) for of in rows(POSITIONS)]


EXACT = """
torch.arange({v}.shape[0])
torch.arange({v}.shape[-1])
torch.arange({v}.shape[0])[:, None] - torch.arange({0}.shape[-1])
torch.arange({v}.numel()).view({0}.shape)
torch.arange({v}.shape[-1], 0, -1)
torch.arange(1, {v}.shape[0] * 2 + 1, 2)
torch.arange({p} * 4)
torch.arange({n}, {n} + {p})
torch.eye({v}.shape[0], dtype=torch.bool)
torch.ones({v}.shape[0], {0}.shape[-1], dtype=torch.bool).tril()
torch.ones({v}.shape[0], {0}.shape[-1], dtype=torch.bool).triu({k})
torch.tril_indices({v}.shape[0], {p})[0]
torch.meshgrid(torch.arange({v}.shape[0]), torch.arange({0}.shape[-1]), indexing="ij")[1]
torch.cat([{v}, {0}])
torch.cat([{v}, {0} + {0}.shape[0]])
torch.cat([{v}, {0}.flip(0)], {d})
torch.cat([{v}[1:], {0}[:1]])
torch.cat([{v}, {0}[:{p}], {0}])
torch.cat([{i}, torch.arange({p})])
torch.stack([{x}, {0} + 1], -1)
torch.stack([{x}, {0}])
torch.hstack([{v}, {0}])
{i}.new_zeros({0}.shape).scatter({d}, {0}.clamp(0, 0), 1)
{v}.roll({k}, {d})
{v}.roll(1)
{v}.flip({d})
{v}.repeat({p}, *[1] * {0}.dim())
{v}.repeat_interleave(2, {d})
{v}.repeat_interleave({p})
{v}.tile(2)
F.pad({v}, (1, 2))
F.pad({v}, ({p}, -1), value=3)
F.pad({v}, (-1, {p}), value={c})
{v}.tril({k})
{v}.triu({k})
{v}.diag_embed({k})
{i} // 2
{i} % 3
{i} // {p}
{i} % {p}
{i} // {0}.shape[0]
{i} % {0}.shape[-1]
{i} - {0}.shape[0] // 2
{i} - {n}
{i}.neg()
{i} * {0}.shape[-1] + 1
{i} & 1
{i} >> 1
{i} ^ 1
{i}.clamp(0, {p})
{i}.clamp(max={n})
{i}.abs()
{i}.cumsum({d})
{b}.cumsum({d})
{b}.long()
{i} + {y}
{i} - {y}
{i} * {y}
torch.minimum({x}, {y})
torch.where({b}, {x}, {y})
torch.where({b}, {i}, {0} - 1)
torch.where({x} < {p}, {0}, {0} - {p})
torch.where({x} < {y}, {0}, {0} * 2)
torch.where({x} == {k}, {0}, -{0})
torch.where({b} & ({x} > {k}), {0}, 0)
{x}.masked_fill({b}, {c})
{x}.masked_fill(~{b}, 0)
{v} * (torch.arange({0}.shape[-1]) < {p})
{v}.masked_fill(torch.arange({0}.shape[-1]) >= {n}, -1)
torch.where(torch.arange({v}.shape[-1]) % 2 == 0, {0}, -{0})
{v}[torch.arange({0}.shape[0] - 1, -1, -1)]
{v}[(torch.arange({0}.shape[0]) + {p}) % {0}.shape[0]]
{v}[torch.arange({0}.shape[0]) // 2]
{v}.index_select({d}, torch.tensor({J}))
{v}.index_select(0, torch.cat([torch.arange({0}.shape[0]), torch.arange({0}.shape[0])]))
{v}.gather({d}, {0}.long().clamp(0, 0))
{v}.take(torch.arange({0}.numel()).flip(0))
{v}[..., {0}.shape[-1] // 2 :].neg()
torch.cat([-{v}[..., {0}.shape[-1] // 2 :], {0}[..., : {0}.shape[-1] // 2]], -1)
F.one_hot({i}.clamp(0, 3), 4)
({i}[..., None] == torch.arange({p})).sum(-1)
{v}.new_zeros({0}.shape).index_copy({d}, torch.tensor({U}), {0}.index_select({d}, torch.tensor({U})))
torch.bucketize({i}, torch.arange({p}))
{b}.any({d})
{b}.sum({d})
{i}.amax({d})
{i}.sum({d})
"""

INEXACT = """
{g}.masked_fill(torch.arange({0}.shape[-1]) > {n}, -inf).softmax(-1)
{g}.masked_fill(torch.ones({0}.shape[-1], dtype=torch.bool).tril(), 0).mean(-1)
torch.where({b}, {f}, {y}).exp()
torch.where(torch.arange({g}.shape[-1]) < {p}, {0}.sin(), {0}.cos())
{g} * (torch.arange({0}.shape[-1]) * 0.5).cos()
torch.cat([{g}.sin(), {0}.cos()], -1)
torch.cat([{g}.sigmoid(), {0}[..., :1] * 2, {0}], -1)
F.pad({g}.tanh(), (1, 1))
F.pad({g}, (1, 1)).softmax(-1)
torch.stack([{g}.sin(), {0}.cos()], -1).flatten(-2)
{g}.exp().roll(1, {d})
{g}.tanh().flip({d})
{i} * 0.1
({i} < {p}).to({F}).mean()
"""

STEPS = """
{x} < {p}
{x} <= {k}
{x} > {k}
{x} >= {p}
{x} == {k}
{x} != {p}
{x} < {y}
{x} >= {y}
{x} == {y}
{x} <= {n}
({x} > {k}) & ({0} < {p})
({x} < {k}) | ({0} >= {p})
({x} < {k}) ^ ({0} > {k})
torch.logical_and({b}, {y} > 0)
~{b}
{b} & {b}
{i} % 2 == 0
({v}[:, None] >= {0}) if {0}.dim() == 1 else ({0} >= 1)
torch.arange({v}.shape[-1]) < {0}
torch.isin({i}, torch.tensor([0, 2]))
{i}.argmax({d})
{i}.sort({d}).values
"""

WRITES = """
{w}[torch.arange({0}.shape[0]) // 2] = {c}
{w}[..., torch.arange({0}.shape[-1]) < {p}] = {c}
{w}[{b}] = {c}
{w}[1:] = {0}[:-1].clone()
{w}[..., :{p}] += torch.arange({p})
{w}[::2] = 0
{w}.masked_fill_({b}, {c})
{w}.masked_fill_(torch.arange({0}.shape[-1]) >= {n}, 2)
{w}.copy_(torch.arange({0}.numel()).view({0}.shape))
{w}.copy_({0}.flip(0))
{w}.copy_({0}.roll(1, {d}))
{w}.scatter_({d}, {0}.long().clamp(0, 0), 1)
{w}.index_fill_({d}, torch.tensor({J}), {c})
{w}.index_add_({d}, torch.tensor({J}), {0}.index_select({d}, torch.tensor({J})).clone())
{w}.index_put_((torch.arange({0}.shape[0]),), torch.arange({0}.shape[0]).to({0}.dtype))
{w}.tril_({k})
{w}.triu_({k})
{w}.add_(torch.arange({0}.shape[-1]))
{w}.diagonal().fill_({c})
"""

#: family -> tables of rows, each as often as the others
TABLES = {family: [usual] for family, usual in ordinary.TABLES.items()} | {
    "EXACT": [rows(EXACT), asked(DONE)],
    "INEXACT": [rows(INEXACT)],
    "STEPS": [rows(STEPS), asked(ASKED)],
    "WRITES": [rows(WRITES)],
}


def generate(seed: int) -> TensorProgram:
    """The program of a seed."""
    return ordinary.generate(seed, TABLES)


MACHINE = Machine(generate, check)
