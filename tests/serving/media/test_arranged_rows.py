"""Rows in place of an image: those of transformers' models, and never more of a crop than its program writes."""

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import LlavaNextModel, LlavaOnevisionModel, UnlimitedOcrModel

from jaxllm.errors import RequestError
from jaxllm.serving.media.arranged_rows import LLaVANextRows, SeparatedRows, reduced
from jaxllm.serving.media.image_processors.llava_next import LLaVANext, LLaVAOneVision, best_resolution
from jaxllm.serving.media.image_processors.settings import Settings

SIDE, PATCH = 3, 10
TILE = SIDE * PATCH
GRID = [[TILE * rows, TILE * columns] for rows in range(1, 6) for columns in range(1, 6)]


@settings(max_examples=150, deadline=None)
@given(height=st.integers(1, 900), width=st.integers(1, 900), most_tiles=st.sampled_from([None, 1, 4, 9]))
def test_arranged_as_transformers_packs_features(height: int, width: int, most_tiles: int | None) -> None:
    """Features that are their own numbers; sums of them are compared likewise."""
    sizes: dict[str, Any] = {"size": {"height": TILE, "width": TILE}, "image_grid_pinpoints": GRID}
    kind = LLaVANext if most_tiles is None else LLaVAOneVision
    if most_tiles is None:
        sizes |= {"do_center_crop": False, "crop_size": TILE}
    processor = kind.read(Settings(sizes, "test"))
    found_height, found_width = best_resolution((height, width), processor.resolutions)
    count = 1 + found_height // TILE * (found_width // TILE)
    image: Any = SimpleNamespace(height=height, width=width, crops=[np.zeros((TILE, TILE, 3))])
    rows = LLaVANextRows(processor, (SIDE, SIDE), 0, most_tiles)
    arranged = None
    # torch cannot make a picture without lines either; see below.
    with contextlib.suppress(RequestError):
        arranged = rows.arranged(image)
    assume(arranged is not None)
    assert arranged is not None
    # A learned row, which is 1,000 here, comes first in each crop.
    of_crop = 1 + SIDE**2
    numbers = np.arange(count * of_crop, dtype=np.float32)
    assert arranged.num_rows == len(numbers)
    values = np.where(numbers % of_crop == 0, 1000, numbers).astype(np.float32)
    ours = values[arranged.rows] if arranged.weights is None else (values[arranged.rows] * arranged.weights).sum(1)
    vision = SimpleNamespace(image_size=TILE, patch_size=PATCH)
    model = SimpleNamespace(config=SimpleNamespace(vision_config=vision, image_grid_pinpoints=GRID))
    features = [torch.from_numpy(numbers.reshape(count, of_crop)[:, 1:, None])]
    told: dict[str, Any] = {
        "image_sizes": torch.tensor([[image.height, image.width]]),
        "image_newline": torch.tensor([1000.0]),
    }
    if most_tiles is None:
        packed, _ = LlavaNextModel.pack_image_features(model, features, vision_feature_select_strategy="full", **told)
    else:
        told["vision_aspect_ratio"] = f"anyres_max_{most_tiles}"
        packed, _ = LlavaOnevisionModel.pack_image_features(model, features, **told)
    np.testing.assert_allclose(ours, packed[0][:, 0].numpy(), rtol=1e-5)
    assert len(ours) == rows.count(image)


def test_a_strip_of_which_nothing_would_be_left() -> None:
    """No published model has so few rows."""
    sizes = {"size": {"height": TILE, "width": TILE}, "image_grid_pinpoints": GRID}
    rows = LLaVANextRows(LLaVAOneVision.read(Settings(sizes, "test")), (SIDE, SIDE), 0, 1)
    strip: Any = SimpleNamespace(height=30, width=226, crops=[np.zeros((TILE, TILE, 3))])
    with pytest.raises(RequestError, match="an image of 226 x 30 pixels is too narrow: of 1 x "):
        rows.count(strip)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(0, 3), columns=st.integers(1, 3), tile=st.integers(1, 3), whole=st.integers(1, 4))
def test_separated_as_transformers_does_it(rows: int, columns: int, tile: int, whole: int) -> None:
    """Features that are their own numbers; below 0 are the learned row after a line, and the one after an image."""
    sides = [*[tile] * (rows * columns), whole]
    image: Any = SimpleNamespace(crops=[np.zeros((side, side, 3)) for side in sides], rows=rows, columns=columns)
    arranged = SeparatedRows(1, ends_lines=True).arranged(image)
    values = np.arange(arranged.num_rows, dtype=np.float32)
    ends = np.cumsum([2 + side**2 for side in sides])
    assert ends[-1] == len(values)
    features = [
        torch.from_numpy(values[end - side**2 : end, None].copy()) for side, end in zip(sides, ends, strict=True)
    ]
    values[[0, 1]] = -1, -2
    model = SimpleNamespace(
        config=SimpleNamespace(return_dict=True),
        vision_tower=lambda x, **_: SimpleNamespace(last_hidden_state=x, hidden_states=None, attentions=None),
        multi_modal_projector=lambda x: x,
        image_newline=torch.tensor([-1.0]),
        view_separator=torch.tensor([-2.0]),
    )
    tiles = torch.stack(features[:-1]) if rows else None
    told = (features[-1][None], tiles, [rows * columns], [[columns, rows]])
    (wanted,) = UnlimitedOcrModel.get_image_features(model, *told).pooler_output
    np.testing.assert_array_equal(values[arranged.rows], wanted[:, 0].numpy())


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(2, 60),
    width=st.integers(2, 60),
    ratio=st.floats(1.1, 4, exclude_min=True),
    seed=st.integers(0, 9),
)
def test_reduced_as_torch_does_it(height: int, width: int, ratio: float, seed: int) -> None:
    values = np.random.default_rng(seed).random((height, width), dtype=np.float32)
    wanted = int(height // ratio), int(width // ratio)
    if 0 in wanted:
        return
    rows, weights = reduced(np.arange(height * width, dtype=np.int32).reshape(height, width), *wanted)
    found = (values.ravel()[rows] * weights).sum(axis=-1)
    theirs = torch.nn.functional.interpolate(torch.from_numpy(values)[None, None], list(wanted), mode="bilinear")
    np.testing.assert_allclose(found, theirs[0, 0].numpy(), atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(side=st.integers(1, 32), tiles=st.integers(1, 6), ratio=st.floats(1.1, 4, exclude_min=True), data=st.data())
def test_a_crop_has_a_part_in_few_sums(side: int, tiles: int, ratio: float, data: st.DataObject) -> None:
    """No more than `TowerPlan.targets_of` each way, whatever padding is left out around the tiles."""
    length = side * tiles - 2 * data.draw(st.integers(0, (side - 1) // 2))
    wanted = int(length // ratio)
    if not wanted:
        return
    left = (side * tiles - length) // 2
    line = np.arange(left, left + length, dtype=np.int32)[:, None]
    rows, weights = reduced(line, wanted, 1)
    for tile in range(tiles):
        inside = (rows // side == tile) & (weights != 0)
        assert inside.any(axis=(1, 2)).sum() <= side + 1
