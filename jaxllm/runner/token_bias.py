"""Which tokens a request pushes or forbids, and how that changes while it runs. Host only."""

from collections.abc import Sequence

import numpy as np

from jaxllm.request import Request

FORBIDDEN = -np.inf


class TokenBias:
    """The bias of one request: `logit_bias`, `allowed_token_ids`, `bad_words` and `min_tokens` in one row.

    Bad words of several tokens forbid their last token whenever the output ends with the others; until `min_tokens`
    tokens are out, end and stop tokens are forbidden. `num_watched` is how many of the last tokens decide.
    """

    def __init__(self, request: Request) -> None:
        params = request.params
        words = params.bad_words_token_ids or []
        self._added = params.logit_bias or {}
        self._allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
        self._never = frozenset(word[0] for word in words if len(word) == 1)
        self._words = [(word[:-1], word[-1]) for word in words if len(word) > 1]
        self.num_watched = max((len(prefix) for prefix, _ in self._words), default=0)
        self._min_tokens = params.min_tokens
        self._stops = frozenset((*request.eos_token_ids, *(params.stop_token_ids or ())))
        self._forbidden_now: frozenset[int] = frozenset()

    @property
    def watches_text(self) -> bool:
        """Whether the row depends on which tokens were generated, so that a step must know those of the one before."""
        return bool(self._words)

    def settled(self, num_output_tokens: int) -> bool:
        """Whether the row will never change again."""
        return not self._words and num_output_tokens >= self._min_tokens and not self._forbidden_now

    def row(self, output: Sequence[int], vocab_size: int) -> np.ndarray:
        """The row for the token that follows `output`: float32 [V]."""
        row = np.zeros(vocab_size, np.float32)
        if self._added:
            row[list(self._added)] = list(self._added.values())
        if self._allowed is not None:
            forbidden = np.ones(vocab_size, np.bool_)
            forbidden[list(self._allowed)] = False
            row[forbidden] = FORBIDDEN
        self._forbidden_now = self._moving(output, len(output))
        row[[*self._never, *self._forbidden_now]] = FORBIDDEN
        return row

    def changes(self, output: Sequence[int], num_output_tokens: int) -> list[tuple[int, float]]:
        """Tokens whose entry differs from the one last returned, with their new value.

        `output` must hold the last `num_watched` tokens, if there are that many; the others are not looked at.
        """
        before, self._forbidden_now = self._forbidden_now, self._moving(output, num_output_tokens)
        if before == self._forbidden_now:
            return []
        added = [(token, FORBIDDEN) for token in self._forbidden_now - before]
        return added + [(token, self._lasting(token)) for token in before - self._forbidden_now]

    def _moving(self, output: Sequence[int], num_output_tokens: int) -> frozenset[int]:
        """Tokens forbidden because of where the output stands."""
        words = {last for prefix, last in self._words if list(output[-len(prefix) :]) == prefix}
        return self._stops.union(words) if num_output_tokens < self._min_tokens else frozenset(words)

    def _lasting(self, token: int) -> float:
        """The entry of a token that is not forbidden just now."""
        allowed = (self._allowed is None or token in self._allowed) and token not in self._never
        return self._added.get(token, 0.0) if allowed else FORBIDDEN
