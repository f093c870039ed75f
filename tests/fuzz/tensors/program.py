"""A tensor program: text of straight-line Python, text of its inputs for each call, and how it is compiled and called."""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.fuzz.minimise import shorter
from tests.fuzz.tensors.values import names

NAME = re.compile(r"\b[vxn]\d+\b")
_files = itertools.count()


@dataclass(frozen=True)
class Line:
    """One statement: what it binds, and its text."""

    targets: tuple[str, ...]
    text: str

    def uses(self) -> list[str]:
        return [name for name in dict.fromkeys(NAME.findall(self.text)) if name not in self.targets]


@dataclass(frozen=True)
class Given:
    """One argument: its expression at each call, and its part in gradients: "", "leaf" or "made" (of a leaf)."""

    name: str
    calls: tuple[str, ...]
    grad: str = ""


@dataclass(frozen=True)
class TensorProgram:
    """A program, its arguments at each call, its results, and what it is compiled with."""

    given: tuple[Given, ...]
    lines: tuple[Line, ...]
    results: tuple[str, ...]
    backend: str = "braze"
    dynamic: bool | None = None
    #: around each call: "", "no_grad", "inference_mode", "autocast"
    around: str = ""
    #: results are summed and differentiated
    backward: bool = False
    #: of braze.compile
    options: tuple[tuple[str, Any], ...] = (("verify", 2),)
    #: where its arguments are
    device: str = "cpu"

    @property
    def calls(self) -> int:
        return len(self.given[0].calls) if self.given else 1

    def text(self) -> str:
        """The function."""
        body = "\n".join(line.text for line in self.lines) or "pass"
        body = "\n".join("    " + line for line in body.split("\n"))
        results = "".join(f"{name}, " for name in self.results).strip()
        return f"def program({', '.join(g.name for g in self.given)}):\n{body}\n    return ({results})\n"

    def function(self, double: bool = False) -> Callable[..., Any]:
        """The function, made anew: its code is an object of its own."""
        text, file = self.text(), f"<tensor program {next(_files)}>"
        namespace = names(double, self.device)
        exec(compile(text, file, "exec"), namespace)
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        return namespace["program"]

    def arguments(self, call: int, double: bool = False) -> list[Any]:
        """The arguments of one call; later ones may be views of earlier ones."""
        namespace = names(double, self.device)
        for given in self.given:
            namespace[given.name] = eval(given.calls[call], namespace)
        return [namespace[given.name] for given in self.given]

    def tags(self) -> tuple[str, ...]:
        found = [] if self.device == "cpu" else [f"on {self.device}"]
        found += [self.backend] if self.backend != "braze" else ["with kernels"]
        if self.backward:
            found.append("gradients")
        if any(len(set(given.calls)) > 1 for given in self.given):
            found.append("changing inputs")
        return tuple(found)

    def source(self) -> str:
        """Text that makes this record, with the program readable."""
        settings = [
            f"    {f.name}={getattr(self, f.name)!r}," for f in fields(self)[3:] if getattr(self, f.name) != f.default
        ]  # fmt: skip
        given = "\n".join(f"    Given({g.name!r}, {g.calls!r}, {g.grad!r})," for g in self.given)
        return (
            "from tests.fuzz.tensors import check as checking\n"
            "from tests.fuzz.tensors.program import Given, parsed\n\n"
            f"TEXT = '''\\\n{self.text()}'''\n\nGIVEN = (\n{given}\n)\n\n\ndef check():\n"
            "    return checking.check(parsed(\n    TEXT,\n    GIVEN,\n" + "\n".join(settings) + "\n    ))\n"
        )

    def smaller(self) -> Iterator[TensorProgram]:
        """Fewer statements, results, calls, arguments; simpler statements, arguments and settings."""
        for index in shorter(range(len(self.lines))):
            yield self.with_lines([self.lines[i] for i in index])
        for results in shorter(self.results):
            yield replace(self, results=results)
        for kept in shorter(range(self.calls)):
            if kept:
                yield replace(
                    self, given=tuple(replace(g, calls=tuple(g.calls[i] for i in kept)) for g in self.given)
                )
        yield from self.without_unused()
        for i, line in enumerate(self.lines):
            yield from self.around_line(i, line)
        yield from self.simpler_settings()
        yield from self.simpler_arguments()

    def with_lines(self, lines: list[Line]) -> TensorProgram:
        """These statements, less those that use what none of them binds."""
        known = {given.name for given in self.given}
        kept = []
        for line in lines:
            if known.issuperset(line.uses()):
                kept.append(line)
                known.update(line.targets)
        results = tuple(name for name in self.results if name in known)
        return replace(self, lines=tuple(kept), results=results or self.results[:0])

    def around_line(self, i: int, line: Line) -> Iterator[TensorProgram]:
        """A statement left out, with one of what it reads in the place of what it binds; or with constants made simple."""
        if len(line.targets) == 1:
            for name in line.uses():
                yield self.renamed(line.targets[0], name, [*self.lines[:i], *self.lines[i + 1 :]])
        if "\n" in line.text:  # without its `with`
            inner = "\n".join(row.removeprefix("    ") for row in line.text.split("\n")[1:])
            yield replace(self, lines=(*self.lines[:i], replace(line, text=inner), *self.lines[i + 1 :]))

    def renamed(self, old: str, new: str, lines: list[Line]) -> TensorProgram:
        def put(text: str) -> str:
            return re.sub(rf"\b{old}\b", new, text)

        return replace(
            self,
            lines=tuple(Line(tuple(map(put, line.targets)), put(line.text)) for line in lines),
            results=tuple(put(name) for name in self.results),
        )

    def without_unused(self) -> Iterator[TensorProgram]:
        used = {name for line in self.lines for name in line.uses()} | set(self.results)
        used |= {name for g in self.given for text in g.calls for name in NAME.findall(text)}
        kept = tuple(g for g in self.given if g.name in used)
        if kept and len(kept) < len(self.given):
            yield replace(self, given=kept)

    def simpler_settings(self) -> Iterator[TensorProgram]:
        if self.backward:
            yield replace(self, backward=False)
        if self.around:
            yield replace(self, around="")
        if self.dynamic is not None:
            yield replace(self, dynamic=None)
        for backend in ("eager", "aot_eager"):
            if self.backend not in ("eager", backend):
                yield replace(self, backend=backend)

    def simpler_arguments(self) -> Iterator[TensorProgram]:
        for i, given in enumerate(self.given):
            rest = self.given[:i], self.given[i + 1 :]
            if given.grad:
                yield replace(self, given=(*rest[0], replace(given, grad=""), *rest[1]))
            for calls in simpler_expressions(given.calls):
                yield replace(self, given=(*rest[0], replace(given, calls=calls), *rest[1]))


def simpler_expressions(calls: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Arguments without what is done to the numbers, or of other numbers, alike at each call."""
    if len(set(calls)) > 1:
        yield (calls[0],) * len(calls)
    for pattern, new in (
        (r"^(numbers\(.*?\))[.\[].*$", r"\1"),
        (r"'(normal|special|large)'", "'small'"),
        (r"'(float64|bfloat16|float16)'", "'float32'"),
        (r"'(int32|int16|int8|uint8)'", "'int64'"),
    ):
        simple = tuple(re.sub(pattern, new, text) for text in calls)
        if simple != calls:
            yield simple


def parsed(text: str, given: tuple[Given, ...], **settings: Any) -> TensorProgram:
    """The record of a program's text."""
    rows = [row.removeprefix("    ") for row in text.strip("\n").split("\n")[1:]]
    last = rows.pop().strip().removeprefix("return").strip("() ")
    results = tuple(name for name in last.replace(" ", "").split(",") if name)
    lines: list[Line] = []
    for row in rows:
        if row.startswith(" ") and lines:
            lines[-1] = replace(lines[-1], text=f"{lines[-1].text}\n{row}")
        elif row != "pass":
            lines.append(Line((), row))
    lines = [replace(line, targets=bound_by(line.text)) for line in lines]
    return TensorProgram(given, tuple(lines), results, **settings)


def bound_by(text: str) -> tuple[str, ...]:
    """The names that a statement binds."""
    found: list[str] = []
    for row in text.split("\n"):
        match = re.match(r"\s*((?:v\d+, )*v\d+) = ", row)
        if match:
            found += match[1].split(", ")
    return tuple(found)
