"""Page tables with windows: what a request holds, what it gives back, and which prefixes are hits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.kv.groups import CacheGroups
from jaxllm.kv.manager import KVManager
from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams

LOCAL_AND_GLOBAL = CacheGroups((0, 1024, 1024, 1024, 1024, 1024), 16, 2048)
"""Five layers with windows of 1,024 to one without."""


def request_of(tokens: list[int]) -> Request:
    return Request(request_id="r", prompt_token_ids=np.array(tokens, np.int32), params=SamplingParams())


def test_five_windows_to_one_without_hold_five_times_the_tokens() -> None:
    alike = CacheGroups((0,), 16, 2048)
    # A page of six slices takes as much memory as six pages.
    pages, length = 60_000, 32_768
    assert LOCAL_AND_GLOBAL.tokens_held(6 * pages, length) > 5 * alike.tokens_held(pages, length)
    assert 6 * alike.usual_pages(length) > 5 * LOCAL_AND_GLOBAL.usual_pages(length)


def test_a_model_without_windows_holds_what_it_did() -> None:
    alike = CacheGroups((0,), 16, 2048)
    for tokens in (1, 16, 17, 1000):
        assert alike.usual_pages(tokens) == alike.most_pages(tokens) == alike.pages_for(tokens)
    assert alike.tokens_held(100, 512) == alike.longest(100) == 1600


@settings(max_examples=200, deadline=None)
@given(
    window=st.integers(1, 20), size=st.integers(1, 5), lookahead=st.integers(1, 9), computed=st.integers(0, 60),
    count=st.integers(1, 9), margin=st.integers(0, 2),
)  # fmt: skip
def test_most_pages_are_enough_for_every_chunk(
    window: int, size: int, lookahead: int, computed: int, count: int, margin: int
) -> None:
    groups = CacheGroups((window,), size, lookahead, margin=margin)
    (group,) = groups.all
    end = computed + min(count, lookahead)
    held = groups.end(group, computed, 1000) - groups.first_kept_page(group, computed)
    assert groups.pages_for(end) <= groups.end(group, computed, 1000)
    assert held <= groups.most_pages(1000)
    assert groups.most_pages(groups.longest(held)) <= held


def test_any_length_fits_where_all_tables_have_windows() -> None:
    groups = CacheGroups((8, 16), 4, 4)
    assert groups.longest(groups.most_pages(10**6)) == 2**31 - 1
    assert groups.longest(groups.most_pages(10**6) - 1) < 24


def compute(manager: KVManager, tokens: list[int]) -> Int32Array:
    """Admit a request, publish its whole prompt, and keep what it then holds."""
    request = request_of(tokens)
    found = manager.admit(request, 0)
    assert found is not None
    pages, cached = found
    manager.publish(request, request.prompt_token_ids, pages, cached, len(tokens))
    return pages


def test_a_hit_needs_only_what_the_window_shows() -> None:
    manager = KVManager(40, 2, groups=CacheGroups((0, 4), 2, 100))
    tokens = list(range(13))
    first = compute(manager, tokens)
    manager.check_integrity([first])
    found = manager.admit(request_of(tokens), 0)
    assert found is not None
    pages, cached = found
    assert cached == 12
    full, windowed = pages.reshape(2, -1).tolist()
    assert full[:6] == first.reshape(2, -1)[0, :6].tolist()
    assert windowed[:4] == [0] * 4
    assert windowed[4:6] == first.reshape(2, -1)[1, 4:6].tolist()
    manager.check_integrity([first, pages])


@pytest.mark.parametrize(("lost", "hit"), [([5], 10), ([4], 8), ([0, 1, 2, 3], 12), ([5, 3], 6), ([1, 3, 5], 2)])
def test_a_hit_is_right_for_all_tables_at_once(lost: list[int], hit: int) -> None:
    """The longest prefix whose last window is there, when some pages of the table with a window are not."""
    manager = KVManager(40, 2, groups=CacheGroups((0, 4), 2, 100))
    tokens = list(range(13))
    pages = compute(manager, tokens)
    windowed = pages.reshape(2, -1)[1]
    gone = windowed[lost]
    manager._cache.forget(gone.tolist())
    manager._pool._contents[gone] = 0
    found = manager.admit(request_of(tokens), 0)
    assert found is not None
    assert found[1] == hit
    manager.check_integrity([pages, found[0]])


def test_pages_that_several_requests_give_back_at_once() -> None:
    manager = KVManager(10, 2)
    pages = manager.grow(3)
    assert pages is not None
    manager.share(pages[:2])
    manager.release_some(np.concatenate([pages, pages[:2]]))
    assert manager.num_held_pages == 0
    manager.check_integrity([])
