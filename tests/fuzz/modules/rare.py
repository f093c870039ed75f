"""Rarer models and what few programs do to them: half of the rows of each program are of these, half of the other machine's.

Its programs are its own, so that those of the other machine's seeds stay as they were.
"""

from __future__ import annotations

import random

from tests.fuzz.machine import Machine
from tests.fuzz.modules import grammar
from tests.fuzz.modules.grammar import Tables
from tests.fuzz.modules.machine import Trained, check, generate_of

ANY = (
    ("pass", "h = h * <SCALES[-1]|sum(SCALES)|SCALES[0].detach()|SCALES[len(SCALES) // 2]>"),
    ("pass", "SCALES.append(h.detach().abs().mean() + 0.5)\n        h = h * SCALES.pop()"),
    ("self.held$ = [torch.ones(8), torch.tensor(0.5)]", "h = h * self.held$[1]\n        self.held$[1] = self.held$[1] * 0.9"),
    ("self.held$ = {}", "self.held$[len(h)] = h.detach().mean()\n        h = h + <sum(self.held$.values())|self.held$[len(h)]|len(self.held$)>"),
    ("self.register_buffer('r$', torch.ones(1))", "h = h * self.r$.mean()"),
    ("self.register_buffer('r$', torch.ones(2, 2))", "h = h * self.r$<.sum()|.numel()|.flatten()[-1]|.shape[0]>"),
    ("self.register_buffer('ring$', torch.zeros(4))", "self.ring$[self.calls % 4] = h.detach().mean()\n        self.calls += 1\n        h = h + self.ring$.<mean()|sum()|max()>"),
    ("self.register_buffer('none$', None)", "if self.none$ is None: self.none$ = h.detach().mean()\n        h = h - self.none$"),
    ("self.w$ = nn.Parameter(torch.tensor(0.5))", "h = h * self.w$<.data|.detach() * self.w$|.clone()>"),
    ("self.w$ = nn.Parameter(torch.tensor(0.5))", "with torch.no_grad(): self.w$.<clamp_(-1, 1)|mul_(0.99)>\n        h = h * self.w$"),
    ("self.l$ = Gate()\n        self.t$ = copy.deepcopy(self.l$).requires_grad_(False)", "with torch.no_grad(): self.t$.weight.lerp_(self.l$.weight, 0.1)\n        h = self.l$(h) + <self.t$(h)|self.t$(h.detach())>"),
    ("self.l$ = Gate()\n        self.m$ = Gate()\n        self.m$.weight = self.l$.weight", "h = self.m$(self.l$(h))"),
    ("self.l$ = nn.Sequential(Gate(), nn.Tanh()).requires_grad_(False)", "h = self.l$(h)"),
    ("self.l$ = nn.Linear(1, 1)\n        nn.utils.parametrize.register_parametrization(self.l$, 'weight', <Squashed()|Halved()>)", "h = h * self.l$.weight.sum()"),
    ("pass", "h = torch.stack([h, h * 0.5]).<mean|sum|amax>(0)"),
    ("pass", "a, b = h.chunk(2, 1)\n        h = torch.cat([b, a], 1)"),
    ("pass", "for k in range(<2|self.calls % 3|1 + self.training>): h = h * 0.9"),
    ("pass", "h = <torch.vmap(torch.sin)(h)|torch.func.grad(lambda t: t.sin().sum())(h)|torch.func.jvp(torch.sin, (h,), (h.detach(),))[1]>"),
    ("pass", "self.met = getattr(self, 'met', 0) + 1\n        h = h * (1 + self.met % 2)"),
    ("pass", "h = self.last(h) if self.<training|calls> else h"),
    ("pass", "if h.requires_grad: h.retain_grad()\n        h = h * 2"),
    ("pass", "try:\n            h = self.extra(h)\n        except AttributeError:\n            h = h + 1"),
    ("pass", "with Doubling(self): h = h * self.scale"),
    ("pass", "h = h * next(iter(self.parameters()))<.sum()|.mean().detach()>"),
    ("pass", "h = h * len(<[p for p in self.parameters() if p.requires_grad]|self._buffers|list(self.children())>)"),
    ("pass", "h = h * sum(p.abs().mean() for p in self.parameters())"),
    ("self.l$ = torch.nn.ModuleList([nn.Tanh(), Gate()])", "h = self.l$[self.calls % 2](h)\n        self.calls += 1"),
    ("pass", "h = Scaled.apply(h, <2.0|self.scale|SCALES[0]>)"),
    ("pass", "self.calls += 1\n        h = Scaled.apply(h, self.calls + 2) / (self.calls + <2|1>)"),
    ("pass", "h = halve(h)<| + halve(h.detach())>"),
)  # fmt: skip
BEFORE = (
    "SCALES.append(torch.tensor(0.5, dtype=torch.float64))", "SCALES[0] = nn.Parameter(torch.ones((), dtype=torch.float64))", "averaged(model)",
    "nn.utils.parametrize.register_parametrization(first(model, nn.Linear, nn.Conv2d), 'weight', <Squashed()|Halved()>)", "parametrizations.orthogonal(first(model, nn.Linear))",
    "model.last = compiled(model.last)", "model.scale = torch.tensor(1.5, dtype=torch.float64)", "model.extra = Gate()", "model = copy.deepcopy(model)",
    "first(model, nn.Linear, nn.Conv2d, Gate).weight.requires_grad_(False)",
)  # fmt: skip
COMPILED = (
    "c = compiled(lambda *args: model(*args) * sum(SCALES))", "c = compiled(compiled(model))", "model.last = compiled(model.last); c = compiled(model)", "c = compiled(nn.Sequential(model, Gate().double()))",
    "c = compiled(lambda x: functional_call(model, dict(model.named_parameters()), (x,)))", "model.forward = compiled(model.forward); c = model", "c = compiled(type(model).forward).__get__(model)",
    "c = compiled(model)",
)  # fmt: skip
OPTIMIZERS = (
    "NAdam(model.parameters(), lr=0.01, eps=1e-2)", "ASGD(model.parameters(), lr=0.01)", "SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=<True|False>)",
    "AdamW(model.parameters(), lr=0.01, eps=1e-2, fused=True)", "SGD(trained(model), lr=0.1)", "Adam([{'params': [p]} for p in model.parameters()], lr=0.01, eps=1e-2)",
)  # fmt: skip
STEPPED = (
    "step = compiled(lambda: (nn.utils.clip_grad_norm_(model.parameters(), 1.0), opt.step())[1])", "step = lambda: opt.step(lambda: c(data(3)).sum())", "step = lambda: opt.step()",
)  # fmt: skip
ACTIONS = (
    *["accumulated(c, data, <2|3>); step(); opt.zero_grad(<|set_to_none=False>)"] * 3,
    *["train = compiled(lambda x: (opt.zero_grad(), c(x).pow(2).mean().backward(), opt.step())[0]); train(data(3)); train(data(<3|4>))"] * 2,
    "(c(data(3)).mean() * 8).backward(); see(unscaled(opt, 8)); step()", "(c(data(3)).mean() * <8|1e308>).backward(); bad = compiled(unscaled)(opt, 8); see(bad); step() if not bad else None", "averaged(model)", "compiled(averaged)(model)", "swapped(model); see(c(data(3))); swapped(model)",
    "SCALES.append(torch.tensor(<0.5|2.0>, dtype=torch.float64))", "SCALES[0] = torch.tensor(<0.5|2.0>)", "SCALES.pop() if len(SCALES) > 1 else None", "SCALES[0] = SCALES[0] * 2", "SCALES[-1].detach().mul_(1.5)", "SCALES.reverse()", "SCALES[0] = nn.Parameter(torch.ones((), dtype=torch.float64))", "SCALES[:] = [SCALES[0]]",
    "sched = torch.optim.lr_scheduler.<StepLR(opt, 1, 0.5)|ExponentialLR(opt, 0.9)|CosineAnnealingLR(opt, 5)|LambdaLR(opt, lambda k: 0.9 ** k)|LinearLR(opt)>", "c(data(3)).sum().backward(); step(); sched.step()", "sched.step()", "see(sched.get_last_lr())",
    "tie(model)", "gates = [m for m in model.modules() if isinstance(m, Gate)]; gates[-1].weight = gates[0].weight", "reshaped(model, <(3,)|(1,)|(2, 3)|()>)", "model.to(torch.<float32|float64|bfloat16>)", "model.<double|float>(); see(c(data(3)))", "first(model, nn.Linear, nn.Conv2d).<double|float>()",
    "nn.utils.parametrize.register_parametrization(first(model, nn.Linear, nn.Conv2d), 'weight', <Squashed()|Halved()>)", "with nn.utils.parametrize.cached(): see(c(data(3))); see(c(data(3)))", "nn.utils.parametrize.remove_parametrizations(first(model, nn.Linear, nn.Conv2d), 'weight', <True|False>)", "first(model, nn.Linear, nn.Conv2d).weight = first(model, nn.Linear, nn.Conv2d).weight",
    "f = compiled(lambda p, x: functional_call(model, p, (x,))); see(f({k: v.detach() * 1.1 for k, v in model.named_parameters()}, data(3)))", "see(functional_call(c, {k: v * 0.5 for k, v in c.named_parameters()}, (data(3),)))", "p, b = dict(model.named_parameters()), {k: v.clone() for k, v in model.named_buffers()}; see(functional_call(model, (p, b), (data(3),))); see(b)",
    "p, b = torch.func.stack_module_state([model, copy.deepcopy(model)]); see(torch.vmap(lambda p, b, x: functional_call(model, (p, b), (x,)), (0, 0, None), randomness='same')(p, b, data(3)))", "see(torch.func.vjp(c, data(3))[0])", "see(torch.func.jvp(c, (data(3),), (data(3),)))", "see(torch.vmap(c, randomness='same')(data(3)[:, None]))", "see(torch.autograd.functional.vjp(lambda x: c(x).sum(), data(3))[1])",
    "see(model.load_state_dict(pickle.loads(pickle.dumps(model.state_dict()))))", "see(model.load_state_dict({k: v * 0.9 if v.is_floating_point() else v for k, v in model.state_dict().items()}<|, assign=True>))", "state = {k: v.clone() for k, v in model.state_dict().items()}", "see(c.load_state_dict(state))", "see({k: v.dtype for k, v in c.state_dict().items()})", "with torch.no_grad(): [v.copy_(v * 0.5) for v in model.state_dict().values() if v.is_floating_point()]",
    "model.requires_grad_(<True|False>)", "w = first(model, nn.Linear, nn.Conv2d, Gate).weight; w.requires_grad_(not w.requires_grad)", "y = c(data(3)); model.requires_grad_(False); y.sum().backward(); model.requires_grad_(True)",
    "c = copy.deepcopy(c); see(c(data(3)))", "model = copy.deepcopy(model); c = compiled(model)", "twin = pickle.loads(pickle.dumps(model)); see(twin(data(3)))", "twin = copy.deepcopy(c); c(data(3)).sum().backward(); twin(data(3)).sum().backward(); see([p.grad for p in twin.parameters()])", "twin = copy.copy(model); see(compiled(twin)(data(3)))", "c = compiled(c)", "c = compiled(lambda *args: model(*args))",
    "model.l0 = compiled(model.l0)", "model.last = compiled(model.last)", "m = first(model, nn.Linear, nn.Conv2d, Gate); m.forward = compiled(m.forward)", "outer = compiled(nn.Sequential(c, nn.Tanh())); outer(data(3)).sum().backward()", "outer = compiled(lambda x: c(x) + c(x * 0.5)); outer(data(3)).sum().backward()", "outer = compiled(lambda x: [c(x) for _ in range(2)]); see(outer(data(3)))",
    "model.forward = lambda h: model.last(h) * 2", "del model.forward", "Model.forward = Model.forward", "model.__class__ = type('Other', (Model,), {})", "Model.scale = 3", "model.register_buffer('late', torch.ones(3)<|, persistent=False>)", "model.register_parameter('late', None)", "model.add_module('late', Gate())", "model.extra = <Gate()|nn.Tanh()|lambda h: h * 3>", "del model.extra",
    "for p in list(model.parameters())[:1]: torch.utils.swap_tensors(p, nn.Parameter(p.detach() * 0.5))", "opt.add_param_group({'params': [nn.Parameter(torch.ones(2))]})", "opt.state.clear()", "opt = torch.optim.SGD(model.parameters(), lr=0.1); step = compiled(opt.step)", "opt.param_groups[0]['params'].reverse()", "for g in opt.param_groups: g['lr'] *= 0.5",
    "y = c(data(3)); y.retain_grad(); y.pow(2).sum().backward(); see(y.grad)", "y = c(data(3)); y.register_hook(<noted|halved>); y.sum().backward()", "with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t): c(data(3)).sum().backward()", "with torch.autograd.graph.save_on_cpu(): y = c(data(3)).sum(); y.backward()", "with torch.autograd.set_detect_anomaly(True): c(data(3)).sum().backward()", "with torch.random.fork_rng(devices=[]): see(c(data(3)))",
    "x = data(3).requires_grad_(); y = c(x); y.backward(torch.ones_like(y)); see(x.grad); c(x).sum().backward(); see(x.grad)", "x = data(3).requires_grad_(); y = c(x * 2); (g,) = torch.autograd.grad(y.sum(), x, retain_graph=True); y.mul(g.detach()).sum().backward(); see(x.grad)", "y = [c(data(3)) for _ in range(3)]; torch.stack(y).sum().backward()", "y = c(data(3)); z = c(y); z.sum().backward()", "y = c(c(data(3)).detach()); y.sum().backward()", "y = checkpoint(c, data(3), use_reentrant=True); y.sum().backward() if y.requires_grad else None", "y = c(data(3)); w = torch.autograd.grad(y.sum(), trained(model)[:1], retain_graph=True); y.sum().backward(); see(w)",
    "model.train(); c(data(4)); model.eval(); see(c(data(1)))", "[m.eval() for m in model.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout))]", "for m in model.modules(): m.momentum = 0.3 if hasattr(m, 'momentum') else None", "for m in model.modules(): m.p = 0.1 if isinstance(m, nn.Dropout) else 0", "model.apply(lambda m: m.reset_parameters() if isinstance(m, (nn.Linear, nn.Conv2d)) else None)", "model.share_memory()", "model.zero_grad()", "see(c(data(3).clone().requires_grad_().T.contiguous().T))", "with pool_of_one() as pool: see(pool.submit(c, data(3)).result())",
)  # fmt: skip

TABLES = Tables(
    ANY, {kind: ANY for kind in grammar.LAYERS}, BEFORE, COMPILED, OPTIMIZERS, STEPPED, ACTIONS
)  # fmt: skip


def generate(seed: int) -> Trained:
    """The program of a seed."""
    rng = random.Random(seed)
    return generate_of(rng, [grammar.TABLES, TABLES])


MACHINE = Machine(generate, check)
