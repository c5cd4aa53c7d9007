"""Videos over HTTP, from files to answers; and files that hurt nobody."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from jaxllm.serving.media.video.animations import decode_animation
from jaxllm.serving.media.video.files import decode_file
from jaxllm.serving.media.video.limits import VideoLimits
from jaxllm.serving.media.video.sampling import FrameSampling
from tests.e2e.images.pictures import data_url, picture
from tests.e2e.videos.reference import Reference
from tests.serving.media.video.clips import animation, clip, tone_alone
from tests.serving.server_process import ServerProcess, running

LIMITS = VideoLimits(1 << 20, 100, 1 << 24)
QUESTION = {"type": "text", "text": "What happens in <|video_pad|>?"}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Reference:
    return Reference("qwen2_5_vl", tmp_path_factory.mktemp("video"), demo_folder)


@pytest.fixture(scope="module")
def server(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = (
        "--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--max-model-len", "512", "--max-num-seqs",
        "4", "--max-num-batched-tokens", "64", "--max-image-patches", "256", "--served-model-name", "seeing",
        "--limit-mm-per-prompt", '{"video": 2}', "--media-io-kwargs", '{"video": {"num_frames": 6}}',
        "--max-video-seconds", "60", "--max-video-frames", "16", "--max-image-pixels", "100000",
    )  # fmt: skip
    with running(tmp_path_factory.mktemp("server") / "log", str(reference.folder), *flags) as made:
        yield made
        # Videos of any length and size run in the programs of images.
        assert compilations(made) == 0
        assert "Traceback" not in made.log, made.log


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def compilations(server: ServerProcess) -> float:
    """Programs that were compiled after the start."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    found = [line for line in lines if "compilations_after_warmup_total" in line and line[0] != "#"]
    assert found
    return sum(float(line.split()[-1]) for line in found)


def part(data: bytes, kind: str = "mp4") -> dict[str, Any]:
    url = f"data:video/{kind};base64,{base64.b64encode(data).decode()}"
    return {"type": "video_url", "video_url": {"url": url}}


def body(*parts: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"model": "seeing", "messages": [{"role": "user", "content": list(parts)}], "max_tokens": 8, **options}


def test_the_openai_client(client: openai.OpenAI, reference: Reference) -> None:
    question = "What happens here?"
    files = [(clip(44), "mp4"), (clip(44, codec="libx264"), "mp4"), (animation(20), "gif")]
    for data, kind in files:
        parts = [part(data, kind), {"type": "text", "text": question}]
        extra = {"ignore_eos": True, "return_token_ids": True}
        answer: Any = client.chat.completions.create(**body(*parts, temperature=0), extra_body=extra)
        sampling = FrameSampling(6)
        frames = (
            decode_animation(data, LIMITS, sampling, (255, 255, 255))
            if kind == "gif"
            else decode_file(data, LIMITS, sampling)
        )
        text = f"user:{reference.marker}{question}assistant:"
        prompt, tokens = reference.answer(text, [frames])
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.choices[0].model_extra["token_ids"] == tokens


def test_tokens(server: ServerProcess, reference: Reference) -> None:
    """Markers in a user's text stand for nothing; frames and names are those of the request."""
    named = {**part(clip(44)), "uuid": "clip"}
    again = {"type": "video_url", "video_url": None, "uuid": "clip"}
    image = {"type": "image_url", "image_url": {"url": data_url(picture(1, 16, 16))}}
    count = {}
    for name, given, options in (
        ("six", [named, QUESTION], {}),
        ("named", [again, QUESTION], {}),
        ("two", [named, QUESTION], {"media_io_kwargs": {"video": {"num_frames": 2}}}),
        ("with an image", [image, named], {}),
        ("image alone", [image], {}),
    ):
        answer = httpx.post(f"{server.url}/tokenize", json={**body(*given), **options}, timeout=60)
        assert answer.status_code == 200, answer.text
        count[name] = answer.json()["tokens"].count(reference.ids[3])
    rows = count["six"] // 3
    assert count == {"six": 3 * rows, "named": 3 * rows, "two": rows, "with an image": 3 * rows, "image alone": 0}


HOSTILE = {
    "nothing": (b"", "is no video"),
    "text": (b"<html>" * 100, "is no video"),
    "an image": (base64.b64decode(data_url(picture(1)).partition(",")[2]), "is no video"),
    "a playlist": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "is no video"),
    "a header alone": (b"\x00\x00\x00\x18ftypmp42" + bytes(100), "cannot be read"),
    "half": (clip(40, noise=True)[:70_000], "cannot be read"),
    "half of another": (clip(40, "matroska", noise=True)[:70_000], "ends before"),
    "sound": (tone_alone(), "only sound"),
    "too large": (clip(2, height=400, width=400), "at most 100000 are allowed"),
    "too long": (clip(700), "at most 60 s"),
    "an endless animation": (animation(30, milliseconds=60_000), "at most 60 s"),
}


def test_hostile_videos(server: ServerProcess, client: openai.OpenAI) -> None:
    options: Any = {
        **body({"type": "text", "text": "Tell a story."}, temperature=0),
        "extra_body": {"ignore_eos": True},
    }
    alone = client.chat.completions.create(**options).choices[0].message.content
    for name, (data, reason) in HOSTILE.items():
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body(part(data), QUESTION), timeout=60)
        assert answer.status_code == 400, (name, answer.text)
        error = answer.json()["error"]
        assert error["param"] == "messages[0].content[0]", name
        assert reason in error["message"], (name, error)
    assert client.chat.completions.create(**options).choices[0].message.content == alone


@pytest.mark.parametrize(
    ("changes", "parts", "reason"),
    [
        ({}, [part(clip(2))] * 3, "3 videos: a request may have at most 2"),
        ({}, [{"type": "video_url", "video_url": {"url": "http://127.0.0.1:1/a.mp4"}}], "not public"),
        ({}, [{"type": "video_url"}], "video_url: expected a URL"),
        ({}, [{"type": "text", "text": "a", "video_url": "http://a/b.mp4"}], "only parts of type video_url"),
        ({}, [{"type": "video_url", "video_url": None, "uuid": "none"}], "no video with uuid='none'"),
        ({"media_io_kwargs": {"video": {"num_frames": 17}}}, [part(clip(2))], "expected 1 to 16"),
        ({"mm_processor_kwargs": {"fps": 1}}, [part(clip(2))], "of videos, this model allows size"),
    ],
)
def test_wrong_requests(
    server: ServerProcess, changes: dict[str, Any], parts: list[dict[str, Any]], reason: str
) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body(*parts, **changes), timeout=60)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]["message"]
