"""Sound files that strangers send: broken, endless, or much larger than they look."""

import struct

import numpy as np

from tests.serving.media.audio.sounds import file_of, tone

MOST = 60
"""Seconds that the bombs are longer than."""
_FLAC_COUNT = 8 + 13
"""Where STREAMINFO has the last 36 bits of the number of samples."""
_VORBIS_HEADER = 28
"""Bytes of an Ogg page before its first packet, if that is short."""


def wav(
    data: bytes = b"\0\0" * 100, *, code: int = 1, channels: int = 1, rate: int = 16000, bits: int = 16,
    size: int | None = None,
) -> bytes:  # fmt: skip
    """A WAV whose header says all of this."""
    block = channels * bits // 8
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, code, channels, rate, rate * block % 2**32, block % 2**16, bits)
    told = len(data) if size is None else size
    return struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE") + form + struct.pack("<4sI", b"data", told) + data


def _page_sum(page: bytes) -> int:
    """The check sum of an Ogg page, RFC 3533, section 6."""
    found = 0
    for byte in page:
        found ^= byte << 24
        for _ in range(8):
            found = (found << 1 ^ (0x04C11DB7 if found & 1 << 31 else 0)) & 0xFFFFFFFF
    return found


def vorbis(channels: int = 1, rate: int = 16000) -> bytes:
    """An Ogg file whose first page says this, with the check sum that it so has."""
    whole = bytearray(file_of(tone(0.2), form="OGG", subtype="VORBIS"))
    second = whole.index(b"OggS", 4)
    page = whole[:second]
    struct.pack_into("<BI", page, _VORBIS_HEADER + 11, channels, rate)
    struct.pack_into("<I", page, 22, 0)
    struct.pack_into("<I", page, 22, _page_sum(bytes(page)))
    return bytes(page + whole[second:])


def broken_files() -> dict[str, bytes]:
    """None of them can be heard."""
    floats = np.zeros(1000, np.float32)
    infinite, no_number = floats.copy(), floats.copy()
    infinite[999], no_number[500] = np.inf, np.nan
    whole = {form: file_of(tone(0.5), form=form) for form in ("WAV", "FLAC", "OGG", "MP3", "AIFF")}
    return {
        "0 Hz": wav(rate=0),
        "4 GHz": wav(rate=0xFFFFFFFF),
        "no channels": wav(channels=0),
        "65535 channels": wav(channels=0xFFFF),
        "a billion channels": struct.pack(">4sIIIII", b".snd", 24, 0xFFFFFFFF, 3, 16000, 10**9) + bytes(100),
        "no bits": wav(bits=0),
        "65528 bits": wav(bits=65528),
        "an unknown code": wav(code=0xABCD),
        "an infinite sample": wav(infinite.tobytes(), code=3, bits=32),
        "a sample that is no number": wav(no_number.tobytes(), code=3, bits=32),
        "endless": wav(size=0x7FFFEFFF),
        "endless in 64 bits": struct.pack("<4sI4s4sIQQQI", b"RF64", 0xFFFFFFFF, b"WAVE", b"ds64", 28, 2**63, 2**63,
                                          2**62, 0) + wav(size=0xFFFFFFFF)[12:36],
        "thousands of chunks": struct.pack("<4sI4s", b"RIFF", 1 << 20, b"WAVE") + b"abcd\0\0\0\0" * (1 << 17),
        "vorbis of 0 Hz": vorbis(rate=0),
        "vorbis of 255 channels": vorbis(channels=255),
        "vorbis of no channels": vorbis(channels=0),
        "an endless tag": b"ID3\4\0\0\x7f\x7f\x7f\x7f" + whole["MP3"],
        "a truncated wav": whole["WAV"][:-500],
        "a truncated flac": whole["FLAC"][: len(whole["FLAC"]) // 2],
        "a truncated aiff": whole["AIFF"][: len(whole["AIFF"]) // 2],
        # These formats do not tell how much there is to be.
        "a truncated ogg": whole["OGG"][:1000],
        "a truncated mp3": whole["MP3"][whole["MP3"].index(whole["MP3"][:2], 4) :][:50],
    }  # fmt: skip


def bombs() -> dict[str, bytes]:
    """Hours in few bytes: told by the header, not told by it, and in formats whose header never tells."""
    flac = file_of(np.zeros(10 * MOST * 4000, np.float32), 4000, form="FLAC")
    at = flac.index(b"fLaC") + _FLAC_COUNT
    told = flac[:at] + bytes([flac[at] & 0xF0 | 0x0F]) + b"\xff\xff\xff\xff" + flac[at + 5 :]
    untold = flac[:at] + bytes([flac[at] & 0xF0]) + bytes(4) + flac[at + 5 :]
    mp3 = file_of(np.zeros(MOST * 8000, np.float32), 8000, form="MP3")
    # The first frame has no sound, but how many others there are.
    frames = mp3[mp3.index(mp3[:2], 4) :]
    return {
        "flac, told": told,
        "flac, untold": untold,
        "mp3": frames * MOST,
        "opus": file_of(np.zeros(10 * MOST * 8000, np.float32), 8000, form="OGG", subtype="OPUS"),
        "8-bit wav": wav(bytes(10 * MOST * 4000), rate=4000, bits=8),
    }
