"""Trace one frame: interpret its bytecode on fakes and shadows, and hand down what came out as a Capture."""

from __future__ import annotations

import builtins
import logging
import sys
import types
import weakref
from typing import Any

import torch

from braze.capture.facts.breaks import BreakSignal, Retry, Stopped, graph_break, skip_frame
from braze.capture.facts.frame import Decoded, Frame
from braze.capture.facts.libraries import is_library_function
from braze.capture.facts.marks import Named
from braze.capture.facts.records import Capture, Check, Draw, Step
from braze.capture.facts.values import (
    CONSTANTS,
    MISSING,
    NULL,
    Lookups,
    is_constant,
    is_identity_type,
    is_immutable,
)
from braze.capture.features import (
    class_bodies,
    control_flow,
    functions,
    hook_rules,
    library,
    namespaces,
    numpy_rules,
    rules,
    torch_objects,
    torch_rules,
    whole_transforms,
)
from braze.capture.finish import hooks, outcome, seeds
from braze.capture.graph import unbacked
from braze.capture.graph.marked_sizes import Marked
from braze.capture.graph.recorder import Recorder
from braze.capture.guards.dynamic import is_argument
from braze.capture.outside import reads
from braze.capture.outside.globals import Globals
from braze.capture.outside.shadows import DictShadow, instance_dict
from braze.capture.outside.sources import Node, Tree
from braze.capture.outside.torch_state import TorchState
from braze.capture.python import c_border, generators, idle, iteration, raised, tensors
from braze.capture.python.attributes import load_attr
from braze.capture.python.calls import GLOBAL_HOOKS, call
from braze.capture.python.interpret import run
from braze.capture.python.opcodes import decoded
from braze.capture.python.operations import get_item
from braze.graph import fakes
from braze.options import Options
from braze.support import trace
from braze.support.collector import collector_paused
from braze.support.errors import Origin, Unsupported

#: frames inlined into each other at most, and instructions in one trace
MAX_DEPTH = 160
MAX_STEPS = 20_000_000

#: rows of calls.RULES that importing this module has entered
RULES = (
    rules.RULES,
    torch_rules.SETTERS,
    functions.apply,
    control_flow.cond,
    whole_transforms.checkpoint,
    library.dispatch,
    numpy_rules.called,
    torch_objects.apply,
    class_bodies.build_class,
    hook_rules.remove,
    namespaces.globals_,
)

Symbolic = Any  # None | "all" | frozenset[(Source, dim)]


class Tracer:
    """The state of one trace: the frames, the tree of outside values, the graph.

    Its methods only say where each thing is done; handlers and rules get at their neighbours through them.
    """

    #: whether frames are being interpreted: a generator dropped later, or by :meth:`release`, runs nothing
    live = False

    def __init__(
        self,
        function: types.FunctionType,
        options: Options,
        stop_at: int,
        symbolic: Symbolic,
        trusting: bool = True,
    ) -> None:
        self.function = function
        self.options = options
        self.stop_at = stop_at
        self.symbolic = symbolic
        #: whether small tensors of models may be taken to hold what they hold now
        self.trusting = trusting
        self.steps = 0
        #: the last step that recorded an operation, and when to look next at how long ago that was
        self.recorded_at = 0
        self.budget_ends = idle.BUDGET
        #: how many transforms that differentiate are around
        self.transforms = 0
        self.frames: list[Frame] = []
        self.tree = Tree()
        self._nothing_read()
        self._nothing_done()
        self.mode = fakes.new_mode(
            dynamic=bool(symbolic),
            scalars=options.capture_scalar_outputs,
            shapes=options.capture_dynamic_output_shape_ops,
        )
        self.recorder = Recorder(self, self.mode)
        self.state = TorchState(self)
        self.handled: BaseException | None = None
        self.live = True
        self.break_at: BreakSignal | None = None
        #: the last exception that left a frame, and where it was raised
        self.fault: tuple[BaseException | None, tuple[Origin, ...]] = (None, ())
        #: how many recording modes are on: C code is running
        self.modes_on = 0
        self.inference: list[Any] = []
        self.inference_on = False
        #: whether a part of the graph runs in inference mode: fakes do not know theirs
        self.knew_inference = False
        self.decoded = decoded
        self.local_names = decoded(function.__code__).slots
        self._hooks: bool | None = None
        self.fake_error: BaseException | None = None

    def _nothing_read(self) -> None:
        """What the trace finds outside, and what it knows of that."""
        #: what small tensors of models were taken to hold
        self.contents: dict[Node, Any] = {}
        #: versions of fakes at their making, where these are not 0
        self.born: dict[int, int] = {}
        self.shadows: list[Any] = []
        self.instance_dicts: list[DictShadow] = []
        #: views of instance dicts that the program got as values
        self.dict_views: dict[int, DictShadow] = {}
        self.globals: dict[int, Globals] = {}
        #: contents of outside closure cells, by identity of the cell
        self.cells: dict[int, tuple[types.CellType, Node]] = {}
        self.symbolic_places: list[Node] = []
        #: bound methods in C that modules of libraries hold, by identity
        self.fixed: dict[int, Any] = {}
        #: classes whose dicts were read whole, by identity
        self.class_dicts: dict[int, Any] = {}
        #: places of tensors over arrays' memory that the program has got
        self.arrays: set[Node] = set()
        #: lru_cache'd functions called in this trace: results by arguments
        self.caches: dict[Any, Any] = {}
        #: metadata of the graph's inputs, by identity of the fake
        self.specs: dict[int, Any] = {}
        #: sizes that the user spoke of
        self.marked: Marked
        #: what id() was asked of, by identity
        self.identities: dict[int, Any] = {}
        #: functions from outside that were interpreted, for the archive
        self.inlined: dict[types.FunctionType, None] = {}
        #: tensors from outside that no fake can stand for, and why: they may be handed on, not used
        self.unfaked: dict[int, tuple[Any, str]] = {}

    def _nothing_done(self) -> None:
        """What the program makes and does in the trace, to be done when the graph has run."""
        #: errors that are taken not to be raised: the breaks where that cannot be
        self.granted: list[BreakSignal] = []
        self.cells_written: dict[int, tuple[types.CellType, Any]] = {}
        #: objects made in the trace that the final state must know of: functions, generators
        self.made: dict[int, tuple[Any, int]] = {}
        #: generators made in the trace, by identity: closed as soon as the program drops them, so not held
        self.loose: dict[int, tuple[weakref.ref[Any], int]] = {}
        #: the frames of those that it has dropped, and that are still to run to their end
        self.dropped: list[Frame] = []
        self.made_classes = False
        #: exceptions raised in the trace, and the traceback entries made for them, by identity
        self.raised: dict[int, raised.Raised] = {}
        self.tracebacks: dict[int, tuple[types.TracebackType, Origin, types.TracebackType | None]] = {}
        #: calls to replay after the graph: (callable, args, kwargs)
        self.replays: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []
        #: hooks put on tensors, by identity of what stands for their handles, in order
        self.hooks: dict[int, hooks.Hooked] = {}
        #: seeds of PyTorch's generators that are set when the graph has run, in order
        self.seeds: list[seeds.Later] = []
        #: the instructions whose hooks become parts of the graph
        self.hooks_inside: frozenset[int] = frozenset()
        #: functions from outside, and attributes written there, by identity of the function
        self.function_fields: dict[int, tuple[Any, dict[str, Any]]] = {}
        #: numbers drawn from Python's random, in order: (call, what stands for the number, where)
        self.draws: list[tuple[Draw, Any, Any]] = []
        #: instance dicts written, by identity of the shadow
        self.dirty: dict[int, DictShadow] = {}
        #: outside objects with slots written
        self.slotted: list[Node] = []
        #: leaves of autograd that the trace made (parameters, ``requires_grad_``), by identity: they are claimed
        self.leaves: set[int] = set()
        #: attributes that the program put on tensors of the graph
        self.tensor_fields: dict[int, tuple[Any, dict[str, Any]]] = {}

    # -- reading from outside

    def read(self, parent: Node, step: Step, key: Any, real: Any) -> Any:
        """What the interpreter sees of ``real``, found at ``key`` below ``parent``."""
        node = parent.children.get((step, key))
        if node is None:
            node = parent.children[(step, key)] = Node(step, key, parent)
        elif node.real is not MISSING:
            return node.value
        return reads.wrap(self, node, real)

    def make_fake(self, node: Node, real: torch.Tensor) -> Any:
        """The fake that stands for a tensor from outside."""
        dims = self.symbolic_dims(node, real) if self.symbolic else None
        if self.marked.any:
            return self.marked.fake(node, real, dims or set())
        return self.mode.fake(real, symbolic_dims=dims, source=str(node.source) if dims else "")

    def symbolic_dims(self, node: Node, real: torch.Tensor) -> set[int] | None:
        """Which sizes of a tensor are to be symbols."""
        if self.symbolic == "all":
            if self.is_model_state(node) or isinstance(real, torch.nn.Parameter):
                return None
            return {d for d, n in enumerate(real.shape) if n > 1} or None
        source = node.source
        return {d for d in range(real.dim()) if (source, d) in self.symbolic} or None

    def is_symbolic(self, node: Node, dim: int) -> bool:
        """Whether an int from outside is to be a symbol: only arguments, and not what names a choice."""
        if self.symbolic == "all":
            return is_argument(node.source)
        return (node.source, dim) in self.symbolic

    def symbolic_int(self, node: Node, real: int) -> Any:
        """A symbol for an int argument."""
        value = self.mode.symbol(real, str(node.source))
        node.real, node.value = real, value
        if isinstance(value, torch.SymInt):
            self.symbolic_places.append(node)
            self.tree.known[id(value)] = node
            node.guards.append((reads.Check.EQUAL, self.mode.symbols[str(value.node.expr)]))
        else:
            node.guards.append((reads.Check.EQUAL, real))
        self.tree.order.append(node)
        return value

    def symbolic_float(self, node: Node, real: float) -> Any:
        """A symbol for a float from outside; the float itself, guarded by value, where it cannot be one."""
        value = self.mode.float_symbol(real, str(node.source))
        if not isinstance(value, torch.SymFloat):
            return reads.by_value(self, node, real)
        node.real, node.value = real, value
        self.symbolic_places.append(node)
        self.tree.known[id(value)] = node
        node.guards.append((reads.Check.TYPE, float))
        self.tree.order.append(node)
        return value

    def is_model_state(self, node: Node) -> bool:
        """Whether a tensor was found through a module, or is a parameter: the same object at each call."""
        if isinstance(node.real, torch.nn.Parameter):
            return True
        at = node.parent if node.step is not Step.TENSOR_OF else None  # made at each call
        while at is not None:
            if isinstance(at.real, torch.nn.Module):
                return True
            at = at.parent
        return False

    def is_ours(self, value: Any) -> bool:
        """Whether the trace made this function or generator."""
        return self.birth(value) is not None

    def birth(self, value: Any) -> int | None:
        """The step at which the trace made this; None for what it did not make."""
        found = self.made.get(id(value))
        if found is not None and found[0] is value:
            return found[1]
        loose = self.loose.get(id(value))
        return loose[1] if loose is not None and loose[0]() is value else None

    def is_fixed(self, value: Any) -> bool:
        """Whether this bound method is what a library's module holds: ``random.random``."""
        return self.fixed.get(id(value)) is value

    def claim(self, value: Any) -> Any:
        """Remember that the trace made this."""
        self.made[id(value)] = (value, self.steps)
        return value

    def claim_loosely(self, value: Any) -> weakref.ref[Any]:
        """Remember that the trace made this, for as long as the program has it."""
        made = weakref.ref(value)
        self.loose[id(value)] = made, self.steps
        return made

    def make_leaf(self, value: torch.Tensor) -> None:
        """Remember that gradients may be asked for a tensor of the trace: one that gets out is made by the program."""
        self.leaves.add(id(value))
        self.claim(value)

    def globals_of(self, f: Frame) -> Globals:
        """The globals of a frame, as read and written so far."""
        found = self.globals.get(id(f.globals))
        if found is None:
            root = f.globals is self.function.__globals__
            owner = None if root else self.tree.constant(f.function)
            found = self.globals[id(f.globals)] = Globals(f.globals, f.builtins, owner, Step.GLOBALS_OF)
            found.function = f.function
        return found

    def root_global(self, name: str, value: Any) -> Any:
        """A global (or builtin) of the captured function's module."""
        node = self.tree.root(Step.GLOBAL, name)
        return node.value if node.real is not MISSING else reads.wrap(self, node, value)

    def globals_at(self, own: dict[str, Any], module: Any) -> Globals:
        """The globals of a module object."""
        found = self.globals.get(id(own))
        if found is None:
            if own is self.function.__globals__:
                found = Globals(own, vars(builtins), None, Step.GLOBALS_OF)
            else:
                found = Globals(own, vars(builtins), self.tree.constant(module), Step.DICT)
            self.globals[id(own)] = found
        return found

    def trust_class_value(self, owner: Any, name: str, found: Any) -> None:
        """Guard what a class holds; those of C do not change."""
        if is_immutable(owner) or self.is_ours(owner):
            return
        self.read(self.tree.constant(owner), Step.CLASS_ATTR, name, found)

    def class_value(self, owner: Any, name: str, found: Any) -> Any:
        """A value that a class holds."""
        if self.made_classes and self.is_ours(owner):
            return found
        if Lookups.written and id(owner) in Lookups.written and name in Lookups.written[id(owner)][1]:
            return found
        if is_immutable(owner):
            return found
        return self.read(self.tree.constant(owner), Step.CLASS_ATTR, name, found)

    # -- doing

    # functions of their own, under the names by which others call them
    call = call
    run = run
    wrap = reads.wrap
    attr = load_attr
    item = get_item
    tensor_attr = tensors.tensor_attr
    tensor_method = tensors.tensor_method
    write_tensor_field = tensors.write_field
    iterate = iteration.iterate
    advance = iteration.advance
    elements = iteration.elements
    fill_arguments = c_border.fill_arguments
    canonical = c_border.canonical
    called_from_c = c_border.called_from_c
    entered_from_c = c_border.entered_from_c
    outside_applied = c_border.outside_applied
    start_generator = generators.start
    close_dropped = generators.close_dropped

    def write_instance(self, obj: Any, name: str, value: Any) -> None:
        """Write into an instance dict, for the program only."""
        node = self.tree.node_of(obj)
        if node is None:
            own = own_dict(obj)
            if own is None:
                raise AttributeError(f"'{type(obj).__name__}' object has no attribute '{name}'")
            own[name] = value
            return
        shadow = instance_dict(self, node)
        if shadow is None:
            raise AttributeError(f"'{type(obj).__name__}' object has no attribute '{name}'")
        shadow.put(self, name, value)

    def here(self) -> tuple[Decoded, int] | None:
        """Where the program is: the innermost frame outside torch."""
        frames = self.frames
        if frames and not frames[-1].decoded.library:
            return frames[-1].decoded, frames[-1].at
        for f in reversed(frames):
            if not f.decoded.library:
                return f.decoded, f.at
        return (frames[-1].decoded, frames[-1].at) if frames else None

    def enter(self, function: types.FunctionType, localsplus: list[Any], tail: bool) -> Frame:
        """A frame for an inlined call."""
        if len(self.frames) > MAX_DEPTH:
            graph_break("BZ1016", "calls nested too deeply to be inlined")
        if self.steps > self.budget_ends:
            idle.look(self)
        code = function.__code__
        if not self.is_ours(function):
            if not is_library_function(function):
                self.read(self.tree.constant(function), Step.ATTR, "__code__", code)
            self.inlined[function] = None
        f = Frame(function, decoded(code), localsplus)
        f.tail = tail
        f.entered_at = self.steps
        return f

    def defaults_of(self, fn: types.FunctionType) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A function's defaults: constants as they are, others read with guards."""
        positional, named = fn.__defaults__ or (), fn.__kwdefaults__ or {}
        if self.is_ours(fn):
            return positional, named
        node, fixed = self.tree.constant(fn), is_library_function(fn)
        if not fixed and positional:
            own = node.child(Step.ATTR, "__defaults__")
            if own.real is MISSING:
                own.real = own.value = positional
                own.guard(Check.EQUAL if is_constant(positional) else Check.IS, positional)
                self.tree.order.append(own)
        return (
            tuple(
                [v if plain(v) else self.read(node, Step.DEFAULTS, i, v) for i, v in enumerate(positional)]
            ),
            {
                k: v if fixed and plain(v) else self.read(node, Step.KWDEFAULTS, k, v)
                for k, v in named.items()
            },
        )

    def release(self) -> None:
        """Let go of the values of the call, which the parts of a trace that point at each other would keep until they are collected."""
        for node in (*self.tree.known.values(), *self.tree.order, *self.tree.roots.values()):
            node.children = {}
            node.dict = node.container = None
        vars(self).clear()

    def truth(self, value: Any) -> bool:
        """``bool(value)``."""
        return value if value is True or value is False else iteration.truth(self, value)

    def fill(self, value: Any) -> None:
        """Read all of a lazily filled dict."""
        if isinstance(value, dict):
            c_border.fill(self, value)

    def global_hooks(self) -> bool:
        """Whether hooks for all modules are registered; guarded where none are."""
        if self._hooks is None:
            own = vars(torch.nn.modules.module)
            self._hooks = any(own[name] for name in GLOBAL_HOOKS)
            module = self.tree.constant(torch.nn.modules.module)
            for name in GLOBAL_HOOKS:
                node = module.child(Step.DICT, name)
                if node.real is MISSING:
                    node.real = node.value = own[name]
                    self.tree.order.append(node)
                node.guard(Check.LENGTH, len(own[name]))
        return self._hooks

    def replay(self, target: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Call this when the graph has run; False where the arguments are not known now."""
        for value in (*args, *kwargs.values()):
            counted = type(value) is torch.SymInt and not unbacked.is_unbacked(value)
            if not (plain(value) or counted or isinstance(value, logging.Logger) or is_constant(value)):
                return False
        self.replays.append((target, tuple(args), kwargs))
        return True

    def owner_of_globals(self, fn: types.FunctionType) -> Any:
        """A function from outside with the same globals, or the globals themselves."""
        if fn.__globals__ is self.function.__globals__:
            return self.function
        for value, _ in list(self.made.values()):
            if value is fn:
                break
        for f in self.frames:
            if f.globals is fn.__globals__ and not self.is_ours(f.function):
                return f.function
        found = self.globals.get(id(fn.__globals__))
        if found is not None and found.function is not None:
            return found.function
        return fn.__globals__


def own_dict(obj: Any) -> dict[str, Any] | None:
    """An object's instance dict, past any ``__getattribute__``; None where it has none."""
    try:
        found: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found


def plain(value: Any) -> bool:
    """Whether a value needs no guard when its function is known by identity."""
    return type(value) in CONSTANTS or is_identity_type(type(value))


def trace_frame(
    function: types.FunctionType,
    localsplus: tuple[Any, ...],
    options: Options,
    *,
    stop_at: int | None = None,
    symbolic: Symbolic = None,
    named: Named | None = None,
    trusting: bool = True,
) -> Capture:
    """Capture one call of a function whose arguments are bound in ``localsplus``.

    A graph break traces again up to the instruction that broke, so that the graph and the state of all
    frames there come out. ``localsplus`` may be shorter than the frame's; NULL or nothing means unbound.
    """
    with trace.stage("capture"):
        stop = -1 if stop_at is None else stop_at
        reason: BreakSignal | None = None
        inside: frozenset[int] = frozenset()
        while True:
            t = Tracer(function, options, stop, symbolic, trusting)
            t.marked = Marked(t, named or {}, localsplus)
            t.break_at = reason
            t.hooks_inside = inside
            try:
                return _trace(t, localsplus)
            except hooks.Inside as found:  # from the start: the hook's instructions count, too
                inside |= {found.step}
                stop, reason = -1 if stop_at is None else stop_at, None
            except Retry as retry:
                if stop == 1:  # not even the arguments can be handed on
                    raise Unsupported(
                        "BZ1014", reason.reason if reason is not None else "an argument"
                    ) from None
                stop = retry.stop_at if stop < 0 else min(stop - 1, retry.stop_at)
                stop = max(stop, 1)
                reason = t.break_at or reason
            finally:
                t.release()


def _trace(t: Tracer, localsplus: tuple[Any, ...]) -> Capture:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    t.state.remember()
    Lookups.begin()
    try:
        with collector_paused, t.state.outside_inference(), t.mode:
            return _interpret(t, localsplus)
    finally:
        Lookups.forget()
        for error in t.raised.values():
            error.restore()
        if t.made_classes:
            class_bodies.forget_classes()
        t.mode.release()
        t.state.restore()
        sys.setrecursionlimit(limit)


def _interpret(t: Tracer, localsplus: tuple[Any, ...]) -> Capture:
    try:
        f = _root_frame(t, localsplus)
    except BreakSignal as signal:
        raise Unsupported(
            signal.code, signal.reason, why="it is an argument of the function", hints=signal.hints
        ) from None
    except RecursionError:
        raise Unsupported("BZ1016", "an argument holds containers that are nested too deeply") from None
    try:
        value = t.run(f)
        _leave(t, f)
        t.live = False
    except Stopped:
        return outcome.at_break(t)
    except BreakSignal as signal:
        # without its frames, which hold the trace and with it the values of the call
        t.break_at = signal.with_traceback(None)
        raise Retry(signal.position) from None
    except RecursionError:
        t.break_at = BreakSignal("BZ1016", "calls nested too deeply", skip=True)
        raise Retry(1) from None
    except Exception as error:
        t.break_at = BreakSignal(
            "BZ1012",
            f"the function raises {type(error).__name__}: {error}",
            ("the error is raised by eager code",),
            skip=True,
        )
        t.break_at.__cause__ = error
        t.break_at.trail = t.fault[1] if t.fault[0] is error else ()
        raise Retry(1) from None
    return outcome.at_return(t, value)


def _leave(t: Tracer, f: Frame) -> None:
    """Drop the variables of the function that has returned, and with them its generators."""
    f.stack.clear()
    f.locals.clear()
    t.frames.append(f)
    generators.close_dropped(t)
    t.frames.pop()


def _root_frame(t: Tracer, localsplus: tuple[Any, ...]) -> Frame:
    function = t.function
    code = function.__code__
    d = decoded(code)
    slots: list[Any] = [NULL] * len(d.slots)
    free = len(slots) - len(code.co_freevars)
    for index, value in enumerate(localsplus[:free]):
        if value is NULL:
            continue
        slots[index] = reads.wrap(t, t.tree.root(Step.LOCAL, index), value)
    f = Frame(function, d, slots)
    f.tail = True
    if code.co_flags & 0x20 | code.co_flags & 0x80 | code.co_flags & 0x200:
        skip_frame("BZ1009", "a generator or coroutine as the compiled function")
    return f
