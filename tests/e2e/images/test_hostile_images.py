"""Hostile images to a server: a 4xx each, bounded memory, and another's stream that does not notice."""

import base64
import threading
from typing import Any

import httpx
import openai
import psutil
from PIL import Image

from tests.e2e.images.pictures import message, picture
from tests.serving.media.files import encoded, jpeg_of_many_scans, png_bomb
from tests.serving.server_process import ServerProcess

MIB = 1 << 20
ENOUGH = 600 * MIB
"""Memory that images of the default limits may take for a while, in processes that decode: 32 bytes per pixel."""


def url_of(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


MAY_BE_SEEN = {"long strip", "wide strip", "many scans"}
"""Images of any shape are seen where the image processor takes them, and those that take less than ten seconds."""


def hostile_urls() -> dict[str, str]:
    """What clients may send; made here, since an image of 400 million pixels takes two seconds."""
    whole = encoded(picture(1), "PNG")
    return {
        "bomb": url_of(png_bomb(20_000, 20_000)),
        "long strip": url_of(png_bomb(1, 30_000)),
        "wide strip": url_of(png_bomb(30_000, 1)),
        "truncated": url_of(whole[: len(whole) // 2]),
        "text": url_of(b"<html>" * 100),
        "zip after a header": url_of(whole[:8] + b"PK\x03\x04" + bytes(100)),
        "svg": url_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml"),
        "many scans": url_of(jpeg_of_many_scans(1000, 1000), "jpeg"),
        "no base64": "data:image/png;base64,@@@",
        "metadata service": "http://169.254.169.254/latest/meta-data/",
        "own port": "http://127.0.0.1:{port}/metrics",
        "mapped address": "http://[::ffff:127.0.0.1]:{port}/metrics",
        "number as address": "http://2130706433:{port}/metrics",
        "file": "file:///etc/passwd",
        "scheme": "gopher://example.com/",
        "password": "https://user:secret@example.com/a.png",
    }


def total_memory(server: ServerProcess) -> int:
    """Memory of the server and its processes, in bytes."""
    own = psutil.Process(server.process.pid)
    total = 0
    for process in (own, *own.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def test_neighbours_do_not_notice(server: ServerProcess, client: openai.OpenAI) -> None:
    options: Any = {"model": "seeing", "messages": message("Tell a story."), "temperature": 0, "max_tokens": 100}
    options |= {"extra_body": {"ignore_eos": True}}
    alone = client.chat.completions.create(**options).choices[0].message.content
    before, ended = total_memory(server), threading.Event()
    told: list[str] = []
    most = [0]

    def listen() -> None:
        while not ended.is_set():
            chunks = client.chat.completions.create(**options, stream=True)
            told.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
            most[0] = max(most[0], total_memory(server))

    neighbour = threading.Thread(target=listen)
    neighbour.start()
    try:
        for name, url in hostile_urls().items():
            part = {"type": "image_url", "image_url": {"url": url.replace("{port}", str(server.port))}}
            body = {"model": "seeing", "messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
            wanted = {200, 400} if name in MAY_BE_SEEN else {400}
            assert answer.status_code in wanted, (name, answer.text[:300])
            if answer.status_code == 400:
                assert answer.json()["error"]["param"] == "messages[0].content[0]", name
                assert len(answer.text) < 1000
    finally:
        ended.set()
        neighbour.join()
    assert told
    assert set(told) == {alone}
    assert most[0] - before < ENOUGH


def test_unusual_images_are_seen(client: openai.OpenAI) -> None:
    """Animations, CMYK, palettes with transparency, 16 bits, and turned by EXIF."""
    frames = [picture(number, 40, 40) for number in range(3)]
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {
        "gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "jpeg": encoded(frames[0].convert("CMYK"), "JPEG"),
        "png": encoded(frames[0].convert("P"), "PNG", transparency=0),
        "webp": encoded(frames[0], "WEBP", exif=exif.tobytes()),
        "tiff": encoded(Image.new("I;16", (30, 20), 40_000), "TIFF"),
    }
    for kind, data in files.items():
        answer = client.chat.completions.create(
            model="seeing", messages=message(url_of(data, kind), "What is this?"), max_tokens=1
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > 10, kind
