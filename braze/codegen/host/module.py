"""Schedule and kernels -> the host module: Python that binds inputs, calls segments and ATen, returns outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

from braze.codegen.host.externs import Views, drops_nothing, extern_lines, product_layouts, strided
from braze.codegen.host.homes import Home, Homes
from braze.codegen.host.lives import Lives
from braze.codegen.host.runs import Run
from braze.codegen.host.segments import SAMPLER, Launch, Segment, declarations, segment_text
from braze.codegen.host.text import constant_text, dtype_text, identifier, indented, tuple_text
from braze.codegen.host.writes import Writes, noted, undone
from braze.codegen.records import HostModule, KernelText
from braze.context import CompileContext
from braze.loops.ir import BufferKind, BufferView, Condition, ExternCall
from braze.runtime.operators.operators import can_be_worked_out
from braze.runtime.operators.purity import named
from braze.schedule.facts.records import Schedule
from braze.schedule.memory.memory import storage_bytes
from braze.schedule.rewrites.hoist import is_repeatable
from braze.support.nested import leaves
from braze.support.record import record
from braze.symbolic.expr import Expr, Symbol


@record
class CUnits:
    """How the C generator makes translation units of texts."""

    assemble: Callable[..., str]
    split: Callable[[tuple[str, ...], int], tuple[tuple[str, ...], ...]]


def generate_host(s: Schedule, kernels: Sequence[KernelText], ctx: CompileContext, c: CUnits) -> HostModule:
    """The host module of a schedule with one kernel text per loop or template group (by name)."""
    recorded = ctx.options.cudagraphs or ctx.recordable
    writers = [_Host(s.fixed, kernels, "fixed_")] if s.fixed is not None else []
    for k, part in enumerate(s.parts):
        writers.append(_Host(part.schedule, kernels, f"part{k}_", ctx.consumes, ctx.lean, recorded))
    writers.append(_Host(s, kernels, "", ctx.consumes, ctx.lean, recorded, ctx.raises_alone))
    functions = [line for writer in writers for line in ("", "", *writer.function())]
    source = "\n".join(
        [f'"""Host module of {ctx.name}: written by braze."""', "", "import torch", *functions, ""]
    )
    unique = tuple(k for writer in writers for k in writer.unique.values())
    segments = [text for writer in writers for text in writer.segment_texts]
    units: tuple[str, ...] = ()
    watched = (s.fixed is not None and s.program.device == "cpu") or any(writer.packs for writer in writers)
    if segments or watched:
        texts = tuple(k.source for k in unique if k.language == "c")
        tail = "\n".join((SAMPLER if watched else "", *segments))
        batches = c.split(texts, ctx.target.cores)
        if len(batches) > 1:
            # dealt as one more kernel: in a unit of its own a compiler's start would take longer than it
            declared = declarations({k.name for k in unique if k.language == "c"})
            batches = c.split((*texts, declared + tail), len(batches))
        else:  # a compiler's start is more than what a second unit would save
            batches = ((*texts, tail),)
        units = tuple(c.assemble(batch, runtime=not k) for k, batch in enumerate(batches))
    calls_aten = any(writer.operators for writer in writers)
    return HostModule(ctx.name, source, unique, ctx.target.arch, units, s.program.device, calls_aten)


class _Host:
    """Collects the parts of one function while walking the groups."""

    def __init__(
        self,
        s: Schedule,
        kernels: Sequence[KernelText],
        prefix: str,
        consumes: bool = False,
        lean: bool = False,
        recorded: bool = False,
        raises_alone: bool = False,
    ) -> None:
        self.schedule = s
        self.prefix = prefix
        self.consumes = consumes
        self.homes = Homes(s)
        self.lives = Lives(s, self.homes, consumes=consumes, lean=lean)
        self.views = Views(self.homes)
        #: buffers that leave a call which may be recorded: they lie where no other recording writes
        self.leaving = self.lives.leaving() if recorded else frozenset()
        self.sizes: tuple[Symbol, ...] = tuple(x.symbol for x in s.program.sizes)
        #: symbols that calls make known, and what is still to be checked of sizes
        self.made = s.program.made
        self.checks = list(s.program.checks)
        self.kernels = {k.name: k for k in kernels}
        self.unique: dict[str, KernelText] = {}
        self.same: dict[str, str] = {}  # canonical text -> function
        self.segments: list[Segment] = []
        self.segment_texts: list[str] = []
        self.bindings: list[str] = []
        self.operators: dict[str, str] = {}
        self.layouts: dict[str, str] = {}
        self.packs: dict[tuple[str, str, int], str] = {}  # weight, packing function, bytes -> variable
        self.runs = 0
        self.body: list[str | Segment | Run] = []
        self.handed = dict(s.memory.handed)
        #: new contents of inputs -> the inputs, whose memory they are
        self.renewed = dict(s.memory.renewed)
        #: the call ends by a look at the constants of what was computed before
        self.looks = False
        self.writes = Writes(s, raises_alone)
        #: where in the body an input is written first, what begins behind that, and where nothing fails any more by what the data are
        self.write_begins = self.write_ends = self.fails_until = 0

    def function(self) -> list[str]:
        """The function that makes the call, as lines."""
        self.body += self._checked(frozenset(self.sizes))
        if self.schedule.parts:
            self._parts()
        else:
            self._groups()
        body, rest = self._around_writes()
        returned = self._outputs()
        inputs = self._inputs()
        arena = self._arena()
        lines = [
            f"def {maker(self.prefix)}(runtime):",
            "    as_strided, empty_strided = torch.as_strided, runtime.empty_strided",
            "    relayout, take, give = runtime.relayout, runtime.take, runtime.give",
            *indented(self.bindings),
        ]
        if self.leaving:
            lines.insert(2, "    empty_result, results = runtime.empty_result, runtime.results")
        if self.handed:
            lines.insert(2, "    alone = runtime.alone")
        if self.views.of_arena:
            made = [f"{expression}," for expression in self.views.of_arena.values()]
            lines += [
                "",
                f"    def bind_views({', '.join(self._bound())}):",
                "        return (",
                *indented(made, 3),
                "        )",
            ]
        lines += ["", "    def call(inputs):", *indented([*inputs, *arena, *body], 2)]
        if arena and not self.lives.own_arena:
            rest.append("give(arena)")
        rest += self._second_run(returned) if self.looks else [f"return {returned}"]
        lines += indented(noted(rest) if self.writes.roots else rest, 2)
        return [*lines, "", "    return call"]

    def _around_writes(self) -> tuple[list[str], list[str]]:
        """The statements of the body, and those of them behind which, by a write to an input, the call cannot be run again."""
        texts = [self._text(x) for x in self.body]
        begin, done, until = self.write_begins, self.write_ends, self.fails_until
        if not self.writes.roots:
            begin = done = until = len(texts)
        elif not self.writes.undone:
            begin = until = done
        first, middle, rest = (
            [line for text in part for line in text]
            for part in (texts[:begin], texts[begin:until], texts[until:])
        )
        if middle:
            first += undone(middle, tuple(map(identifier, self.writes.undone)))
        return first, rest

    def _text(self, part: str | Segment | Run) -> list[str]:
        """A part of the body as statements; what they call is bound."""
        if isinstance(part, str):
            return [part]
        if isinstance(part, Segment):
            return self._segment(part)
        self.bindings += part.binding()
        return part.lines()

    @staticmethod
    def _second_run(returned: str) -> list[str]:
        """Return the results, if no constant has changed that they were computed of."""
        return [
            f"results = {returned}",
            "return call(inputs) if look.differs() else results",
        ]

    def _inputs(self) -> list[str]:
        names = []
        fixed = self.schedule.fixed
        made = tuple(o.buffer for o in fixed.program.outputs if isinstance(o, BufferView)) if fixed else ()
        given = self.schedule.program.inputs[: len(self.schedule.program.inputs) - len(made)]
        for k, buffer in enumerate(given):
            symbols = [x for x in self.schedule.program.sizes if x.input == k and x.dim < 0]
            names.append(
                identifier(buffer) if buffer else identifier(symbols[0].symbol.name) if symbols else "_"
            )
        lines = [f"{tuple_text(tuple(names))} = inputs"] if names else []
        if self.consumes and names:
            lines.append("inputs.clear()")
        for x in self.schedule.program.sizes:
            if x.dim >= 0:
                buffer = identifier(self.schedule.program.inputs[x.input])
                lines.append(f"{identifier(x.symbol.name)} = {buffer}.size({x.dim})")
        if self.consumes:
            lines += self._unread(names, given)
        if self.made:
            lines.append(f"{' = '.join(identifier(x.name) for x in self.made)} = 0  # until a call tells")
        if fixed is not None:
            lines.append(self._fixed(fixed, made))
        for variable, (constant, expression) in self.views.of_constants.items():
            self.bindings.append(f"{variable}_of = runtime.constant_view(lambda {constant}: {expression})")
            lines.append(f"{variable} = {variable}_of({constant})")
        self.bindings += [
            f"{variable} = runtime.view({layout})" for layout, variable in self.views.of_layouts.items()
        ]
        if self.packs:
            lines.append(self._packed_weights())
        return lines

    def _unread(self, names: Sequence[str], given: Sequence[str]) -> list[str]:
        """Let go of inputs that are only there for their sizes, or for nothing."""
        buffers = self.homes.buffers
        idle = [
            name
            for name, buffer in zip(names, given, strict=True)
            if buffer and buffer not in self.lives.last and buffer not in self.lives.kept
            if buffers[buffer].kind is BufferKind.INPUT
        ]
        idle += ["_"] if "_" in names else []
        return [f"del {', '.join(dict.fromkeys(idle))}"] if idle else []

    def _fixed(self, fixed: Schedule, made: tuple[str, ...]) -> str:
        """Bind the keeper of what depends on constants only; the statement that asks it."""
        if self.schedule.program.device != "cpu":
            return self._fixed_on_device(fixed, made)
        sizes = tuple(storage_bytes(self.homes.buffers[name]) for name in fixed.program.inputs)
        self.bindings.append(f"fixed = runtime.fixed(make_fixed(runtime), {tuple_text(sizes)})")
        constants = tuple(map(identifier, fixed.program.inputs))
        return f"{tuple_text(tuple(map(identifier, made)))} = fixed({tuple_text(constants)})"

    def _fixed_on_device(self, fixed: Schedule, made: tuple[str, ...]) -> str:
        """As on the CPU; a graph that may run twice does not wait for the look at its constants."""
        program = self.schedule.program
        constants = [self.homes.buffers[name] for name in fixed.program.inputs]
        items = tuple(tuple_text((str(storage_bytes(b)), str(b.dtype.itemsize))) for b in constants)
        self.bindings.append(
            f"fixed = runtime.device_fixed(make_fixed(runtime), {tuple_text(items)}, {program.device!r})"
        )
        names = tuple_text(tuple(map(identifier, made)))
        given = tuple_text(tuple(map(identifier, fixed.program.inputs)))
        self.looks = not self.consumes and is_repeatable(program)
        return f"{names}, look = fixed({given})" if self.looks else f"{names} = fixed.now({given})"

    def _packed_weights(self) -> str:
        """Bind the keeper of packed weights; the statement that asks it."""
        rows = [
            f'("{function}", {size}, {storage_bytes(self.homes.buffers[buffer])}),'
            for buffer, function, size in self.packs
        ]
        self.bindings += ["packed_weights = runtime.packed((", *indented(rows), "))"]
        weights = tuple(identifier(buffer) for buffer, _, _ in self.packs)
        return f"{tuple_text(tuple(self.packs.values()))} = packed_weights({tuple_text(weights)})"

    def _arena(self) -> list[str]:
        if not self.homes.slots:
            return []
        key = "graph"
        take = "runtime.arena" if self.lives.own_arena else "take"
        lines = [f"arena = {take}({self.schedule.memory.arena_bytes})"]
        if not self.homes.static:
            names = ", ".join(self._size_names())
            lives = [f"({x.start}, {x.stop})," for x in self.homes.lives]
            sizes = tuple_text(tuple(x.bytes for x in self.homes.lives))
            self.bindings += ["layouts = runtime.layouts((", *indented(lives), f"), lambda {names}: {sizes})"]
            key = "layout"
            lines = [f"layout = layouts({names})", f"arena = {take}(layout.bytes)"]
        if self.views.of_arena:
            names = tuple_text(tuple(self.views.of_arena))
            arguments = ", ".join(self._bound())
            if self.lives.own_arena:
                return [*lines, f"{names} = bind_views({arguments})"]
            lines.append(f"views = arena.views.get({key})")
            lines.append("if views is None:")
            lines.append(f"    views = arena.keep({key}, bind_views({arguments}))")
            if self.homes.static:
                self.bindings.append("graph = object()")
            lines.append(f"{names} = views")
        return lines

    def _bound(self) -> list[str]:
        """What views of the arena are made from."""
        return ["arena"] if self.homes.static else ["arena", "layout", *self._size_names()]

    def _size_names(self) -> list[str]:
        return [identifier(x.name) for x in self.sizes]

    def _groups(self) -> None:
        current: Segment | None = None
        run: Run | None = None
        known = set(self.sizes)
        for k, group in enumerate(self.schedule.groups):
            late = self.writes.is_behind(k)
            kernel = self.kernels.get(group.name)
            if kernel is not None and kernel.language == "c":
                run = None
                if current is not None and self.lives.starts_anew(k):
                    current = None
                if current is None:
                    current = Segment(f"{self.prefix}segment_{len(self.segments)}")
                    self.segments.append(current)
                    self.body.append(current)
                current.before += self._allocations(k)
                current.launches.append(dataclasses.replace(self._launch(kernel), late=late))
                current.after += self._releases(k)
                self._note(k, len(self.body) - 1, len(self.body))
                continue
            current = None
            if kernel is not None:
                run = self._in_run(kernel, k, run)
                continue
            run, began = None, len(self.body)
            self.body += self._allocations(k)
            if isinstance(group.call, ExternCall):
                self._extern(group.call, self.lives.dropped(k))
                if group.call.makes:
                    known.update(m.symbol for m in group.call.makes)
                    self.body += self._checked(known)
            self._note(k, began, began)
            self.body += self._releases(k)

    def _note(self, k: int, began: int, unwritten: int) -> None:
        """The body so far ends in group ``k``, whose statements begin at a place; ``unwritten``: before this one they tell whether they have written."""
        if k == self.writes.first:
            self.write_begins, self.write_ends = began, unwritten
        if k == self.writes.last:
            self.fails_until = len(self.body)

    def _parts(self) -> None:
        """Call the parts in order; what is read by none after goes at once."""
        parts = self.schedule.parts
        last = {n: k for k, part in enumerate(parts) for n in part.takes}
        for k, part in enumerate(parts):
            self.bindings.append(f"part_{k} = runtime.part({k}, {maker(f'part{k}_')}(runtime))")
            given = [*map(identifier, part.takes), *(identifier(s.name) for s in part.sizes)]
            made = [*map(identifier, part.gives), *(identifier(s.name) for s in part.told)]
            dead = [n for n in part.takes if last[n] == k and self._may_go(n)]
            self.body.append(f"given = [{', '.join(given)}]")
            if dead:
                self.body.append(f"del {', '.join(map(identifier, dead))}")
            call = f"part_{k}(given)"
            self.body.append(f"{tuple_text(tuple(made))} = {call}" if made else call)

    def _may_go(self, name: str) -> bool:
        """Whether the host may let go of a tensor after the last part that reads it."""
        made_here = self.homes.of(name) is not Home.ARGUMENT
        return (made_here or self.consumes) and name not in self.lives.kept

    def _checked(self, known: Collection[Symbol]) -> list[str]:
        """Statements for the checks whose symbols are all known."""
        ready = [c for c in self.checks if c.condition.symbols() <= set(known)]
        self.checks = [c for c in self.checks if c not in ready]
        return [
            line for c in ready for line in (f"if not {c.condition}:", f"    runtime.fail({c.message!r})")
        ]

    def _segment(self, segment: Segment) -> list[str]:
        """The statements that run a segment."""
        self.segment_texts.append(segment_text(segment, self.homes, (*self.sizes, *self.made)))
        self.bindings.append(f'{segment.name} = runtime.segment("{segment.name}", "{segment.kernels}")')
        arena = "arena.base" if segment.uses_arena else "0"
        args = [tuple_text(tuple(segment.tensors)), arena]
        names = (*self._size_names(), *(identifier(x.name) for x in self.made))
        if segment.uses_arena and not self.homes.static:
            args.append(f"({', '.join(names)}, *layout.offsets)" if self.made else "layout.sizes")
        elif names:
            args.append(tuple_text(names))
        call = f"{segment.name}({', '.join(args)})"
        lines = [call]
        if segment.reports and any(launch.late for launch in segment.launches):
            lines = [f"if status := {call}:", "    runtime.report(status)"]
        elif segment.reports:
            lines = [f"if {call}:", "    runtime.report()"]
        return [*segment.before, *lines, *segment.after]

    def _launch(self, kernel: KernelText) -> Launch:
        """How a kernel is called in its segment; equal kernels share one function."""
        function = self.same.setdefault(kernel.canonical or kernel.source, kernel.name)
        first = self.unique.setdefault(function, kernel)
        packed: dict[str, str] = {}
        for pack, twin in zip(kernel.packs, first.packs, strict=True):
            key = pack.buffer, twin.name, twin.bytes
            variable = f"{identifier(pack.buffer)}_packed{len(self.packs)}"
            packed[f"packed:{pack.buffer}"] = self.packs.setdefault(key, variable)
        return Launch(function, kernel.args, kernel.sizes, packed)

    def _in_run(self, kernel: KernelText, k: int, run: Run | None) -> Run:
        """Enter a launch on a GPU, in the stretch ahead of it if it may be of that; where inputs are written first is the start of one."""
        name = self._launch(kernel).function
        if name == kernel.name:
            self.bindings.append(f'{name} = runtime.triton("{name}")')
        allocations = self._allocations(k)
        if run is None or k == self.writes.first or not run.takes(allocations):
            run = Run(f"{self.prefix}run_{self.runs}")
            self.runs += 1
            self.body.append(run)
        run.before += allocations
        run.launches.append(
            (name, tuple(map(self._tensor, kernel.args)), tuple(map(identifier, kernel.sizes)))
        )
        run.after += self._releases(k)
        self._note(k, len(self.body) - 1, len(self.body) - 1)
        return run

    def _tensor(self, name: str) -> str:
        if self.homes.of(name) is not Home.ARENA:
            return identifier(name)
        return self.views.text(self.homes.buffers[name].whole())

    def _extern(self, call: ExternCall, unread: frozenset[str]) -> None:
        layouts = product_layouts(call, self.views)
        function = self._product(call, layouts) if layouts else self._operator(call)
        lines = extern_lines(call, function, self.views, self._planned, unread, bool(layouts))
        if not call.out_variant and not self.leaving.isdisjoint(call.outputs):
            lines = ["with results:", *indented(lines)]
        self.body += lines

    def _operator(self, call: ExternCall) -> str:
        """The variable of what a call calls: one for all calls of an operator, or its own, where that works out once what it runs."""
        target = call.out_variant or call.target
        once = can_be_worked_out(target) and self._is_laid_out(call)
        if once:
            return self._bound_once(target, f"{target} {len(self.operators)}", f'operator_once("{target}")')
        more = ", False" if drops_nothing(call) else ""
        return self._bound_once(target, target + more, f'operator("{target}"{more})')

    def _product(self, call: ExternCall, layouts: tuple[str, ...]) -> str:
        """The variable of a matrix product that sees its arguments in these layouts."""
        target = call.out_variant
        return self._bound_once(target, f"{target} {layouts}", f'product("{target}", {tuple_text(layouts)})')

    def _bound_once(self, target: str, key: str, made: str) -> str:
        """The variable of what the runtime makes for an operator, which calls of one key share."""
        if key not in self.operators:
            self.operators[key] = f"op_{named(target).__name__.replace('.', '_')}_{len(self.operators)}"
            self.bindings.append(f"{self.operators[key]} = runtime.{made}")
        return self.operators[key]

    def _is_laid_out(self, call: ExternCall) -> bool:
        """Whether a call has the same numbers, and tensors of the same sizes and strides, each time."""
        given = [*leaves(call.given), *(self.homes.buffers[name].whole() for name in call.outputs if name)]
        views = [x for x in given if isinstance(x, BufferView)]
        numbers = [x for x in given if isinstance(x, Expr)]
        numbers += [n for view in views for n in (*view.sizes, *view.strides, view.offset)]
        return all(n.is_constant for n in numbers)

    def _planned(self, layout: str) -> str:
        """The variable of a layout that results of ATen are brought into."""
        if layout not in self.layouts:
            self.layouts[layout] = f"planned_{len(self.layouts)}"
            self.bindings.append(f"{self.layouts[layout]} = runtime.planned({layout})")
        return self.layouts[layout]

    def _releases(self, k: int) -> list[str]:
        """Let go of what is not used after group ``k``."""
        dead = [identifier(n) for n in self.lives.dead(k)]
        if self.lives.own_arena and k == self.lives.arena_until:
            dead += ["arena", *self.views.of_arena]
        return [f"del {', '.join(dead)}"] if dead else []

    def _allocations(self, k: int) -> list[str]:
        """Allocate what group ``k`` is the first to write and the arena does not hold."""
        return [self._allocation(n) for n in self.lives.fresh(k)]

    def _allocation(self, name: str) -> str:
        """The statement that gives a buffer its memory: another's, if nobody else holds that, or fresh memory."""
        if name in self.renewed:
            return f"{identifier(name)} = {identifier(self.renewed[name])}"
        leaves = name in self.leaving
        made = f"{identifier(name)} = {_empty(self.homes, name, leaves)}"
        if name not in self.handed or leaves:
            return made
        old = identifier(self.handed[name])
        return f"{identifier(name)} = {old} if alone({old}) else {made.partition(' = ')[2]}"

    def _outputs(self) -> str:
        returned = []
        for i, o in enumerate(self.schedule.program.outputs):
            if isinstance(o, BufferView) and o.buffer in self.renewed:
                returned.append("None")
            elif isinstance(o, BufferView):
                returned.append(self._result(o, i in self.schedule.program.locked))
            else:
                returned.append(str(o) if isinstance(o, (Expr, Condition)) else constant_text(o))
        return tuple_text(tuple(returned))

    def _result(self, view: BufferView, locked: bool) -> str:
        """A result; a part of what a call makes is no view of the rest, unless it is ``locked``: autograd lets nobody write to views made without gradients.

        Where the rest goes out too, for the backward, both count writes together, so that autograd refuses what was written since.
        """
        name = identifier(view.buffer)
        if self.homes.is_whole(view):
            return name
        made = strided(name, view, self.homes)
        own = self.homes.buffers[view.buffer].kind in (BufferKind.TEMPORARY, BufferKind.OUTPUT)
        if not own or locked:
            return made
        items = (o.buffer for o in self.schedule.program.outputs if isinstance(o, BufferView))
        return f"{made}.detach()" if sum(name == view.buffer for name in items) > 1 else f"{made}.data"


def maker(prefix: str) -> str:
    """The function that makes the call of the whole ("") or of a part ("part0_")."""
    return f"make_{prefix}".rstrip("_")


def _empty(homes: Homes, name: str, leaves: bool) -> str:
    b = homes.buffers[name]
    make = "empty_result" if leaves else "empty_strided"
    device = "" if b.device == "cpu" else f", device={b.device!r}"
    return f"{make}({tuple_text(b.sizes)}, {tuple_text(b.strides)}, dtype={dtype_text(b.dtype)}{device})"
