"""The adapters that `lora_request` names."""

from collections.abc import Sequence
from types import NoneType
from typing import Protocol

from jaxllm.errors import RequestError
from jaxllm.requests.lora_request import LoRARequest

GivenAdapters = LoRARequest | Sequence[LoRARequest | None] | None
"""One for all prompts, or a list with one or None for each."""


class AdapterLimits(Protocol):
    """What an engine takes."""

    def check_adapter(self, lora: LoRARequest | None) -> None:
        """Raise `RequestError` for an adapter where the engine takes none."""


def adapter_of_each(given: object, total: int, limits: AdapterLimits) -> Sequence[LoRARequest | None]:
    """The adapter of each of so many prompts. Raises `RequestError` for anything but `GivenAdapters`."""
    if given is None:
        return (None,) * total
    each = [given] * total if isinstance(given, LoRARequest) else given
    if not isinstance(each, Sequence) or not all(isinstance(one, (LoRARequest, NoneType)) for one in each):
        raise RequestError("lora_request: expected a LoRARequest, or a list with one for each prompt", "lora_request")
    if len(each) != total:
        raise RequestError(f"lora_request: {len(each)} were given for {total} prompts", "lora_request")
    limits.check_adapter(next((one for one in each if one is not None), None))
    return each
