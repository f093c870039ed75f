"""Where bugs are seeded: which files, by stage, and which code in them is no behaviour that a result could show."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.fuzz.failures import ROOT

#: stage -> its share of the bugs, the files it has
STAGES: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "lowering": (50, ("braze/lower/*.py", "braze/loops/*.py", "braze/symbolic/*.py")),
    "scheduling": (35, ("braze/schedule/*/*.py",)),
    "code generation": (55, ("braze/codegen/*/*.py",)),
    "guards": (
        35,
        (
            "braze/capture/guards/tables.py", "braze/capture/**/reads.py", "braze/capture/**/sources.py",
            "braze/capture/**/shadows.py", "braze/capture/**/dynamic.py", "braze/graph/sizes/shape_guards.py",
            "braze/native/encode.py", "braze/native/relation.py", "braze/native/walk.py", "braze/native/torch_state.py",
        ),
    ),
    "functionalization": (55, ("braze/aot/*/*.py", "braze/decomp/*.py")),
}  # fmt: skip

#: files that are left out, and why
LEFT_OUT: Mapping[str, str] = {
    "*/printer.py": "text for people",
    "*/verify.py": "looks for bugs of other code: a weaker one changes no result",
    "*/proof.py": "looks for bugs of other code, or leaves out work",
    "*/promises.py": "looks for bugs of other code",
    "*/interpret.py": "what tests compare with",
    "*/replay.py": "what tests compare with",
    "*/choices.py": "chooses by cost",
    "*/budget.py": "chooses by cost",
    "*/min_cut.py": "chooses by cost",
    "*/timeline.py": "counts costs",
    "*/footprint.py": "counts costs",
    "*/blockgraph.py": "chooses by cost",
    "*/schedule/fusion/fusion.py": "chooses by cost (what may be fused is in legality.py)",
    "*/schedule/memory/order.py": "chooses by cost",
    "*/schedule/stage/sequence.py": "looks for bugs of other code",
    "*/codegen/c/order.py": "looks for bugs of other code",
    "*/aot/passes/layouts.py": "chooses by cost",
}

#: functions whose result people read, or by which something is only quicker
UNSEEN = ("__repr__", "__str__", "__hash__", "describe*", "explain*", "*cost*", "*worth*", "*report*", "*told*", "*score*",
    "tiling", "_cheap", "split_units")  # fmt: skip
#: calls whose arguments are words for people
WORDS = {
    "log", "trace", "warn", "warn_once", "warning", "InternalError", "Unsupported", "UserError", "BackwardError", "Kept",
    "Unproved", "isinstance", "TypeVar", "print", "Where",
}  # fmt: skip


def files(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """(stage, path) of each file that gets bugs."""
    for stage, (_, patterns) in STAGES.items():
        found = {path.relative_to(root).as_posix() for pattern in patterns for path in root.glob(pattern)}
        for path in sorted(found):
            if not any(fnmatch.fnmatch(path, pattern) for pattern in LEFT_OUT):
                yield stage, path


def unseen(function: str) -> bool:
    return any(fnmatch.fnmatch(function, pattern) for pattern in UNSEEN)


def words(call: ast.Call) -> bool:
    """Whether a call makes text for people: a log's, an error's, a trace's."""
    function: ast.expr = call.func
    names = set()
    while isinstance(function, ast.Attribute):
        names.add(function.attr)
        function = function.value
    if isinstance(function, ast.Name):
        names.add(function.id)
    return bool(names & WORDS)


def only_raises(statements: list[ast.stmt]) -> bool:
    """A check of braze's own work: where braze is right, what it raises is never raised."""
    return (
        len(statements) == 1
        and isinstance(statements[0], ast.Raise)
        and "InternalError" in ast.dump(statements[0])
    )
