"""The adapters that `lora_request` names."""

from collections.abc import Collection, Mapping, Sequence
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


def default_adapter(folders: Mapping[str, str], media: Collection[str]) -> LoRARequest | None:
    """The adapter of a prompt with these media, of the `folders` of default_mm_loras, if there is one.

    Raises `RequestError` for media that have different ones.
    """
    found = {folder: medium for medium, folder in folders.items() if medium in media}
    if len(found) > 1:
        raise RequestError(
            f"a prompt with {' and '.join(sorted(found.values()))} has no one adapter, since each has its own; send "
            "them apart, or name an adapter",
            "lora_request",
        )
    return next((LoRARequest(f"default-mm-lora-{medium}", 1, folder) for folder, medium in found.items()), None)
