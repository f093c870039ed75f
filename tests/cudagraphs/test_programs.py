"""Random programs of calls: shapes, aliases, kept outputs, changes in place, outputs fed back, threads. Recorded is as eager."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import braze
from tests.cudagraphs.helpers import Place, assert_equal
from tests.fuzz.cudagraphs import FUNCTIONS, KINDS, WIDTH, Run, drawn

pytestmark = pytest.mark.usefixtures("simulated")

#: making a failing program smaller compiles it again and again, for longer than a test may take
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 11),
        st.integers(0, 15),
        st.integers(2, 3),
        st.just(0),
    ),
    min_size=8,
    max_size=60,
)
#: few functions of a few sizes, so that each is called often
CHOSEN = st.sets(st.integers(0, len(FUNCTIONS) - 1), min_size=1, max_size=3)


def compiled(**options: Any) -> list[Any]:
    braze.reset()
    return [
        braze.compile(
            f, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1, "verify": 0, **options}
        )
        for f in FUNCTIONS
    ]


def same(program: list[Any], functions: list[Any], chosen: Any, seed: int) -> None:
    """Run a program on both sides, statement by statement."""
    theirs, ours = (Run(side, chosen, Place.device) for side in (FUNCTIONS, functions))
    generator = torch.Generator().manual_seed(seed)
    for number, step in enumerate(program):
        kind, a, _, rows, _ = step
        x = torch.randn(rows, WIDTH, generator=generator).to(Place.device)
        made = []
        for run in (theirs, ours):
            torch.manual_seed(number)
            made.append(run.step(step, x))
        if not (kind in ("call", "feed") and theirs.functions[a % len(chosen)] is drawn):
            assert_equal(made[1], made[0])
        elif made[0]:  # other numbers than eager's, but numbers it must be
            assert all(torch.isfinite(y).all() for y in made[1])
            theirs.held, ours.held = _shared(theirs.held, ours.held)
        assert_equal(ours.held, theirs.held)
        assert_equal(ours.state.cache, theirs.state.cache)


def _shared(theirs: list[torch.Tensor], ours: list[torch.Tensor]) -> tuple[Any, Any]:
    """The held tensors but those of random numbers."""
    keep = [i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if torch.equal(a, b)]
    return [theirs[i] for i in keep], [ours[i] for i in keep]


@settings(max_examples=20, phases=PHASES)
@given(STEPS, CHOSEN, st.integers(0, 99))
def test_programs_give_what_eager_gives(program, chosen, seed):
    with torch.no_grad():
        same(program, compiled(), chosen, seed)


@settings(max_examples=6, phases=PHASES)
@given(STEPS, CHOSEN, st.integers(0, 99))
def test_programs_of_few_recordings_within_little_memory(program, chosen, seed):
    with torch.no_grad():
        same(program, compiled(cudagraph_sizes=1, cudagraph_memory=4096.0), chosen, seed)


def squared(model: Any, x: torch.Tensor) -> torch.Tensor:
    """A loss."""
    return (model(x) ** 2).mean()


class Trained:
    """One side of a training program: losses whose backwards have not run, and gradients that are kept."""

    def __init__(self, loss: Any, model: Any) -> None:
        self.loss, self.model = loss, model
        self.losses: list[torch.Tensor] = []
        self.kept: list[torch.Tensor] = []

    def step(self, kind: str, a: int, x: torch.Tensor) -> None:
        parameters = list(self.model.parameters())
        if kind == "forward":
            self.losses.append(self.loss(self.model, x))
            self.losses = self.losses[-3:]
        if kind == "backward" and self.losses:
            self.losses.pop(a % len(self.losses)).backward()
        if kind == "twice" and self.losses:
            (self.losses.pop() * 2 + self.loss(self.model, x)).backward()
        if kind == "keep" and parameters[0].grad is not None:
            self.kept = [*self.kept[-2:], parameters[a % 2].grad]
        if kind == "zero":
            self.model.zero_grad(set_to_none=a % 3 > 0)
        if kind == "step":
            with torch.no_grad():
                for p in parameters:
                    if p.grad is not None:
                        p.sub_(p.grad, alpha=0.1)
        if kind == "look":
            with torch.no_grad():
                self.kept = [*self.kept[-2:], self.loss(self.model, x)]

    def seen(self) -> list[torch.Tensor]:
        """All that the program can see."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return [x.detach() for x in (*self.losses, *self.kept, *gradients, *self.model.parameters())]


def refused(run: Trained, kind: str, a: int, x: torch.Tensor) -> bool:
    """Do a step; whether autograd refuses it, since a parameter was changed before a backward that reads it."""
    try:
        run.step(kind, a, x)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return True
    return False


TRAINING = st.lists(
    st.tuples(
        st.sampled_from(
            ["forward"] * 4 + ["backward"] * 4 + ["twice", "keep", "zero", "zero", "step", "look"]
        ),
        st.integers(0, 5),
        st.integers(1, 3),
    ),
    min_size=6,
    max_size=40,
)


@settings(max_examples=8, phases=PHASES)
@given(TRAINING, st.integers(0, 99))
def test_programs_that_train(program, seed):
    braze.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).to(
        Place.device
    )
    recorded = braze.compile(
        squared, dynamic=True, options={"cudagraphs": True, "cudagraph_launches": 1, "verify": 0}
    )
    theirs, ours = Trained(squared, model), Trained(recorded, copy.deepcopy(model))
    generator = torch.Generator().manual_seed(seed)
    for kind, a, rows in program:
        x = torch.randn(rows, 4, generator=generator).to(Place.device)
        failed = refused(theirs, kind, a, x)
        assert refused(ours, kind, a, x) == failed
        if failed:
            return
        assert_equal(ours.seen(), theirs.seen())


@settings(max_examples=3, phases=PHASES)
@given(st.lists(STEPS, min_size=2, max_size=3), CHOSEN, st.integers(0, 99))
def test_programs_of_several_threads(programs, chosen, seed):
    functions, failed = compiled(), []
    # one generator serves all threads, so no numbers of its
    shared = {i for i in chosen if FUNCTIONS[i] is not drawn} or {0}

    def run(program: list[Any], number: int) -> None:
        try:
            with torch.no_grad():
                same(program, functions, shared, seed + number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(p, k)) for k, p in enumerate(programs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
