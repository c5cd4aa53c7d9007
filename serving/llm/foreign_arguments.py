"""Arguments of vLLM's methods for which there is nothing here."""

from collections.abc import Mapping
from typing import Any

from jaxllm.errors import RequestError

REASONS: Mapping[str, str] = {
    "tokenization_kwargs": "not supported; use truncate_prompt_tokens of the sampling parameters",
}
"""By name."""


def refuse_foreign(**given: Any) -> None:
    """Raise `RequestError` for the first of these that asks for anything."""
    for name, value in given.items():
        if value not in (None, {}, [], "auto"):
            raise RequestError(f"{name}: {REASONS[name]}", name)
