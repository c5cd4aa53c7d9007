"""Middleware that the operator brings."""

import importlib
import inspect
from functools import reduce
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from jaxllm.errors import ConfigError


def load_middleware(path: str) -> Middleware:
    """The middleware named by `module:attribute`.

    The attribute is called with the ASGI application that it wraps; a coroutine function, as vLLM takes it, gets a
    request and the function that answers it instead. Raises `ConfigError` when there is no such thing.
    """
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = reduce(getattr, attribute.split("."), importlib.import_module(module_name))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"middleware={path!r}: {error}") from error
    if inspect.iscoroutinefunction(found):
        return Middleware(BaseHTTPMiddleware, dispatch=found)
    if not callable(found):
        raise ConfigError(f"middleware={path!r}: neither a class nor a function")
    return Middleware(found)
