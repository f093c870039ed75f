"""When a compiled function is compiled again, and when it is not."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze
from braze.support import trace
from braze.support.errors import UserError


class Compiled:
    """A compiled function that counts the graphs its backend got."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.graphs = 0
        self.misses: list[str] = []
        self.compiled = braze.compile(fn, backend=self.backend, **options)

    def backend(self, gm: Any, examples: Any, **words: Any) -> Any:
        self.graphs += 1
        return gm.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with trace.collect() as events:
            result = self.compiled(*args, **kwargs)
        self.misses += [p.misses[0].text for kind, p in events if kind == "recompile" and p.misses]
        return result


pytestmark = pytest.mark.usefixtures("fresh")


def test_the_same_shapes_compile_once() -> None:
    f = Compiled(lambda x, k: x * k)
    for _ in range(3):
        f(torch.rand(2, 3), 2)
    assert f.graphs == 1


def test_a_second_batch_size_makes_it_dynamic() -> None:
    def mlp(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w).sum(1)

    f, w = Compiled(mlp), torch.rand(3, 5)
    for n in (4, 7, 9, 30, 2, 4):
        x = torch.rand(n, 3)
        assert torch.allclose(f(x, w), mlp(x, w))
    assert f.graphs == 2
    assert "x is float32[4, 3]" in f.misses[0] and "now float32[7, 3]" in f.misses[0]


def test_sizes_zero_and_one_are_their_own() -> None:
    def scale(x: torch.Tensor) -> torch.Tensor:
        return x / x.shape[0] if x.shape[0] else x

    f = Compiled(scale)
    for n in (3, 4, 1, 0, 5, 1, 0):
        x = torch.rand(n, 2)
        assert torch.equal(f(x), scale(x))
    assert f.graphs <= 4


def test_a_condition_on_a_symbolic_size_is_a_guard() -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 8 else x - 1

    f = Compiled(either)
    for n in (4, 5, 6, 12, 13, 7, 20):
        x = torch.rand(n)
        assert torch.equal(f(x), either(x))
    assert f.graphs == 3


def test_strided_inputs_are_told_apart() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x + x

    f = Compiled(double)
    for x in (torch.rand(4, 4), torch.rand(4, 4).t(), torch.rand(8, 4)[::2], torch.rand(1, 4).expand(4, 4)):
        assert torch.equal(f(x), x + x)
        assert f(x).stride() == double(x).stride()


def test_dtype_grad_mode_and_requires_grad_are_guarded() -> None:
    f = Compiled(lambda x: x * 2)
    x = torch.rand(3)
    f(x)
    assert f(x.double()).dtype == torch.float64
    with torch.no_grad():
        assert not f(x).requires_grad
    assert f(x.clone().requires_grad_()).requires_grad
    assert f.graphs == 4


def test_arguments_that_alias_are_told_apart() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    f = Compiled(write)
    a, b = torch.zeros(2), torch.zeros(2)
    assert torch.equal(f(a, b), torch.zeros(2))
    assert torch.equal(f(b, b), torch.full((2,), 2.0))
    assert torch.equal(f(a, b), torch.full((2,), 2.0))


class Scaled(torch.nn.Module):
    def __init__(self, k: float) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k


def test_a_changed_attribute_is_named() -> None:
    module = Scaled(2.0)
    f = Compiled(module)
    f(torch.ones(1))
    module.k = 3.0
    assert f(torch.ones(1)).item() == 3
    assert f.graphs == 2 and "self.k == 2.0; now 3.0" in f.misses[0]


FACTOR = 2


def test_a_changed_global_is_seen() -> None:
    global FACTOR
    FACTOR = 2
    f = Compiled(lambda x: x * FACTOR)
    assert f(torch.ones(1)).item() == 2
    FACTOR = 5
    assert f(torch.ones(1)).item() == 5
    assert f.graphs == 2


class Heard(logging.Handler):
    """Keeps the messages of a logger."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def heard() -> Iterator[list[str]]:
    handler, log = Heard(), logging.getLogger("braze.recompiles")
    log.addHandler(handler)
    yield handler.messages
    log.removeHandler(handler)


def test_past_the_limit_it_stays_compiled(heard: list[str]) -> None:
    compiled = braze.compile(lambda x, k: x * len(k), backend="eager", options={"recompile_limit": 3})
    with trace.collect() as events:
        for i in range(6):
            assert compiled(torch.ones(2), "k" * i)[0].item() == i
    assert sum(kind == "capture" for kind, _ in events) == 6 and len(compiled.variants) <= 4
    (loud,) = [message for message in heard if "BZ1101" in message]
    assert "k == " in loud


def test_many_layers_with_a_break_each_are_no_recompiles_of_one() -> None:
    hidden = braze.disable(lambda x: x)

    class Layer(torch.nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.k = k
            self.fc = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return hidden(self.fc(x)) * self.k

    model = torch.nn.Sequential(*[Layer(i) for i in range(12)]).eval()
    x = torch.rand(3, 2)
    f = Compiled(model)
    for _ in range(3):
        assert torch.allclose(f(x), model(x))
    graphs = f.graphs
    f(x)
    assert f.graphs == graphs


def test_a_dropped_function_frees_its_variants() -> None:
    module = Scaled(2.0)
    f = Compiled(module)
    f(torch.ones(1))
    alive = weakref.ref(module)
    del module, f
    gc.collect()
    assert alive() is None


def test_threads_share_one_compile() -> None:
    f = Compiled(lambda x: torch.relu(x) + 1)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(f(torch.ones(2)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert f.graphs == 1 and all(torch.equal(r, torch.full((2,), 2.0)) for r in results) and len(results) == 8


def test_reset_compiles_afresh() -> None:
    f = Compiled(lambda x: x + 1)
    f(torch.ones(1))
    braze.reset()
    f(torch.ones(1))
    assert f.graphs == 2


# -- what is said -----------------------------------------------------------------------------------


def by_mode(x: torch.Tensor, mode: str) -> torch.Tensor:
    return x + 1 if mode == "plus" else x * len(mode)


def test_a_value_that_no_generic_variant_holds_is_a_storm_told_once(heard: list[str]) -> None:
    compiled = braze.compile(by_mode, backend="eager", options={"recompile_limit": 2})
    for i in range(12):
        assert torch.equal(compiled(torch.ones(2), "m" * i), torch.full((2,), float(i)))
    assert len(compiled.variants) <= 3
    (limit,) = [message for message in heard if "BZ1101" in message]
    (storm,) = [message for message in heard if "BZ1103" in message]
    for message in (limit, storm):
        assert "mode == " in message and "test_recompiles.py" in message and "do: " in message
    assert "on_overflow" in storm and len(heard) == 2


class ByMode(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: torch.Tensor, mode: str) -> torch.Tensor:
        return by_mode(x, self.name + mode)


def test_each_module_has_its_own_limit_and_tells_of_it_though_it_lies_where_another_lay(
    heard: list[str],
) -> None:
    """Each of these ends before the next is made, most often at its address."""
    compiled = braze.compile(ByMode.forward, backend="eager", options={"recompile_limit": 2})
    for made in range(1, 6):
        model = ByMode(f"model {made}")
        for i in range(2):
            compiled(model, torch.ones(2), "m" * i)
        assert len(heard) == made - 1
        compiled(model, torch.ones(2), "mm")
        assert len(heard) == made and "BZ1101" in heard[-1]
        del model


def test_after_a_storm_few_calls_compile_until_a_variant_serves_again() -> None:
    f = Compiled(by_mode, options={"recompile_limit": 2})
    for i in range(200):
        assert torch.equal(f(torch.ones(2), "m" * i), torch.full((2,), float(i)))
    assert f.graphs == 2 + 4 + 2 + 1  # the limit, the storm, after 16 and 64 calls; the first generic one
    for i in range(300, 600):
        f(torch.ones(2), "stays")
    assert f.graphs == 10 and f.compiled.hits > 100


def in_a_list(xs: list[torch.Tensor]) -> list[float]:
    return [inner(x).sum().item() for x in xs]


def inner(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


def in_a_dict(xs: list[torch.Tensor]) -> dict[float, torch.Tensor]:
    found = {}
    for i, x in enumerate(xs):
        found[x.sum().item() + i] = inner(x)
    return found


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(("fn", "told"), [(in_a_list, []), (in_a_dict, ["BZ1101", "BZ1103"])])
def test_a_loop_that_breaks_in_each_iteration_compiles_a_bounded_number_of_times(
    fn: Callable[..., Any], told: list[str], dynamic: bool | None, heard: list[str]
) -> None:
    f = braze.compile(fn, backend="eager", dynamic=dynamic, options={"verify": 2})
    made = []
    for length in (40, 40, 30, 45):
        before = trace.COUNTERS["captures"]
        xs = [torch.arange(3.0) - i for i in range(length)]
        assert str(f(xs)) == str(fn(xs))
        made.append(trace.COUNTERS["captures"] - before)
    assert made[0] <= 30 and sum(made[1:]) <= 4, made
    assert sorted(message.split(":")[0] for message in heard) == told


def test_guards_hold_of_windows_with_gaps_that_have_a_history() -> None:
    f = Compiled(lambda x: x * 2, dynamic=True, options={"verify": 2})
    for n in (4, 5, 6):
        base = torch.rand(n, 8, requires_grad=True) * 2
        assert torch.equal(f(base[:, : n - 1]), base[:, : n - 1] * 2)
        assert torch.equal(f(base.t()[1:n]), base.t()[1:n] * 2)
    assert f.graphs == 2


def test_on_overflow_eager_runs_what_fits_no_variant_as_it_is(heard: list[str]) -> None:
    f = Compiled(by_mode, options={"recompile_limit": 2, "on_overflow": "eager"})
    for i in range(6):
        assert torch.equal(f(torch.ones(2), "m" * i), torch.full((2,), float(i)))
    assert f.graphs == 2 and len(f.compiled.variants) == 2
    assert torch.equal(f(torch.ones(2), "m"), torch.ones(2))
    assert f.compiled.hits >= 1
    assert len(heard) == 1 and "BZ1101" in heard[0] and "run uncompiled" in heard[0]


def test_on_overflow_error_names_the_guard_and_the_way_out() -> None:
    f = Compiled(by_mode, options={"recompile_limit": 2, "on_overflow": "error"})
    f(torch.ones(2), "a"), f(torch.ones(2), "bb")
    with pytest.raises(braze.RecompileError) as refused:
        f(torch.ones(2), "ccc")
    assert refused.value.code == "BZ1101"
    assert "mode == 'bb'; now 'ccc'" in str(refused.value) and "recompile_limit" in str(refused.value)
    assert torch.equal(f(torch.ones(2), "a"), torch.ones(2))


def test_on_overflow_takes_three_words() -> None:
    with pytest.raises(UserError, match="on_overflow") as refused:
        braze.compile(by_mode, options={"on_overflow": "egaer"})
    assert refused.value.hints == ("did you mean 'eager'?",)


def test_braze_compile_in_a_loop_is_told_once(heard: list[str]) -> None:
    for _ in range(20):
        braze.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    (told,) = heard
    assert "BZ1104" in told and "16 times" in told and "once, outside" in told
    heard.clear()
    layers = [torch.nn.Linear(2, 2) for _ in range(20)]
    for layer in layers:  # each layer of a model is no such loop
        braze.compile(layer, backend="eager")(torch.ones(2))
    assert heard == []


@pytest.fixture
def told(heard: list[str]) -> Iterator[list[str]]:
    log = logging.getLogger("braze.recompiles")
    level = log.level
    log.setLevel(logging.INFO)
    yield heard
    log.setLevel(level)


def test_a_recompile_is_one_block_with_line_values_seconds_and_advice(told: list[str]) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        y = x.double()
        return y * 2

    f = Compiled(scaled)
    f(torch.ones(3)), f(torch.ones(4))
    (block,) = told
    line = scaled.__code__.co_firstlineno
    assert f"test_recompiles.py:{line}) is compiled again: variant 2 of 8, " in block and " s\n" in block
    assert "guard: x is float32[3]" in block and "now:   float32[4]" in block
    assert f"test_recompiles.py:{line + 1} in " in block
    assert "    y = x.double()\n        ^\n" in block
    assert "do:    size 0 of x is symbolic from now on" in block


def test_a_part_of_a_memory_is_told_to_be_cloned_where_a_derivative_goes_forward(told: list[str]) -> None:
    """How it lies there is a number, which is never symbolic."""
    compiled = braze.compile(lambda x: torch.func.jacfwd(torch.sin)(x), backend="eager")
    for size in (5, 6):
        compiled(torch.ones(size)[:3])
    (block,) = told
    assert "pass a clone of the part" in block and "symbolic" not in block
    for size in (7, 8):
        compiled(torch.ones(size)[:3].clone())
    assert len(compiled.variants) == 3


def test_the_same_guard_again_and_again_gets_a_line_each(told: list[str]) -> None:
    compiled = braze.compile(by_mode, backend="eager")
    for i in range(7):
        compiled(torch.ones(2), "m" * i)
    assert [message.count("\n") > 0 for message in told] == [True, True, True, False, False, False]
    assert "the 6th time for mode == 'mmmmm'; now 'mmmmmm'" in told[-1].replace(": now", "; now")


def test_a_module_is_told_of_in_the_words_of_its_forward(told: list[str]) -> None:
    compiled = braze.compile(Scaled(2.0), backend="eager")
    compiled(torch.ones(3)), compiled(torch.ones(4))
    line = Scaled.forward.__code__.co_firstlineno
    assert f"test_recompiles.py:{line})" in told[0] and "x is float32[3]" in told[0]
    assert f"test_recompiles.py:{line + 1} in Scaled.forward" in told[0]


def test_a_condition_on_sizes_is_told_in_the_users_expressions(told: list[str]) -> None:
    def either(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 8 else x - 1

    f = Compiled(either)
    for n in (4, 5, 12):
        f(torch.ones(n))
    assert "x.shape[0] <= 8" in told[1] or "8 >= x.shape[0]" in told[1]
    assert "x.shape[0] = 12" in told[1]


def test_a_history_keeps_no_tensor_alive() -> None:
    f = Compiled(lambda x: x + 1)
    f(torch.ones(2))
    given = torch.ones(2, dtype=torch.float64)
    f(given)
    alive = weakref.ref(given)
    del given
    gc.collect()
    assert alive() is None


def double_in_a_closure(x: torch.Tensor) -> torch.Tensor:
    result = None

    def inner() -> torch.Tensor:
        nonlocal result
        result = x * 2
        braze.graph_break()
        return result + 1

    try:
        y = inner()
    except ValueError:
        return x
    return y * 2


def a_closure_used_after_a_break(x: torch.Tensor) -> torch.Tensor:
    def inner() -> torch.Tensor:
        return x * 2

    braze.graph_break()
    return inner() * 3


def the_locals_after_a_break(x: torch.Tensor) -> list[str]:
    def inner() -> torch.Tensor:
        return x * 2

    braze.graph_break()
    return sorted(locals())


def a_closure_that_a_handler_reads(x: torch.Tensor) -> torch.Tensor:
    def inner() -> torch.Tensor:
        return x * 5

    try:
        braze.graph_break()
        assert x is None
    except AssertionError:
        return inner()
    return x


def test_a_function_made_at_each_call_is_not_guarded_where_nothing_reads_it_any_more() -> None:
    """What comes after a break is compiled once, though the closure before it is another at each call."""
    run = Compiled(double_in_a_closure)
    for k in range(6):
        assert torch.equal(run(torch.full((3,), float(k))), torch.full((3,), 4.0 * k + 2))
    assert not run.misses


@pytest.mark.parametrize(
    "function", [a_closure_used_after_a_break, the_locals_after_a_break, a_closure_that_a_handler_reads]
)
def test_functions_that_may_be_read_after_a_break_are_there(function: Callable[..., Any]) -> None:
    have, want = Compiled(function)(torch.ones(3)), function(torch.ones(3))
    assert have == want if isinstance(want, list) else torch.equal(have, want)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_that_chooses_an_item_of_a_tuple_is_told_to_choose_out_of_a_tensor(capfd, sign):
    tensors = tuple(torch.full((3,), float(n)) for n in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3))

    def chosen(x, i):
        return x * tensors[i]

    compiled = braze.compile(chosen, backend="eager")
    for i in range(16):
        assert torch.equal(compiled(torch.ones(3), sign * i), tensors[sign * i])
    told = capfd.readouterr().err
    assert "torch.stack(tensors)[i]" in told
    assert "no more will follow" not in told


def test_functions_that_an_integer_chooses_have_one_variant_each_as_the_advice_says(capfd):
    functions = [
        torch.sin, torch.cos, torch.exp, torch.tanh, torch.relu, torch.neg, torch.abs,
        torch.erf, torch.floor, torch.ceil, torch.sign, torch.square, torch.log1p, torch.sigmoid,
    ]  # fmt: skip
    x = torch.ones(2, 3)
    few = braze.compile(lambda x, i: functions[i](x), backend="eager")
    for i in range(14):
        assert torch.equal(few(x, i), functions[i](x))
    assert "options={'recompile_limit': n} for as many as there are" in capfd.readouterr().err
    compiled = braze.compile(lambda x, i: functions[i](x), backend="eager", options={"recompile_limit": 14})
    for _ in range(2):
        for i in range(14):
            assert torch.equal(compiled(x, i), functions[i](x))
    assert compiled.misses == 14
    assert "compiled again and again" not in capfd.readouterr().err


def test_a_list_made_a_tensor_is_chosen_from_by_one_variant_for_many_numbers():
    numbers = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    compiled = braze.compile(lambda x, i: x * torch.tensor(numbers)[i], backend="eager")
    for i in range(16):
        assert torch.equal(compiled(torch.ones(3), i), torch.full((3,), float(numbers[i])))
    assert len(compiled.variants) <= 3
