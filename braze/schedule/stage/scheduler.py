"""The stage itself: fuse, put in order, plan memory."""

from __future__ import annotations

import dataclasses

from braze.context import CompileContext
from braze.loops.inputs_written import broken_writes
from braze.loops.ir import BufferKind, ExternCall, LoopProgram
from braze.loops.values import known_to_exist
from braze.schedule.facts.choices import Choices
from braze.schedule.facts.dependences import (
    edges,
    families,
    group_accesses,
    needed_steps,
    with_errors_that_may_be,
)
from braze.schedule.facts.records import Group, MemoryPlan, Schedule
from braze.schedule.forms.combos import combined
from braze.schedule.forms.made_once import made_once
from braze.schedule.forms.mixed import mix_groups
from braze.schedule.forms.online import read_once, walked_once
from braze.schedule.forms.shifted import shift_shared
from braze.schedule.forms.split import split_groups
from braze.schedule.forms.turned import stored_apart
from braze.schedule.forms.whole_vectors import of_whole_vectors
from braze.schedule.fusion.blocks import Block, block_of
from braze.schedule.fusion.canonical import group_of
from braze.schedule.fusion.fusion import Fusion, kept_buffers
from braze.schedule.gpu.beside import columns_beside
from braze.schedule.gpu.places_order import in_order_of_places
from braze.schedule.memory.memory import plan_memory
from braze.schedule.memory.order import Weights, failing_first, low_peak_order
from braze.schedule.memory.proof import prove_memory
from braze.schedule.memory.workspaces import workspace
from braze.schedule.rewrites.divided import laid_out_once
from braze.schedule.rewrites.halves import halved_products
from braze.schedule.rewrites.hoist import hoist
from braze.schedule.rewrites.long_sums import sums_in_parts
from braze.schedule.rewrites.lookups import computed_lookups
from braze.schedule.rewrites.one_hot import known_sums
from braze.schedule.rewrites.plain_copies import copied_by_aten
from braze.schedule.rewrites.prologues import with_prologues
from braze.schedule.rewrites.roundings import without_roundings
from braze.schedule.stage.sequence import prove_sequence
from braze.schedule.stage.verify import verify_schedule
from braze.support import trace
from braze.support.errors import InternalError
from braze.support.log import warn_once
from braze.symbolic.expr import ZERO


def schedule(program: LoopProgram, ctx: CompileContext, choices: Choices | None = None) -> Schedule:
    """Decide the kernels of ``program``, their order, and where its temporaries live."""
    choices = choices or Choices(ctx.options, ctx.target.costs)
    program = known_to_exist(computed_lookups(program, kept_buffers(program)))
    program = laid_out_once(with_errors_that_may_be(program))
    kept = kept_buffers(program)
    program = sums_in_parts(program, dict(ctx.device_products), ctx.target.cores)
    program = halved_products(program)
    program = dataclasses.replace(program, steps=tuple(needed_steps(program.steps, kept)))
    constant, program = hoist(program, kept, choices) if ctx.options.hoist else (None, program)
    cores = ctx.target.cores if ctx.target.kind == "cuda" else 0
    if constant is not None and cores:
        constant = copied_by_aten(constant)
    fixed = _scheduled(constant, choices, "fixed", cores) if constant is not None else None
    main = _scheduled(program, choices, "", cores, lean=ctx.lean, consumes=ctx.consumes)
    made = dataclasses.replace(main, fixed=fixed)
    if ctx.options.verify:
        verify_schedule(made)
    return made


def _scheduled(
    program: LoopProgram,
    choices: Choices,
    label: str,
    cores: int,
    *,
    lean: bool = False,
    consumes: bool = False,
) -> Schedule:
    kept = kept_buffers(program)
    blocks = _blocks(program, choices)
    groups = _groups(program, blocks, kept, choices, label)
    groups = with_prologues(groups, program, kept, choices) if choices.options.fusion else groups
    groups = _ordered(program, groups, kept, choices)
    if cores:
        program, groups = _for_gpu(program, groups, choices, cores)
        kept_in_cache = choices.costs.kept
        if kept_in_cache != 1:
            groups = [dataclasses.replace(g, kept=kept_in_cache) for g in groups]
    if program.rounds:
        program, groups = without_roundings(program, groups)
    if cores and choices.options.fusion and choices.combos:
        groups = combined(program, groups, kept, choices)
    _prove_writes(program, groups)
    memory = plan_memory(program, groups, kept, lean=lean, consumes=consumes)
    memory = _proved(program, groups, memory, strict=choices.options.verify > 0)
    return Schedule(program, tuple(groups), memory, aliases_of(program))


def planned_memory(program: LoopProgram, groups: list[Group], ctx: CompileContext) -> MemoryPlan:
    """The memory of groups that are in order already: a part of another schedule."""
    memory = plan_memory(program, groups, kept_buffers(program), lean=ctx.lean, consumes=ctx.consumes)
    return _proved(program, groups, memory, strict=ctx.options.verify > 0)


def _for_gpu(
    program: LoopProgram, groups: list[Group], choices: Choices, cores: int
) -> tuple[LoopProgram, list[Group]]:
    """What a GPU wants otherwise: numbers read once, long rows of few points as several kernels; this is then the program."""
    joined = [read_once(known_sums(g)) if g.device != "cpu" else g for g in groups]
    mixed, between = mix_groups(joined, program, choices, cores)
    buffers = {b.name: b for b in (*program.buffers, *between)}
    once = [made_once(walked_once(g, buffers), buffers, choices, cores) for g in mixed]
    between = [*between, *(b for _, made in once for b in made)]
    buffers.update((b.name, b) for b in between)
    mixed = [part for groups, _ in once for part in groups]
    mixed = [part for g in mixed for part in (stored_apart(g, buffers) if g.device != "cpu" else [g])]
    mixed = [columns_beside(of_whole_vectors(g, buffers), buffers) for g in mixed]
    mixed = [in_order_of_places(g, buffers) if g.device != "cpu" else g for g in mixed]
    parts, made = split_groups(mixed, buffers, choices, cores)
    parts, copies = shift_shared(parts, {**buffers, **{b.name: b for b in made}})
    made = [*between, *made, *copies]
    if not made and all(a is b for a, b in zip(parts, groups, strict=True)):
        return program, groups
    if choices.options.verify:
        prove_sequence(program, groups)
    steps = tuple(step for g in parts for step in g.work)
    return dataclasses.replace(program, buffers=(*program.buffers, *made), steps=steps), parts


def _proved(program: LoopProgram, groups: list[Group], memory: MemoryPlan, *, strict: bool) -> MemoryPlan:
    """The plan; one in which every buffer has memory of its own where this one does not stand proof."""
    try:
        prove_memory(program, groups, memory)
    except InternalError as error:
        if strict:
            raise
        trace.count("memory_plans_disproved")
        warn_once(
            ("BZ9041", program.name), f"{program.name} runs with a buffer of its own for each value.\n{error}"
        )
        return MemoryPlan((), ZERO)
    return memory


def _prove_writes(program: LoopProgram, groups: list[Group]) -> None:
    """Raise InternalError BZ9006 where the kernels' order, or a kernel, lets somebody see an input as it is not at that time."""
    order = [(g.name, g.reads, g.writes) for g in groups]
    found = next(broken_writes(program, order), None) if program.again else None
    if found is not None:
        raise InternalError("BZ9006", f"{program.name} writes an input in place too early", why=found[1])


def _blocks(program: LoopProgram, choices: Choices) -> list[Block]:
    if choices.options.fusion:
        return Fusion(program, choices).run()
    return [block_of(k, s) for k, s in enumerate(program.steps)]


def _groups(
    program: LoopProgram, blocks: list[Block], kept: set[str], choices: Choices, label: str
) -> list[Group]:
    buffers = {b.name: b for b in program.buffers}
    readers: dict[str, list[Block]] = {}
    for block in blocks:
        for name in block.accesses.reads:
            readers.setdefault(name, []).append(block)
    groups = []
    for number, block in enumerate(blocks):
        needed = {
            n for n in block.accesses.writes if n in kept or any(r is not block for r in readers.get(n, ()))
        }
        groups.append(group_of(block, f"{label}{number}", needed, buffers, choices))
    return groups


def _ordered(program: LoopProgram, groups: list[Group], kept: set[str], choices: Choices) -> list[Group]:
    made, buffers = frozenset(program.made), {b.name: b for b in program.buffers}

    def needs(groups: list[Group]) -> list[set[int]]:
        return edges([group_accesses(g, made, buffers) for g in groups], families(program))

    before = needs(groups)
    written = {name for name, _ in program.again}
    if written and program.device == "cpu":
        first, rest = failing_first(groups, before, written)
        groups = [*first, *rest]
        before = needs(groups)
        for k, g in enumerate(groups):
            if not written.isdisjoint(g.writes):
                before[k].update(range(len(first)))
    given = frozenset(program.owned) & {n for g in groups for n in g.reads}
    sizes = {b.name: choices.bytes_of(b) for b in program.buffers if b.kind not in _INPUTS or b.name in given}
    beside = {g.name: workspace(g.call, choices.bytes_of) for g in groups if isinstance(g.call, ExternCall)}
    return low_peak_order(groups, dict(enumerate(before)), Weights(sizes, kept - given, given, beside))


_INPUTS = (BufferKind.INPUT, BufferKind.CONSTANT)


def aliases_of(program: LoopProgram) -> tuple[tuple[str, str], ...]:
    """Results of extern calls that may share storage with an argument."""
    return tuple(
        (out, other)
        for step in program.steps
        if isinstance(step, ExternCall)
        for out in step.outputs
        for other in step.aliases
        if out
    )
