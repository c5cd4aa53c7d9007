"""For those who run the server: its options, the engine and the machine in one answer. With --server-dev-mode only."""

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.compat.vllm.options.environment import HARMLESS, VARIABLES
from jaxllm.config import EngineConfig, option_fields
from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.errors import not_enabled
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.server.machine import machine

_SHOWN = HARMLESS | {name for name in VARIABLES if name != "VLLM_API_KEY"}
"""Variables whose values may be told."""
_NOT_SHOWN = "(not shown)"


class ServerInfoQuery(Body, kw_only=True):
    """How options are shown."""

    config_format: Literal["text", "json"] | None = None
    """text (default): in one line; json: an object for each section."""


class ServerInfo(Answer, kw_only=True):
    """The server's description, under vLLM's names and our own."""

    vllm_config: dict[str, Any] | str
    """The options of the engine; secrets are left out."""
    vllm_env: dict[str, str]
    """Variables of the environment that begin with VLLM_ or JAXLLM_; values that may be secret are left out."""
    system_env: dict[str, Any]
    """The machine, sizes in bytes."""
    engine: dict[str, Any]
    """The resolved options: lengths, backends, devices, pages."""


async def server_info(request: Request) -> Response:
    """Tell the options of the engine, what became of them, and the machine."""
    server = server_of(request)
    if not server.options.server_dev_mode:
        raise not_enabled(request.url.path, "--server-dev-mode")
    query = server.bodies.read_query(request, ServerInfoQuery)
    config = _shown(server.llm.config)
    in_a_line = ", ".join(f"{name}={value!r}" for section in config.values() for name, value in section.items())
    variables = {
        name: value if name in _SHOWN else _NOT_SHOWN
        for name, value in sorted(os.environ.items())
        if name.startswith(("VLLM_", "JAXLLM_"))
    }
    return json_response(
        ServerInfo(
            vllm_config=config if query.config_format == "json" else in_a_line,
            vllm_env=variables,
            # It reads files.
            system_env=await asyncio.to_thread(machine),
            engine=msgspec.to_builtins(server.llm.info, enc_hook=str, str_keys=True),
        )
    )


def _shown(config: EngineConfig) -> dict[str, dict[str, Any]]:
    """The options by section, without secrets, and without the values of maps that may hold some."""
    options = {item.name: item.metadata["option"] for _, item in option_fields()}
    plain: dict[str, dict[str, Any]] = {}
    for section, values in dataclasses.asdict(config).items():
        shown = plain.setdefault(section, {})
        for name, value in values.items():
            if name not in options or options[name].may_be_shown(value):
                shown[name] = value
            elif isinstance(value, Mapping):
                shown[name] = dict.fromkeys(map(str, value), _NOT_SHOWN)
    found: dict[str, dict[str, Any]] = msgspec.to_builtins(plain, enc_hook=str, str_keys=True)
    return found
