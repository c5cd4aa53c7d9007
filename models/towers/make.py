"""Makes what models see and hear with."""

import jax.numpy as jnp

from jaxllm.models.config import ModelConfig
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.conformer import ConformerPlan, ConformerRows
from jaxllm.models.towers.image_tower import ImageTower
from jaxllm.models.towers.sound import SoundRows, SoundTower


def make_image_tower(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> ImageTower:
    """The tower of a model that sees images."""
    assert config.tower is not None
    return ImageTower(config.tower, config.hidden_size, options, dtype)


def make_sound_tower(
    config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype
) -> SoundTower | SoundRows | ConformerRows | None:
    """The tower of a model that hears. Rows in place of tokens are made only where they are asked for."""
    assert config.sound is not None
    if config.has_cross_attention:
        return SoundTower(config, options, dtype)
    if not options.sees_images:
        return None
    if isinstance(config.sound, ConformerPlan):
        return ConformerRows(config, options, dtype)
    return SoundRows(config, options, dtype)
