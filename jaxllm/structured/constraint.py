"""The continuations of one output: its reasoning, then its grammar."""

import copy
from collections.abc import Sequence

import numpy as np

from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.structured.backend import Mask, Matcher


class Constraint:
    """Follows the tokens of one request and says which may come next.

    The output may begin inside reasoning, where any token is allowed but the end of the text, if a grammar is still to
    come. `reasoning_end_token_ids` ends it, and is forced when the budget of tokens is used up, or what is to close it
    then. What follows obeys the grammar; without one, it is free.

    Depends on nothing but the tokens, so it survives preemption as it is.
    """

    def __init__(self, params: SamplingParams, matcher: Matcher | None, end_token_ids: Sequence[int]) -> None:
        self.matcher = matcher
        self._ends = tuple(end_token_ids)
        self._ignores_ends = params.ignore_eos
        self._marker = tuple(params.reasoning_end_token_ids or ())
        self._reasons = bool(self._marker)
        budget = params.thinking_token_budget
        self._left = None if budget is None or not self._marker else budget
        self._tail: tuple[int, ...] = ()
        self._closing = tuple(params.reasoning_closing_token_ids or ()) or self._marker
        self._owed = self._closing if self._left == 0 else ()
        self._ended = False

    @property
    def free(self) -> bool:
        """Whether anything may follow from here on, to the end of the output."""
        return self.matcher is None and not self._reasons

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end of the text, and it has not come yet."""
        return not (self._reasons or self._ended or self.matcher is None) and self.matcher.finished

    @property
    def ended(self) -> bool:
        """Whether an end token was taken where the grammar allows one."""
        return self._ended

    @property
    def follows_grammar(self) -> bool:
        """Whether the next token is the grammar's to allow."""
        return self.matcher is not None and not self._reasons

    def branch(self) -> "Constraint":
        """A copy, to see what may follow tokens that are not known to come."""
        found = copy.copy(self)
        found.matcher = None if self.matcher is None else self.matcher.copy()
        return found

    def take(self, token_ids: Sequence[int]) -> str | None:
        """Go on by these tokens. Returns what is wrong if they are not allowed; nothing may be asked afterwards."""
        place = 0
        while self._reasons and place < len(token_ids):
            self._think(token_ids[place])
            place += 1
        rest = token_ids[place:]
        if self.matcher is None or not rest:
            return None
        if rest[-1] in self._ends:
            self._ended = True
        return self.matcher.take(rest)

    def _think(self, token_id: int) -> None:
        """One more token of reasoning."""
        self._tail = (*self._tail, token_id)[-len(self._marker) :]
        if self._owed:
            self._owed = self._owed[1:]
            self._reasons = bool(self._owed)
        elif self._tail == self._marker:
            self._reasons = False
        elif self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._owed = self._closing

    def forced(self) -> list[int]:
        """The tokens that must follow, where there is no choice."""
        if self._reasons:
            return list(self._owed)
        return [] if self.matcher is None or self._ended else self.matcher.forced()

    def fill(self, mask: Mask) -> None:
        """Write the tokens that may follow while the grammar has no say."""
        mask[:] = -1
        if self._owed:
            mask[:] = 0
            _set(mask, self._owed[:1], allowed=True)
        elif self._reasons and self.matcher is not None:
            _set(mask, self._ends, allowed=False)

    @staticmethod
    def allows(mask: Mask, token_id: int) -> bool:
        """Whether a mask has a token."""
        return bool(int(mask[token_id // 32]) >> (token_id % 32) & 1)

    def adjust(self, mask: Mask) -> None:
        """Change what the grammar allows: with `ignore_eos`, the text ends only where nothing else may follow."""
        if not self._ignores_ends:
            return
        kept = mask.copy()
        _set(mask, self._ends, allowed=False)
        if not mask.any():
            mask[:] = kept


def _set(mask: Mask, token_ids: Sequence[int], *, allowed: bool) -> None:
    words = mask.view(np.uint32)
    for token_id in token_ids:
        bit = np.uint32(1 << (token_id % 32))
        if allowed:
            words[token_id // 32] |= bit
        else:
            words[token_id // 32] &= ~bit
