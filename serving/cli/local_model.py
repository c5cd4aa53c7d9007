"""A model in this process, as `jaxllm chat` sees that of a server."""

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any, Self

import msgspec

from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm.llm import LLM


class LocalModel:
    """Loads a model, with progress on a terminal, and answers as OpenAI's chunks. A context manager.

    Raises `ConfigError` and `CapacityError` like `LLM`.
    """

    url = "this machine"

    def __init__(self, model: str) -> None:
        self._llm = LLM(model)

    def stream(self, _path: str, body: Mapping[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the chunks of an answer to `messages`; other fields but `model` are sampling parameters.

        Closing the iterator ends the request. Raises `RequestError`.
        """
        sampling = {name: value for name, value in body.items() if name not in ("messages", "model")}
        # As a server does: an answer may fill the room that is left.
        defaults = {"max_tokens": None, **msgspec.to_builtins(self._llm.get_default_sampling_params())}
        prompt = self._llm.render_chat(body["messages"])
        tokenizer = self._llm.llm_engine.tokenizer
        assert tokenizer is not None
        (token_ids,) = tokenizer.encode([prompt], add_special_tokens=False)
        count = 0
        with closing(self._llm.stream(token_ids, SamplingParams(**{**defaults, **sampling}))) as deltas:
            for delta in deltas:
                count += len(delta.token_ids)
                yield {"choices": [{"delta": {"content": delta.text}}]}
        yield {"choices": [], "usage": {"prompt_tokens": len(token_ids), "completion_tokens": count}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._llm.close()
