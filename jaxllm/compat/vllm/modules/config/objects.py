"""Objects that vLLM's programs give as options. The option decides what its keys mean, and which have an effect.

An object is a dictionary of what was given: `LLM(pooler_config=PoolerConfig(task="embed"))` and
`LLM(pooler_config={"task": "embed"})` are the same.
"""

from typing import Any

from jaxllm.config import EngineConfig

VllmConfig = EngineConfig


class _Object(dict[str, Any]):
    """A dictionary whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__}: {name!r} is not set") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.items())})"


class AttentionConfig(_Object):
    """`attention_config`: `backend` is the option `attention_backend`; nothing else has an effect."""


class CompilationConfig(_Object):
    """`compilation_config`, which has no effect: XLA compiles."""


class ECTransferConfig(_Object):
    """`ec_transfer_config`, which is rejected unless it is empty."""


class KVEventsConfig(_Object):
    """`kv_events_config`, an option."""


class KVTransferConfig(_Object):
    """`kv_transfer_config`, an option."""


class KernelConfig(_Object):
    """`kernel_config`: `moe_backend` and `linear_backend` are options of the same names; nothing else has an effect."""


class PoolerConfig(_Object):
    """`pooler_config`, an option."""


class ProfilerConfig(_Object):
    """`profiler_config`: `torch_profiler_dir` is the option `profiler_dir`; nothing else has an effect."""


class SpeculativeConfig(_Object):
    """`speculative_config`, an option."""


class StructuredOutputsConfig(_Object):
    """`structured_outputs_config`: its keys are options of the same names."""


class WeightTransferConfig(_Object):
    """`weight_transfer_config`, which is rejected unless it is empty."""
