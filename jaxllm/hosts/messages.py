"""Messages between the first process of an engine and the others, as msgpack. Nothing is pickled."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np


class _Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all messages."""


class Hello(_Message):
    """A follower is here: its rank, the number of processes, its host and its version."""

    rank: int
    size: int
    host: str
    version: str


class Beat(_Message):
    """The sender lives."""


class Report(_Message):
    """A process's facts at a stage of the start that all go through."""

    stage: str
    value: Any


class Ended(_Message):
    """A follower ends; with a reason, it failed."""

    reason: str | None


class Welcome(_Message):
    """All are here."""


class Refused(_Message):
    """A follower is not wanted; `begun`: not any more, because its place is taken."""

    reason: str
    begun: bool = False


class Gathered(_Message):
    """The reports of all processes of a stage, by rank."""

    stage: str
    values: list[Any]


class HostArray(_Message):
    """An array of the host."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> "HostArray":
        """An array, or a number of NumPy's."""
        return cls(array.dtype.str, array.shape, array.tobytes())

    def array(self) -> np.ndarray:
        """Read-only."""
        return np.frombuffer(self.data, np.dtype(self.dtype)).reshape(self.shape)


class Call(_Message):
    """Call a program; the calls are numbered from 0, so that a lost one is noticed."""

    number: int
    name: str
    arrays: list[HostArray]


class End(_Message):
    """The group ends; with a reason, because something failed."""

    reason: str | None


FromFollower = Hello | Beat | Report | Ended
FromLeader = Welcome | Refused | Gathered | Call | End | Beat

FROM_FOLLOWER: msgspec.msgpack.Decoder[FromFollower] = msgspec.msgpack.Decoder(FromFollower)
FROM_LEADER: msgspec.msgpack.Decoder[FromLeader] = msgspec.msgpack.Decoder(FromLeader)
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: FromFollower | FromLeader) -> bytes:
    """A message as bytes."""
    return _ENCODER.encode(message)


def call_bytes(number: int, name: str, arrays: Sequence[Any]) -> bytes:
    """A `Call` as bytes."""
    return _ENCODER.encode(Call(number, name, [HostArray.of(array) for array in arrays]))
