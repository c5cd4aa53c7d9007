"""`jaxllm route`: one address in front of several servers."""

import argparse
import os
import sys

from jaxllm.flags import FlagParser, add_flags, explicit_options, section_flags, summary
from jaxllm.flags.flag import Flag
from jaxllm.serving.cli.system_limits import raise_file_limit
from jaxllm.serving.fleet.run import run_router
from jaxllm.serving.options.fleet import RouteOptions
from jaxllm.serving.options.server import ServerOptions, from_environment, server_flags

HELP = "Route requests to several servers, by what they have cached and have to do; long prompts to prefill servers."
EXAMPLES = """examples:
  jaxllm route --decode http://10.0.0.7:8000 http://10.0.0.8:8000
  jaxllm route --prefill http://10.0.0.6:8000 --decode http://10.0.0.7:8000 --port 9000

Servers for --prefill and --decode need --kv-transfer-config; those with --kv-events-config tell what they have cached.
On one machine, `jaxllm serve MODEL --disaggregate 1:1` starts servers and router in one go."""

_OPTIONS = frozenset(
    (
        *("host", "port", "uds", "root_path", "api_key", "api_key_file", "trusted_proxies", "allowed_origins"),
        *("allowed_methods", "allowed_headers", "allow_credentials", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
        *("ssl_cert_reqs", "ssl_ciphers", "max_num_queued_reqs", "max_body_size", "max_buffered_body_bytes"),
        *("max_connections", "max_connections_per_address", "h11_max_incomplete_event_size", "h11_max_header_count"),
        *("timeout_keep_alive", "timeout_headers", "timeout_body", "min_body_rate", "timeout_send", "max_file_size"),
        *("shutdown_timeout", "log_level", "log_format", "access_log", "metrics_prefix"),
        *("min_transfer_tokens", "prefill_timeout", "health_interval"),
    )
)
"""Options of `jaxllm serve` that a router has as well."""


def route_flags() -> tuple[Flag, ...]:
    """The flags that it shares with `jaxllm serve`."""
    return tuple(flag for flag in server_flags() if flag.name in _OPTIONS)


def add_arguments(parser: FlagParser) -> None:
    """Declare the servers and the options."""
    parser.epilog = EXAMPLES
    add_flags(parser, "route", summary(RouteOptions), section_flags("route", RouteOptions))
    add_flags(parser, "router", "As of `jaxllm serve`.", route_flags())


def run(args: argparse.Namespace) -> int:
    """Route until told to end; errors are raised."""
    given = explicit_options(args, route_flags())
    environment = {name: value for name, value in from_environment(os.environ, _say).items() if name in _OPTIONS}
    options = ServerOptions(**environment | given)
    route = RouteOptions(**explicit_options(args, section_flags("route", RouteOptions)))
    raise_file_limit()
    return run_router(route, options)


def _say(line: str) -> None:
    sys.stderr.write(f"jaxllm route: {line}\n")
