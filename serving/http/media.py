"""What makes images and sound of requests ready: of servers whose model sees or hears."""

from typing import Any

from jaxllm.serving.http.images import RequestImages
from jaxllm.serving.http.sound import RequestSound
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.telemetry.metrics import Metrics


class RequestMedia:
    """`images` is None where the model takes none, `sound` where it makes no text of it."""

    def __init__(self, options: ServerOptions, llm: AsyncLLM, metrics: Metrics) -> None:
        """Raises `ConfigError` for options that name what is not there."""
        taken: Any = getattr(llm.inputs, "images", None)
        hears = llm.info.transcribes
        self.images = None if taken is None else RequestImages(options, taken, llm.run_text, metrics)
        self.sound = RequestSound.of(options, llm.info, llm.tokenizer, llm.run_text) if hears else None
