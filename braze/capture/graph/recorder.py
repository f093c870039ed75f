"""Record torch calls on fakes as nodes of an FX graph.

The interpreter calls :meth:`Recorder.call` for each torch function it meets. Where other C code may compute with
tensors (``sum``, ``sorted``, ``functools.reduce``), a :class:`RecordingMode` is on and sends the calls here.
"""

from __future__ import annotations

import array
import functools
import operator
import re
import types
from enum import Enum
from typing import Any, NoReturn

import numpy as np
import torch
import torch.fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode

from braze import native
from braze.capture.facts.breaks import DECIDED_BY_DATA, HINT_DATA, HINT_FORMAT, BreakSignal, graph_break
from braze.capture.facts.libraries import is_pytorchs
from braze.capture.facts.policy import OURS
from braze.capture.facts.records import Step
from braze.capture.facts.values import MISSING, Identity, words
from braze.capture.graph import constant_evaluation, floats_of_c, overloads, sizes, tensor_facts, unbacked
from braze.capture.outside import identities
from braze.capture.outside.opaque import refuse_asked, refuse_if_opaque
from braze.capture.state.outside import Outside
from braze.capture.state.trace import Recording, Trace
from braze.graph.fakes import probe
from braze.graph.fakes.fakes import ACCEPTED, FakeMode
from braze.graph.fakes.missing_kernels import refusal
from braze.graph.nodes.facts import InputRole, facts, note_place, set_facts, tell_of_input
from braze.graph.private import torch_nodes
from braze.graph.private.torch_compat import disable_functions, is_of_transform, storage_key
from braze.graph.private.torch_symbols import SYMBOLIC, is_undecided, size_oblivious
from braze.graph.rules.memo import MISS
from braze.support.errors import Unsupported
from braze.support.nested import every

#: answers that depend on what a tensor holds
DATA = frozenset(
    words(
        """item tolist __bool__ __int__ __float__ __complex__ __index__ numpy __array__ data_ptr const_data_ptr is_nonzero __contains__
    __repr__ __str__ __format__ storage untyped_storage _typed_storage storage_type __dlpack__ cpu_data backward register_hook
    __reduce_ex__ register_post_accumulate_grad_hook retain_grad share_memory_ pin_memory __deepcopy__ set_ __torch_dispatch__"""
    )
)
#: what PyTorch takes these classes for, where it wants a dtype
DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128}
#: functions that give None and yet write, and what operators of libraries are
WRITES = frozenset(words("__setitem__ __set__ __delitem__ setitem _assert_async"))
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
#: what keeps memory of its own, or shows that of others
BUFFERS = (memoryview, bytearray, array.array)


class Recorder(Recording):
    """The recorder of a trace's own graph."""

    def __init__(self, t: Trace, mode: FakeMode, outer: Recording | None = None) -> None:
        super().__init__(t, mode, outer)
        self.local_names = t.frames.decoded(t.outside.function.__code__).slots
        #: how many placeholders have each name
        self.stems: dict[str, int] = {}
        #: whether the operator at hand takes sizes that only the data tell for neither 0 nor 1
        self.oblivious = False

    # -- values and nodes

    def node_of(self, value: Any) -> torch.fx.Node:
        """The node of a fake; an input not used before becomes a placeholder."""
        found = self.nodes.get(id(value))
        if found is not None:
            return found[1]
        place = self.t.outside.tree.node_of(value)
        if place is None and not isinstance(value, FakeTensor):
            graph_break("BZ1011", "a tensor that came from nowhere braze knows")
        if place is None:
            graph_break("BZ1011", "a fake tensor that was made outside the recorder")
        return self.placeholder(place, value)

    def placeholder(self, place: Any, fake: Any) -> torch.fx.Node:
        """The graph input for what is at ``place``."""
        if place.value is not fake:
            fake = place.value
            found = self.nodes.get(id(fake))
            if found is not None:
                return found[1]
        name = stem = readable(place, self.local_names)
        taken = self.stems.get(stem, 0)
        if taken:
            name = f"{stem}__{taken}"  # the argument's name is the target, which graphs do not keep unique
        self.stems[stem] = taken + 1
        anchor = self.placeholders[-1][0] if self.placeholders else None
        first = next(iter(self.graph.nodes), None) if anchor is None else None
        node = self.graph.create_node("placeholder", name, (), {}, name=name)
        if anchor is not None:
            anchor.append(node)
        elif first is not None:
            first.prepend(node)
        node.meta["val"] = fake
        role = InputRole.PARAMETER if self.t.outside.is_model_state(place) else InputRole.USER
        set_facts(node, role=role)
        if isinstance(place.real, torch.Tensor):
            tell_of_input(node, place.real)
        self.placeholders.append((node, place))
        self.nodes[id(fake)] = (fake, node)
        return node

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Say which node a fake came from; the first one stays, since in-place ops return the same fake."""
        if id(value) not in self.nodes:
            self.nodes[id(value)] = (value, node)
            self.note_birth(value)

    def argument(self, value: Any) -> Any:
        """A call's argument as FX sees it."""
        kind = type(value)
        if kind in PLAIN_ARGUMENTS:
            return value
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if kind is tuple or kind is torch.Size:
            return tuple([self.argument(v) for v in value])
        if isinstance(value, list):
            return [self.argument(v) for v in value]
        if kind is dict:
            return {k: self.argument(v) for k, v in value.items()}
        if kind is torch.ScriptObject:
            graph_break("BZ1013", "an object of C++ is an argument, which a graph cannot hold")
        if kind is slice:
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if kind is torch.SymBool and not unbacked.is_unbacked(value):
            return bool(value)
        if kind in SYMBOLIC:
            return sizes.node_for(self, value)
        if isinstance(value, tuple):  # of one of torch.return_types nodes know the items alone
            parts = tuple([self.argument(v) for v in value])
            return kind(*parts) if hasattr(value, "_fields") else parts
        if kind is Identity:
            identities.refuse("goes into the graph")
        refuse_if_opaque(self.t.outside, value)
        if isinstance(value, type):
            return class_argument(value)
        if isinstance(value, np.generic):
            return number_of(value)
        if isinstance(value, np.ndarray):
            graph_break("BZ1013", "an array of numpy's goes into a graph", "make it a tensor outside")
        if isinstance(value, BUFFERS):
            graph_break(
                "BZ1013", f"the memory of a {kind.__name__} goes into a graph", "make it a tensor outside"
            )
        for plain in (int, float, str):  # of a subclass (numpy's float64) the graph gets the value
            if isinstance(value, plain) and not isinstance(value, Enum):
                return plain(value)
        return value

    # -- calls

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a torch function on fakes and note it."""
        name = getattr(func, "__name__", "")
        kwargs = self.t.outside.settings.on_device(func, args, kwargs)
        answer = self._foreseen(func, name, args, kwargs)
        if answer is not MISSING:
            return answer
        noted = args, kwargs
        if self.mode.env is not None:
            noted, (args, kwargs) = floats_of_c.told_apart(self.t.graph, func, name, args, kwargs)
        extents = self.extents(kwargs["out"]) if kwargs and kwargs.get("out") is not None else None
        wants = (kwargs or name == "requires_grad_") and asks_for_gradient(name, args, kwargs)
        # else views learn of no history, nor of a base that has become a leaf
        exact = self.mode.exact_views or not (wants or torch.is_grad_enabled())
        plain = [] if exact else without_history(args, kwargs)
        listed = written_in_list(name, args) if name[:9] == "_foreach_" else ()
        key, result = self.mode.recall(func, args, kwargs, ACCEPTED)
        if result is MISS:
            raise_refusal(func, name, args, kwargs)
            failed: list[Exception] = []
            try:
                result = self.mode.compute(key, func, args, kwargs, ACCEPTED)
            except BreakSignal:
                raise
            except Exception as error:
                answer = self.answer_otherwise(error, func, *noted)
                if answer is not MISSING:
                    return answer
                failed = [error]
            if failed:
                self._raise_eagers(failed, func, *floats_of_c.settle(self.t.graph, func, *noted))
        for x, version in listed:
            if x._version == version:  # of fakes in lists PyTorch does not count the writes
                torch.autograd.graph.increment_version(x)
        if extents and extents != self.extents(kwargs["out"]):
            graph_break("BZ1010", f"{name} changes the shape of a tensor that comes from outside")
        if self.mode.env is not None:
            unbacked.note_checks(self)
        if plain:
            require_known(self.graph, plain)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            if wants:
                self.t.done.make_leaf(result)
            elif not torch.is_grad_enabled():
                ask_for_base(self.t.outside, result)
        return self._noted(func, name, *noted, result)

    def _foreseen(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer of a call that fakes need not be asked for, or MISSING; those that cannot be noted break the graph."""
        values = (*args, *kwargs.values()) if kwargs else args
        if not overloads.ORDINARY.issuperset(map(type, values)):  # of every call that is recorded: quick
            answer = overloads.answer(self.t, func, values, args, kwargs)
            if answer is not MISSING:
                return answer
            if type(func) is not types.FunctionType or is_pytorchs(func):
                refuse_asked(values)
        if self.t.outside.unfaked:
            refuse_unfaked(self.t.outside, values)
        if name in DATA and args and isinstance(args[0], torch.Tensor):
            return self.read(name, args[0])
        if name == "detach_" and args and isinstance(args[0], torch.Tensor):
            if not (tensor_facts.is_given_whole(self.t.outside, args[0]) or self.mode.exact_views):
                raise ViewsMatter
        if kwargs and kwargs.get("out") is not None:
            raise_refusal(func, name, args, kwargs)
            if probe.may_refuse_out(self.mode.call, func, args, kwargs):
                graph_break("BZ1010", f"{name} may refuse an out= of another type than its result's")
        return MISSING

    def _noted(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """The result of a call, which is noted if it gives tensors or is made for its effect."""
        if holds_tensor(result):
            return self.note(func, args, kwargs, result)
        # `x[i] = v` and its like give nothing and yet write or check; an operator of a library without a result is called for its effect
        if result is None and (name in WRITES or name.endswith("_") or isinstance(func, OPERATORS)):
            self.note(func, args, kwargs, None)
        elif isinstance(result, torch.ScriptObject):
            graph_break("BZ1013", f"{name} gives an object of C++ that a graph cannot hold")
        return result

    def _raise_eagers(
        self, failed: list[Exception], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NoReturn:
        """Raise what eager does for a call that fakes have refused, with the one error of ``failed``, which nobody holds then."""
        error = failed.pop()
        error.__context__ = None  # what fakes were at when they failed is no context of the program's error
        name = getattr(func, "__name__", "")
        # what would be tried is no view, of which alone that is refused
        eager = error if name == "detach_" else probe.tried(func, args, kwargs)
        if eager is True:
            graph_break("BZ1013", f"{name} is refused on fake tensors alone: {error}")
        errors = [eager if isinstance(eager, Exception) else error]
        del eager, error
        raise_alone(errors, args, kwargs)

    def read(self, name: str, tensor: torch.Tensor) -> Any:
        """What a tensor holds, as a number that the trace knows or as a symbol."""
        number = constant_evaluation.read(self, name, tensor)
        if number is MISSING:
            number = unbacked.read(self, name, tensor)
        if number is MISSING:
            refuse_data(name)
        return number

    def answer_otherwise(
        self, error: Exception, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a call that failed on fakes gives in another way; MISSING where the error is the program's own."""
        if isinstance(error, DataDependentOutputException):
            result = constant_evaluation.call_with_numbers(self, func, args, kwargs)
            if result is not MISSING:
                return result
        if unbacked.may_be_carried(self, error):
            return self.call(func, args, kwargs)
        if is_undecided(error) and not self.oblivious:
            return self.call_obliviously(func, args, kwargs)
        translate(self, error, getattr(func, "__name__", ""))
        return MISSING

    def call_obliviously(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As :meth:`call`, for an operator that asks whether a size is 0 or 1 that only the data tell."""
        self.oblivious = True
        try:
            with size_oblivious(self.mode.env):
                return self.call(func, args, kwargs)
        finally:
            self.oblivious = False

    def extents(self, out: Any) -> list[Any]:
        """The sizes and strides of outside tensors among those that are written."""
        written = out if isinstance(out, (tuple, list)) else (out,)
        return [(t.shape, t.stride()) for t in written if self.t.outside.tree.node_of(t) is not None]

    def note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Add the call's node; results that are known objects keep their nodes."""
        if type(func) is types.FunctionType and not is_pytorchs(func):
            refuse_classes((*args, *kwargs.values()))
        op, target, args = as_target(func, args)
        fx_args = tuple([self.argument(a) for a in args])
        fx_kwargs = {k: self.argument(v) for k, v in kwargs.items()} if kwargs else {}
        node = self.add_node(op, target, fx_args, fx_kwargs)
        node.meta["val"] = result
        self.calls += 1
        step = self.t.frames.recorded_at = self.t.frames.steps
        note_place(node, self.t.frames.here(), step)
        self.spread(node, result)
        if self.mode.env is not None:
            unbacked.claim(self, node, result)
            unbacked.note_checks(self)
        return result

    def add_node(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.Node:
        """A node of the graph."""
        name = node_name(target if isinstance(target, str) else target.__name__)
        return torch_nodes.add_call(self.graph, op, target, args, kwargs, name)

    def spread(self, node: torch.fx.Node, result: Any) -> None:
        """Bind a result, or each tensor of a tuple of results by ``getitem``."""
        if isinstance(result, torch.Tensor):
            if result.layout is not torch.strided:
                graph_break("BZ1013", f"{node.target} gives a tensor of layout {result.layout}")
            if is_of_transform(result):
                graph_break("BZ1013", f"{node.target} gives a tensor of a function's transform")
            self.bind(result, node)
        elif isinstance(result, tuple | list):
            for index, item in enumerate(result):
                if isinstance(item, torch.Tensor | list | tuple) and holds_tensor(item):
                    part = self.add_node("call_function", operator.getitem, (node, index), {})
                    part.meta["val"] = item
                    set_facts(part, place=facts(node).place)
                    self.spread(part, item)


def asks_for_gradient(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call may give a tensor that requires a gradient and has no history.

    A view made without gradients requires one as soon as its base does, but is a leaf of its own only from such a call on.
    """
    if name == "requires_grad_":
        return wanted_gradient(args, kwargs) is not False and (
            not args[0].requires_grad or (args[0].is_leaf and args[0]._base is not None)
        )
    return bool(kwargs) and kwargs.get("requires_grad") is True


def wanted_gradient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``requires_grad_`` is asked for."""
    return args[1] if len(args) > 1 else kwargs.get("requires_grad", True)


def written_in_list(name: str, args: tuple[Any, ...]) -> list[tuple[torch.Tensor, int]]:
    """The tensors that ``_foreach_add_`` and its like write, with how often they have been written before."""
    if not (name.endswith("_") and args and isinstance(args[0], (list, tuple))):
        return []
    return [(x, x._version) for x in args[0] if isinstance(x, torch.Tensor) and not x.is_inference()]


def number_of(value: np.generic) -> Any:
    """What PyTorch takes a number of numpy's for that is an argument: one that is neither whole nor a number of Python's is a float, truth values too."""
    if isinstance(value, np.number | np.bool_) and not isinstance(value, np.integer | complex):
        return float(value.real)
    return value.item()


def class_argument(value: type) -> Any:
    """What a class stands for as an argument of PyTorch's: the code of a graph has no word for classes."""
    if type(value) is type(torch.FloatTensor):
        return f"{value.__module__}.{value.__name__}"
    if value not in DTYPES:
        refuse_classes((value,))
    return DTYPES[value]


def refuse_classes(values: tuple[Any, ...]) -> None:
    """Break where a class is an argument: to a function of the program even ``float`` is no dtype."""
    for value in values:
        if isinstance(value, type):
            graph_break("BZ1013", f"the class {value.__qualname__} is an argument, which a graph cannot hold")


class RecordingMode(TorchFunctionMode):
    """On while C code that may compute with tensors runs."""

    def __init__(self, recorder: Recording) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return native.unhooked(self.record, func, args, kwargs or {})

    def record(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Out of the hook's sight: note the call, or read the metadata."""
        owner: Any = getattr(func, "__self__", None)  # of an attribute's reader, as Tensor.shape.__get__
        field = owner.__name__ if type(owner) is types.GetSetDescriptorType else ""
        if field in METADATA:
            with disable_functions():
                return func(*args, **kwargs)
        if field in tensor_facts.FIELDS:
            return tensor_facts.field(self.recorder.t, args[0], field)
        if getattr(func, "__name__", "") in tensor_facts.METHODS:
            return tensor_facts.query(self.recorder.t, func, args, kwargs)
        return self.recorder.call(func, args, kwargs)


OURS.add(RecordingMode.__torch_function__.__code__)

PLAIN_ARGUMENTS = frozenset(
    {
        int,
        float,
        bool,
        str,
        type(None),
        complex,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        type(...),
    }
)


@functools.cache
def node_name(target: str) -> str:
    """What a node is named after its function: ``__add__`` gives ``add``, ``softMax`` gives ``soft_max``."""
    if target.startswith("__") and target.endswith("__"):
        target = target[2:-2]
    return _INNER_CAPITAL.sub(r"_\1", target).lower()


_INNER_CAPITAL = re.compile("(?<=[a-z])([A-Z])")


METADATA = frozenset(
    words(
        """shape dtype device ndim requires_grad layout is_cuda is_cpu is_sparse is_quantized
    is_meta is_mkldnn is_nested is_mps is_xpu is_xla is_vulkan is_ort is_ipu is_hpu is_mtia is_maia
    itemsize nbytes name names is_sparse_csr"""
    )
)


def holds_tensor(value: Any) -> bool:
    """Whether a result is or holds a tensor."""
    return bool(every(torch.Tensor, value))


def as_target(func: Any, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """(FX op, target, arguments) for a torch function."""
    kind, name = type(func), getattr(func, "__name__", "")
    if func is torch.Tensor.new and len(args) == 2 and type(args[1]) is torch.Size:
        return "call_method", "new_empty", args  # a graph holds tuples alone, which `new` takes for elements
    if kind is types.MethodDescriptorType or kind is types.WrapperDescriptorType:
        return "call_method", name, args
    if kind is types.MethodWrapperType and type(func.__self__) is types.GetSetDescriptorType:
        if func.__name__ == "__get__":
            return "call_function", getattr, (args[0], func.__self__.__name__)
        return "call_function", setattr, (args[0], func.__self__.__name__, args[1])
    method = kind is types.FunctionType and vars(torch.Tensor).get(name) is func
    return ("call_method", name, args) if method else ("call_function", func, args)


def refuse_unfaked(outside: Outside, values: Any) -> None:
    """Break where a tensor is used that no fake can stand for."""
    for value in values:
        found = outside.unfaked.get(id(value))
        if found is not None and found[0] is value:
            graph_break("BZ1011", found[1])
        if isinstance(value, list | tuple):
            refuse_unfaked(outside, value)


def raise_refusal(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what eager raises for a call that works on fakes, if it does."""
    refused = refusal(func, name, args, kwargs)
    if refused is not None:
        raise_alone([refused], args, kwargs)


def raise_alone(errors: list[Exception], args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
    """Raise the error of a list for such arguments; what its text tells of sizes that change is guarded.

    No frame of its traceback holds it then: it would keep the trace, and what the call holds, alive.
    """
    for number in probe.numbers_told(errors[0], args, kwargs):
        int(number)
    raise errors.pop()


def refuse_data(name: str) -> None:
    """Break at something that needs what is in a tensor."""
    if name in ("__bool__", "is_nonzero", "__contains__"):
        graph_break(*DECIDED_BY_DATA, HINT_DATA)
    if name in ("__repr__", "__str__", "__format__"):
        graph_break("BZ1007", "a tensor is printed or formatted", HINT_FORMAT)
    hints = [unbacked.HINT_SCALARS] if name in unbacked.READERS or name == "tolist" else []
    graph_break("BZ1004", f"Tensor.{name} reads what a tensor holds", "keep the value in a tensor", *hints)


#: what says that there is no way for fakes
CANNOT_RUN_ON_FAKES = (
    UnsupportedOperatorException, UnsupportedFakeTensorException, Unsupported, NotImplementedError,
)  # fmt: skip


def translate(recorder: Recorder, error: Exception, name: str) -> None:
    """Break where an op cannot run on metadata alone; anything else is the user's error."""
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        hint = (
            unbacked.HINT_SCALARS if isinstance(error, DataDependentOutputException) else unbacked.HINT_SHAPES
        )
        graph_break("BZ1013", f"the result of {name} depends on what its inputs hold", HINT_DATA, hint)
    signal = unbacked.undecided(recorder.t.graph, error)
    if signal is not None:
        raise signal
    if type(error) in CANNOT_RUN_ON_FAKES or "no fake impl" in str(error):
        graph_break("BZ1013", f"{name} cannot run on fake tensors: {error}")


_NO_LETTER = re.compile(r"\W")
_TABLES = frozenset(["_parameters", "_modules", "_buffers"])
#: read once: until Python 3.12 each look-up of a member runs Python code of its enumeration
_LOCAL = Step.LOCAL


def readable(place: Any, names: tuple[str, ...]) -> str:
    """A graph-input name from where it comes from."""
    parts: list[str] = []
    at = place
    while at is not None:
        key = at.key
        if type(key) is str:
            if key not in _TABLES:
                parts.append(key)
        elif at.step is _LOCAL:
            parts.append(names[key])
        elif isinstance(key, str | int):
            parts.append(str(key))
        at = at.parent
    del parts[8:]
    text = _NO_LETTER.sub("_", "_".join(reversed(parts)) or "input").lower()
    if text == "self":
        return "self_"  # to FX an argument of that name is the module
    return text if text[0].isalpha() else f"arg_{text}"


# -- views of what gets a history later: ``row = whole[1]; whole.mul_(w)`` gives ``row`` one too.
#
# What is remembered of a call's metadata makes views that autograd knows nothing of, which is faster and mostly does no harm. Where a write then
# gives a history to memory of which there are views, the frame is traced again with views that are autograd's own.


class ViewsMatter(BaseException):
    """Trace again, each view being one for autograd. Not an Exception: no handler of the user's may see it."""


def ask_for_base(outside: Outside, view: torch.Tensor) -> None:
    """A view that is made without gradients requires one where its base does: that of a leaf, where the leaf is itself a view, may not.

    The fake of a leaf has no base.
    """
    if not outside.settings.start["grad"]:
        return  # in a call without gradients nothing is made of it that would have a history
    memory = storage_key(view)
    for node in outside.tree.inputs:
        real = node.real
        if not isinstance(real, torch.Tensor) or not (real.requires_grad and real.is_leaf):
            continue
        if storage_key(node.value) == memory:
            if real._base is not None:
                graph_break("BZ1010", "a view, made without gradients, of a leaf that is itself a view")
            outside.read(node, Step.ATTR, "_base", None)


def without_history(args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors to which a call may give a history, where gradients are on and views are not autograd's own."""
    return [x for x in every(torch.Tensor, (*args, *kwargs.values())) if not x.requires_grad]


def require_known(graph: torch.fx.Graph, before: list[torch.Tensor]) -> None:
    """Trace again if a tensor has got a history that a view of it knows nothing of."""
    changed = {storage_key(x) for x in before if x.requires_grad}
    if not changed:
        return
    for node in graph.nodes:
        for x in every(torch.Tensor, node.meta.get("val")):
            if storage_key(x) in changed and not x.requires_grad:
                raise ViewsMatter
