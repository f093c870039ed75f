"""Kinds of modules and of tensors: lazy, parametrized, hooked, quantized, adapted, functional; subclasses, sparse."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize

from tests.end_to_end.conformance import attempt, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


def linear(i=3, o=3, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(i, o)


@scenario
def lazy_modules(c):
    torch.manual_seed(0)
    n = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2), nn.LazyBatchNorm1d())
    f = c(n)
    torch.manual_seed(1)
    yield f(X), [type(m).__name__ for m in n], n
    yield f(Y), n
    yield attempt(f, torch.rand(2, 5))
    conv = nn.LazyConv2d(2, 1)
    g = c(lambda x: conv(x).sum())
    yield g(torch.ones(1, 2, 3, 3)), type(conv).__name__, conv.weight.shape


@scenario
def a_module_that_makes_its_layers_when_called(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = None
            self.extra = nn.ModuleDict()

        def forward(self, x):
            if self.proj is None:
                self.proj = nn.Linear(x.shape[-1], 2)
                with torch.no_grad():
                    self.proj.weight.fill_(1)
                    self.proj.bias.zero_()
            if "act" not in self.extra:
                self.extra["act"] = nn.Tanh()
            return self.extra["act"](self.proj(x))

    n = M()
    f = c(n)
    yield f(X), [k for k, _ in n.named_parameters()]
    yield f(Y), [k for k, _ in n.named_modules()]


@scenario
def containers_indexed_and_changed(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([linear(seed=i) for i in range(4)])
            self.by_name = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
            self.ps = nn.ParameterDict({"w": nn.Parameter(torch.ones(3)), "v": nn.Parameter(torch.zeros(3))})
            self.seq = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))

        def forward(self, x, k):
            for i, layer in enumerate(self.layers[1:3]):
                x = layer(x) if i % 2 else layer(x) + 1
            x = self.layers[k](x) + self.layers[-1](x)
            for name, m in self.by_name.items():
                x = m(x) * len(name)
            for name in self.ps:
                x = x + self.ps[name]
            return self.seq[0](x), self.seq[:1](x), "a" in self.by_name, len(self.seq), list(self.by_name)

    n = M()
    f = c(n)
    yield f(X, 0), f(X, 2), attempt(f, X, 9)
    n.layers[1] = nn.Identity()
    yield f(X, 0)
    n.by_name.pop("a")
    n.ps["u"] = nn.Parameter(torch.full((3,), 5.0))
    yield f(X, 0)
    del n.layers[3]
    yield f(X, 0)


@scenario
def parametrized_weights(c):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    n = linear()
    parametrize.register_parametrization(n, "weight", Symmetric())
    f = c(n)
    g = c(lambda x: n.weight @ x.t())
    yield f(X), g(X)
    with torch.no_grad():
        n.parametrizations.weight.original.mul_(2)
    yield f(X)
    with parametrize.cached():
        yield f(X), f(Y)
    parametrize.remove_parametrizations(n, "weight")
    yield f(X)


@scenario
def normed_weights_of_both_generations(c):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old_w = nn.utils.weight_norm(linear())
        old_s = nn.utils.spectral_norm(linear(seed=1))
    new_w, new_s = parametrizations.weight_norm(linear()), parametrizations.spectral_norm(linear(seed=1))
    orth = parametrizations.orthogonal(linear(seed=2))
    for n in (old_w, old_s, new_w, new_s, orth):
        torch.manual_seed(3)
        f = c(n)
        with torch.no_grad():
            yield f(X), n
            yield f(Y), n
        n.eval()
        yield f(X).detach(), n
        loss = f(X).sum()
        loss.backward()
        yield loss, [p.grad for p in n.parameters()]


@scenario
def hooks_of_every_kind(c):
    log = []

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = linear()

        def forward(self, x, *, scale=1.0):
            if scale < 0:
                raise ValueError("scale")
            return self.inner(x) * scale

    n = M()
    f = c(n)
    handles = [
        n.register_forward_pre_hook(
            lambda m, a, k: (log.append("pre") or (a[0] + 1,), {**k, "scale": k.get("scale", 1.0) * 2}),
            with_kwargs=True,
        ),
        n.register_forward_hook(
            lambda m, a, k, o: log.append(("post", sorted(k))) or o + 1, with_kwargs=True
        ),
        n.register_forward_hook(lambda m, a, o: log.append("always"), always_call=True),
        n.register_forward_pre_hook(lambda m, a: log.append("first"), prepend=True),
        n.inner.register_forward_hook(lambda m, a, o: log.append("inner") or None),
    ]
    yield f(X), log
    yield f(X, scale=3.0), log
    yield attempt(f, X, scale=-1.0), log
    for h in handles:
        h.remove()
        yield f(X), log


@scenario
def backward_hooks(c):
    log = []
    n = nn.Sequential(linear(), nn.Tanh(), linear(seed=1))
    handles = [
        n[0].register_full_backward_hook(lambda m, gi, go: log.append(("full", go[0].sum()))),
        n[1].register_full_backward_pre_hook(lambda m, go: log.append("pre") or (go[0] * 2,)),
    ]
    f = c(n)
    for x in (X, Y):
        n.zero_grad()
        loss = f(x).sum()
        loss.backward()
        yield loss, n[0].weight.grad, log
    for h in handles:
        h.remove()
    n.zero_grad()
    f(X).sum().backward()
    yield n[0].weight.grad, log


@scenario
def parameter_hooks(c):
    log = []
    n = linear()
    n.weight.register_hook(lambda g: log.append("w") or g * 2)
    n.bias.register_post_accumulate_grad_hook(lambda p: log.append(("b", p.grad.clone())))
    f = c(n)
    for x in (X, Y):
        f(x).sum().backward()
        yield n.weight.grad, n.bias.grad, log


@scenario
def batch_norm_in_every_mode(c):
    n = nn.Sequential(linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    f = c(n)
    with torch.no_grad():
        yield f(X), n
    loss = f(Y).sum()
    loss.backward()
    yield loss, n, n[0].weight.grad
    n.eval()
    yield f(X), n
    n[1].train()
    n[1].momentum = None
    yield f(Y), n
    yield attempt(f, torch.ones(1, 3)), n[1].num_batches_tracked
    n[1].track_running_stats = False
    yield f(X), n
    g = nn.BatchNorm2d(2, affine=False, track_running_stats=False)
    yield c(g)(torch.rand(2, 2, 3, 3))


@scenario
def modes_switched_inside(c):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.bn = nn.Dropout(0.5), nn.BatchNorm1d(3)

        def forward(self, x):
            was = self.training
            self.eval()
            a = self.bn(self.drop(x))
            self.train()
            b = self.bn(x)
            self.drop.train(False)
            self.requires_grad_(False)
            return a, b, self.drop(x), was, [m.training for m in self.modules()]

    n = M()
    f = c(n)
    with torch.no_grad():
        for x in (X, Y, X):
            yield f(x), n, n.drop.training, n.bn.weight.requires_grad


@scenario
def tied_weights(c):
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.emb, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids):
            return self.head(self.emb(ids))

    n = LM()
    f = c(n)
    ids = torch.tensor([0, 3, 1])
    for _ in range(2):
        loss = f(ids).sum()
        loss.backward()
        yield loss, n.emb.weight.grad, n.head.weight is n.emb.weight
    n.head.weight = nn.Parameter(n.emb.weight.detach().clone() * 2)
    n.zero_grad()
    f(ids).sum().backward()
    yield n.emb.weight.grad, n.head.weight.grad


@scenario
def moved_and_cast(c):
    n = linear()
    f = c(n)
    yield f(X)
    n.double()
    yield f(X.double())
    n.to(torch.bfloat16)
    yield f(X.bfloat16())
    n.float().requires_grad_(False)
    yield f(X)
    n.half()
    yield attempt(f, X)


class LoRA(nn.Module):
    """A linear layer with adapters by name, as PEFT wraps it."""

    def __init__(self, base, r=2):
        super().__init__()
        self.base_layer = base
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        self.lora_dropout = nn.ModuleDict()
        self.scaling: dict[str, float] = {}
        self.active_adapters: list[str] = []
        self.merged_adapters: list[str] = []
        self._disabled = False
        self.r = r

    def add(self, name, alpha=4):
        torch.manual_seed(len(name))
        self.lora_A[name] = nn.Linear(self.base_layer.in_features, self.r, bias=False)
        self.lora_B[name] = nn.Linear(self.r, self.base_layer.out_features, bias=False)
        self.lora_dropout[name] = nn.Identity()
        self.scaling[name] = alpha / self.r
        self.active_adapters.append(name)
        return self

    @property
    def merged(self):
        return bool(self.merged_adapters)

    def merge(self):
        for name in self.active_adapters:
            delta = self.lora_B[name].weight @ self.lora_A[name].weight * self.scaling[name]
            self.base_layer.weight.data = self.base_layer.weight.data + delta
            self.merged_adapters.append(name)

    def forward(self, x, *args, **kwargs):
        result = self.base_layer(x, *args, **kwargs)
        if self._disabled or self.merged:
            return result
        dtype = result.dtype
        for name in self.active_adapters:
            if name not in self.lora_A.keys():
                continue
            a, b = self.lora_A[name], self.lora_B[name]
            x = x.to(a.weight.dtype)
            result = result + b(a(self.lora_dropout[name](x))) * self.scaling[name]
        return result.to(dtype)


@scenario
def lora(c):
    n = nn.Sequential(LoRA(linear()).add("one"), nn.ReLU(), LoRA(linear(seed=1)).add("one"))
    f = c(n)
    yield f(X)
    n[0].add("second")
    yield f(X)
    n[0].scaling["one"] = 0.5
    yield f(X)
    n[0].active_adapters = ["second"]
    yield f(X)
    for p in n[0].base_layer.parameters():
        p.requires_grad_(False)
    f(X).sum().backward()
    yield n[0].lora_A["second"].weight.grad, n[0].base_layer.weight.grad
    n[2]._disabled = True
    yield f(X)
    with torch.no_grad():
        n[0].merge()
    yield f(X)


@scenario
def modules_that_stand_for_functions(c):
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(super().__getattr__("inner"), name)

        def forward(self, *args, **kwargs):
            return self.inner(*args, **kwargs)

    n = Wrapper(Wrapper(linear()))
    f = c(lambda x: n(x) + n.weight.sum() + n.in_features)
    yield f(X), f(Y)
    if not torch.cuda.is_available():  # with GPUs it wants some
        p = nn.DataParallel(linear(), device_ids=[])
        yield c(p)(X)


@scenario
def a_model_copied_and_pruned(c):
    import copy

    from torch.nn.utils import prune

    n = linear()
    prune.l1_unstructured(n, "weight", amount=3)
    f = c(n)
    yield f(X), n
    prune.remove(n, "weight")
    yield f(X), n
    m = copy.deepcopy(n)
    with torch.no_grad():
        m.weight.zero_()
    yield c(m)(X), f(X)


@scenario
def rnn_and_attention(c):
    torch.manual_seed(0)
    n, g = nn.LSTM(3, 4, batch_first=True), nn.GRU(3, 2)
    a = nn.MultiheadAttention(4, 2, batch_first=True)
    t = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    x = torch.rand(2, 5, 3)

    @c
    def f(x):
        out, (h, cell) = n(x)
        y, w = a(out, out, out)
        return t(y), w, h, cell, g(x)[0]

    yield f(x)
    loss = sum(r.sum() for r in f(x))
    loss.backward()
    yield loss, n.weight_ih_l0.grad, a.in_proj_weight.grad
    for m in (n, g, a, t):
        m.eval()
    with torch.no_grad():
        yield f(x)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
    yield c(lambda p: n(p)[0].data)(packed)


@scenario
def rnn_weights_replaced(c):
    torch.manual_seed(0)
    n = nn.GRU(3, 2)
    f = c(lambda x: n(x)[0])
    x = torch.rand(4, 3)
    with torch.no_grad():
        yield f(x)
        n.weight_ih_l0 = nn.Parameter(torch.zeros(6, 3))
        yield f(x), f(x)
        n.bias_hh_l0.fill_(1.0)
        yield f(x)
        yield functional_call(n, {"weight_hh_l0": torch.ones(6, 2)}, (x,))[0], f(x)
