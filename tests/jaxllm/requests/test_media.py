"""Images in prompts: what they depend on, and where their rows are."""

import numpy as np

from jaxllm.executor.media_targets import BlendedRows
from jaxllm.media.pool import MediaPool
from jaxllm.requests.media import Arrangement, ImageCrop, MediaItem, PromptMedia

ROWS = 4
"""Rows of a crop; one of them is learned."""


def crops(count: int) -> tuple[ImageCrop, ...]:
    drawn = np.random.default_rng(0)
    return tuple(ImageCrop(drawn.integers(0, 256, (ROWS - 1, 12), dtype=np.uint8), 1, ROWS - 1) for _ in range(count))


def item(rows: list[int] | None, count: int = 2) -> MediaItem:
    arrangement = None if rows is None else Arrangement.of(np.array(rows, np.int32))
    return MediaItem.with_rows(crops(count), count * ROWS, arrangement)


def test_the_pool_keeps_what_is_needed_once() -> None:
    arranged = item([1, 2, 3, 6, 0, 7, 0])
    assert (arranged.num_rows, arranged.num_kept) == (7, 6)
    pool = MediaPool(16)
    assert pool.pin([arranged]) == [arranged]
    kept, rows = pool.kept_rows(arranged), pool.rows([arranged])
    assert len(set(kept.tolist())) == pool.num_used == 6
    assert arranged.arrangement is not None
    by_row = dict(zip(arranged.arrangement.kept.tolist(), kept.tolist(), strict=True))
    assert rows.tolist() == [by_row[row] for row in (1, 2, 3, 6, 0, 7, 0)]
    pool.check_integrity()


def test_the_digest_depends_on_the_arrangement() -> None:
    shapes = [None, [1, 2, 3], [1, 3, 2], [1, 2, 3, 0], [1, 2, 0, 3]]
    assert len({item(rows).digest for rows in shapes}) == len(shapes)
    assert item([1, 2]).digest == item([1, 2]).digest


def test_pixels_are_not_taken_for_an_arrangement() -> None:
    """A further crop whose bytes are those of an arrangement."""
    arrangement = Arrangement.of(np.arange(6, dtype=np.int32))
    arranged = MediaItem.with_rows(crops(1), ROWS, arrangement)
    same = np.concatenate([arrangement.kept, arrangement.order]).view(np.uint8)
    header, pixels = same[:16].view(np.int64), same[16:]
    further = ImageCrop(pixels.reshape(1, -1), *header.tolist())
    assert MediaItem.with_rows((*crops(1), further), ROWS).digest != arranged.digest


def test_places_of_an_arranged_image() -> None:
    arranged, token = item([5, 0, 6, 0]), 9
    prompt = np.array([1, token, token, 2, token, token, 3], np.int32)
    media = PromptMedia.of((arranged,), prompt, token, 2)
    assert media.places.tolist() == [1, 2, 4, 5]
    assert [key[-8:] for key in media.page_keys[:3]] == [number.to_bytes(8, "little") for number in (0, 1, 2)]


def test_sums_of_rows_of_several_crops() -> None:
    """Crop by crop, with what is in the pool before: the sums are those of all rows at once."""
    drawn = np.random.default_rng(1)
    sources = drawn.integers(0, 3 * ROWS, (9, 4), dtype=np.int32)
    sources[7] = sources[2]
    weights = drawn.random((9, 4), dtype=np.float32)
    weights[7], weights[4, 1:] = weights[2], 0
    arranged = MediaItem.with_rows(crops(3), 3 * ROWS, Arrangement.of(sources, weights))
    assert (arranged.num_rows, arranged.num_kept) == (9, 8)
    values = drawn.random((3 * ROWS, 5), dtype=np.float32)
    pool, rows = np.full((20, 5), np.nan, np.float32), np.arange(3, 11, dtype=np.int32)
    blended = BlendedRows(arranged, rows, 9)
    for crop in range(3):
        own = values[crop * ROWS : (crop + 1) * ROWS]
        blend = blended.of_crop(crop * ROWS, ROWS)
        for row, is_begun, where, times in zip(*blend, strict=True):
            if row >= 0:
                pool[row] = (own[where] * times[:, None]).sum(axis=0) + (pool[row] if is_begun else 0)
    assert arranged.arrangement is not None
    found = pool[rows][arranged.arrangement.order]
    np.testing.assert_allclose(found, (values[sources] * weights[..., None]).sum(axis=1), rtol=1e-5)
