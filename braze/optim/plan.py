"""Which parameters of an optimizer its kernels step, and which PyTorch steps; kept from step to step while it holds."""

from __future__ import annotations

import functools
import importlib.util
import operator
from collections.abc import Callable
from typing import Any

import torch

from braze.optim.bucket import Bucket
from braze.optim.memory import Memory, Other
from braze.optim.recorded import RecordedStep
from braze.optim.rules import LABELS, Algorithm
from braze.support import trace
from braze.support.errors import Unsupported
from braze.support.log import logger, warn_once

log = logger("kernels")
Group = dict[str, Any]
#: steps the given param groups of an optimizer as PyTorch does
EagerStep = Callable[[list[Group]], None]


class Stepper:
    """All that a compiled optimizer keeps besides PyTorch's own state; everything here can be made anew."""

    def __init__(self, algorithm: Algorithm, *, records: bool = False) -> None:
        self.algorithm = algorithm
        #: whether steps that PyTorch takes on the device alone are recorded
        self.records = records
        self.recorded: list[RecordedStep] = []
        self.plans: list[Plan | None] = []
        self.state: Any = None
        self.known: list[Any] = []

    def step(self, optimizer: torch.optim.Optimizer, eager: EagerStep) -> None:
        """Step every group. Plans are dropped when a state has been replaced or added."""
        state, groups = optimizer.state, optimizer.param_groups
        if not (self.state is state and same_objects(list(state.values()), self.known)):
            self.plans, self.known = [], []
        self.plans = [*self.plans[: len(groups)], *[None] * (len(groups) - len(self.plans))]
        unscale = Unscale(optimizer)
        for i, group in enumerate(groups):
            if self.records and unscale.found is None and self.replay(i, group, state, eager):
                continue
            plan = self.plans[i]
            if plan is not None and plan.on_gpu and torch.cuda.is_current_stream_capturing():
                # its step sends numbers to the device; PyTorch's own answer here is an error that tells what to do
                eager([group])
                continue
            # reading a number off a device would wait for it, for nothing where PyTorch steps the whole group
            numbers = () if refusal(group) else self.algorithm.numbers(group)
            if numbers is None:
                warn_left("a group", "its settings are no plain numbers, or such as divide by zero")
                eager([group])
                continue
            grads = [p.grad for p in group["params"]]
            if plan is None or not plan.fits(group, grads):
                plan = self.plans[i] = Plan(self.algorithm, state, group, grads)
            if not plan.run(group, grads, numbers, unscale, eager):
                plan = self.plans[i] = Plan(self.algorithm, state, group, grads)
                if not plan.run(group, grads, numbers, unscale, eager):
                    eager([group])
        self.state, self.known = state, list(state.values())

    def replay(self, i: int, group: Group, state: Any, eager: EagerStep) -> bool:
        """Step a group by a recording, where PyTorch steps it on the device alone."""
        if not group.get("capturable") or group.get("differentiable"):
            return False
        known = self.recorded[i] if i < len(self.recorded) else None
        if known is None or known.group is not group or known.state is not state:
            known = RecordedStep(f"{self.algorithm.name}_step", group, state, eager)
            self.recorded[i:] = [known]
        return known.run(eager)


class Unscale:
    """What a GradScaler asks of an optimizer that was made with ``fused=True``: skip, and divide by the scale first."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.found: torch.Tensor | None = getattr(optimizer, "found_inf", None)
        self.scale: torch.Tensor | None = getattr(optimizer, "grad_scale", None)

    @functools.cached_property
    def skip(self) -> bool:
        """Whether the step is to be skipped. Waits for the device that the answer is on."""
        return self.found is not None and bool(self.found.item())

    def divide(self, grads: list[torch.Tensor], given: list[torch.Tensor]) -> None:
        """Divide gradients, and the copies that the kernel is given instead of some."""
        assert self.scale is not None
        for grad, copy in zip(grads, given, strict=True):
            grad.div_(self.scale)
            if copy is not grad:
                copy.div_(self.scale)


class Plan:
    """The parameters of one group, dealt to kernels. ``odd``: those that PyTorch steps."""

    def __init__(self, algorithm: Algorithm, state: Any, group: Group, grads: list[Any]) -> None:
        trace.count("optimizer_plans")
        self.algorithm = algorithm
        self.state = state
        self.params: list[torch.Tensor] = list(group["params"])
        self.present = [g is not None for g in grads]
        self.structure = structure(algorithm, group)
        self.buckets: list[tuple[Bucket, list[int]]] = []
        self.odd: list[torch.Tensor] = []
        why = refusal(group)
        places: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for i, (p, grad) in enumerate(zip(self.params, grads, strict=True)):
            if grad is None:
                continue
            reason = why or oddity(p, grad)
            if reason:
                self.refuse(i, reason)
            else:
                places.setdefault((p.dtype, p.device), []).append(i)
        self.memory = self.deal(group, grads, list(places.values()))
        log.info(
            "%s: %d parameters in %d kernels, %d stepped by PyTorch",
            algorithm.name, sum(len(at) for _, at in self.buckets), len(self.buckets), len(self.odd),
        )  # fmt: skip
        self.on_gpu = any(not bucket.on_host for bucket, _ in self.buckets)
        odd = set(map(id, self.odd))
        # in the order of the group, as PyTorch goes through them
        self.odd = [p for p in self.params if id(p) in odd]

    def deal(self, group: Group, grads: list[Any], places: list[list[int]]) -> Memory:
        """Make the buckets of those parameters, of one type and device at each place, that may be stepped in any order."""
        while True:
            self.buckets = []
            try:
                for at in places:
                    self.fill(group, grads, at)
                memory = Memory([bucket for bucket, _ in self.buckets])
                wrong = memory.conflicts(self.others(grads))
            finally:
                self.skip()
            if not wrong:
                return memory
            places = []
            for (_, at), rows in zip(self.buckets, wrong, strict=True):
                for row in rows:
                    self.refuse(at[row], "it shares memory with another one, or with its gradient")
                places.append([i for row, i in enumerate(at) if row not in set(rows)])

    def fill(self, group: Group, grads: list[Any], at: list[int]) -> None:
        """Make and prepare the bucket of the parameters at ``at`` that a kernel can step."""
        while at:
            params = [self.params[i] for i in at]
            kind = self.algorithm.kind(group, LABELS[params[0].dtype])
            states: list[Any] = [self.state[p] for p in params] if kind.states else []
            for p, held in zip(params, states, strict=False):
                self.algorithm.begin(held, p, group)
            try:
                bucket = Bucket(kind, params, states, self.algorithm.counts)
            except Unsupported as error:
                for i in at:
                    self.refuse(i, error.what)
                return
            self.buckets.append((bucket, at))
            wrong = bucket.read([grads[i] for i in at], all_rows=True)
            if not wrong:
                return
            self.buckets.pop()
            bucket.skip()
            for row in wrong:
                self.refuse(at[row], "it has holes, or its gradient or state is of another kind")
            at = [i for row, i in enumerate(at) if row not in set(wrong)]

    def others(self, grads: list[Any]) -> list[Other]:
        """What PyTorch writes and reads of this group, besides what the kernels do."""
        odd, found = set(map(id, self.odd)), []
        for p, grad in zip(self.params, grads, strict=True):
            if odd and id(p) in odd:
                state = [t for t in self.state.get(p, {}).values() if isinstance(t, torch.Tensor)]
                found.append(([p, *state], [grad]))
        return found

    def refuse(self, i: int, reason: str) -> None:
        """Leave a parameter to PyTorch, and say so once for each reason."""
        p = self.params[i]
        self.odd.append(p)
        warn_left(f"a parameter of shape {list(p.shape)}", reason)

    def fits(self, group: Group, grads: list[Any]) -> bool:
        """Whether the plan still is that of the group as it stands."""
        return (
            same_objects(group["params"], self.params)
            and [g is not None for g in grads] == self.present
            and structure(self.algorithm, group) == self.structure
        )

    def run(
        self,
        group: Group,
        grads: list[Any],
        numbers: tuple[float, ...],
        unscale: Unscale,
        eager: EagerStep,
    ) -> bool:
        """Take the step; False, with no parameter stepped, if the plan no longer holds."""
        ready = [[grads[i] for i in at] for _, at in self.buckets]
        try:
            if not all(bucket.prepare(given) for (bucket, _), given in zip(self.buckets, ready, strict=True)):
                self.skip()
                return False
            if self.buckets and self.memory.conflicts(self.others(grads)):
                self.skip()
                return False
            if self.odd:
                eager([{**group, "params": self.odd}])
        except BaseException:
            self.skip()
            raise
        for (bucket, at), given in zip(self.buckets, ready, strict=True):
            if not bucket.on_host:
                bucket.step(numbers, unscale.found, unscale.scale)
            elif unscale.skip:
                bucket.skip()
            else:
                if unscale.scale is not None:
                    unscale.divide([grads[i] for i in at], given)
                bucket.step(numbers)
        return True

    def skip(self) -> None:
        """Leave undone what was prepared."""
        for bucket, _ in self.buckets:
            bucket.skip()


def warn_left(what: str, reason: str) -> None:
    """Say once for each reason that PyTorch takes a step itself."""
    warn_once(("BZ0031", reason), f"BZ0031: {what} is stepped by PyTorch itself: {reason}", "kernels")


def structure(algorithm: Algorithm, group: Group) -> Any:
    """What of a group's settings decides which kernels it needs, as against numbers."""
    return (
        algorithm.kind(group, ""),
        bool(group.get("capturable")),
        bool(group.get("differentiable")),
        group.get("fused"),
    )


def refusal(group: Group) -> str:
    """Why PyTorch is to step a whole group; empty if it need not."""
    for option in ("capturable", "differentiable"):
        if group.get(option):
            return f"the group has {option}=True"
    return ""


def oddity(p: torch.Tensor, grad: torch.Tensor) -> str:
    """Why PyTorch is to step a parameter, as far as its kind tells; empty if it need not."""
    if type(p) not in (torch.Tensor, torch.nn.Parameter):
        return f"it is a {type(p).__name__}"
    if p.dtype not in LABELS:
        return f"there is no kernel for {p.dtype}"
    if p.device.type not in ("cpu", "cuda"):
        return f"there is no kernel for {p.device.type}"
    if p.device.type == "cuda" and not has_triton():
        return "Triton is not installed"
    if grad.layout != torch.strided:
        return "its gradient is sparse"
    return ""


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def same_objects(a: list[Any], b: list[Any]) -> bool:
    """Whether two lists hold the very same objects."""
    return len(a) == len(b) and all(map(operator.is_, a, b))
