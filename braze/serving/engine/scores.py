"""How likely the model took tokens to be: log-probabilities of its logits as they are, before temperature, bounds and penalties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from braze.serving.engine.kept import cleaned
from braze.serving.engine.models.decoder import Decoder
from braze.serving.engine.requests import Score, Work

#: what is told of a token that cannot be: JSON has no infinity
LEAST = -9999.0
#: rows of a prompt that have logits at once
_ROWS = 64


@dataclass
class Scores:
    """Log-probabilities on their way to the host: of each row's token, then of its likeliest tokens; and which these are."""

    values: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, tokens: torch.Tensor, most: int) -> Scores:
        """Of rows of logits and a token each. What waits for the device's stream may read them."""
        every = torch.log_softmax(cleaned(logits), -1)
        values, places = every.gather(-1, tokens[:, None]), torch.empty(len(tokens), 0)
        if most:
            likeliest, places = every.topk(min(most, every.shape[-1]), -1)
            values = torch.cat((values, likeliest), -1)
        return cls(_on_host(torch.nan_to_num(values, nan=LEAST, neginf=LEAST)), _on_host(places))

    def each(self, tokens: Sequence[int], most: Sequence[int]) -> list[Score]:
        """A score a row; ``most``: how many of the likeliest tokens each is to tell."""
        rows = zip(tokens, most, self.places.tolist(), self.values.tolist(), strict=True)
        return [
            Score(token, own, tuple(zip(places[:few], values[:few], strict=True)))
            for token, few, places, (own, *values) in rows
        ]


@dataclass
class StepScores:
    """Those of a step's requests that ask for them; ``most``: of each row that they draw from, by the row's number."""

    most: dict[int, int]
    scores: Scores

    @classmethod
    def of(
        cls, logits: torch.Tensor, tokens: torch.Tensor, works: Sequence[Work], drawn: Sequence[int]
    ) -> StepScores | None:
        """None where nobody asks."""
        most: dict[int, int] = {}
        at = 0
        for work, count in zip(works, drawn, strict=True):
            if (few := work.request.params.logprobs) is not None:
                most |= dict.fromkeys(range(at, at + count), few)
            at += count
        if not most:
            return None
        if len(most) < at:
            rows = torch.tensor(list(most), device=logits.device)
            logits, tokens = logits[rows], tokens[rows]
        return cls(most, Scores.of(logits, tokens, max(most.values())))

    def by_work(self, tokens: Sequence[Sequence[int]]) -> list[list[Score]]:
        """Of the tokens that each work has drawn; empty where its request does not ask."""
        flat = [token for those in tokens for token in those]
        found = dict(
            zip(
                self.most,
                self.scores.each([flat[row] for row in self.most], list(self.most.values())),
                strict=True,
            )
        )
        each, at = [], 0
        for those in tokens:
            each.append([found[row] for row in range(at, at + len(those)) if row in found])
            at += len(those)
        return each


def score_prompts(model: Decoder, works: Sequence[Work], hidden: torch.Tensor) -> None:
    """Note how likely the prompts' tokens are of those that ask for it, as far as a step of these hidden states knows and no earlier one did."""
    at = 0
    for work in works:
        request, most = work.request, work.request.params.prompt_logprobs
        if most is not None:
            end = min(work.begin + len(work.tokens), len(request.prompt) - 1)
            for begin in range(max(work.begin, len(request.prompt_scores)), end, _ROWS):
                stop = min(begin + _ROWS, end)
                following = request.prompt[begin + 1 : stop + 1]
                logits = model.compute_logits(hidden[at + begin - work.begin : at + stop - work.begin])
                scores = Scores.of(logits, torch.tensor(following, device=logits.device), most)
                if logits.device.type == "cuda":
                    torch.cuda.current_stream(logits.device).synchronize()
                request.prompt_scores += scores.each(following, [most] * len(following))
        at += len(work.tokens)


def _on_host(x: torch.Tensor) -> torch.Tensor:
    if x.device.type != "cuda":
        return x
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
