"""``braze.explain(fn)(*args)``: what became of a call, on one page.

The stages emit events (``support/trace.py``) while they work; here they are gathered into one record and printed.
"""

from __future__ import annotations

import dataclasses
import io
import json
import operator
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from braze.capture.dispatch.recompiles import Recompile, recompile_text
from braze.capture.facts.records import Capture, GraphBreak
from braze.capture.guards.report import CompiledFrame
from braze.inspect import kernels
from braze.inspect.kernels import KernelReport, Stretch
from braze.runtime.triton.kernel_facts import BuiltKernel, KernelWork
from braze.support import trace
from braze.support.record import record
from braze.support.spoken import spoken

#: the stages in the order in which a compile goes through them
STAGES = ("capture", "aot", "lower", "schedule", "codegen", "build", "load")

#: how many lines of the variable parts the page shows
MOST = 8


@record
class GraphReport:
    """One captured graph: how many operations of which kind, and what guards it."""

    name: str
    operations: tuple[tuple[str, int], ...]  # by falling count
    inputs: int
    guards: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many operations the graph has."""
        return sum(n for _, n in self.operations)


@record
class BreakReport:
    """One place at which a trace stopped, and how often."""

    code: str
    reason: str
    place: str  # file:line in function
    line: int
    excerpt: str
    hints: tuple[str, ...]
    called_from: tuple[str, ...]
    times: int = 1  # captures that stopped here
    passed: int = 0  # how often the run went on after it
    seconds: float = 0.0  # of the captures of what comes after it


@record
class GuardsReport:
    """What the guards of one compiled frame cost at each call."""

    name: str
    guards: int
    nanoseconds: float
    blocks: tuple[tuple[str, int, float], ...]  # what they are about, how many, nanoseconds by themselves


@record
class Explanation:
    """What capture and the stages did. ``str(explanation)`` is the page; rich prints it in colour."""

    name: str
    graphs: tuple[GraphReport, ...]
    breaks: tuple[BreakReport, ...]
    recompiles: tuple[str, ...]
    kernels: tuple[str, ...]
    fallbacks: tuple[tuple[str, int], ...]  # called for want of a lowering
    aten: tuple[tuple[str, int], ...]  # every operator that is called and makes no kernel, those among them
    seconds: tuple[tuple[str, float], ...]
    counters: tuple[tuple[str, int], ...]
    walks: tuple[GuardsReport, ...] = ()
    losses: tuple[str, ...] = ()  # which are made in chunks of rows, and why others are not
    cudagraphs: tuple[tuple[str, int], ...] = ()  # what was recorded again or left unrecorded, and why
    #: frames of broken calls that are not captured: generators, other libraries
    uncaptured: tuple[str, ...] = ()
    history: tuple[str, ...] = ()  # recompiles of the function explained, before this run
    costs: tuple[KernelReport, ...] = ()  # what each kernel moves, computes and takes of a GPU, and its floor
    stretches: tuple[Stretch, ...] = ()  # what was timed of kernels that run in one call

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(self.as_dict(), indent=2)

    @property
    def operations(self) -> int:
        """How many torch-level operations all graphs hold."""
        return sum(g.size for g in self.graphs)

    @property
    def guards(self) -> tuple[str, ...]:
        """Every guard of every graph."""
        return tuple(guard for g in self.graphs for guard in g.guards)

    @property
    def compile_seconds(self) -> float:
        """All stages together."""
        return sum(s for _, s in self.seconds)

    def __rich__(self) -> RenderableType:
        return _page(self)

    def show(self, console: Console) -> None:
        """Print it. Places and code keep to one line each, however narrow the console is: they are searched and clicked."""
        console.print(_page(self, whole=True), crop=False)

    def __str__(self) -> str:
        out = io.StringIO()
        self.show(Console(file=out, width=110, color_system=None, highlight=False))
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines()) + "\n"


def explain(
    fn: Callable[..., Any], *, name: str = "", history: Iterable[Recompile] = (), timed: int = 0
) -> Callable[..., Explanation]:
    """A callable that runs ``fn`` (compiled, not called before) and explains what happened; ``timed``: calls more in which kernels are timed."""
    past = tuple(map(recompile_text, history))

    def call(*args: Any, **kwargs: Any) -> Explanation:
        found = observe(lambda: fn(*args, **kwargs), name or getattr(fn, "__qualname__", "function"))
        found = dataclasses.replace(found, history=past)
        return with_times(found, kernels.timed(lambda: fn(*args, **kwargs), timed)) if timed else found

    return call


def with_times(found: Explanation, spent: Mapping[str, float]) -> Explanation:
    """An explanation with the times of its kernels."""
    costs = kernels.with_times(found.costs, spent)
    return dataclasses.replace(found, costs=costs, stretches=kernels.stretches(costs, spent))


def observe(run: Callable[[], object], name: str) -> Explanation:
    """Run something that compiles, and gather what was compiled meanwhile."""
    counters, seconds = trace.snapshot()
    with trace.collect() as events:
        run()
    later_counters, later_seconds = trace.snapshot()
    return gather(name, events, later_counters - counters, later_seconds - seconds)


def gather(
    name: str,
    events: Iterable[tuple[str, object]],
    counters: Mapping[str, int],
    seconds: Mapping[str, float],
) -> Explanation:
    """The explanation of a run, from its events and what it added to counters and seconds."""
    events = list(events)
    frames = [payload for kind, payload in events if isinstance(payload, CompiledFrame)]
    of: dict[str, list[Any]] = defaultdict(list)
    for kind, payload in events:
        of[kind].append(payload)

    def counted(kind: str) -> tuple[tuple[str, int], ...]:
        return tuple(Counter(map(str, of[kind])).most_common())

    captures = [found for found in of["capture"] if isinstance(found, Capture)]
    return Explanation(
        name=name,
        graphs=tuple(_graph(capture) for capture in captures if capture.graph is not None),
        breaks=_breaks([found for found in of["break"] if isinstance(found, GraphBreak)], frames),
        recompiles=tuple(map(_recompile, of["recompile"])),
        kernels=tuple(kernel for found in of["compiled"] for kernel in _kernels(found)),
        fallbacks=counted("fallback"),
        aten=counted("aten"),
        seconds=_by_stage(seconds),
        counters=tuple(sorted(counters.items())),
        walks=tuple(map(_walk, frames)),
        cudagraphs=counted("cudagraph"),
        losses=tuple(map(str, of["loss"])),
        uncaptured=tuple(map(str, of["skipped"])),
        costs=kernels.reports(
            [each for found in of["work"] for each in found if isinstance(each, KernelWork)],
            [each for each in of["built"] if isinstance(each, BuiltKernel)],
        ),
    )


def _breaks(found: Iterable[GraphBreak], frames: Sequence[CompiledFrame]) -> tuple[BreakReport, ...]:
    """Each place once, with how often it broke, and what went on behind it."""
    reports: dict[tuple[str, str], BreakReport] = {}
    for each in found:
        report = _break(each)
        seen = reports.get((report.code, report.place))
        after = _after(each, frames)
        reports[report.code, report.place] = dataclasses.replace(
            report,
            times=seen.times + 1 if seen else 1,
            passed=max((f.entry.hits + f.entry.misses for f in after), default=0),
            seconds=sum(f.seconds for f in after),
        )
    return tuple(reports.values())


def _by_stage(seconds: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """In the order of stages; aot.trace is a part of aot."""
    order = {stage: i for i, stage in enumerate(STAGES)}
    found: dict[str, float] = defaultdict(float)
    for stage, spent in seconds.items():
        found[stage.partition(".")[0]] += spent
    return tuple(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


def _after(found: GraphBreak, frames: Iterable[CompiledFrame]) -> list[CompiledFrame]:
    """The compiled frames that go on after a break."""
    places = {(place.file, place.line) for place in found.trail}
    return [frame for frame in frames if frame.resumes in places]


def _walk(frame: CompiledFrame) -> GuardsReport:
    blocks = tuple((block.about, block.guards, block.nanoseconds) for block in frame.blocks)
    return GuardsReport(frame.name, frame.guards, frame.nanoseconds, blocks)


def _graph(capture: Capture) -> GraphReport:
    assert capture.graph is not None
    nodes = capture.graph.graph.nodes
    called = Counter(
        _operation(node.op, node.target)
        for node in nodes
        if node.op.startswith("call_") and node.target is not operator.getitem
    )
    return GraphReport(
        name=capture.name,
        operations=tuple(called.most_common()),
        inputs=sum(node.op == "placeholder" for node in nodes),
        guards=tuple(
            f"{g.source if g.source is not None else 'state'} {g.check.value} {_short(g.expected)}"
            for g in capture.guards
        ),
    )


def _operation(op: str, target: Any) -> str:
    if isinstance(target, str):
        return f".{target}" if op == "call_method" else target
    return str(getattr(target, "__name__", target))


def _break(found: GraphBreak) -> BreakReport:
    origin = found.origin
    return BreakReport(
        code=found.code,
        reason=found.reason,
        place=f"{_relative(origin.file)}:{origin.line}"
        + (f" in {origin.function}" if origin.function else "")
        if origin
        else "?",
        line=origin.line if origin else 0,
        excerpt=origin.excerpt() if origin else "",
        hints=found.hints,
        called_from=tuple(
            f"{_relative(o.file)}:{o.line} in {o.function}" for o in reversed(found.trail[:-1])
        ),
    )


def _recompile(payload: object) -> str:
    if not isinstance(payload, Recompile):
        return str(payload)
    why = "; ".join(dict.fromkeys(miss.text for miss in payload.misses))
    return f"{payload.name}: {why}" + (
        " (one generic variant serves from here on)" if payload.generic else ""
    )


def _kernels(payload: object) -> list[str]:
    """Kernel names of a "compiled" event: a mapping or an object with ``kernels``."""
    found = payload.get("kernels", ()) if isinstance(payload, Mapping) else getattr(payload, "kernels", ())
    return [str(getattr(kernel, "name", kernel)) for kernel in found]


def _relative(path: str) -> str:
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return path if near.startswith("..") else near


def _short(value: object, limit: int = 70) -> str:
    text = spoken(value, "__qualname__") or repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _recordings(e: Explanation) -> list[str]:
    """How many calls were recorded, and what their pools took of memory."""
    counters = dict(e.counters)
    made, taken = counters.get("cudagraph_recordings", 0), counters.get("cudagraph_bytes", 0)
    return [f"recordings made: {made}, whose pools grew by {taken:,} bytes"] if made else []


# -- the page ---------------------------------------------------------------------------------------


def _page(e: Explanation, whole: bool = False) -> Group:
    parts: list[RenderableType] = [_headline(e), Text()]
    if e.graphs:
        parts += [_graphs(e), Text()]
    for i, found in enumerate(e.breaks, 1):
        parts += [*_break_texts(i, found, whole), Text()]
    for title, lines in (
        ("Recompiles", list(e.recompiles)),
        ("Run by ATen for want of a lowering", [f"{name} ×{n}" for name, n in e.fallbacks]),
        (
            "Run by ATen in any case",
            [f"{name} ×{n}" for name, n in (Counter(dict(e.aten)) - Counter(dict(e.fallbacks))).items()],
        ),
        ("CUDA graphs", [*_recordings(e), *(f"{text} ×{n}" for text, n in e.cudagraphs)]),
        ("Losses of large vocabularies", list(e.losses)),
        ("Run as it is in broken calls", list(e.uncaptured)),
        ("Kernels", [] if e.costs else _joined(e.kernels)),
    ):
        if lines:
            parts += [_list(title, lines), Text()]
    if e.costs:
        notes = [Padding(Text(line), (0, 0, 0, 2)) for line in kernels.notes(e.costs, e.stretches)[:MOST]]
        parts += [kernels.table(e.costs), *notes, Text()]
    if e.walks:
        parts += [_walks(e), Text()]
    if e.history:
        parts += [Text("Recompiles before this run", style="bold"), *map(Text, e.history[-MOST:]), Text()]
    if e.seconds:
        parts.append(_seconds(e))
    return Group(*parts)


def _headline(e: Explanation) -> Text:
    text = Text()
    text.append(e.name, style="bold")
    text.append(": ")
    text.append(_counted(len(e.graphs), "graph"))
    text.append(", ")
    text.append(_counted(len(e.breaks), "graph break"), style="bold red" if e.breaks else "green")
    text.append(f", {_counted(e.operations, 'operation')}, {_counted(len(e.guards), 'guard')}")
    text.append(f", {_counted(len(e.kernels), 'kernel')}")
    if e.recompiles:
        text.append(f", {_counted(len(e.recompiles), 'recompile')}")
    text.append(f"; compiled in {e.compile_seconds:.2f} s")
    return text


def _graphs(e: Explanation) -> Table:
    table = Table(title="Graphs", title_justify="left", box=None, padding=(0, 2, 0, 0), title_style="bold")
    for name, justify in (
        ("#", "right"),
        ("of", "left"),
        ("ops", "right"),
        ("inputs", "right"),
        ("guards", "right"),
        ("most used", "left"),
    ):
        table.add_column(name, justify=justify, no_wrap=name != "most used")  # type: ignore[arg-type]
    for i, graph in enumerate(e.graphs[:MOST], 1):
        used = ", ".join(f"{name} ×{n}" for name, n in graph.operations[:5])
        table.add_row(str(i), graph.name, str(graph.size), str(graph.inputs), str(len(graph.guards)), used)
    if len(e.graphs) > MOST:
        table.add_row("", f"and {len(e.graphs) - MOST} more", "", "", "", "")
    return table


def _walks(e: Explanation) -> Table:
    table = Table(
        title="Guards, ns at each call",
        title_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        title_style="bold",
    )
    for name in ("of", "guards", "ns", "by themselves"):
        table.add_column(name, justify="left" if name in ("of", "by themselves") else "right")
    for walk in e.walks[:MOST]:
        blocks = ", ".join(f"{about} ×{n} {ns:.0f}" for about, n, ns in walk.blocks)
        table.add_row(walk.name, str(walk.guards), f"{walk.nanoseconds:.0f}", blocks)
    if len(e.walks) > MOST:
        table.add_row(f"and {len(e.walks) - MOST} more", "", "", "")
    return table


def _break_texts(i: int, found: BreakReport, whole: bool) -> Iterator[Text]:
    """Where, why and whence; ``whole``: lines that name places are not folded."""
    as_it_is: dict[str, Any] = dict(no_wrap=True, overflow="ignore") if whole else {}
    where = Text(**as_it_is)
    where.append(f"Graph break {i}", style="bold red")
    where.append(f"  {found.code}  {found.place}" + (f"  (×{found.times})" if found.times > 1 else ""))
    if found.excerpt:
        where.append("\n" + found.excerpt, style="cyan")
    yield where
    text = Text(f"  why: {found.reason}")
    for hint in found.hints:
        text.append(f"\n  do:  {hint}", style="green")
    if found.passed or found.seconds:
        text.append(
            f"\n  cost: {found.seconds:.3f} s to capture what comes after, "
            f"passed {_counted(found.passed, 'time')} in this run"
        )
    yield text
    for place in found.called_from:
        yield Text(f"  called from {place}", style="dim", **as_it_is)


def _list(title: str, lines: list[str]) -> Group:
    shown = lines[:MOST] + ([f"and {len(lines) - MOST} more"] if len(lines) > MOST else [])
    return Group(Text(title, style="bold"), *(Padding(Text(line), (0, 0, 0, 2)) for line in shown))


def _joined(names: tuple[str, ...]) -> list[str]:
    """Names on one line that wraps; none at all for no names."""
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return [", ".join(names[:MOST]) + more] if names else []


def _seconds(e: Explanation) -> Group:
    line = Text()
    for name, spent in e.seconds:
        line.append(f"{name} ", style="dim").append(f"{spent:.3f}, ")
    line.append("all ", style="bold").append(f"{e.compile_seconds:.3f}")
    return Group(Text("Seconds by stage", style="bold"), Padding(line, (0, 0, 0, 2)))


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"
