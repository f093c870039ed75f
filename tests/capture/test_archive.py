"""Captures as bytes: what was written is read back the same, by processes of the same code only."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
import os
import random
import re
import sys
import types
from pathlib import Path
from typing import Any

import archive_subjects as subjects
import numpy as np
import pytest
import torch
from captured import same
from hypothesis import given
from hypothesis import strategies as st

from braze.capture.archive import archive, fingerprint
from braze.capture.archive.archived_values import NotArchived, Reader, Writer
from braze.capture.dispatch.session import compile_callable
from braze.capture.facts import objects_by_name
from braze.capture.facts.records import (
    Build,
    Check,
    Constant,
    Effect,
    EffectKind,
    FromSource,
    GraphOutput,
    Guard,
    IdentityKey,
    ShapeRelation,
    Source,
    Step,
)
from braze.capture.trace.tracer import trace_frame
from braze.graph.nodes.facts import facts
from braze.graph.nodes.specs import FloatSpec, SymbolSpec, TensorSpec
from braze.options import Options
from braze.support import trace
from braze.support.errors import Origin
from tests import processes

ROOT = Path(__file__).parent.parent.parent


# -- values


def round_trip(value: Any) -> Any:
    writer = Writer()
    text = json.dumps([writer.write(value), writer.tables()])
    data, tables = json.loads(text)
    return Reader(tables).read(data)


def identical(a: Any, b: Any) -> bool:
    """Equal in types and values all the way down; nan is itself, zeros have signs."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a.hex() == b.hex() and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, complex):
        return identical(a.real, b.real) and identical(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, slice):
        return identical((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, dict):
        return identical(list(a.items()), list(b.items()))
    return bool(a == b)


HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
    st.sampled_from(
        [..., NotImplemented, torch.float16, torch.strided, torch.channels_last, torch.device("cuda", 1)]
    ),
    st.builds(range, st.integers(-5, 5), st.integers(-5, 5), st.integers(1, 3)),
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.text(max_size=3), inner),
        st.builds(slice, inner, inner, inner),
        st.lists(st.integers(0, 9)).map(torch.Size),
        st.sets(st.integers()),
        st.frozensets(st.text(max_size=3)),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_plain_values_come_back_exactly(value: Any) -> None:
    back = round_trip(value)
    assert identical(back, value), (back, value)


def test_huge_numbers_come_back() -> None:
    for value in (1 << 20_000, -(1 << 53), (1 << 53) - 1, True):
        assert identical(round_trip(value), value)


X = Source(Step.LOCAL, 0)
MADE = [
    Source(Step.ITEM, (1, True, 1.0), Source(Step.DICT, "table", X)),
    Source(Step.CONSTANT, IdentityKey(torch.nn.Linear)),
    Source(Step.COMPUTED, ("(n0 + n1)", (Source(Step.SIZE, 1, X),)), Source(Step.LOCAL, 1)),
    Guard(X, Check.TYPE, torch.nn.Linear, Origin("file.py", 3, 1, 3, 9, "f")),
    Guard(None, Check.AUTOCAST, (("cpu", False, torch.bfloat16), True)),
    Guard(X, Check.DISTINCT, (Source(Step.LOCAL, 1), Source(Step.GLOBAL, "y"))),
    Guard(None, Check.RANGE, ShapeRelation("s0 <= 4", ("s0",))),
    Guard(X, Check.TENSOR, TensorSpec(torch.float32, torch.device("cpu"), (2, "s0"), ("s0", 1), 0, True)),
    SymbolSpec("s0", 4),
    FloatSpec("z", math.inf),
    (FromSource(X), GraphOutput(1), Constant(torch.add), Build("dict", (0, 1), cls=dict, names=("a",))),
    Effect(EffectKind.CALL, (1, 2), "name"),
]


@pytest.mark.parametrize("value", MADE, ids=lambda v: type(v).__name__)
def test_records_come_back(value: Any) -> None:
    assert round_trip(value) == value


def test_sources_stay_interned() -> None:
    first, second = round_trip((Source(Step.ATTR, "a", X), X))
    assert first.parent is second is X


# -- names


NAMED = [
    torch,
    torch.add,
    torch.nn.functional.gelu,
    torch.nn.Linear.forward,
    torch.Tensor.view,
    torch._C.TensorBase.shape,
    torch.ops.aten.add.Tensor,
    torch.ops.aten.add,
    torch.nn.functional.__dict__,
    len,
    dict.items,
    type(None),
    types.FunctionType,
    os.environ,
    os.environ.encodekey,
    np.dtype,
    type(np.dtype),
    logging.getLogger("some.place").warning,
    subjects.decorated,
    subjects.decorated.__wrapped__,
    subjects.decorated.__wrapped__.__wrapped__,
    Check.IS,
]


@pytest.mark.parametrize("value", NAMED, ids=lambda v: getattr(v, "__name__", type(v).__name__))
def test_an_object_is_found_by_its_name(value: Any) -> None:
    name = objects_by_name.name_of(value)
    assert name is not None
    found = objects_by_name.object_at(as_tuples(json.loads(json.dumps(name))))
    assert found is value or (found == value and isinstance(value, types.MethodType))


def as_tuples(value: Any) -> Any:
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def test_a_pattern_is_what_it_is_made_of() -> None:
    pattern = re.compile("an? expression", re.DOTALL)
    name = objects_by_name.name_of(pattern)
    assert name is not None and objects_by_name.object_at(name) is pattern


def test_what_cannot_be_found_has_no_name() -> None:
    impostor = types.FunctionType(subjects.helper.__code__, {}, "helper")
    impostor.__module__, impostor.__qualname__ = subjects.__name__, "helper"
    assert objects_by_name.name_of(impostor) is None
    assert objects_by_name.name_of(object()) is None
    assert objects_by_name.name_of(lambda: None) is None


def test_what_the_program_has_put_into_a_library_is_not_what_the_name_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = objects_by_name.name_of(torch.relu)
    assert name is not None
    monkeypatch.setattr(torch, "relu", lambda x: x)
    with pytest.raises(LookupError):
        objects_by_name.object_at(name)


def test_no_module_is_imported_that_nothing_led_to() -> None:
    with pytest.raises(LookupError):
        objects_by_name.object_at(("at", "antigravity", ()))
    assert "antigravity" not in sys.modules


# -- captures


def captured(fn: Any, *args: Any) -> Any:
    return trace_frame(fn, args, Options())


X4 = torch.arange(16.0).reshape(4, 4)
CASES: list[tuple[Any, tuple[Any, ...]]] = [
    (subjects.nested_results, (X4,)),
    (subjects.writes, (X4, {"n": 1})),
    (subjects.breaks, (X4,)),
    (subjects.calls_one_that_breaks, (X4,)),
    (subjects.makes_a_function, (X4,)),
    (subjects.calls_decorated, (X4,)),
    (subjects.without_gradients, (X4.clone().requires_grad_(),)),
    (subjects.transposed_in_place, (X4,)),
    (subjects.splits, (X4,)),
    (subjects.draws, (X4,)),
    (subjects.arrays, (X4, np.arange(3.0), [np.ones(4, np.float32)])),
    (subjects.chooses, (X4,)),
    (subjects.puts_hooks, (X4.clone().requires_grad_(),)),
    (subjects.counts, (X4,)),
    (subjects.Net.forward, (subjects.Net(), X4)),
]
#: what gives something else at each call, or counts
OTHER_EACH_TIME = (subjects.draws, subjects.chooses, subjects.puts_hooks, subjects.counts)


@pytest.mark.parametrize(("fn", "args"), CASES, ids=lambda v: getattr(v, "__qualname__", ""))
def test_a_capture_comes_back(fn: Any, args: tuple[Any, ...]) -> None:
    made = captured(fn, *args)
    back = archive.loads(archive.dumps(made, fn), fn, args)
    for field in (*archive.FIELDS, "code"):
        assert getattr(back, field) == getattr(made, field), field
    for ours, theirs in zip(back.graph.graph.nodes, made.graph.graph.nodes, strict=True):
        assert (ours.op, ours.name, str(ours.target)) == (theirs.op, theirs.name, str(theirs.target))
        assert described(ours.meta.get("val")) == described(theirs.meta.get("val")), ours
        assert facts(ours) == facts(theirs)._replace(step=1)
    assert back.graph.code == made.graph.code
    assert [described(e) for e in back.examples] == [described(e) for e in made.examples]


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride(), value.device, value.requires_grad, type(value)
    return [described(v) for v in value] if isinstance(value, list | tuple) else value


def test_grad_mode_is_left_as_it_was() -> None:
    x = X4.clone().requires_grad_()
    data = archive.dumps(captured(subjects.without_gradients, x), subjects.without_gradients)
    archive.loads(data, subjects.without_gradients, (x,))
    assert torch.is_grad_enabled()


def test_guards_are_asked_first() -> None:
    data = archive.dumps(captured(subjects.nested_results, X4), subjects.nested_results)
    for other in (X4[:2], X4.double(), X4.clone().requires_grad_(), 3):
        with pytest.raises(NotArchived, match="guards"):
            archive.loads(data, subjects.nested_results, (other,))
    with torch.no_grad(), pytest.raises(NotArchived, match="guards"):
        archive.loads(data, subjects.nested_results, (X4,))


def test_code_without_a_file_is_not_written() -> None:
    scope: dict[str, Any] = {}
    exec("def f(x):\n    return x + 1", scope)
    with pytest.raises(NotArchived, match="no file"):
        archive.dumps(captured(scope["f"], X4), scope["f"])


def test_another_default_of_an_inlined_function_is_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    data = archive.dumps(captured(subjects.nested_results, X4), subjects.nested_results)
    monkeypatch.setattr(subjects.helper, "__defaults__", (4.0,))
    with pytest.raises(NotArchived, match="changed"):
        archive.loads(data, subjects.nested_results, (X4,))


@pytest.mark.parametrize("part", ["python", "torch", "braze", "devices", "platform"])
def test_other_surroundings_are_refused(part: str) -> None:
    whole = json.loads(archive.dumps(captured(subjects.nested_results, X4), subjects.nested_results))
    whole["header"]["surroundings"][part] = "another"
    with pytest.raises(NotArchived, match=part):
        archive.loads(json.dumps(whole).encode(), subjects.nested_results, (X4,))


def test_damage_is_told_from_faults() -> None:
    data = archive.dumps(captured(subjects.nested_results, X4), subjects.nested_results)
    for broken in (
        b"",
        b"{}",
        data[:-9],
        data.replace(b'"Guard"', b'"Guide"'),
        data.replace(b'["t"', b'["?"'),
    ):
        with pytest.raises(NotArchived):
            archive.loads(broken, subjects.nested_results, (X4,))


def test_fingerprints_do_not_depend_on_places() -> None:
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    text = "def f(x, n={}):\n    return x in {{'a', 'b', 'c'}} or n"
    exec(text.format(1), first)
    exec("\n\n" + text.format(1), second)
    assert fingerprint.of_function(first["f"]) == fingerprint.of_function(second["f"])
    exec(text.format(2), second)
    assert fingerprint.of_function(first["f"]) != fingerprint.of_function(second["f"])


# -- kept on disk


class Kept:
    """A function compiled with ``keep_captures`` again and again, as if by new processes."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        monkeypatch.setenv("BRAZE_CACHE_DIR", str(folder))

    def run(self, fn: Any, *args: Any, **options: Any) -> tuple[Any, dict[str, int]]:
        """The result of a first call, and the counters of captures."""
        entry = compile_callable(
            fn, lambda graph, examples: graph.forward, Options(keep_captures=True, **options)
        )
        before, _ = trace.snapshot()
        result = entry(*args)
        after, _ = trace.snapshot()
        names = ("captures", "captures_loaded")
        return result, {n: after[n] - before[n] for n in names if after[n] != before[n]}

    def entries(self) -> list[Path]:
        return sorted(self.folder.rglob("*.json"))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("fn", "args"),
    [c for c in CASES if c[0] not in OTHER_EACH_TIME and c[0] is not subjects.calls_one_that_breaks],
    ids=lambda v: getattr(v, "__qualname__", ""),
)
def test_a_kept_capture_serves_without_tracing(kept: Kept, fn: Any, args: tuple[Any, ...]) -> None:
    def fresh() -> Any:
        subjects.LOG.clear()
        return copy.deepcopy(args)

    first, counted = kept.run(fn, *fresh())
    assert counted == {"captures": counted["captures"]}
    second, again = kept.run(fn, *fresh())
    assert again == {"captures_loaded": counted["captures"]}
    if callable(first):
        first, second = first(X4), second(X4)
    assert same(first, second)


def test_writes_are_replayed(kept: Kept) -> None:
    for _ in range(2):
        box, x = {"n": 4}, X4.clone()
        subjects.LOG.clear()
        result, _ = kept.run(subjects.writes, x, box)
        assert box == {"n": 4, "seen": 5}
        assert subjects.LOG == [4]
        assert torch.equal(x, X4 + 1) and torch.equal(result, (X4 + 1) * 2)


def test_arrays_that_overlap_are_told_apart_from_those_that_do_not(kept: Kept) -> None:
    counts = []
    for _ in range(2):
        base = np.arange(6, dtype=np.float32)
        (result, y), counted = kept.run(subjects.arrays, X4, base[:4], [base[2:6]])
        expected = np.array([0, 2, 4, 6, 4, 5], np.float32)
        assert np.array_equal(base, expected) and y.tolist() == expected[:4].tolist()
        assert torch.equal(result, X4 + 12.0 * 4 + torch.tensor(expected[2:]))
        counts.append(counted)
    assert counts == [{"captures": 1}, {"captures_loaded": 1}]


def test_numbers_are_drawn_anew(kept: Kept) -> None:
    random.seed(3)
    expected = subjects.draws(X4)[1:], random.random()
    for counted in ({"captures": 1}, {"captures_loaded": 1}):
        random.seed(3)
        result, counts = kept.run(subjects.draws, X4)
        assert (result[1:], random.random()) == expected
        assert counts == counted


def test_each_kind_of_input_has_its_own(kept: Kept) -> None:
    for x in (X4, X4.double(), X4.bool()):
        assert kept.run(subjects.calls_decorated, x)[1] == {"captures": 1}
    for x in (X4.double(), X4, X4.bool()):
        result, counted = kept.run(subjects.calls_decorated, x)
        assert counted == {"captures_loaded": 1}
        assert torch.equal(result, subjects.calls_decorated(x))


def test_no_more_are_kept_than_variants_are_allowed(kept: Kept) -> None:
    for n in range(1, 6):
        kept.run(subjects.calls_decorated, torch.ones(n), recompile_limit=2)
    assert len(kept.entries()) == 2


@pytest.mark.parametrize("how", ["torn", "emptied", "other bytes", "honest hash of nonsense"])
def test_a_damaged_entry_is_made_again(kept: Kept, how: str) -> None:
    kept.run(subjects.calls_decorated, X4)
    (entry,) = kept.entries()
    whole = entry.read_bytes()
    if how == "honest hash of nonsense":
        entry.write_bytes(
            b"braze1 " + hashlib.sha256(b'{"header": 3}').hexdigest().encode() + b'\n{"header": 3}'
        )
    else:
        entry.write_bytes({"torn": whole[:-100], "emptied": b"", "other bytes": whole[::-1]}[how])
    result, counted = kept.run(subjects.calls_decorated, X4)
    assert counted == {"captures": 1}
    assert torch.equal(result, subjects.calls_decorated(X4))
    assert kept.run(subjects.calls_decorated, X4)[1] == {"captures_loaded": 1}


def test_nothing_is_kept_unasked(kept: Kept) -> None:
    compile_callable(subjects.calls_decorated, lambda graph, examples: graph.forward, Options())(X4)
    assert kept.entries() == []


# -- symbols


def test_symbolic_sizes_come_back(kept: Kept) -> None:
    sizes = ((4, 4), (7, 5), (3, 9))
    for a, b in sizes[:1]:
        assert kept.run(subjects.calls_decorated, torch.ones(a, b), dynamic=True)[1] == {"captures": 1}
    for a, b in sizes:
        x = torch.rand(a, b)
        result, counted = kept.run(subjects.calls_decorated, x, dynamic=True)
        assert counted == {"captures_loaded": 1}
        assert torch.equal(result, subjects.calls_decorated(x))
    assert kept.run(subjects.calls_decorated, torch.ones(1, 5), dynamic=True)[1] == {"captures": 1}


def test_a_size_that_changed_is_loaded_symbolic(kept: Kept) -> None:
    def session() -> list[dict[str, int]]:
        found = []
        entry = compile_callable(
            subjects.reshapes, lambda graph, examples: graph.forward, Options(keep_captures=True)
        )
        for n in (4, 6, 8):
            before, _ = trace.snapshot()
            assert torch.equal(
                entry(torch.ones(n, 2), n, 0.5 * n), subjects.reshapes(torch.ones(n, 2), n, 0.5 * n)
            )
            after, _ = trace.snapshot()
            names = ("captures", "captures_loaded")
            found.append({k: after[k] - before[k] for k in names if after[k] != before[k]})
        return found

    first = session()
    assert [sum(c.values()) for c in first][0] == 1 and not any("captures_loaded" in c for c in first)
    assert session() == [{"captures_loaded": c["captures"]} if c else {} for c in first]


@pytest.mark.parametrize("subject", [subjects.chosen, subjects.chosen_by_arithmetic])
def test_a_number_that_an_int_chose_is_loaded_as_chosen(kept: Kept, subject: Any) -> None:
    def session() -> list[tuple[int, int]]:
        found = []
        entry = compile_callable(subject, lambda graph, examples: graph.forward, Options(keep_captures=True))
        for n in (4, 6, 8, 2, 3):
            before, _ = trace.snapshot()
            ours, theirs = entry(X4, n), subject(X4, n)
            assert torch.equal(ours[0], theirs[0]) and ours[1] == theirs[1]
            after, _ = trace.snapshot()
            found.append(tuple(after[k] - before[k] for k in ("captures", "captures_loaded")))
        return found

    assert session() == [(1, 0), (1, 0), (0, 0), (0, 0), (0, 0)]
    assert session() == [(0, 1), (0, 1), (0, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("n", [4, 7])
def test_symbolic_metadata_comes_back(n: int) -> None:
    made = trace_frame(subjects.reshapes, (torch.ones(6, 2), 6, 3.0), Options(), symbolic="all")
    args = (torch.ones(n, 2), n, 1.5)
    back = archive.loads(archive.dumps(made, subjects.reshapes), subjects.reshapes, args)
    assert [str(described(v)) for v in back.examples] == [str(described(v)) for v in made.examples]
    for ours, theirs in zip(back.graph.graph.nodes, made.graph.graph.nodes, strict=True):
        assert str(described(ours.meta.get("val"))) == str(described(theirs.meta.get("val"))), ours


# -- between processes

MODULE = """
import torch
FACTOR = 2
def inner(x):
    return x * FACTOR
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        y = inner(self.linear(x)).relu()
        if y.sum() > 1e9:
            return y
        return y + 1
"""
PROCESS = """
import torch, braze, subject
from braze.support import trace
torch.manual_seed(0)
net = subject.Net()
with torch.no_grad():
    x = torch.ones(2, 4)
    compiled = braze.compile(net, backend="eager", options={"keep_captures": True})
    same = torch.equal(compiled(x), net(x))
print(same, trace.COUNTERS["captures"], trace.COUNTERS["captures_loaded"])
"""


def test_a_later_process_loads_what_an_earlier_one_traced(tmp_path: Path) -> None:
    module = tmp_path / "subject.py"
    environment = {"BRAZE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": f"{ROOT}:{tmp_path}"}

    def process() -> list[str]:
        done = processes.run(PROCESS, folder=tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    module.write_text(MODULE)
    same_result, traced, loaded = process()
    assert same_result == "True" and int(traced) > 0 and loaded == "0"
    assert process() == ["True", "0", traced]
    module.write_text(MODULE.replace("x * FACTOR", "x * FACTOR - 3"))
    same_result, again, loaded = process()  # frames of PyTorch's own may still be loaded
    assert same_result == "True" and int(again) > 0 and int(again) + int(loaded) == int(traced)


def test_all_that_makes_captures_is_in_the_fingerprint() -> None:
    names = {"/".join(path.parts[-3:]) for path in fingerprint.our_files()}
    assert {"capture/trace/tracer.py", "capture/python/calls.py", "graph/fakes/fakes.py"} <= names
    assert not any("aot" in path.parts for path in fingerprint.our_files())
