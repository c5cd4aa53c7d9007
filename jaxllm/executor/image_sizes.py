"""The choice of the sizes of images that have a program each, where a model sees images of any size."""

from dataclasses import replace

from jaxllm.errors import ConfigError
from jaxllm.models.config import ModelConfig

MOST_PATCHES = 65536
"""Patches of the largest image that is seen, unless an option says more: as much as Qwen's image processors give."""


def with_image_sizes(model: ModelConfig, rows: int, asked: int | None) -> ModelConfig:
    """The model with the sizes of images chosen, where it sees any. So many `rows` of them are held.

    `asked` are the patches of the largest one, if an option says so; otherwise the checkpoint may say it. Raises
    `ConfigError` where that does not fit.
    """
    tower = model.tower
    assert tower is not None
    if tower.sizes and tower.most_rows_field is None:
        if asked is not None:
            raise ConfigError(
                f"max_image_patches={asked}: {model.architecture} sees images in pieces of one size; omit it"
            )
        return model
    each, held = tower.patches_per_row, rows * tower.patches_per_row
    if asked is not None and not each <= asked <= held:
        raise ConfigError(
            f"max_image_patches={asked}: must be from {each}, which become one token, to {held}, as many as "
            f"media_pool_tokens={rows} hold"
        )
    usual = tower.most_patches if tower.sizes else MOST_PATCHES
    return replace(model, tower=tower.sized(asked or min(held, usual)))
