"""Video processors, against what torch resizes and the rules that transformers' have for sizes.

The classes of transformers need torchvision. So sizes are those that they gave once with it, and bytes those of the
function of torch that torchvision calls.
"""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.media.image_processors.settings import Settings
from jaxllm.serving.media.video.frames import videos_of
from jaxllm.serving.media.video.registry import VIDEO_PROCESSORS

SIZE = {"shortest_edge": 4096, "longest_edge": 100_000}
QWEN2, QWEN3, GLM = "Qwen2VLVideoProcessor", "Qwen3VLVideoProcessor", "Glm4vVideoProcessor"


def made(name: str, **fields: Any) -> Any:
    settings = Settings({"size": SIZE, **fields}, "video_preprocessor_config.json")
    found = VIDEO_PROCESSORS[name].read(settings)
    settings.check_all_read(())
    return found


@pytest.mark.parametrize(
    ("name", "grids"),
    [
        (QWEN2, [(2, 18, 22), (3, 8, 4), (4, 26, 18), (2, 14, 34), (6, 6, 6)]),
        (QWEN3, [(2, 8, 10), (3, 4, 2), (4, 8, 6), (2, 6, 16), (6, 4, 4)]),
        (GLM, [(2, 8, 12), (3, 4, 2), (4, 10, 6), (2, 8, 18), (6, 4, 4)]),
    ],
)
def test_as_transformers(name: str, grids: list[tuple[int, int, int]]) -> None:
    """Times, rows and columns of patches; and pixels."""
    shapes = [(4, 240, 320), (5, 70, 33), (7, 720, 480), (3, 480, 1100), (12, 64, 64)]
    drawn, processor = np.random.default_rng(0), made(name)
    for shape, grid in zip(shapes, grids, strict=True):
        frames = drawn.integers(0, 256, (*shape, 3), dtype=np.uint8)
        found = processor.process(*videos_of(frames))
        assert (found.steps, found.rows, found.columns) == grid, shape
        assert len(found.crops) == 2 * found.steps
        height, width = found.crops[0].shape[:2]
        channels_first = torch.from_numpy(frames).permute(0, 3, 1, 2)
        wanted = (
            interpolate(channels_first, (height, width), mode="bicubic", antialias=True).permute(0, 2, 3, 1).numpy()
        )
        for number, crop in enumerate(found.crops):
            difference = np.abs(crop.astype(int) - wanted[min(number, len(wanted) - 1)])
            assert difference.max() <= 2
            assert (difference > 0).mean() < 0.015
            assert (difference > 1).mean() < 0.001


def test_pixels_of_all_frames() -> None:
    """`cap_pixels_per_frame`: what transformers gave for it."""
    capped = made(QWEN3, cap_pixels_per_frame=True, max_video_tokens=8)
    assert capped.sides(12, 640, 480) == (96, 64)
    assert made(QWEN2, cap_pixels_per_frame=True, max_video_tokens=20).sides(12, 640, 480) == (56, 56)
    assert made(QWEN3).sides(12, 640, 480) == (96, 64)


def test_videos_that_models_do_not_take() -> None:
    one, strip = np.zeros((1, 64, 64, 3), np.uint8), np.zeros((2, 40, 9000, 3), np.uint8)
    assert made(QWEN2).process(*videos_of(one)).steps == 1
    with pytest.raises(RequestError, match="at least 2"):
        made(QWEN3).process(*videos_of(one))
    for name in (QWEN2, QWEN3, GLM):
        with pytest.raises(RequestError, match="too long"):
            made(name).process(*videos_of(strip))


@pytest.mark.parametrize(
    "fields",
    [{"size": {"longest_edge": 5}}, {"do_resize": False}, {"resample": 9}, {"unknown": 1}, {"min_pixels": 1 << 30}],
)
def test_wrong_configurations(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        made(QWEN2, **fields)


def test_pillow_frames() -> None:
    pictures = [Image.new("RGB", (40, 30), (number, 0, 0)) for number in range(3)]
    assert made(QWEN2).process(*videos_of(pictures)).num_frames == 3


@pytest.mark.parametrize(("height", "width"), [(240, 320), (70, 33), (480, 1100)])
def test_the_middle_of_frames(height: int, width: int) -> None:
    """LLaVA-NeXT-Video: the shorter side becomes 56 pixels, and the middle stays."""
    frames = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), dtype=np.uint8)
    sizes = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
    found = made("LlavaNextVideoVideoProcessor", **sizes).process(*videos_of(frames))
    inner = (56, int(56 * width / height)) if height < width else (int(56 * height / width), 56)
    top, left = ((length - 56) // 2 for length in inner)
    channels_first = torch.from_numpy(frames).permute(0, 3, 1, 2)
    wanted = interpolate(channels_first, inner, mode="bicubic", antialias=True).permute(0, 2, 3, 1).numpy()
    difference = np.abs(np.stack(found.crops).astype(int) - wanted[:, top : top + 56, left : left + 56])
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.015


def test_frames_in_squares() -> None:
    """SmolVLM2: resized as their shape has it, with an even shorter side, and then to a square."""
    frames = np.random.default_rng(0).integers(0, 256, (1, 60, 131, 3), dtype=np.uint8)
    fields = {
        "size": {"longest_edge": 70},
        "video_sampling": {"video_size": {"longest_edge": 84}},
        "max_image_size": {"longest_edge": 56},
    }
    found = made("SmolVLMVideoProcessor", **fields).process(*videos_of(frames))
    image = Image.fromarray(frames[0])
    for width, height in ((84, 38), (56, 56)):
        across = image.resize((width, image.height), Image.Resampling.LANCZOS)
        image = across.resize((width, height), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(found.crops[0], np.asarray(image))
    with pytest.raises(ConfigError, match="video_sampling='fast': expected a mapping"):
        made("SmolVLMVideoProcessor", size={"longest_edge": 70}, video_sampling="fast")
