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
