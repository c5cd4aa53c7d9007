"""The operator's own middleware, named by its place in a module."""

import importlib
import inspect
from functools import reduce
from typing import Any

from fastapi import APIRouter
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from jaxllm.errors import ConfigError


def load_middleware(path: str) -> Middleware:
    """The middleware named by `module.attribute`, or `module:attribute`, as vLLM takes it.

    A class, or a function, is called with the ASGI application that it wraps; a coroutine function gets a request and
    the function that answers it instead. Raises `ConfigError` when there is no such thing.
    """
    found = _load("middleware", path)
    if inspect.iscoroutinefunction(found):
        return Middleware(BaseHTTPMiddleware, dispatch=found)
    if not callable(found):
        raise ConfigError(f"middleware={path!r}: neither a class nor a function")
    return Middleware(found)


def load_router(path: str) -> APIRouter:
    """The router named by `module.attribute`, or `module:attribute`. Raises `ConfigError` when it is none."""
    found = _load("include_router", path)
    if not isinstance(found, APIRouter):
        raise ConfigError(f"include_router={path!r}: not a FastAPI router")
    return found


def _load(option: str, path: str) -> Any:
    """The object that `path` names, the value of an option. Raises `ConfigError`."""
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    try:
        return reduce(getattr, attribute.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option}={path!r}: {error}") from error
