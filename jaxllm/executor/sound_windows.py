"""What a model that hears needs of an engine's configuration."""

from dataclasses import replace

from jaxllm.errors import ConfigError
from jaxllm.executor.resolved import ResolvedConfig


def with_sound(resolved: ResolvedConfig, runner: str, stages: int, *, is_multihost: bool) -> ResolvedConfig:
    """The configuration with the rules of texts, and places for windows of sound.

    These are no more than memory holds, see `with_windows`.
    Raises `ConfigError` for a use of the model that is not supported.
    """
    config, name = resolved.config, resolved.model.architecture
    if runner == "pooling":
        raise ConfigError(f"{name} makes text of sound, and does not pool: omit runner")
    if stages > 1:
        raise ConfigError(f"pipeline_parallel_size={stages}: not supported by {name}; use tensor_parallel_size")
    if config.images.language_model_only:
        raise ConfigError(f"language_model_only: {name} writes nothing without sound; omit it")
    if is_multihost:
        raise ConfigError(f"{name}: not supported by engines on several hosts")
    # Other models start without the import.
    from jaxllm.processors.transcription import TranscriptionRules

    return replace(
        resolved,
        sound_windows=config.sound.sound_windows or resolved.max_num_seqs,
        # What its texts go on with has rules.
        processors=(*resolved.processors, TranscriptionRules),
    )


def with_sound_rows(resolved: ResolvedConfig, rows: int) -> ResolvedConfig:
    """The configuration with room for so many rows of sound. Raises `ConfigError` for options of images."""
    patches = resolved.config.images.max_image_patches
    if patches is not None:
        raise ConfigError(f"max_image_patches={patches}: {resolved.model.architecture} sees no images; omit it")
    return replace(resolved, media_rows=rows)
