"""The methods of `LLM` for models that pool."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxllm.errors import CapacityError, ConfigError, RequestError, short_for
from jaxllm.serving.llm.engine_methods import EngineMethods
from jaxllm.serving.llm.foreign_arguments import refuse_foreign
from jaxllm.serving.llm.llm_engine import LLMEngine
from jaxllm.serving.llm.offline_generation import as_prompts
from jaxllm.serving.llm.progress import UseTqdm
from jaxllm.serving.text.adapters import GivenAdapters
from jaxllm.serving.text.prompts import Prompt
from jaxllm.serving.text.repr import Results

if TYPE_CHECKING:
    # Nor are these imported before somebody pools: most models generate, and start faster without them.
    from jaxllm.pooling.params import PoolingParams
    from jaxllm.serving.llm.offline_pooling import OfflinePooling, Params
    from jaxllm.serving.pooling.outputs import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )

Scored = str | Mapping[str, Any]
"""A text, or {"content": parts}."""


@short_for((ConfigError, RequestError, CapacityError))
class PoolingMethods(EngineMethods):
    """Embeddings, classes and scores of texts. A part of `LLM`."""

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: "Params" = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: GivenAdapters = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Any = None,
    ) -> "Results[PoolingRequestOutput]":
        """Pool texts, as `pooling_task` or the parameters say; the results are arrays, in the order of the prompts.

        A task is embed or classify for one result per text, token_embed or token_classify for one per token. Prompts
        are as in `generate`; `lora_request` is an adapter for all, or a list with one or None for each. Raises
        `RequestError` for what is wrong with any of them, and for a model that generates.
        """
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        return Results(self._pooling(use_tqdm).pool(as_prompts(prompts), pooling_params, pooling_task, lora_request))

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: "Params" = None,
        lora_request: GivenAdapters = None,
        tokenization_kwargs: Any = None,
    ) -> "Results[EmbeddingRequestOutput]":
        """An embedding of each text; the rest is as in `encode`."""
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        results = self._pooling(use_tqdm).pool(as_prompts(prompts), pooling_params, "embed", lora_request)
        from jaxllm.serving.pooling.outputs import EmbeddingRequestOutput

        return Results(EmbeddingRequestOutput.of(each) for each in results)

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: "Params" = None,
        lora_request: GivenAdapters = None,
        tokenization_kwargs: Any = None,
    ) -> "Results[ClassificationRequestOutput]":
        """Probabilities of the classes of each text; the rest is as in `encode`."""
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        results = self._pooling(use_tqdm).pool(as_prompts(prompts), pooling_params, "classify", lora_request)
        from jaxllm.serving.pooling.outputs import ClassificationRequestOutput

        return Results(ClassificationRequestOutput.of(each) for each in results)

    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        /,
        *,
        pooling_params: "Params" = None,
        use_tqdm: UseTqdm = True,
        lora_request: GivenAdapters = None,
    ) -> "Results[PoolingRequestOutput]":
        """Rewards of tokens or of steps, as a reward model or a classifier gives them; the rest is as in `encode`."""
        return Results(
            self._pooling(use_tqdm).pool(as_prompts(prompts), pooling_params, "token_classify", lora_request)
        )

    def score(
        self,
        text_1: Scored | Sequence[Scored],
        text_2: Scored | Sequence[Scored],
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: "PoolingParams | None" = None,
        lora_request: GivenAdapters = None,
        tokenization_kwargs: Any = None,
        chat_template: str | None = None,
    ) -> "Results[ScoringRequestOutput]":
        """How well texts fit: one with each of several, or pair by pair.

        A classifier with one label (a cross-encoder) reads both texts together; of an embedding model it is the cosine.
        A list of `lora_request` has one for each text that is read, of both sides for an embedding model.
        Of a model that sees, each may be parts with images as in a conversation: {"content": [...]}.
        `chat_template` (Jinja text) writes what the cross-encoder reads, of messages with the roles query and document.
        """
        refuse_foreign(tokenization_kwargs=tokenization_kwargs)
        return Results(self._pooling(use_tqdm).score(text_1, text_2, pooling_params, chat_template, lora_request))

    def _pooling(self, use_tqdm: UseTqdm) -> "OfflinePooling":
        engine = self._open()
        if isinstance(engine, LLMEngine):
            raise RequestError("this is a generative model: load it with LLM(..., runner='pooling') for embeddings")
        from jaxllm.serving.llm.offline_pooling import OfflinePooling

        return OfflinePooling(engine, self._runs, use_tqdm)
