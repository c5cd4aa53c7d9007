"""Bad words of several tokens, found by where the output stands. Host only."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

_NOTHING: frozenset[int] = frozenset()


class WordIndex:
    """Which tokens would complete a word (at least two tokens each) after a given output.

    Most tokens end the beginning of no word and cost one look-up. Others cost one for each length that such a beginning
    has: at most 181 for 16,384 tokens of words, and two or three for words that people write.
    """

    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        lasts: dict[tuple[int, ...], set[int]] = {}
        for word in words:
            assert len(word) > 1
            lasts.setdefault(tuple(word[:-1]), set()).add(word[-1])
        self._lasts = {beginning: frozenset(tokens) for beginning, tokens in lasts.items()}
        lengths: dict[int, set[int]] = {}
        for beginning in lasts:
            lengths.setdefault(beginning[-1], set()).add(len(beginning))
        self._lengths = {token: sorted(some) for token, some in lengths.items()}

    def __bool__(self) -> bool:
        return bool(self._lasts)

    def completing(self, output: npt.NDArray[np.int32]) -> frozenset[int]:
        """The tokens that complete a word when they follow `output`, int32 [n]."""
        lengths = self._lengths.get(int(output[-1])) if len(output) else None
        if lengths is None:
            return _NOTHING
        found, tail = _NOTHING, output[-lengths[-1] :].tolist()
        for length in lengths:
            if length > len(tail):
                break
            tokens = self._lasts.get(tuple(tail[-length:]))
            if tokens is not None:
                found = found | tokens if found else tokens
        return found
