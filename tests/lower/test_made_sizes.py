"""Sizes that calls make known, stage by stage: in the loop program, its text, its schedule and its host module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze import aot, decomp
from braze.codegen.host.homes import Home, Homes
from braze.context import CompileContext
from braze.loops.ir import ExternCall, LoopProgram
from braze.loops.printer import print_program
from braze.loops.verify import verify
from braze.lower import lower
from braze.options import Options
from braze.pipeline import generate_code
from braze.schedule import schedule
from braze.schedule.stage.verify import verify_schedule
from braze.target import cpu_target
from tests.loops.interpret import interpret
from tests.loops.replay import replay

CONTEXT = CompileContext(Options(verify=2), cpu_target(), "test")
OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
X = torch.linspace(-2, 2, 15).reshape(3, 5)
MASKS = [X[:, 0] > limit for limit in (-1.5, -9.0, 9.0, -1.0)]


def fn(x: Any, m: Any) -> Any:
    n = m.sum().item()
    y = (x[m] * 2).softmax(-1)
    torch._check(y.shape[0] == n, lambda: "as many rows as marks")
    return y.sum(0) + n, torch.arange(n) * 2, y @ y.T


def program_of(function: Callable[..., Any], *args: Any) -> LoopProgram:
    """The loop program that the default backend would make."""
    found: list[LoopProgram] = []

    def backend(gm: Any, examples: Any) -> Any:
        found.append(lower(aot.partition(gm, examples, CONTEXT, decomp.table()), CONTEXT))
        return gm.forward

    braze.compile(function, backend=backend, options=OPTIONS, fullgraph=True)(*args)
    return found[0]


@pytest.fixture(scope="module")
def program() -> LoopProgram:
    return program_of(fn, X, MASKS[0])


def in_order(program: LoopProgram) -> tuple[Any, ...]:
    """The inputs in the order in which the graph takes them."""
    return tuple({"x": X, "m": None}[name] for name in program.inputs)


def test_calls_make_them_and_checks_name_them(program: LoopProgram) -> None:
    verify(program)
    makers = [s for s in program.steps if isinstance(s, ExternCall) and s.makes]
    assert {s.target for s in makers} == {"aten._local_scalar_dense.default", "aten.index.Tensor"}
    assert len(program.made) == 2
    assert any("as many rows as marks" in check.message for check in program.checks)
    assert all(check.condition.symbols() <= set(program.made) for check in program.checks)


@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"{int(m.sum())} rows")
def test_interpreter_and_text_mean_the_program(program: LoopProgram, mask: torch.Tensor) -> None:
    inputs = [mask if given is None else given for given in in_order(program)]
    wanted = fn(X, mask)
    for run in (interpret, replay):
        for got, want in zip(run(program, inputs), wanted, strict=True):
            tensor = got if isinstance(got, torch.Tensor) else got.tensor
            torch.testing.assert_close(tensor.reshape(want.shape), want)


def test_a_check_that_fails_says_its_message(program: LoopProgram) -> None:
    text = print_program(program)
    assert "check(" in text
    wrong = text.replace(" == ", " != ", text.count(" == "))
    inputs = [MASKS[0] if given is None else given for given in in_order(program)]
    with pytest.raises(RuntimeError, match="as many rows as marks"):
        replay(program, inputs, wrong)


def test_what_needs_a_size_comes_after_what_makes_it(program: LoopProgram) -> None:
    plan = schedule(program, CONTEXT)
    verify_schedule(plan)
    known: set[Any] = set()
    for group in plan.groups:
        needed = {s for axis in (*group.axes, *group.row_axes) for s in axis.extent.symbols()}
        assert needed & set(program.made) <= known, group.name
        if isinstance(group.call, ExternCall):
            known |= {made.symbol for made in group.call.makes}
    assert known == set(program.made)


def test_buffers_of_such_sizes_are_no_part_of_the_arena(program: LoopProgram) -> None:
    plan = schedule(program, CONTEXT)
    homes = Homes(plan)
    late = [b.name for b in program.buffers if {s for e in b.sizes for s in e.symbols()} & set(program.made)]
    assert late
    assert all(homes.of(name) in (Home.FRESH, Home.RESULT) for name in late)
    assert not any(slot.bytes.symbols() & set(program.made) for slot in plan.memory.slots)


def test_the_host_reads_a_size_and_then_allocates(program: LoopProgram) -> None:
    source = generate_code(schedule(program, CONTEXT), CONTEXT).source
    made = program.made[-1].name
    read = source.index(f"{made} = int(") if f"{made} = int(" in source else source.index(f"{made} = buf")
    assert read < source.index(f"empty_strided(({made},") or f"empty_strided(({made}," not in source
    assert "runtime.fail(" in source
