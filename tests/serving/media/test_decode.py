"""Decoding, by functions and by processes that may die."""

import asyncio
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from jaxllm.errors import QueueFullError
from jaxllm.serving.media.decode import decode
from jaxllm.serving.media.decoding import DecoderPool
from jaxllm.serving.media.errors import MediaDecodeError, MediaError, MediaTooLargeError
from tests.serving.media.files import encoded, gradient, jpeg_of_many_scans, png_bomb, png_chunk

MOST = 1 << 22
RGB = gradient()
PICTURE = Image.fromarray(RGB)


def pixels(data: bytes, most: int = MOST) -> NDArray[np.uint8]:
    width, height, found = decode(data, most)
    return np.frombuffer(found, np.uint8).reshape(height, width, 3)


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    found = DecoderPool(2, seconds=2)
    yield found
    found.close()


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_give_their_pixels(form: str) -> None:
    np.testing.assert_array_equal(pixels(encoded(PICTURE, form)), RGB)


def test_lossless_webp_and_compressed_tiff() -> None:
    np.testing.assert_array_equal(pixels(encoded(PICTURE, "WEBP", lossless=True)), RGB)
    np.testing.assert_array_equal(pixels(encoded(PICTURE, "TIFF", compression="tiff_lzw")), RGB)


def test_jpeg_is_as_pillow_decodes_it() -> None:
    data = encoded(PICTURE, "JPEG", quality=80, progressive=True)
    assert np.abs(pixels(data).astype(int) - RGB).mean() < 6


def test_the_first_frame_of_an_animation() -> None:
    frames = [PICTURE.quantize(64), ImageOps.invert(PICTURE).quantize(64)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(pixels(data), np.asarray(frames[0].convert("RGB")))
    data = encoded(PICTURE, "WEBP", save_all=True, append_images=[ImageOps.invert(PICTURE)], lossless=True)
    np.testing.assert_array_equal(pixels(data), RGB)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_turns_images(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    turns: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
        1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2), 6: lambda a: np.rot90(a, -1), 7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
        8: np.rot90,
    }  # fmt: skip
    np.testing.assert_array_equal(pixels(encoded(PICTURE, "PNG", exif=exif)), turns[orientation](RGB))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_transparency_shows_white(seed: int) -> None:
    """Exactly as Pillow pastes with a mask, which is what vLLM does; by its formula, in numpy."""
    rgba = np.random.default_rng(seed).integers(0, 256, (9, 7, 4), np.uint8)
    color, alpha = rgba[..., :3].astype(np.uint32), rgba[..., 3:].astype(np.uint32)
    mixed = color * alpha + 255 * (255 - alpha) + 128
    np.testing.assert_array_equal(pixels(encoded(Image.fromarray(rgba), "PNG")), ((mixed >> 8) + mixed) >> 8)


def test_other_kinds_of_transparency_show_white() -> None:
    palette = PICTURE.quantize(16)
    clear = pixels(encoded(palette, "PNG", transparency=0))
    indices = np.asarray(palette)
    assert (clear[indices == 0] == 255).all()
    np.testing.assert_array_equal(clear[indices != 0], np.asarray(palette.convert("RGB"))[indices != 0])
    grey = Image.fromarray(np.array([[0, 100, 200]], np.uint8))
    assert pixels(encoded(grey, "PNG", transparency=100))[0, :, 0].tolist() == [0, 255, 200]
    faded = Image.merge("LA", (grey, Image.fromarray(np.array([[255, 0, 255]], np.uint8))))
    assert pixels(encoded(faded, "PNG"))[0, :, 0].tolist() == [0, 255, 200]
    assert pixels(encoded(PICTURE, "PNG", transparency=tuple(map(int, RGB[0, 0]))))[0, 0].tolist() == [255] * 3


def test_a_background_may_be_chosen() -> None:
    data = encoded(Image.new("RGBA", (1, 1)), "PNG")
    assert decode(data, MOST, (1, 2, 3)).pixels == bytes((1, 2, 3))


def test_sixteen_bits_keep_their_upper_half() -> None:
    deep = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    for form in ("PNG", "TIFF"):
        np.testing.assert_array_equal(pixels(encoded(Image.fromarray(deep), form))[..., 0].ravel(), np.arange(256))
    assert pixels(encoded(Image.fromarray(deep), "PNG", transparency=7)).shape == (16, 16, 3)


def test_cmyk_grey_and_two_colours() -> None:
    cmyk = PICTURE.convert("CMYK")
    np.testing.assert_array_equal(pixels(encoded(cmyk, "TIFF")), np.asarray(cmyk.convert("RGB")))
    assert np.abs(pixels(encoded(cmyk, "JPEG", quality=95)).astype(int) - RGB).mean() < 8
    grey, black = PICTURE.convert("L"), PICTURE.convert("1")
    np.testing.assert_array_equal(pixels(encoded(grey, "PNG"))[..., 1], np.asarray(grey))
    np.testing.assert_array_equal(pixels(encoded(black, "PNG"))[..., 1] > 0, np.asarray(black))


NOT_IMAGES = {
    "empty": b"",
    "text": b"hello",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    "pdf": b"%PDF-1.7\n",
    "head of png": encoded(PICTURE, "PNG")[:20],
    "head of jpeg": encoded(PICTURE, "JPEG")[:20],
    "head of webp": b"RIFF\x00\x00\x00\x00WEBPVP8 ",
    "head of gif": b"GIF89a",
    "bmp": b"BM" + bytes(60),
    "tiff": b"II*\x00" + struct.pack("<IHHHII", 8, 1, 256, 4, 1, 0xFFFFFFFF),
    "icon": b"\x00\x00\x01\x00\x01\x00" + bytes(40),
    "no pixels": b"GIF89a" + bytes(20),
}


@pytest.mark.parametrize("name", NOT_IMAGES)
def test_what_is_no_image_is_an_error_of_the_request(name: str) -> None:
    with pytest.raises(MediaDecodeError):
        decode(NOT_IMAGES[name], MOST)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_truncated_and_damaged_files(form: str, data: st.DataObject) -> None:
    """Either an image or our error; never another exception."""
    whole = bytearray(encoded(PICTURE, form))
    cut = data.draw(st.integers(0, len(whole)))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        width, height, found = decode(bytes(whole[:cut]), MOST)
    except MediaError:
        return
    assert len(found) == 3 * width * height <= 3 * MOST


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_half_a_file_is_no_image(form: str) -> None:
    data = encoded(PICTURE, form)
    with pytest.raises(MediaDecodeError, match=r"cannot be (decoded|read)"):
        decode(data[: len(data) // 2], MOST)


def test_pixels_are_counted_before_they_are_decoded() -> None:
    for data in (png_bomb(5000, 1000), encoded(Image.new("L", (5000, 1000)), "GIF")):
        with pytest.raises(MediaTooLargeError, match=r"5000x1000 = 5000000 pixels; at most 4194304"):
            decode(data, MOST)
    # The header alone claims a terapixel.
    head = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack("!IIBBBBB", 1 << 20, 1 << 20, 8, 2, 0, 0, 0))
    with pytest.raises(MediaTooLargeError, match="1099511627776 pixels"):
        decode(head + png_chunk(b"IDAT", b""), MOST)


def test_files_that_are_two_things_are_what_their_first_bytes_say() -> None:
    png = encoded(PICTURE, "PNG")
    np.testing.assert_array_equal(pixels(png + b"PK\x03\x04" + b"%!PS"), RGB)
    with pytest.raises(MediaDecodeError, match="expected PNG, JPEG"):
        decode(b"%!PS\n" + png, MOST)


def test_texts_in_a_png_are_bounded(pool: DecoderPool) -> None:
    """A megabyte that becomes a gigabyte, in a comment."""
    import zlib

    text = b"Comment\x00\x00" + zlib.compress(bytes(1 << 29), 9)
    png = encoded(PICTURE, "PNG")
    with pytest.raises(MediaError):
        pool.decode(png[:33] + png_chunk(b"zTXt", text) + png[33:], MOST)


def test_processes_give_what_functions_give(pool: DecoderPool) -> None:
    files = [encoded(PICTURE, form) for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP")] * 3
    with ThreadPoolExecutor(8) as threads:
        for data, found in zip(files, threads.map(lambda data: pool.decode(data, MOST), files), strict=True):
            np.testing.assert_array_equal(found, pixels(data))
    assert len(pool.pids()) <= 2
    for data in (b"hello", png_bomb(5000, 1000)):
        with pytest.raises(MediaError) as told:
            decode(data, MOST)
        with pytest.raises(type(told.value), match=str(told.value)[:40]):
            pool.decode(data, MOST)


async def test_many_at_once_from_an_event_loop(pool: DecoderPool) -> None:
    data = encoded(PICTURE, "PNG")
    for found in await asyncio.gather(*(pool.adecode(data, MOST) for _ in range(20))):
        np.testing.assert_array_equal(found, RGB)


def test_an_image_that_takes_too_long_costs_only_itself(pool: DecoderPool) -> None:
    slow = jpeg_of_many_scans(2000, 3000)
    good = encoded(PICTURE, "PNG")
    pool.decode(good, MOST)
    before, began = pool.pids(), time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        task = threads.submit(pool.decode, slow, MOST)
        for _ in range(5):
            np.testing.assert_array_equal(pool.decode(good, MOST), RGB)
        with pytest.raises(MediaDecodeError, match="too much time or memory"):
            task.result()
    assert time.monotonic() - began < 20
    np.testing.assert_array_equal(pool.decode(good, MOST), RGB)
    assert pool.pids() != before


def test_a_process_that_dies_in_idleness_costs_nothing(pool: DecoderPool) -> None:
    data = encoded(PICTURE, "PNG")
    pool.decode(data, MOST)
    for pid in pool.pids():
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    np.testing.assert_array_equal(pool.decode(data, MOST), RGB)


def test_memory_of_a_process_is_bounded(pool: DecoderPool) -> None:
    """The largest image that is allowed; at most the bytes per pixel that are granted, and what Python takes."""
    data = png_bomb(2048, 2048)
    assert pool.decode(data, MOST).shape == (2048, 2048, 3)
    for pid in pool.pids():
        status = Path(f"/proc/{pid}/status").read_text()
        peak = int(status.split("VmHWM:")[1].split()[0]) << 10
        assert peak < (64 << 20) + 32 * MOST


def test_a_process_cannot_take_more_than_it_may(tmp_path: Path) -> None:
    """Its limits hold for any code, such as an attacker's in a decoder."""
    script = """
import os, sys
from jaxllm.serving.media.worker import limit_for_ever, limit_memory
limit_for_ever()
limit_memory(32 << 20)
try:
    bytearray(64 << 20)
except MemoryError:
    print("no memory")
try:
    os.write(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), b"x")
except OSError:
    print("no files")
"""
    found = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True, check=False
    )
    assert found.stdout.split("\n")[0] == "no memory", found.stderr
    # SIGXFSZ is ignored by Python, so that writing is an error.
    assert "no files" in found.stdout


def test_a_closed_pool_says_so() -> None:
    found = DecoderPool(1)
    found.decode(encoded(PICTURE, "PNG"), MOST)
    pids = found.pids()
    found.close()
    found.close()
    assert all(not Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(QueueFullError, match="shutting down"):
        found.decode(b"", MOST)
