"""Messages between engines that fetch pages and those that have them.

A message is msgpack in its first frame; the pages of an answer follow, a frame each. The fetching engine speaks first
(`Hello`) and is told of the pages (`Welcome`), or why there are none for it (`Refused`). Then it asks for pages by
their digests, a few at a time, and says when it has them all.
"""

from typing import Any

import msgspec
import zmq

VERSION = 1
"""Of the protocol. Engines of other versions do not exchange pages."""
MOST_KEYS = 4096
"""Pages and states in a question."""
ANSWER_BYTES = 8 << 20
"""Bytes of an answer, unless a single page has more."""
MOST_HEADER_BYTES = 1 << 20


class PageForm(msgspec.Struct, frozen=True, array_like=True):
    """How an engine keeps a page: the bytes of an array of `shape`, whose axis `heads_axis` has the KV heads.

    `heads` is their number in the model; each is there `repeats` times, one after the other. Where the axis is -1,
    pages are not divided by heads. A state has `state_bytes`. What is laid out for so many `devices` is not for others;
    0: it is the same for any number.
    """

    dtype: str
    shape: tuple[int, ...]
    heads_axis: int
    heads: int
    repeats: int
    state_bytes: int
    devices: int = 0


class Hello(msgspec.Struct, tag=True, array_like=True):
    """The first message. `fingerprint` is of all that pages depend on but how they are divided among devices."""

    version: int
    fingerprint: bytes
    form: PageForm


class Welcome(msgspec.Struct, tag=True, array_like=True):
    """Pages can be asked for. They have this form, and are those of the engine of this id."""

    engine_id: str
    form: PageForm


class Refused(msgspec.Struct, tag=True, array_like=True):
    """Pages cannot be asked for."""

    reason: str


class Ask(msgspec.Struct, tag=True, array_like=True):
    """Send these pages and states, digests and parts, that are kept under a name."""

    number: int
    name: str
    keys: list[tuple[bytes, int]]


class Answer(msgspec.Struct, tag=True, array_like=True):
    """The checksum of each page or state that was asked for, whose bytes follow; None for those that are not there."""

    number: int
    checksums: list[int | None]


class Release(msgspec.Struct, tag=True, array_like=True):
    """What is kept under this name is not wanted any more. There is no answer."""

    name: str


ToProducer = Hello | Ask | Release
ToConsumer = Welcome | Refused | Answer

_encoder = msgspec.msgpack.Encoder()
to_producer: "msgspec.msgpack.Decoder[ToProducer]" = msgspec.msgpack.Decoder(ToProducer)
to_consumer: "msgspec.msgpack.Decoder[ToConsumer]" = msgspec.msgpack.Decoder(ToConsumer)


def encode(message: ToProducer | ToConsumer) -> bytes:
    """The first frame of a message."""
    return _encoder.encode(message)


def receive(wire: "zmq.Socket[Any]", most: int) -> list[zmq.Frame] | None:
    """The frames of the next message, None where there is none. Of one with more than `most`, only so many."""
    try:
        frames = [wire.recv(zmq.NOBLOCK, copy=False)]
        while wire.getsockopt(zmq.RCVMORE):
            frame = wire.recv(zmq.NOBLOCK, copy=False)
            if len(frames) <= most:
                frames.append(frame)
    except zmq.Again:
        return None
    return frames
