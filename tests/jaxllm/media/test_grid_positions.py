"""Positions of prompts with images are those of transformers' `get_rope_index`."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Qwen2VLConfig, Qwen2VLModel

from jaxllm.media.grid_positions import are_together, grid_offsets
from jaxllm.requests.media import ImageCrop, MediaItem, PromptMedia
from jaxllm.scheduler.rotary_offsets import RotaryOffsets
from tests.e2e.images.qwen_prompts import IMAGE, MERGE

PARTS = st.lists(st.one_of(st.integers(1, 9), st.tuples(st.integers(1, 7), st.integers(1, 7))), min_size=1, max_size=6)
"""Numbers of tokens, and images by their rows each way."""


@pytest.fixture(scope="module")
def model() -> Qwen2VLModel:
    with torch.device("meta"):
        return Qwen2VLModel(Qwen2VLConfig(vision_config={"depth": 0}, text_config={"num_hidden_layers": 0}))


def make_item(rows: int, columns: int) -> MediaItem:
    height, width = rows * MERGE, columns * MERGE
    return MediaItem.of((ImageCrop(np.zeros((height * width, 1), np.uint8), height, width),), MERGE**2)


@given(PARTS)
def test_as_transformers(model: Qwen2VLModel, parts: list[int | tuple[int, int]]) -> None:
    ids: list[int] = []
    items: list[MediaItem] = []
    for part in parts:
        if isinstance(part, int):
            ids += [5] * part
        else:
            # Without a token between them, transformers takes two images for one.
            ids += [6, *[IMAGE] * (part[0] * part[1])]
            items.append(make_item(*part))
    media = PromptMedia.of(tuple(items), np.array(ids, np.int32), IMAGE, 16)
    assert are_together(media)
    tokens = torch.tensor([ids])
    grids = torch.tensor([[1, item.crops[0].height, item.crops[0].width] for item in items]).reshape(-1, 3)
    wanted, delta = model.get_rope_index(tokens, (tokens == IMAGE).int(), image_grid_thw=grids)
    offsets, after = grid_offsets(media, MERGE)
    assert after == int(delta)

    table, places = RotaryOffsets(3, 512), np.arange(len(ids) + 20, dtype=np.int32)
    rows = np.zeros(len(places), np.int32)
    assert table.of(np.array([1]), rows, places).shape == (3, 0)
    table.set(1, offsets, after)
    found = table.of(np.array([1]), rows, places)
    assert found.shape[1] == (len(places) if items else 0)
    found = places + (found if items else np.zeros((3, 1), np.int32))
    np.testing.assert_array_equal(found[:, : len(ids)], wanted[:, 0].numpy())
    # What is generated counts on.
    np.testing.assert_array_equal(found[:, len(ids) :], np.tile(places[len(ids) :] + after, (3, 1)))
    table.clear(1)
    assert table.of(np.array([1]), rows, places).shape == (3, 0)


def test_offsets_of_several_requests_at_once() -> None:
    table = RotaryOffsets(4, 8)
    table.set(2, np.array([[1, 2], [3, 4], [5, 6]], np.int32), -7)
    slots, rows = np.array([0, 2], np.int32), np.array([0, 1, 1, 1], np.int32)
    found = table.of(slots, rows, np.array([1, 0, 1, 5], np.int32))
    np.testing.assert_array_equal(found, [[0, 1, 2, -7], [0, 3, 4, -7], [0, 5, 6, -7]])


def test_rows_that_are_apart() -> None:
    ids = np.array([IMAGE, 5, IMAGE, IMAGE, IMAGE], np.int32)
    assert not are_together(PromptMedia.of((make_item(2, 2),), ids, IMAGE, 16))
