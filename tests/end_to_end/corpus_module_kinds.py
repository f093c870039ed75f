"""Kinds of modules and of tensors: lazy, parametrized, hooked, quantized, adapted, functional; subclasses, sparse."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.nn.utils import parametrizations, parametrize

from tests.end_to_end.conformance import attempt, said, scenario

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
def dynamically_quantized(c):
    n = nn.Sequential(linear(3, 8), nn.ReLU(), linear(8, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = torch.ao.quantization.quantize_dynamic(n, {nn.Linear}, dtype=torch.qint8)
    f = c(q)
    with torch.no_grad():
        yield f(X), f(Y)
        g = c(lambda x: q(x * 2) + 1)
        yield g(X), g(Y)


@scenario
def quantized_tensors(c):
    q = torch.quantize_per_tensor(X, 0.1, 10, torch.quint8)

    @c
    def f(x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize() + 1

    @c
    def g(q):
        return q.dequantize() * 2, q.q_scale(), q.dtype

    yield f(X), f(Y)
    yield g(q)


@scenario
def fake_quantized(c):
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    n = FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    f = c(n)
    with torch.no_grad():
        for x in (X, Y, X):
            yield f(x), n.scale, n.zero_point


@scenario
def functional_calls(c):
    n = linear()
    params = {"weight": torch.ones(3, 3), "bias": torch.zeros(3)}

    @c
    def f(p, x):
        return functional_call(n, p, (x,))

    @c
    def g(p, x):
        return torch.nn.utils.stateless.functional_call(n, p, (x,)) + n(x)

    yield f(params, X), f({k: v + 1 for k, v in params.items()}, X)
    yield n.weight
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield g(params, X)
    yield attempt(f, {"nothing": X}, X), n.weight
    yield f({"weight": torch.zeros(3, 3)}, X)


@scenario
def functional_call_of_a_tree(c):
    n = nn.Sequential(linear(), nn.BatchNorm1d(3), linear(seed=1))
    state = {
        k: v.detach().clone() for k, v in {**dict(n.named_parameters()), **dict(n.named_buffers())}.items()
    }

    @c
    def f(state, x):
        return functional_call(n, state, (x,))

    yield f(state, X), state, n
    yield f(state, Y), state, n


@scenario
def gradients_by_functions(c):
    n = linear(3, 1)
    params = dict(n.named_parameters())

    @c
    def f(x):
        return grad(lambda x: x.sin().sum())(x), jacrev(torch.sin)(x[0])

    @c
    def g(params, x):
        def loss(params):
            return functional_call(n, params, (x,)).square().mean()

        return grad(loss)(params)

    @c
    def h(x, t):
        out, tangent = jvp(lambda x: x.sin() * 2, (x,), (t,))
        value, pull = vjp(lambda x: x.cos(), x)
        return out, tangent, value, pull(t)[0], jacfwd(torch.cos)(x[0])

    with torch.no_grad():
        for x in (X, Y):
            yield f(x)
            yield h(x, Y)
    for x in (X, Y):
        yield f(x), g({k: v.detach() for k, v in params.items()}, x)


@scenario
def vmapped(c):
    w = torch.ones(3)

    @c
    def f(x, y):
        dots = vmap(torch.dot)(x, y)
        outer = vmap(lambda a: a * w + a.sum(), in_dims=1, out_dims=1)(x.t())
        return dots, outer, vmap(vmap(lambda a: a * 2))(x)

    @c
    def per_sample(x):
        return vmap(grad(lambda r: (r * w).sin().sum()))(x)

    yield f(X, Y), f(Y, X)
    yield per_sample(X), per_sample(Y)
    yield attempt(f, X, Y[:1])
    g = vmap(c(lambda a: a.sin() + a.sum()))
    yield g(X)


@scenario
def randomness_in_vmap(c):
    @c
    def f(x):
        return vmap(lambda a: a + torch.rand(3), randomness="different")(x)

    torch.manual_seed(0)
    yield f(X)
    yield f(X)
    yield f(X)


@scenario
def ensembles(c):
    models = [linear(seed=i) for i in range(3)]
    params, buffers = stack_module_state(models)
    base = linear()

    @c
    def f(params, buffers, x):
        return vmap(lambda p, b: functional_call(base, (p, b), (x,)))(params, buffers)

    yield f(params, buffers, X), f(params, buffers, Y)


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Meters(torch.Tensor):
    """A subclass with a __torch_function__ of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Meters) and func is torch.add:
            out.unit = "m"
        return out


class Scaled:
    """Not a tensor, but with __torch_function__."""

    def __init__(self, value, scale):
        self.value, self.scale = value, scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def plain(v):
            return v.value * v.scale if isinstance(v, Scaled) else v

        return func(*map(plain, args), **{k: plain(v) for k, v in (kwargs or {}).items()})


class Twice(torch.Tensor):
    """A wrapper with __torch_dispatch__: holds two tensors, acts as their sum."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __repr__(self):
        return f"Twice({self.a}, {self.b})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(v):
            return v.a + v.b if isinstance(v, Twice) else v

        if func is torch.ops.aten.detach.default:
            return Twice(args[0].a, args[0].b)
        return func(*map(unwrap, args), **{k: unwrap(v) for k, v in (kwargs or {}).items()})


@scenario
def subclasses_of_tensor(c):
    @c
    def f(x):
        return torch.add(x * 2, 1)

    plain, meters = X.as_subclass(Plain), X.as_subclass(Meters)
    yield f(X), type(f(plain)).__name__, type(f(meters)).__name__, f(meters).unit
    yield f(plain).as_subclass(torch.Tensor), f(meters).as_subclass(torch.Tensor), f(Y)


@scenario
def things_with_torch_function(c):
    s = Scaled(X, 2.0)

    @c
    def f(s, x):
        return torch.add(s, x), torch.mul(x, other=s)

    yield f(s, X), f(Scaled(Y, 3.0), X)


@scenario
def wrapper_subclasses(c):
    @c
    def f(t, x):
        return t * 2 + x, torch.mm(x, t.t())

    yield f(Twice(X, Y), X), f(X, Y), f(Twice(Y, Y), X)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(Twice(X, Y), requires_grad=False)

        def forward(self, x):
            return F.linear(x, self.w)

    n = M()
    yield c(n)(X), n(X)


@scenario
def a_subclass_made_inside(c):
    @c
    def f(x):
        t = Twice(x, x + 1)
        m = (x + 1).as_subclass(Meters)
        return t * 2, torch.add(m, 1).unit, nn.Parameter(x).requires_grad

    yield f(X), f(Y)


@scenario
def sparse_tensors(c):
    coo, csr = X.to_sparse(), X.to_sparse_csr()

    @c
    def f(s, x):
        return torch.sparse.mm(s, x.t()), s.layout, s.shape

    @c
    def g(x):
        return x.to_sparse().to_dense() + 1, x.relu().to_sparse()._nnz()

    yield f(coo, Y), f(csr, Y)
    yield g(X), g(Y)
    e = nn.Embedding(4, 2, sparse=True)
    nn.init.ones_(e.weight)
    h = c(lambda i: e(i).sum())
    h(torch.tensor([1, 2])).backward()
    yield e.weight.grad.is_sparse, e.weight.grad.to_dense()


@scenario
def nested_tensors(c):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
        jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)

    @c
    def f(n):
        return (n * 2).sin().unbind()

    yield f(old), f(jagged)

    @c
    def g(a, b):
        made = torch.nested.as_nested_tensor([a, b])
        return made.to_padded_tensor(0.0) * 2

    yield g(torch.ones(2, 3), torch.ones(1, 3))


@scenario
def complex_tensors(c):
    z = torch.complex(X, Y)

    @c
    def f(z, x):
        w = torch.view_as_complex(torch.stack([x, x + 1], -1))
        return (
            z * w,
            z.conj(),
            z.real + w.imag,
            z.abs(),
            torch.view_as_real(z.resolve_conj()),
            torch.polar(x, x),
        )

    @c
    def g(x):
        return torch.fft.ifft(torch.fft.fft(x)).real, torch.fft.rfft(x).abs()

    yield f(z, X), f(z.conj(), Y)
    yield g(X), g(Y)


@scenario
def masked_and_meta_and_undefined(c):
    @c
    def f(x):
        return x * 2 + 1

    yield f(torch.ones(2, 3, device="meta")).shape
    yield f(X), f(torch.ones(2, 3, device="meta")).device.type
    yield type(said(lambda: f(None))).__name__, attempt(f, X.to_mkldnn())


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
    p = nn.DataParallel(linear())
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
