"""The dispatch mode that writes down the ATen operators of a graph that runs on fakes, below autograd.

An operator with a decomposition (``ctx``'s own first, then ours) is traced through it; composite operators are traced
through PyTorch's composition unless listed in ``structural.KEPT``. Mutation is recorded as it is; ``functionalize`` removes it.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from braze.aot.facts import memory_order, unbacked
from braze.aot.facts.symbols import SymbolNodes
from braze.aot.facts.views import hints, is_empty, is_without_memory, place
from braze.aot.facts.ways import DATA, UNCOUNTED, Ways, counts_from_start
from braze.aot.facts.writes import called_as_it_is, each_of, told_apart, written_arguments
from braze.aot.passes import attention
from braze.aot.trace import control_flow, derivatives, structural
from braze.aot.trace.floats_of_c import FloatsOfC
from braze.aot.trace.foreach import count_writes, loop_of
from braze.aot.trace.number_places import NumberPlaces
from braze.graph.calls.checkpoints import Policy
from braze.graph.fakes import kernels, own_memory
from braze.graph.fakes.fakes import FakeMode, same, text_of
from braze.graph.nodes.facts import facts, set_facts, told
from braze.graph.nodes.printer import describe
from braze.graph.operators.operators import functional_form, tags_of
from braze.graph.private import torch_compat, torch_nodes, torch_symbols
from braze.support.errors import Origin, Unsupported
from braze.support.log import warn_once
from braze.support.nested import every

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_SIZES = aten.size.default


class Recorder(TorchDispatchMode):
    """Writes each ATen operator that reaches it into a graph.

    ``leaves`` are what gradients are asked of: per input its fake as autograd first sees it, or None.
    """

    def __init__(
        self,
        mode: FakeMode,
        decompositions: Mapping[OpOverload, Callable[..., Any]],
        *,
        differentiable: bool = False,
    ) -> None:
        super().__init__()
        self.differentiable = differentiable
        self.leaves: list[Any] = []
        #: per input, the autograd node it came with
        self.histories: list[Any] = []
        self.mode = mode
        self.decompositions = decompositions
        self.graph = torch.fx.Graph()
        self.constants: dict[str, Any] = {}
        self.origin: Origin | None = None
        #: whether the program itself calls ``as_strided``: its offsets count from where the memory starts
        self.windows = False
        #: (memory, origin) of views whose shape was changed in place
        self.turned: list[tuple[int, Origin | None]] = []
        #: whether PyTorch's derivative formulas run, and not the program
        self.in_backward = False
        #: autograd's operations -> the bits of the tangents that lead there
        self.coming: dict[Any, int] = {}
        #: the checkpointed region that is traced: its nodes know the number
        self.region: int | None = None
        #: which of its values are kept; nodes know the answer
        self.policy: Policy | None = None
        #: the device types for which autocast is on
        self.casting: tuple[str, ...] = ()
        self.symbols = SymbolNodes(self.graph)
        self.number_places = NumberPlaces(self.graph, self.argument)
        self.floats_of_c = FloatsOfC(mode, self.computed)
        #: whether masks of attention are made such that PyTorch takes a fused kernel; constants that were found in them
        self.fuses_attention = False
        self.constant_masks: dict[torch.fx.Node, torch.Tensor | None] = {}
        #: whether what runs stands for an operator that does not tell of its writes: autograd counts none
        self.uncounted = False
        #: operators for which the program has kernels
        self.kernels = kernels.called()
        self.ways = Ways()  # how views came to be
        self.ways.watched = differentiable
        self._moved: dict[int, Any] = {}  # memory -> where in eager's what lies at its start begins
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._fresh: set[int] = set()  # ids of what the captured call that runs has made so far
        self._knowing: list[dict[str, Any]] = []  # fields of the fakes that know their nodes

    def know(self, fake: Any, node: torch.fx.Node) -> torch.fx.Node:
        """From here on ``node`` stands for ``fake`` where the graph uses it."""
        fake.__dict__["_node"] = node
        self._knowing.append(fake.__dict__)
        return node

    def close(self) -> None:
        """Cut fakes off from the graph: autograd holds some where the garbage collector does not see it."""
        for fields in self._knowing:
            fields.pop("_node", None)

    def _refused(self, code: str, what: str) -> Unsupported:
        """That the graph cannot be carried, because of the program's line that runs."""
        return Unsupported(code, what, origin=self.origin)

    def begin(self, node: torch.fx.Node) -> None:
        """A captured node is about to run."""
        self.origin = facts(node).origin
        self.windows = "as_strided" in str(getattr(node.target, "__name__", node.target))
        self._fresh.clear()

    # -- inputs ------------------------------------------------------------------------------

    def input(self, captured: torch.fx.Node, example: Any) -> Any:
        """A placeholder like the captured one; the value to trace with."""
        node = self.graph.placeholder(captured.name)
        known = facts(captured)
        set_facts(node, role=known.role, source=known.source, origin=known.origin, inference=known.inference)
        set_facts(node, written_after=known.written_after, moved_after=known.moved_after)
        if isinstance(example, torch.Tensor):
            grad = told(known.requires_grad, example.requires_grad)
            example = self._input_tensor(
                captured, example if isinstance(example, FakeTensor) else self.mode.fake(example)
            )
            self.know(example, node)
            if grad:
                self.ways.graded.add(id(example))
            self.histories.append(example.grad_fn)
        else:
            self.leaves.append(None)
            self.histories.append(None)
        node.meta["val"] = example
        # a float that is guarded by value is no symbol, nor is a size that is made of it
        return self.mode.settled_float(example) if isinstance(example, torch.SymFloat) else example

    def _input_tensor(self, captured: torch.fx.Node, fake: Any) -> Any:
        """The fake to trace with; what requires grad is a leaf, or a copy of one where it is the result of others."""
        grad = self.differentiable and told(facts(captured).requires_grad, fake.requires_grad)
        alias = self._alias(fake)
        if not grad:
            self.leaves.append(None)
            return alias
        alias.requires_grad_()
        self.leaves.append(alias)
        if told(facts(captured).leaf, fake.is_leaf):
            return alias
        with torch.enable_grad():
            copy = alias.clone()
            # a clone closes the gaps of a window, gives what is expanded memory for each element, and begins at 0
            return copy if place(copy) == place(alias) else same(alias)

    def _alias(self, fake: Any) -> Any:
        """A fake over the same memory that in-place changes of metadata do not reach; without grad."""
        with torch_compat.outside_modes():
            meta = torch_compat.empty_like_inference(fake)
            meta.set_(fake.untyped_storage(), fake.storage_offset(), fake.shape, fake.stride())
            return torch_compat.assemble_fake(
                self.mode.dispatch, meta, torch_compat.device_of_fake(fake), False
            )

    # -- operators ---------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return torch_compat.device_of_fake(args[0])
        if func is _SIZES:  # C++ that knows no symbols: it fixes these sizes
            return tuple(int(n) for n in args[0].shape)
        result = self._dispatched(func, args, kwargs or {})
        if not self.in_backward:  # derivative formulas use numbers of the program, which are checked
            given = self.floats_of_c.symbols(args, kwargs or {})
            self.number_places.require(func, *given, result, self.origin)
        return result

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.namespace == "prim":  # other questions about metadata
            return func(*args, **kwargs)
        # autograd's alone: nothing is written, and it counts as no write; but an input's history is the caller's
        if func is aten.detach_.default and id(args[0]) not in self.ways.graded:
            return args[0]
        if self.kernels:
            return self._beside_kernels(func, args, kwargs)
        if self.in_backward and (own := derivatives.rule(func, args)) is not None:
            with self:
                return self.floats_of_c.called(own, args, kwargs)
        if structural.gives_back(func, args):
            func, args, kwargs = aten.alias.default, args[:1], {}
        if self.policy is not None and func not in structural.ALIASES and not structural.is_composite(func):
            return self._under_policy(self.policy, func, args, kwargs)
        loop = loop_of(func)
        composite = func not in structural.KEPT and structural.is_composite(func)
        rule = self.decompositions.get(func) if torch.Tag.dynamic_output_shape not in tags_of(func) else None
        if (rule := rule or loop) is not None:
            with self, self._casting(composite), self.number_places.of_parts(composite or loop is not None):
                result = self._decomposed(func, rule, args, kwargs)
            if result is not NotImplemented and func not in structural.STRUCTURAL and loop is None:
                result = self._as_eager(func, args, kwargs, result)
            elif type(result) is list:
                self._note_views(func, args, kwargs, result)  # of one operator, not of many
            if result is not NotImplemented:
                return result
        if composite or self._is_chosen_now(func, args, kwargs):
            with self._casting(composite):
                result = self._composed(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if func in memory_order.FACTORED:
            with self:
                args = (memory_order.laid_out(args[0]), *args[1:])
        return self.emit(func, args, kwargs)

    def _casting(self, composite: bool) -> contextlib.AbstractContextManager[None]:
        """Where autocast, which is off below dispatch modes, is on for the parts of a composite operator, as in eager."""
        return torch_compat.casting_on(self.casting) if composite else contextlib.nullcontext()

    def _is_chosen_now(self, func: Any, args: Any, kwargs: Any) -> bool:
        attends = func is aten.scaled_dot_product_attention.default
        return attends and attention.is_chosen_now(args, kwargs, self.constant_masks)

    def _composed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A composite operator's result, by what PyTorch makes it of; in memory of its own where the CPU has a kernel besides."""
        with self:
            result = func.decompose(*args, **kwargs)
        if own_memory.apart(func, args, kwargs, result) is not result:
            return self.emit(aten.clone.default, (result,), {})
        return result

    def _beside_kernels(self, func: Any, args: Any, kwargs: Any) -> Any:
        """As ever, where the program has kernels of its own for some operators: what eager calls, and only that, is called.

        PyTorch's compositions are followed to where they meet one; an operator that ours are made of meets none.
        """
        if func in self.kernels:
            if any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
                raise self._refused("BZ2032", f"{func}, a view, for which the program has a kernel")
            return self.emit(func if func._schema.is_mutable else called_as_it_is(func), args, kwargs)
        if structural.is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        own, self.kernels = self.kernels, frozenset()
        try:
            return self._dispatched(func, args, kwargs)
        finally:
            self.kernels = own

    def _under_policy(self, policy: Policy, func: Any, args: Any, kwargs: Any) -> Any:
        """An operator of a checkpointed region, and what becomes of its results; parts of it are the region's as usual."""
        self.policy = None
        try:
            result = self._dispatched(func, args, kwargs)
            found = policy.of(func, args, kwargs)
        finally:
            self.policy = policy
        for part in result if isinstance(result, (tuple, list)) else (result,):
            node = part.__dict__.get("_node") if isinstance(part, torch.Tensor) else None
            if node is not None and facts(node).checkpoint == self.region and facts(node).policy is None:
                set_facts(node, policy=found)
        return result

    def _decomposed(self, func: Any, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a decomposition gives; NotImplemented where it would have to know a size that only the data tell."""
        before, self.uncounted = self.uncounted, self.uncounted or not structural.counts_writes(func)
        try:
            return self.floats_of_c.called(rule, args, kwargs)
        except RuntimeError as error:
            if not torch_symbols.is_undecided(error):
                raise
            return NotImplemented
        finally:
            self.uncounted = before

    def _as_eager(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """A decomposition's result with the strides of the operator's own, which views further on may count on.

        What is a view of an argument, where the operator's own result is not, is copied. NotImplemented where
        the result is another one than the operator's.
        """
        want = self.mode.run(func, self._constants_faked(args), kwargs)
        pairs = [(result, want)] if isinstance(want, torch.Tensor) else list(zip(result, want, strict=True))
        for have, w in pairs:
            if have is None or not isinstance(w, torch.Tensor):  # a gradient that was not asked for
                continue
            typed = have.dtype is w.dtype or func in structural.MIXED_NORMS
            if not typed or have.shape != w.shape:
                warn_once(
                    ("BZ9022", func),
                    f"BZ9022: the decomposition of {func} gives {describe(have)}, not {describe(w)}: it stays whole",
                )
                return NotImplemented
        given = set(map(torch_compat.storage_key, every(torch.Tensor, (args, kwargs))))
        made = tuple(self._restrided(have, w, given) for have, w in pairs)
        if not structural.is_composite(func):
            self.ways.note_wholes(made, given)
        return made[0] if isinstance(want, torch.Tensor) else made

    def _restrided(self, have: Any, want: Any, given: set[int]) -> Any:
        if not isinstance(have, torch.Tensor):
            return have
        if torch_compat.storage_key(have) in given and torch_compat.storage_key(want) not in given:
            have = self.emit(aten.clone.default, (have,), {})
        sides = list(zip(*map(hints, (have.shape, have.stride(), want.stride())), strict=True))
        if is_empty(have) or is_empty(want) or all(n == 1 or a == b for n, a, b in sides):
            # of dims of one element the graph need not move anything
            if any(a != b for _, a, b in sides) and torch_compat.storage_key(have) not in given:
                self.mode.run(aten.as_strided_.default, (have, have.shape, want.stride()), {})
            return have
        if want.is_contiguous():
            return self.emit(aten.clone.default, (have,), {"memory_format": torch.contiguous_format})
        options = {"dtype": have.dtype, "device": have.device}
        empty = self.emit(aten.empty_strided.default, (list(want.shape), list(want.stride())), options)
        return self.emit(aten.copy.default, (empty, have), {})

    def emit(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator on the fakes and record it."""
        if func is aten.lift_fresh.default and type(args[0]) is not FakeTensor:
            return self._literal(args[0])
        args = self._constants_faked(args)
        if kwargs:
            kwargs = dict(zip(kwargs, self._constants_faked(tuple(kwargs.values())), strict=True))
        if func in structural.ALIASES:
            return self._rebound(func, args)
        if func is aten.copy_.default and not isinstance(args[1], torch.Tensor):
            args = args[0], self._of_number(args[1], args[0].device), *args[2:]
        if torch.Tag.inplace_view in tags_of(func):
            return self._inplace_view(func, args, kwargs)
        of = args[0] if args else None
        if counts_from_start(func, args[1:], kwargs):
            if self.windows:  # of all the memory, but autograd knows of the tensor that it was called on
                args, kwargs = self._counted(args[0], args[1:], kwargs)
            else:
                args, kwargs = self._from_own_start(args, kwargs)
        if kwargs and func._schema.is_mutable:
            if (kwargs := structural.reduced_in_type_of_out(func, args, kwargs)) is None:
                raise self._refused("BZ2009", f"{func}, whose out= has another type")
            without = any(map(is_without_memory, kwargs.values()))
            if without and (made := self._outs_made(func, args, kwargs)) is not None:
                return made
        if self.mode.env is not None:
            unbacked.forget(args)
        if torch.Tag.nondeterministic_seeded in tags_of(func):
            control_flow.refuse_second_draw(self.origin)
        shapes = [tuple(v.shape) for v in kwargs.values() if isinstance(v, torch.Tensor)]
        result = self.mode.run(func, args, kwargs)
        if isinstance(result, torch.Tensor) and "_node" in result.__dict__ and not func._schema.is_mutable:
            return result  # an argument given back
        if shapes != [tuple(v.shape) for v in kwargs.values() if isinstance(v, torch.Tensor)]:
            raise self._refused("BZ2009", f"{func}, whose out= has another shape")
        result = self._from_start(args, result)
        words = {name: self.argument(value) for name, value in kwargs.items()}
        node = torch_nodes.operator_call(self.graph, func, tuple(map(self.argument, args)), words)
        unseen = structural.hides_writes(func, args, self.uncounted)
        set_facts(node, origin=self.origin, unversioned=unseen)
        self._bind(node, result)
        if func._schema.is_mutable:
            for written in written_arguments(node):
                self.ways.note_written(written.meta["val"])
            count_writes(func, args)
        else:
            self._note_views(func, (of, *args[1:]), kwargs, result)
        return result

    def _from_start(self, args: Any, result: Any) -> Any:
        """A result that eager lets begin within its memory begins at the start of ours."""
        moved = own_memory.from_start(args, result)
        if moved is not result:
            self._moved[torch_compat.storage_key(moved)] = result.storage_offset()
        return moved

    def _counted(self, value: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of ``as_strided`` over the memory of a value, which may begin elsewhere than eager's does."""
        size, stride, *rest = args
        start = rest[0] if rest else kwargs["storage_offset"]
        whole, moved = self.ways.window_of(value), self._moved.get(torch_compat.storage_key(value))
        if whole is None or (moved is not None and (start < moved or whole is not self.ways.memory(value))):
            raise self._refused("BZ2014", "an as_strided view of memory that a graph has in another form")
        return (whole, size, stride, start if moved is None else start - moved), {}

    def _from_own_start(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """``as_strided`` that an operator is made of: where its tensor begins in memory is not the same in each call."""
        x, size, stride = args[:3]
        start = args[3] if len(args) > 3 else kwargs["storage_offset"]
        if text_of(start) == text_of(x.storage_offset()):
            return (x, size, stride), {}
        # a tangent that autograd has not come to yet has no value; nothing is made of it so far
        given = (node.meta.get("val") for node in self.graph.find_nodes(op="placeholder"))
        key = torch_compat.storage_key(x)
        if any(isinstance(value, torch.Tensor) and torch_compat.storage_key(value) == key for value in given):
            raise self._refused(
                "BZ2031", "an operator that reaches into an input's memory by its place there"
            )
        return args, kwargs

    def _note_views(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Remember the step by which views of the first argument were made."""
        if not args or type(args[0]) is not FakeTensor:
            return
        key = torch_compat.storage_key(args[0])
        whole = isinstance(result, torch.Tensor)
        for i, part in enumerate((result,) if whole else result if isinstance(result, (tuple, list)) else ()):
            if isinstance(part, torch.Tensor) and torch_compat.storage_key(part) == key:
                self.ways.note(part, args[0], func, args[1:], kwargs, -1 if whole else i)
                if func in UNCOUNTED:
                    set_facts(part.__dict__["_node"], unversioned=True)

    def _of_number(self, value: Any, device: torch.device) -> Any:
        """A tensor of a number, as ``copy_`` makes one: of the widest type of its kind."""
        kinds = {bool: torch.bool, int: torch.int64, torch.SymInt: torch.int64, complex: torch.complex128}
        dtype = kinds.get(type(value), torch.float64)
        return self.emit(aten.full.default, ([], value), {"dtype": dtype, "device": device})

    def computed(self, function: Any, args: tuple[Any, ...], value: Any) -> torch.SymFloat | float:
        """Arithmetic on floats as captured: its value is what a node computes, no formula."""
        settled = self.mode.settled_float(value)
        if type(settled) is float:
            return settled
        made = self.graph.create_node("call_function", function, tuple(map(self.argument, args)), {})
        set_facts(made, origin=self.origin)
        self._bind(made, value)
        # also in a graph without tensors, whose mode knows of no symbols
        self.symbols.bind(value, made)
        return value  # type: ignore[no-any-return]

    def _bind(self, node: torch.fx.Node, result: Any) -> None:
        """Let later uses of ``result`` refer to ``node``."""
        node.meta["val"] = result
        if self.region is not None:
            set_facts(node, checkpoint=self.region)
        if self.coming:
            set_facts(node, tangents=self._leading_to(node))
        if isinstance(result, torch.Tensor):
            if "_node" not in result.__dict__:
                self.know(result, node)
                self._fresh.add(id(result))
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                if isinstance(part, torch.Tensor) and "_node" not in part.__dict__:
                    item = self.graph.call_function(operator.getitem, (node, i))
                    item.meta["val"] = part
                    set_facts(item, origin=self.origin)
                    self.know(part, item)
        if self.mode.env is not None:
            for part in result if isinstance(result, (tuple, list)) else (result,):
                self.symbols.note(part.__dict__["_node"] if isinstance(part, torch.Tensor) else node, part)

    def _leading_to(self, node: torch.fx.Node) -> int:
        """The bits of the tangents that lead to the derivative being taken; between two (a cast), of what is read."""
        bits = self.coming.get(torch_compat.running_backward(), 0)
        return bits or functools.reduce(operator.or_, (facts(n).tangents for n in node.all_input_nodes), 0)

    def argument(self, value: Any) -> Any:
        """The FX argument that stands for a value."""
        kind = type(value)
        if kind is float and (symbol := self.floats_of_c.symbol(value)) is not value:
            return self.symbols.node(symbol)
        if kind is FakeTensor:
            node = value.__dict__.get("_node")
            if node is None:
                raise self._refused("BZ2008", "a fake tensor that the trace did not make")
            return node
        if kind is tuple or kind is list or kind is torch.Size:
            parts = map(self.argument, value)
            return tuple(parts) if kind is tuple else list(parts)
        if kind is torch.SymInt or kind is torch.SymFloat or kind is torch.SymBool:
            return self.symbols.node(value)
        return self.argument(self.attribute(value)) if isinstance(value, torch.Tensor) else value

    # -- special operators -------------------------------------------------------------------

    def _rebound(self, func: Any, args: Any) -> Any:
        """A new fake over the same memory, known by the same node."""
        alias, node = self._alias(args[0]), args[0].__dict__["_node"]
        if self._is_handed_out(func, args[0], node):
            node.meta["val"] = alias
        else:
            self.ways.note(alias, args[0], func)
        self.know(alias, node)
        return alias

    def _is_handed_out(self, func: Any, made: Any, node: torch.fx.Node) -> bool:
        """Whether ``torch.empty`` and its like give what they made to the program: as a new object, since we hold theirs. That is no step of the program's."""
        fresh = id(made) in self._fresh and node.meta["val"] is made
        return fresh and func is aten.detach.default and not made.requires_grad and self.ways.is_alone(made)

    def _inplace_view(self, func: Any, args: Any, kwargs: Any) -> Any:
        """``x.t_()``: x becomes a view of what it was; the old node keeps the old metadata."""
        target = args[0]
        functional = structural.functional_of_inplace_view(func)
        if functional is None:
            raise self._refused("BZ2009", f"{func}, which changes what memory a tensor has")
        if target.__dict__["_node"].op == "placeholder":
            raise self._refused("BZ2009", f"{func} on an input of the graph")
        if target.requires_grad and not torch.is_grad_enabled():  # which cuts it off from what it came of
            raise self._refused("BZ2009", f"{func} on a tensor with a history, without gradients")
        # autograd would count them of what it becomes
        if target.requires_grad and self.ways.views_of(target):
            raise self._refused("BZ2009", f"{func} on a tensor of which there are views")
        if target._is_view():
            self.turned.append((torch_compat.storage_key(target), self.origin))
        before = self._as_it_was(target)
        after = self.emit(functional, (before, *args[1:]), kwargs)
        func(*args, **kwargs)
        self.know(target, after.__dict__["_node"]).meta["val"] = target
        self.ways.note_changed(target, before, after)
        return target

    def _as_it_was(self, target: Any, *, memory: bool = True) -> Any:
        """What stands for a tensor as it is so far, to the graph too: the tensor is about to become another; in its ``memory``, which it keeps, or not."""
        before = self._alias(target) if memory else self.mode.run(aten.empty_like.default, (target,), {})
        self.know(before, target.__dict__["_node"])
        # what made it, and what has written it since; not what it is another name of (.data, detach)
        for old in [node for node in self.graph.nodes if node.meta.get("val") is target]:
            old.meta["val"] = before
            if old.target is operator.getitem:  # what several results came with holds them as they were, too
                made: Any = old.args[0]
                parts = [before if part is target else part for part in made.meta["val"]]
                made.meta["val"] = type(made.meta["val"])(parts)
        return before

    def _outs_made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """``out=`` of tensors that have no memory yet: they are from here on what the operator gives.

        None where they are of its shapes: such a write is like any other, and autograd counts it.
        """
        functional, (outs, others) = functional_form(func), told_apart(func, kwargs)
        like = each_of(self.mode.run(functional, args, others)) if functional is not None else ()
        if [hints(out.shape) for out in outs] == [hints(part.shape) for part in like]:
            return None
        made_here = all(o.__dict__["_node"].op == "call_function" and self.ways.is_alone(o) for o in outs)
        if functional is None or not made_here:
            raise self._refused("BZ2009", f"{func}, which gives a tensor memory")
        made = self.emit(functional, args, others)
        for out in outs:
            self._as_it_was(out, memory=False)
        result = self.mode.run(func, args, kwargs)
        for out, part in zip(outs, each_of(made), strict=True):
            if (out.dtype, out.shape, out.stride()) != (part.dtype, part.shape, part.stride()):
                raise self._refused("BZ2009", f"{func}, which gives a tensor memory")
            node = self.know(out, part.__dict__["_node"])
            node.meta["val"] = out
        return result

    def without_version(self, value: Any) -> Any:
        """``value.data``: the same memory, in which autograd counts no writes."""
        alias = self._alias(value)
        node = self.graph.call_function(aten.alias.default, (self.argument(value),))
        node.meta["val"] = alias
        set_facts(node, origin=self.origin, unversioned=True)
        self.know(alias, node)
        self.ways.note(alias, value, DATA)
        return alias

    def _constants_faked(self, args: Any) -> Any:
        """Arguments with fakes for real tensors, which become constants of the graph."""
        if all(type(a) is FakeTensor or not isinstance(a, (torch.Tensor, list, tuple)) for a in args):
            return args
        made: list[Any] = []
        for value in args:
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):
                value = self.attribute(value)
            elif type(value) in (list, tuple) and any(isinstance(v, torch.Tensor) for v in value):
                value = type(value)(self._constants_faked(tuple(value)))
            made.append(value)
        return tuple(made)

    def _literal(self, tensor: torch.Tensor) -> Any:
        """A tensor that the program spells out: made anew on each call."""
        with torch_compat.outside_modes():
            one_number = tensor.dim() == 0 and tensor.device.type == "cpu" and type(tensor) is torch.Tensor
            value = tensor.item() if one_number else None
        if one_number:
            return self.emit(aten.full.default, ([], value), {"dtype": tensor.dtype, "device": tensor.device})
        return self.emit(aten.clone.default, (tensor,), {})

    def attribute(self, tensor: torch.Tensor) -> Any:
        """The fake of a real tensor that the graph holds under a name."""
        if (found := self._known.get(id(tensor))) is not None:
            return found[1]
        if self.differentiable and tensor.requires_grad:
            raise self._refused("BZ2001", "a tensor that requires grad and is no input of the graph")
        name = f"constant_{len(self.constants)}"
        self.constants[name] = tensor
        node = self.graph.create_node("get_attr", name)
        fake = node.meta["val"] = self._alias(self.mode.fake(tensor))
        set_facts(node, origin=self.origin)
        self.know(fake, node)
        self._known[id(tensor)] = (tensor, fake)
        return fake
