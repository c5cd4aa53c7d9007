"""Every option of the server, once, as in `jaxllm.config`; names are vLLM's wherever vLLM has one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.compat.vllm.options import NOOP_OPTIONS, NOOP_SERVER_OPTIONS, NoopOption
from jaxllm.compat.vllm.options.environment import options_of_variables
from jaxllm.config import option
from jaxllm.errors import ConfigError
from jaxllm.flags import Flag, engine_flags, section_flags
from jaxllm.serving.options.named_templates import NAMED_TEMPLATES
from jaxllm.serving.options.observability import ObservabilityOptions

_OBJECT = (r"\w[\w.]*[.:]\w[\w.]*", "module:attribute or module.attribute")
_FORMS = (
    ("middleware", *_OBJECT),
    ("include_router", *_OBJECT),
    ("lora_resolver_hf_repos", r"[\w.-]+/[\w.-]+", "organization/name"),
)
"""Options of several texts that have a form: its regular expression, and how an error calls it."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ObservabilityOptions):
    """The HTTP server: addresses, access, limits and logs."""

    host: str = option("0.0.0.0", "Address to listen on; 127.0.0.1 accepts connections from this machine only.")
    port: int = option(8000, "Port to listen on; 0 chooses a free port, which is logged.", minimum=0, maximum=65535)
    uds: str | None = option(None, "Path of a Unix domain socket to listen on instead of a port.")
    root_path: str | None = option(None, "Path prefix under which a proxy exposes this server, such as /llm.")
    served_model_name: tuple[str, ...] = option(
        (), "Names that requests may use for the model; responses use the first. Default: the model as given."
    )
    lora_modules: tuple[str, ...] = option(
        (),
        'LoRA adapters to serve from the start, as NAME=FOLDER or JSON {"name", "path", "base_model_name"}; '
        "requests ask for one by its name as model. Needs --enable-lora.",
    )
    lora_dir: str | None = option(
        None,
        "Folder with adapters, which clients may then load and unload (POST /v1/load_lora_adapter); others are "
        "rejected. Default: clients load none.",
    )
    lora_resolver_dir: str | None = option(
        None,
        "Folder with adapters that requests may name as model without loading them: NAME is FOLDER/NAME. Default: "
        "none.",
    )
    lora_resolver_hf_repos: tuple[str, ...] = option(
        (),
        "Hub repositories (organization/name) with adapters that requests may name as model, also as "
        "organization/name/folder; the server downloads them when they are first asked for, unless HF_HUB_OFFLINE is "
        "set.",
    )
    api_key: tuple[str, ...] = option(
        (),
        "API keys; required except for health, metrics and documentation pages.",
        environment="JAXLLM_API_KEY",
    )
    api_key_file: str | None = option(
        None,
        "File of API keys, one per line, or a .yaml or .json file of clients with keys, weights and quotas; a key "
        "may be given as its digest, sha256:HEX. Reloaded when it changes. See docs/tenancy.md.",
    )
    trusted_proxies: tuple[str, ...] = option(
        (),
        "Addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted; '*' "
        "trusts every sender. Without this option, all clients behind a proxy count as one owner.",
        environment="FORWARDED_ALLOW_IPS",
    )
    isolate_prefix_cache: bool = option(
        False, "Give each owner (API key, or address without keys) its own prefix cache entries."
    )
    allowed_origins: tuple[str, ...] = option(
        (),
        "Origins of web pages that may call this server (CORS), such as https://example.org; '*' allows every origin.",
    )
    allowed_methods: tuple[str, ...] = option(("*",), "HTTP methods that pages from these origins may use.")
    allowed_headers: tuple[str, ...] = option(("*",), "HTTP headers that pages from these origins may send.")
    allow_credentials: bool = option(False, "Allow pages from these origins to send cookies.")
    ssl_keyfile: str | None = option(None, "File of the private key; together with --ssl-certfile it enables HTTPS.")
    ssl_certfile: str | None = option(None, "File of the certificate.")
    ssl_ca_certs: str | None = option(None, "File of the certificate authorities that sign clients' certificates.")
    ssl_cert_reqs: int = option(
        0, "Client certificates: 0 not requested, 1 checked if presented, 2 required.", minimum=0, maximum=2
    )
    ssl_ciphers: str | None = option(None, "Ciphers for TLS 1.2 in OpenSSL's notation.")
    middleware: tuple[str, ...] = option(
        (), "ASGI middleware around the server, as module.attribute: a class, or a function that takes the application."
    )
    include_router: tuple[str, ...] = option((), "FastAPI routers with custom routes, as module.attribute.")
    skip_tokenizer_init: bool = option(
        False,
        "Load no tokenizer: serve token IDs in and out, at /inference/v1/generate. Requests that need text are "
        "rejected. See docs/token_ids.md.",
    )
    chat_template: str | None = option(
        None,
        f"Chat template to use instead of the model's: a file, Jinja text, or one of {', '.join(NAMED_TEMPLATES)}.",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "auto",
        "Form in which the chat template receives message contents: as the client sent them if the template supports "
        "it (auto), always as a string (string), or always as a list of parts (openai).",
    )
    allow_special_tokens_in_content: bool = option(
        False, "Encode the text of a special token in a chat message, such as <|im_end|>, as that token."
    )
    trust_request_chat_template: bool = option(False, "Allow requests to bring their own chat template.")
    default_chat_template_kwargs: Mapping[str, Any] | None = option(
        None, "Default arguments of the chat template; a request's chat_template_kwargs override them."
    )
    tool_call_parser: str | None = option(
        None,
        "Format of the model's tool calls: a name from docs/tools.md, or a class as module:attribute. Default: "
        "detected from the chat template.",
    )
    reasoning_parser: str | None = option(
        None,
        "Format of the model's reasoning: a name from docs/reasoning.md, or a class as module:attribute. Default: "
        "detected from the chat template.",
    )
    tool_parser_plugin: str | None = option(
        None, "Python file with custom tool-call formats: a dictionary TOOL_FORMATS from names to classes."
    )
    reasoning_parser_plugin: str | None = option(
        None, "Python file with custom reasoning formats: a dictionary REASONING_FORMATS from names to classes."
    )
    reasoning_config: Mapping[str, Any] | None = option(
        None,
        "Settings of reasoning, as JSON: reasoning_parser, reasoning_start_str and reasoning_end_str (the text that "
        "ends reasoning once thinking_token_budget is exhausted). See docs/reasoning.md.",
    )
    exclude_tools_when_tool_choice_none: bool = option(
        False, "Omit tools from the prompt of requests with tool_choice='none'."
    )
    reasoning_effort_map: Mapping[str, Any] | None = option(
        None,
        'Replacements for requested reasoning efforts, as JSON, for templates that support fewer: {"medium": "low"}.',
    )
    response_role: str = option("assistant", "Role of the messages that the model writes.")
    strict_fields: bool = option(
        False,
        "Reject requests that contain unknown fields, or known fields without effect, instead of ignoring these "
        "fields.",
    )
    ignore_unknown_fields: bool = option(
        False, "Also ignore unknown fields that look like misspellings, and unknown fields in nested objects."
    )
    return_tokens_as_token_ids: bool = option(False, "Show tokens in logprobs as token_id:NUMBER instead of text.")
    enable_force_include_usage: bool = option(False, "Include usage in every chunk of a stream and in a final chunk.")
    enable_per_request_metrics: bool = option(
        False,
        "Return a request's timings as `metrics` in the response (of a stream: in the final usage chunk). Applies to "
        "chats and completions with a single choice.",
    )
    enable_tokenizer_info_endpoint: bool = option(
        False, "Enable /tokenizer_info, which returns the tokenizer's settings."
    )
    enable_request_id_headers: bool = option(False, "Give every response an X-Request-Id header.")
    server_dev_mode: bool = option(
        False,
        "Enable /sleep, /wake_up, /pause, /resume and /update_weights, with which any client of this server can stop "
        "it. Also enabled by VLLM_SERVER_DEV_MODE=1. See docs/sleep_and_weights.md.",
    )
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
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = option(
        "full",
        "system_fingerprint in responses: a digest of version, model and devices ('full' and 'hash'), "
        "--fingerprint-value ('custom'), or an empty string ('none').",
    )
    fingerprint_value: str | None = option(None, "Value of system_fingerprint with --fingerprint-mode custom.")
    api_server_count: int = option(
        1,
        "Number of HTTP server processes in front of the same engines, for many concurrent streams. "
        "--max-queued-requests applies to each.",
        minimum=1,
        maximum=64,
        aliases=("-asc",),
    )
    headless: bool = option(
        False,
        "Run engines for the server at --data-parallel-address, without an HTTP server. See docs/data_parallel.md.",
    )
    data_parallel_secret_file: str | None = option(
        None,
        "File with the secret that hosts need to join a server (--headless), the same on every host. Default: the "
        "environment variable JAXLLM_DATA_PARALLEL_SECRET.",
    )
    data_parallel_curve_key: str | None = option(
        None,
        "Certificate of this host with its secret key (ZeroMQ CURVE, *.key_secret), instead of a shared secret.",
    )
    data_parallel_curve_peers: str | None = option(
        None,
        "With --data-parallel-curve-key: on a host, the server's public certificate (*.key); on the server, a "
        "host's public certificate or a folder of them.",
    )
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
    files_dir: str | None = option(
        None,
        "Folder for uploaded files and batches; batches resume after a restart. Default: a temporary folder, deleted "
        "at exit.",
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
    timeout_keep_alive: int = option(5, "Seconds for which an idle connection is kept open.", minimum=1)
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
    step_timeout: float = option(
        120.0,
        "Seconds after which an unfinished step counts as a hang: the engine is killed and restarted.",
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
    shutdown_timeout: float = option(
        30.0, "Seconds that running requests get to finish after SIGTERM or Ctrl-C.", minimum=0.0
    )
    metrics_prefix: str = option("jaxllm", "Prefix of metric names; 'vllm' keeps dashboards made for vLLM working.")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = option("info", "Minimum severity to log.")
    log_format: Literal["text", "json"] = option(
        "text", "Format of log lines: plain text, or one JSON object per line."
    )
    access_log: bool = option(
        False,
        "Log a line when an HTTP request ends (except for health and metrics): status, duration, tokens and, if "
        "rejected, the reason; as fields with --log-format json.",
    )
    enable_log_requests: bool = option(False, "Log the prompt and parameters of every request.")
    max_log_len: int | None = option(None, "Maximum number of prompt characters in such a line.", minimum=0)
    disable_log_stats: bool = option(False, "Do not log throughput every ten seconds.")
    ui: bool = option(
        True,
        "Show browsers a web page at / to chat with the model, and to watch the server; other clients get JSON there. "
        "See docs/page.md.",
    )
    disable_docs: bool = option(False, "Disable /docs and /openapi.json.", aliases=("disable-fastapi-docs",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ConfigError("ssl_keyfile requires ssl_certfile")
        if self.strict_fields and self.ignore_unknown_fields:
            raise ConfigError("ignore_unknown_fields and strict_fields cannot be combined")
        if self.root_path is not None and not self.root_path.startswith("/"):
            raise ConfigError(f"root_path={self.root_path!r}: must begin with /")
        if self.fingerprint_mode == "custom" and not self.fingerprint_value:
            raise ConfigError("fingerprint_mode='custom' requires fingerprint_value")
        if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", self.metrics_prefix):
            raise ConfigError(
                f"metrics_prefix={self.metrics_prefix!r}: must consist of letters, digits and underscores, and not "
                "begin with a digit"
            )
        for name in ("served_model_name", "api_key"):
            if not all(map(str.strip, getattr(self, name))):
                raise ConfigError(f"{name}: values must not be blank")
        for name, pattern, form in _FORMS:
            for text in getattr(self, name):
                if not re.fullmatch(pattern, text):
                    raise ConfigError(f"{name}={text!r}: must have the form {form}")


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
            raise ConfigError(f"{flag.info.environment}={text!r} in the environment: contains no value")
        found[flag.name] = parts if flag.kind is tuple else text
    return found
