"""Generate the residual function of a capture: what still runs in Python on each call.

    def residual(inputs, l0, l1):
        out = graph(inputs)
        <writes to the outside, in their order>
        return <result rebuilt from out, inputs and what the arguments lead to>

A graph break ends it otherwise: the state of every suspended frame is put into a tuple, the operation
runs, and the frames go on in their resume functions, innermost first. What the operation raises is
raised again in the frame itself, where the user's handlers are and where tracebacks point.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import linecache
import operator
import re
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch

from braze import native
from braze.capture.facts.bytecode import first_offset
from braze.capture.facts.purity import STATES, Again, draws, how_again, may_run_again, put_back, random_state
from braze.capture.facts.records import (
    ITEM,
    SEED,
    BreakKind,
    Capture,
    Check,
    Constant,
    Effect,
    EffectKind,
    FrameState,
    FromSource,
    GraphBreak,
    GraphOutput,
)
from braze.capture.facts.replay import (
    END,
    GENERATED,
    GENERATOR,
    Jump,
    caught,
    delete_attribute,
    delete_item,
    number_as_tensor,
    run,
    set_attribute,
    set_contents,
    set_item,
    share_memory,
    shuffled,
)
from braze.capture.facts.resume import Resumed
from braze.capture.graph.constant_evaluation import holds
from braze.capture.residual.as_captured import settings_left
from braze.capture.residual.reconstruction_code import BUILTINS, Namespace, Rebuilder, SourceText, literal
from braze.graph.nodes.specs import TensorSpec
from braze.runtime.call.boxed import is_boxed
from braze.support import trace
from braze.support.errors import InternalError
from braze.support.log import logger
from braze.support.record import record
from braze.support.unwritten import is_unwritten

_numbers = itertools.count(1)
#: variables of the text itself, for which no value of the program's may be named
OWN_NAMES = (
    "residual", "graph", "out", "drawn", "state", "then", "more", "step", "error", "item", "value", "outer", "call", "before",
)  # fmt: skip


@record
class Place:
    """Which slots of a suspended frame hold a value, in terms of the user's code object."""

    code: CodeType
    stack: tuple[bool, ...]
    locals: tuple[bool, ...]
    carries: bool  # the closure's cells travel in the state
    done: int  # where the instruction ends at which the frame stands


class Resumes(Protocol):
    """Where resume functions come from, and what makes callables of them (a session)."""

    def point(self, place: Place, *, offset: int, pushes: int, raises: bool, captured: bool) -> Any:
        """A thing with ``of(function)``: the resume function for a frame of that function."""

    def entry(self, function: FunctionType, name: str, *, point: Any = None, hooked: bool = False) -> Any:
        """An entry that captures the function in turn; that of a frame which goes on has a point."""

    def run_uncaptured(self, function: Any) -> Callable[..., Any]:
        """The function as it is; Python frames under it are captured on their own."""

    def begin(self, target: Any) -> tuple[Any, Callable[..., Any]]:
        """Before the call that broke the graph: (what :meth:`end` takes, what runs the call)."""

    def end(self, outer: Any) -> None:
        """After that call."""


def build_residual(
    capture: Capture,
    graph: Callable[..., Any] | None,
    function: Any,
    arity: int,
    resumes: Resumes,
    doubted: Callable[[], None] | None = None,
    label: str = "",
) -> FunctionType:
    """Make the function that an entry calls after this capture's guards have passed.

    ``function`` owns the frame's globals and closure; ``arity`` is how many locals the entry hands over;
    ``doubted`` is told when a tensor does not hold what the capture takes it to hold; ``label`` is what a profiler is told.
    """
    arguments = ["inputs", *(f"l{i}" for i in range(arity))]
    drawn = [f"d{i}" for i in range(len(capture.draws))]
    names = Namespace(reserved=[*arguments, *drawn, *OWN_NAMES])
    lines = _Writer(capture, graph, function, names, resumes, arguments[1:]).write(doubted)
    text = f"def residual({', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in lines)
    file = f"{GENERATED}residual {next(_numbers)} of {capture.name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    logger("bytecode").info("residual code of %s\n%s", capture.name, text)
    if trace.dumping():
        trace.dump(f"residual_{capture.name}", "py", describe_names(names) + text)
    # what looks at its caller's frame sees the module of the function
    home = function.__globals__.get("__name__", __name__)
    scope = names.values | {"graph": graph, "__name__": home, "__builtins__": BUILTINS}
    exec(compile(text, file, "exec"), scope)
    residual: FunctionType = scope["residual"]
    residual.__qualname__ = f"braze: {label or capture.name}"  # of its range in a profile
    return residual


def describe_names(names: Namespace) -> str:
    """A comment per name that the residual text uses."""
    lines = []
    for name, value in names.values.items():
        shown = f"<{type(value).__name__}>" if isinstance(value, dict) else repr(value).splitlines()[0]
        lines.append(f"# {name}: {shown[:100]}\n")
    return "".join(lines)


class _Writer:
    """The lines of one residual function."""

    def __init__(
        self,
        capture: Capture,
        graph: Callable[..., Any] | None,
        function: Any,
        names: Namespace,
        resumes: Resumes,
        given: list[str],
    ) -> None:
        self.given = given
        self.capture = capture
        self.graph = graph
        self.function = function
        self.names = names
        self.resumes = resumes
        self.begin, self.end = resumes.begin, resumes.end  # bound methods: named once
        #: how this function relates to the user's code, if it is itself a resume function
        self.resumed: Resumed | None = getattr(function, "__braze_resumed__", None)
        self.lines: list[str] = []
        sources = SourceText(function, capture, names)
        self.values = Rebuilder(capture.recipes, sources, self.lines, _roots(capture))

    def write(self, doubted: Callable[[], None] | None) -> list[str]:
        """Draws of random numbers, graph, then all reads and builds, then writes, then the end: return, or break."""
        return [*self._apart(), *self._contents(doubted), *self._draws(), *self._after_draws()]

    def _apart(self) -> list[str]:
        """Run the function as it is where an array shares memory with another input of a graph that writes."""
        if not self.capture.apart:
            return []
        tensors = tuple(i for i, spec in enumerate(self.capture.specs) if isinstance(spec, TensorSpec))
        arguments = f"inputs, {self.capture.apart!r}, {tensors!r}, {self.capture.name!r}"
        check = f"{self.names.name_of(share_memory)}({arguments})"
        return [f"if {check}:", f"    {self._run_as_it_is()}"]

    def _contents(self, doubted: Callable[[], None] | None) -> list[str]:
        """Run the function as it is where a tensor holds other numbers than those that the trace has read."""
        if not self.capture.contents:
            return []
        known = " and ".join(
            f"{self.names.name_of(holds, 'holds')}({self.values.sources.text(source)}, {literal(held) or self.names.name_of(held)})"
            for source, held in self.capture.contents
        )
        told = [f"    {self.names.name_of(doubted, 'doubted')}()"] if doubted is not None else []
        return [f"if not ({known}):", *told, f"    {self._run_as_it_is()}"]

    def _draws(self) -> list[str]:
        lines = []
        for index, draw in enumerate(self.capture.draws):
            if draw.name == ITEM:
                lines.append(f"d{index} = d{draw.args[0]}[{draw.args[1]}]")
                continue
            if draw.name == SEED:
                lines.append(f"{self.names.name_of(torch.manual_seed)}({draw.args[0]})")
                continue
            drawing = shuffled if draw.name == "shuffle" else getattr(GENERATOR, draw.name)
            function = self.names.name_of(drawing, f"random_{draw.name}")
            args = [literal(v) or self.names.name_of(v, "number") for v in draw.args]
            args += [f"{k}={literal(v) or self.names.name_of(v, 'number')}" for k, v in draw.kwargs]
            lines.append(f"d{index} = {function}({', '.join(args)})")
        if not lines or self._traits[0] == Again.NO:
            return lines
        if self._seeds():
            lines.insert(0, f"state = {self.names.name_of(random_state, 'random_state')}()")
        if len(self.capture.draws) > self._seeds():
            lines.insert(0, f"drawn = {self.names.name_of(GENERATOR.getstate, 'random_getstate')}()")
        return lines

    @functools.cached_property
    def _traits(self) -> tuple[str, str]:
        """Whether the graph may run again where it fails, and which generators it draws from."""
        graph = self.capture.graph
        return self.capture.traits if graph is None else (may_run_again(graph.graph), draws(graph.graph))

    def _seeds(self) -> int:
        """How many of the draws only set a seed."""
        return sum(draw.name == SEED for draw in self.capture.draws)

    def _call_of_graph(self) -> str:
        """The call of the graph with its inputs; numbers that were drawn follow, in tensors."""
        more = [f"{self.names.name_of(number_as_tensor)}(d{index})" for index in self.capture.drawn]
        if is_boxed(self.graph):
            return f"graph((*inputs, {', '.join(more)}))" if more else "graph(inputs)"
        return f"graph({', '.join(['*inputs', *more])})"

    def _after_draws(self) -> list[str]:
        capture, lines = self.capture, self.lines
        call = self._call_of_graph()
        if self.graph is not None and capture.graph_break is None and not capture.effects:
            uses = _outputs_used(capture)
            if uses == 1:
                assert capture.result is not None
                value = self.values.value(capture.result)
                if not lines and value.count("out[") == 1:
                    return self._or_again(f"return {value.replace('out[', f'{call}[')}")
            lines[:0] = self._or_again(f"out = {call}")
            if uses != 1:
                assert capture.result is not None
                value = self.values.value(capture.result)
            return [*lines, f"return {value}"]
        if self._starts_over():
            return [self._run_as_it_is()]
        if self.graph is not None:
            lines += self._or_again(f"out = {call}")
        # what they read is written out before any of them runs
        replayed = self._replayed(capture.effects)
        if capture.graph_break is not None:
            self._break(capture.graph_break, replayed)
            return lines
        if capture.result is None:
            raise InternalError("BZ9011", f"the capture of {capture.name} has neither result nor break")
        result = (self.values.atom if replayed else self.values.value)(capture.result)
        return [*lines, *replayed, f"return {result}"]

    def _replayed(self, effects: Iterable[Effect]) -> list[str]:
        return [
            _EFFECTS[e.kind]([self.values.atom(a) for a in e.args], e.name, self.names.name_of)
            for e in effects
        ]

    def _starts_over(self) -> bool:
        """Whether nothing at all was captured, so that the function simply runs."""
        at = self.capture.graph_break
        if at is None or at.kind is not BreakKind.RUN or len(at.frames) > 1:
            return False
        begin = self.resumed.prologue if self.resumed is not None else first_offset(self.capture.code)
        return at.frames[0].offset <= begin and self.graph is None and not self.capture.effects

    def _or_again(self, line: str) -> list[str]:
        """Run the graph; what the data make it raise is raised by Python, in the user's own lines and handlers."""
        may_run, random = self._traits
        settings = self._replayed(settings_left(self.capture) if self.resumed is not None else ())
        if may_run == Again.NO and not is_boxed(self.graph) and not settings:
            return [line]
        if may_run == Again.NO:  # what is noted of writes stays with us
            forget = f"    {self.names.name_of(is_unwritten)}(error)"
            left = [f"    {each}" for each in settings]
            return ["try:", f"    {line}", "except Exception as error:", forget, *left, "    raise"]
        run, args = self._call_as_it_is()
        again = self.names.name_of(how_again(self.capture, self.resumed is not None), "run_again")
        before, after = [], []
        if may_run == Again.UNWRITTEN:
            left = [f"        {each}" for each in settings]
            after = [f"    if not {self.names.name_of(is_unwritten)}(error):", *left, "        raise"]
        seeds = self._seeds()
        if random and not seeds:
            before = [f"state = {self.names.name_of(STATES[random], 'random_state')}()"]
        if before or seeds:
            after.append(f"    {self.names.name_of(put_back, 'put_back')}(state)")
        if len(self.capture.draws) > seeds:
            after.append(f"    {self.names.name_of(GENERATOR.setstate, 'random_setstate')}(drawn)")
        return [
            *before,
            "try:",
            f"    {line}",
            "except Exception as error:",
            *after,
            f"    return {again}(error, {run}, {args})",
        ]

    def _run_as_it_is(self) -> str:
        """A call of the function with its arguments; what it calls is still captured."""
        run, args = self._call_as_it_is()
        return f"return {run}({args})"

    def _call_as_it_is(self) -> tuple[str, str]:
        """(text of what runs the function uncaptured, text of its arguments)."""
        code = self.capture.code
        text = [f"l{i}" for i in range(code.co_argcount)]
        slot = code.co_argcount
        keywords = [f"{code.co_varnames[slot + i]}=l{slot + i}" for i in range(code.co_kwonlyargcount)]
        slot += code.co_kwonlyargcount
        if code.co_flags & inspect.CO_VARARGS:
            text.append(f"*l{slot}")
            slot += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            keywords.append(f"**l{slot}")
        run = self.names.name_of(self.resumes.run_uncaptured(self.function), "run_uncaptured")
        return run, ", ".join(text + keywords)

    # -- breaks

    def _break(self, at: GraphBreak, replayed: list[str]) -> None:
        """Save the frames, run the operation, go on in the frames."""
        operands = [self.values.atom(i) for i in at.operands]
        frames = [self._suspend(frame) for frame in at.frames]
        handled = ["" if i < 0 else self.values.atom(i) for i in at.handled] or [""] * len(frames)
        operands = [self._from_state(operand, frames[0]) for operand in operands]
        lines, name = self.lines, self.names.name_of
        lines += replayed
        lines += [f"state{i} = {frame.saved}" for i, frame in enumerate(frames)]
        before = len(lines)
        if at.kind is BreakKind.RAISE:
            then = self._point(frames[0], frames[0].state.offset, raises=True)
            lines.append(f"then, more = {then}, ({operands[0]},)")
        elif at.kind is BreakKind.RUN:
            then = self._point(frames[0], frames[0].state.offset, pushes=0, captured=False)
            lines.append(f"then, more = {then}, ()")
        else:
            spent = self._spent(operands, [*handled, *(frame.function for frame in frames)])
            self._guarded([*self._operation(at, operands, frames[0]), *spent], frames[0], handled[0])
        for i, outer in enumerate(frames[1:], 1):
            then = self._point(outer, outer.state.offset, pushes=outer.state.pushes)
            more = "(value,)" if outer.state.pushes else "()"
            inner = [  # what the inner frame drops is held by nobody
                f"step = {name(Jump)}(then, (*state{i - 1}, *more))",
                f"state{i - 1} = more = value = None",
                f"value = {name(run)}(step)",
            ]
            self._guarded([*inner, f"then, more = {then}, {more}"], outer, handled[i])
        step = f"{name(Jump)}(then, (*state{len(frames) - 1}, *more))"
        rest = lines[before:]
        lines[before:before] = self._let_go(rest)
        lines.append(f"step = {step}")
        # what the user's frame drops from here on must be freed then, not when this function returns; or later: a frame of the
        # user's that a traceback holds leads back to this one
        held = ["more", *(f"state{i}" for i in range(len(frames))), *self._held_by(rest, True)]
        lines.append(f"del {', '.join(held)}")
        unsure = [
            n
            for n in ("value", "item", "call", "before")
            if any(re.search(rf"\b{n} =|, {n} =", line) for line in rest)
        ]
        if unsure:  # whether they have been set depends on what was raised
            lines.append(f"{' = '.join(unsure)} = None")
        # a resumed frame hands the next step to its caller's loop instead of nesting in it
        lines.append("return step" if self.resumed is not None else f"return {name(run)}(step)")

    def _from_state(self, operand: str, frame: _Frame) -> str:
        """An operand as the frame's state has it, where it has: so that it is held once, as by a variable of the frame."""
        if operand in frame.items and operand in self.values.assigned():
            return f"state0[{frame.items.index(operand)}]"
        return operand

    def _spent(self, operands: list[str], later: list[str]) -> list[str]:
        """After the operation: what it took from the stack is held by nobody."""
        text = "\n".join(later)
        names = dict.fromkeys(o for o in operands if o in self.values.assigned())
        return [f"{n} = None" for n in names if re.search(rf"\b{n}\b", text) is None]

    def _let_go(self, rest: list[str]) -> list[str]:
        """Before the operation: what it does not need is held by the frames' states alone, and what they have dropped by nobody."""
        spare = self._held_by(rest, False)
        dropped = [f"del {', '.join(spare)}"] if spare else []
        if self.resumed is not None and not any(re.search(r"\bl0\b", line) for line in rest):
            emptied = self.names.name_of(native.emptied, "emptied")
            if "inputs" in spare:  # who has called holds them, too
                dropped.insert(0, f"{emptied}(inputs)")
            dropped.append(f"{emptied}(l0)")
        return dropped

    def _held_by(self, rest: list[str], used: bool) -> list[str]:
        """The names of ours that these lines use, or those that they do not."""
        given = self.given if self.resumed is None else ()
        names = ["inputs", *given, *self.values.assigned(), *(["out"] if self.graph is not None else [])]
        text = "\n".join(rest)
        return [n for n in dict.fromkeys(names) if (re.search(rf"\b{n}\b", text) is not None) is used]

    def _guarded(self, body: list[str], frame: _Frame, handled: str) -> None:
        """Run ``body``; what it raises is raised again inside ``frame``. ``handled``: the text of the exception that the frame handles."""
        raising = self._point(frame, frame.state.offset, raises=True)
        lines = [
            "try:",
            *(f"    {line}" for line in body),
            "except BaseException as error:",
            f"    then, more = {raising}, ({self.names.name_of(caught)}(error),)",
        ]
        if handled:  # put back behind the block, whose own end puts back what was handled at its beginning
            set_ = self.names.name_of(native.handling, "handling")
            lines = [f"before = {set_}({handled})", *lines, f"{set_}(before)"]
        self.lines += lines

    def _suspend(self, state: FrameState) -> _Frame:
        """What residual code says of a suspended frame: its function, its saved state, its place."""
        fixed = fixed_function(self.capture, state, self.function)
        items = [self.values.atom(i) for i in (*state.stack, *carried_locals(state)) if i >= 0]
        text = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        resumed = self.resumed if fixed is self.function else None
        code, lead = (resumed.original, resumed.shift) if resumed is not None else (state.code, 0)
        closure = ""
        if resumed is not None and resumed.cells is not None:
            closure = f"l0[{resumed.cells[0]}:{resumed.cells[1]}]"
        elif fixed is None and code.co_freevars:
            closure = f"{self.values.atom(state.function)}.__closure__"
        place = Place(
            code,
            tuple(i >= 0 for i in state.stack),
            tuple(i >= 0 for i in carried_locals(state))[lead:],
            bool(closure),
            state.offset - (resumed.prologue if resumed is not None else 0),
        )
        function = self.values.atom(state.function) if fixed is None else ""
        return _Frame(state, place, fixed, function, tuple(items), f"{text} + {closure}" if closure else text)

    def _point(
        self, frame: _Frame, offset: int, *, pushes: int = 1, raises: bool = False, captured: bool = True
    ) -> str:
        """The text that gives the resume function of a frame."""
        offset += frame.place.done - frame.state.offset  # in the user's code
        point = self.resumes.point(
            frame.place, offset=offset, pushes=pushes, raises=raises, captured=captured
        )
        hint = f"{'raise' if raises else 'resume'}_{frame.place.code.co_name}"
        if frame.fixed is not None:
            return self.names.name_of(point.of(frame.fixed), hint)
        return f"{self.names.name_of(point, hint)}.of({frame.function})"

    def _operation(self, at: GraphBreak, operands: list[str], frame: _Frame) -> list[str]:
        """Statements that run the broken operation and choose how the innermost frame goes on."""
        offset = frame.state.offset
        match at.kind:
            case BreakKind.CALL:
                words = tuple(at.detail or ())
                split = len(operands) - len(words)
                named = (f"{k}={v}" for k, v in zip(words, operands[split:], strict=True))
                return self._call([*operands[:split], *named], self._point(frame, offset))
            case BreakKind.CALL_EX:
                starred = (f"{star}{o}" for star, o in zip(("*", "**"), operands[1:], strict=False))
                return self._call([operands[0], *starred], self._point(frame, offset))
            case BreakKind.OPERATOR:
                call = self._operator(at.detail, operands)
                return [f"then, more = {self._point(frame, offset)}, ({call},)"]
            case BreakKind.STATEMENT:
                then = self._point(frame, offset, pushes=0)
                return [self._operator(at.detail, operands), f"then, more = {then}, ()"]
            case BreakKind.BRANCH:
                return self._branch(at.detail, operands[0], frame)
            case BreakKind.NEXT:
                return self._next(at.detail, operands[0], frame)
        raise InternalError("BZ9012", f"no residual code for a break of kind {at.kind}")

    def _branch(self, detail: Any, condition: str, frame: _Frame) -> list[str]:
        if_false, if_true, keep = detail
        lines = [f"if {condition}:"]
        for taken, offset in ((True, if_true), (False, if_false)):
            kept = keep is taken
            then = self._point(frame, offset, pushes=int(kept))
            lines.append(f"    then, more = {then}, {f'({condition},)' if kept else '()'}")
            lines += ["else:"] if taken else []
        return lines

    def _next(self, detail: Any, iterator: str, frame: _Frame) -> list[str]:
        exhausted, going_on = detail
        end = self.names.name_of(END, "END")
        return [
            f"item = next({iterator}, {end})",
            f"if item is {end}:",
            f"    then, more = {self._point(frame, exhausted, pushes=0)}, ()",
            "else:",
            f"    then, more = {self._point(frame, going_on, pushes=2)}, ({iterator}, item)",
        ]

    def _call(self, args: list[str], then: str) -> list[str]:
        """The call that broke the graph. No Python frame of ours but this one stands between it and its caller."""
        name = self.names.name_of
        return [
            f"outer, call = {name(self.begin, 'begin')}({args[0]})",
            "try:",
            f"    value = call({', '.join(args)})",
            "finally:",
            f"    {name(self.end, 'end')}(outer)",
            f"then, more = {then}, (value,)",
        ]

    def _operator(self, detail: Any, operands: list[str]) -> str:
        function = detail
        if isinstance(detail, str):
            function = getattr(builtins, detail, None) or getattr(operator, detail)
        return f"{self.names.name_of(function)}({', '.join(operands)})"


@record
class _Frame:
    """A suspended frame while its residual code is written."""

    state: FrameState
    place: Place
    fixed: Any  # its function, where every call of the capture runs the same
    function: str  # text of its function, where not
    items: tuple[str, ...]  # texts of what its state begins with
    saved: str  # text of its state


#: the statement of each kind of effect, of the texts of its arguments, its name, and what names objects
_EFFECTS: dict[EffectKind, Callable[[list[str], str, Callable[[Any], str]], str]] = {
    EffectKind.SETATTR: lambda args, at, name: f"{name(set_attribute)}({args[0]}, {at!r}, {args[1]})",
    EffectKind.DELATTR: lambda args, at, name: f"{name(delete_attribute)}({args[0]}, {at!r})",
    EffectKind.SETITEM: lambda args, at, name: f"{name(set_item)}({', '.join(args)})",
    EffectKind.DELITEM: lambda args, at, name: f"{name(delete_item)}({', '.join(args)})",
    EffectKind.SET_CONTENTS: lambda args, at, name: f"{name(set_contents)}({', '.join(args)})",
    EffectKind.EXTEND: lambda args, at, name: f"{args[0]}.extend({args[1]})",
    EffectKind.SET_GLOBAL: lambda args, at, name: f"{args[0]}.__globals__[{at!r}] = {args[1]}",
    EffectKind.SET_CELL: lambda args, at, name: f"{args[0]}.cell_contents = {args[1]}",
    EffectKind.MADE: lambda args, at, name: "pass",
    EffectKind.CALL: lambda args, at, name: f"{args[0]}({', '.join(args[1:])})",
}


def carried_locals(frame: FrameState) -> tuple[int, ...]:
    """The locals that travel in the state: all slots but the closure's."""
    return frame.locals[: len(frame.locals) - len(frame.code.co_freevars)]


def fixed_function(capture: Capture, frame: FrameState, function: Any) -> Any:
    """The one function object that a frame runs in every call of this capture, or None."""
    recipe = capture.recipes[frame.function]
    if isinstance(recipe, Constant):
        return recipe.value
    if frame.code is capture.code and frame is capture.graph_break.frames[-1]:  # type: ignore[union-attr]
        return function
    if isinstance(recipe, FromSource):
        for guard in capture.guards:
            if guard.source is recipe.source and guard.check is Check.IS:
                return guard.expected
            if guard.source is recipe.source and guard.check is Check.REFERENT:
                found = guard.expected()
                return None if found.__closure__ else found  # whose cells a resume function of it would keep
    return None


def _roots(capture: Capture) -> list[int]:
    """Every recipe id that the residual code mentions, with repeats."""
    roots = [a for effect in capture.effects for a in effect.args]
    if capture.graph_break is not None:
        roots += (*capture.graph_break.operands, *(i for i in capture.graph_break.handled if i >= 0))
        for frame in capture.graph_break.frames:
            roots += [i for i in (*frame.stack, *carried_locals(frame)) if i >= 0]
            roots.append(frame.function)
    if capture.result is not None:
        roots.append(capture.result)
    return roots


def _outputs_used(capture: Capture) -> int:
    """How many places read a graph output (those of the result only)."""
    count, seen, todo = 0, set(), [capture.result]
    while todo:
        index = todo.pop()
        assert index is not None
        recipe = capture.recipes[index]
        if isinstance(recipe, GraphOutput):
            count += 1
        elif index not in seen:
            seen.add(index)
            todo += getattr(recipe, "args", ())
    return count
