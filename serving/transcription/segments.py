"""Segments of text between timestamps, in what a model writes about a window, and how much of it they cover."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from jaxllm.serving.transcription.model import TranscriptionModel

_LEAST_ADVANCE: Final = 1.0
"""Seconds. Where less of a window is covered, its rest is taken as it is: else there might be windows without end."""


@dataclass(frozen=True)
class Segment:
    """Tokens of text, with the seconds between which they are spoken."""

    start: float
    end: float
    token_ids: tuple[int, ...]
    """With their timestamps."""
    mean_logprob: float
    is_closed: bool
    """Whether the model has written its end."""


@dataclass(frozen=True)
class WindowText:
    """What was understood of a window, and how many seconds of it that covers: the next window begins there."""

    segments: tuple[Segment, ...]
    covered: float


def closed_segments(model: TranscriptionModel, token_ids: Sequence[int]) -> int:
    """Tokens of segments that are closed and followed by another's begin: nothing that comes changes them."""
    first = model.first_time
    if first is None:
        return 0
    ends = [place for place, pair in enumerate(pairwise(token_ids), 1) if min(pair) >= first]
    return ends[-1] if ends else 0


def read_window(
    model: TranscriptionModel,
    token_ids: Sequence[int],
    logprobs: Sequence[float] | None,
    *,
    start: float,
    seconds: float,
    is_last: bool,
) -> WindowText:
    """The segments in a text, whose window of so many `seconds` begins at `start`.

    As in OpenAI's code, a text that breaks off within a segment covers the window up to the end of the last closed one;
    one that ends with a segment, or has one segment only, covers all of it. So does the text of the last window of a
    stretch, if little of it is left.
    """
    tokens = [token for token in token_ids if token != model.end]
    scores = [0.0] * len(tokens) if logprobs is None else list(logprobs[: len(tokens)])
    first = model.first_time
    marks = [first is not None and token >= first for token in tokens]
    cuts = [place for place in range(1, len(tokens)) if marks[place - 1] and marks[place]]
    ends_closed = marks[-2:] == [False, True]
    parts = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    made = [_segment(model, tokens[part], scores[part], start, seconds) for part in parts if tokens[part]]
    if not cuts or ends_closed:
        return WindowText(tuple(made), seconds)
    assert first is not None
    covered = min(seconds, (tokens[cuts[-1] - 1] - first) * model.step)
    rest = seconds - covered
    if covered < _LEAST_ADVANCE or (is_last and rest < _LEAST_ADVANCE):
        return WindowText(tuple(made), seconds)
    return WindowText(tuple(made[:-1]), covered)


def _segment(
    model: TranscriptionModel, tokens: list[int], scores: list[float], start: float, seconds: float
) -> Segment:
    first = model.first_time
    begin, end, closed = 0.0, seconds, False
    if first is not None:
        begin = (tokens[0] - first) * model.step if tokens[0] >= first else 0.0
        closed = len(tokens) > 1 and tokens[-1] >= first
        end = (tokens[-1] - first) * model.step if closed else seconds
    begin, end = min(begin, seconds), min(end, seconds)
    mean = sum(scores) / len(scores) if scores else 0.0
    return Segment(start + begin, start + max(begin, end), tuple(tokens), mean, closed)


def compression_ratio(text: str) -> float:
    """How much shorter zlib makes a text: more than 2.4 where it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
