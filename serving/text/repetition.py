"""Finds an output that goes in circles."""

import numpy as np

from jaxllm.requests.repetition import RepetitionDetectionParams

STOP_REASON = "repetition_detected"


class RepetitionWatch:
    """Looks at the tokens of one sequence as they come. A token takes time in proportion to the longest pattern.

    With P the sizes from `min_pattern_size` to `max_pattern_size`, `_equal` int64 [P] counts how many of the last
    tokens are each the same as the one that many places before. A pattern stands there c times if c - 1 times its size
    are.
    """

    def __init__(self, params: RepetitionDetectionParams) -> None:
        smallest = max(params.min_pattern_size, 1)
        self._sizes = np.arange(smallest, params.max_pattern_size + 1)
        self._needed = self._sizes * (params.min_count - 1)
        self._equal = np.zeros(len(self._sizes), np.int64)
        # The last tokens twice, one after the other: those before any place lie side by side.
        self._most = params.max_pattern_size
        self._last = np.full(2 * self._most, -1, np.int64)
        self._place = 0

    def push(self, token_id: int) -> bool:
        """Take the next token. True: with it the sequence is a repetition."""
        # Entry s of this is the token s places before the new one, counted from the end.
        before = self._last[self._place : self._place + self._most][::-1]
        same = before[self._sizes[0] - 1 :] == token_id
        self._equal = np.where(same, self._equal + 1, 0)
        self._last[self._place] = self._last[self._place + self._most] = token_id
        self._place = (self._place + 1) % self._most
        return bool((self._equal >= self._needed).any())
