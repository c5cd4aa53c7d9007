"""Bytes of a file to RGB, with Pillow; `DecoderPool` has it done by another process.

Colours are as vLLM has them: transparency is laid onto white, and everything else converted by Pillow. Two things
differ. Images are turned as their EXIF orientation says, as transformers' `load_image` does. Of 16 bits the upper eight
are used, where Pillow would make nearly everything white.
"""

import io
import warnings
from collections.abc import Mapping
from typing import Final, NamedTuple

from PIL import Image, ImageFile, ImageOps
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError

Color = tuple[int, int, int]
WHITE: Final[Color] = (255, 255, 255)

BYTES_PER_PIXEL: Final = 32
"""Memory that decoding takes: of up to four copies in four channels, and the decoder's own state."""

_FORMATS: Final[Mapping[bytes, type[ImageFile.ImageFile]]] = {
    b"\x89PNG\r\n\x1a\n": PngImageFile,
    b"\xff\xd8\xff": JpegImageFile,
    b"GIF87a": GifImageFile,
    b"GIF89a": GifImageFile,
    b"BM": BmpImageFile,
    b"II*\x00": TiffImageFile,
    b"MM\x00*": TiffImageFile,
}
NAMES: Final = "PNG, JPEG, WebP, GIF, BMP or TIFF"


class Decoded(NamedTuple):
    """Pixels of an image, row by row, three bytes each."""

    width: int
    height: int
    pixels: bytes


def open_image(data: bytes, most_pixels: int) -> ImageFile.ImageFile:
    """Read the header of a file: the format is what its first bytes say, whatever it is called.

    Raises `MediaDecodeError` for other formats and broken headers, and `MediaTooLargeError` for too many pixels.
    """
    # Pixels are counted here, with numbers in the message.
    Image.MAX_IMAGE_PIXELS = None
    kind = next((kind for magic, kind in _FORMATS.items() if data.startswith(magic)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = WebPImageFile
    if kind is None:
        raise MediaDecodeError(f"the data is no image: expected {NAMES}")
    try:
        image = kind(io.BytesIO(data))
    # A plugin raises what it likes for a broken header.
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        raise MediaDecodeError(f"the image cannot be read: {_words(error)}") from None
    check_pixels(image.size, most_pixels)
    return image


def check_pixels(size: tuple[int, int], most_pixels: int) -> None:
    """Raise `MediaTooLargeError` for too many pixels, and `MediaDecodeError` for none."""
    width, height = size
    if width < 1 or height < 1:
        raise MediaDecodeError(f"the image has {width}x{height} pixels")
    if width * height > most_pixels:
        raise MediaTooLargeError(
            f"the image has {width}x{height} = {width * height} pixels; at most {most_pixels} are allowed"
        )


def decode(data: bytes, most_pixels: int, background: Color = WHITE) -> Decoded:
    """Decode a file, of an animation the first frame. Raises `MediaDecodeError` and `MediaTooLargeError`."""
    image = open_image(data, most_pixels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image.load()
            # Some formats find out only now how large they are.
            check_pixels(image.size, most_pixels)
            turned = ImageOps.exif_transpose(image)
            rgb = to_rgb(turned, background)
            return Decoded(*rgb.size, rgb.tobytes())
    except (MediaDecodeError, MediaTooLargeError, MemoryError):
        raise
    # What a broken file makes of a decoder is anybody's guess: struct.error, SyntaxError, KeyError.
    except Exception as error:  # noqa: BLE001
        raise MediaDecodeError(f"the image cannot be decoded: {_words(error)}") from None


def to_rgb(image: Image.Image, background: Color) -> Image.Image:
    """Convert any mode; transparency shows the background."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I;16", "I;16B", "I;16L", "I;16N", "I"):
        # Pillow clips these to 255. A transparent value is one of 16 bits, which no longer exists.
        image = image.point(lambda value: value * (1 / 256)).convert("L")
        image.info.pop("transparency", None)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        converted = Image.new("RGB", image.size, background)
        converted.paste(image, mask=image.getchannel("A"))
        return converted
    return image.convert("RGB")


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
