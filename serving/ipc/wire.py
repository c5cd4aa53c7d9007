"""Messages as frames of bytes: a number, msgpack, and arrays alongside it where copying them would cost.

The number in front of every message shows when one is lost, and tells the sender how many were taken.
An array under 256 bytes travels inside the message; a larger one is a frame of its own, which is not copied; a very
large one stays in memory that both processes map, where the system has anonymous files (Linux). Nothing is pickled.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from jaxllm.config.processor_names import ClassName
from jaxllm.errors import EngineError

INLINE_BYTES = 256
"""Arrays smaller than this are part of the message."""
SHARED_BYTES = 1 << 20
"""Arrays of at least this size are shared, if the encoder may."""

_HEADER = struct.Struct("<QQ")

CREDIT = 512
"""Messages that may be on their way to the engine without being taken. The rest waits with the sender."""

Frame = bytes | memoryview
Message = TypeVar("Message")


class _Array(msgspec.Struct, array_like=True):
    """An array in a message: exactly one of `data`, `frame` (its index) and `shared` says where its bytes are.

    `shared` is (process id, file descriptor) of an anonymous file.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None = None
    frame: int | None = None
    shared: tuple[int, int] | None = None


class WireError(EngineError):
    """What came is no message, or not the next one. The connection is of no use any more; both processes go on."""


class FrameEncoder:
    """Turns messages into frames. Not thread-safe.

    With `share`, the memory of very large arrays is kept until `release` or `close`.
    """

    def __init__(self, *, share: bool = False) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_other)
        self.share = share and hasattr(os, "memfd_create")
        self._frames: list[Frame] = []
        self._handles: set[int] = set()

    def encode(self, message: Any) -> list[Frame]:
        """The message, and after it the arrays that travel alongside it."""
        self._frames = []
        return [self._encoder.encode(message), *self._frames]

    def _encode_other(self, value: Any) -> _Array | str:
        if isinstance(value, ClassName):
            return str(value)
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} cannot be sent")
        array = np.ascontiguousarray(value)
        described = _Array(array.dtype.str, array.shape)
        if array.nbytes < INLINE_BYTES:
            described.data = array.tobytes()
        elif self.share and array.nbytes >= SHARED_BYTES:
            described.shared = (os.getpid(), self._put(array))
        else:
            self._frames.append(array.reshape(-1).view(np.uint8).data)
            described.frame = len(self._frames)
        return described

    def _put(self, array: np.ndarray) -> int:
        """Write the array to an anonymous file: it has no name that could be left behind."""
        handle = os.memfd_create("jaxllm-array")
        self._handles.add(handle)
        rest = array.reshape(-1).view(np.uint8).data
        while rest:
            rest = rest[os.write(handle, rest) :]
        return handle

    def release(self, handles: Sequence[int]) -> None:
        """Let go of shared arrays that the other side has opened."""
        for handle in handles:
            self._handles.remove(handle)
            os.close(handle)

    def close(self) -> None:
        """Let go of all shared arrays."""
        self.release(list(self._handles))


class FrameDecoder(Generic[Message]):
    """Turns frames back into a message of one type. Not thread-safe.

    `opened` collects the handles of shared arrays that the sender may release. Arrays are read-only views.
    """

    def __init__(self, kind: Any) -> None:
        self.opened: list[int] = []
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind, dec_hook=self._decode_array)
        self._frames: Sequence[Frame] = ()

    def decode(self, frames: Sequence[Frame]) -> Message:
        """The message in the first frame. Raises `WireError` for anything else."""
        self._frames = frames
        try:
            return self._decoder.decode(frames[0])
        except Exception as error:  # msgspec, NumPy and the system have many for what is broken.
            raise WireError(f"{type(error).__name__}: {error}") from error

    def _decode_array(self, kind: type, value: Any) -> Any:
        assert kind is np.ndarray
        described = msgspec.convert(value, _Array)
        dtype = np.dtype(described.dtype)
        data: Any = described.data
        if described.frame is not None:
            data = self._frames[described.frame]
        elif described.shared is not None:
            size = dtype.itemsize * int(np.prod(described.shape))
            data = self._open(*described.shared, size)
        return np.frombuffer(data, dtype).reshape(described.shape)

    def _open(self, process: int, handle: int, size: int) -> mmap.mmap:
        with Path(f"/proc/{process}/fd/{handle}").open("rb") as file:
            self.opened.append(handle)
            return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)


class LostMessageError(WireError):
    """A message between a client and the engine did not arrive: neither side knows what the other does."""


class NumberedEncoder:
    """Turns messages into frames that carry their number. Not thread-safe."""

    def __init__(self, encoder: FrameEncoder) -> None:
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

    def __init__(self, decoder: FrameDecoder[Message]) -> None:
        self.decoder = decoder
        self.heard = 0
        """Messages decoded so far."""
        self.taken = 0
        """How many of our messages the other side has taken, as far as it has said."""

    def decode(self, frames: Sequence[Frame]) -> Message:
        """The next message. Raises `LostMessageError` when it is another one, and `WireError` when it is none."""
        head = memoryview(frames[0])
        if len(head) < _HEADER.size:
            raise WireError(f"a message of {len(head)} bytes")
        number, self.taken = _HEADER.unpack_from(head)
        if number != self.heard:
            raise LostMessageError(f"message {self.heard} was lost: received message {number} instead")
        self.heard += 1
        return self.decoder.decode([head[_HEADER.size :], *frames[1:]])
