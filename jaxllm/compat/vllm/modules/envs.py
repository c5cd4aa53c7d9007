"""Environment variables, read when they are asked for: those that servers written for vLLM read themselves."""

import os
from collections.abc import Callable, Mapping
from typing import Any

_KNOWN: Mapping[str, tuple[Any, Callable[[str], Any]]] = {
    "VLLM_API_KEY": (None, str),
    "VLLM_HOST_IP": ("", str),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": (5, int),
    "VLLM_LOGGING_LEVEL": ("INFO", str),
    "VLLM_PORT": (None, int),
    "VLLM_USE_V1": (True, lambda text: bool(int(text))),
}
"""Defaults, and how a text is read."""


def __getattr__(name: str) -> Any:
    known = _KNOWN.get(name)
    if known is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; docs/from-vllm.md lists the variables")
    text = os.environ.get(name)
    return known[0] if text is None else known[1](text)


def __dir__() -> list[str]:
    return sorted(_KNOWN)
