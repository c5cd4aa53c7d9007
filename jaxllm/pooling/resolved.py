"""The decisions about a pooling engine before anything is loaded."""

from dataclasses import dataclass, replace

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.executor.adapter_targets import with_target_modules
from jaxllm.executor.resolve import resolve_config
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from jaxllm.models.options import ForwardOptions
from jaxllm.models.pooling_model import abstract_pooling_model, checkpoint_names
from jaxllm.pooling.override import override
from jaxllm.pooling.settings import PoolingSettings, read_settings


@dataclass(frozen=True)
class ResolvedPoolingConfig:
    """The configuration that every engine has, and how the model pools."""

    common: ResolvedConfig
    settings: PoolingSettings

    @property
    def size(self) -> int:
        """Numbers in a result: of an embedding, or the classes."""
        settings = self.settings
        of_tokens = {"token_embed": settings.token_dense, "token_classify": settings.lexical}
        layers = of_tokens.get(settings.only, settings.dense)
        return settings.num_labels or (layers[-1].out_size if layers else self.common.model.embedding_size)

    @property
    def forward(self) -> ForwardOptions:
        """Options of the forward pass."""
        return replace(self.common.forward, one_layer_cache=True, page_size=self.common.page_size)

    @property
    def forward_with_slots(self) -> ForwardOptions:
        """The same, of a model with slots for adapters."""
        return replace(self.forward, adapters=self.common.adapters)


def resolve_pooling_config(config: EngineConfig) -> ResolvedPoolingConfig:
    """Find the model and settle what the options leave open. Texts are never cut: a step holds the longest one.

    Raises:
        ConfigError: the model cannot be found or read, or an option does not suit it or the devices.
    """
    if config.lora.merge_lora is not None:
        raise ConfigError("merge_lora is for models that generate; merge the adapter with PEFT's merge_and_unload")
    resolved = resolve_config(config, runner="pooling")
    devices = resolved.num_devices * resolved.data_shards
    if devices > 1:
        raise ConfigError(
            f"tensor_parallel_size={devices}: pooling models run on one device; start several servers instead"
        )
    if config.compile.executables is not None:
        raise ConfigError(
            "executables: bundles exist for generative models only; pooling models use the compilation cache"
        )
    try:
        settings = read_settings(config.model, resolved.folder, resolved.model)
        settings = override(settings, config.model.pooler_config or {})
    except ModelError as error:
        raise ConfigError(str(error)) from error
    given = resolved.model.embedding_size
    for first, *_ in settings.outputs.projections.values():
        if first.in_size != given:
            raise ConfigError(
                f"{first.path or first.name} expects {first.in_size} inputs, but the model has {given} outputs"
            )
    longest = resolved.max_model_len
    if settings.max_length is not None and config.model.max_model_len is None:
        longest = min(longest, settings.max_length)
    budget = max(resolved.max_num_batched_tokens, longest)
    resolved = replace(resolved, max_model_len=longest, max_num_batched_tokens=budget)
    return _with_target_modules(ResolvedPoolingConfig(resolved, settings))


def _with_target_modules(resolved: ResolvedPoolingConfig) -> ResolvedPoolingConfig:
    """The configuration with slots for adapters at the modules that it names. Raises `ConfigError`."""
    common, outputs = resolved.common, resolved.settings.outputs
    if not common.config.lora.lora_target_modules:
        return resolved
    model = abstract_pooling_model(common.model, resolved.forward, common.dtype, outputs)
    names = checkpoint_names(registry.lookup(common.model.architecture), common.model, outputs)
    return replace(resolved, common=with_target_modules(common, model, names))
