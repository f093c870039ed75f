"""Guesses at the next tokens, from what the request has said before."""

from __future__ import annotations

from collections.abc import Sequence

from braze.serving.policy.fields import whole
from braze.support.errors import UserError


class NgramDrafter:
    """The longest ending of the tokens, of ``longest`` to ``shortest``, that occurred before: what followed it then is the guess.

    ``count`` guesses are always given, so that every request of a decoding step has as many tokens; where nothing is found they are
    the last token again. Only the last ``window`` tokens are searched.
    """

    def __init__(self, count: int, longest: int = 3, shortest: int = 1, window: int = 4096) -> None:
        for name, value in dict(count=count, longest=longest, shortest=shortest, window=window).items():
            whole(name, value)
        if shortest > longest:
            raise UserError(
                "BZ7102",
                f"shortest={shortest} contradicts longest={longest}",
                hints=["endings are looked for from the longest to the shortest"],
            )
        self.count, self.longest, self.shortest, self.window = count, longest, shortest, window

    def propose(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """``count`` tokens."""
        recent = list(tokens[-self.window :])
        for size in range(min(self.longest, len(recent) - 1), self.shortest - 1, -1):
            at = _last_before_the_end(recent, recent[-size:])
            if at >= 0:
                found = recent[at + size : at + size + self.count]
                return tuple(found + [recent[-1]] * (self.count - len(found)))
        return (recent[-1],) * self.count


def _last_before_the_end(tokens: list[int], ending: list[int]) -> int:
    """Where ``ending`` begins at its last occurrence but the one at the end; -1: nowhere."""
    size = len(ending)
    for at in range(len(tokens) - size - 1, -1, -1):
        if tokens[at] == ending[0] and tokens[at : at + size] == ending:
            return at
    return -1


def accepted(drawn: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """The tokens that a verified row of guesses comes to: ``drawn[i]`` follows the guesses before it, so it counts while these were right.

    Greedy tokens are those of decoding one by one, and drawn ones have its distribution, since a guess is right only if it was drawn.
    """
    kept = []
    for token, guess in zip(drawn, (*drafts, None), strict=True):
        kept.append(token)
        if token != guess:
            break
    return kept
