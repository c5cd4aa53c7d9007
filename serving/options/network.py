"""Options of addresses, access and TLS, as in `jaxllm.config`."""

from dataclasses import dataclass

from jaxllm.config import Section, option


@dataclass(frozen=True, kw_only=True)
class HTTPOptions(Section):
    """Addresses, pages and processes of the HTTP server."""

    host: str = option("0.0.0.0", "Address to listen on; 127.0.0.1 accepts connections from this machine only.")
    port: int = option(8000, "Port to listen on; 0 chooses a free port, which is logged.", minimum=0, maximum=65535)
    uds: str | None = option(None, "Path of a Unix domain socket to listen on instead of a port.")
    root_path: str | None = option(None, "Path prefix under which a proxy exposes this server, such as /llm.")
    ui: bool = option(
        True,
        "Show browsers a web page at / to chat with the model, and to watch the server; other clients get JSON there. "
        "See docs/page.md.",
    )
    disable_docs: bool = option(False, "Disable /docs and /openapi.json.", aliases=("disable-fastapi-docs",))
    middleware: tuple[str, ...] = option(
        (), "ASGI middleware around the server, as module.attribute: a class, or a function that takes the application."
    )
    include_router: tuple[str, ...] = option((), "FastAPI routers with custom routes, as module.attribute.")
    enable_request_id_headers: bool = option(False, "Give every response an X-Request-Id header.")
    api_server_count: int = option(
        1,
        "Number of HTTP server processes in front of the same engines, for many concurrent streams. "
        "--max-queued-requests applies to each.",
        minimum=1,
        maximum=64,
        aliases=("-asc",),
    )


@dataclass(frozen=True, kw_only=True)
class AccessOptions(Section):
    """Who may use the server, and for what."""

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
    server_dev_mode: bool = option(
        False,
        "Enable /sleep, /wake_up, /pause, /resume and /update_weights, with which any client of this server can stop "
        "it. Also enabled by VLLM_SERVER_DEV_MODE=1. See docs/sleep_and_weights.md.",
    )


@dataclass(frozen=True, kw_only=True)
class TLSOptions(Section):
    """HTTPS, and certificates of clients."""

    ssl_keyfile: str | None = option(None, "File of the private key; together with --ssl-certfile it enables HTTPS.")
    ssl_certfile: str | None = option(None, "File of the certificate.")
    ssl_ca_certs: str | None = option(None, "File of the certificate authorities that sign clients' certificates.")
    ssl_cert_reqs: int = option(
        0, "Client certificates: 0 not requested, 1 checked if presented, 2 required.", minimum=0, maximum=2
    )
    ssl_ciphers: str | None = option(None, "Ciphers for TLS 1.2 in OpenSSL's notation.")


@dataclass(frozen=True, kw_only=True)
class HostOptions(Section):
    """Engines on several hosts. See docs/data_parallel.md."""

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
