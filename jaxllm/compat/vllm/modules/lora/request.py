"""What vLLM's programs say of an adapter. There are none: who passes one on gets a `RequestError`."""

from dataclasses import dataclass

__all__ = ["LoRARequest"]


@dataclass
class LoRARequest:
    """An adapter: its name, a number of its own, and the folder it is in."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
