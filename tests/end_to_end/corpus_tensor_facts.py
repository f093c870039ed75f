"""What a tensor is besides its metadata: made in inference mode, a leaf, a view, shared between processes."""

from __future__ import annotations

import numbers

import torch
from torch._subclasses.fake_tensor import FakeTensor, is_fake

from tests.end_to_end.conformance import scenario

X = torch.arange(6.0)
#: a rarer name of ``data_ptr``, where PyTorch has one
PLACE = "const_data_ptr" if hasattr(torch.Tensor, "const_data_ptr") else "data_ptr"


def made_in_inference():
    with torch.inference_mode():
        return torch.arange(6.0)


@scenario
def made_in_inference_mode(c):
    def asked(x):
        return x * 2 if x.is_inference() else x + 1, torch.is_inference(x)

    def of_results(x, w):
        return x.view(2, 3).is_inference(), (x + w).is_inference(), w.detach().is_inference()

    def of_many(xs):
        return list(map(torch.Tensor.is_inference, xs))

    asked, of_results, of_many = c(asked), c(of_results), c(of_many)
    weight = torch.nn.Parameter(torch.ones(6))
    inference = made_in_inference()
    for _ in range(2):
        for x in (X, inference, weight.data, X[:6]):
            yield asked(x), of_results(x, weight), of_many([x, weight, inference])
        with torch.inference_mode():
            for x in (inference, X, torch.arange(6.0)):
                yield asked(x), of_results(x, weight), of_many([x, weight, inference])


@scenario
def places_in_autograd(c):
    def asked(x):
        return x.is_leaf, x.retains_grad, x.output_nr, x.grad_fn is None, (x * 2).is_leaf

    def of_results(x):
        y = x.detach()
        return y.is_leaf, y.grad_fn, (x * 2).retains_grad

    asked, of_results = c(asked), c(of_results)
    leaf = torch.ones(6, requires_grad=True)
    kept = leaf * 3
    kept.retain_grad()
    for _ in range(2):
        for x in (X, leaf, leaf * 2, kept, leaf.split(3)[1], torch.nn.Parameter(torch.ones(6))):
            yield asked(x), of_results(x)
    with torch.no_grad():
        yield asked(leaf * 2), of_results(leaf)


@scenario
def places_in_autograd_of_what_is_given_a_history(c):
    @c
    def written(x, w):
        x.mul_(w)
        return x.is_leaf, x.requires_grad, x.output_nr, x.grad_fn is None

    for w in (torch.ones(6, requires_grad=True), torch.ones(6), torch.ones(6, requires_grad=True)):
        yield written(torch.ones(6), w), written(torch.ones(6, requires_grad=True) * 1, w)


@scenario
def places_in_memory(c):
    def asked(x):
        y = x * 2
        return x._is_view(), x.storage_offset(), x[1:].storage_offset(), y[1:].storage_offset(), x.is_shared()

    def versions(x):
        before = x._version
        x.add_(1)
        return before, x._version, x.detach()._version

    def names(x):
        return sorted(x.__dict__), sorted(vars(x)), x._base is None

    asked, versions, names = c(asked), c(versions), c(names)
    shared = torch.arange(6.0).share_memory_()
    marked = torch.arange(6.0)
    marked.note = "here"
    for x in (X, X[2:], X[1:], shared, marked):
        yield asked(x), names(x)
    written = torch.zeros(3)
    for _ in range(3):
        yield versions(written)


@scenario
def where_tensors_lie_as_their_rarer_names_tell(c):
    def asked(x):
        y = x + 1
        same = getattr(x, PLACE)() == x.data_ptr(), getattr(y, PLACE)() == y.data_ptr()
        return y, same, y.storage_type()

    asked = c(asked)
    for n in (2, 2, 3, 4):
        yield asked(X[:n])


@scenario
def what_stands_for_tensors_and_numbers_is_of_their_classes(c):
    def of_tensors(x, w):
        y = x + 1
        kinds = (
            isinstance(y, FakeTensor),
            isinstance(y, (int, (FakeTensor,))),
            isinstance(w, FakeTensor | str),
        )
        return y, kinds, isinstance(y, FakeTensor | torch.Tensor), is_fake(x), x._python_dispatch

    def of_numbers(x, n):
        symbols = isinstance(n, torch.SymInt), isinstance(x.size(0), (torch.SymInt, str))
        named = torch.typename(n), torch.typename(n / 2), torch.typename(x)
        others = (
            isinstance(n, numbers.Integral),
            isinstance(n, (int, torch.SymInt)),
            isinstance(n > 2, torch.SymBool),
        )
        return x * n, symbols, named, others, isinstance(n / 2, torch.SymFloat), x._has_symbolic_sizes_strides

    of_tensors, of_numbers = c(of_tensors), c(of_numbers)
    weight = torch.nn.Parameter(torch.ones(6))
    for n in (2, 2, 3, 4, 5):
        yield of_tensors(X[:n], weight), of_numbers(X[:n], n)
