"""Functions of PyTorch's that take floats in C++ alone, which knows no symbols there: a dropout's ``p``, a norm's ``momentum``.

Asked with a symbol, they would fix it. They are asked with a number instead, and a graph has the symbol in its place: for which numbers that is
the same graph is said here (between 0 and 1 dropout draws, at both ends it does not), and so is what C++ computes of the number before it calls an operator.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from braze.graph.private import torch_symbols
from braze.support.record import record

#: a question about a float, and what it is compared with
Question = tuple[Callable[[Any, Any], bool], float]

#: what a float must be; C++ asks no more of it, and no kernel differs by it
INSIDE: tuple[Question, ...] = ((operator.gt, 0.0), (operator.lt, 1.0))
POSITIVE: tuple[Question, ...] = ((operator.gt, 0.0), (operator.lt, math.inf))
#: the norms of cuDNN take no less than 1e-5
OF_NORMS: tuple[Question, ...] = ((operator.gt, 1.1e-5), (operator.lt, math.inf))
#: zeros are no symbols
FINITE: tuple[Question, ...] = ((operator.ne, 0.0), (operator.lt, math.inf), (operator.gt, -math.inf))

#: all powers of 1 are 1
OF_BASES: tuple[Question, ...] = (*POSITIVE, (operator.ne, 1.0))

#: operations of C++ on the float: (function, operands), of which integers are places among what is known so far, the float itself at 0.
#: None multiplies and then adds: some compilers round that once
Made = tuple[tuple[Callable[..., float], tuple[float | int, ...]], ...]
REST: Made = ((operator.sub, (1.0, 0)),)
DROPS: Made = (*REST, (operator.truediv, (1.0, 1)))
NEGATIVE: Made = ((operator.neg, (0,)),)
LOGARITHM: Made = ((math.log, (0,)),)
ROOT: Made = ((math.sqrt, (0,)),)
#: ``x ** k``, and what autograd makes of it again and again
POWERS: Made = tuple([(operator.sub, (n, 1.0)) for n in range(10)])


@record
class Taken:
    """A float that a function takes: its name, its place among positional arguments, what it must be, what C++ makes of it."""

    name: str
    place: int
    within: tuple[Question, ...]
    made: Made = ()
    #: whether C++ divides it by the number of classes, too
    divided: bool = False


@functools.cache
def _table() -> Mapping[Any, tuple[Taken, ...]]:
    """Function -> its floats. Those of ``torch.nn.functional`` are noted whole, what they call stands for programs that call it."""
    tensor, layers = torch.Tensor, torch.nn.functional
    found: dict[Any, list[Taken]] = {}
    for functions, each in (
        ((torch.dropout, torch.dropout_, torch.feature_dropout, torch.feature_dropout_, torch.native_dropout), Taken("p", 1, INSIDE, DROPS)),
        ((layers.dropout, layers.dropout1d, layers.dropout2d, layers.dropout3d), Taken("p", 1, INSIDE, DROPS)),
        ((layers.scaled_dot_product_attention,), Taken("dropout_p", 4, INSIDE, DROPS)),
        ((layers.scaled_dot_product_attention,), Taken("scale", 99, POSITIVE, ROOT)),
        ((layers.multi_head_attention_forward,), Taken("dropout_p", 10, INSIDE, DROPS)),
        ((torch.bernoulli, tensor.bernoulli, tensor.bernoulli_), Taken("p", 1, INSIDE)),
        ((tensor.normal_, tensor.log_normal_), Taken("mean", 1, FINITE)),
        ((tensor.normal_, tensor.log_normal_), Taken("std", 2, POSITIVE)),
        ((torch.normal,), Taken("mean", 0, FINITE)),
        ((torch.normal,), Taken("std", 1, POSITIVE)),
        ((tensor.uniform_,), Taken("from", 1, FINITE)),
        ((tensor.uniform_,), Taken("to", 2, FINITE)),
        ((tensor.exponential_,), Taken("lambd", 1, POSITIVE)),
        ((torch.batch_norm, torch.instance_norm, layers.batch_norm, layers.instance_norm), Taken("momentum", 6, FINITE)),
        ((torch.batch_norm, torch.instance_norm, layers.batch_norm, layers.instance_norm), Taken("eps", 7, OF_NORMS)),
        ((torch.layer_norm, torch.group_norm, layers.layer_norm, layers.group_norm), Taken("eps", 4, POSITIVE)),
        ((torch.rms_norm, layers.rms_norm), Taken("eps", 3, POSITIVE)),
        ((layers.smooth_l1_loss,), Taken("beta", 5, POSITIVE)),
        ((layers.huber_loss,), Taken("delta", 3, POSITIVE)),
        ((torch.margin_ranking_loss, layers.margin_ranking_loss), Taken("margin", 3, FINITE)),
        ((torch.cosine_embedding_loss, layers.cosine_embedding_loss), Taken("margin", 3, FINITE, NEGATIVE)),
        ((torch.hinge_embedding_loss, layers.hinge_embedding_loss), Taken("margin", 2, FINITE)),
        ((torch.triplet_margin_loss, layers.triplet_margin_loss), Taken("margin", 3, POSITIVE)),
        ((layers.cross_entropy,), Taken("label_smoothing", 7, INSIDE, REST, True)),
        ((layers.pad,), Taken("value", 3, FINITE)),
        ((torch.nan_to_num, tensor.nan_to_num, torch.nan_to_num_, tensor.nan_to_num_), Taken("nan", 1, FINITE)),
        ((torch.nan_to_num, tensor.nan_to_num, torch.nan_to_num_, tensor.nan_to_num_), Taken("posinf", 2, FINITE)),
        ((torch.nan_to_num, tensor.nan_to_num, torch.nan_to_num_, tensor.nan_to_num_), Taken("neginf", 3, FINITE)),
        ((torch.isclose, tensor.isclose), Taken("rtol", 2, POSITIVE)),
        ((torch.isclose, tensor.isclose), Taken("atol", 3, POSITIVE)),
        ((torch.quantile, tensor.quantile, torch.nanquantile, tensor.nanquantile), Taken("q", 1, INSIDE)),
        ((torch.cosine_similarity, layers.cosine_similarity), Taken("eps", 3, POSITIVE)),
        ((torch.pairwise_distance, layers.pairwise_distance), Taken("eps", 3, POSITIVE)),
        ((layers.poisson_nll_loss,), Taken("eps", 5, POSITIVE)),
        ((torch.logit, tensor.logit, torch.special.logit), Taken("eps", 1, INSIDE, REST)),
        ((torch.lerp, tensor.lerp, tensor.lerp_), Taken("weight", 2, FINITE, REST)),
        ((operator.pow, torch.pow, tensor.pow, tensor.__pow__), Taken("exponent", 1, FINITE, POWERS)),
        ((torch.float_power, tensor.float_power), Taken("exponent", 1, FINITE, POWERS)),
        ((operator.pow, torch.pow), Taken("self", 0, OF_BASES, LOGARITHM)),
    ):  # fmt: skip
        for function in functions:
            found.setdefault(function, []).append(each)
    return {function: tuple(each) for function, each in found.items()}


def taken(target: Any) -> tuple[Taken, ...]:
    """The floats of this kind that a function takes, or a method of tensors by its name."""
    found = getattr(torch.Tensor, target, None) if type(target) is str else target
    try:
        return _table().get(found, ())
    except TypeError:  # what has no hash is none of PyTorch's functions
        return ()


def made_of(each: Taken, args: Sequence[Any]) -> Made | None:
    """What C++ makes of a float in a call; None where it computes that of a size that varies."""
    if not each.divided:
        return each.made
    classes = (
        args[0].shape[min(args[0].dim() - 1, 1)]
        if args and isinstance(args[0], torch.Tensor) and args[0].dim()
        else None
    )
    return (*each.made, (operator.truediv, (0, float(classes)))) if type(classes) is int and classes else None


def symbols_among(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[Taken, torch.SymFloat]]:
    """Those that are symbols in a call."""
    for each in taken(target):
        value = kwargs.get(each.name, args[each.place] if len(args) > each.place else None)
        if type(value) is torch.SymFloat:
            yield each, value


def replaced(
    numbers: Mapping[str, tuple[Taken, Any]], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with other numbers for floats, which are given by name."""
    by_place, by_name = list(args), dict(kwargs)
    for name, (each, number) in numbers.items():
        if name in by_name:
            by_name[name] = number
        else:
            by_place[each.place] = number
    return tuple(by_place), by_name


def with_numbers(
    func: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    floats: Mapping[str, float],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an operator of ATen's with the numbers of this call for symbols that it takes in C++ alone: no size of its results hangs on them."""
    if not any(type(v) is torch.SymFloat for v in (*args, *kwargs.values())):
        return args, kwargs
    words = {a.name for a in func._schema.arguments if str(a.type) in _FLOATS}
    names = [a.name for a in func._schema.arguments]

    def number(name: str, value: Any) -> Any:
        of_c = type(value) is torch.SymFloat and name in words
        return floats.get(torch_symbols.made_as(value), value) if of_c else value

    return tuple(map(number, names, args)), {name: number(name, v) for name, v in kwargs.items()}


#: types of such arguments in schemas
_FLOATS = ("float", "Optional[float]")
