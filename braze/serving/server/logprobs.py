"""Log-probabilities as the protocol has them: of tokens by their texts, in one form for chats and another for completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.serving.engine.requests import Score
from braze.serving.server.tokens import Detokenizer, TextTokens


class Told:
    """Writes the scores of one answer's choices. ``most``: of the likeliest tokens, as many as were asked for; None: nothing is told."""

    def __init__(self, tokens: TextTokens, chat: bool, most: int | None) -> None:
        self.tokens, self.chat, self.most = tokens, chat, most
        #: the text of each choice that has been told of: a piece of a character is none of its own
        self._texts: dict[int, Detokenizer] = {}

    def goes_on(self, index: int, behind: Sequence[int]) -> None:
        """A choice's text is behind these tokens, which are none of it."""
        self._texts[index] = Detokenizer(self.tokens, behind=behind)

    def form(self, index: int, scores: Sequence[Score | int]) -> dict[str, Any] | None:
        """What is told of a choice's further tokens; one without a score, the first of a prompt, stands as itself."""
        if self.most is None:
            return None
        return self._chat(scores) if self.chat else self._completion(index, scores)

    def _chat(self, scores: Sequence[Score | int]) -> dict[str, Any]:
        content = [
            {
                **self._entry(score.token, score.logprob),
                "top_logprobs": [self._entry(*likely) for likely in score.likeliest],
            }
            for score in scores
            if isinstance(score, Score)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        told = self.tokens.bytes_of(token)
        return {
            "token": self.tokens.piece(token),
            "logprob": logprob,
            "bytes": None if told is None else list(told),
        }

    def _completion(self, index: int, scores: Sequence[Score | int]) -> dict[str, Any]:
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        text = self._texts.setdefault(index, Detokenizer(self.tokens))
        for score in scores:
            token = score.token if isinstance(score, Score) else score
            top, logprob = (self._top(score), score.logprob) if isinstance(score, Score) else (None, None)
            columns = (self.tokens.piece(token), logprob, top, text.length)
            for column, value in zip(found.values(), columns, strict=True):
                column.append(value)
            text.add((token,))
        return found

    def _top(self, score: Score) -> dict[str, float]:
        """The likeliest and the token itself; of texts that are alike the likelier one, which comes first."""
        found: dict[str, float] = {}
        for token, value in (*score.likeliest, (score.token, score.logprob)):
            found.setdefault(self.tokens.piece(token), value)
        return found
