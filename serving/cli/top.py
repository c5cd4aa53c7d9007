"""`jaxllm top`: what a server does, live in the terminal."""

import argparse
from collections.abc import Generator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from jaxllm.errors import ConfigError
from jaxllm.flags import FlagParser
from jaxllm.serving.cli.api_client import ApiClient
from jaxllm.serving.cli.tls import add_tls_flags

HELP = "Show what a server does, live: tokens per second, latencies, the KV cache and the requests in flight."
USAGE = "[URL] [flags]"
EXAMPLES = """examples:
  jaxllm top                                  the server on this machine, port 8000
  jaxllm top https://llm.example.org --api-key KEY

q quits, p pauses. Needs pip install 'jaxllm[top]'."""


def add_arguments(parser: FlagParser) -> None:
    """Declare where the server is."""
    parser.epilog = EXAMPLES
    parser.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        default="http://localhost:8000",
        help="Address of the server, or unix:PATH of its socket (default: %(default)s).",
    )
    parser.add_argument(
        "--api-key", metavar="TEXT", help="API key of the server (or $JAXLLM_API_KEY, or $OPENAI_API_KEY)."
    )
    add_tls_flags(parser.add_argument_group("TLS"))


def run(args: argparse.Namespace) -> int:
    """Show it until the person leaves; errors are raised."""
    if find_spec("textual") is None:
        raise ConfigError("jaxllm top needs Textual: pip install 'jaxllm[top]'")

    def events() -> Generator[dict[str, Any]]:
        with ApiClient.from_flags(args) as client:
            yield from client.live_events()

    # Textual is an extra of the package.
    app = import_module("jaxllm.serving.cli.live.app").TopApp(args.url, events)
    app.run()
    if app.error is not None:
        raise app.error
    return 0
