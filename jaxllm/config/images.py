"""Options of images in prompts."""

from dataclasses import dataclass

from jaxllm.config.option import Section, option


@dataclass(frozen=True, kw_only=True)
class ImageOptions(Section):
    """Images."""

    language_model_only: bool = option(
        False, "Load the language model of a model that also sees images, and take text only: saves the memory of both."
    )
    media_pool_tokens: int | None = option(
        None,
        "Tokens of images that the devices hold: those of all images whose prompts are being read, and of as many "
        "others as fit, which need not be encoded again. A request may have no more. Default: max_model_len, at most "
        "32768.",
        minimum=1,
    )
    max_image_patches: int | None = option(
        None,
        "Patches of the largest image that is seen, where the model sees images of any size. There is a program for "
        "images up to this size, and for those up to a quarter of it and so on; fewer patches need less memory and a "
        "shorter start. Larger images are refused. Default: as many as media_pool_tokens hold, at most 65536, or what "
        "Gemma 4's image processor makes.",
        minimum=1,
    )
