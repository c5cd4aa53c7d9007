"""Loads and unloads LoRA adapters while the server runs, where the operator allows it."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from jaxllm.errors import ConfigError, RequestError, quoted
from jaxllm.serving.http.adapters import ServedAdapters, parse_modules
from jaxllm.serving.http.body.base import Body
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.state import ServerState, server_of


class LoadAdapter(Body, kw_only=True):
    """An adapter to serve."""

    lora_name: str
    """The name by which requests ask for it, as `model`."""
    lora_path: str
    """Its folder on the server."""
    load_inplace: bool = False
    """Read the folder of an adapter that is loaded again."""


class UnloadAdapter(Body, kw_only=True):
    """An adapter to serve no more."""

    lora_name: str
    lora_int_id: int | None = None
    """As vLLM has it; the name decides."""


async def load_adapter(request: Request) -> Response:
    """Read an adapter, and serve it under its name."""
    server = server_of(request)
    _check_allowed(server)
    body = await server.bodies.read(request, LoadAdapter)
    path = allowed_path(server, body.lora_path)
    adapter = server.adapters.make(body.lora_name, str(path), load_inplace=body.load_inplace)
    await server.llm.add_lora(adapter)
    server.adapters.add(adapter)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: Request) -> Response:
    """Serve an adapter no more; requests that run with it go on."""
    server = server_of(request)
    _check_allowed(server)
    body = await server.bodies.read(request, UnloadAdapter)
    if server.adapters.find(body.lora_name) is None:
        message = f"there is no adapter {quoted(body.lora_name)}"
        raise HttpError(404, message, param="lora_name", code="adapter_not_found")
    server.adapters.remove(body.lora_name)
    await server.llm.remove_lora(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def allowed_path(server: ServerState, path: str) -> Path:
    """The folder of an adapter, within those that the operator allows. Raises `RequestError`."""
    root = server.options.lora_dir
    assert root is not None
    try:
        found, base = (Path(root) / path).resolve(), Path(root).resolve()
    except (OSError, ValueError, RuntimeError):
        raise RequestError(f"lora_path={quoted(path)} is not a path", "lora_path") from None
    if not found.is_relative_to(base):
        raise RequestError(f"lora_path={quoted(path)} is outside the folder of adapters (--lora-dir)", "lora_path")
    return found


async def load_modules(state: ServerState) -> None:
    """Read the adapters of `--lora-modules`. Raises `ConfigError` for one that cannot be served."""
    modules = parse_modules(state.options.lora_modules)
    if modules and not state.llm.info.max_loras:
        raise ConfigError("lora_modules: the engine takes no adapters; give --enable-lora as well")
    if state.adapters.have_begun:
        return
    found = ServedAdapters(state.model_names)
    for each in modules:
        try:
            adapter = found.make(each.name, each.path)
            await state.llm.add_lora(adapter)
        except RequestError as error:
            raise ConfigError(f"lora_modules: {error}") from error
        found.add(adapter, each.base_model_name)
    state.adapters.begin_with(found)


def _check_allowed(server: ServerState) -> None:
    if server.options.lora_dir is None:
        raise HttpError(
            404, "adapters are not loaded by request; the operator allows it with --lora-dir", code="not_allowed"
        )
