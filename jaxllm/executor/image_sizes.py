"""Room for images: how many rows of them the devices hold, which sizes have a program each, and what a step holds."""

from dataclasses import replace

from jaxllm.errors import ConfigError
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.sound_windows import with_sound_rows
from jaxllm.models.config import ModelConfig

MOST_MEDIA_ROWS = 32768
"""Rows of images on the devices, unless an option says more."""

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


def with_images(resolved: ResolvedConfig) -> ResolvedConfig:
    """The configuration with room for images on the devices. Raises `ConfigError` for options that do not fit."""
    images = resolved.config.images
    rows = images.media_pool_tokens or min(resolved.max_model_len, MOST_MEDIA_ROWS)
    if resolved.model.tower is None:
        return with_sound_rows(resolved, rows)
    model = with_image_sizes(resolved.model, rows, images.max_image_patches)
    return replace(resolved, media_rows=rows, model=model)


def with_whole_spans(resolved: ResolvedConfig) -> ResolvedConfig:
    """The configuration with steps that hold an image, where one must not be split. Raises `ConfigError`."""
    tower, options = resolved.model.tower, resolved.config.scheduler
    if tower is None or not resolved.sees_spans:
        return resolved
    needed = tower.rows_of(tower.most_patches) + resolved.max_num_seqs - 1
    if resolved.max_num_batched_tokens >= needed:
        return resolved
    if options.max_num_batched_tokens is None and options.max_num_scheduled_tokens is None:
        # The default is too small for such images.
        return replace(resolved, max_num_batched_tokens=1 << (needed - 1).bit_length())
    raise ConfigError(
        f"max_num_batched_tokens={resolved.max_num_batched_tokens}: the {tower.rows_of(tower.most_patches)} tokens of "
        f"an image are computed in one step, alongside one of each other request (max_num_seqs={resolved.max_num_seqs})"
        f"; set max_num_batched_tokens to at least {needed}, lower max_num_seqs, or set language_model_only to serve "
        "text alone"
    )
