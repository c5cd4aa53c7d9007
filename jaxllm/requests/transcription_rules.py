"""What a model that transcribes sound may write next: Whisper's rules.

Some tokens are never allowed, and some not first. With timestamps, these come in pairs, around each segment, and never
decrease; the first is not late. Where all timestamps together are more likely than any other token, one of them follows
(Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision, section 4.5, and the code that came with
it). What may follow depends on the output so far: it is said in a few numbers. `TranscriptionRules` applies them.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from jaxllm.requests.sampling_params import SamplingParams

NAME: Final = "transcription"
"""Of the rules in a request's `extra_args`."""
MOST_SUPPRESSED: Final = 160
"""Tokens that are not allowed, those at the beginning included. Whisper has up to 92."""

NUM_LIMITS: Final = 4
"""Of a request, before the suppressed tokens: the first timestamp or 0, the first text that may follow, and the
earliest and the latest timestamp that may."""
_NEVER: Final = 2**31 - 1

Int32Array = npt.NDArray[np.int32]
_Token = Annotated[int, Meta(ge=0, lt=_NEVER)]
_Tokens = Annotated[tuple[_Token, ...], Meta(max_length=MOST_SUPPRESSED)]


class Timestamps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Token ids of the rules for timestamps."""

    first: Annotated[int, Meta(ge=1, lt=_NEVER)]
    """It and all after it are timestamps."""
    end: _Token
    """The end of the text; tokens before it are text."""
    none: _Token
    """Says that there are no timestamps."""
    most_initial: _Token | None = None
    """How far from `first` a text may begin; None: anywhere."""

    def limits(self, output: Sequence[int]) -> tuple[int, int, int, int]:
        """What may follow an output: see `NUM_LIMITS`."""
        if not len(output):
            latest = _NEVER if self.most_initial is None else self.first + self.most_initial
            return self.first, self.first, self.first, latest
        is_time = output[-1] >= self.first
        if is_time and (len(output) < 2 or output[-2] >= self.first):
            # A segment begins.
            return self.first, 0, _NEVER, _NEVER
        last = next((int(token) for token in reversed(output) if token >= self.first), self.first - 1)
        # After the end of a segment, the next begins, maybe at once, or the text ends.
        return (self.first, self.end, last, _NEVER) if is_time else (self.first, 0, last + 1, _NEVER)


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a request; its `extra_args` have them as plain objects, under `NAME`."""

    suppressed: _Tokens = ()
    """Tokens that are never allowed."""
    suppressed_first: _Tokens = ()
    """Tokens that are not allowed at the beginning."""
    timestamps: Timestamps | None = None
    """None: the text has none."""

    def numbers(self, output: Sequence[int]) -> Int32Array:
        """What the program must know of the next token after an output: int32 [NUM_LIMITS + MOST_SUPPRESSED].

        Raises `ValueError` for too many suppressed tokens.
        """
        suppressed, times = self.suppressed, self.timestamps
        suppressed += () if len(output) else self.suppressed_first
        suppressed += () if times is None else (times.none,)
        if len(suppressed) > MOST_SUPPRESSED:
            raise ValueError(f"{len(suppressed)} suppressed tokens: at most {MOST_SUPPRESSED} are allowed")
        limits = (0,) * NUM_LIMITS if times is None else times.limits(output)
        return np.array([*limits, *suppressed, *[-1] * (MOST_SUPPRESSED - len(suppressed))], np.int32)


def rules_of(params: SamplingParams) -> Rules | None:
    """The rules of a request, if it has any. Raises `ValueError` for what is none."""
    given = (params.extra_args or {}).get(NAME)
    if given is None:
        return None
    try:
        return msgspec.convert(given, Rules)
    except msgspec.ValidationError as error:
        raise ValueError(f"{NAME}: {error}") from None
