"""Numbers in front of every message: a message that is lost is noticed, and the sender knows how many were taken."""

import struct
from collections.abc import Sequence
from typing import Any, Generic

from jaxllm.errors import EngineError
from jaxllm.serving.ipc.wire import Decoder, Encoder, Frame, Message

_HEADER = struct.Struct("<QQ")

CREDIT = 512
"""Messages that may be on their way to the engine without being taken. The rest waits with the sender."""


class LostMessageError(EngineError):
    """A message between a client and the engine did not arrive: neither side knows what the other does."""


class NumberedEncoder:
    """Turns messages into frames that carry their number. Not thread-safe."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.sent = 0
        """Messages encoded so far."""

    def encode(self, message: Any, taken: int = 0) -> list[Frame]:
        """The message as frames; `taken` tells the other side how many of its messages were taken."""
        head, *arrays = self.encoder.encode(message)
        numbers = _HEADER.pack(self.sent, taken)
        self.sent += 1
        return [numbers + head, *arrays]


class NumberedDecoder(Generic[Message]):
    """Turns frames back into messages and checks that none is missing. Not thread-safe."""

    def __init__(self, decoder: Decoder[Message]) -> None:
        self.decoder = decoder
        self.heard = 0
        """Messages decoded so far."""
        self.taken = 0
        """How many of our messages the other side has taken, as far as it has said."""

    def decode(self, frames: Sequence[Frame]) -> Message:
        """The next message. Raises `LostMessageError` when it is another one."""
        head = memoryview(frames[0])
        number, self.taken = _HEADER.unpack_from(head)
        if number != self.heard:
            raise LostMessageError(f"message {self.heard} was lost: message {number} came instead")
        self.heard += 1
        return self.decoder.decode([head[_HEADER.size :], *frames[1:]])
