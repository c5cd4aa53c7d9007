"""Messages to and from the canary process: typed values in frames, over pipes."""

import os
import struct
from collections.abc import Callable
from typing import Final

import msgspec

_LENGTH: Final = struct.Struct("!I")
_CHUNK: Final = 1 << 16


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one grammar until its first masks are computed."""

    memory_bytes: int = 128 << 20
    """Growth of the process."""
    processor_seconds: float = 2.0
    """CPU time for the whole trial."""
    seconds: float = 20.0
    """By the clock: on a machine that is busy it says nothing of the grammar."""
    mask_seconds: float = 0.25
    """CPU time for one token: the mask before it and what follows from it."""
    forced_seconds: float = 0.1
    """CPU time to compute forced tokens at one position, which blocks everything else."""
    compile_stack_bytes: int = 8 << 20
    """Stack of the thread that compiles; in an engine such a thread has twice as much."""
    mask_stack_bytes: int = 1 << 20
    """Stack of the thread that computes masks; in an engine it has twice as much or more."""


class Begin(msgspec.Struct, tag=True, kw_only=True):
    """What to compile with; the first message. The fields are those of a `Vocabulary`."""

    backend: str
    folder: str
    vocab_size: int
    end_token_ids: tuple[int, ...]
    budget: Budget


class Try(msgspec.Struct, tag=True):
    """Try a grammar: `form` is a `StructuredOutputsParams` as msgpack. The answer is a `Verdict`."""

    number: int
    form: bytes


class Cancel(msgspec.Struct, tag=True):
    """Nobody waits for this any more; it gets a `Verdict` all the same, soon."""

    number: int


class Ping(msgspec.Struct, tag=True):
    """Say that you live, by a `Verdict` on the number `PONG`."""


PONG: Final = -1
"""What no trial has as its number."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a grammar: `error` says what is wrong with it, if anything, and `parameter` with which field.

    `size` is the memory that it took, in bytes. `lasting`: the same grammar would always get the same answer.
    `untried`: the error is none of the grammar's, which should be tried again.
    """

    number: int = 0
    error: str | None = None
    parameter: str | None = None
    size: int = 0
    lasting: bool = True
    untried: bool = False


ToCanary = Begin | Try | Cancel | Ping


def framed(message: msgspec.Struct) -> bytes:
    """A message as bytes that `Frames` takes apart."""
    data = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(data)) + data


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, however often that takes. Raises `OSError`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Frames:
    """Takes messages out of what is read from a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = bytearray()

    def read(self, take: Callable[[bytes], None]) -> bool:
        """Read once, and `take` each whole message in it; False when the pipe has ended."""
        data = os.read(self._descriptor, _CHUNK)
        self._data += data
        while len(self._data) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                break
            message = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            take(message)
        return bool(data)
