"""What programs do beside computing: numbers of numpy, messages, identities, weak references, dispatch, reflection."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import copy
import decimal
import functools
import importlib
import inspect
import json
import math
import re
import sys
import threading
import types
import typing
import weakref

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from tests.end_to_end.conformance import case, said, scenario

X = torch.arange(6.0).reshape(2, 3)
whole = functools.partial(case, whole=True)


# -- messages


@whole((X,), (X[:1],))
def prints_of_what_is_known(x):
    print("shape", x.shape, tuple(x.shape), x.dtype, [1, None], sep="|")
    print(f"{x.shape[0]}", end=";")
    print()
    return x + 1


@case((X,))
def prints_around_a_break(x):
    print("one", x.shape)
    x = x + 1
    print(x.sum())
    print("three")
    return x


def fails_after_printing(x):
    print("before")
    raise ValueError("no")


@case((X,))
def prints_before_an_error(x):
    try:
        fails_after_printing(x)
    except ValueError:
        print("caught")
    return x


# -- identities


@whole((X,))
def ids_as_keys(x):
    a, b = [1], [1]
    memo = {id(a): x}
    seen = set()
    for item in (a, b, a):
        if id(item) in seen:
            x = x * 2
        seen.add(id(item))
    return x, memo.get(id(b), 3), memo[id(a)], id(a) == id(b), id(a) != id(b), len(seen)


@scenario
def parameters_met_twice(c):
    tied, free = nn.Linear(3, 3), nn.Linear(3, 3)
    model = nn.Sequential(tied, free, tied)

    @c
    def f(x):
        seen, total = set(), x
        for part in model:
            for p in part.parameters():
                if id(p) not in seen:
                    seen.add(id(p))
                    total = total + p.sum()
        return total, len(seen)

    torch.manual_seed(0)
    yield f(X)
    model[1] = tied
    yield f(X)


@scenario
def ids_of_arguments(c):
    @c
    def f(x, a, b):
        return x + (1 if id(a) == id(b) else 2)

    items = [1]
    for a, b in (([1], [2]), (items, items), ([1], [1]), (X, X), (X, X + 1)):
        yield f(X, a, b)


@scenario
def ids_that_get_out(c):
    @c
    def f(x, table, keep):
        table[id(keep)] = x
        return id(keep) % 1 + x, id(keep) == table["id"], str(id(keep)) == str(table["id"])

    keep = [1]
    table = {"id": id(keep)}
    yield f(X, table, keep)[0], len(table), table[id(keep)]
    yield f(X, table, keep)


# -- references, threads, contexts


class Node:
    def __init__(self, value):
        self.value = value
        self.parent = None


@whole((X,))
def weak_references_made_inside(x):
    root, child = Node(x), Node(x + 1)
    child.parent = weakref.ref(root)
    return child.parent().value + child.value, child.parent() is root


@scenario
def weak_references_kept(c):
    owner, table = Node(2), weakref.WeakKeyDictionary()
    table[owner] = 3

    @c
    def f(x):
        return x * table[owner] + weakref.ref(owner)().value, weakref.ref(owner)

    yield f(X)[0]
    table[owner] = 4
    yield f(X)[0], f(X)[1]() is owner


@scenario
def thread_locals(c):
    here = threading.local()
    here.k = 3

    @c
    def f(x):
        here.k += 1
        here.last = x * here.k
        return here.last, getattr(here, "nothing", 5)

    yield f(X), here.k, here.last
    yield f(X), here.k
    heard = []
    thread = threading.Thread(target=lambda: (setattr(here, "k", 10), heard.append(f(X))))
    thread.start()
    thread.join()
    yield heard, here.k


@scenario
def context_variables(c):
    depth = contextvars.ContextVar("depth", default=2)

    @c
    def f(x):
        token = depth.set(depth.get() + 1)
        y = x * depth.get()
        depth.reset(token)
        return y + depth.get()

    yield f(X)
    depth.set(5)
    yield f(X)


# -- dispatch and reflection


@scenario
def dispatch_that_grows(c):
    @functools.singledispatch
    def described(value, x):
        return x

    described.register(int)(lambda value, x: x + value)
    described.register(list)(lambda value, x: x * len(value))
    described.register(torch.Tensor)(lambda value, x: x - value)

    @c
    def f(x):
        return [described(v, x) for v in (1, [1, 2], x + 1, "s", 1.5, True)]

    yield f(X)
    described.register(str)(lambda value, x: x * 10)
    yield f(X)


class Area:
    @functools.singledispatchmethod
    def of(self, value, x):
        return x

    @of.register
    def _(self, value: tuple, x):
        return x * value[0]


@whole((X,))
def dispatch_of_methods(x):
    return Area().of((3,), x), Area().of([3], x)


def annotated(a: int, b: typing.Optional[str] = None, *, c: "float" = 1.5) -> torch.Tensor: ...


@whole((X,))
def signatures_and_hints(x):
    named = {
        k: p.default for k, p in inspect.signature(annotated).parameters.items() if p.default is not p.empty
    }
    bound = inspect.signature(annotated).bind(x, c=2)
    bound.apply_defaults()
    hints = typing.get_type_hints(annotated)
    return x, named, bound.args[0], dict(bound.kwargs), sorted(hints), typing.get_args(hints["b"]), hints["c"]


@whole((X,))
def modules_by_name(x):
    return x * importlib.import_module("math").pi + __import__("math").e, __import__("os.path").sep


@case((X,))
def locals_as_a_dict(x):
    y, z = 3, [1]

    def inner():
        return z

    found = locals()
    found["y"] = 4
    return x + y, sorted(found), found["z"] is z, "{y}".format(**locals()), inner()


@whole((X,))
def data_as_text(x):
    settings = json.loads('{"a": [1, 2.5, null], "b": {"c": true}}')
    text = json.dumps({"a": [1, {"b": None}], "c": x.shape[0]}, sort_keys=True)
    pattern = re.compile(r"(\d+)-(?P<n>\w+)")
    found = pattern.match("12-ab")
    return (
        x + settings["a"][1],
        text,
        found.group("n"),
        int(found[1]),
        pattern.sub(r"\2", "3-x"),
        pattern.search("none"),
    )


@whole((X,))
def decimals_and_versions(x):
    return (
        x + float(decimal.Decimal("0.5") * 3),
        torch.__version__ >= "2.0",
        sys.version_info >= (3, 8),
        math.isclose(float(decimal.Decimal("1.1")), 1.1),
    )


class Label(str):
    pass


class Count(int):
    pass


@scenario
def constants_of_subclasses_from_outside(c):
    label, count = Label("a"), Count(4)

    @c
    def f(x):
        return x + count, label + "b", {"a": 1}[label], label == "a", count * 2, x.reshape(count - 1, 2)

    yield f(X)
    count = Count(7 - 3)
    yield f(X)
    label = Label("a")
    yield f(X)


# -- tensors


@whole((X,))
def legacy_constructors(x):
    sized = torch.Tensor(2, 3).fill_(1) + torch.FloatTensor(3).zero_()
    return (
        x + sized,
        torch.FloatTensor([1, 2]),
        torch.LongTensor([[1], [2]]),
        torch.Tensor([1, 2]),
        torch.IntTensor((3,)),
    )


@scenario
def gradients_assigned(c):
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 3))
    p.grad = torch.full((3,), 2.0)

    @c
    def f(x):
        before = p.grad
        p.grad = None
        q.grad = x * 2
        return before + 1 if before is not None else x, p.grad, q.grad + 1

    yield f(X), p.grad, q.grad
    yield f(X), p.grad, q.grad

    @c
    def wrong(x):
        p.grad = x.double()
        return x

    with contextlib.suppress(RuntimeError):
        yield wrong(X)
    yield p.grad


@whole((X,))
def attributes_on_results(x):
    y, z = x + 1, x * 2
    y.kind = "sum"
    z.other = y
    hidden = x - 1
    hidden.kind = "hidden"
    return z, z.other.kind, hidden.kind, [y]


@case((X,))
def gradients_switched_on_results(x):
    y = (x * 2).requires_grad_(True)
    z = x + 1
    z.requires_grad = True
    w = x.clone()
    w.requires_grad = False
    return y, z, w, (y * z).sum()


class Duck:
    def __init__(self, tensor):
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.mul:
            return NotImplemented
        plain = [a.tensor if isinstance(a, Duck) else a for a in args]
        plain = [
            [b.tensor if isinstance(b, Duck) else b for b in a] if isinstance(a, list) else a for a in plain
        ]
        return Duck(func(*plain, **(kwargs or {})))


@whole((X,))
def functions_given_to_stand_ins(x):
    return (
        torch.add(Duck(x), 1).tensor,
        torch.stack([x, Duck(x)]).tensor,
        F.relu(Duck(x - 2)).tensor,
        (x + Duck(x)).tensor,
        torch.nn.functional.softmax(Duck(x), dim=-1).tensor,
    )


@case((X,))
def functions_that_stand_ins_refuse(x):
    try:
        return torch.mul(Duck(x), x)
    except TypeError as error:
        return "no implementation found" in str(error)


@whole((X,))
def trees_of_tensors(x):
    tree = {"a": [x, x + 1], "b": (x, {"c": 3})}
    leaves, spec = pytree.tree_flatten(tree)
    doubled = pytree.tree_unflatten([leaf * 2 for leaf in leaves], spec)
    with_paths = pytree.tree_map_with_path(lambda path, leaf: leaf * len(path), doubled)
    return doubled, with_paths, pytree.tree_map_only(torch.Tensor, torch.sin, tree), len(leaves)


# -- modules


@scenario
def modules_copied_and_moved(c):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    @c
    def f(x):
        again = copy.deepcopy(model)
        model.to(x.device).float()
        return again(x), copy.copy(x), copy.deepcopy(x)

    yield f(X), model
    yield f(X), model

    @c
    def g(x):
        return model.double()(x.double())

    yield g(X), model[0].weight.dtype
    yield g(X), model


@scenario
def modules_asked_for_everything(c):
    torch.manual_seed(0)
    model, other = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    @c
    def f(x):
        names = []
        model.apply(lambda part: names.append(type(part).__name__))
        state = model.state_dict()
        total = sum(p.sum() for n, p in model.named_parameters() if n.endswith("bias"))
        part = model.get_submodule("0")(x) + model.get_parameter("0.bias")
        return names, x @ state["0.weight"].t() + total, part, [n for n, _ in model.named_modules()]

    @c
    def g(x):
        model.load_state_dict(other.state_dict())
        return model(x)

    yield f(X)
    yield g(X)
    yield f(X), model


@case((X,))
def settings_changed_inside(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        y = torch.zeros(3) + x
    finally:
        torch.set_default_dtype(before)
    return y, torch.ones(2), torch.accelerator.is_available() and torch.accelerator.current_accelerator().type


@case((X,))
def containers_that_cannot_change(x):
    names = collections.namedtuple("names", "a b")(1, x)
    space = types.SimpleNamespace(a=2, b=[1])
    return names.a + names.b, space.a * x, types.MappingProxyType({"k": 3})["k"]


# -- graphs that the data make fail


@scenario
def data_errors_after_random_numbers(c):
    torch.manual_seed(0)
    table = nn.Embedding(4, 3)

    @c
    def f(x, index):
        x = F.dropout(x, 0.5, True) + torch.rand(3)
        try:
            x = x + table(index)
        except IndexError:
            x = x * 100
        return x + torch.rand(3)

    for index in (torch.tensor([1, 2]), torch.tensor([1, 9]), torch.tensor([3, 0])):
        yield f(X, index), float(torch.rand(()))


@scenario
def data_errors_after_statistics(c):
    torch.manual_seed(0)
    norm, table = nn.BatchNorm1d(3), nn.Embedding(4, 3)

    @c
    def f(x, index):
        return norm(x) + table(index)

    for index in (torch.tensor([1, 2]), torch.tensor([1, 9]), torch.tensor([3, 0])):
        yield said(lambda index=index: f(X, index))
        yield norm


# -- symbols as text


@scenario
def symbols_as_text(c):
    @c
    def f(x):
        return (
            x + 1,
            str(x.shape),
            f"{x.shape}",
            repr(x.size()),
            "{} {}".format(x.shape, x.shape[0]),
            f"{x.shape!r:>20}",
        )

    for rows in (2, 3, 5, 4):
        yield f(torch.ones(rows, 3))


@whole((X,))
def calls_until_a_sentinel(x):
    values = [1, 2, 0, 4]
    for k in iter(lambda: values.pop(0), 0):
        x = x + k
    return x, values
