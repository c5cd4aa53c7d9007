"""What processes have in common that decode files which nobody has looked at.

A process reads jobs from its standard input, a socket, and answers there. It can write no files, open few, and has a
limit on each job's memory and processor time, after which the system ends it. `ProcessPool` starts it.
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

from jaxllm.child import imports_done
from jaxllm.serving.media.errors import MediaDecodeError, MediaTooLargeError

ANSWER: Final = struct.Struct("!BIIQ")
"""Kind, two numbers, such as width and height, and bytes that follow: an array, or a message."""
DONE, TOO_LARGE, BROKEN = range(3)
"""Kinds of answers: after the last two, a message follows."""
SPARE_MEMORY: Final = 64 << 20
"""Bytes, in addition to what a file and its contents need."""

Work = Callable[..., tuple[bytes, bytes | memoryview]]
"""Does a job: the head of its answer and what follows, of a file and the other numbers of a job.

Raises `MediaDecodeError`, `MediaTooLargeError` and `MemoryError`.
"""


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


def answer_of(work: Work, data: bytes, *numbers: int) -> tuple[bytes, bytes | memoryview]:
    """The answer to a job; for a file that is not decoded, why."""
    try:
        return work(data, *numbers)
    except MediaTooLargeError as error:
        return _rejected(TOO_LARGE, str(error))
    except MediaDecodeError as error:
        return _rejected(BROKEN, str(error))
    except MemoryError:
        return _rejected(TOO_LARGE, "decoding the file takes too much memory for its size")


def _rejected(kind: int, message: str) -> tuple[bytes, bytes]:
    text = message.encode()
    return ANSWER.pack(kind, 0, 0, len(text)), text


def serve(connection: socket.socket, job: struct.Struct, work: Work) -> None:
    """Do jobs until no more come. The first number of `job` is how many bytes of a file follow."""
    while len(head := receive(connection, job.size)) == job.size:
        size, *numbers = job.unpack(head)
        data = receive(connection, size)
        if len(data) < size:
            return
        answer, rest = answer_of(work, bytes(data), *numbers)
        del data
        connection.sendall(answer)
        connection.sendall(rest)


def main(job: struct.Struct, work: Work) -> None:
    """Serve the process at the other end of standard input, and end."""
    imports_done()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _serve_input(job, work)
    os._exit(0)


def _serve_input(job: struct.Struct, work: Work) -> None:
    connection = socket.socket(fileno=os.dup(0))
    # Whatever a library prints goes nowhere.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    limit_for_ever()
    serve(connection, job, work)
