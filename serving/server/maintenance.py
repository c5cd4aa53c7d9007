"""The tasks that run alongside the answers of a server, again and again."""

import asyncio
import logging

from jaxllm.errors import ConfigError
from jaxllm.serving.http.identity import num_http_requests
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.telemetry.shared_metrics import Published, SharedMetrics

_log = logging.getLogger(__name__)

_CERTIFICATE_INTERVAL = 60.0
_KEYS_INTERVAL = 1.0
_PUBLISH_INTERVAL = 0.2


async def publish_metrics(state: ServerState, shared_metrics: SharedMetrics) -> None:
    """Tell the other processes again and again what this one has measured."""
    while True:
        state.metrics.set_without_engine(state.llm.engines.num_without_engine())
        shared_metrics.publish(Published(num_http_requests(state), state.metrics.measured()))
        await asyncio.sleep(_PUBLISH_INTERVAL)


async def follow_keys(state: ServerState) -> None:
    """Follow the file of keys while the server runs."""
    while state.options.api_key_file is not None:
        await asyncio.sleep(_KEYS_INTERVAL)
        try:
            if await asyncio.to_thread(state.access.reload):
                _log.info("reloaded the API keys")
        except ConfigError as error:
            _log.warning("cannot reload the API keys, keeping the previous ones: %s", error)


async def follow_certificate(listener: Listener) -> None:
    """Follow certificates that are renewed while the server runs."""
    while listener.ssl_context is not None:
        await asyncio.sleep(_CERTIFICATE_INTERVAL)
        try:
            if listener.reload_certificate():
                _log.info("reloaded the certificate")
        except ConfigError as error:
            _log.warning("cannot reload the certificate, keeping the previous one: %s", error)
