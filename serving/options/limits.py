"""Options of queues, connections, restarts and stored data, as in `jaxllm.config`."""

from dataclasses import dataclass

from jaxllm.config import Section, option


@dataclass(frozen=True, kw_only=True)
class LimitOptions(Section):
    """Queues, sizes of requests, connections and their timeouts."""

    max_queued_requests: int = option(
        1024,
        "Maximum number of requests that wait for the engine to start them; more are rejected with a Retry-After "
        "header.",
        minimum=1,
    )
    max_num_queued_reqs: int | None = option(
        None,
        "Maximum number of requests in flight, including running ones; more are rejected with a Retry-After header.",
        minimum=1,
    )
    max_num_queued_tokens: int | None = option(
        None,
        "Reject requests with a Retry-After header while the prompts of requests without a first token have this "
        "many tokens in total. Choose it as the acceptable time to first token times the prefill throughput in "
        "tokens per second.",
        minimum=1,
    )
    max_body_size: int | None = option(
        None,
        "Maximum size of a request body in bytes. Default: 32 per token of --max-model-len, and at least 4 MiB; four "
        "times that for pooling models; room for an image of --max-image-bytes more for models that see; with "
        "--enable-prompt-embeds, the size of the longest prompt as embeddings, and at most 128 MiB.",
        minimum=1024,
    )
    max_buffered_body_bytes: int = option(
        256 * 2**20,
        "Maximum total size in bytes of partially received request bodies over all connections; above it, the "
        "largest is rejected. 0: no limit.",
        minimum=0,
    )
    max_connections: int = option(
        4096,
        "Maximum number of connections; above it, the connection that has waited longest for a complete request is "
        "closed. 0: no limit. Applies to each process of --api-server-count.",
        minimum=0,
    )
    max_connections_per_address: int = option(
        2048, "Maximum number of connections per client address (for IPv6, per /64 network). 0: no limit.", minimum=0
    )
    h11_max_incomplete_event_size: int = option(65536, "Maximum size of a request's headers in bytes.", minimum=1024)
    h11_max_header_count: int = option(256, "Maximum number of headers in a request.", minimum=8)
    timeout_keep_alive: int = option(
        75,
        "Seconds for which an idle connection is kept open. Choose more than the clients and proxies do: where the "
        "server closes first, it may do so as the next request comes.",
        minimum=1,
    )
    sse_keep_alive_interval: float = option(
        0.0,
        "Seconds of silence on a stream, as during a long prefill, after which a comment is sent. Clients ignore it; "
        "it keeps proxies from closing the connection. 0: send none.",
        minimum=0.0,
    )
    timeout_headers: float = option(
        20.0,
        "Seconds in which a request's headers must arrive, measured from the connection (including the TLS "
        "handshake) for the first request, from the first byte for later ones. 0: no limit.",
        minimum=0.0,
    )
    timeout_body: float = option(
        30.0, "Maximum number of seconds between two chunks of a request body. 0: no limit.", minimum=0.0
    )
    min_body_rate: int = option(
        1024,
        "Minimum rate of a request body in bytes per second, once it has taken longer than --timeout-body. 0: no "
        "limit.",
        minimum=0,
    )
    timeout_send: float = option(
        60.0, "Seconds after which a client that reads none of its response is disconnected. 0: no limit.", minimum=0.0
    )
    request_timeout: float = option(
        0.0,
        "Seconds in which a request must be answered, from its headers to its last token; beyond it, it ends with "
        "status 504, or an error event in a stream. Requests may ask for less with the field timeout. 0: no limit.",
        minimum=0.0,
    )


@dataclass(frozen=True, kw_only=True)
class RestartOptions(Section):
    """Hangs, crashes and the end of the server."""

    step_timeout: float = option(
        120.0,
        "Seconds after which an unfinished step counts as a hang: the engine is killed and restarted. Likewise an API "
        "server process (--api-server-count) whose event loop does not respond for so long.",
        minimum=1.0,
    )
    max_restarts: int = option(
        5,
        "Maximum number of restarts of crashed or hung engines within --restart-window, and likewise of API server "
        "processes; beyond it, the server exits with an error. 0: exit at the first failure.",
        minimum=0,
    )
    restart_window: float = option(600.0, "Seconds within which restarts are counted.", minimum=1.0)
    max_request_crashes: int = option(
        2,
        "Times in a row that an engine may crash or hang with a request, without a token of it in between. The request "
        "then gets status 500; all others continue in the next engine. 0: all requests of an engine that ends get an "
        "error.",
        minimum=0,
    )
    max_process_memory: float = option(
        0.0,
        "Memory in GiB (resident) that each process of the server may have. From 90 % on, new requests get status 503 "
        "with Retry-After; an engine beyond it is restarted, and its requests continue. 0: no limit.",
        minimum=0.0,
    )
    takeover: bool = option(
        False,
        "Take over from the server of the same user that serves this address now, if there is one: this one gets its "
        "socket, and once it is ready, the other one finishes its requests and exits. No connection is refused or "
        "cut. The devices need room for both. See docs/processes.md.",
    )
    shutdown_timeout: float = option(
        30.0, "Seconds that running requests get to finish after SIGTERM or Ctrl-C.", minimum=0.0
    )


@dataclass(frozen=True, kw_only=True)
class StorageOptions(Section):
    """Stored responses, files and batches."""

    max_stored_responses: int = option(
        1000,
        "Maximum number of /v1/responses responses kept in memory for retrieval and continuation; 0 keeps none. With "
        "--api-server-count above 1, none are kept.",
        minimum=0,
    )
    max_stored_response_bytes: int = option(
        256 * 2**20,
        "Maximum total size of stored responses in bytes of JSON; the least recently used are evicted first.",
        minimum=0,
    )
    store_dir: str | None = option(
        None,
        "Folder for what outlives the server: responses of /v1/responses, files and batches. Background responses and "
        "batches resume after a restart. Default: responses stay in memory. Needs --api-server-count 1.",
    )
    files_dir: str | None = option(
        None,
        "Folder for uploaded files and batches; batches resume after a restart. Default: files in --store-dir, else a "
        "temporary folder, deleted at exit.",
    )
    max_stored_files: int = option(
        1000,
        "Maximum number of files kept for /v1/files; 0, or --api-server-count above 1, disables files and batches.",
        minimum=0,
    )
    max_stored_file_bytes: int = option(4 * 2**30, "Maximum total size of stored files in bytes.", minimum=1024)
    max_stored_file_share: float = option(
        0.5,
        "Maximum share of stored files and bytes that one API key (without keys, one address) may use.",
        minimum=0.01,
        maximum=1.0,
    )
    max_file_size: int = option(200 * 2**20, "Maximum size of an uploaded file in bytes.", minimum=1024)
    stored_file_lifetime: int = option(30 * 86400, "Seconds after which stored files are deleted.", minimum=3600)
    max_batches: int = option(
        100, "Maximum number of batches kept; those that ended first are deleted first.", minimum=1
    )
