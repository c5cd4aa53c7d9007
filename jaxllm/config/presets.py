"""Presets: sets of options for a purpose. An option that is given wins over the preset's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.config.option import Section, option


@dataclass(frozen=True)
class Preset:
    """What it is for, its options, and the measurement that they were chosen by."""

    about: str
    options: Mapping[str, Any]
    why: str


PRESETS: Mapping[str, Preset] = {
    "latency": Preset(
        "Chats and agents: even gaps between tokens, also while others send long prompts.",
        {"max_num_seqs": 64, "max_num_batched_tokens": 512, "structured_outputs_preload": True},
        "Requests that decode wait for the step they are in. For Llama-3-8B on a v6e, jaxllm plan estimates 9.4 ms "
        "for a step with 512 tokens of a prompt, 9.3 ms for one decode, and 0.18 s for 8,192 tokens.",
    ),
    "throughput": Preset(
        "Batches and many users: the most tokens per second. Gaps between tokens are longer, and tokens arrive eight "
        "at a time.",
        {"max_num_seqs": 512, "stream_interval": 8},
        "Decodes share one reading of the weights: jaxllm plan estimates 4,420 tokens/s for Llama-3-8B on a v6e with "
        "64 requests, 8,410 with 256 and 9,900 with 512. An event of a stream costs 10 us of processor time. Steps are "
        "as long as the device's default: on a CPU, 8,192 tokens in a step take 16 % more time for a token than 512.",
    ),
    "low-memory": Preset(
        "Small devices, and devices shared with other programs.",
        {"max_num_seqs": 16, "max_num_batched_tokens": 512, "gpu_memory_utilization": 0.6},
        "For Llama-3-8B on a v6e, the step's temporaries and its state take 0.04 GiB instead of 0.76. "
        "Weights stay as they are: --quantization int8 halves them.",
    ),
    "development": Preset(
        "Trying things out: the first answer comes early, later ones wait for the compiler.",
        {"max_num_seqs": 8, "enforce_eager": True, "optimization_level": 0},
        "With the demo model on a CPU and nothing cached, start and first answer take 9 s of processor time instead "
        "of 19 s.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class PresetOptions(Section):
    """A set of options for a purpose; see docs/cli.md."""

    preset: Literal["latency", "throughput", "low-memory", "development"] | None = option(
        None,
        "Options for a purpose: latency, throughput, low-memory or development. Every option that is given, here, in a "
        "file or in the environment, wins over the preset's.",
    )


def with_preset(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, and those of their preset that they lack. An unknown preset is left for the option to reject."""
    return {**preset_options(options), **options}


def preset_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of the preset that `options` name; none without one."""
    found = PRESETS.get(str(options.get("preset")))
    return {} if found is None else found.options
