"""The cache of processed images, against a model of it."""

import threading
from collections import OrderedDict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.serving.media.cache import (
    MOST_NAMES,
    OVERHEAD,
    CachedImage,
    ProcessedCache,
    image_digest,
    name_of_file,
    name_of_uuid,
    options_key,
)
from jaxllm.serving.media.image_processors.base import ProcessedImage


def item(key: int, size: int = 1000) -> CachedImage:
    return CachedImage(bytes([key]), ProcessedImage((np.zeros((size, 1, 1), np.uint8),), 1, 1))


def test_the_least_recently_used_goes() -> None:
    cache = ProcessedCache[CachedImage](3 * (1000 + OVERHEAD))
    for key in range(3):
        cache.put(item(key), b"name%d" % key)
    assert cache.find(b"name0") is not None
    cache.put(item(3), b"name3")
    assert [cache.find(b"name%d" % key) is not None for key in range(4)] == [True, False, True, True]
    assert (cache.queries, cache.hits) == (5, 4)
    assert cache.nbytes == 3 * (1000 + OVERHEAD)
    cache.put(item(9, 10_000), b"large")
    assert cache.find(b"large") is None
    assert len(cache) == 3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "get", "find"]), st.integers(0, 6), st.lists(st.integers(0, 9), max_size=3)),
        max_size=60,
    )
)
def test_as_a_plain_model_has_it(steps: list[tuple[str, int, list[int]]]) -> None:
    cache, model = ProcessedCache[CachedImage](3 * (1000 + OVERHEAD)), OrderedDict[int, OrderedDict[int, None]]()

    def rename(key: int, names: list[int]) -> None:
        for name in names:
            for others in model.values():
                others.pop(name, None)
            model[key][name] = None
        while len(model[key]) > MOST_NAMES:
            model[key].popitem(last=False)

    for kind, key, names in steps:
        labels = [bytes([100 + name]) for name in names]
        if kind == "put":
            cache.put(item(key), *labels)
            model.setdefault(key, OrderedDict())
            model.move_to_end(key)
            rename(key, names)
            if len(model) > 3:
                model.popitem(last=False)
        elif kind == "get":
            assert (cache.get(bytes([key]), *labels) is not None) == (key in model)
            if key in model:
                model.move_to_end(key)
                rename(key, names)
        else:
            expected = next((k for name in names for k, held in model.items() if name in held), None)
            found = cache.find(*labels)
            assert (found.digest[0] if found else None) == expected
            if expected is not None:
                model.move_to_end(expected)
    assert len(cache) == len(model)
    assert cache.nbytes == len(model) * (1000 + OVERHEAD)
    assert cache.hits <= cache.queries + sum(kind == "get" for kind, _, _ in steps)


def test_threads() -> None:
    cache = ProcessedCache[CachedImage](5 * (1000 + OVERHEAD))

    def work(seed: int) -> None:
        for number in range(300):
            key = (seed * 7 + number) % 11
            cache.put(item(key), bytes([100 + key]))
            found = cache.find(bytes([100 + key]))
            assert found is None or found.digest == bytes([key])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert cache.nbytes == len(cache) * (1000 + OVERHEAD) <= 5 * (1000 + OVERHEAD)


def test_digests_tell_apart_what_differs() -> None:
    first, second = options_key({"a": 1}), options_key({"a": 2})
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    other = image.copy()
    other[1, 3, 2] ^= 1
    digests = {
        image_digest(image, first), image_digest(image, second), image_digest(other, first),
        image_digest(image.reshape(4, 2, 3), first), image_digest(image[:, :2], first),
        name_of_file(b"ab", first), name_of_file(b"ab", second), name_of_file(b"a", first),
        name_of_uuid("a", "bc", first), name_of_uuid("ab", "c", first), name_of_uuid("", "abc", first),
    }  # fmt: skip
    assert len(digests) == 11
    assert {len(each) for each in digests} == {32}
    assert image_digest(image[:, ::-1][:, ::-1], first) == image_digest(image, first)
    assert options_key({"a": 1, "b": 2}) == options_key({"b": 2, "a": 1})
