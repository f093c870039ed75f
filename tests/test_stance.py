"""braze.set_stance: the words and forms of torch.compiler.set_stance, and BRAZE_STANCE."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze
from braze import native
from braze.capture.dispatch import stance
from braze.capture.dispatch.stance import Stance
from braze.native import pure
from braze.support import trace
from braze.support.errors import UserError
from tests import processes

X = torch.arange(3.0)
STANCES = [s.value for s in Stance]


class Counted:
    """A compiled function that counts compiles, and how often its Python body ran as it is."""

    def __init__(self, **settings: Any) -> None:
        self.graphs = 0
        self.ran: list[int] = []

        def f(x: torch.Tensor, k: int = 2) -> torch.Tensor:
            if not braze.is_compiling():
                self.ran.append(k)
            return x * k

        self.call = braze.compile(f, backend=self.backend, **settings)

    def backend(self, gm: Any, examples: Any) -> Any:
        self.graphs += 1
        return gm.forward


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    braze.reset()
    braze.set_stance("default")
    yield
    braze.set_stance("default")
    braze.reset()


def test_force_eager_runs_the_function_as_it_is_and_default_compiles_again() -> None:
    f = Counted()
    f.call(X)
    braze.set_stance("force_eager")
    assert torch.equal(f.call(X), X * 2) and torch.equal(f.call(X, 5), X * 5)
    assert f.graphs == 1 and f.ran == [2, 5]
    braze.set_stance("default")
    f.call(X)
    assert f.graphs == 1 and f.ran == [2, 5]


def test_as_a_context_it_holds_inside_alone() -> None:
    f = Counted()
    with braze.set_stance("force_eager"):
        f.call(X)
    assert f.graphs == 0 and f.ran == [2]
    f.call(X)
    assert f.graphs == 1 and f.ran == [2]


def test_as_a_decorator_it_holds_while_the_function_runs() -> None:
    f = Counted()

    @braze.set_stance("force_eager")
    def check(x: torch.Tensor) -> torch.Tensor:
        """Its docstring."""
        return f.call(x)

    assert stance.stance() is Stance.DEFAULT  # making it changed nothing
    assert torch.equal(check(X), X * 2)
    assert f.graphs == 0 and check.__doc__ == "Its docstring."
    f.call(X)
    assert f.graphs == 1


def test_contexts_nest_and_an_exception_ends_them() -> None:
    with braze.set_stance("eager_on_recompile"):
        with pytest.raises(ZeroDivisionError), braze.set_stance("force_eager"):
            assert stance.stance() is Stance.FORCE_EAGER and 1 / 0
        assert stance.stance() is Stance.EAGER_ON_RECOMPILE
        again = braze.set_stance("force_eager")
        with again, again:
            assert stance.stance() is Stance.FORCE_EAGER
        assert stance.stance() is Stance.EAGER_ON_RECOMPILE
    assert stance.stance() is Stance.DEFAULT


def test_contexts_of_two_threads_end_in_any_order() -> None:
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        first_in.wait()
        with braze.set_stance("eager_on_recompile"):
            second_in.set()
            first_out.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with braze.set_stance("force_eager"):
        first_in.set()
        second_in.wait()
    assert stance.stance() is Stance.EAGER_ON_RECOMPILE
    first_out.set()
    thread.join()
    assert stance.stance() is Stance.DEFAULT


def test_eager_on_recompile_uses_what_is_compiled_and_compiles_nothing() -> None:
    f = Counted()
    f.call(X)
    with braze.set_stance("eager_on_recompile"):
        f.call(X)
        assert f.ran == []
        assert torch.equal(f.call(X.double(), 3), X.double() * 3)
        assert f.ran == [3]
        new = Counted()
        new.call(X)
        assert new.graphs == 0
    assert f.graphs == 1


def test_fail_on_recompile_names_the_guard() -> None:
    f = Counted()
    f.call(X)
    with braze.set_stance("fail_on_recompile"):
        f.call(X)
        with pytest.raises(RuntimeError) as failed:
            f.call(X.double())
        assert isinstance(failed.value, braze.RecompileError) and isinstance(failed.value, UserError)
        assert failed.value.code == "BZ1102"
        assert (
            "float32" in str(failed.value) and "float64" in str(failed.value) and "do:" in str(failed.value)
        )
        with pytest.raises(braze.RecompileError, match="for the first time"):
            Counted().call(X)
    f.call(X.double())
    assert f.graphs == 2


def test_what_is_never_compiled_does_not_fail_on_recompile() -> None:
    @braze.compile(backend="eager")
    def doubles(xs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
        for x in xs:
            yield x * 2

    assert torch.equal(next(doubles([X])), X * 2)
    with braze.set_stance("fail_on_recompile"):
        assert torch.equal(next(doubles([X])), X * 2)


def test_eager_then_compile_learns_what_changes_from_two_calls() -> None:
    f = Counted()
    with braze.set_stance("eager_then_compile"):
        f.call(torch.ones(3, 2))
        assert f.graphs == 0 and f.ran == [2]
        for n in (4, 5, 9):
            assert torch.equal(f.call(torch.ones(n, 2)), torch.full((n, 2), 2.0))
    assert f.graphs == 1 and f.ran == [2]


def test_eager_then_compile_looks_into_containers() -> None:
    graphs = []

    def f(xs: list[torch.Tensor], named: dict[str, Any]) -> torch.Tensor:
        return xs[0].sum() * named["k"] + named["x"].sum()

    compiled = braze.compile(f, backend=lambda gm, examples: graphs.append(gm) or gm.forward)
    with braze.set_stance("eager_then_compile"):
        for n in (3, 4, 5, 7):
            args = [torch.ones(n)], {"k": n, "x": torch.ones(2, n)}
            assert torch.equal(compiled(*args), f(*args))
    assert len(graphs) == 1


@pytest.mark.timeout(20)
def test_eager_then_compile_looks_once_into_a_container_that_holds_itself_or_is_held_often() -> None:
    f = braze.compile(lambda x, held: x * len(held), backend="eager")
    itself: list[Any] = [1]
    itself.append(itself)
    often: list[Any] = []
    for _ in range(50):
        often = [often, often]
    named: dict[str, Any] = {}
    named["it"] = named
    with braze.set_stance("eager_then_compile"):
        for held in (itself, often, named, itself):
            for n in (2, 3):
                assert torch.equal(f(torch.ones(n), held), torch.full((n,), float(len(held))))


def test_parts_after_a_graph_break_and_frames_called_there_obey_too() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @braze.disable(recursive=False)
    def outside(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    def f(x: torch.Tensor) -> torch.Tensor:
        return outside(x * 2) * 3

    for word in ("force_eager", "eager_on_recompile"):
        compiled = braze.compile(f, backend="eager")
        with braze.set_stance(word), trace.collect() as events:
            assert torch.equal(compiled(X), f(X))
        assert events == []
        with trace.collect() as events:  # nothing was written off meanwhile
            assert torch.equal(compiled(X), f(X))
        assert sum(kind == "capture" for kind, _ in events) >= 2


def test_modules_obey() -> None:
    graphs = []
    model = torch.nn.Linear(3, 3)
    compiled = braze.compile(model, backend=lambda gm, examples: graphs.append(gm) or gm.forward)
    with braze.set_stance("force_eager"):
        assert torch.equal(compiled(X), model(X))
    assert graphs == []
    assert torch.equal(compiled(X), model(X))
    assert len(graphs) == 1


def test_a_stance_set_in_compiled_code_is_set_when_the_code_runs() -> None:
    seen = []

    @braze.disable
    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(stance.stance())
        return x

    def f(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        with braze.set_stance("force_eager"):
            x = look(x)
        return look(x) * 2

    compiled = braze.compile(f, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), (X + 1) * 2)
        assert seen == [Stance.FORCE_EAGER, Stance.DEFAULT]
        seen.clear()


@pytest.mark.parametrize("kind", [native, pure], ids=["extension", "stand-in"])
def test_a_forced_entry_binds_as_python_does(kind: Any) -> None:
    entry = kind.Entry(lambda a, b=2, *c, d=4: (a, b, c, d), lambda *args: pytest.fail("asked to compile"))
    kind.force_eager(True)
    try:
        assert entry(1) == (1, 2, (), 4) and entry(1, 3, 5, d=0) == (1, 3, (5,), 0)
        assert entry.call_with(entry.function, (1, 2, (), 4)) is kind.DEFAULT
        with pytest.raises(TypeError, match="missing 1 required"):
            entry()
    finally:
        kind.force_eager(False)


@pytest.mark.parametrize(
    ("word", "hint"), [("force-eager", "force_eager"), ("aot_eager_then_compile", "eager_then_compile")]
)
def test_an_unknown_stance_is_refused_with_a_near_miss(word: str, hint: str) -> None:
    with pytest.raises(UserError) as refused:
        braze.set_stance(word)
    assert refused.value.code == "BZ0011"
    assert refused.value.hints == (f"did you mean {hint!r}?",)
    assert stance.stance() is Stance.DEFAULT


def test_the_environment_sets_the_stance_to_begin_with() -> None:
    program = (
        "import torch, braze; from braze.support import trace\n"
        "f = braze.compile(lambda x: x + 1, backend='eager'); f(torch.ones(2))\n"
        "print(trace.COUNTERS['captures'])"
    )
    assert processes.run(program, BRAZE_STANCE="force_eager").stdout == "0\n"
    assert processes.run(program, BRAZE_STANCE="").stdout == "1\n"
    wrong = processes.run(program, BRAZE_STANCE="eager").stderr
    assert "BZ0011: unknown stance 'eager' in BRAZE_STANCE" in wrong


def test_every_word_of_torch_is_known_or_told_apart() -> None:
    words = {"default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile"}
    assert set(STANCES) == words
    documented = torch.compiler.set_stance.__doc__ or ""
    assert all(f'"{word}"' in documented for word in words)
