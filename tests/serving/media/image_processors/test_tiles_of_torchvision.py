"""Processors that transformers has with torchvision only: grids are those that they gave once with it.

Bytes are compared with those of the function of torch that torchvision calls.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from jaxllm.errors import ConfigError, RequestError
from jaxllm.models.towers.fine_bytes import fine_bytes
from jaxllm.models.towers.plan import PixelPlan
from jaxllm.serving.media.image_processors.arithmetic import normalised, tiles
from jaxllm.serving.media.image_processors.phi4_multimodal import shrunk
from jaxllm.serving.media.image_processors.registry import ConfiguredProcessor
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD
from tests.serving.media.image_processors.oracles import drawn_image
from tests.serving.media.image_processors.phi3_vision import canvas_of, crops_of

SIDE = 56
SIZES = [(56, 56), (80, 120), (200, 60), (20, 30), (300, 290), (1, 190), (700, 90), (113, 57)]
LLAMA4, COHERE2, LFM2 = "Llama4ImageProcessor", "Cohere2VisionImageProcessor", "Lfm2VlImageProcessor"
KIMI, PHI4 = "Kimi_K25ImageProcessor", "Phi4MultimodalImageProcessor"
FOUR = [(1, 1), (2, 2), (4, 1), (1, 1), (2, 2), (1, 4), (4, 1), (2, 2)]


def made(name: str, **fields: Any) -> Any:
    whole = {"image_processor_type": name, "size": {"height": SIDE, "width": SIDE}, **fields}
    return ConfiguredProcessor.make(whole, "preprocessor_config.json").processor


def by_torch(image: np.ndarray, height: int, width: int, mode: str) -> np.ndarray:
    channels_first = torch.from_numpy(image).permute(2, 0, 1)[None]
    return interpolate(channels_first, (height, width), mode=mode, antialias=True)[0].permute(1, 2, 0).numpy()


def check_near(found: np.ndarray, wanted: np.ndarray) -> None:
    difference = np.abs(found.astype(int) - wanted)
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.3
    assert (difference > 1).mean() < 0.001


@pytest.mark.parametrize(
    ("name", "fields", "grids"),
    [
        (LLAMA4, {"max_patches": 4}, FOUR),
        (LLAMA4, {}, [(1, 1), (2, 3), (4, 2), (1, 1), (4, 4), (1, 4), (8, 2), (3, 2)]),
        (
            LLAMA4,
            {"max_patches": 7, "resize_to_max_canvas": True},
            [(2, 2), (2, 3), (4, 1), (2, 3), (3, 2), (1, 7), (7, 1), (3, 2)],
        ),
        (COHERE2, {"max_patches": 4}, FOUR),
        (COHERE2, {}, [(1, 1), (2, 3), (4, 2), (1, 1), (4, 3), (1, 4), (8, 1), (3, 2)]),
        (COHERE2, {"crop_to_patches": False}, [(1, 1)] * 8),
    ],
)
def test_grids(name: str, fields: dict[str, Any], grids: list[tuple[int, int]]) -> None:
    processor = made(name, **fields)
    for size, (rows, columns) in zip(SIZES, grids, strict=True):
        image = drawn_image(*size)
        crops = processor.process(image).crops
        assert len(crops) == rows * columns + (rows * columns > 1)
        assert len(crops) <= processor.limits(14).crops
        mode = "bilinear" if name == LLAMA4 else "bicubic"
        if len(crops) > 1:
            check_near(crops[-1], by_torch(image, SIDE, SIDE, mode))
        tiles = np.stack(crops[: rows * columns]).reshape(rows, columns, SIDE, SIDE, 3)
        canvas = tiles.transpose(0, 2, 1, 3, 4).reshape(rows * SIDE, columns * SIDE, 3)
        if name == LLAMA4:
            # As large as it fits, in the corner; not larger than it was, but for the size of a tile.
            most = [side if fields.get("resize_to_max_canvas") else max(given, SIDE) for given, side in
                    zip(size, canvas.shape[:2], strict=True)]  # fmt: skip
            scale = min(min(bound, side) / given for bound, side, given in zip(most, canvas.shape, size, strict=False))
            height, width = (max(int(given * scale + 1e-9), 1) for given in size)
            assert not canvas[height:].any()
            assert not canvas[:, width:].any()
            canvas = canvas[:height, :width]
        check_near(canvas, by_torch(image, *canvas.shape[:2], mode))


@pytest.mark.parametrize(
    ("most", "grids"), [(4, [(1, 1), (1, 1), (2, 2), (1, 1), (2, 2)]), (10, [(1, 1), (1, 1), (3, 3), (1, 1), (3, 3)])]
)
def test_sizes_of_lfm2(most: int, grids: list[tuple[int, int]]) -> None:
    """Tiles, and the whole in a size of its own."""
    fields = {"encoder_patch_size": 14, "tile_size": SIDE, "min_image_tokens": 2, "max_image_tokens": 4}
    processor = ConfiguredProcessor.make({"image_processor_type": LFM2, **fields, "max_tiles": most}, "file").processor
    sizes = [(56, 56), (26, 110), (130, 111), (30, 50), (300, 290)]
    whole = [(56, 56), (28, 112), (56, 28), (28, 56), (56, 28)]
    for size, (rows, columns), last in zip(sizes, grids, whole, strict=True):
        image = drawn_image(*size)
        found = processor.process(image)
        assert len(found.crops) == rows * columns + (rows * columns > 1)
        assert found.crops[-1].shape[:2] == last
        check_near(found.crops[-1], by_torch(image, *last, "bilinear"))
        limits = processor.limits(14)
        assert len(found.crops) <= limits.crops
        assert sum(crop.shape[0] * crop.shape[1] for crop in found.crops) <= limits.patches * 14**2
    with pytest.raises(RequestError, match="too narrow"):
        processor.process(drawn_image(90, 700))


@pytest.mark.parametrize(
    ("most", "grids"),
    [
        (6, [(1, 1, 4, 4), (2, 3, 8, 12), (3, 1, 12, 4), (1, 1, 3, 4), (2, 2, 8, 8), (6, 1, 24, 4), (3, 2, 12, 6)]),
        (36, [(1, 1, 4, 4), (2, 3, 8, 12), (4, 2, 16, 5), (1, 1, 3, 4), (6, 6, 24, 24), (13, 2, 52, 7), (3, 2, 12, 6)]),
    ],
)
def test_crops_of_phi4(most: int, grids: list[tuple[int, int, int, int]]) -> None:
    """Rows and columns of crops, and of the patches that are not padding."""
    processor = made(PHI4, dynamic_hd=most)
    sizes = [size for size in SIZES if size != (1, 190)]
    for size, (rows, columns, down, across) in zip(sizes, grids, strict=True):
        image = drawn_image(*size)
        found = processor.process(image)
        assert (found.rows, found.columns) == (rows, columns)
        seen = np.vstack([np.hstack(found.crops[first : first + columns]) for first in
                          range(1, len(found.crops), columns)])  # fmt: skip
        assert seen.shape == (14 * down, 14 * across, 3)
        assert len(found.crops) <= processor.limits(14).crops
        scale = min(SIDE * rows / size[0], SIDE * columns / size[1])
        height, width = (int(side * scale + 1e-9) for side in size)
        check_near(seen[:height, :width], by_torch(image, height, width, "bilinear")[: len(seen), : seen.shape[1]])
        assert (seen[height:] == 255).all()
        assert (seen[:, width:] == 255).all()
    with pytest.raises(RequestError, match="too long"):
        processor.process(drawn_image(1, 190))


@pytest.mark.parametrize("factors", [(1, 1), (2, 1), (1, 3), (2, 4), (5, 2)])
def test_the_whole_image_of_phi4_is_resized_as_floats(factors: tuple[int, int]) -> None:
    canvas = drawn_image(factors[0] * SIDE, factors[1] * SIDE)
    plan = PixelPlan(is_fine=True)
    floats = torch.from_numpy(normalised(canvas, made(PHI4).normalisation).transpose(2, 0, 1).copy())
    wanted = interpolate(floats[None], (SIDE, SIDE), mode="bicubic", antialias=False)[0].permute(1, 2, 0).numpy()
    found = np.asarray(plan.numbers(jnp.asarray(shrunk(canvas, SIDE).reshape(SIDE, -1)))).reshape(SIDE, SIDE, 3)
    np.testing.assert_allclose(found, wanted, atol=2e-6)
    if factors == (1, 1):
        np.testing.assert_array_equal(shrunk(canvas, SIDE).reshape(SIDE, -1), fine_bytes(canvas.reshape(SIDE, -1)))


def test_kimi_vl_resizes_as_its_own_code() -> None:
    """`rescale` of moonshotai/Kimi-VL-A3B-Instruct, which uses Pillow: equal."""
    code = {"auto_map": {"AutoImageProcessor": "image_processing_kimi_vl.KimiVLImageProcessor"}}
    fields = {**code, "in_token_limit": 36, "pad_input": True, "merge_kernel_size": [2, 2]}
    processor = ConfiguredProcessor.make(fields, "preprocessor_config.json").processor
    for size in SIZES:
        image = drawn_image(*size)
        (crop,) = processor.process(image).crops
        height, width = size
        if (count := (height // 14) * (width // 14)) > 36:
            height, width = (int(side * math.sqrt(36 / count)) for side in size)
        resized = Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC)
        wanted = np.asarray(resized) if count > 36 else image
        padded = np.zeros((-(-height // 28) * 28, -(-width // 28) * 28, 3), np.uint8)
        padded[:height, :width] = wanted
        np.testing.assert_array_equal(crop, padded)
        assert crop.shape[0] * crop.shape[1] <= processor.limits(14).patches * 14**2
    with pytest.raises(RequestError, match="too long"):
        processor.process(drawn_image(14 * 512, 3))
    with pytest.raises(ConfigError, match="pad_input=False"):
        ConfiguredProcessor.make({**fields, "pad_input": False}, "preprocessor_config.json")


def test_grids_of_kimi() -> None:
    """Images of nearly their own size, filled up with black at the right and below."""
    fields = {"image_processor_type": KIMI, "max_patches": 36}
    processor = ConfiguredProcessor.make(fields, "preprocessor_config.json").processor
    grids = [(4, 4), (6, 10), (12, 4), (2, 4), (8, 6), (2, 14), (18, 4), (10, 6)]
    for size, (rows, columns) in zip(SIZES, grids, strict=True):
        image = drawn_image(*size)
        found = processor.process(image)
        assert (found.rows, found.columns) == (rows, columns)
        (crop,) = found.crops
        assert crop.shape == (14 * rows, 14 * columns, 3)
        scale = min(1, (36 / (max(size[0] // 14, 1) * max(size[1] // 14, 1))) ** 0.5)
        height, width = (max(int(side * scale), 1) for side in size)
        assert not crop[height:].any()
        assert not crop[:, width:].any()
        difference = np.abs(crop[:height, :width].astype(int) - by_torch(image, height, width, "bicubic"))
        assert difference.max() <= 4
        assert (difference > 1).mean() < 0.05
        assert rows * columns <= processor.limits(14).patches


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (LFM2, {"tile_size": 500}, "must be a multiple of 32"),
        (LFM2, {"tile_size": 1024}, "at most 256 tokens"),
        (LFM2, {"min_tiles": 11}, "larger than the most"),
        (LLAMA4, {"size": {"height": 336, "width": 224}}, "size must be square"),
        (COHERE2, {"size": {"height": 512, "width": 224}}, "size must be square"),
        (KIMI, {"size": {"max_height": 512, "max_width": 51}}, "the same max_height and max_width"),
        ("DeepseekVLImageProcessor", {"do_pad": False}, "do_pad=False is not supported"),
        ("DeepseekVLImageProcessor", {"unknown": 1}, "not supported: unknown=1"),
    ],
)
def test_what_is_not_supported(name: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConfiguredProcessor.make({"image_processor_type": name, **fields}, "preprocessor_config.json")


def test_numbers_of_llama_4() -> None:
    """Steps are rounded to bfloat16, as its first code had them."""
    processor = made(LLAMA4)
    every = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    wanted = (torch.from_numpy(every).to(torch.bfloat16) * (1 / 255)).sub(torch.tensor(0.5, dtype=torch.bfloat16))
    wanted = wanted.div(torch.tensor(0.5, dtype=torch.bfloat16)).float()
    np.testing.assert_array_equal(normalised(every, processor.normalisation), wanted.numpy())


@pytest.mark.parametrize("most", [1, 5, 16])
def test_phi3_vision_resizes_as_its_own_code(most: int) -> None:
    """Crops are equal; the whole image is within a rounding of floats."""
    processor = made("Phi3VImageProcessor", num_crops=most)
    plan = PixelPlan(CLIP_MEAN, CLIP_STD, is_fine=True)
    for size in [size for size in SIZES if size != (1, 190)]:
        image = drawn_image(*size)
        found, canvas = processor.process(image), canvas_of(image, SIDE, most)
        assert (found.rows * SIDE, found.columns * SIDE) == canvas.shape[:2]
        assert len(found.crops) == 1 + found.rows * found.columns <= processor.limits(14).crops == most + 1
        for crop, wanted in zip(found.crops[1:], tiles(canvas, SIDE, SIDE), strict=True):
            np.testing.assert_array_equal(crop, wanted)
        whole = np.asarray(plan.numbers(jnp.asarray(found.crops[0].reshape(SIDE, -1)))).reshape(SIDE, SIDE, 3)
        np.testing.assert_allclose(whole, crops_of(canvas, SIDE)[0].permute(1, 2, 0), atol=4e-6)
    with pytest.raises(RequestError, match="too long"):
        processor.process(drawn_image(1, 2000))
    with pytest.raises(ConfigError, match="a square of whole tokens"):
        made("Phi3VImageProcessor", size={"height": 42, "width": 42})
