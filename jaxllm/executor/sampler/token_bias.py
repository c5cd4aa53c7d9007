"""Which tokens a request pushes or forbids, and how that changes while it runs. Host only."""

import numpy as np
import numpy.typing as npt

from jaxllm.executor.sampler.word_index import WordIndex
from jaxllm.requests.request import Request

FORBIDDEN = -np.inf

MANY = np.iinfo(np.int32).max

Int32Array = npt.NDArray[np.int32]


class TokenBias:
    """The bias of one request: `logit_bias`, `allowed_token_ids`, `bad_words` and `min_tokens` in one row.

    Bad words of several tokens forbid their last token whenever the output ends with the others; until `min_tokens`
    tokens are out, end and stop tokens are forbidden. What a token costs does not depend on how many are listed.
    """

    def __init__(self, request: Request) -> None:
        params = request.params
        words = params.bad_words_token_ids or []
        self._added = params.logit_bias or {}
        self._allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
        self._never = frozenset(word[0] for word in words if len(word) == 1)
        self._words = WordIndex(word for word in words if len(word) > 1)
        self._min_tokens = params.min_tokens
        self._stops = frozenset((*request.eos_token_ids, *(params.stop_token_ids or ())))
        self._too_early = False
        self._completing: frozenset[int] = frozenset()

    @property
    def watches_text(self) -> bool:
        """Whether the row depends on which tokens were generated, so that a step must know those of the one before."""
        return bool(self._words)

    def settled(self, num_output_tokens: int) -> bool:
        """Whether the row will never change again."""
        return not self._words and num_output_tokens >= self._min_tokens and not self._too_early

    def num_unchanged(self, num_output_tokens: int) -> int:
        """How many tokens may follow so many before the row changes."""
        if self._words:
            return 0
        early = self._min_tokens - 1 - num_output_tokens
        return early if early >= 0 else MANY

    def row(self, output: Int32Array, vocab_size: int) -> np.ndarray:
        """The row for the token that follows `output`, int32 [n]: float32 [V]."""
        row = np.zeros(vocab_size, np.float32)
        if self._added:
            row[list(self._added)] = list(self._added.values())
        if self._allowed is not None:
            forbidden = np.ones(vocab_size, np.bool_)
            forbidden[list(self._allowed)] = False
            row[forbidden] = FORBIDDEN
        self._too_early = len(output) < self._min_tokens
        self._completing = self._words.completing(output)
        row[[*self._never, *self._completing, *(self._stops if self._too_early else ())]] = FORBIDDEN
        return row

    def changes(self, output: Int32Array, num_output_tokens: int) -> list[tuple[int, float]]:
        """Tokens whose entry may differ from the one last returned, with their value now.

        `output` int32 [n] may lack the last tokens if `watches_text` is false.
        """
        before, self._completing = self._completing, self._words.completing(output)
        was_early, self._too_early = self._too_early, num_output_tokens < self._min_tokens
        changed = before ^ self._completing if before or self._completing else before
        if was_early != self._too_early:
            changed = changed | self._stops
        return [(token, self._entry(token)) for token in changed]

    def _entry(self, token: int) -> float:
        """The entry of a token where the output stands."""
        if token in self._completing or token in self._never or (self._too_early and token in self._stops):
            return FORBIDDEN
        allowed = self._allowed is None or token in self._allowed
        return self._added.get(token, 0.0) if allowed else FORBIDDEN
