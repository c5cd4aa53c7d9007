"""Checks of a request against the model and the limits of a pooling engine, before it is queued."""

from dataclasses import dataclass

from jaxllm.config.engine_info import EngineInfo, ImageInfo, PoolingInfo
from jaxllm.engine.validation import check_adapter, check_images, unknown_token
from jaxllm.errors import PromptTooLongError, RequestError, quoted
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.lora_request import LoRARequest


@dataclass(frozen=True)
class PoolingLimits:
    """The limits of a request to this engine."""

    model: str
    vocab_size: int
    max_model_len: int
    pooling: PoolingInfo
    max_loras: int = 0
    images: ImageInfo | None = None

    @classmethod
    def of(cls, info: EngineInfo) -> "PoolingLimits":
        """The limits of an engine that pools."""
        assert info.pooling is not None
        return cls(info.model, info.vocab_size, info.max_model_len, info.pooling, info.max_loras, info.images)

    def check(self, request: PoolingRequest) -> None:
        """Raise `RequestError`, naming the parameter, unless the engine can serve the request."""
        self.check_adapter(request.lora_request)
        length = len(request.prompt_token_ids)
        if length == 0:
            raise RequestError("the prompt is empty: give at least one token", "prompt")
        if length > self.max_model_len:
            raise self.too_long(f"{length} tokens")
        if ((request.prompt_token_ids < 0) | (request.prompt_token_ids >= self.vocab_size)).any():
            raise unknown_token(request.prompt_token_ids, self.vocab_size)
        if request.media is not None:
            check_images(request.media, self.images)
        self.check_params(request.params, has_adapter=request.lora_request is not None)

    def check_adapter(self, lora: LoRARequest | None) -> None:
        """See the function `check_adapter`."""
        check_adapter(lora, self.max_loras)

    def too_long(self, length: str) -> PromptTooLongError:
        """The error for a text of this length."""
        return PromptTooLongError(
            f"the text has {length}, but this model accepts at most {self.max_model_len} tokens; shorten it or set "
            "truncate_prompt_tokens",
            "prompt",
        )

    def check_params(self, params: PoolingParams, *, has_adapter: bool = False) -> None:
        """Raise `RequestError` for what the model does not do.

        That of an adapter is known once it is read: how many classes it distinguishes.
        """
        tasks = self.pooling.tasks
        task = params.task or tasks[0]
        if task not in tasks:
            raise RequestError(f"task={quoted(task)}: {self.model} supports {', '.join(tasks)}", "task")
        if task != "token_classify":
            for name in ("step_tag_id", "returned_token_ids"):
                if getattr(params, name) is not None:
                    raise RequestError(f"{name}: requires task='token_classify', not task={quoted(task)}", name)
        if task in ("embed", "token_embed"):
            if params.activates is not None:
                raise RequestError(
                    f"use_activation: applies to class scores, not to task={quoted(task)}", "use_activation"
                )
            self._check_dimensions(params.dimensions)
            return
        for name in ("dimensions", "normalize"):
            if getattr(params, name) is not None:
                raise RequestError(f"{name}: applies to embeddings, not to task={quoted(task)}", name)
        classes = self.pooling.most_labels if has_adapter else len(self.pooling.labels)
        classes = classes or 1
        beyond = [index for index in params.returned_token_ids or () if index >= classes]
        if beyond:
            raise RequestError(
                f"returned_token_ids: {beyond[0]} is out of range: the model has {classes} classes",
                "returned_token_ids",
            )

    def _check_dimensions(self, wanted: int | None) -> None:
        size, allowed = self.pooling.size, self.pooling.matryoshka
        if wanted is None or wanted == size:
            return
        if allowed is None:
            raise RequestError(
                f"dimensions={wanted}: {self.model} declares no embeddings shorter than {size}; if it was trained "
                """for them (Matryoshka), start with --pooler-config '{"matryoshka": true}'""",
                "dimensions",
            )
        if wanted > size:
            raise RequestError(f"dimensions={wanted}: embeddings of {self.model} have {size} dimensions", "dimensions")
        if allowed and wanted not in allowed:
            raise RequestError(f"dimensions={wanted}: choose one of {', '.join(map(str, allowed))}", "dimensions")
