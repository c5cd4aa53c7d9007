"""The system's limits for this process, and the advice when they are too low."""

import errno
from typing import Final

from jaxllm.errors import ConfigError, EngineError

MOST_WANTED: Final = 65_536
LEAST_FILES: Final = 64
"""A server without any connection has about 40 files and sockets open while it starts."""

_EXHAUSTED: Final = {
    errno.EMFILE: "this process cannot open more files: raise `ulimit -n`",
    errno.ENFILE: "this machine cannot open more files: raise fs.file-max",
    errno.ENOMEM: "out of memory: check `ulimit -v` and the container's memory limit",
    errno.EAGAIN: "cannot start more processes or threads: raise `ulimit -u` or the container's PID limit",
}


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each connection is one. Raises `ConfigError` for too few."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_WANTED if hard == resource.RLIM_INFINITY else min(hard, MOST_WANTED)
    if soft != resource.RLIM_INFINITY and soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
        except (ValueError, OSError):
            pass
    if soft != resource.RLIM_INFINITY and soft < LEAST_FILES:
        raise ConfigError(
            f"the limit of open files is {soft} (ulimit -n), but the server needs at least {LEAST_FILES}, plus one "
            f"per connection: raise the limit, for example to {MOST_WANTED}"
        )


def exhausted(error: BaseException) -> EngineError | None:
    """The message for an error that says that the system gives no more of something; None for any other."""
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return EngineError(f"{_EXHAUSTED[error.errno or 0]} ({error.strerror})")
    if isinstance(error, MemoryError):
        return EngineError(_EXHAUSTED[errno.ENOMEM])
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return EngineError(_EXHAUSTED[errno.EAGAIN])
    return None
