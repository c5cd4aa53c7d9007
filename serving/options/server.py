"""Every option of the server, once, as in `jaxllm.config`; names are vLLM's wherever vLLM has one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.compat.vllm.options import NOOP_OPTIONS, NOOP_SERVER_OPTIONS, NoopOption
from jaxllm.compat.vllm.options.environment import options_of_variables
from jaxllm.config import Section, option
from jaxllm.errors import ConfigError
from jaxllm.flags import Flag, engine_flags, section_flags
from jaxllm.serving.options.named_templates import NAMED_TEMPLATES


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Section):
    """The HTTP server: where it listens, whom it lets in, what it logs."""

    host: str = option("0.0.0.0", "Address to listen on; 127.0.0.1 lets only this machine in.")
    port: int = option(
        8000, "Port to listen on; 0 takes any free one, and the log says which.", minimum=0, maximum=65535
    )
    uds: str | None = option(None, "Path of a Unix domain socket to listen on instead of a port.")
    root_path: str | None = option(None, "Path under which a proxy shows this server, such as /llm.")
    served_model_name: tuple[str, ...] = option(
        (), "Names by which requests may call the model, the first in answers. Default: the model as it was given."
    )
    api_key: tuple[str, ...] = option(
        (),
        "API keys; required except for health, metrics and pages.",
        environment="JAXLLM_API_KEY",
    )
    api_key_file: str | None = option(
        None,
        "File of keys, one a line, or (.yaml, .json) of clients with keys, weights and quotas; a key may be a digest, "
        "sha256:HEX. Read again when it changes. See docs/tenancy.md.",
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "Addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto headers are believed; '*': of "
        "everybody. Without it, all clients behind a proxy are one owner.",
        environment="FORWARDED_ALLOW_IPS",
    )
    isolate_prefix_cache: bool = option(
        False, "Let each owner (API key, else address) find only prefixes of its own in the prefix cache."
    )
    allowed_origins: tuple[str, ...] = option(
        (), "Origins of web pages that may call this server (CORS), such as https://example.org; * allows every page."
    )
    allowed_methods: tuple[str, ...] = option(("*",), "HTTP methods that such pages may use.")
    allowed_headers: tuple[str, ...] = option(("*",), "HTTP headers that such pages may send.")
    allow_credentials: bool = option(False, "Whether such pages may send cookies.")
    ssl_keyfile: str | None = option(None, "File of the private key; with --ssl-certfile, the server speaks HTTPS.")
    ssl_certfile: str | None = option(None, "File of the certificate.")
    ssl_ca_certs: str | None = option(None, "File of the authorities that sign clients' certificates.")
    ssl_cert_reqs: int = option(
        0, "Certificates of clients: 0 not asked for, 1 checked if there is one, 2 required.", minimum=0, maximum=2
    )
    ssl_ciphers: str | None = option(None, "Ciphers for TLS 1.2 in OpenSSL's notation.")
    middleware: tuple[str, ...] = option(
        (), "ASGI middleware to wrap the server in, as module.attribute; a class or a function of the application."
    )
    include_router: tuple[str, ...] = option((), "FastAPI routers with routes of your own, as module.attribute.")
    skip_tokenizer_init: bool = option(
        False,
        "Load no tokenizer: token ids in and out, at /inference/v1/generate. What needs text is refused. See "
        "docs/token_ids.md.",
    )
    chat_template: str | None = option(
        None,
        f"Chat template to use instead of the model's: a file, Jinja text, or one of {', '.join(NAMED_TEMPLATES)}.",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "auto",
        "How the chat template receives message contents: as the client sent them if the template can read that "
        "(auto), always as text (string), or always as lists of parts (openai).",
    )
    allow_special_tokens_in_content: bool = option(
        False, "Encode the text of a special token in a chat message, such as <|im_end|>, as the token."
    )
    trust_request_chat_template: bool = option(False, "Let requests bring chat templates of their own.")
    default_chat_template_kwargs: Mapping[str, Any] | None = option(
        None, "Arguments for the chat template; those of a request (chat_template_kwargs) come before them."
    )
    tool_call_parser: str | None = option(
        None,
        "How the model writes calls of tools: a name (docs/tools.md), or a class as module:attribute. Default: what "
        "its chat template shows.",
    )
    reasoning_parser: str | None = option(
        None,
        "How the model writes its reasoning: a name (docs/reasoning.md), or a class as module:attribute. Default: what "
        "its chat template shows.",
    )
    tool_parser_plugin: str | None = option(
        None, "File of Python with formats of calls of your own: a dictionary TOOL_FORMATS of classes by name."
    )
    reasoning_parser_plugin: str | None = option(
        None, "File of Python with formats of reasoning of your own: a dictionary REASONING_FORMATS of classes by name."
    )
    reasoning_config: Mapping[str, Any] | None = option(
        None,
        "How the model reasons: reasoning_parser, reasoning_start_str and reasoning_end_str (the text that ends "
        "reasoning when thinking_token_budget is used up). See docs/reasoning.md.",
    )
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Do not show the model the tools of requests with tool_choice='none'."
    )
    reasoning_effort_map: Mapping[str, Any] | None = option(
        None, 'Efforts in place of those that requests name, for templates that know fewer: {"medium": "low"}.'
    )
    response_role: str = option("assistant", "The role of messages that the model writes.")
    strict_fields: bool = option(
        False,
        "Reject requests with unknown fields, and with known fields that have no effect, instead of ignoring them.",
    )
    ignore_unknown_fields: bool = option(
        False, "Also ignore unknown fields that look like misspellings, and those inside other fields."
    )
    return_tokens_as_token_ids: bool = option(False, "Show tokens in logprobs as token_id:NUMBER instead of text.")
    enable_force_include_usage: bool = option(False, "Give the usage in all chunks of a stream, and at its end.")
    enable_per_request_metrics: bool = option(
        False,
        "Return the timings of a request as `metrics` in the response (in a stream, in the final usage chunk). For "
        "chats and completions with a single choice.",
    )
    enable_tokenizer_info_endpoint: bool = option(False, "Offer /tokenizer_info: the tokenizer's settings.")
    enable_request_id_headers: bool = option(False, "Give every response an X-Request-Id header.")
    server_dev_mode: bool = option(
        False,
        "Offer /sleep, /wake_up, /pause, /resume and /update_weights: who may call this server can stop it then. "
        "VLLM_SERVER_DEV_MODE=1 is the same. See docs/sleep_and_weights.md.",
    )
    max_queued_requests: int = option(
        1024, "Most requests that wait for the engine to start them; more are told to come back later.", minimum=1
    )
    max_num_queued_reqs: int | None = option(
        None, "Most requests in flight, those that run included; more are told to come back later.", minimum=1
    )
    max_num_queued_tokens: int | None = option(
        None,
        "Once the prompts of requests that have no token yet have so many tokens together, more requests are told to "
        "come back later: the time to the first token that you allow, times the prompt tokens that are computed in a "
        "second.",
        minimum=1,
    )
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = option(
        "full",
        "system_fingerprint of answers: a digest of version, model and devices ('full' and 'hash'), "
        "--fingerprint-value ('custom'), or an empty text.",
    )
    fingerprint_value: str | None = option(None, "The fingerprint with --fingerprint-mode custom.")
    api_server_count: int = option(
        1,
        "Processes that answer HTTP, before the same engines: for many streams. --max-queued-requests is for each.",
        minimum=1,
        maximum=64,
        aliases=("-asc",),
    )
    headless: bool = option(
        False, "Run engines for the server at --data-parallel-address, and answer no HTTP. See docs/data_parallel.md."
    )
    data_parallel_secret_file: str | None = option(
        None,
        "File of the secret that lets hosts join a server (--headless), the same on each. Default: the environment "
        "variable JAXLLM_DATA_PARALLEL_SECRET.",
    )
    data_parallel_curve_key: str | None = option(
        None,
        "Certificate of this host with its secret key (ZeroMQ's CURVE, *.key_secret), in place of a secret for all.",
    )
    data_parallel_curve_peers: str | None = option(
        None, "With it, the certificate of the server; at the server, the one of a host, or a folder of them (*.key)."
    )
    max_stored_responses: int = option(
        1000,
        "Most responses of /v1/responses that are kept in memory, to be retrieved and continued; 0 keeps none. With "
        "--api-server-count above 1 none is kept.",
        minimum=0,
    )
    max_stored_response_bytes: int = option(
        256 * 2**20, "Most bytes that these take, as JSON; those that nobody used for longest go first.", minimum=0
    )
    files_dir: str | None = option(
        None,
        "Folder of uploaded files and of batches, which go on after a restart. Default: a temporary one, deleted at "
        "the end.",
    )
    max_stored_files: int = option(
        1000,
        "Most files of /v1/files that are kept; 0 offers neither files nor batches, and so does --api-server-count "
        "above 1.",
        minimum=0,
    )
    max_stored_file_bytes: int = option(4 * 2**30, "Most bytes that these take on disk.", minimum=1024)
    max_stored_file_share: float = option(
        0.5,
        "Largest part of these files and bytes that one key (without keys, one address) may have.",
        minimum=0.01,
        maximum=1.0,
    )
    max_file_size: int = option(200 * 2**20, "Most bytes of an upload.", minimum=1024)
    stored_file_lifetime: int = option(30 * 86400, "Seconds after which files are deleted.", minimum=3600)
    max_batches: int = option(100, "Most batches that are kept; those that ended longest ago go first.", minimum=1)
    max_body_size: int | None = option(
        None,
        "Most bytes in the body of a request. Default: 32 for each token of --max-model-len, at least 4 MiB; four "
        "times that for a model that pools; with --enable-prompt-embeds what the longest prompt takes as embeddings, "
        "at most 128 MiB.",
        minimum=1024,
    )
    max_buffered_body_bytes: int = option(
        256 * 2**20,
        "Most bytes of bodies that are being received, of all connections; beyond it, the largest unfinished body is "
        "refused. 0: no limit.",
        minimum=0,
    )
    max_connections: int = option(
        4096,
        "Most connections; beyond it, the one that has waited longest for a whole request is closed. 0: no limit. "
        "With --api-server-count, for each process.",
        minimum=0,
    )
    max_connections_per_address: int = option(
        2048, "Likewise of one address; of IPv6, of one network of 64 bits. 0: no limit.", minimum=0
    )
    h11_max_incomplete_event_size: int = option(65536, "Most bytes in the headers of a request.", minimum=1024)
    h11_max_header_count: int = option(256, "Most headers of a request.", minimum=8)
    timeout_keep_alive: int = option(5, "Seconds that an idle connection is kept open.", minimum=1)
    sse_keep_alive_interval: float = option(
        0.0,
        "Seconds that a stream may bring nothing, as while a long prompt is computed; then a comment is sent, which "
        "clients leave out, so that proxies do not end the connection. 0: nothing is sent.",
        minimum=0.0,
    )
    timeout_headers: float = option(
        20.0,
        "Seconds from connecting until the headers of the first request are there, with the TLS handshake; for later "
        "ones from their first byte. 0: no limit.",
        minimum=0.0,
    )
    timeout_body: float = option(30.0, "Most seconds between two parts of a request's body. 0: no limit.", minimum=0.0)
    min_body_rate: int = option(
        1024, "Fewest bytes per second of a request's body, once --timeout-body is over. 0: no limit.", minimum=0
    )
    timeout_send: float = option(
        60.0, "Most seconds in which a client takes nothing of what is sent to it. 0: no limit.", minimum=0.0
    )
    step_timeout: float = option(
        120.0, "Seconds after which an engine whose step does not end hangs: it is killed and restarted.", minimum=1.0
    )
    max_restarts: int = option(
        5,
        "How often within --restart-window an engine that ended or hung is restarted, and likewise API server "
        "processes; after that the server exits with an error. 0: it exits at the first.",
        minimum=0,
    )
    restart_window: float = option(600.0, "Seconds over which restarts are counted.", minimum=1.0)
    shutdown_timeout: float = option(
        30.0, "Seconds that running requests have to finish after SIGTERM or Ctrl-C.", minimum=0.0
    )
    metrics_prefix: str = option("jaxllm", "Prefix of the metrics' names; 'vllm' keeps dashboards working.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = option("info", "Least severity to log.")
    log_format: Literal["text", "json"] = option("text", "Log lines as text, or as one JSON object each.")
    access_log: bool = option(
        False,
        "Log a line for every HTTP request but those for health and metrics, when it is over: status, duration, "
        "tokens, why it was refused; with --log-format json as fields.",
    )
    enable_log_requests: bool = option(False, "Log every request: prompt and parameters.")
    max_log_len: int | None = option(None, "Most characters of a prompt in such a line.", minimum=0)
    disable_log_stats: bool = option(False, "No line about throughput every ten seconds.")
    disable_docs: bool = option(False, "No /docs and no /openapi.json.", aliases=("disable-fastapi-docs",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ConfigError("ssl_keyfile: give ssl_certfile too")
        if self.strict_fields and self.ignore_unknown_fields:
            raise ConfigError("ignore_unknown_fields: give it or strict_fields, not both")
        if self.root_path is not None and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path={self.root_path!r}: must begin with /")
        if self.fingerprint_mode == "custom" and not self.fingerprint_value:
            raise ConfigError("fingerprint_mode='custom': give fingerprint_value too")
        if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", self.metrics_prefix):
            raise ConfigError(f"metrics_prefix={self.metrics_prefix!r}: must be letters, digits and underscores")
        for name in ("served_model_name", "api_key"):
            if not all(map(str.strip, getattr(self, name))):
                raise ConfigError(f"{name}: an empty text is among its values")
        for name in ("middleware", "include_router"):
            for path in getattr(self, name):
                if not re.fullmatch(r"\w[\w.]*[.:]\w[\w.]*", path):
                    raise ConfigError(f"{name}={path!r}: must look like module:attribute, or module.attribute")


def server_flags() -> tuple[Flag, ...]:
    """The flag of every option of the server."""
    return tuple(section_flags("server", ServerOptions))


def noop_flags() -> dict[str, NoopOption]:
    """Flags of `vllm serve` that have no effect on `jaxllm serve`."""
    real = {flag.flag.removeprefix("--") for flag in server_flags()}
    every = {**NOOP_OPTIONS, **NOOP_SERVER_OPTIONS}
    return {name: every[name] for name in sorted(every) if name not in real}


def from_environment(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, Any]:
    """Options of server and engine whose values the environment gives: texts, and tuples of comma-separated texts.

    `warn` is told, in a line, of each variable of vLLM's. Blank variables count as missing. Raises `ConfigError` for a
    value that cannot be read, or holds nothing but commas.
    """
    flags = (*engine_flags(), *server_flags())
    ours = {flag.name: flag.info.environment for flag in server_flags() if flag.info.environment}
    found = options_of_variables(environ, {flag.name for flag in flags}, warn, ours)
    for flag in server_flags():
        text = environ.get(flag.info.environment or "", "")
        if not text.strip():
            continue
        parts = tuple(part for part in map(str.strip, text.split(",")) if part)
        if flag.kind is tuple and not parts:
            raise ConfigError(f"{flag.info.environment}={text!r} in the environment: there is no value in it")
        found[flag.name] = parts if flag.kind is tuple else text
    return found
