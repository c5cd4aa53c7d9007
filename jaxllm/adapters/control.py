"""What an operator or a client does with the LoRA adapters of any kind of engine."""

from typing import TYPE_CHECKING, Any, Protocol

from jaxllm.errors import RequestError
from jaxllm.requests.lora_request import LoRARequest

if TYPE_CHECKING:
    from jaxllm.adapters.adapters import Adapters

ADAPTER_METHODS = ("add_lora", "remove_lora", "pin_lora")
"""The methods of `AdapterControl`."""


class AdaptedEngine(Protocol):
    """An engine that may have adapters."""

    @property
    def adapters(self) -> "Adapters[Any] | None":
        """None: it takes none."""
        ...


class AdapterControl:
    """Belongs to an engine, and is called between its steps."""

    def __init__(self, engine: AdaptedEngine) -> None:
        self._adapted = engine

    def add_lora(
        self, lora_name: str, lora_path: str, lora_int_id: int = 1, *, load_inplace: bool = False, again: bool = False
    ) -> bool:
        """Read a LoRA adapter, so that requests may name it. False while it is being read: ask `again` then.

        Raises `RequestError` for a folder that holds none, and for an engine that takes none.
        """
        return self._adapters.load(
            LoRARequest(lora_name, lora_int_id, lora_path, load_inplace=load_inplace), again=again
        )

    def remove_lora(self, lora_name: str) -> bool:
        """Forget an adapter; requests that have it go on. False if there is none. Raises `RequestError`."""
        return self._adapters.remove(lora_name)

    def pin_lora(self, lora_name: str) -> bool:
        """Let an adapter keep its slot. False if there is none of that name. Raises `RequestError`."""
        return self._adapters.pin(lora_name)

    @property
    def _adapters(self) -> "Adapters[Any]":
        if self._adapted.adapters is None:
            raise RequestError("this engine takes no adapters; start it with --enable-lora", "lora_request")
        return self._adapted.adapters
