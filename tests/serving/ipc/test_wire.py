"""Messages survive the wire, arrays of every size included, and nothing stays behind."""

import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from jaxllm.config import EngineConfig
from jaxllm.engine.stats import StepStats
from jaxllm.requests.media import Arrangement, ImageCrop, MediaItem, PromptMedia
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.owners import NOBODY, Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.ipc.messages import (
    Abort,
    Add,
    AddedSequence,
    Call,
    Called,
    Configure,
    Finish,
    FromEngine,
    Hello,
    Media,
    Outputs,
    Ready,
    Release,
    ToEngine,
    UpdateWeights,
    Weight,
)
from jaxllm.serving.ipc.wire import (
    INLINE_BYTES,
    SHARED_BYTES,
    FrameDecoder,
    FrameEncoder,
    NumberedDecoder,
    NumberedEncoder,
    WireError,
)
from tests.serving.conftest import engine_info


class Holder(msgspec.Struct):
    """A message with arrays."""

    items: list[np.ndarray]


def there_and_back(message: Any, kind: Any, *, share: bool = False) -> tuple[Any, int]:
    """The message as it arrives, and in how many frames."""
    encoder, decoder = FrameEncoder(share=share), FrameDecoder[Any](kind)
    frames = [bytes(frame) for frame in encoder.encode(message)]
    arrived = decoder.decode(frames)
    encoder.release(decoder.opened)
    encoder.close()
    return arrived, len(frames)


@given(st.lists(arrays.arrays(st.sampled_from(["<i4", "<f4", "<f8", "|u1", "|b1"]), arrays.array_shapes(max_side=40))))
def test_arrays_arrive_as_they_were_sent(items: list[np.ndarray]) -> None:
    arrived, frames = there_and_back(Holder(items), Holder)
    assert frames == 1 + sum(item.nbytes >= INLINE_BYTES for item in items)
    for ours, theirs in zip(items, arrived.items, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs anonymous files")
def test_a_very_large_array_is_shared_and_let_go() -> None:
    large = np.arange(SHARED_BYTES, dtype=np.int32)[::2]
    before = open_files()
    arrived, frames = there_and_back(Holder([large, large[:4]]), Holder, share=True)
    assert frames == 1, "its bytes travelled"
    np.testing.assert_array_equal(arrived.items[0], large)
    np.testing.assert_array_equal(arrived.items[1], large[:4])
    del arrived
    gc.collect()
    assert open_files() == before


def test_shared_arrays_nobody_opened_are_closed() -> None:
    before = open_files()
    encoder = FrameEncoder(share=True)
    encoder.encode(Holder([np.zeros(SHARED_BYTES, np.int8)]))
    encoder.close()
    assert open_files() == before


def test_a_request_with_all_its_parameters() -> None:
    params = SamplingParams(n=2, seed=-5, stop=["a", "b"], logit_bias={3: 1.5}, max_tokens=None, allowed_token_ids=[1])
    requests = [
        Request(
            request_id=f"r-{index}",
            prompt_token_ids=np.arange(1000, dtype=np.int32),
            params=params,
            priority=3,
            cache_salt="salt",
            eos_token_ids=(1, 2),
            owner=Owner("ada", 2.5),
        )
        for index in range(2)
    ]
    arrived, frames = there_and_back(Add.of(requests), ToEngine)
    assert frames == 2, "the prompt travels once"
    for ours, theirs in zip(requests, arrived.requests(), strict=True):
        np.testing.assert_array_equal(ours.prompt_token_ids, theirs.prompt_token_ids)
        assert theirs.prompt_token_ids.dtype == np.int32
        for name in ("request_id", "params", "priority", "cache_salt", "eos_token_ids", "owner"):
            assert getattr(ours, name) == getattr(theirs, name)


def test_options_arrive_and_are_checked() -> None:
    config = EngineConfig.from_options({"model": "x", "max_model_len": 7, "gpu_memory_utilization": 0.5})
    arrived, _ = there_and_back(Configure(config), ToEngine)
    assert arrived.config == config


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", msgspec.msgpack.encode({"type": "Unknown"}), b"cos\nsystem\n(S'ls'\ntR."]
)
def test_anything_else_is_refused(frame: bytes) -> None:
    with pytest.raises(WireError):
        FrameDecoder[Any](ToEngine).decode([frame])


SENT: list[tuple[Any, Any]] = [
    (Configure(EngineConfig()), ToEngine),
    (Add(np.arange(100, dtype=np.int32), [AddedSequence("a", SamplingParams(seed=3))], 0, "é", (1,), NOBODY), ToEngine),
    (UpdateWeights(1, [Weight.of("w", np.ones((3, 40), np.float32))]), ToEngine),
    (Call(2, "sleep", {"level": 1}), ToEngine),
    (Finish([("a", "stop")]), ToEngine),
    (Hello("1"), FromEngine),
    (Ready(engine_info()), FromEngine),
    (Outputs([EngineOutput("a", [5, 6])], StepStats()), FromEngine),
    (Release([7]), FromEngine),
    (Called(3, refusal="no"), FromEngine),
]
DAMAGE = st.lists(
    st.tuples(st.sampled_from(("byte", "cut", "insert", "frame")), st.integers(0, 2**16), st.binary(max_size=8)),
    min_size=1,
    max_size=4,
)


@given(sent=st.sampled_from(SENT), damage=DAMAGE)
@settings(max_examples=400)
def test_damaged_messages_are_messages_or_refused(sent: tuple[Any, Any], damage: list[tuple[str, int, bytes]]) -> None:
    """Whatever has become of the bytes, there is one kind of error, for which the ends of a connection are prepared."""
    message, kind = sent
    frames = [bytearray(frame) for frame in NumberedEncoder(FrameEncoder()).encode(message)]
    for what, place, data in damage:
        frame = frames[place % len(frames)]
        at = place % (len(frame) + 1)
        if what == "byte":
            frame[at : at + len(data)] = data
        elif what == "cut":
            del frame[at:]
        elif what == "insert":
            frame[at:at] = data
        elif len(frames) > 1:
            frames.pop()
    decoder = NumberedDecoder[Any](FrameDecoder(kind))
    with suppress(WireError):
        assert isinstance(decoder.decode([bytes(frame) for frame in frames]), kind)


@given(frames=st.lists(st.binary(max_size=64), min_size=1, max_size=3), kind=st.sampled_from((ToEngine, FromEngine)))
def test_foreign_messages_are_refused(frames: list[bytes], kind: Any) -> None:
    with pytest.raises(WireError):
        NumberedDecoder[Any](FrameDecoder(kind)).decode([b"\x00" * 16 + frames[0], *frames[1:]])


def test_what_is_not_data_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="object cannot be sent"):
        FrameEncoder().encode(Abort([object()]))  # type: ignore[list-item]


@pytest.mark.parametrize("weights", [None, np.full((3, 4), 0.25, np.float32)])
def test_images_arrive_as_they_are_arranged(weights: np.ndarray | None) -> None:
    rows = np.array([2, 0, 2], np.int32) if weights is None else np.arange(12, dtype=np.int32).reshape(3, 4)[[1, 0, 1]]
    crop = ImageCrop(np.arange(48, dtype=np.uint8).reshape(4, 12), 2, 2)
    items = MediaItem.with_rows((crop,), 4, Arrangement.of(rows, weights)), MediaItem.of((crop, crop), 1)
    prompt = np.full(11, 7, np.int32)
    media = PromptMedia.of((*items,), prompt, 7, 4)
    arrived = there_and_back(Media.of(media), Media)[0].media()
    assert arrived.page_keys == media.page_keys
    assert [item.digest for item in arrived.items] == [item.digest for item in items]
    assert [item.num_rows for item in arrived.items] == [3, 8]
    found, sent = arrived.items[0].arrangement, items[0].arrangement
    assert sent is not None
    np.testing.assert_array_equal(found.kept, sent.kept)
    np.testing.assert_array_equal(found.order, sent.order)
    np.testing.assert_array_equal(found.weights, sent.weights)
    assert arrived.items[1].arrangement is None


def test_sound_arrives() -> None:
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    whole = PromptMedia.of_sound(MediaItem.of_sound(features))
    rows = PromptMedia.of((MediaItem.of_sound(features, 3, 2),), np.array([7, 7], np.int32), 7, 4)
    for media, frames in ((whole, 4), (rows, 3)):
        arrived = there_and_back(Media.of(media), Media)[0].media()
        (item,), (sent,) = arrived.items, media.items
        np.testing.assert_array_equal(item.features, features)
        assert (item.digest, item.num_kept, item.num_frames) == (sent.digest, sent.num_kept, frames)
        assert arrived.page_keys == media.page_keys
        assert arrived.places.tolist() == media.places.tolist()
    assert whole.page_key(0) != rows.page_key(0)
    assert whole.page_key(1) == b""
