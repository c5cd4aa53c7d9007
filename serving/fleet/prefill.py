"""Where a prompt is computed: by a prefill server whose pages the server that decodes fetches, or there itself."""

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import numpy as np

from jaxllm.serving.affinity.prefixes import Prompt
from jaxllm.serving.fleet import transfer
from jaxllm.serving.fleet.call import Call
from jaxllm.serving.fleet.choice import Choice
from jaxllm.serving.fleet.exchange import UnansweredError, asked
from jaxllm.serving.fleet.metrics import RouterMetrics
from jaxllm.serving.fleet.servers import FleetServer, Servers

logger = logging.getLogger(__name__)

_OK = 200
_RENDER_SECONDS = 30.0
_TURNS = 4
"""Turns of the event loop after which an answer that had come is read."""


class Prefill:
    """Has prompts computed. Belongs to an event loop."""

    def __init__(
        self, servers: Servers, choice: Choice, metrics: RouterMetrics, *, min_tokens: int, timeout: float
    ) -> None:  # fmt: skip
        """A transfer is worth it from `min_tokens` tokens, and a prompt may take `timeout` seconds."""
        self._servers, self._choice, self._metrics = servers, choice, metrics
        self._min_tokens, self._timeout = min_tokens, timeout
        self._releases: set[asyncio.Task[None]] = set()

    async def prompt(self, path: str, call: Call) -> Prompt | None:
        """The ids of the prompt, where it matters who has them; None also where they cannot be told.

        A token has a byte at least: shorter bodies need no tokenizer.
        """
        decoders = self._servers.of("decode")
        apart = self._servers.disaggregated and transfer.may_be_apart(path, call.body)
        if not decoders or len(call.data) < self._min_tokens or not (apart or len(decoders) > 1):
            return None
        asking = min(decoders, key=lambda each: each.in_flight)
        rendered: Any = None
        try:
            async with (
                asyncio.timeout(_RENDER_SECONDS),
                asked(asking, "POST", f"{path}/render", call.json_headers, call.data, self._metrics) as answer,
            ):
                rendered = msgspec.json.decode(await answer.read()) if answer.status == _OK else None
        except (UnansweredError, TimeoutError, aiohttp.ClientError, msgspec.DecodeError):
            return None
        rendered = rendered[0] if isinstance(rendered, list) and len(rendered) == 1 else rendered
        if not isinstance(rendered, dict) or not isinstance(rendered.get("token_ids"), list):
            return None
        model = call.body.get("model")
        return Prompt(
            token_ids=np.array(rendered["token_ids"], np.int32),
            salt=rendered.get("cache_salt"),
            adapter=model if model in asking.adapters else None,
        )

    async def compute(self, path: str, call: Call, prompt: Prompt | None, cached: int) -> Mapping[str, Any] | None:
        """What a prefill server says of the pages that it has computed; None: it is computed where it is decoded."""
        if not self._servers.disaggregated:
            return None
        if prompt is None:
            is_short = transfer.may_be_apart(path, call.body) and len(call.data) < self._min_tokens
            return self._counted("short" if is_short else "unsupported")
        length, least = len(prompt.token_ids), self._min_tokens
        if length < least:
            return self._counted("short")
        if length - cached < least:
            return self._counted("cached")
        servers = self._servers.of("prefill")
        tried: set[int] = set()
        while left := [server for server in servers if server.number not in tried and server.is_up]:
            server, work = self._choice.prefill(left, prompt)
            tried.add(server.number)
            self._choice.sent(server, prompt)
            parameters = await self._ask_until_gone(server, work, call)
            if parameters is not None:
                return self._counted("prefill", parameters)
            self._metrics.retries.labels(server.name).inc()
        return self._counted("failed" if servers else "unavailable")

    def release(self, call: Call, parameters: Mapping[str, Any]) -> None:
        """Nobody fetches the pages: have a server that decodes tell so, unless it knows by itself."""
        task = asyncio.create_task(self._send_release(call, parameters))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _send_release(self, call: Call, parameters: Mapping[str, Any]) -> None:
        servers = self._servers.of("decode")
        if not servers:
            return
        server = min(servers, key=lambda each: each.in_flight)
        data = msgspec.json.encode(transfer.release_body(call.body, parameters))
        # Otherwise its lease ends when its time is up.
        with suppress(UnansweredError, TimeoutError, aiohttp.ClientError):
            async with (
                asyncio.timeout(_RENDER_SECONDS),
                asked(server, "POST", transfer.COMPLETIONS, call.json_headers, data, self._metrics) as answer,
            ):
                await answer.read()

    def _counted(self, place: str, parameters: Mapping[str, Any] | None = None) -> Mapping[str, Any] | None:
        """Count where a prompt is computed. Returns the parameters."""
        self._metrics.prompts.labels(place).inc()
        return parameters

    async def _ask_until_gone(self, server: FleetServer, work: int, call: Call) -> Mapping[str, Any] | None:
        """`_ask`; when the client leaves, the server computes no more, and pages that it has named are released."""
        asking = asyncio.create_task(self._ask(server, work, call))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # An answer that was received but not read yet is lost if its reader is cancelled. The server cannot tell
            # that from one that was read, and keeps the pages until their lease ends.
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait((asking,))
            received = None if asking.cancelled() or asking.exception() is not None else asking.result()
            if received is not None:
                self.release(call, received)
            raise
        finally:
            asking.cancel()

    async def _ask(self, server: FleetServer, work: int, call: Call) -> Mapping[str, Any] | None:
        """Have a server compute the prompt; None where it does not."""
        data = msgspec.json.encode(transfer.prefill_body(call.body))
        began = time.monotonic()
        server.queued_tokens += work
        try:
            async with (
                asyncio.timeout(self._timeout),
                asked(server, "POST", call.path, call.json_headers, data, self._metrics) as answer,
            ):
                body = await answer.read()
                if answer.status != _OK:
                    logger.warning("%s did not compute a prompt: status %d, %s", server.name, answer.status, body[:300])
                    return None
                found = msgspec.json.decode(body)
        except TimeoutError:
            logger.warning("%s took longer than %g s for a prompt", server.name, self._timeout)
            return None
        except (UnansweredError, aiohttp.ClientError, msgspec.DecodeError) as error:
            logger.warning("%s did not compute a prompt: %s", server.name, error)
            return None
        finally:
            server.queued_tokens -= work
        self._metrics.prefill_seconds.observe(time.monotonic() - began)
        parameters = found.get(transfer.PARAMETERS) if isinstance(found, dict) else None
        if not isinstance(parameters, dict):
            logger.warning("%s keeps no pages for others: its answer has no %s", server.name, transfer.PARAMETERS)
            return None
        return parameters
