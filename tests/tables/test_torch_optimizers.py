"""PyTorch's table of optimizers (optim_db): steps in compiled functions and compiled steps leave eager's parameters and state.

Two settings of each; all, in each implementation and under each scheduler, with ``BRAZE_SWEEP=1``.
"""

from __future__ import annotations

import copy
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo, optim_db

import braze
from tests.end_to_end import ops
from tests.tables.known import OPTIMIZERS as KNOWN

INFOS: dict[str, OptimizerInfo] = {info.name: info for info in optim_db}
#: with kernels of our own
OURS = ("SGD", "Adam", "AdamW")
WAYS = ("in a function", "the step", "compiled")
#: optimizer -> tolerance of numbers in a step of bfloat16, where eager rounds between operations that a kernel does not;
#: neither lies nearer to the iteration in float64 (medians of 300 updates by Muon: 0.0154 and 0.0155)
COARSE = {"Muon": {"rtol": 1e-4, "atol": 5e-4}}
SWEEP = bool(os.environ.get("BRAZE_SWEEP"))

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def parameters(info: OptimizerInfo) -> list[torch.nn.Parameter]:
    """Some of usual and odd shape, one of which never has a gradient."""
    generator = torch.Generator().manual_seed(7)
    shapes: list[tuple[int, ...]] = [(3, 4)]
    shapes += [(2, 5), (4, 4)] if info.name in ("Muon", "SparseAdam") else [(7,), (), (0, 3)]
    made = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    return [*made, torch.nn.Parameter(torch.ones(2, 2))]


def loss_of(info: OptimizerInfo, given: list[torch.nn.Parameter], weight: float) -> torch.Tensor:
    if info.only_supports_sparse_grads:
        picked = [torch.nn.functional.embedding(torch.tensor([1, 0, 1]), p, sparse=True) for p in given[:-1]]
        return sum((p.square().sum() * weight for p in picked), torch.zeros(()))
    return sum(((p - 0.3).square() * weight).sum() + p.sin().sum() for p in given[:-1])  # type: ignore[return-value]


def trained(info: OptimizerInfo, make: Make, way: str, scheduled: Callable[..., Any] | None = None) -> Any:
    """Losses, parameters and state after three steps; or the exception that a step raises."""
    braze.reset()
    given = parameters(info)
    optimizer = make(given)
    scheduler = scheduled(optimizer) if scheduled is not None else None
    if way == "compiled":
        braze.compile_optimizer(optimizer)

    def forward(weight: float) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(info, given, weight)
        loss.backward()
        return loss.detach()

    def step(weight: float) -> torch.Tensor:
        if info.step_requires_closure:
            return optimizer.step(lambda: forward(weight)).detach() * 2
        loss = forward(weight)
        stepped()
        return loss * 2

    stepped = braze.compile(optimizer.step) if way == "the step" else optimizer.step
    run = braze.compile(step) if way == "in a function" else step
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for k in range(3):
                losses.append(run(1.0 + k / 4))
                if scheduler is not None:
                    plain = not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
                    scheduler.step() if plain else scheduler.step(losses[-1])
        except Exception as error:
            return error
    return {"losses": losses, "parameters": [p.detach() for p in given], "state": optimizer.state_dict()}


def configurations(info: OptimizerInfo) -> Iterator[tuple[str, Make]]:
    """The table's settings, in each implementation that runs on a CPU."""
    for setting in info.optim_inputs_func(device="cpu"):
        for implementation in (None, *info.supported_impls):
            if implementation == "fused" and "cpu" not in info.supports_fused_on:
                continue
            words = {**setting.kwargs, **({implementation: True} if implementation else {})}
            yield (
                f"{setting.desc or 'default'}, {implementation or 'as it comes'}",
                lambda given, words=words: info.optim_cls(given, **copy.deepcopy(words)),
            )


def _words_out(outcome: Any) -> list[dict[str, str]]:
    """The settings of an outcome's groups that are text, which ``assert_close`` refuses; they are taken out."""
    return [
        {word: group.pop(word) for word in [w for w, v in group.items() if isinstance(v, str)]}
        for group in outcome["state"]["param_groups"]
    ]


def differences(name: str, most: int, *, schedulers: bool = False) -> Iterator[str]:
    info = INFOS[name]
    made = list(configurations(info))
    for number, (desc, make) in enumerate(made[:: max(1, -(-len(made) // most))]):
        for scheduled in (None, *(info.scheduler_inputs[0] if schedulers else ())):
            eager = trained(info, make, "", scheduled)
            # a step is compiled alike wherever it stands: settings are tried where it is one of several in a function
            for way in (WAYS if name in OURS else WAYS[:2])[: 1 if number and not SWEEP else None]:
                ours = trained(info, make, way, scheduled)
                if isinstance(eager, Exception) or isinstance(ours, Exception):
                    if ops.in_words(ours) != ops.in_words(eager):
                        yield f"{desc}, {way}: {ops.said(ours)} where eager {ops.said(eager)}"
                    continue
                try:
                    assert _words_out(ours) == _words_out(eager)
                    torch.testing.assert_close(ours, eager, **COARSE.get(name, {"rtol": 1e-5, "atol": 1e-6}))
                except AssertionError as error:
                    yield f"{desc}, {way}: {' '.join(str(error).split())[:200]}"


def cases() -> list[object]:
    """Every optimizer; a known failure must fail."""
    return [
        pytest.param(n, marks=[pytest.mark.xfail(strict=True, reason=KNOWN[n])] if n in KNOWN else [])
        for n in INFOS
    ]


@pytest.mark.parametrize("name", cases())
def test_steps(name: str) -> None:
    assert not list(differences(name, most=2))


@pytest.mark.slow
@pytest.mark.skipif(not SWEEP, reason="takes minutes: BRAZE_SWEEP=1")
@pytest.mark.parametrize("name", cases())
def test_steps_of_all_settings(name: str) -> None:
    assert not list(differences(name, most=1000, schedulers=True))


@pytest.mark.parametrize("name", INFOS)
def test_steps_that_fail(name: str) -> None:
    """What an optimizer refuses, it refuses in the same words."""
    info = INFOS[name]
    for bad in itertools.islice(info.optim_error_inputs_func(device="cpu", dtype=torch.float32), 20):
        setting = bad.optimizer_error_input
        if bad.error_on is OptimizerErrorEnum.STEP_ERROR:

            def stepped(compiled: bool, setting: Any = setting) -> Any:
                made = copy.deepcopy(setting.params)
                optimizer = info.optim_cls(made, **setting.kwargs)
                for p in made:
                    p.grad = torch.ones_like(p)
                return (braze.compile(optimizer.step) if compiled else optimizer.step)()

        else:

            def stepped(compiled: bool, setting: Any = setting) -> Any:
                def construct() -> Any:
                    info.optim_cls(setting.params, **setting.kwargs)

                return (braze.compile(construct) if compiled else construct)()

        outcomes = []
        for compiled in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    outcomes.append(stepped(compiled))
                except Exception as error:
                    outcomes.append(error)
        assert ops.in_words(outcomes[0]) == ops.in_words(outcomes[1])
