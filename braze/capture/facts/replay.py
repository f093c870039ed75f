"""What residual functions call when they run: reads, writes, builders, and the step into a resumed frame."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from braze.graph.private.torch_compat import RecomputedEnough
from braze.support.errors import BrazeError
from braze.support.interrupts import is_of_handler
from braze.support.layouts import span
from braze.support.log import warn_once
from braze.support.raisers import is_of_program

#: file names of generated functions start so; their frames are cut from users' tracebacks
GENERATED = "<braze "


#: the generator whose methods the functions of ``random`` are
GENERATOR: Any = random._inst  # type: ignore[attr-defined]
#: what ``next`` gives at the end of an iterator
END = object()


#: the files whose frames stand between residual code and the user's
MACHINERY = frozenset(
    os.path.join(os.path.dirname(os.path.dirname(__file__)), *name.split("/")) + ".py"
    for name in (
        "dispatch/announce", "dispatch/attempt", "dispatch/session", "dispatch/variants", "facts/replay", "facts/stand_ins", "residual/points",
    )
)  # fmt: skip


class Jump:
    """Go on in a resumed frame. Returned by residual functions of resumed frames, so that a loop that breaks
    the graph in every iteration does not grow the stack; only :func:`run` ever sees one.
    """

    __slots__ = ("resume", "state")

    def __init__(self, resume: Callable[[tuple[Any, ...]], Any], state: tuple[Any, ...]) -> None:
        self.resume = resume
        self.state = state


def run(step: Jump) -> Any:
    """Run a resumed frame to its end, through any number of further breaks in it."""
    result: Any = step
    while type(result) is Jump:
        resume, state = result.resume, result.state
        step.state = result.state = ()  # held by nobody but this loop, and only for one step
        result = resume(state)
    return result


def caught(error: BaseException) -> BaseException:
    """The exception with our own frames cut out of its traceback."""
    first: types.TracebackType | None = None
    last: types.TracebackType | None = None
    trace = error.__traceback__
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code):
            if last is None:
                first = trace
            elif last.tb_next is not trace:
                last.tb_next = trace
            last = trace
        trace = trace.tb_next
    if last is not None and last.tb_next is not None:
        last.tb_next = None
    error.__traceback__ = first
    return error


def run_again(failed: Exception, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run a function by Python whose graph has failed, having changed nothing: for its own error, and its handlers.

    What a signal's handler raises (a time limit) is not the graph's, and goes to the caller.
    """
    result = _again(failed, run, args, kwargs)
    warn_once(
        ("BZ6013", type(failed), str(failed)),
        f"BZ6013: a compiled graph failed, and Python ran the call instead; each such call costs both. {type(failed).__name__}: {failed}",
        subject="fallbacks",
    )
    return result


def _again(failed: Exception, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(failed, (BrazeError, RecomputedEnough)) or is_of_handler(failed):
        raise failed
    try:
        return run(*args, **kwargs)
    except BaseException as error:
        at: BaseException | None = error
        while at is not None:
            if at.__context__ is failed:
                at.__context__ = None
            at = at.__context__
        caught(error)
        raise


def own_or_again(failed: Exception, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """As :func:`run_again`, where nobody handles an error: one that the program's own code raised in the graph (a kernel of its operator,
    a hook) is the call's. It may not come a second time, and that code is not called more often than in eager.
    """
    if is_of_program(failed):
        raise caught(failed)
    return run_again(failed, run, *args, **kwargs)


def own_after_again(failed: Exception, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """As :func:`own_or_again`, where the call has effects: those before the error are Python's to bring about."""
    if not is_of_program(failed):
        return run_again(failed, run, *args, **kwargs)
    _again(failed, run, args, kwargs)
    raise caught(failed)


def is_ours(code: types.CodeType) -> bool:
    """Whether a frame is of the machinery that runs residual code, or of generated code."""
    return code.co_filename.startswith(GENERATED) or code.co_filename in MACHINERY


def throw(error: BaseException) -> NoReturn:
    """Raise, as an expression."""
    raise error


_BASES = (collections.OrderedDict, dict, list, tuple, set, frozenset, collections.deque, bytearray)


def builtin_base(container: Any) -> Any:
    """The built-in class whose methods work on the raw contents of a container."""
    kind = type(container)
    if kind is dict or kind is list:
        return kind
    return next((base for base in _BASES if issubclass(kind, base)), kind)


def item(container: Any, key: Any) -> Any:
    """An item of a list, tuple or dict, past any override in a subclass."""
    return builtin_base(container).__getitem__(container, key)


def nth_key(mapping: dict[Any, Any], position: int) -> Any:
    """The key at a position of a dict's order."""
    for i, key in enumerate(builtin_base(mapping).keys(mapping)):
        if i == position:
            return key
    raise KeyError(position)


def class_attribute(cls: type, name: str) -> Any:
    """What a class or its bases hold under a name, descriptors not called."""
    for base in type.__dict__["__mro__"].__get__(cls):
        if name in base.__dict__:
            return base.__dict__[name]
    raise AttributeError(name)


def number_as_tensor(value: float) -> torch.Tensor:
    """A number of Python's as it enters a graph: a tensor of no dimensions that holds it exactly."""
    return torch.tensor(value, dtype=torch.float64 if type(value) is float else torch.int64, device="cpu")


def shuffled(values: tuple[int | float, ...]) -> list[int | float]:
    """Numbers in an order that is drawn."""
    made = list(values)
    GENERATOR.shuffle(made)
    return made


def make_function(code: Any, owner: Any, name: str, defaults: Any, kwdefaults: Any, cells: Any) -> Any:
    """A function with the globals of ``owner`` (or with these very globals)."""
    space = owner if type(owner) is dict else owner.__globals__
    made = types.FunctionType(code, space, name, defaults, cells)
    made.__kwdefaults__ = kwdefaults
    if space is not owner and owner.__module__ is not None:
        made.__module__ = owner.__module__
    return made


def iterator_at(maker: Callable[..., Any], *args: Any) -> Any:
    """An iterator that stands where another did, by what that one's ``__reduce__`` gave: maker, arguments, state."""
    made = maker(*args[:-1])
    made.__setstate__(args[-1])
    return made


def dict_walk_at(name: str, left: int, owner: dict[Any, Any]) -> Any:
    """An iterator over a dict that has so many of its items still to give."""
    walk = iter(getattr(dict, name)(owner))
    for _ in range(len(owner) - left):
        next(walk)
    return walk


def set_walk_at(owner: set[Any], *left: Any) -> Any:
    """An iterator over a set that has these still to give; over these alone, where the set is in another order."""
    whole = list(set.__iter__(owner))
    gone = len(whole) - len(left)
    if gone < 0 or any(a is not b for a, b in zip(whole[gone:], left, strict=True)):
        return iter(left)
    walk = set.__iter__(owner)
    for _ in range(gone):
        next(walk)
    return walk


def empty(cls: type) -> Any:
    """An instance without attributes; none of the class' own code runs."""
    return native_new(cls)(cls)


def hashed_weak(target: Any) -> weakref.ref[Any]:
    """A weak reference that has its object's hash for when that is gone."""
    made = weakref.ref(target)
    if type(target).__hash__ is object.__hash__:
        hash(made)
    return made


def weak_to_nothing(*kept: int) -> weakref.ref[Any]:
    """A weak reference to an object that is gone, which has been asked for its hash, or has not."""
    gone = type("Gone", (), {"__hash__": lambda self: kept[0]})()
    made = weakref.ref(gone)
    if kept:
        hash(made)
    return made


def native_new(cls: type) -> Any:
    """The first ``__new__`` in C along the MRO: runs no Python code."""
    for base in type.__dict__["__mro__"].__get__(cls):
        made = base.__dict__.get("__new__")
        if isinstance(made, types.BuiltinFunctionType):
            return made
    return object.__new__


def set_attribute(target: Any, name: str, value: Any) -> None:
    """Write an attribute, past any ``__setattr__`` written in Python."""
    if issubclass(type(target), type):
        type.__setattr__(target, name, value)
    else:
        object.__setattr__(target, name, value)


def delete_attribute(target: Any, name: str) -> None:
    """Delete an attribute, past any ``__delattr__`` written in Python."""
    if issubclass(type(target), type):
        type.__delattr__(target, name)
    else:
        object.__delattr__(target, name)


def set_in_dict(target: Any, name: str, value: Any) -> None:
    """Write into the dict of an instance, past what its class says of the name."""
    object.__getattribute__(target, "__dict__")[name] = value


def delete_in_dict(target: Any, name: str) -> None:
    """Delete from the dict of an instance, past what its class says of the name."""
    del object.__getattribute__(target, "__dict__")[name]


def set_item(container: Any, key: Any, value: Any) -> None:
    """Write an item, past any override in a subclass."""
    builtin_base(container).__setitem__(container, key, value)


def delete_item(container: Any, key: Any) -> None:
    """Delete an item, past any override in a subclass."""
    builtin_base(container).__delitem__(container, key)


class WhereGiven:
    """A tensor's hook that eager calls only with gradients: the backward of a whole graph hands on None, too, where it has none."""

    __slots__ = ("hook",)

    def __init__(self, hook: Callable[[torch.Tensor], Any]) -> None:
        self.hook = hook

    def __call__(self, grad: torch.Tensor | None) -> Any:
        return None if grad is None else self.hook(grad)

    @property
    def __name__(self) -> str:
        """By which PyTorch names the program's hook in errors, if it has one."""
        return self.hook.__name__


class AfterGiven(WhereGiven):
    """As :class:`WhereGiven`, of a hook that gets the tensor when its gradient has been added."""

    __slots__ = ()

    def __call__(self, tensor: Any) -> Any:
        return None if tensor.grad is None else self.hook(tensor)


def put_hook(tensor: torch.Tensor, hook: WhereGiven) -> Any:
    """A hook on a tensor, as ``register_hook`` puts it there."""
    bring_up_history(tensor)
    return tensor.register_hook(hook)


def bring_up_history(tensor: torch.Tensor) -> None:
    """Have autograd make the history of a view anew whose memory was written since, before a hook is put on it.

    PyTorch dies of a first hook that comes to an older history, and loses any other one, unless somebody has looked at the history before. An eager
    program may have, where a trace has answered it; a trace looks where the program has not.
    """
    if tensor.requires_grad:
        with contextlib.suppress(RuntimeError):  # of some views nobody may ask: who uses them is told
            _ = tensor.grad_fn


def set_contents(container: Any, new: Any) -> None:
    """Give a list, dict, set or deque the contents and order of ``new``, in place."""
    base = builtin_base(container)
    if base is list:
        list.__setitem__(container, slice(None), new)
        return
    base.clear(container)
    if base in (dict, collections.OrderedDict):
        for key, value in new.items():
            base.__setitem__(container, key, value)
    else:
        (base.extend if base is collections.deque else base.update)(container, new)


def share_memory(inputs: Sequence[Any], some: Sequence[int], tensors: Sequence[int], name: str) -> bool:
    """Whether one of some inputs, over arrays' memory, may hold elements of another input; says so once."""
    places = [(i, *reach(inputs[i])) for i in tensors if inputs[i].device.type == "cpu" and inputs[i].numel()]
    chosen = [place for place in places if place[0] in some]
    if not any(a[1] < b[2] and b[1] < a[2] for a in chosen for b in places if a[0] != b[0]):
        return False
    warn_once(
        ("BZ2017", name),
        f"BZ2017: a call of {name} runs as it is, uncompiled: an array of numpy's shares memory with another input "
        "of a graph that writes",
    )
    return True


def reach(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the one behind its last."""
    start = tensor.data_ptr()
    return start, start + span(tensor.shape, tensor.stride()) * tensor.element_size()
