"""Which type the KV cache has."""

from dataclasses import replace
from pathlib import Path

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.kv_scales import has_kv_scales, kv_cache_scheme
from jaxllm.models.config import ModelConfig
from jaxllm.models.errors import ModelError
from jaxllm.models.kv_type import KV_DTYPES, KVCacheType


def choose_kv_cache(
    config: EngineConfig, folder: Path, model: ModelConfig, *, dtype: str, platform: str
) -> KVCacheType | None:
    """The type for the option `kv_cache_dtype`; None is that of the activations, `dtype`.

    Raises `ConfigError` for one that the platform does not have, and for scales that cannot be used.
    """
    asked: str = config.cache.kv_cache_dtype
    try:
        if asked == "auto":
            asked = kv_cache_scheme(folder) or dtype
        kind = _without_scales(asked, dtype, platform)
        if kind is not None and model.compressed:
            raise ConfigError(
                f"kv_cache_dtype={asked!r}: {model.architecture} makes cache entries of what is cached before, in the "
                f"type of activations, {dtype!r}; omit it"
            )
        if kind is None or asked not in ("int8", *KV_DTYPES):
            return kind
        if not _has_scales(folder, config.model.load_format):
            return kind
    except ModelError as error:
        raise ConfigError(str(error)) from error
    if model.latent is not None:
        raise ConfigError(
            f"kv_cache_dtype={asked!r}: latent attention does not support scales, which this checkpoint has; omit it"
        )
    return replace(kind, scales="checkpoint")


def _has_scales(folder: Path, load_format: str) -> bool:
    if load_format == "sharded_state":
        # Few engines read one: starts are faster without the import.
        from jaxllm.executor.weights.sharded.manifest import has_kv_scales as state_has_kv_scales
        from jaxllm.executor.weights.sharded.manifest import is_saved_state

        return is_saved_state(folder) and state_has_kv_scales(folder)
    # A plan may be made from the configuration alone.
    if load_format == "dummy" or not any(folder.glob("*.safetensors")):
        return False
    return has_kv_scales(Checkpoint(folder, load_format))


def _without_scales(asked: str, dtype: str, platform: str) -> KVCacheType | None:
    if asked == dtype:
        return None
    if platform == "tpu" and asked == "float16":
        raise ConfigError("kv_cache_dtype='float16': not supported on TPUs; use bfloat16, or omit it")
    return KVCacheType(KV_DTYPES.get(asked, asked), "dynamic" if asked == "int8" else "none")
