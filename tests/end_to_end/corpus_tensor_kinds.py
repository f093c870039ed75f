"""Every kind of tensor: quantized, subclasses, sparse, nested, complex, masked; functions that are transformed."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap

from tests.end_to_end.conformance import attempt, said, scenario
from tests.end_to_end.corpus_module_kinds import linear

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5


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
    h = c(lambda values: values.mul_(2) + 1)
    yield h(csr.values()), csr.to_dense()
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
