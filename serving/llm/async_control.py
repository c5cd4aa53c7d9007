"""The methods of `AsyncLLM` that are about its engines: caches, traces, sleep, pauses and other weights."""

import asyncio
import dataclasses
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import Any

from jaxllm.engine.control import PauseMode
from jaxllm.errors import EngineError, RequestError
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.serving.ipc.client.control import called, weights_message
from jaxllm.serving.ipc.client.group import EngineGroup
from jaxllm.serving.ipc.messages import EngineMethod
from jaxllm.serving.llm.weights import NewWeights, checked_tensor

POLL_SECONDS = 0.02
"""Between two questions whether the last requests have ended."""


class AsyncControl:
    """Asks every engine. A part of `AsyncLLM`; methods raise `RequestError` for what an engine rejects."""

    def __init__(self, engines: EngineGroup) -> None:
        self.engines = engines
        """Where requests go."""
        self._lora_names: dict[int, str] = {}

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run."""
        return bool(await self.engines.call("reset_prefix_cache"))

    async def start_profile(self) -> str:
        """Begin a trace in `profiler_dir`, which it returns. Raises `RequestError` where none is given."""
        return str(await self.engines.call("start_profile"))

    async def stop_profile(self) -> str:
        """Write the trace, for xprof or TensorBoard; returns its folder. Raises `RequestError` where none was begun."""
        return str(await self.engines.call("stop_profile"))

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Free the device memory until `wake_up`, with `enable_sleep_mode`; requests that come meanwhile wait.

        Level 1 keeps the weights in the host's memory, level 2 drops them, level 0 only pauses. Requests that run end
        (`mode` "abort"), finish first ("wait"), or go on afterwards ("keep").
        """
        await self._poll_until_done("sleep", level=level, mode=mode)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back what sleeps: everything, or of "weights" and "kv_cache" what the tags name."""
        await self.engines.call("wake_up", tags=None if tags is None else list(tags))

    async def is_sleeping(self) -> bool:
        """Whether anything sleeps."""
        return bool(await self.engines.call("is_sleeping"))

    async def pause_generation(
        self, *, mode: PauseMode = "abort", wait_for_inflight_requests: bool = False, clear_cache: bool = True
    ) -> None:
        """Compute nothing more until `resume_generation`; requests that come meanwhile wait, for `mode` see `sleep`."""
        mode = _pause_mode(mode, wait_for_inflight_requests=wait_for_inflight_requests)
        await self._poll_until_done("pause", mode=mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        """Go on after a pause."""
        await self.engines.call("resume")

    async def is_paused(self) -> bool:
        """Whether the engine was paused."""
        return bool(await self.engines.call("is_paused"))

    async def _poll_until_done(self, method: EngineMethod, **arguments: Any) -> None:
        """Ask again and again: an engine with requests that run to their ends says that it is not done."""
        again = False
        while not await self.engines.call(method, **arguments, again=again):
            again = True
            await asyncio.sleep(POLL_SECONDS)

    async def update_weights(self, weights: "NewWeights | AsyncIterable[tuple[str, Any]]") -> int:
        """Replace weights, as `LLM.update_weights` does; pairs may come asynchronously, too."""
        engines = self.engines
        if isinstance(weights, (str, PathLike)):
            return int(await engines.call("update_weights_from", folder=str(weights)) or 0)
        try:
            await engines.call("start_weight_update")
        except RequestError:
            raise  # Another update may be under way, which is not ours to end.
        except BaseException as error:
            await self._abandon(error)
            raise
        try:
            if isinstance(weights, AsyncIterable):
                async for tensor in weights:
                    await engines.ask(weights_message([checked_tensor(tensor)]))
            else:
                for tensor in weights.items() if isinstance(weights, Mapping) else weights:
                    await engines.ask(weights_message([checked_tensor(tensor)]))
            return int(await engines.call("finish_weight_update") or 0)
        except BaseException as error:
            await self._abandon(error)
            raise

    async def _abandon(self, error: BaseException) -> None:
        """Engines that have not failed themselves wait for more tensors."""
        with suppress(EngineError):
            await self.engines.ask(called("abort_weight_update", reason=str(error) or type(error).__name__))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter on every engine. Raises `RequestError` for a folder that holds none."""
        arguments = dataclasses.asdict(lora_request)
        del arguments["base_model_name"]
        await self._poll_until_done("add_lora", **arguments)
        self._lora_names[lora_request.lora_int_id] = lora_request.lora_name
        return True

    async def remove_lora(self, lora: int | str) -> bool:
        """Forget an adapter, by its `lora_int_id` or name; requests that have it go on. False if there is none."""
        name = self._lora_name(lora)
        self._lora_names = {number: each for number, each in self._lora_names.items() if each != name}
        return name is not None and bool(await self.engines.call("remove_lora", lora_name=name))

    async def pin_lora(self, lora: int | str) -> bool:
        """Let an adapter keep its slot, by its `lora_int_id` or name. False if there is none."""
        name = self._lora_name(lora)
        return name is not None and bool(await self.engines.call("pin_lora", lora_name=name))

    async def list_loras(self) -> set[int]:
        """The `lora_int_id` of each adapter that `add_lora` has added."""
        return set(self._lora_names)

    def _lora_name(self, lora: int | str) -> str | None:
        return lora if isinstance(lora, str) else self._lora_names.get(lora)

    async def reload_weights(self) -> int:
        """Read the weights of the model's checkpoint again."""
        return int(await self.engines.call("update_weights_from") or 0)

    async def save_sharded_state(self, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        """Write the weights to a folder as they lie on the devices; see `LLM.save_sharded_state`."""
        await self.engines.call("save_sharded_state", path=str(path), pattern=pattern, max_size=max_size)


def _pause_mode(mode: PauseMode, *, wait_for_inflight_requests: bool) -> PauseMode:
    """The mode that is asked for; vLLM's old name of "wait" is a flag. Raises `RequestError` for both."""
    if wait_for_inflight_requests and mode == "keep":
        raise RequestError("wait_for_inflight_requests and mode='keep' contradict each other", "mode")
    return "wait" if wait_for_inflight_requests else mode
