"""Messages between the head, which serves, and a host that runs engines for it.

A message has a frame with the number of a channel, and then those of an engine's messages, which are not looked at.
Channel 0 is for the messages below.
"""

import struct
from typing import Literal

import msgspec

from jaxllm.config import EngineConfig

CHANNEL = struct.Struct("!Q")
CONTROL = 0
"""The channel of the messages of this module."""
ALIVE_SECONDS = 0.3
"""How often each side says that it is there."""
SILENCE_SECONDS = 5.0
"""After so long without a word the other side counts as gone."""
WINDOW = 32
"""Messages of a channel that may be under way: what waits beyond it waits where it is made, and merges there."""
MOST_BYTES = 1 << 28
"""Maximum size of a frame. Larger ones are not read."""


class Join(msgspec.Struct, tag=True):
    """A host has places for the engines `first` to `first + count - 1`; `folder` is where it makes sockets."""

    version: str
    host: str
    first: int
    count: int
    folder: str
    config: EngineConfig


class Welcome(msgspec.Struct, tag=True):
    """The host may stay."""


class Refused(msgspec.Struct, tag=True):
    """It may not. `join again`: as a new one, after ending its engines; `later`: its places are taken for now."""

    kind: Literal["for good", "later", "join again"]
    reason: str


class Alive(msgspec.Struct, tag=True):
    """Either side is there."""


class Start(msgspec.Struct, tag=True):
    """Start engine `number`, whose first client has this channel."""

    channel: int
    number: int


class Open(msgspec.Struct, tag=True):
    """One more channel, of another client of an engine."""

    channel: int


class Close(msgspec.Struct, tag=True):
    """The client of this channel is gone."""

    channel: int


class End(msgspec.Struct, tag=True):
    """End the engine that was started with this channel; `at_once`: kill it."""

    channel: int
    at_once: bool


class Exited(msgspec.Struct, tag=True):
    """The engine that was started with this channel has ended, and what can be said of that."""

    channel: int
    reason: str


class Taken(msgspec.Struct, tag=True):
    """So many more messages of this channel have reached their socket."""

    channel: int
    count: int


class Leave(msgspec.Struct, tag=True):
    """The host ends, and its engines with it."""


FromHost = Join | Alive | Exited | Taken | Leave
ToHost = Welcome | Refused | Alive | Start | Open | Close | End | Taken
