"""Rows in place of an image: reduced as torch reduces them, and never more of a crop than its program writes."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.serving.media.arranged_rows import reduced


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
