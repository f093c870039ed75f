"""Tensors: shapes, strides, types, aliases, writes and the modes they are computed in."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import braze
from tests.end_to_end.conformance import attempt, case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
Y = X - 2.5
I = torch.arange(6).reshape(2, 3)
B = I % 2 == 0
EMPTY = torch.empty(0, 3)
SCALAR = torch.tensor(2.5)
BASE = torch.arange(24.0).reshape(2, 3, 4)
_shared = torch.arange(12.0)


@case((X, X.t().contiguous()), (torch.rand(4, 5), torch.rand(5, 2)), (X, X), kernels=True)
def matmul_of_any_shape(a, b):
    return a @ b


@case((X, torch.rand(4)), (X, I), (X.long(), I.t()), kernels=True)
def wrong_shapes(a, b):
    return (a * 2) + b


@case((X, torch.rand(5, 5)), kernels=True)
def wrong_shapes_in_a_layer(x, w):
    return F.linear(x, w).relu()


@case((X,), (Y,), kernels=True)
def out_is_the_input(x):
    y = x
    return x, y, [x], x.contiguous()


@case((X,), (BASE.transpose(0, 2),), kernels=True)
def outputs_alias_inputs(x):
    return (
        x[0],
        x.t() if x.dim() == 2 else x.mT,
        x.view(x.shape),
        x.detach(),
        x[..., 1:],
        x.unsqueeze(0),
        x.expand_as(x),
    )


@case((X,), kernels=True)
def outputs_alias_each_other(x):
    y = x + 1
    return y, y[0], y.t(), y.view(-1), (y, y)


@case((X.clone(),), (BASE[:, ::2, 1:],), (EMPTY,), (SCALAR,), kernels=True)
def inputs_written_in_place(x):
    x.mul_(2)
    y = x + 1
    x.add_(1)
    return y, x, x.sum()


@case((X.clone(),), kernels=True)
def views_of_inputs_written(x):
    row = x[0]
    row.zero_()
    x[1, 1:] = 9
    x[:, 0] += 5
    x.view(-1)[2::3].mul_(-1)
    return row, x * 2, x.t()


@case(
    (_shared[:6], _shared[3:9]),
    (_shared[:6], _shared[:6]),
    (_shared.view(3, 4)[1], _shared[4:8]),
    kernels=True,
)
def arguments_that_overlap(a, b):
    a.add_(1)
    c = b * 2
    b.mul_(3)
    return a + 0, b, c


@scenario
def the_same_tensor_twice(c):
    @c
    def f(a, b):
        a.add_(1)
        return a * b, a is b, b

    x, y = X.clone(), Y.clone()
    yield f(x, y), x, y
    yield f(x, x), x
    yield f(y, x), x, y
    yield f(x, x[:]), x


@case(
    (BASE.transpose(0, 2),),
    (BASE[::1, 1:, ::2],),
    (torch.arange(3.0).expand(2, 3),),
    (BASE.permute(1, 0, 2),),
    kernels=True,
)
def strides_of_results(x):
    return (
        x + 1,
        x.relu(),
        x.sum(-1),
        x.softmax(-1),
        torch.zeros_like(x),
        x.clone(),
        x * x.sum(0, keepdim=True),
        x.to(torch.float64),
    )


@case((EMPTY,), (torch.empty(2, 0),), kernels=True)
def empty_tensors(x):
    return x + 1, x.sum(), x.sum(0), x.mean(), x @ x.t(), torch.cat([x, x]), said(lambda: x.max())


@case((SCALAR, X), (torch.tensor(-0.0), X), (torch.tensor(3), X), (torch.tensor(True), X), kernels=True)
def zero_dim_tensors(s, x):
    return s + x, s * 2, s / 3, x**s, s.sum(), torch.stack([s, s]), s.unsqueeze(0), s + 1.5


@case(
    (I, X),
    (I.int(), X.double()),
    (B, X),
    (I.to(torch.uint8), X.half()),
    (B, I),
    (I.short(), X.bfloat16()),
    kernels=True,
)
def dtype_promotion(a, b):
    return (
        a + b,
        a * 2,
        a * 2.5,
        a / 2,
        b + 1,
        a + True,
        torch.where(a > 1, a, b),
        a.sum(),
        a == b,
        torch.maximum(a, b),
    )


@case((I, 2), (I, -3), (I, 0), (I.int(), 7), kernels=True)
def integer_tensors(a, k):
    return (
        a // 2,
        a % 4,
        a - k,
        a & 3,
        a << 1,
        -a,
        a * k,
        a.clamp(1, k),
        a.float().mean(),
        a.sum(0),
        a.cumsum(1),
    )


@case((torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 3e38]),), kernels=True)
def special_values(x):
    return (
        x + 1,
        x * 0,
        1 / x,
        x.abs(),
        x.sign(),
        x.relu(),
        x.clamp(-1, 1),
        x.isnan(),
        x > 0,
        x.max(),
        x.sigmoid(),
        x.tanh(),
        x == x,
        -x,
    )


@case((X, [0, 1], slice(None)), (X, 1, slice(1, 3)), (X, [1], slice(None, None, 2)), kernels=True)
def indexing(x, rows, cols):
    return x[rows], x[:, cols], x[..., None], x[-1, -1], x[torch.tensor([1, 0])], x[x > 1], x[None, 0]


@case((X, 5), (X, -4))
def index_out_of_range(x, i):
    return x[i]


@case((X, torch.tensor([0, 5])), kernels=True)
def gather_out_of_range(x, i):
    return F.embedding(i, x)


@scenario
def shapes_past_the_limit(c):
    f = c(lambda x: (x * x.shape[0] + x.sum(), x.shape, len(x)))
    for n in [3, 4, 5, 0, 1, 2, 7]:
        yield f(torch.ones(n, 2))
    for dims in range(1, 12):
        yield f(torch.ones((2,) * dims))


@scenario
def dtypes_past_the_limit(c):
    f = c(lambda x, k: (x * k, str(x.dtype)))
    kinds = [
        torch.float32,
        torch.float64,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.uint8,
        torch.int16,
        torch.half,
    ]
    for kind in [*kinds, torch.bfloat16, torch.int8, torch.complex64]:
        yield f(X.to(kind), 3)


@scenario
def scalars_past_the_limit(c):
    f = c(lambda x, k: (x + len(k), k * 2))
    for i in range(14):
        yield f(X, "a" * i)
    g = c(lambda x, k: (x * k, k + 1, k % 3 == 0, type(k)))
    for i in [0, 1, 2, 5, -1, 2**40, 2.5, 0.5, 1e300, True]:
        yield attempt(g, X, i)


@scenario
def tables_past_the_limit(c):
    table = {"k": 0}
    f = c(lambda x: x + table["k"])
    for i in range(14):
        table["k"] = i / 2
        yield f(X)


@case((X, 2), (torch.rand(4, 6), 3), (torch.rand(5, 4), 2), (torch.rand(7, 2), 2))
def shape_arithmetic(x, k):
    n, m = x.shape
    half = m // 2 if m % 2 == 0 else m
    y = x.reshape(-1, half) if half else x
    return (
        y,
        n * m,
        torch.zeros(n, k),
        torch.arange(n),
        x.view(n, -1),
        torch.Size([n, m]) == x.size(),
        x.numel(),
        x.new_ones(m),
    )


@case((torch.rand(3),), (torch.rand(1),), (torch.rand(4),), (torch.rand(0),))
def branches_on_sizes(x):
    if x.shape[0] == 0:
        return "empty"
    if x.size(0) > 3:
        return x * 2
    return [x[i] for i in range(len(x))]


@scenario
def a_tensor_global_changes(c):
    global _weight
    _weight = Y.clone()
    f = c(lambda x: x * _weight)
    yield f(X)
    _weight.mul_(2)
    yield f(X)
    _weight = X
    yield f(X)
    _weight = X.double()
    yield f(X)


@case((X, 1), (X, 2), (BASE, 1))
def tensor_attributes(x, d):
    return (
        x.shape,
        x.size(d),
        x.dim(),
        x.dtype,
        str(x.device),
        x.numel(),
        x.stride(),
        x.is_contiguous(),
        x.ndim,
        len(x),
        x.T.shape,
        x.is_floating_point(),
        x.element_size(),
        x.layout,
        x.storage_offset(),
        x.grad,
        x.is_cuda,
        x.names,
        x.data_ptr() > 0,
    )


@case((X,), (Y,), kernels=True)
def tensors_made_inside(x):
    k = torch.tensor([1.0, 2.0, 3.0])
    z = torch.zeros_like(x)
    z[0] = k
    k += 1
    return (
        x + k,
        z,
        torch.tensor(x.shape[0]),
        torch.full((2,), 3),
        torch.eye(2),
        torch.linspace(0, 1, 3),
        torch.as_tensor([1, 2]),
    )


@scenario
def constants_made_inside_are_fresh(c):
    f = c(lambda: torch.tensor([1.0, 2.0]))
    a = f()
    a.zero_()
    yield f(), a
    g = c(lambda x: (x, torch.zeros(2)))
    b = g(X)[1]
    b.add_(1)
    yield g(X)[1]


@case((X.clone(), Y), (X.clone(), X), kernels=True)
def out_arguments_and_copies(x, y):
    z = torch.empty(2, 3)
    r = torch.add(x, y, out=z)
    x.copy_(y)
    w = x.clone()
    w[w > 0] = -1
    x.fill_(3)
    return r is z, z, w, x


@case((X.clone(),), (BASE.clone(),), kernels=True)
def augmented_assignment(x):
    y = x
    y += 1
    z = x * 1
    z -= 2
    z *= z
    x[0] *= 2
    return y is x, y, z, x


@case((X.clone(),))
def metadata_changed_in_place(x):
    y = x.clone()
    y.unsqueeze_(0)
    y.t_() if y.dim() == 2 else y.squeeze_(0)
    y.resize_(3, 2)
    x.transpose_(0, 1)
    return y.shape, y, x


@case((X, Y), kernels=True)
def splits_and_unbinds(x, y):
    a, b = x.unbind(0)
    c, d = torch.split(y, [1, 2], dim=1)
    e = x.chunk(2, 1)
    v, i = x.max(1)
    best = y.topk(2)
    return a + b, c, d * 2, e, v, i, best.values, best.indices, torch.sort(y), x.unbind(0)[0]


@case((X, B), kernels=True)
def masks(x, m):
    y = x.masked_fill(m, -float("inf"))
    return (
        y,
        y.softmax(-1),
        torch.where(m, x, 0),
        x * m,
        (~m).sum(),
        m.any(),
        m.all(1),
        x.masked_fill(~m, 1),
        torch.tril(x),
    )


@case((X,), (torch.rand(2, 3).double(),), kernels=True)
def reductions(x):
    return (
        x.mean(),
        x.var(1),
        x.std(0, unbiased=False),
        x.argmax(),
        x.amax(1, keepdim=True),
        x.prod(),
        x.norm(),
        x.logsumexp(1),
        F.layer_norm(x, (3,)),
    )


@case((X, "abc"), (X, object), (X, [1, "b"]))
def nonsense_operands(x, v):
    return x + v


@case((X,), kernels=True)
def unary_view_and_write_after_read(x):
    y = x * 2
    v = y[0]
    before = v + 0
    y.add_(10)
    return before, v, y


@case((X,), kernels=True, whole=True)
def classes_of_python_are_dtypes(x):
    mask = (x > 0).to(bool)
    return torch.ones(2, dtype=int), x.to(float), x.sum(dtype=float), mask & torch.ones(1, dtype=bool)


@case((X,))
def classes_of_tensors_are_types(x):
    return x.type(torch.DoubleTensor), x.type("torch.LongTensor")


@scenario
def a_class_stays_a_class_for_a_function_that_is_let_in(c):
    @braze.allow_in_graph
    def scaled(x, kind):
        return x * kind(2)

    yield c(lambda x: scaled(x, int) + 1)(X)


@scenario
def a_result_is_not_reused(c):
    f = c(lambda x: x + 1)
    a = f(X)
    b = f(Y)
    yield a, b, a is b
    a.zero_()
    yield f(X), b


@scenario
def a_subclass_and_a_parameter(c):
    class Tagged(torch.Tensor):
        pass

    f = c(lambda x: (x * 2, type(x) is torch.Tensor, isinstance(x, torch.nn.Parameter), type(x).__name__))
    yield f(X), f(torch.nn.Parameter(X)), f(X)
    yield attempt(f, X.as_subclass(Tagged))
    yield attempt(f, torch.nn.Parameter(X, requires_grad=False))


@scenario
def sparse_and_complex_and_meta(c):
    f = c(lambda x: x + x)
    yield f(torch.complex(X, Y))
    yield f(torch.complex(X, Y).conj()).is_conj()
    yield f(X.to_sparse()).to_dense()
    yield f(X.to("meta")).shape, f(X)
