"""The server's answers about itself."""

from jaxllm.serving.http.body.base import Answer


class Version(Answer, kw_only=True):
    """The version of the server."""

    version: str


class Halted(Answer, kw_only=True):
    """The engine lives, and computes nothing: requests wait."""

    sleep_level: int
    is_paused: bool
    reason: str
    """What to do, too."""


class Load(Answer, kw_only=True):
    """Requests in flight."""

    server_load: int


class Draining(Answer, kw_only=True):
    """The server takes nothing new, and ends when what runs has finished."""

    status: str
    running: int
    """Requests of clients that this API server process has at the engines."""
    shutdown_timeout: float
    """Seconds that these have."""


class Profile(Answer, kw_only=True):
    """The folder of the trace, on the server."""

    folder: str


class CacheReset(Answer, kw_only=True):
    """Whether the prefix cache was forgotten; it is not while requests run."""

    success: bool
