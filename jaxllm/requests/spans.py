"""Spans of a prompt: neighbouring tokens that see one another, those before as well as those after them.

The keys and values of a token depend on all of its span. So a step computes whole spans, and the pages that one reaches
into are shared by prompts with the same span alone.
"""

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]

SpanKind = Literal["images", "prompt"]
"""The tokens of images that are side by side (Gemma 3), or the whole prompt of a request with images (PaliGemma)."""

NO_SPANS: Int32Array = np.zeros((0, 2), np.int32)


def find_spans(kind: SpanKind | None, places: Int32Array, length: int) -> Int32Array:
    """Begin and end of each span, int32 [spans, 2], of a prompt of `length` tokens with images at `places`, int32 [n].

    Spans of one token are none.
    """
    if kind is None or not len(places):
        return NO_SPANS
    if kind == "prompt":
        return np.array([[0, length]], np.int32)
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    begins, lasts = places[np.r_[0, breaks]], places[np.r_[breaks - 1, -1]]
    spans = np.stack([begins, lasts + 1], axis=1).astype(np.int32)
    return spans[spans[:, 1] - spans[:, 0] > 1]


def longest_span(spans: Int32Array) -> int:
    """Tokens of the longest one; 0 where there are none."""
    return int((spans[:, 1] - spans[:, 0]).max(initial=0))


def span_after(spans: Int32Array, position: int) -> int:
    """The end of the span of the token at a position, or the position after it where it has none."""
    for begin, end in spans.tolist():
        if begin <= position < end:
            return int(end)
    return position + 1


def whole_spans(spans: Int32Array, start: int, count: int) -> int:
    """How many of `count` tokens from `start` on can be computed without splitting a span."""
    end = start + count
    for begin, last in spans.tolist():
        if begin < end < last:
            return max(int(begin) - start, 0)
    return count


def span_keys(
    spans: Int32Array, token_ids: Int32Array, rows: Iterable[tuple[bytes, int, int]], num_pages: int, block_size: int
) -> list[bytes]:
    """For each page of a prompt, the digest of all of the spans that reach into it; empty where there are none.

    `rows` are the digests of images, and where the first and the last row of each is in the prompt. Which of an image's
    rows are in a span follows from the tokens, those before the page included.
    """
    keys, known = [b""] * num_pages, list(rows)
    for begin, end in spans.tolist():
        digest = sha256(np.array([begin, end], np.int64).tobytes())
        digest.update(np.ascontiguousarray(token_ids[begin:end], np.int32).data)
        for name, first, last in known:
            if first < end and last >= begin:
                digest.update(name + (begin - first).to_bytes(8, "little", signed=True))
        for page in range(begin // block_size, -(-end // block_size)):
            keys[page] += digest.digest()
    return keys
