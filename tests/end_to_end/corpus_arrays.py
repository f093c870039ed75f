"""Arrays of numpy from outside: tensors over their memory, what is asked of them, and what ends a graph."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import nn

from tests.end_to_end.conformance import attempt, case, scenario

X = torch.arange(6.0).reshape(2, 3)
A = np.arange(6, dtype=np.float32).reshape(2, 3)
whole = functools.partial(case, whole=True)


def like(dtype):
    return np.array([[0, 1, 2], [3, 1, 0]]).astype(dtype)


# -- tensors over arrays' memory


@whole((X, A), (X, A[:1]), (X[:1], A), kernels=True)
def from_numpy_of_an_argument(x, a):
    y = torch.from_numpy(a)
    return x * 2 + y, y.sum(), y.shape, y.dtype


@whole(
    *[
        (like(d),)
        for d in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
    ],
    *[(like(d),) for d in ("complex64", "complex128", "uint16", "uint32", "uint64")],
    times=1,
)
def arrays_of_each_dtype(a):
    return torch.from_numpy(a), torch.as_tensor(a).to(torch.float64) + 1, torch.tensor(a)


@whole(
    (A,),
    (A.T,),
    (A[:, 1:],),
    (np.asfortranarray(A),),
    (A[:, ::2],),
    (A[None],),
    (A.reshape(-1),),
    kernels=True,
)
def arrays_of_many_layouts(a):
    y = torch.from_numpy(a)
    return y, y.stride(), y.is_contiguous(), y + 1, torch.tensor(a), torch.as_tensor(a, dtype=torch.float64)


@whole((np.zeros((0, 3), np.float32),), (np.zeros((2, 0)),), (np.array(3.5),), (np.array(7),), kernels=True)
def empty_arrays_and_those_of_no_dimensions(a):
    return torch.from_numpy(a) + 1, torch.from_numpy(a).sum(), a.shape, a.size, a.ndim


@whole((A,), (like("int64"),), (like("bool"),), (np.array(2.0),))
def makers_of_tensors(a):
    return (
        torch.tensor(a),
        torch.tensor(a, dtype=torch.float32),
        torch.as_tensor(a),
        torch.as_tensor(a, dtype=torch.float16),
        torch.as_tensor(a, dtype=torch.int32),
        torch.asarray(a) + 1,
        torch.asarray(a, dtype=torch.complex64),
        torch.asarray(a, copy=True),
        torch.tensor(a, device="cpu"),
    )


@case((A,))
def arguments_that_no_maker_takes(a):
    y = torch.from_numpy(a) + 1
    try:
        return y, torch.as_tensor(a, torch.float64)
    except TypeError:
        return y, torch.asarray(a, copy=False), torch.asarray(a, requires_grad=True)


@case((A,), (A.astype(np.float64),))
def a_copy_that_is_forbidden(a):
    y = torch.from_numpy(a) + 1
    return y, torch.asarray(a, dtype=torch.float64, copy=False)


@whole((np.ones(3, np.float32),))
def a_copy_with_a_gradient(a):
    y = torch.tensor(a, requires_grad=True)
    return y * 2, y.requires_grad, y.shape


@scenario
def negative_strides_are_an_error(c):
    @c
    def f(a):
        return torch.from_numpy(a) + 1, a.strides

    @c
    def g(a):
        return torch.tensor(a)

    for a in (A, A[::-1], A[:, ::-1], A.T, A[::-1]):
        yield attempt(f, a), attempt(g, a)


@case((np.array([None, 1]),), (np.array(["a", "b"]),), (A.astype(">f4"),), (np.zeros(2, "f4,i4"),))
def arrays_of_which_no_tensor_is_made(a):
    try:
        return torch.from_numpy(a), a.dtype.str
    except TypeError as error:
        return type(error), str(error)[:30], a.shape, len(a)
    except ValueError as error:
        return type(error), a.dtype.str, a.ndim


@whole((X, [A, A + 1]), (X, [A + 2, A]), (X, [A]), kernels=True)
def arrays_in_a_list(x, arrays):
    for a in arrays:
        x = x + torch.from_numpy(a)
    return x


@whole(([A, A + 1], (A, X)), kernels=True)
def arrays_in_sequences(arrays, pair):
    found = [torch.as_tensor(a) for a in arrays]
    for i, a in enumerate(arrays):
        found.append(torch.tensor(a) * i)
    for a, b in zip(arrays, pair):
        found.append(torch.as_tensor(b) + a.shape[0])
    kept = []
    for a in reversed(arrays):
        kept.append(a)
    first, *_ = arrays
    return found, len(arrays), len(kept), list(arrays), kept[0] is arrays[-1], torch.tensor(first)


@whole(({"x": X, "a": A, "b": (A, 2)},), kernels=True)
def arrays_in_a_dict(batch):
    made = {k: torch.as_tensor(v) for k, v in batch.items() if isinstance(v, np.ndarray)}
    return batch["x"] + made["a"], made, torch.from_numpy(batch["b"][0]) * batch["b"][1]


# -- writes and memory


@whole((A,), kernels=True)
def a_write_reaches_the_array(a):
    y = torch.from_numpy(a)
    y.mul_(3)
    y[0] += 1
    return y, a


@whole((A,), kernels=True)
def a_copy_is_apart(a):
    y = torch.tensor(a)
    y.add_(1)
    z = torch.as_tensor(a, dtype=torch.float64)
    z.add_(1)
    return y, z, a


@whole((A,), kernels=True)
def two_tensors_of_one_array(a):
    y, z = torch.from_numpy(a), torch.as_tensor(a)
    y.add_(1)
    before = torch.tensor(a)
    z.mul_(2)
    return y is z, y + z, z, before, a


@whole((A, A), (A, A.copy()), kernels=True)
def one_array_twice_or_two(a, b):
    y, z = torch.from_numpy(a), torch.from_numpy(b)
    y.add_(1)
    z.mul_(2)
    return y + z, z, a is b


@scenario
def both_tensors_of_one_array(c):
    @c
    def f(a):
        y = torch.from_numpy(a)
        y.add_(1)
        return y, torch.from_numpy(a)

    a = A.copy()
    y, z = f(a)
    y.mul_(5)
    yield a, y.data_ptr() == z.data_ptr(), z.is_leaf, z.requires_grad
    yield z


@scenario
def arrays_that_overlap(c):
    @c
    def f(a, b):
        y, z = torch.from_numpy(a), torch.from_numpy(b)
        y.add_(1)
        return z * 2, z

    for shift in (0, 0, 1, 2, 3):
        base = np.arange(6, dtype=np.float32)
        yield f(base[:3], base[shift : shift + 3])[0], base
    for _ in range(3):
        yield f(np.ones(3, np.float32), np.ones(3, np.float32))


@scenario
def an_array_over_a_tensor(c):
    @c
    def f(x, a):
        x.add_(1)
        y = torch.from_numpy(a)
        y.mul_(2)
        return x + y

    for _ in range(3):
        x = torch.ones(4)
        yield f(x, x.numpy()), x
        yield f(x, x.numpy()[:1]), x
        yield f(x, np.ones(4, np.float32)), x


@scenario
def arrays_that_overlap_where_a_checkpoint_writes(c):
    def region(y, z):
        y.add_(1)
        return y * z

    @c
    def f(x, a, b):
        with torch.no_grad():
            y, z = torch.from_numpy(a), torch.from_numpy(b)
            return torch.utils.checkpoint.checkpoint(region, y, z, use_reentrant=False) * x

    for shift in (3, 0, 1, 3):
        base = np.arange(6, dtype=np.float32)
        yield f(X[0], base[:3], base[shift : shift + 3]), base


@scenario
def the_same_array_with_other_numbers(c):
    @c
    def f(a):
        return torch.from_numpy(a) * 2, torch.tensor(a)

    a = np.arange(3.0)
    for n in range(4):
        a[n % 3] = 10 * n
        yield f(a)


@scenario
def a_tensor_outlives_its_array(c):
    @c
    def f(a):
        return torch.from_numpy(a)

    made = [f(np.full(5, float(n))) for n in range(5)]
    yield made


# -- dtypes and shapes that change


@scenario
def dtypes_and_shapes_that_change(c):
    @c
    def f(x, a):
        return x + torch.from_numpy(a), a.shape, a.dtype, len(a)

    for shape in ((3,), (3,), (5,), (7,), (1,), (0,), (2, 3), (4, 3), (3,)):
        for dtype in (np.float32, np.int64, np.bool_):
            yield attempt(f, torch.ones(shape), np.ones(shape, dtype))


@scenario
def an_array_or_something_else(c):
    @c
    def f(a):
        if isinstance(a, np.ndarray):
            a = torch.from_numpy(a)
        return a * 2

    for value in (A, X, A, 3, None, A):
        yield attempt(f, value)


@scenario
def read_only_arrays(c):
    @c
    def f(a):
        return torch.from_numpy(a) + 1, torch.as_tensor(a) * 2, a.flags.writeable

    @c
    def g(a):
        return torch.tensor(a) + 1

    for frozen in (False, True, True, False):
        a = A.copy()
        a.flags.writeable = not frozen
        yield f(a), g(a)
    yield g(np.broadcast_to(np.float32(2), (3,)))


@scenario
def classes_of_arrays(c):
    @c
    def f(a):
        return torch.as_tensor(a) + 1

    yield f(A), f(A.view(np.recarray)), f(np.ma.masked_array(A)), f(A)


# -- where arrays are found


TABLE = np.linspace(0, 1, 3)


@whole((X,), kernels=True)
def a_global_array(x):
    return x + torch.from_numpy(TABLE), TABLE.shape


@scenario
def a_global_array_that_changes(c):
    global TABLE
    f = c(a_global_array)
    old = TABLE
    for table in (old, old * 2, old.astype(np.float32), np.ones((2, 3)), old):
        TABLE = table
        yield f(X)
    TABLE[0] = 5
    yield f(X)
    TABLE[0] = 0


class Table(nn.Module):
    scale = np.array([2.0, 3.0, 4.0], dtype=np.float32)

    def __init__(self):
        super().__init__()
        self.table = np.arange(3, dtype=np.float32)
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        rows = torch.as_tensor(self.table, dtype=x.dtype, device=x.device)
        return x * self.weight + rows + torch.from_numpy(self.scale)


@scenario
def an_array_of_a_module(c):
    model = Table()
    f = c(model)
    yield f(X)
    model.table[1] = 7
    yield f(X)
    model.table = np.ones(3)
    yield f(X)
    model.table = np.ones((2, 3))
    yield f(X), model.table


@scenario
def an_array_in_a_closure(c):
    held = np.arange(3.0)

    @c
    def f(x, a=np.ones(3)):
        nonlocal held
        y = torch.from_numpy(held) + x + torch.from_numpy(a)
        held = a
        return y

    yield f(X)
    yield f(X), held
    yield f(X, np.zeros(3)), held


@case((X, A))
def an_array_is_handed_on(x, a):
    return a, [a], {"a": a, "y": torch.from_numpy(a) + x}


@scenario
def an_array_is_put_somewhere(c):
    @c
    def f(box, a):
        box["a"] = a
        box["t"] = torch.from_numpy(a)
        return box["t"] + 1

    box = {}
    yield f(box, A.copy()), box
    yield f(box, A.copy()), box


# -- what may be asked


@whole((A,), (A.T,), (np.zeros((0, 2), np.int16),), (np.array(1.0),))
def metadata(a):
    asked = (
        a.shape,
        a.ndim,
        a.size,
        a.itemsize,
        a.nbytes,
        a.strides,
        a.dtype,
        np.shape(a),
        np.ndim(a),
        np.size(a),
    )
    assert np.asarray(a) is a
    return asked, a.dtype == np.float32, a.dtype.kind, torch.zeros(a.shape)


@case((np.zeros((2, 3), ">f4"),), (np.array([None, 2]),))
def metadata_of_arrays_of_which_no_tensor_is_made(a):
    return a.shape, a.ndim, a.size, a.strides, a.dtype, len(a), torch.zeros(a.shape)


@whole((A,))
def views_that_are_fields(a):
    return torch.from_numpy(a.T) * 2, torch.from_numpy(a.real), a.T.shape


@scenario
def a_view_is_written(c):
    @c
    def f(a):
        y, z = torch.from_numpy(a), torch.from_numpy(a.T)
        y[0, 1] = 9
        z.add_(1)
        return y * 2, z * 3

    for _ in range(3):
        a = A.copy()
        yield f(a), a


@whole((A,), (None,))
def an_optional_array(a):
    return torch.zeros(2) if a is None else torch.from_numpy(a) + len(a)


# -- what ends a graph


@case((X, A))
def numpy_computes_with_it(x, a):
    b = a * 2
    return x + torch.from_numpy(b), np.sum(a), a.mean(), float(a.max()), a.sum(axis=0), a.tolist(), a[0, 1]


@case((X, A))
def a_tensor_and_an_array(x, a):
    return x + a, x * a, a - x, x == a, x[np.array([1, 0])], torch.stack([x, torch.from_numpy(a)])


@case((X, A))
def a_tensor_that_has_a_gradient_and_an_array(x, a):
    return x.requires_grad_() + a


@case((X, A), (X, A))
def the_array_is_written(x, a):
    y = torch.from_numpy(a)
    x = x + y
    a[0, 0] = 100
    a += 1
    return x + y, torch.from_numpy(a) - x, a


@case((A,))
def the_array_gets_another_shape(a):
    y = torch.from_numpy(a) + 1
    a.shape = (3, 2)
    return y, torch.from_numpy(a) * 2, a.shape


@case((A,))
def the_numbers_decide(a):
    y = torch.from_numpy(a)
    if a.any():
        y = y + 1
    for row in a:
        y = y + float(row[0])
    return y if a[0, 1] > 0 else -y


@case((X,))
def a_tensor_becomes_an_array(x):
    a = (x + 1).numpy()
    y = torch.from_numpy(a)
    y.add_(1)
    return y, a, a.shape


@case((np.ones(3, np.float32),))
def a_tensor_over_an_array_wants_a_gradient(a):
    y = torch.from_numpy(a).requires_grad_()
    (y * y).sum().backward()
    return y, y.grad


@case((A,), (A[0],))
def a_tensor_over_an_array_is_reshaped(a):
    y = torch.from_numpy(a)
    y.unsqueeze_(0)
    return y, y + 1


@case(([A, A + 1],))
def a_tensor_of_a_list_of_arrays(arrays):
    return torch.tensor(np.stack(arrays)), torch.as_tensor(arrays[0])


# -- training


@scenario
def training_on_arrays(c):
    weight = nn.Parameter(torch.full((3,), 0.5))

    @c
    def loss(a, target):
        return ((torch.from_numpy(a) * weight).sum(1) - torch.as_tensor(target)).square().mean()

    for n in (2, 2, 4, 5, 4):
        a = np.arange(3 * n, dtype=np.float32).reshape(n, 3) / 10
        found = loss(a, np.ones(n, np.float32))
        found.backward()
        yield found, weight.grad
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad)
        weight.grad = None


@scenario
def a_parameter_is_added_in_place(c):
    weight = nn.Parameter(torch.ones(3))

    @c
    def f(a):
        y = torch.from_numpy(a)
        y.mul_(weight)
        return y

    a = np.arange(3, dtype=np.float32)
    y = f(a)
    y.sum().backward()
    yield y, weight.grad, a


@scenario
def in_modes(c):
    @c
    def f(a):
        return torch.from_numpy(a) * 2, torch.tensor(a), torch.is_inference_mode_enabled()

    yield f(A)
    with torch.no_grad():
        yield f(A)
    with torch.inference_mode():
        yield f(A)
        yield f(A)
    with torch.autocast("cpu"):
        yield f(A)


@scenario
def inside_inference_mode(c):
    @c
    def f(a):
        x = torch.from_numpy(a) + 1
        with torch.inference_mode():
            y = torch.from_numpy(a)
            z = y * a.shape[1]
        return x, y.is_inference(), z.is_inference()

    yield f(A)
    yield f(A + 1)


@scenario
def numbers_of_an_array_decide(c):
    model = Table()
    model.steps = np.array([2, 3])

    @c
    def f(x):
        n = torch.from_numpy(model.steps)
        return x[:, :: int(n[0])] * n[1].item()

    for steps in ((2, 3), (2, 3), (1, 3), (1, 5), (2, 3)):
        model.steps[:] = steps
        yield f(X)
        model.steps = np.array(steps)
        yield f(X)


@case((X, bytearray(b"abcdef")))
def memory_of_other_kinds(x, held):
    y = x.reshape(-1) + torch.frombuffer(held, dtype=torch.uint8)
    held[0] = 0
    return y, y + torch.frombuffer(held, dtype=torch.uint8)
