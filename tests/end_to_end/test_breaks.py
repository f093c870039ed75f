"""Graph breaks in real functions: same results, same side effects, same exceptions as eager; the graphs on both sides."""

from __future__ import annotations

import contextlib
import copy
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import braze
from braze.backends import default
from braze.options import Options
from braze.support import trace
from tests.helpers import breaks

LOG: list[Any] = []


def note(*values: Any) -> int:
    """A function that capture does not look into."""
    LOG.append(values)
    return len(LOG)


note = braze.disable(note)


class Seen:
    """What a compiled call did: its result, what it logged, how many graphs and breaks it took."""

    def __init__(self, fn: Callable[..., Any], *args: Any, backend: Any = "eager", **options: Any) -> None:
        self.compiled = braze.compile(fn, backend=backend, **options)
        self.result = self.call(*args)

    def call(self, *args: Any) -> Any:
        LOG.clear()
        with trace.collect() as events:
            result = self.compiled(*args)
        self.log = copy.deepcopy(LOG)
        captures = [payload for kind, payload in events if kind == "capture"]
        self.graphs = sum(1 for c in captures if c.graph is not None and has_calls(c.graph))
        self.breaks = sum(1 for c in captures if c.graph_break is not None)
        return result


def has_calls(graph: torch.fx.GraphModule) -> bool:
    return any(node.op.startswith("call_") for node in graph.graph.nodes)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(v, b[k]) for k, v in a.items())
    return bool(a == b)


def check(fn: Callable[..., Any], *args: Any, calls: int = 2) -> Seen:
    """Compiled and eager agree on result and log, on the first call and on the next."""
    LOG.clear()
    expected = fn(*copy.deepcopy(args))
    wanted = copy.deepcopy(LOG)
    seen = Seen(fn, *copy.deepcopy(args))
    first = seen.graphs, seen.breaks
    for _ in range(calls):
        assert equal(seen.result, expected), (seen.result, expected)
        assert equal(seen.log, wanted), (seen.log, wanted)
        seen.result = seen.call(*copy.deepcopy(args))
    seen.graphs, seen.breaks = first
    return seen


pytestmark = pytest.mark.usefixtures("fresh")


X = torch.arange(6.0).reshape(2, 3)


def test_a_print_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("middle", y.shape)
        return y + 1

    compiled = braze.compile(f, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), X * 2 + 1)
        assert capsys.readouterr().out == "middle torch.Size([2, 3])\n"


def test_the_broken_line_is_reported() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        note("here")
        return y + 1

    assert breaks(f, X) == [f.__code__.co_firstlineno + 2]


def test_statements_of_the_outermost_frame_break_twice() -> None:
    def f(x: torch.Tensor) -> Any:
        a = x + 1
        n = note("one")
        b = a * n
        m = note("two")
        return a, b - m, {"n": n, "m": m}

    seen = check(f, X)
    assert seen.log == [("one",), ("two",)]


def test_a_break_in_a_for_loop() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = x * 2
            note(i)
            x = x + i
        return x.sum()

    check(f, X, 4)


def test_a_break_in_a_long_loop_does_not_grow_the_stack() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n = 0
        while n < 400:
            n += note(n) * 0 + 1
        return x + n

    assert torch.equal(braze.compile(f, backend="eager")(X), X + 400)


def test_nested_loops_with_continue_break_and_else() -> None:
    def f(x: torch.Tensor) -> Any:
        out = []
        for i in range(3):
            for j in [10, 20, 30]:
                if j == 20 and i == 1:
                    note("skip")
                    continue
                if i == 2:
                    break
                x = x + j
                out.append((i, note(j)))
            else:
                note("else", i)
        return x, out

    check(f, X)


def test_a_break_inside_no_grad() -> None:
    def f(x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x * 2
            note(torch.is_grad_enabled())
            z = y + x
        return y.requires_grad, z, torch.is_grad_enabled()

    seen = check(f, X)
    assert seen.log == [(False,)]
    assert torch.is_grad_enabled()


@contextlib.contextmanager
def scaled(name: str) -> Iterator[float]:
    LOG.append(f"enter {name}")
    try:
        yield 2.0
    finally:
        LOG.append(f"exit {name}")


class Guarded:
    """A context manager in Python that may swallow."""

    def __init__(self, swallow: bool) -> None:
        self.swallow = swallow

    def __enter__(self) -> Guarded:
        LOG.append("enter")
        return self

    def __exit__(self, kind: Any, value: Any, tb: Any) -> bool:
        LOG.append(("exit", None if kind is None else kind.__name__))
        return self.swallow


def test_breaks_inside_nested_with_blocks() -> None:
    def f(x: torch.Tensor) -> Any:
        with Guarded(False), scaled("a") as k:
            y = x * k
            note("inside")
            y = y + 1
        with Guarded(True):
            note("again")
            raise ValueError("swallowed")
        return y

    check(f, X)


def test_a_break_inside_try_reaches_the_handler() -> None:
    def fail(x: Any) -> Any:
        raise KeyError("deep")

    fail = braze.disable(fail)

    def f(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            note("before")
            y = y * 2
            fail(y)
            y = y * 100
        except KeyError as error:
            y = y - 1
            note("handling", str(error))
            caught = error.args
        finally:
            note("finally")
            y = y / 2
        return y, caught

    check(f, X)


def test_a_break_inside_a_handler_and_reraise() -> None:
    def f(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            try:
                raise ValueError("inner")
            except ValueError:
                y = y * 2
                note("in handler")
                y = y + 3
                raise
        except ValueError as error:
            note(str(error))
            return y, type(error.__context__)

    check(f, X)


def helper(x: torch.Tensor, k: int) -> torch.Tensor:
    y = x * k
    note("helper", k)
    return y + k


def test_a_break_in_an_inlined_call() -> None:
    def f(x: torch.Tensor) -> Any:
        a = x + 1
        b = [helper(a, 2), helper(a, 3)]
        return sum(b), a

    check(f, X)


def test_a_break_three_calls_deep_with_values_on_the_stack() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * note("deep")

    def middle(x: torch.Tensor, *rest: Any, **more: Any) -> Any:
        return (x, inner(x + 1), *rest, more["k"])

    def f(x: torch.Tensor) -> Any:
        return {"a": x + 1, "b": [x, middle(x * 2, 7, k=x - 1), x * 3]}

    check(f, X)


def test_an_exception_two_frames_below_reaches_the_outer_handler() -> None:
    def fail() -> None:
        raise OSError("from below")

    fail = braze.disable(fail)

    def inner(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        fail()
        return y

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        try:
            y = inner(y)
        except OSError as error:
            return y + 5, str(error)
        return y

    check(f, X)


def test_data_dependent_if() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum() > 0:
            z = y * 2
        else:
            z = y - 100
        return z + y

    compiled = braze.compile(f, backend="eager")
    for value in (X, -X - 10, X, -X - 10):
        assert torch.equal(compiled(value), f(value))


def test_data_dependent_conditions_of_every_form() -> None:
    def f(x: torch.Tensor) -> Any:
        a = "yes" if x.sum() > 0 else "no"
        b = x.max() > 3 and x.min() < 1
        c = x.max() > 100 or x * 2
        d = not (x.sum() > 1)
        assert x.shape[0] == 2
        return a, bool(b), c, d

    compiled = braze.compile(f, backend="eager")
    for value in (X, -X, X + 200, X):
        assert equal(compiled(value), f(value))


def test_data_dependent_while() -> None:
    def f(x: torch.Tensor) -> Any:
        steps = 0
        while x.sum() < 1000:
            x = x * 2 + 1
            steps += 1
        return x, steps

    check(f, X)


def test_item_and_python_arithmetic() -> None:
    def f(x: torch.Tensor) -> Any:
        n = int(x.max().item())
        rows = x.tolist()
        return x * n, n + 1, len(rows), float(x[0, 1])

    check(f, X)


def test_lists_dicts_and_attributes_mutated_around_a_break() -> None:
    class Holder:
        def __init__(self) -> None:
            self.items: list[Any] = [1]
            self.table: dict[str, Any] = {}
            self.last: Any = None

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Holder) and equal(vars(self), vars(other))

        __hash__ = None  # type: ignore[assignment]

    def f(x: torch.Tensor, holder: Any, items: list[Any]) -> Any:
        items.append(x + 1)
        holder.last = items[-1]
        holder.table["before"] = x * 2
        note(len(items), list(holder.table))
        items.insert(0, holder.last)
        holder.items += items
        holder.table["after"] = holder.table.pop("before")
        del items[1]
        return holder.items[-1] + 1

    for calls in range(2):
        mine, theirs = (Holder(), [0]), (Holder(), [0])
        LOG.clear()
        expected = f(X, *theirs)
        compiled = braze.compile(f, backend="eager")
        assert equal(compiled(X, *mine), expected), calls
        assert mine[0] == theirs[0] and equal(mine[1], theirs[1])
        assert mine[1][0] is mine[0].last


def test_writes_before_a_break_are_visible_to_the_broken_call() -> None:
    seen = []

    def f(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        items.append(2)
        look(items)
        items.append(3)
        return x + len(items)

    look = braze.disable(lambda items: seen.append(list(items)))
    items = [1]
    assert torch.equal(braze.compile(f, backend="eager")(X, items), X + 3)
    assert seen == [[1, 2]] and items == [1, 2, 3]


COUNTER = 0


def test_globals_written_around_a_break() -> None:
    def f(x: torch.Tensor) -> Any:
        global COUNTER
        COUNTER += 1
        note(COUNTER)
        COUNTER += 10
        return x * COUNTER

    global COUNTER
    compiled = braze.compile(f, backend="eager")
    COUNTER = 0
    for expected in (11, 22, 33):
        assert torch.equal(compiled(X), X * expected) and COUNTER == expected


def test_closures_made_before_a_break_share_their_cells() -> None:
    def f(x: torch.Tensor) -> Any:
        total = 0

        def add(v: int) -> int:
            nonlocal total
            total += v
            return total

        add(1)
        y = x + total
        note(total)
        add(10)
        y = y * total
        total += 100
        return y, add(0), total

    check(f, X)


def test_an_outside_closure_is_written() -> None:
    count = 0

    def f(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        note(count)
        count += 1
        return x + count

    compiled = braze.compile(f, backend="eager")
    assert torch.equal(compiled(X), X + 2) and torch.equal(compiled(X), X + 4) and count == 4


def test_a_function_made_in_each_call_breaks() -> None:
    def f(x: torch.Tensor, k: int) -> Any:
        def inner(v: torch.Tensor) -> torch.Tensor:
            w = v * k
            note(k)
            return w + k

        return inner(x) + inner(x + 1)

    check(f, X, 3)
    check(f, X, 4)


def test_recursion_with_a_break() -> None:
    def fact(x: torch.Tensor, n: int) -> torch.Tensor:
        if n == 0:
            note("bottom")
            return x
        return fact(x, n - 1) * n

    check(fact, X, 4)


def test_comprehensions_around_a_break() -> None:
    def f(x: torch.Tensor) -> Any:
        parts = [x[i] * i for i in range(2)]
        sizes = {note(i): p.shape for i, p in enumerate(parts)}
        return [p + k for k, p in zip(sizes, parts)], sizes

    check(f, X)


def test_a_generator_around_a_break() -> None:
    def parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for i in range(2):
            note("gen", i)
            yield x[i] + i

    def f(x: torch.Tensor) -> Any:
        total = x * 0
        for part in parts(x):
            total = total + part
        return total

    check(f, X)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 4)
        self.b = torch.nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        h = torch.relu(self.a(x))
        note("between", self.calls)
        return self.b(h)


def test_a_module_with_a_break() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    expected = net(X)
    net.calls = 0
    compiled = braze.compile(net, backend="eager")
    for i in range(1, 4):
        assert torch.allclose(compiled(X), expected) and net.calls == i


def test_super_and_methods_after_a_break() -> None:
    class Child(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            note("child")
            return super().forward(x) + len(type(self).__name__)

    net = Child().eval()
    expected = net(X)
    assert torch.allclose(braze.compile(net, backend="eager")(X), expected)


def test_the_users_own_exception_keeps_its_traceback() -> None:
    def bad(x: torch.Tensor) -> torch.Tensor:
        note("then")
        raise RuntimeError("user's own")

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return bad(y)

    compiled = braze.compile(f, backend="eager")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="user's own") as caught:
            compiled(X)
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert 'raise RuntimeError("user\'s own")' in lines and "bad" in names
        assert caught.value.__context__ is None and caught.value.__cause__ is None


def test_an_exception_without_a_break_surfaces_as_itself() -> None:
    def f(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
        return x + table["missing"]

    compiled = braze.compile(f, backend="eager")
    for _ in range(2):
        with pytest.raises(KeyError, match="missing"):
            compiled(X, {})


def test_wrong_shapes_raise_what_eager_raises() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    with pytest.raises(RuntimeError):
        f(X, X)
    with pytest.raises(RuntimeError):
        braze.compile(f, backend="eager")(X, X)


def test_bad_arguments_raise_what_eager_raises() -> None:
    compiled = braze.compile(helper, backend="eager")
    for args, kwargs in (((X,), {}), ((X, 1, 2), {}), ((X, 1), {"nope": 2})):
        with pytest.raises(TypeError, match="argument"):
            compiled(*args, **kwargs)


def test_fullgraph_names_the_line_the_cause_and_the_remedy() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("no", file=sys.stdout)
        return y

    with pytest.raises(braze.CaptureError if hasattr(braze, "CaptureError") else Exception) as caught:
        braze.compile(f, backend="eager", fullgraph=True)(X)
    text = str(caught.value)
    assert 'print("no", file=sys.stdout)' in text and "^^^" in text and "do:" in text


def test_explicit_graph_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        braze.graph_break()
        return y * 2

    seen = check(f, X)
    assert seen.graphs == 2


def test_code_called_by_a_broken_call_is_captured() -> None:
    """A callback of an uncapturable function still runs compiled."""
    from braze import native

    if not native.hook_available():
        pytest.skip("the frame hook needs the extension")

    def callback(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    graphs: list[int] = []

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        graphs.append(len(gm.graph.nodes))
        return gm.forward

    def f(x: torch.Tensor) -> Any:
        import functools

        y = x * 2
        return functools.reduce(lambda a, b: callback(a) + b, opaque([y, y, y]))

    opaque = braze.disable(lambda values: values)
    compiled = braze.compile(f, backend=backend)
    assert torch.equal(compiled(X), f(X))
    assert graphs


def test_recompiles_after_a_break_keep_their_own_variants() -> None:
    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x + 1
        note("b")
        return y * 2 if flag else y - 1

    compiled = braze.compile(f, backend="eager")
    for flag in (True, False, True, False):
        for x in (X, X.double(), X[:1]):
            assert torch.equal(compiled(x, flag), f(x, flag))


def test_grad_flows_through_a_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        note("grad")
        return (y * x).sum()

    a, b = X.clone().requires_grad_(), X.clone().requires_grad_()
    f(a).backward()
    braze.compile(f, backend="eager")(b).backward()
    assert torch.equal(a.grad, b.grad)


def test_a_graph_that_is_not_traced_in_inference_mode_leaves_no_mode_behind() -> None:
    """PyTorch makes no tensor of an array where a thread is in the state of a dispatch mode that is gone."""
    made: list[Any] = []

    def backend(gm: Any, examples: Any, **words: Any) -> Any:
        compiled = default.braze(gm, examples, options=Options())
        made.append(torch.from_numpy(np.ones(2)).tolist())
        return compiled

    def f(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            return x.detach() * 2

    assert braze.compile(f, backend=backend)(torch.ones(2)).tolist() == [2, 2]
    assert made == [[1, 1]] and not torch.is_inference_mode_enabled()


def _uses(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        y = y + 1
        braze.graph_break()
        return y * scale

    return inner(x)


def _writes(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    count = 1

    def inner(y: torch.Tensor) -> torch.Tensor:
        nonlocal scale, count
        scale = scale + y
        braze.graph_break()
        count += 1
        scale = scale * 2
        return y * scale

    return inner(x), scale, count


def _calls_in_a_loop(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    for k in range(4):

        def inner(
            y: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor] = lambda y, k=k: y + k
        ) -> torch.Tensor:
            braze.graph_break()
            return part(y) * (scale + k)

        x = inner(x)
    return x


@pytest.mark.parametrize("program", [_uses, _writes, _calls_in_a_loop])
def test_each_call_of_an_inner_function_that_breaks_has_its_own_variables(
    program: Callable[..., object],
) -> None:
    compiled = braze.compile(program, backend="eager")
    for k in range(4):
        args = torch.ones(2) * k, torch.full((2,), float(k + 2))
        torch.testing.assert_close(compiled(*args), program(*args))


def test_layers_with_backward_hooks_on_all_modules() -> None:
    """PyTorch calls such a layer in a function that it makes at each call, in which the graph breaks."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(4)])
    seen: list[object] = []
    handle = torch.nn.modules.module.register_module_full_backward_hook(lambda m, i, o: seen.append(m))
    try:
        out = braze.compile(model, backend="eager")(torch.ones(1, 2, requires_grad=True))
    finally:
        handle.remove()
    torch.testing.assert_close(out, model(torch.ones(1, 2)))
    out.sum().backward()
    assert seen == [model[3], model[2], model[1], model[0], model]


@pytest.mark.parametrize(
    ("given", "spec"),
    [(torch.ones(3), "+d"), (torch.tensor(2.5), "d"), (torch.tensor(1j), "x"), (torch.tensor(True), ".2s"), (torch.tensor(2), "+d")],
)  # fmt: skip
def test_a_tensor_that_is_formatted_as_it_cannot_be_raises_though_nobody_reads_the_text(given, spec) -> None:
    def unread(x, n):
        f"{x.shape} {n:{spec}}"
        return x + 1

    def outcome(fn):
        try:
            return fn(torch.ones(2), given).tolist()
        except (TypeError, ValueError) as error:
            return type(error), str(error)

    assert outcome(braze.compile(unread, backend="eager")) == outcome(unread)


@pytest.mark.parametrize(
    "sequence", [[1, 2], (1, 2), "ab", "\u0101b", b"ab", range(2), range(1 << 70, (1 << 70) + 2)], ids=repr
)
def test_a_loop_along_any_sequence_goes_on_behind_a_break(sequence: Any) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        found = []
        for item in sequence:
            x = x + 1
            note(item)
            found.append(item)
        return x, found

    seen = Seen(f, torch.zeros(2))
    assert equal(seen.result, (torch.full((2,), 2.0), list(sequence)))
    assert (seen.log, seen.graphs) == ([(item,) for item in sequence], 2)


def test_what_a_disabled_function_calls_is_not_captured_where_a_frame_meets_it_first():
    disabled = braze.disable(lambda x: F.relu(x).sin() + 1)

    def f(x: torch.Tensor, names: dict[str, Any]) -> torch.Tensor:
        exec("y = disabled(x)", {"disabled": disabled, "x": x}, names)
        return names["y"]

    graphs: list[str] = []
    compiled = braze.compile(f, backend=lambda graph, inputs: graphs.append(graph.code) or graph)
    torch.testing.assert_close(compiled(torch.ones(3), {}), f(torch.ones(3), {}))
    assert not graphs
