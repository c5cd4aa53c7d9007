"""Makes what models see and hear with."""

import jax.numpy as jnp

from jaxllm.models.config import ModelConfig
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.image_tower import ImageTower
from jaxllm.models.towers.sound import SoundTower


def make_image_tower(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> ImageTower:
    """The tower of a model that sees images."""
    assert config.tower is not None
    return ImageTower(config.tower, config.hidden_size, options, dtype)


def make_sound_tower(config: ModelConfig, options: ForwardOptions, dtype: jnp.dtype) -> SoundTower:
    """The tower of a model that hears."""
    assert config.sound is not None
    return SoundTower(config, options, dtype)
