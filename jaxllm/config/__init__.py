"""Every option of the engine, once: type, default, help and bounds live on the field.

Command-line flags, their validation and `docs/flags.md` derive from these sections (`jaxllm.flags`).
"""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from jaxllm.config.compile import CompileOptions
from jaxllm.config.images import ImageOptions
from jaxllm.config.lora import LoRAOptions
from jaxllm.config.model import MAMBA_BLOCK_SIZE, CacheOptions, ModelOptions
from jaxllm.config.option import OptionInfo, Section, option
from jaxllm.config.parallel import MAX_ENGINES, DistributedOptions, ParallelOptions, RayOptions
from jaxllm.config.presets import PRESETS, PresetOptions, preset_options, with_preset
from jaxllm.config.run import OutputOptions, ProfilingOptions, SchedulerOptions, StructuredOptions
from jaxllm.config.sound import SoundOptions
from jaxllm.config.speculation import SpeculationOptions
from jaxllm.errors import ConfigError, nearest
from jaxllm.exports import exported

logger = logging.getLogger(__name__)

__all__ = [
    "MAMBA_BLOCK_SIZE",
    "MAX_ENGINES",
    "PRESETS",
    "CacheOptions",
    "CompileOptions",
    "DistributedOptions",
    "EngineConfig",
    "ImageOptions",
    "LoRAOptions",
    "ModelOptions",
    "OptionInfo",
    "OutputOptions",
    "ParallelOptions",
    "PresetOptions",
    "ProfilingOptions",
    "RayOptions",
    "SchedulerOptions",
    "Section",
    "SoundOptions",
    "SpeculationOptions",
    "StructuredOptions",
    "option",
    "option_fields",
    "preset_options",
]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """All sections together. Option names are unique across them."""

    preset: PresetOptions = field(default_factory=PresetOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    ray: RayOptions = field(default_factory=RayOptions)
    distributed: DistributedOptions = field(default_factory=DistributedOptions)
    compile: CompileOptions = field(default_factory=CompileOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    profiling: ProfilingOptions = field(default_factory=ProfilingOptions)
    structured: StructuredOptions = field(default_factory=StructuredOptions)
    lora: LoRAOptions = field(default_factory=LoRAOptions)
    images: ImageOptions = field(default_factory=ImageOptions)
    sound: SoundOptions = field(default_factory=SoundOptions)
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)

    @property
    def is_on_ray(self) -> bool:
        """Whether a Ray cluster starts the processes of engines."""
        return "ray" in (self.parallel.data_parallel_backend, self.distributed.distributed_executor_backend)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], say: Callable[[str], None] = logger.warning) -> Self:
        """Build from flat option names, as `LLM(**options)` and the command line give them.

        None is the default of every option. A `preset` gives those that `options` lack. `say` is told, in a
        line, of another engine's value that is only a hint.
        Raises `ConfigError` for an unknown name (with the nearest known ones) or a bad value.
        """
        owner = {item.name: section for section, item in option_fields()}
        about: dict[str, OptionInfo] = {item.name: item.metadata["option"] for _, item in option_fields()}
        grouped: dict[str, dict[str, Any]] = {}
        for name, value in with_preset(options).items():
            if name not in owner:
                raise ConfigError(f"unknown option {name!r}{nearest(name, owner)}")
            known = about[name].value_of(value)
            if about[name].is_hint(known):
                say(
                    f"{name}={value!r} has no effect: it names another engine's implementation, and jaxllm chooses "
                    "among its own"
                )
            elif known is not None:
                grouped.setdefault(owner[name], {})[name] = known
        sections = {item.name: item.default_factory for item in fields(cls)}
        return cls(**{name: sections[name](**values) for name, values in grouped.items()})  # type: ignore[operator]


def option_fields() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield (section name, field) for every option, in the order of their declaration."""
    for section in fields(EngineConfig):
        assert isinstance(section.default_factory, type)
        for item in fields(section.default_factory):
            yield section.name, item


# For the package `jaxllm`: option objects, under vLLM's import paths.
__path__.append(f"{__path__[0]}/../compat/vllm/modules/config")
__getattr__ = exported(
    __name__,
    dict.fromkeys(
        (
            "AttentionConfig", "CompilationConfig", "ECTransferConfig", "KVEventsConfig", "KVTransferConfig",
            "KernelConfig", "PoolerConfig", "ProfilerConfig", "SpeculativeConfig", "StructuredOutputsConfig",
            "VllmConfig", "WeightTransferConfig",
        ),
        "jaxllm.compat.vllm.modules.config.objects",
    ),
)  # fmt: skip
