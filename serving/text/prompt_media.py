"""What makes images and sound of prompts ready, of models that see or hear."""

from jaxllm.config.engine_info import EngineInfo
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.prompt_images import PromptImages
from jaxllm.serving.text.sound_samples import PromptSound
from jaxllm.serving.text.tokenizer import Tokenizer


class PromptMediaMakers:
    """`images` and `sound` are None where the model takes none."""

    def __init__(self, info: EngineInfo, tokenizer: Tokenizer | None, options: MediaOptions | None) -> None:
        """Raises `ConfigError` for what is wrong with the options' mm_processor_kwargs."""
        self.images = PromptImages.of(info, tokenizer, options)
        self.sound = None if info.sound is None else PromptSound.of(info, tokenizer, options)
