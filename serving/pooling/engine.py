"""A pooling engine with text at its end, one step at a time: what `LLM` runs for models that pool."""

from collections.abc import Iterable, Sequence
from typing import Any

from jaxllm.errors import RequestError
from jaxllm.pooling.limits import PoolingLimits
from jaxllm.serving.pooling.inputs import PooledText, PoolingInputs
from jaxllm.serving.pooling.outputs import PoolingRequestOutput
from jaxllm.serving.pooling.processor import PoolingProcessor
from jaxllm.serving.text.prompts import naming_prompt
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.serving.token_engine import TokenEngine


class PoolingLLMEngine:
    """`jaxllm.serving.llm_engine.LLMEngine` for models that pool. Not thread-safe."""

    def __init__(self, engine: TokenEngine, tokenizer: Tokenizer | None) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.inputs = PoolingInputs(tokenizer, PoolingLimits.of(engine.info))
        self._outputs = PoolingProcessor()

    def add(self, requests: Sequence[PooledText]) -> None:
        """Queue prepared requests, all or none: raises `RequestError` for the first the engine refuses."""
        added: list[str] = []
        try:
            for index, request in enumerate(requests):
                with naming_prompt(index, len(requests)):
                    if request.request_id in self._outputs:
                        raise RequestError(f"request_id={request.request_id!r} is in use", "request_id")
                    self._outputs.add(request)
                    added.append(request.request_id)
                    for child in request.children:
                        self.engine.add_request(child)
        except BaseException:
            self.abort_request(added)
            raise

    def step(self) -> list[PoolingRequestOutput]:
        """Run one step; the results that are complete."""
        found: list[Any] = list(self._outputs.process(self.engine.step()).outputs)
        return found

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to do."""
        return len(self._outputs) > 0

    def abort_request(self, request_ids: Iterable[str]) -> None:
        """End requests without further outputs. Unknown ids are ignored."""
        self._abort(self._outputs.abort(request_ids))

    def abort_all(self) -> None:
        """End all requests without further outputs."""
        self._abort(self._outputs.abort_all())

    def _abort(self, children: list[str]) -> None:
        if children:
            self.engine.abort_request(children)

    def close(self) -> None:
        """Free the engine and its device memory."""
        self.engine.close()
