"""Torch functions answered past the dispatcher give what eager gives: sizes, strides, type, and whose storage."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F

from braze.graph.fakes import fakes
from braze.graph.rules import metadata, past_dispatcher
from tests.graph import test_metadata
from tests.graph.test_metadata import i, r

Tensor = torch.Tensor
cl = torch.channels_last


LAYOUTS = [
    *test_metadata.LAYOUTS,
    lambda: r(3, 1),
    lambda: r(()),
    lambda: r(2, 3, 4, 5),
    lambda: r(2, 3, 4, 5).to(memory_format=cl),
    lambda: r(2, 4, 3, 5).transpose(1, 2),
    lambda: r(2, 1, 4, 5).to(memory_format=cl),
]
UNARY = [
    *"neg abs exp log sqrt rsqrt reciprocal sin cos tanh sigmoid relu erf square".split(),
    *"float half bfloat16 double long int bool contiguous t flatten squeeze unbind".split(),
]
BINARY = "add mul sub truediv eq ne lt le gt ge pow and_ or_ iadd imul isub itruediv".split()
WITH = {
    "transpose": [(0, 1), (-1, 0), (0, 9)],
    "permute": [(1, 0), ((0, 2, 3, 1),), (3, 0, 1, 2)],
    "unsqueeze": [(0,), (-1,), (9,)],
    "squeeze": [(1,), (-1,)],
    "reshape": [(-1,), (4, -1), ((2, 2, -1),), (7, 7)],
    "view": [(-1,), (4, -1), ((12,),)],
    "flatten": [(1,), (0, 1)],
    "unflatten": [(0, (3, 1)), (-1, (2, 2))],
    "expand": [(3, 4), (5, 3, 4), (-1, 4), ((2, 3, 4, 5),)],
    "select": [(0, 1), (1, -1)],
    "narrow": [(0, 1, 2), (1, 0, 9)],
    "chunk": [(2,), (3, 1)],
    "split": [(2,), ((1, 2), 0), (3, 1)],
    "swapaxes": [(0, 1)],
    "movedim": [(0, 1)],
    "diff": [(), (1, 0)],
    "to": [(torch.float32,), (torch.int64,), ("cpu",), (torch.device("cpu"), torch.float16)],
    "mean": [(), (0,), (-1, True), ((0, 1),), ([-1, -2], True)],
    "cumsum": [(0,), (-1,), (7,)],
    "pow": [(2,), (0.5,), (True,)],
}
KEYS = [
    0, -1, None, ..., slice(None), slice(1, None, 2), (slice(None), 0), (0, slice(None)), (None, ..., 1), (..., None),
    (slice(1, 2), slice(None, -1)), 9, (0, 0, 0, 0, 0),
]  # fmt: skip

CALLS = []
for name in UNARY:
    CALLS += [(getattr(Tensor, name), lambda make=make: (make(),), {}) for make in LAYOUTS]
for name in BINARY:
    function = getattr(operator, name)
    CALLS += [(function, lambda make=make: (make(), make()), {}) for make in LAYOUTS]
    CALLS += [(function, lambda make=make: (make(), r(4, 1, 1)), {}) for make in LAYOUTS]
    for number in (2, 2.5, True):
        CALLS += [(function, lambda make=make, number=number: (make(), number), {}) for make in LAYOUTS]
        CALLS += [(function, lambda make=make, number=number: (number, make()), {}) for make in LAYOUTS]
for name, given in WITH.items():
    for arguments in given:
        CALLS += [
            (getattr(Tensor, name), lambda make=make, a=arguments: (make(), *a), {}) for make in LAYOUTS
        ]
for key in KEYS:
    CALLS += [(operator.getitem, lambda make=make, key=key: (make(), key), {}) for make in LAYOUTS]


def image(order=torch.contiguous_format):
    return r(2, 4, 6, 6).to(memory_format=order)


CALLS += [
    (operator.getitem, lambda: (r(3, 4), torch.tensor(1)), {}),
    (operator.getitem, lambda: (r(3, 4), (torch.tensor(1), i(2))), {}),
    (operator.getitem, lambda: (r(3, 4), (i(2), torch.tensor(-1))), {}),
    (operator.getitem, lambda: (r(3, 4), i(2)), {}),
    (operator.getitem, lambda: (r(4).expand(3, 4), (i(2, 1, 1, 1), i(1, 1, 4, 1))), {}),
    (operator.getitem, lambda: (r(3, 4), (i(2, 1).t(), i(3, 1))), {}),
    (operator.getitem, lambda: (r(4, 3).t(), (i(2, 3).t(), i(3, 2))), {}),
    (operator.getitem, lambda: (r(4, 3).t(), i(2)), {}),
    (operator.getitem, lambda: (r(3, 4), (i(2), slice(None))), {}),
    (operator.getitem, lambda: (r(3, 4), r(3, 4) > 0), {}),
    (Tensor.to, lambda: (r(2), i(3)), {}),
    (Tensor.to, lambda: (i(2),), {"dtype": torch.float32, "device": "cpu"}),
    (Tensor.to, lambda: (r(4, 3).t(), torch.float64), {"copy": True}),
    (Tensor.mean, lambda: (r(2, 3, 4),), {"dim": 1, "keepdim": True}),
    (torch.cumsum, lambda: (r(2, 3),), {"dim": 1, "dtype": torch.float64}),
    (torch.diff, lambda: (i(2, 8),), {"prepend": i(2, 1), "dim": -1}),
    (torch.where, lambda: (r(3, 1) > 0, r(4), r(3, 4)), {}),
    (torch.where, lambda: (r(3, 1) > 0, 1.0, r(3, 4)), {}),
    (Tensor.masked_fill, lambda: (r(3, 4), r(4) > 0, -1.0), {}),
    (Tensor.masked_fill, lambda: (r(4, 3).t(), r(3, 4) > 0, 2), {}),
    (torch.cat, lambda: ([r(2, 3), r(2, 4)],), {"dim": -1}),
    (torch.cat, lambda: ((r(3, 2).t(), r(3, 2).t()),), {}),
    (torch.addmm, lambda: (r(4), r(2, 3), r(3, 4)), {}),
    (torch.addmm, lambda: (r(4), r(2, 3), r(3, 4)), {"beta": 2}),
    (torch.bmm, lambda: (r(2, 3, 4).transpose(1, 2), r(2, 3, 5)), {}),
    (F.linear, lambda: (r(2, 5, 3), r(4, 3), r(4)), {}),
    (F.linear, lambda: (r(5, 3), r(4, 3)), {"bias": None}),
    (F.linear, lambda: (r(5, 2, 3).transpose(0, 1), r(4, 3)), {}),
    (F.linear, lambda: (r(3), r(4, 3)), {}),
    (F.linear, lambda: (r(2, 0, 3), r(4, 3)), {}),
    (F.layer_norm, lambda: (r(2, 3, 4), (4,), r(4), r(4), 1e-5), {}),
    (F.layer_norm, lambda: (r(2, 4, 3).transpose(1, 2), (4,)), {}),
    (F.layer_norm, lambda: (r(2, 3, 4), (3, 4)), {"eps": 1e-3}),
    (F.embedding, lambda: (i(2, 3), r(7, 4), 0, None, 2.0, False, False), {}),
    (F.embedding, lambda: (i(3, 2).t(), r(7, 4)), {}),
    (F.softmax, lambda: (r(2, 3, 4), -1), {}),
    (F.softmax, lambda: (r(4, 3).t(),), {"dim": 0}),
    (F.softmax, lambda: (i(4, 3), 0), {"dtype": torch.float32}),
    (F.gelu, lambda: (r(4, 3).t(),), {"approximate": "tanh"}),
    (F.relu, lambda: (r(4, 3).t(),), {"inplace": True}),
    (F.silu, lambda: (r(4, 3).t(),), {"inplace": False}),
    (F.hardswish, lambda: (image(cl), True), {}),
    (F.hardsigmoid, lambda: (image(),), {}),
    (torch.conv1d, lambda: (r(2, 4, 9), r(4, 2, 3), None, 1, 0, 2, 2), {}),
    (torch.conv2d, lambda: (image(), r(4, 4, 3, 3), r(4), (2, 1), (1, 1), (1, 1), 1), {}),
    (torch.conv2d, lambda: (image(cl), r(4, 4, 3, 3)), {"padding": 1}),
    (torch.conv2d, lambda: (image(), r(4, 4, 3, 3).to(memory_format=cl)), {}),
    (torch.conv2d, lambda: (image(), r(4, 4, 3, 3)), {"padding": "same"}),
    (torch.conv2d, lambda: (r(4, 6, 6), r(4, 4, 3, 3)), {}),
    (torch.conv2d, lambda: (image(), r(4, 1, 3, 3), None, 1, 1, 1, 4), {}),
    (F.batch_norm, lambda: (image(), r(4), r(4), r(4), r(4), False, 0.1, 1e-5), {}),
    (F.batch_norm, lambda: (image(cl), r(4), r(4), r(4), r(4), False, 0.1, 1e-5), {}),
    (F.batch_norm, lambda: (r(2, 4, 3).transpose(0, 1), r(2), r(2)), {}),
    (F.batch_norm, lambda: (image(), r(4), r(4), r(4), r(4), True, 0.1, 1e-5), {}),
    (F.batch_norm, lambda: (image(), r(5), r(5)), {}),
    (torch.arange, lambda: (5,), {}),
    (torch.arange, lambda: (1, 5, 2), {"dtype": torch.float32}),
    (torch.arange, lambda: (1.5,), {}),
    (torch.arange, lambda: (5, 1), {}),
    (torch.ones, lambda: (2, 3), {"dtype": torch.bool, "device": "cpu"}),
    (torch.zeros, lambda: ((2, 3),), {}),
    (torch.zeros, lambda: (-1,), {}),
]


def mapped(function, value):
    if isinstance(value, torch.Tensor):
        return function(value)
    return type(value)(mapped(function, v) for v in value) if type(value) in (list, tuple) else value


def flat(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def geometry(t: torch.Tensor) -> tuple:
    strides = tuple(s for s, n in zip(t.stride(), t.shape) if n > 1) if t.numel() else ()
    return tuple(t.shape), strides, t.dtype, t.storage_offset(), t.device


def place_of(value: torch.Tensor, arguments: list[torch.Tensor]) -> tuple:
    """Which argument a result is, and which it shares its storage with."""
    storage = value.untyped_storage()._cdata
    return (
        [value is a for a in arguments],
        [storage == a.untyped_storage()._cdata for a in arguments],
    )


def tensors(values):
    found = []
    mapped(found.append, values)
    return found


@pytest.mark.parametrize(
    "numbers", [range(n, len(CALLS), 40) for n in range(40)], ids=lambda n: f"from_{n.start}"
)
def test_the_answer_is_eagers(numbers):
    for number in numbers:
        function, make, kwargs = CALLS[number]
        real = make()
        named = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        mode = fakes.new_mode()
        with torch.no_grad():
            args = mapped(mode.fake, real)
            versions = [t._version for t in tensors(args)]
            with mode:
                found = past_dispatcher.result_of(
                    mode.dispatch, function, args, {k: mapped(mode.fake, v) for k, v in named.items()}
                )
            if found is metadata.MISS:
                continue
            before = [t._version for t in tensors(real)]
            expected = function(*real, **named)  # what eager refuses must not be answered
            written = [t._version != v for t, v in zip(tensors(real), before)]
        where = function, [geometry(t) for t in tensors(real)], kwargs
        assert [t._version != v for t, v in zip(tensors(args), versions)] == written, where
        assert type(found) is type(expected) or isinstance(expected, torch.Tensor), where
        for have, want in zip(flat(found), flat(expected), strict=True):
            assert geometry(have) == geometry(want), where
            assert place_of(have, tensors(args)) == place_of(want, tensors(real)), where
            assert have.requires_grad is False


def test_most_calls_are_answered():
    answered = 0
    for function, make, kwargs in CALLS:
        mode = fakes.new_mode()
        try:
            make()
        except RuntimeError:
            continue
        named = {k: mapped(mode.fake, v) for k, v in kwargs.items()}
        with torch.no_grad(), mode:
            args = mapped(mode.fake, make())
            answered += past_dispatcher.result_of(mode.dispatch, function, args, named) is not metadata.MISS
    assert answered > len(CALLS) // 2


def test_gradients_and_autocast_go_the_usual_way(monkeypatch):
    monkeypatch.setattr(past_dispatcher, "result_of", None)  # calling it is an error
    mode = fakes.new_mode()
    x, w = mode.fake(r(2, 3)), mode.fake(torch.nn.Parameter(r(4, 3)))
    with mode:
        assert mode.call(F.linear, (x, w), {}).requires_grad
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert mode.call(F.linear, (x, w), {}).dtype is torch.bfloat16
