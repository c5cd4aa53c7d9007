"""Images of requests from their URLs to crops and text: the whole of serving/media at once."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxllm.errors import ConfigError, RequestError
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.errors import MediaDecodeError, MediaError, MediaFetchError, MediaTooLargeError
from jaxllm.serving.media.image_processors.arithmetic import normalised
from jaxllm.serving.media.loader import ImageLoader, background_of
from jaxllm.serving.media.source import MediaSource
from jaxllm.serving.media.text_runs import text_of
from jaxllm.serving.options.media import MediaOptions
from tests.serving.media.files import encoded, png_bomb
from tests.serving.media.hostile_server import ok, redirect, serving
from tests.serving.media.image_processors.oracles import SMOLVLM, drawn_image, pil

PATCH = 16
PIXELS = drawn_image(150, 200)
PNG = encoded(Image.fromarray(PIXELS), "PNG")
WEBP = encoded(Image.fromarray(PIXELS), "WEBP", lossless=True)


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ImageModel:
    folder = tmp_path_factory.mktemp("smolvlm")
    files = {
        "preprocessor_config.json": SMOLVLM.configuration,
        "processor_config.json": {"processor_class": "SmolVLMProcessor", "image_seq_len": 4},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return ImageModel.read(folder)


@pytest.fixture
def loader(model: ImageModel, tmp_path: Path) -> Iterator[ImageLoader]:
    options = MediaOptions(
        allowed_media_networks=("127.0.0.1",),
        allowed_local_media_path=str(tmp_path),
        max_image_pixels=1 << 20,
        media_decoder_processes=1,
    )
    found = ImageLoader(model, options, model.processor.limits(PATCH), PATCH)
    yield found
    found.close()


async def test_from_a_url_to_what_transformers_gives(loader: ImageLoader, model: ImageModel, tmp_path: Path) -> None:
    (tmp_path / "x.webp").write_bytes(WEBP)
    expected = SMOLVLM.make()(pil(PIXELS), return_row_col_info=True)
    with serving({"/a": redirect("/b"), "/b": ok(PNG)}) as server:
        urls = (f"http://127.0.0.1:{server.port}/a", data_url(PNG), f"file://{tmp_path}/x.webp")
        found = [await loader.load(MediaSource(url)) for url in urls]
    for each in found:
        plan = model.processor.normalisation
        floats = [normalised(crop, plan).transpose(2, 0, 1) for crop in each.image.crops]
        np.testing.assert_array_equal(np.stack(floats), expected["pixel_values"][0])
        assert text_of(each.runs).count("<image>") == 4 * len(each.image.crops)
    assert len({each.digest for each in found}) == 1
    # Another file of the same pixels is decoded, and found.
    assert (loader.cache.queries, loader.cache.hits, len(loader.cache)) == (3, 2, 1)
    assert not found[0].image.crops[0].flags.writeable


async def test_other_options_are_another_image(loader: ImageLoader) -> None:
    whole = await loader.load(MediaSource(data_url(PNG)), {"do_image_splitting": False})
    split = await loader.load(MediaSource(data_url(PNG)))
    assert (len(whole.image.crops), len(split.image.crops)) == (1, 13)
    assert whole.digest != split.digest
    assert loader.cache.hits == 0
    with pytest.raises(RequestError, match="this server allows"):
        await loader.load(MediaSource(data_url(PNG)), {"size": {"longest_edge": 4096}})


async def test_uuids_name_images_of_their_owner(loader: ImageLoader) -> None:
    sent = await loader.load(MediaSource(data_url(PNG), "mine"), owner="a")
    assert (await loader.load(MediaSource(None, "mine"), owner="a")).digest == sent.digest
    for source, owner in ((MediaSource(None, "mine"), "b"), (MediaSource(None, "other"), "a")):
        with pytest.raises(MediaError, match="send it again") as error:
            await loader.load(source, owner=owner)
        assert error.value.parameter == "uuid"
    # Somebody else's image of this name changes nothing, and a new image of the owner does.
    red = data_url(encoded(Image.new("RGB", (9, 9), "red"), "PNG"))
    await loader.load(MediaSource(red, "mine"), owner="b")
    assert (await loader.load(MediaSource(None, "mine"), owner="a")).digest == sent.digest
    new = await loader.load(MediaSource(red, "mine"), owner="a")
    assert (await loader.load(MediaSource(None, "mine"), owner="a")).digest == new.digest != sent.digest


def test_one_bad_image_hurts_no_other(loader: ImageLoader) -> None:
    bad = {
        data_url(b"no image"): MediaDecodeError,
        data_url(PNG[:200]): MediaDecodeError,
        data_url(png_bomb(2000, 2000)): MediaTooLargeError,
        "http://169.254.169.254/": MediaFetchError,
        "file:///etc/passwd": MediaFetchError,
    }
    for url, kind in bad.items():
        with pytest.raises(kind):
            loader.load_now([MediaSource(data_url(PNG)), MediaSource(url)])
        assert len(loader.load_now([MediaSource(data_url(PNG))])[0].image.crops) == 13


def test_sources_need_something() -> None:
    for url, uuid in ((None, None), ("data:", ""), (None, "x" * 1000)):
        with pytest.raises(MediaError):
            MediaSource(url, uuid)


def test_options_are_checked_at_the_start(model: ImageModel) -> None:
    limits = model.processor.limits(PATCH)
    for options in (
        MediaOptions(allowed_media_networks=("10.0.0.1/8",)),
        MediaOptions(allowed_local_media_path="/missing"),
        MediaOptions(media_io_kwargs={"sound": {}}),
    ):
        with pytest.raises(ConfigError):
            ImageLoader(model, options, limits, PATCH)
    assert background_of({"image": {"rgba_background_color": [0, 1, 2]}}) == (0, 1, 2)
    for color in ([1, 2], [1, 2, 256], "red", 3, [True, 0, 0]):
        with pytest.raises(ConfigError, match="rgba_background_color"):
            background_of({"image": {"rgba_background_color": color}})


async def test_transparency_shows_the_chosen_colour(model: ImageModel) -> None:
    options = MediaOptions(media_io_kwargs={"image": {"rgba_background_color": [0, 0, 255]}}, media_decoder_processes=1)
    loader = ImageLoader(model, options, model.processor.limits(PATCH), PATCH)
    found = await loader.load(MediaSource(data_url(encoded(Image.new("RGBA", (64, 64)), "PNG"))))
    loader.close()
    assert found.image.crops[0][0, 0].tolist() == [0, 0, 255]
