"""Every processor's arrays, bit by bit those of transformers' PIL back end."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import merged_patches, normalised, patches
from jaxllm.serving.media.image_processors.registry import ConfiguredProcessor
from tests.serving.media.image_processors.oracles import ORACLES, Oracle, drawn_image, pil
from tests.thinned import EVERY_CASE, thinned

SIDES = st.one_of(st.integers(1, 700), st.sampled_from([1, 2, 13, 14, 28, 55, 56, 57, 127, 128, 129, 336, 672]))


@cache
def made(name: str) -> tuple[Any, ConfiguredProcessor]:
    oracle = ORACLES[name]
    return oracle.make(), ConfiguredProcessor.make(oracle.configuration, "preprocessor_config.json")


def of_oracle(oracle: Oracle, processor: Any, image: NDArray[np.uint8]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return processor(pil(image), return_tensors=None)


def check(name: str, height: int, width: int) -> None:
    oracle = ORACLES[name]
    theirs, ours = made(name)
    image = drawn_image(height, width)
    plan = ours.processor.normalisation
    try:
        found = ours.process(image)
    except RequestError as error:
        if "pixels are allowed" in str(error):
            assert max(height, width) > 100 * min(height, width)  # transformers would make gigabytes of a strip
            return
        if name.startswith("minicpm-v"):
            assert max(height, width) > 50 * min(height, width)  # transformers would make one long crop of a strip
            return
        if name == "idefics2 split" and min(height, width) == 1:
            return  # transformers makes zeros of a quarter without pixels, or divides by zero
        with pytest.raises((ValueError, ZeroDivisionError)):
            of_oracle(oracle, theirs, image)
        return
    out = of_oracle(oracle, theirs, image)
    assert (found.height, found.width) == (height, width)
    assert all(crop.dtype == np.uint8 and crop.ndim == 3 and crop.shape[2] == 3 for crop in found.crops)
    if oracle.layout != "images":
        expected = np.asarray(out["pixel_values"])
        count = sum(crop.shape[0] * crop.shape[1] for crop in found.crops) // oracle.patch_size**2
        if oracle.layout == "padded rows":
            assert not expected[0, count:].any()
            expected = expected[0, :count]
        expected = expected.reshape(len(expected), -1)
        np.testing.assert_array_equal(patch_rows(oracle, found.crops, plan, expected.shape[1]), expected)
    else:
        expected_crops = oracle.crops(out)
        assert len(found.crops) == len(expected_crops)
        for crop, expected_crop in zip(found.crops, expected_crops, strict=True):
            np.testing.assert_array_equal(normalised(crop, plan).transpose(2, 0, 1), expected_crop)
    limits = ours.processor.limits(oracle.patch_size)
    assert len(found.crops) <= limits.crops
    assert sum(len(patches(crop, oracle.patch_size)) for crop in found.crops) <= limits.patches
    if "rows" in out:
        assert (found.rows, found.columns) == (out["rows"][0][0], out["cols"][0][0])


def patch_rows(oracle: Oracle, crops: tuple[NDArray[np.uint8], ...], plan: Any, length: int) -> NDArray[Any]:
    """Our patches as floats [P, values], in the order of the oracle's values."""
    size = oracle.patch_size
    rows = merged_patches(crops[0], size) if oracle.layout == "merged" else patches(crops[0], size)
    if oracle.layout == "padded rows":
        return normalised(rows.reshape(len(rows), -1, 3), plan).reshape(len(rows), -1)
    pixels = normalised(rows.reshape(len(rows), -1, 3), plan).transpose(0, 2, 1)
    frames = length // (3 * size * size)
    return np.repeat(pixels[:, :, None], frames, axis=2).reshape(len(rows), -1)


@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=5 if EVERY_CASE else 3, deadline=None)
@given(height=SIDES, width=SIDES)
def test_drawn_images(name: str, height: int, width: int) -> None:
    check(name, height, width)


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize(
    ("height", "width"),
    thinned([(1, 1), (190, 1), (3, 640), (333, 500)], [(1, 190), (500, 333), (256, 256)]),
)
def test_chosen_images(name: str, height: int, width: int) -> None:
    check(name, height, width)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=100, deadline=None)
@given(height=st.integers(1, 1600), width=st.integers(1, 1600))
def test_many_images(name: str, height: int, width: int) -> None:
    check(name, height, width)


def test_deepseek_ocr_is_as_its_second_version() -> None:
    """The first has a processor on torchvision alone, which also says when an image fills the square."""
    fields = {"size": {"height": 112, "width": 112}, "tile_size": 56, "max_patches": 9}
    first, second = (
        ConfiguredProcessor.make({"image_processor_type": f"{name}ImageProcessor", **fields}, "test").processor
        for name in ("UnlimitedOcr", "DeepseekOcr2")
    )
    for height, width in ((50, 30), (100, 333), (333, 100)):
        image = drawn_image(height, width)
        pairs = zip(first.process(image).crops, second.process(image).crops, strict=True)
        assert all(np.array_equal(*pair) for pair in pairs)
    image = drawn_image(50, 30)
    for most, wanted in ((111, first.process(image).crops[0]), (112, np.asarray(pil(image).resize((112, 112), 3)))):
        whole = {"crop_to_patches": False, "maximum_pad_value": most}
        configured = {"image_processor_type": "UnlimitedOcrImageProcessor", **fields, **whole}
        (crop,) = ConfiguredProcessor.make(configured, "test").process(image).crops
        np.testing.assert_array_equal(crop, wanted)


@pytest.mark.parametrize("name", ORACLES)
@settings(max_examples=8 if EVERY_CASE else 4, deadline=None)
@given(height=st.integers(1, 2000), width=st.integers(1, 2000))
def test_no_image_exceeds_the_limits(name: str, height: int, width: int) -> None:
    """Also of sizes for which the oracle would take long: a plain image has the same crops."""
    oracle = ORACLES[name]
    processor = made(name)[1].processor
    try:
        crops = processor.process(np.zeros((height, width, 3), np.uint8)).crops
    except RequestError:
        return
    limits = processor.limits(oracle.patch_size)
    assert len(crops) <= limits.crops
    assert sum((c.shape[0] // oracle.patch_size) * (c.shape[1] // oracle.patch_size) for c in crops) <= limits.patches
