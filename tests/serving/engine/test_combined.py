"""All at once: shared prefixes, guesses, steps ahead, clients that leave, blocks that run out, lazy recordings, other weights. Everyone still gets the tokens of a plain engine that serves it alone."""

from __future__ import annotations

import copy
import os
import random

import pytest
import torch

from braze.serving.engine.engine import Engine
from braze.serving.engine.loading import fill_random
from braze.serving.engine.requests import Request
from braze.serving.engine.sampling import SamplingParams
from tests.serving.engine.tiny import engine, limits, tiny

#: random traces of each model
TRACES = int(os.environ.get("BRAZE_TRACES", "1"))


class Clients:
    """Requests whose prompts begin alike, each with when it comes and after how many steps its client leaves, if it lives so long."""

    def __init__(self, numbers: random.Random) -> None:
        draw = numbers.randint
        stems = [[draw(3, 96) for _ in range(draw(0, 16))] for _ in range(3)]
        self.asked = [
            (
                draw(0, 14),
                draw(1, 10) if draw(0, 4) == 0 else 99,
                numbers.choice(stems) + [draw(3, 96) for _ in range(draw(1, 20))],
                _params(numbers),
            )
            for _ in range(draw(5, 9))
        ]

    def run(self, served: Engine) -> list[Request]:
        """Each request when all have ended."""
        made: dict[int, Request] = {}
        step = 0
        while len(made) < len(self.asked) or not served.scheduler.idle():
            for i, (begin, stays, prompt, params) in enumerate(self.asked):
                if begin == step:
                    made[i] = served.add(prompt, params)
                elif begin + stays == step and made[i].ended is None:
                    served.abort(made[i])
            if served.scheduler.idle():
                served.idle()
            served.step()
            step += 1
        assert served.scheduler.pool.free == served.runner.blocks
        return [made[i] for i in range(len(self.asked))]


def _params(numbers: random.Random) -> SamplingParams:
    stop = tuple(numbers.sample(range(97), 4))
    if numbers.random() < 0.6:
        return SamplingParams(numbers.randint(1, 20), stop=stop)
    return SamplingParams(
        numbers.randint(1, 20), 1.0, numbers.choice((0, 5)), seed=numbers.randrange(99), stop=stop
    )


def replace_weights(served: Engine, numbers: random.Random) -> None:
    """Other weights, set in place or put where the old ones were."""
    model = served.runner.model
    if numbers.random() < 0.5:
        fill_random(model, numbers.randrange(1 << 20))
        served.forget_prefixes()
        return
    other = copy.deepcopy(model)
    fill_random(other, numbers.randrange(1 << 20))
    if numbers.random() < 0.5:
        model.load_state_dict(other.state_dict(), assign=True)
    else:
        for mine, new in zip(model.parameters(), other.parameters(), strict=True):
            mine.data = new.data


@pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek"])
@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
def test_everything_at_once_gives_the_tokens_that_each_gets_alone(name, pieces, simulated):
    preempted = shared = left = 0
    for seed in range(TRACES):
        numbers = random.Random(f"{name} {pieces} {seed}")
        mode = numbers.choice(("FULL_AND_PIECEWISE", "PIECEWISE") if pieces else ("FULL", "FULL_DECODE_ONLY"))
        model = tiny(name)
        served = engine(
            model,
            numbers.randint(16, 19),
            simulated,
            limits(share_prefixes=True),
            cudagraph_mode=mode,
            split=numbers.choice(("graph", "schedule")) if pieces else None,
            drafts=numbers.choice((0, 1, 3)),
            overlap=numbers.random() < 0.5,
            capture=numbers.choice(("eager", "lazy")),
        )
        for _ in range(3):
            clients = Clients(numbers)
            found = clients.run(served)
            plain = engine(copy.deepcopy(model))
            for request, (_, stays, prompt, params) in zip(found, clients.asked, strict=True):
                with torch.inference_mode():
                    (alone,) = plain.generate([prompt], params)
                gone = request.ended is not None and request.ended.value == "abort"
                assert not gone or stays < 99
                assert request.output == (alone[: len(request.output)] if gone else alone), (seed, request.id)
                left += gone
            replace_weights(served, numbers)
        preempted += served.scheduler.preemptions
        shared += served.scheduler.shared
    assert preempted and shared and left
