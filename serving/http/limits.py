"""Limits of a connection to the server before there is a request on it, and what one request may ask for."""

import logging
import resource
from dataclasses import dataclass
from typing import Self

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.serving.options.server import ServerOptions

logger = logging.getLogger(__name__)

_BYTES_PER_TOKEN = 32
"""Bytes of a body per token: tokens of natural text take about 5, token ids as JSON 7, text that is escaped more."""
_LEAST_BODY = 4 * 2**20
"""Tools and their schemas take no tokens where the chat template does not show them."""
_MOST_EMBEDDINGS = 128 * 2**20
"""Bytes of a prompt's embeddings: half of what all bodies that are being received may take."""
_BATCH = 4
"""Times as much for models that pool: their texts come in batches."""
_OTHER_FILES = 256
"""Files that the server may need besides its connections."""


@dataclass(frozen=True, kw_only=True)
class HttpLimits:
    """Bounds of connections; 0 means none. Times are in seconds, sizes in bytes, rates in bytes per second."""

    header_bytes: int = 65536
    headers: int = 256
    connections: int = 0
    connections_per_address: int = 0
    buffered_body_bytes: int = 0
    headers_seconds: float = 0
    idle_seconds: float = 0
    body_seconds: float = 0
    body_rate: int = 0
    send_seconds: float = 0

    @classmethod
    def of(cls, options: ServerOptions) -> Self:
        """The limits that the operator has chosen."""
        return cls(
            header_bytes=options.h11_max_incomplete_event_size,
            headers=options.h11_max_header_count,
            connections=open_files_for(options.max_connections),
            connections_per_address=options.max_connections_per_address,
            buffered_body_bytes=options.max_buffered_body_bytes,
            headers_seconds=options.timeout_headers,
            idle_seconds=options.timeout_keep_alive,
            body_seconds=options.timeout_body,
            body_rate=options.min_body_rate,
            send_seconds=options.timeout_send,
        )


@dataclass(frozen=True)
class JsonLimits:
    """Most objects and lists, and most values, in one body: what decoding them takes grows with their number."""

    containers: int = 2**16
    values: int = 2**19

    @classmethod
    def of(cls, info: EngineInfo) -> Self:
        """The limits for a model: the longest prompt may come as token ids."""
        batch = 1 if info.pooling is None else _BATCH
        return cls(values=batch * max(cls.values, 2 * info.max_model_len))


@dataclass(frozen=True, kw_only=True)
class AdmissionLimits:
    """The limits of one request."""

    max_model_len: int
    """Most tokens of prompt and answer together."""
    vocab_size: int
    max_logprobs: int
    """Most alternatives per token."""
    max_sequences: int
    """Most sequences that may run and wait at once, so also of one request."""
    by_priority: bool
    """Whether the engine looks at priorities."""

    @classmethod
    def of(cls, info: EngineInfo, config: EngineConfig, options: ServerOptions) -> Self:
        """The limits of a model, and those that the operator has chosen."""
        sequences = info.max_running + options.max_queued_requests
        return cls(
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            max_logprobs=info.max_logprobs,
            max_sequences=min(sequences, options.max_num_queued_reqs or sequences),
            by_priority=config.scheduler.scheduling_policy == "priority",
        )


def body_size(options: ServerOptions, info: EngineInfo) -> int:
    """Most bytes in the body of a request: what the operator says, or what the longest prompt could need."""
    if options.max_body_size is not None:
        return options.max_body_size
    if info.embedding_size is not None:
        # As float32, in base64.
        embeddings = _LEAST_BODY + info.max_model_len * info.embedding_size * 4 * 4 // 3
        return max(_BYTES_PER_TOKEN * info.max_model_len, min(_MOST_EMBEDDINGS, embeddings))
    batch = 1 if info.pooling is None else _BATCH
    # An image or sound may come in the body, in base64.
    image = 0 if info.images is None else options.max_image_bytes
    sound = 0 if info.sound is None or info.transcribes else options.max_audio_bytes
    return max(image, sound) * 4 // 3 + batch * max(_LEAST_BODY, _BYTES_PER_TOKEN * info.max_model_len)


def open_files_for(connections: int) -> int:
    """Let this process open as many files as `connections` need; how many connections that really allows.

    A connection beyond the limit of open files could not even be rejected.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or (connections and soft >= wanted):
        return connections
    raised = hard if connections == 0 else wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if raised != resource.RLIM_INFINITY and raised > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    allowed = max(1, soft - _OTHER_FILES)
    if 0 < connections <= allowed:
        return connections
    if connections:
        logger.warning(
            "max_connections=%d is reduced: this process may open %d files, which leaves %d connections; raise "
            "`ulimit -n`",
            connections, soft, allowed,
        )  # fmt: skip
    return allowed
