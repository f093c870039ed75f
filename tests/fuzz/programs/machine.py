"""Python programs, called several times while their surroundings change: compiled, they do what they do in Python."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import linecache
import random
import re
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import braze
from tests.end_to_end.conformance import Camera
from tests.fuzz.machine import Finding, Machine
from tests.fuzz.minimise import shorter
from tests.fuzz.programs.grammar import Grammar, Statement, lines, smaller
from tests.fuzz.programs.prelude import FLIPS, PRELUDE
from tests.helpers import logged

HEAD = "def f(x, y, n, box, xs, d, *args, flag=False, **kw):"
#: what the program may rely on
START = [
    "global G, LOG", "m = n + 1", "s = 'abc'", "rec = Record()", "slot = Slotted(n, x)", "dq = deque([1, 2, 3], maxlen=3)", "dd = defaultdict(list)", "rest = [n]",
]  # fmt: skip
END = "return x, y, n, m, s, box, xs, d, rec, kw, slot.v, slot.t, list(dq), dict(dd), rest"
_files = itertools.count()
#: what differs in the text of an object from run to run
ADDRESS = re.compile("0x[0-9a-f]+")


@dataclass(frozen=True)
class Call:
    """What changes before a call, and how the program is called."""

    flip: str
    n: int
    flag: bool
    size: int
    thread: bool = False


@dataclass(frozen=True)
class Written:
    """A program, its calls, and the backend."""

    body: tuple[Statement, ...]
    calls: tuple[Call, ...]
    backend: str

    def text(self) -> str:
        body = [f"    {line}" for line in START] + list(lines(self.body, "    ")) + [f"    {END}"]
        return "\n".join([PRELUDE, "", HEAD, *body, ""])

    def source(self) -> str:
        shown = "\n".join(f"# {line}" for line in [HEAD, *lines(self.body, "    ")])
        return (
            f"{shown}\n\nfrom tests.fuzz.programs import machine\nfrom tests.fuzz.programs.machine import Call, Written\n\n\n"
            f"def check():\n    return machine.check({self!r})"
        )

    def smaller(self) -> Iterator[Written]:
        for calls in shorter(self.calls):
            if calls:
                yield replace(self, calls=calls)
        for body in smaller(self.body):
            yield replace(self, body=body)
        for k, call in enumerate(self.calls):
            for simpler in (
                replace(call, flip="nothing"),
                replace(call, thread=False),
                replace(call, flag=False),
                replace(call, size=3),
            ):
                if simpler != call:
                    yield replace(self, calls=(*self.calls[:k], simpler, *self.calls[k + 1 :]))

    def tags(self) -> tuple[str, ...]:
        return tuple(sorted({call.flip for call in self.calls} - {"nothing"}))[:1] and ("flipped",)


def generate(seed: int) -> Written:
    rng = random.Random(seed)
    grammar = Grammar(rng)
    body = tuple(grammar.statement() for _ in range(rng.randint(2, 7)))
    calls = tuple(
        Call(
            rng.choice(list(FLIPS)) if k and rng.random() < 0.6 else "nothing", rng.choice([1, 1, 2, 0, -1]), rng.random() < 0.3,
            rng.choice([3, 3, 3, 4]), rng.random() < 0.05,
        )
        for k in range(rng.randint(2, 5))
    )  # fmt: skip
    return Written(body, calls, rng.choice(["eager"] * 8 + ["aot_eager", "braze"]))


class Witness(Camera):
    """A camera that looks at exceptions more closely: lines of the program, causes and contexts all the way."""

    def __init__(self, exact: bool, file: str) -> None:
        super().__init__(exact)
        self.file = file

    def exception(self, error: BaseException) -> Any:
        rows = [
            (f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if f.filename == self.file
        ]
        if isinstance(
            error, RecursionError
        ):  # how deep the limit lets a function go is a matter of whose frames are below it
            rows = [row for row, _ in itertools.groupby(rows)]
        chained = [None if e is None else self.photo(e) for e in (error.__cause__, error.__context__)]
        return (
            ADDRESS.sub("0x", str(error)),
            rows,
            chained,
            error.__suppress_context__,
            getattr(error, "__notes__", []),
        )


def run(program: Written, compiling: Callable[[Any], Any], exact: bool) -> list[Any]:
    """All that a caller sees of a program."""
    file = f"<program {next(_files)}>"
    text = program.text()
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType("program")
    sys.modules["program"] = module
    space = vars(module)
    exec(compile(text, file, "exec"), space)
    space["BOX"] = space["Box"](2, torch.ones(3))
    f = compiling(space["f"])
    seen, out = [], io.StringIO()
    camera = Witness(exact, file)
    with contextlib.redirect_stdout(out):
        for k, call in enumerate(program.calls):
            with contextlib.suppress(TypeError):  # the program has put text where the number was
                exec(FLIPS[call.flip], space)
            x, y = torch.linspace(-1, 2, call.size), torch.full((call.size,), 0.5)
            given = (x, y, call.n, space["BOX"], [1, y], {"a": 1, "k": x}, [k])
            outcome = outcome_of(f, given, {"flag": call.flag, "b": k}, call.thread)
            seen.append(("result", camera.photo(outcome)))
            seen.append(("arguments", camera.photo(given)))
            state = [
                space["G"],
                space["CONF"],
                space["LOG"],
                space["Box"].total,
                space["STEP"].__closure__[0].cell_contents,
            ]
            seen.append(("state", camera.photo(state)))
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_flash_sdp(True)
    seen.append(("printed", out.getvalue()))
    return seen


def outcome_of(f: Any, args: Any, kwargs: Any, thread: bool) -> Any:
    """What a call returns or raises."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(f(*args, **kwargs))
        except Exception as error:
            found.append(error)

    if thread:
        worker = threading.Thread(target=call)
        worker.start()
        worker.join()
    else:
        call()
    return found[0]


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """An exception that `contextlib` raises anew leads to itself: what its frames hold ends when the collector comes by, in eager too."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def check(program: Written) -> Finding | None:
    """Run the program in Python and compiled."""
    try:
        compile(program.text(), "<program>", "exec")
    except SyntaxError:
        return None
    braze.reset()
    exact = program.backend != "braze"
    with warnings.catch_warnings(), logged() as said, no_collector():
        warnings.simplefilter("ignore")
        wanted = run(program, lambda f: f, exact)
        seen = run(program, lambda f: braze.compile(f, backend=program.backend), exact)
    for k, (ours, theirs) in enumerate(zip(seen, wanted, strict=True)):
        if ours != theirs:
            what, where = difference(ours, theirs)
            return Finding(f"{theirs[0]} {what}", f"{where}\ncall {k // 3}")
    for message in said:
        if "BZ9" in message or "BZ6013" in message:
            return Finding("internal error", message[message.index("BZ") :][:1500])
    return None


def difference(ours: Any, theirs: Any) -> tuple[str, str]:
    """The first place in which two photographs differ: whether it is a traceback, and the two."""
    path, what = "", "value"
    while type(ours) is type(theirs) and isinstance(ours, (tuple, list)) and len(ours) == len(theirs):
        k = next((k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
        if k is None:
            break
        if k == 1 and len(ours) == 5 and isinstance(ours[0], str):
            what = "traceback"
        if k == 2 and len(ours) == 5 and isinstance(ours[0], str):
            what = "context"
        ours, theirs, path = ours[k], theirs[k], f"{path}.{k}"
    return what, f"{str(ours)[:300]} instead of {str(theirs)[:300]} at {path}"


MACHINE = Machine(generate, check)
