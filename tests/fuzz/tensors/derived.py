"""Programs that take derivatives themselves, put hooks, and branch and loop over data, beside the rows of ``grammar.py``."""

from __future__ import annotations

from tests.fuzz.machine import Machine
from tests.fuzz.tensors import generate as ordinary
from tests.fuzz.tensors.check import check
from tests.fuzz.tensors.grammar import rows
from tests.fuzz.tensors.program import TensorProgram

VIEWS = """
torch.func.vmap(lambda t: t.t())({g}[None])
mapped({v}, lambda t: t.unsqueeze(0), in_dims={d})
torch.func.vmap(lambda t: t[..., 1:], out_dims=-1)({v})
torch.func.vmap(lambda t: t.diagonal())({v})
torch.func.vmap(lambda t: t.expand(2, *t.shape), out_dims=1)({v})
"""

EXACT = """
(lambda t: (t.register_hook(lambda g: g * 2), t)[1])({f} * 1)
(lambda t: (t.register_hook(lambda g: g.clone().add_(1)), t)[1])({f} + 0)
(lambda t: (t.register_hook(lambda g: None), t)[1])({f}.neg())
(lambda t: (t.register_hook(lambda g: g.flip(0)), t)[1])({g} * 2)
(lambda t: (t.register_hook(lambda g: g * t.detach()), t)[1])({f} * 1)
(lambda t: (t.register_hook(lambda g: g * 2).remove(), t)[1])({f} * 1)
(lambda t: (t.retain_grad(), t)[1])({f} * 1)
Clipped.apply({f})
Clipped.apply({f} * 2) + {0}
Cube.apply({f}.sign())
torch.func.grad(lambda t: (t * 2).sum())({f})
torch.func.grad(lambda t, u: (t * u).sum(), argnums=1)({f}, {s})
torch.func.jvp(lambda t: t * 2, ({f},), ({s},))[1]
torch.func.jvp(lambda t: t * {f}, ({0},), ({0},))[0]
torch.func.vjp(lambda t: t.flip(0), {g})[1]({s})[0]
torch.func.jacrev(lambda t: t * 2)({g}.flatten()[:3])
torch.func.jacfwd(lambda t: t[:2])({g}.flatten()[:3])
mapped({v}, lambda t: t * 2 + 1, in_dims={d})
mapped({v}, lambda t: t.sum(), in_dims={d})
mapped({v}, lambda t: t.amax(), in_dims={d})
torch.func.vmap(lambda t, u: t + u, in_dims=(0, None))({v}, {0}[0])
torch.func.vmap(lambda t, u: torch.cat([t, u]))({v}, {s})
torch.func.vmap(lambda t: torch.where(t > 0, t, 0 * t), out_dims=-1)({v})
torch.func.vmap(lambda t: t.clone().add_(1))({v})
torch.func.vmap(lambda t: t.new_zeros(2) + t.sum())({v})
torch.func.vmap(lambda t: t.sort().values)({v})
torch.func.vmap(lambda t: t.index_select(0, torch.tensor([0, 0])))({v})
torch.func.vmap(torch.func.vmap(lambda t: t * t))({v})
torch.func.vmap(torch.func.grad(lambda t: (t * t).sum()))({g})
torch.func.vmap(lambda t: t * {n})({v})
torch.func.vmap(lambda t: t, chunk_size=2)({v})
cond({v}.flatten()[0] > 0, lambda t: t * 2, lambda t: t - 1, ({0},))
cond({v}.flatten()[-1] > 0, lambda t: t.flip(0), lambda t: t.clone(), ({0},))
cond({b}.any(), lambda t, u: t + u, lambda t, u: t * u, ({x}, {y}))
cond({b}.all(), lambda t: t.sum(), lambda t: t.prod(), ({f},))
cond({x}.numel() > 4, lambda t: t + 1, lambda t: t * 2, ({0},))
cond({n} > 1, lambda t: t + 1, lambda t: t * 2, ({x},))
cond({v}.max() > 1, lambda t: cond(t.min() < 0, lambda u: u * 2, lambda u: u + 1, (t,)), lambda t: t * 3, ({0},))
cond({v}.max() > 1, lambda: {0} * 2, lambda: {0} + 1, ())
while_loop(lambda i, t: i < {p}, lambda i, t: (i + 1, t * 2), (torch.tensor(0), {x}))[1]
while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t + {s}), (torch.tensor(0), {f}))[1]
while_loop(lambda i, t: (i < 9) & (t.abs().max() < 50), lambda i, t: (i + 1, t + t), (torch.tensor(0), {v}))[1]
while_loop(lambda i, t: (i < 9) & (t.abs().max() < 50), lambda i, t: (i + 1, t + t), (torch.tensor(0), {v}))[0]
scan(lambda c, t: (c + t, c * 2), {v}[0], {0})[0]
scan(lambda c, t: (c + t, c * 2), {v}[0], {0})[1]
scan(lambda c, t: (t * 1, c - t), {v}[0], {0}, reverse=True)[1]
"""

INEXACT = """
(lambda t: torch.autograd.grad((t.sin() * t).sum(), t)[0])(leaf({f}))
(lambda t: torch.autograd.grad((t.sin() * t).sum(), t, create_graph=True)[0] * t)(leaf({f}))
(lambda t: torch.autograd.grad(torch.autograd.grad((t ** 3).sum(), t, create_graph=True)[0].sum(), t)[0])(leaf({f}))
(lambda t: torch.autograd.grad(t.tanh(), t, {s})[0])(leaf({f}))
(lambda t: torch.autograd.grad(Cube.apply(t).sum(), t, create_graph=True)[0].pow(2).sum())(leaf({f}))
(lambda t: torch.autograd.grad(t.flatten()[:3].cos(), t, torch.eye(3, dtype=t.dtype), is_grads_batched=True)[0])(leaf({g}))
(lambda t: (torch.autograd.grad((t @ t.mT).tanh().sum(), t, create_graph=True)[0].norm() - 1) ** 2)(leaf({g}))
(lambda t: (t.sin().sum().backward(), t.grad)[1])(leaf({f}))
torch.autograd.grad(({f} * 2).sin().sum(), {0}, retain_graph=True)[0]
torch.autograd.grad(({f} * {y}).tanh().sum(), {0}, retain_graph=True, allow_unused=True)[0]
torch.autograd.functional.vjp(lambda t: t.sin() * t, {f}.detach(), {s}.detach())[1]
torch.autograd.functional.jacobian(lambda t: t.sin() * t.sum(), {g}.detach().flatten()[:3])
torch.autograd.functional.jacobian(lambda t: t.cos() * t.sum(), {g}.detach().flatten()[:3], vectorize=True)
torch.func.grad(lambda t: (t.sin() * t).sum())({f})
torch.func.grad(lambda t, u: (t * u).tanh().sum(), argnums=(0, 1))({f}, {s})[1]
torch.func.grad(lambda t: (t.cos().mean(), t * 2), has_aux=True)({f})[0]
torch.func.grad_and_value(lambda t: t.sigmoid().sum())({f})[0]
torch.func.grad(lambda t: Cube.apply(t).sum())({f})
torch.func.grad(torch.func.grad(lambda t: t.sin() * t))({g}.flatten()[0])
torch.func.grad(lambda t: torch.func.grad(lambda u: (u.sin() * t).sum())(t).pow(2).sum())({f})
torch.func.grad(lambda t: (t.detach() * t.sin()).sum())({f})
torch.func.grad(lambda t: t.softmax(-1).pow(2).sum())({g})
torch.func.grad(lambda t: F.layer_norm(t, t.shape[-1:]).sin().sum())({g})
torch.func.grad(lambda t: torch.cond(t.flatten()[0] > 0, lambda u: u.sin().sum(), lambda u: u.cos().sum(), (t,)) if braze.is_compiling() else (t.sin().sum() if t.flatten()[0] > 0 else t.cos().sum()))({g})
torch.func.hessian(lambda t: (t.sin() * t.sum()).sum())({g}.flatten()[:4])
torch.func.hessian(lambda t: t.logsumexp(0))({g}.flatten()[:4])
torch.func.jacrev(lambda t: t.sin() * t.sum())({g}.flatten()[:4])
torch.func.jacfwd(lambda t: t.sin() * t.sum())({g}.flatten()[:4])
torch.func.jacrev(torch.func.jacfwd(lambda t: (t.cos() * t).sum()))({g}.flatten()[:3])
torch.func.jacfwd(torch.func.jacrev(lambda t: t.tanh()))({g}.flatten()[:3])
torch.func.jacrev(lambda t: t.cumsum(0).exp())({g}.flatten()[:3])
torch.func.jvp(lambda t: t.sin() * t, ({f},), ({s},))[1]
torch.func.jvp(lambda t: t.softmax(-1), ({g},), ({s},))[1]
torch.func.jvp(torch.func.grad(lambda t: (t.sin() * t).sum()), ({f},), ({s},))[1]
torch.func.jvp(Cube.apply, ({f},), ({s},))[1]
torch.func.jvp(lambda t: torch.func.jvp(lambda u: u.sin(), (t,), (t,))[1], ({f},), ({s},))[1]
torch.func.vjp(lambda t: t.tanh() * 2, {f})[1]({s})[0]
torch.func.vjp(torch.func.grad(lambda t: t.pow(3).sum()), {f})[1]({s})[0]
torch.func.vmap(torch.func.grad(lambda t: (t.softmax(-1) * t).sum()))({g})
torch.func.vmap(torch.func.grad(lambda t: Cube.apply(t).sum()))({g})
torch.func.vmap(torch.func.hessian(lambda t: (t * t.sin()).sum()))({g}.flatten()[:4].view(2, 2))
torch.func.vmap(torch.func.jacfwd(lambda t: t.sin() * t.sum()))({g}.flatten()[:4].view(2, 2))
torch.func.vmap(lambda t: torch.func.jvp(torch.sin, (t,), (t,))[1])({g})
mapped({g}, lambda t: t.cumsum(-1), in_dims={d}, out_dims=-1)
torch.func.vmap(lambda t: t.logsumexp(0))({g})
torch.func.vmap(lambda t: t @ t.mT)({g})
torch.func.vmap(lambda t: torch.einsum("...i,...i->...", t, t))({g})
torch.func.vmap(lambda t: F.layer_norm(t, t.shape[-1:]))({g})
mapped({g}, lambda t: t.var(0, correction=0), in_dims={d})
torch.func.vmap(torch.func.vmap(lambda t: t.sin().sum()))({g})
torch.func.grad(lambda t: torch.func.vmap(torch.sin)(t).sum())({g})
cond({b}.any(), lambda t: t.sin(), lambda t: t.cos(), ({f},))
cond({b}.any(), lambda t, u: (t * u).tanh(), lambda t, u: t.exp() * u, ({f}, {s}))
cond({b}.any(), lambda t: Cube.apply(t), lambda t: Clipped.apply(t), ({f},))
while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t.sin()), (torch.tensor(0), {f}))[1]
scan(lambda c, t: (c * 0.5 + t.sin(), c.tanh() * t), {g}[0], {0})[1]
scan(lambda c, t: (c * 0.5 + t.sin(), c.tanh() * t), {g}[0], {0}, reverse=True)[0]
"""

STEPS = """
mapped({v}, lambda t: t.argmax(), in_dims={d})
torch.func.vmap(lambda t: (t > 0).any())({v})
torch.func.vmap(lambda t: t.argsort(stable=True))({v})
"""

WRITES = """
{w}.register_hook(lambda g: g + 1)
{w}.register_hook(lambda g: g.clone().mul_(2))
{w}.register_hook(lambda g: None)
{w}.register_hook(lambda g: g.neg() if g.dim() else g)
{w}.register_hook(lambda g: g * {s}.detach())
{w}.register_hook(lambda g: g * 2).remove()
({w} * 2).sum().backward(retain_graph=True)
torch.func.vmap(lambda t: t.add_(1))({w})
torch.func.vmap(lambda t: t.mul_(2), in_dims=-1)({w})
torch.func.vmap(lambda t, u: t.copy_(u))({w}, {s}.clone())
{w}.copy_(torch.func.grad(lambda t: (t * t).sum())({s}))
{w}.add_(cond({v}.flatten()[0] > 0, lambda: 1 + {0}.sum() * 0, lambda: 2 + {0}.sum() * 0, ()))
{w}.copy_(scan(lambda c, t: (c + t, c * 1), {s}[0], {s})[1])
"""

ROUGH_WRITES = """
{w}.copy_(torch.func.grad(lambda t: t.sin().sum())({s}))
{w}.add_((lambda t: torch.autograd.grad(t.cos().sum(), t)[0])(leaf({s})))
({w}.sin()).sum().backward(retain_graph=True)
torch.func.vmap(lambda t: t.sin_())({w})
"""

PAIRS = """
torch.func.grad_and_value(lambda t: (t * t).sum())({f})
torch.func.grad(lambda t, u: (t * u).sum(), argnums=(0, 1))({f}, {s})
torch.func.jvp(lambda t: t * 2, ({f},), ({s},))
torch.func.vmap(lambda t: (t * 2, t.sum()))({v})
torch.func.vmap(lambda t: t.unbind())({v})
cond({b}.any(), lambda t: (t + 1, t.sum()), lambda t: (t * 2, t.prod()), ({f},))
scan(lambda c, t: (c + t, c * 2), {v}[0], {0})
torch.autograd.functional.vjp(lambda t: t * 2, {f}.detach(), {s}.detach())
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
    return ordinary.generate(seed, TABLES)


MACHINE = Machine(generate, check)
