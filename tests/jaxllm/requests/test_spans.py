"""Where the spans of a prompt are, where chunks may end, and what pages with spans are called."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.requests.media import ImageCrop, MediaItem, PromptMedia
from jaxllm.requests.spans import find_spans, longest_span, span_after, whole_spans

IMAGE = 99


def image(seed: int, rows: int) -> MediaItem:
    patches = np.random.default_rng(seed).integers(0, 256, (rows, 12), dtype=np.uint8)
    return MediaItem.of((ImageCrop(patches, rows, 1),), 1)


def keys(tokens: list[int], *items: MediaItem, kind: str | None = "images") -> tuple[bytes, ...]:
    return PromptMedia.of(items, np.array(tokens, np.int32), IMAGE, 4, kind).page_keys  # type: ignore[arg-type]


@given(st.lists(st.booleans(), max_size=40))
def test_spans_are_the_runs_of_places(is_image: list[bool]) -> None:
    places = np.flatnonzero(is_image).astype(np.int32)
    spans = find_spans("images", places, len(is_image))
    inside = np.zeros(len(is_image), np.bool_)
    for begin, end in spans.tolist():
        assert end - begin > 1
        assert all(is_image[begin:end])
        assert begin == 0 or not is_image[begin - 1]
        assert end == len(is_image) or not is_image[end]
        inside[begin:end] = True
    alone = [place for place in places.tolist() if not inside[place]]
    assert all(place - 1 not in places and place + 1 not in places for place in alone)


def test_other_kinds() -> None:
    places = np.array([1, 2], np.int32)
    assert find_spans("prompt", places, 9).tolist() == [[0, 9]]
    assert find_spans("prompt", places[:0], 9).tolist() == []
    assert find_spans(None, places, 9).tolist() == []
    assert longest_span(find_spans("images", places, 9)) == 2


@pytest.mark.parametrize(
    ("start", "count", "whole"),
    [(0, 2, 2), (0, 4, 3), (0, 9, 9), (3, 2, 0), (3, 5, 5), (5, 1, 0), (5, 3, 3), (8, 5, 4)],
)
def test_chunks_end_outside_of_spans(start: int, count: int, whole: int) -> None:
    spans = np.array([[3, 8], [12, 14]], np.int32)
    assert whole_spans(spans, start, count) == whole


def test_what_a_token_sees() -> None:
    spans = np.array([[3, 8], [8, 10]], np.int32)
    assert [span_after(spans, place) for place in range(11)] == [1, 2, 3, 8, 8, 8, 8, 8, 10, 10, 11]


def test_pages_depend_on_all_of_their_spans() -> None:
    """Two images side by side are one span, so that the first page depends on the second image."""
    first, second, third = image(0, 4), image(1, 4), image(2, 4)
    tokens = [1, 2, *[IMAGE] * 8, 3, 4, 5]
    wanted = keys(tokens, first, second)
    other = keys(tokens, first, third)
    assert all(one != two for one, two in zip(wanted[:3], other[:3], strict=True))
    assert wanted[3] == other[3] == b""
    apart = [1, 2, *[IMAGE] * 4, 3, *[IMAGE] * 4, 5]
    assert keys(apart, first, second)[0] == keys(apart, first, third)[0]
    assert keys(tokens, first, second, kind=None)[0] == keys(tokens, first, third, kind=None)[0]


def test_pages_of_a_prompt_that_is_a_span_depend_on_all_of_it() -> None:
    prompt = [1, 2, *[IMAGE] * 4, 3, 4, 5, 6, 7]
    wanted = keys(prompt, image(0, 4), kind="prompt")
    assert len(set(wanted) & set(keys([*prompt, 8], image(0, 4), kind="prompt"))) == 0
    assert len(set(wanted) & set(keys([*prompt[:-1], 8], image(0, 4), kind="prompt"))) == 0
    assert wanted == keys(prompt, image(0, 4), kind="prompt")
