"""What the server says of itself."""

from jaxllm.serving.http.body.base import Answer


class Version(Answer, kw_only=True):
    """The version of the server."""

    version: str


class Degraded(Answer, kw_only=True):
    """What serves, and why it is not the fastest."""

    attention_backend: str
    attention_problem: str | None
    linear_backend: str
    linear_problem: str | None
    moe_backend: str
    moe_problem: str | None
    sampling_backend: str
    sampling_problem: str | None


class Halted(Answer, kw_only=True):
    """The engine lives, and computes nothing: requests wait."""

    sleep_level: int
    is_paused: bool
    reason: str
    """What to do, too."""


class Load(Answer, kw_only=True):
    """Requests in flight."""

    server_load: int


class Profile(Answer, kw_only=True):
    """The folder of the trace, on the server."""

    folder: str


class CacheReset(Answer, kw_only=True):
    """Whether the prefix cache was forgotten; it is not while requests run."""

    success: bool
