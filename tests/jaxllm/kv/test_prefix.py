"""Digests of pages, and the map from digests to pages."""

import numpy as np
import pytest

from jaxllm.kv.prefix import PrefixCache, extend_digests, root_digest


def digests_of(tokens: list[int], block_size: int = 2, salt: str | None = None) -> list[bytes]:
    digests: list[bytes] = []
    extend_digests(digests, np.array(tokens, np.int32), block_size, root_digest(salt))
    return digests


def test_only_full_pages_have_a_digest() -> None:
    assert len(digests_of([1])) == 0
    assert len(digests_of([1, 2, 3])) == 1
    assert len(digests_of([1, 2, 3, 4])) == 2


def test_a_digest_stands_for_everything_before_it() -> None:
    base, other_start, other_end = digests_of([1, 2, 3, 4]), digests_of([9, 2, 3, 4]), digests_of([1, 2, 3, 9])
    assert base[0] == other_end[0]
    assert base[1] != other_end[1]
    assert base[0] != other_start[0]
    assert base[1] != other_start[1]


def test_same_tokens_at_another_page_differ() -> None:
    first, second = digests_of([1, 2, 1, 2])
    assert first != second


def test_extending_step_by_step_equals_at_once() -> None:
    tokens = np.arange(11, dtype=np.int32)
    digests: list[bytes] = []
    for end in (0, 3, 4, 5, 11):
        extend_digests(digests, tokens[:end], 2, root_digest(None))
    assert digests == digests_of(list(range(11)))


def test_other_integer_types_give_the_same_digests() -> None:
    digests: list[bytes] = []
    extend_digests(digests, np.arange(4, dtype=np.int64), 2, root_digest(None))  # type: ignore[arg-type]
    assert digests == digests_of([0, 1, 2, 3])


@pytest.mark.parametrize(("one", "other"), [(None, ""), ("a", "b"), (None, "\0" * 32), ("a", None)])
def test_salts_separate(one: str | None, other: str | None) -> None:
    assert root_digest(one) != root_digest(other)
    assert not set(digests_of([1, 2, 3, 4], salt=one)) & set(digests_of([1, 2, 3, 4], salt=other))


def test_any_text_may_be_a_salt() -> None:
    assert root_digest("\ud800") != root_digest("é")


def test_find_returns_the_longest_run_within_the_limit() -> None:
    cache = PrefixCache()
    digests = digests_of([1, 2, 3, 4, 5, 6])
    for digest, page in zip(digests, (7, 5, 3), strict=True):
        assert cache.insert(digest, page)
    assert cache.find(digests, 3) == [7, 5, 3]
    assert cache.find(digests, 2) == [7, 5]
    assert cache.find(digests_of([1, 2, 3, 9, 5, 6]), 3) == [7]
    cache.forget([5])
    assert cache.find(digests, 3) == [7]
    cache.check_integrity({7, 3})


@pytest.mark.parametrize("known", [False, True], ids=["new", "one known"])
@pytest.mark.parametrize("equal", [False, True], ids=["distinct", "two equal"])
def test_inserting_each_is_inserting_one_by_one(known: bool, equal: bool) -> None:
    digests = digests_of([1, 2, 3, 4, 5, 6])
    given = [*digests, digests[0]] if equal else digests
    pages = np.arange(10, 10 + 2 * len(given), dtype=np.int32).reshape(-1, 2)
    together, alone = PrefixCache(2), PrefixCache(2)
    for cache in (together, alone):
        if known:  # in one of the tables
            cache.insert(digests[1], 5, 1)
    inserted = [
        [
            page
            for digest, page in zip(given, pages[:, table].tolist(), strict=True)
            if alone.insert(digest, page, table)
        ]
        for table in (0, 1)
    ]
    assert together.insert_each(given, pages) == inserted
    assert [len(each) for each in inserted] == [3, 3 - known]
    assert vars(together) == vars(alone)
    together.check_integrity({*inserted[0], *inserted[1], *([5] if known else [])})


def test_the_first_page_of_a_digest_stays() -> None:
    cache = PrefixCache()
    (digest,) = digests_of([1, 2])
    assert cache.insert(digest, 4)
    assert not cache.insert(digest, 5)
    assert cache.insert(digest, 4), "publishing the same page again changes nothing"
    assert cache.find([digest], 1) == [4]
    assert len(cache) == 1
    cache.clear()
    assert cache.find([digest], 1) == []
    cache.check_integrity(set())
