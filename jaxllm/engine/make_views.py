"""Makes what an engine shows, between two steps."""

import time
from typing import TYPE_CHECKING, Any

import jax

from jaxllm.engine.inspection import shards_of
from jaxllm.engine.page_map import map_pages
from jaxllm.engine.views import LiveView, MadeProgram, MemoryPart, ModelView
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.memory.capacity import bytes_on_device
from jaxllm.pallas_kernels.chips import chip_of

if TYPE_CHECKING:
    from jaxllm.engine.engine import Engine


def live_view(engine: "Engine") -> LiveView:
    """What it does now."""
    return LiveView(now=round(time.monotonic(), 6), maps=map_pages(shards_of(engine)), steps=engine.step_log.last())


def model_view(engine: "Engine") -> ModelView:
    """What it has made of its model."""
    every, chip = engine.runner.calls.every, chip_of(engine.info.device_kind)
    parts: dict[str, int] = {}
    for calls in every:
        for name, count in _memory(calls).items():
            parts[name] = max(parts.get(name, 0), count)
    return ModelView(
        memory=[MemoryPart(name, count) for name, count in parts.items() if count],
        memory_limit=(jax.local_devices()[0].memory_stats() or {}).get("bytes_limit"),
        programs=[program for calls in every for program in _programs(calls)],
        peak_flops=None if chip is None else chip.bf16_flops,
        peak_bandwidth=None if chip is None else chip.hbm_bandwidth,
    )


def _memory(calls: DeviceCalls) -> dict[str, int]:
    """Bytes of each device by what they are for; what steps need for themselves is the compiler's figure."""
    state: Any = getattr(calls, "state", None)
    if state is None:
        return {"Weights": bytes_on_device(calls.parameters)}
    shown = {
        "Weights": bytes_on_device(calls.parameters),
        "KV cache": bytes_on_device(state.kv_cache),
        "Drafter's cache": bytes_on_device(getattr(state, "drafter_cache", None)),
        "Images and sound": bytes_on_device(getattr(state, "media_pool", None)),
        "Adapters": bytes_on_device(calls.adapters),
    }
    others = bytes_on_device(state) - shown["KV cache"] - shown["Drafter's cache"] - shown["Images and sound"]
    made = calls.executables.sizes()
    return {
        **shown,
        "Requests' sampling": others,
        "Largest step's temporaries": max((temporary for temporary, _ in made), default=0),
        "Code of the programs": sum(code for _, code in made),
    }


def _programs(calls: DeviceCalls) -> list[MadeProgram]:
    tokens = {bucket.name: bucket.tokens for bucket in calls.executables.buckets}
    made = sorted(calls.executables.made.items())
    return [MadeProgram(name, round(seconds, 4), compiled, tokens.get(name)) for name, (seconds, compiled) in made]
