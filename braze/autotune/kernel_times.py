"""How a GPU's kernels of loops are cut: measured under ``max-autotune``, kept on disk, followed by every compile.

A kernel is known by its text as the rule cuts it, which holds its sizes, and by the device. Each that moves enough memory is built in a
few cuts (``schedule/gpu/tilings.py``), run on made-up numbers, compared with the rule's results, and timed in turn with it. Another
cut is taken where it is clearly quicker. Coordinate descent then goes on from the quickest: those that differ from it in one number are built, for all
kernels side by side, and timed, until none of them gains, or no time is left. Kernels of sizes that only a call tells, those whose time depends on what they read, and those
that write over what they read keep the rule's.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from braze.autotune import device_times
from braze.autotune.device_times import (
    alike,
    can_measure,
    chosen,
    fill,
    is_refusal,
    keep,
    kept,
    launcher,
    machine,
    memory_of,
    number,
    room,
    seconds_in_turn,
)
from braze.codegen.records import KernelText
from braze.codegen.triton.kernels import kernel
from braze.context import CompileContext
from braze.graph.private.torch_compat import is_out_of_memory
from braze.loops.ir import Buffer
from braze.runtime.libraries import cache
from braze.schedule.facts.records import Group, GroupKind, Schedule
from braze.schedule.gpu.kernels import plan_kernel
from braze.schedule.gpu.tilings import Tiling, neighbours, parsed_tiling, planned_as, tilings
from braze.support import trace
from braze.support.layouts import span
from braze.support.log import logger

log = logger("kernels")

#: bytes of a kernel's memory at least: the time of smaller ones is that of a launch
LEAST_BYTES = 4 << 20
#: bytes that launches go through before they come back to the first ones, which the cache does not hold then, and copies of a kernel's memory at most
_COLD, _MOST = 160 << 20, 48
#: launches in one recording
_LAUNCHES = 16
#: what a step of coordinate descent must save, and steps of one kernel at most
_STEP_SAVES, _MOST_STEPS = 0.015, 6
#: of the cuts: raise it when there are others, so that what was measured before does not count
_REVISION = 1
#: groups that are cut as others say: calls, templates, and kernels of several
_NO_LOOPS = (GroupKind.EXTERN, GroupKind.TEMPLATE, GroupKind.COMBO)


def with_tilings(plans: Sequence[Schedule], ctx: CompileContext) -> CompileContext:
    """The context with the cut of each kernel of loops that was found to be quicker than the rule's, after measuring under ``max-autotune`` those not known."""
    marker = cache.key("tilings", **machine(ctx, _REVISION))
    walks = ctx.options.coordinate_descent_tuning
    measures = (ctx.options.max_autotune or walks) and can_measure()
    if not measures and not kept(marker):  # most have never measured: they need no keys
        return ctx
    found: dict[str, list[tuple[Group, Schedule]]] = {}
    keys: dict[str, cache.CacheKey] = {}
    for plan in plans:
        for group in filter(_is_loops, plan.groups):
            key = _key(group, plan, ctx)
            keys[key.digest] = key
            found.setdefault(key.digest, []).append((group, plan))
    done = _walked if walks else kept
    missing = {keys[d]: same[0] for d, same in found.items() if not done(keys[d])} if measures else {}
    if missing:
        _measure(missing, ctx)
        keep(marker, "measured")
    found_cuts = [
        (group.name, text) for d, same in found.items() if (text := kept(keys[d])) for group, _ in same
    ]
    return dataclasses.replace(ctx, tiles=(*ctx.tiles, *found_cuts)) if found_cuts else ctx


def _is_loops(group: Group) -> bool:
    return group.device != "cpu" and group.kind not in _NO_LOOPS


def _key(group: Group, plan: Schedule, ctx: CompileContext) -> cache.CacheKey:
    """The key of a kernel, whatever its name and whether it begins early."""
    text = kernel(group, plan_kernel(group, _buffers(plan)), plan, nvidia=_is_nvidia(ctx))
    return cache.key("tiling", kernel=text.work, **machine(ctx, _REVISION))


def _is_nvidia(ctx: CompileContext) -> bool:
    return ctx.target.arch.startswith("sm_")


def _buffers(plan: Schedule) -> dict[str, Buffer]:
    return {b.name: b for b in plan.program.buffers}


def _walk_of(key: cache.CacheKey) -> cache.CacheKey:
    """The key of the note that coordinate descent has come to its end for a kernel."""
    return cache.key("descent", tiling=key.digest)


def _walked(key: cache.CacheKey) -> str:
    return kept(_walk_of(key))


def _measure(missing: Mapping[cache.CacheKey, tuple[Group, Schedule]], ctx: CompileContext) -> None:
    """Keep the quickest cut of each kernel, those that move most first, for as long as there is time."""
    end = time.monotonic() + ctx.options.autotune_seconds
    trials = [(key, Trial(group, plan, nvidia=_is_nvidia(ctx))) for key, (group, plan) in missing.items()]
    trials = [(key, trial) for key, trial in trials if trial.worthwhile()]
    trials.sort(key=lambda each: -each[1].bytes)
    with trace.stage("measure"), torch.no_grad(), torch.autocast("cuda", enabled=False):
        new = [each for each in trials if not kept(each[0])]
        for key, trial, seconds in _timed(new, end):
            if trial.rule in seconds:
                keep(key, chosen(seconds, trial.rule))
        if ctx.options.coordinate_descent_tuning:
            _descend([each for each in trials if kept(each[0]) and not _walked(each[0])], end)


Trials = Sequence[tuple[cache.CacheKey, "Trial"]]


def _timed(trials: Trials, end: float) -> Iterator[tuple[cache.CacheKey, Trial, dict[str, float]]]:
    """The seconds of each trial's cuts, built side by side before, for as long as there is time."""
    if trials:
        texts = [text for _, trial in trials for text in trial.texts.values()]
        device_times.build(texts, max(0.0, end - time.monotonic()))
    for key, trial in trials:
        if time.monotonic() > end:
            log.info("no time is left to measure %s and smaller ones", trial.group.name)
            return
        seconds = trial.seconds()
        log.info("%s: %s", trial.group.name, json.dumps(seconds))
        trace.count("kernels_measured")
        yield key, trial, seconds


def _descend(trials: Trials, end: float) -> None:
    """Go from each kernel's cut to the quickest of those beside it, step by step, until that gains nothing or there is no time left."""
    tried: dict[str, set[str]] = {key.digest: set(trial.texts) for key, trial in trials}
    for _ in range(_MOST_STEPS):
        going = []
        for key, trial in trials:
            if trial.look_around(kept(key), tried[key.digest]):
                tried[key.digest] |= trial.texts.keys()
                going.append((key, trial))
            else:
                keep(_walk_of(key), kept(key))
        trials = [
            (key, trial) for key, trial, seconds in _timed(going, end) if _goes_on(key, trial.rule, seconds)
        ]
        if not trials:
            return
    for key, _ in trials:
        keep(_walk_of(key), kept(key))


def _goes_on(key: cache.CacheKey, rule: str, seconds: Mapping[str, float]) -> bool:
    """Take the quickest cut of a step; whether there may be a quicker one beside it. Where memory is short nothing is known."""
    here = kept(key)
    if here not in seconds or rule not in seconds:
        return False
    best = chosen(seconds, here, _STEP_SAVES)
    if best == here:
        keep(_walk_of(key), here)
        return False
    # of the rule it must save what any cut has to
    keep(key, best if chosen(seconds, rule) != rule else rule)
    return True


class Trial:
    """One kernel in every cut worth a try."""

    def __init__(self, group: Group, plan: Schedule, *, nvidia: bool = True) -> None:
        self.group, self.plan, self.nvidia = group, plan, nvidia
        buffers = _buffers(plan)
        self.texts = {t.text(): self._text(t) for t in tilings(group, buffers)}
        self.rule = next(iter(self.texts))
        self.buffers = [buffers[name] for name in self.texts[self.rule].args]
        self.written = {s.buffer for step in group.steps for s in step.stores}

    def _text(self, t: Tiling) -> KernelText:
        return kernel(
            self.group, planned_as(self.group, _buffers(self.plan), t), self.plan, nvidia=self.nvidia
        )

    def look_around(self, here: str, tried: Collection[str]) -> bool:
        """Try the rule's cut, this one and those beside it next, as far as they have not been tried; whether there are any."""
        found = neighbours(self.group, _buffers(self.plan), parsed_tiling(here))
        new = [t for t in found if t.text() not in tried]
        wanted = dict.fromkeys([parsed_tiling(self.rule), parsed_tiling(here), *new])
        self.texts = {t.text(): self._text(t) for t in wanted}
        return bool(new)

    @property
    def bytes(self) -> int:
        """Bytes of the memory that the kernel is given; 0 where only a call tells."""
        if any(e.value is None for b in self.buffers for e in (*b.sizes, *b.strides)):
            return 0
        spans = (span([*map(number, b.sizes)], [*map(number, b.strides)]) for b in self.buffers)
        return sum(n * b.dtype.itemsize for n, b in zip(spans, self.buffers, strict=True))

    def worthwhile(self) -> bool:
        """Whether there is a choice, and a time to tell by."""
        here = all(b.device == self.group.device for b in self.buffers)
        return here and len(self.texts) > 1 and not self.texts[self.rule].sizes and self.bytes >= LEAST_BYTES

    def seconds(self) -> dict[str, float]:
        """Seconds of each cut that runs and gives the rule's results, by its name; nothing where memory does not suffice."""
        try:
            return self._seconds()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.info("%s is not measured: %s", self.group.name, error)
            return {}

    def _seconds(self) -> dict[str, float]:
        free = room(self.group.device)
        count = min(max(1, -(-_COLD // self.bytes)), _MOST, free // (4 * self.bytes))
        if count < 1:
            log.info("%s is not measured: %d bytes are free", self.group.name, free)
            return {}
        sets = [self._memory() for _ in range(count)]
        wanted: dict[str, torch.Tensor] | None = None
        ways: dict[str, list[Callable[[], None]]] = {}
        for name, text in self.texts.items():
            try:
                launch = launcher(text)
                made = self._made(launch, text, sets[0])
            except Exception as error:  # too much shared memory, a kernel that is not built
                if is_out_of_memory(error) or not is_refusal(error):
                    raise
                log.info("%s as %s is left out: %s", self.group.name, name, error)
                continue
            wanted = made if wanted is None else wanted
            if not all(alike(made[b], wanted[b]) for b in wanted):
                log.warning("%s as %s is left out: it gives other results", self.group.name, name)
                continue
            ways[name] = [lambda r=launch, m=[s[a] for a in text.args]: r(*m) for s in sets]  # type: ignore[misc]
        return (
            seconds_in_turn(ways, _LAUNCHES)
            if self.rule in ways and len(ways) > 1
            else dict.fromkeys(ways, 0.0)
        )

    def _made(
        self, launch: Callable[..., None], text: KernelText, memory: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """What a kernel leaves in memory that held the pattern."""
        own = [name for name in text.args if name in self.written]
        for name in own:
            fill(memory[name])
        launch(*(memory[name] for name in text.args))
        return {name: memory[name].clone() for name in own}

    def _memory(self) -> dict[str, torch.Tensor]:
        """Memory for one launch: floats from a pattern, whole numbers 0, which any of them may be."""
        memory = memory_of(self.buffers)
        for tensor in memory.values():
            fill(tensor)
        return memory
