"""The engine with text at one end, for models that pool."""

from typing import Any

from jaxllm.serving.pooling.inputs import PooledText, PoolingInputs
from jaxllm.serving.pooling.outputs import PoolingRequestOutput
from jaxllm.serving.pooling.processor import PoolingProcessor
from jaxllm.serving.text.engine import TextEngine
from jaxllm.serving.text.token_engine import TokenEngine
from jaxllm.serving.text.tokenizer import Tokenizer


class PoolingLLMEngine(TextEngine[PooledText]):
    """`LLMEngine` for models that pool. Not thread-safe."""

    def __init__(self, engine: TokenEngine, tokenizer: Tokenizer | None) -> None:
        super().__init__(engine, tokenizer, PoolingProcessor())
        self.inputs = PoolingInputs(tokenizer, engine.info)

    def step(self) -> list[PoolingRequestOutput]:
        """Run one step; the results that are complete."""
        found: list[Any] = list(self._outputs.process(self.engine.step()).outputs)
        return found
