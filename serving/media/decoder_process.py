"""`python -m jaxllm.serving.media.decoder_process`: decodes images that nobody has looked at.

Not for people: `DecoderPool` starts it. It reads a job from its standard input, a socket, and answers there. It can
write no files, open few, and has a limit on each job's memory and processor time, after which the system ends it.
"""

import contextlib
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from jaxllm.serving.media.decode import BYTES_PER_PIXEL, decode, open_image
from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError

JOB: Final = struct.Struct("!QQIBBB")
"""Bytes of the file, most pixels, CPU seconds, and the background's colour."""
ANSWER: Final = struct.Struct("!BIIQ")
"""Kind, width, height, and bytes that follow: pixels, or a message."""
PIXELS, TOO_LARGE, BROKEN = range(3)
SPARE_MEMORY: Final = 64 << 20
"""Bytes, in addition to what the pixels and the file need."""


def receive(connection: socket.socket, size: int) -> bytearray:
    """Read so many bytes; fewer only where the connection ends."""
    data = bytearray(size)
    return data[: receive_into(connection, memoryview(data))]


def receive_into(connection: socket.socket, view: memoryview) -> int:
    """Fill a buffer; the number of bytes is smaller only where the connection ends."""
    done = 0
    while done < len(view) and (count := connection.recv_into(view[done:])):
        done += count
    return done


def limit_for_ever() -> None:
    """What no job needs: files, core dumps, other processes, and Ctrl-C of the terminal."""
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 16)):
        resource.setrlimit(kind, (most, most))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(5)


def limit_memory(more: int) -> None:
    """Let this process have so many bytes more of address space than it has now."""
    with contextlib.suppress(FileNotFoundError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))


def limit_time(seconds: int) -> None:
    """Let this process have so many seconds more of processor time; then SIGXCPU ends it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, hard))


def work(data: bytes, most_pixels: int, seconds: int, background: tuple[int, int, int]) -> tuple[bytes, bytes]:
    """Do a job: the head of its answer, and what follows."""
    limit_time(seconds)
    limit_memory(SPARE_MEMORY)

    def rejected(kind: int, message: str) -> tuple[bytes, bytes]:
        text = message.encode()
        return ANSWER.pack(kind, 0, 0, len(text)), text

    try:
        width, height = open_image(data, most_pixels).size
        # The header is read before the memory is allowed that it asks for.
        limit_memory(SPARE_MEMORY + BYTES_PER_PIXEL * width * height)
        found = decode(data, most_pixels, background)
        return ANSWER.pack(PIXELS, found.width, found.height, len(found.pixels)), found.pixels
    except MediaTooLargeError as error:
        return rejected(TOO_LARGE, str(error))
    except MediaDecodeError as error:
        return rejected(BROKEN, str(error))
    except MemoryError:
        return rejected(TOO_LARGE, "decoding the image takes too much memory for its number of pixels")


def serve(connection: socket.socket, work: Callable[..., tuple[bytes, bytes]] = work) -> None:
    """Do jobs until no more come."""
    while len(head := receive(connection, JOB.size)) == JOB.size:
        size, most_pixels, seconds, *background = JOB.unpack(head)
        data = receive(connection, size)
        if len(data) < size:
            return
        answer, rest = work(bytes(data), most_pixels, seconds, tuple(background))
        del data
        connection.sendall(answer)
        connection.sendall(rest)


def main() -> None:
    """Serve the process at the other end of standard input."""
    connection = socket.socket(fileno=os.dup(0))
    # Whatever a library prints goes nowhere.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    limit_for_ever()
    serve(connection)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main()
    os._exit(0)
