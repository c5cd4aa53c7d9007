"""`python -m jaxllm.serving.text.templates.process`: renders templates that nobody has looked at.

Not for people: `TemplateSandbox` starts it. It reads a job, writes what came of it, and ends with its standard input.
It has little memory, no files to write, and a limit on each job's processor time, after which the system ends it.
"""

import contextlib
import json
import os
import resource
import signal
import struct
from pathlib import Path
from typing import Any, Final

LENGTH: Final = struct.Struct("!Q")
MEMORY: Final = 512 << 20
"""Bytes of memory for a job, in addition to so many times its own length:"""
MEMORY_PER_BYTE: Final = 64
SPARE_SECONDS: Final = 2.0
"""CPU time, in addition to the budget of a rendering; then a single step has taken too long."""
_STATM: Final = Path("/proc/self/statm")


def read_whole(descriptor: int, size: int) -> bytes:
    """Read so many bytes; fewer only where the pipe ends."""
    data = bytearray()
    while len(data) < size and (more := os.read(descriptor, min(size - len(data), 1 << 20))):
        data += more
    return bytes(data)


def write_whole(descriptor: int, data: bytes) -> None:
    """Write a frame: its length, and the data. Raises `OSError`."""
    view = memoryview(LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


def _limit_once() -> None:
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 16)):
        resource.setrlimit(kind, (most, most))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.nice(5)


def _limit(size: int) -> None:
    """Limits of one job of `size` bytes."""
    from jaxllm.serving.text.templates.budget import SECONDS, SECONDS_PER_INPUT

    if _STATM.exists():
        data = int(_STATM.read_text().split()[5]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY + MEMORY_PER_BYTE * size, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS + SPARE_SECONDS + 2 * SECONDS_PER_INPUT * size)


def _answer(job: bytes) -> dict[str, str]:
    from jaxllm.serving.text.templates.budget import TemplateLimitError
    from jaxllm.serving.text.templates.rendering import Conversation, apply

    try:
        given: dict[str, Any] = json.loads(job)
        return {"text": apply(given.pop("template"), Conversation(**given))}
    except MemoryError:
        return {"limit": "the template uses too much memory"}
    except TemplateLimitError as error:
        return {"limit": str(error)}
    # A template is a program of somebody else's: it raises what it likes.
    except Exception as error:  # noqa: BLE001
        return {"error": " ".join(str(error)[:2000].split()) or type(error).__name__}


def main() -> None:
    """Render what comes in until nothing does."""
    answers = os.dup(1)
    os.dup2(2, 1)
    _limit_once()
    while len(head := read_whole(0, LENGTH.size)) == LENGTH.size:
        (size,) = LENGTH.unpack(head)
        _limit(size)
        data = json.dumps(_answer(read_whole(0, size))).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_whole(answers, data)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
    os._exit(0)
