"""`LoRARequest` where vLLM has it."""

from jaxllm.requests.lora_request import LoRARequest

__all__ = ["LoRARequest"]
