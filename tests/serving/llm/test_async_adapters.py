"""Adapters of `AsyncLLM` by number, as in vLLM, and by name."""

import asyncio
from typing import Any

from jaxllm.requests.lora_request import LoRARequest
from jaxllm.serving.llm.async_control import AsyncControl


class _Engines:
    """Knows adapters by name, as engines do."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    async def call(self, method: str, **arguments: Any) -> bool:
        name = arguments["lora_name"]
        known = name in self.names
        if method == "add_lora":
            self.names.add(name)
            return True
        if method == "remove_lora":
            self.names.discard(name)
        return known


def test_numbers_and_names_mean_the_same_adapters() -> None:
    engines: Any = _Engines()
    control = AsyncControl(engines)

    async def run() -> None:
        for number, name in enumerate(("sql", "chat", "code"), 1):
            assert await control.add_lora(LoRARequest(name, number, f"/{name}"))
        assert await control.list_loras() == {1, 2, 3}
        assert await control.pin_lora(1)
        assert await control.remove_lora(2)
        assert await control.remove_lora("code")
        assert not await control.pin_lora("chat")
        assert not await control.remove_lora(2)
        assert await control.list_loras() == {1}

    asyncio.run(run())
    assert engines.names == {"sql"}
