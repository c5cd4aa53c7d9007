"""Texts and pairs of texts, as people give them, to requests that a pooling engine can run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import RequestError
from jaxllm.pooling.limits import PoolingLimits
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.media import FIELD as MEDIA
from jaxllm.requests.prompt_embeds import FIELD as EMBEDS
from jaxllm.serving.pooling.encode import Encoded, encode
from jaxllm.serving.pooling.judging import ANSWERS, JUDGED_IMAGES, JUDGED_TEXTS, encode_judged
from jaxllm.serving.tenancy.quotas import Reservation
from jaxllm.serving.text.adapters import GivenAdapters, adapter_of_each
from jaxllm.serving.text.length import SHORT
from jaxllm.serving.text.prompts import (
    ParsedPrompt,
    Prompt,
    as_token_ids,
    broadcast_to_prompts,
    naming_prompt,
    parse_prompt,
)
from jaxllm.serving.text.tokenizer import Tokenizer, check_text
from jaxllm.serving.text.tracing import Interruption, RequestTrace

if TYPE_CHECKING:
    from jaxllm.serving.text.prompt_images import PromptImages
    from jaxllm.serving.text.sound_samples import PromptSound


@dataclass(frozen=True)
class TextPair:
    """Two texts that a cross-encoder reads together."""

    first: str
    second: str


GivenPrompt = Prompt | TextPair | ParsedPrompt
"""What is pooled, as people give it, or read already."""


@dataclass(slots=True, kw_only=True, eq=False)
class PooledText:
    """A checked request. Its one child is what the engine runs."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: PoolingParams
    children: list[PoolingRequest]
    arrival_time: float = 0.0
    reservation: Reservation | None = None
    """Its share of the owner's quota."""
    tokenized_time: float = 0.0
    """When it was ready for the engine, as `arrival_time` in seconds of the monotonic clock."""
    trace: RequestTrace | None = None
    """What is told of the request's end, where it is traced."""
    interruptions: list[Interruption] = field(default_factory=list)
    """The ends of engines that had it, where it is traced."""


class PoolingInputs:
    """Checks texts and parameters against the model and makes requests of them. Stateless and thread-safe."""

    def __init__(self, tokenizer: Tokenizer | None, info: EngineInfo, images: "PromptImages | None" = None) -> None:
        """`images` is how the model takes images, if it does."""
        self._tokenizer = tokenizer
        self.images = images
        self.sound: PromptSound | None = None
        """Nothing is pooled of sound."""
        self._judges = info.pooling is not None and info.pooling.answers == ANSWERS
        self.limits = PoolingLimits.of(info)

    def prepare(
        self,
        prompts: Sequence[GivenPrompt],
        params: PoolingParams | Sequence[PoolingParams],
        request_ids: Sequence[str],
        *,
        priority: int | Sequence[int] = 0,
        add_special_tokens: bool = True,
        lora_request: GivenAdapters = None,
    ) -> list[PooledText]:
        """One request per prompt, in order; `params`, `priority` and `lora_request` are one for all or one per prompt.

        Raises `RequestError` for the first thing that is wrong; when there are several prompts its message begins with
        "prompt INDEX:".
        """
        arrival = time.monotonic()
        count = len(prompts)
        each_params: list[PoolingParams] = broadcast_to_prompts("pooling_params", params, PoolingParams, count)
        each_priority = broadcast_to_prompts("priority", priority, int, count)
        adapters = adapter_of_each(lora_request, count, self.limits)
        for index, (own, adapter) in enumerate(zip(each_params, adapters, strict=True)):
            with naming_prompt(index, count):
                own.validate()
                self.limits.check_params(own, has_adapter=adapter is not None)
        given = [self._read(index, prompts, each_params) for index in range(count)]
        encoded = self._encode(given, each_params, add_special_tokens)
        requests = []
        for index, request_id in enumerate(request_ids):
            with naming_prompt(index, count):
                made = self._make(request_id, given[index], encoded[index], each_params[index], each_priority[index])
            made.arrival_time = arrival
            made.children[0].lora_request = adapters[index]
            requests.append(made)
        tokenized = time.monotonic()
        for made in requests:
            made.tokenized_time = tokenized
        return requests

    def _make(
        self, request_id: str, given: TextPair | ParsedPrompt, encoded: Encoded, params: PoolingParams, priority: int
    ) -> PooledText:
        token_ids = np.asarray(encoded.token_ids)
        prompt = None if isinstance(given, TextPair) else given
        request = PoolingRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=params,
            priority=priority,
            second_text=encoded.second_text,
        )
        if prompt is not None and prompt.items:
            self._check_whole(token_ids, params)
            assert self.images is not None
            request.media = self.images.media(prompt, token_ids)
        self.limits.check(request)
        # Only now: ids that are too large must not wrap around before they are looked at.
        request.prompt_token_ids = token_ids.astype(np.int32)
        return PooledText(
            request_id=request_id,
            prompt=None if prompt is None else prompt.text,
            prompt_token_ids=request.prompt_token_ids.tolist(),
            params=params,
            children=[request],
        )

    def _read(
        self, index: int, prompts: Sequence[GivenPrompt], params: Sequence[PoolingParams]
    ) -> TextPair | ParsedPrompt:
        """The prompt of this number, with what stands for its images. Raises `RequestError`."""
        prompt = prompts[index]
        with naming_prompt(index, len(prompts)):
            if isinstance(prompt, TextPair):
                for text in (prompt.first, prompt.second):
                    check_text(text)
                return prompt
            parsed = prompt if isinstance(prompt, ParsedPrompt) else parse_prompt(prompt)
            if parsed.cache_salt is not None:
                raise RequestError("cache_salt: a pooling model caches nothing", "cache_salt")
            if parsed.embeds is not None:
                raise RequestError(f"{EMBEDS}: a pooling model takes none", EMBEDS)
            if parsed.images or parsed.sound:
                self._place_images(parsed)
            limit = None if parsed.items else self._limit(params[index])
            self._bound(parsed.text if parsed.token_ids is None else parsed.token_ids, limit)
            if parsed.token_ids is None:
                check_text(parsed.text)
            else:
                parsed.token_ids = as_token_ids(parsed.token_ids)
        return parsed

    def _place_images(self, prompt: ParsedPrompt) -> None:
        if prompt.sound:
            raise RequestError("a pooling model takes no sound", MEDIA)
        if self.images is None:
            raise RequestError("this model accepts text only", MEDIA)
        self.images.place(prompt)

    def _check_whole(self, token_ids: np.ndarray, params: PoolingParams) -> None:
        """Raise `RequestError` where a prompt with images would have to be cut."""
        limit = self._limit(params)
        if limit is not None and len(token_ids) > limit:
            raise RequestError(
                f"truncate_prompt_tokens={params.truncate_prompt_tokens}: the prompt has {len(token_ids)} tokens, and "
                f"images cannot be cut; at most {limit} are kept",
                "truncate_prompt_tokens",
            )

    def _encode(
        self,
        prompts: Sequence[TextPair | ParsedPrompt],
        params: Sequence[PoolingParams],
        add_special_tokens: bool,
    ) -> list[Encoded]:
        """The token ids of all prompts; texts are encoded in one call."""
        found: dict[int, Encoded] = {}
        texts: dict[int, str | tuple[str, str]] = {}
        limits = [self._limit(each) for each in params]
        judged, framed = list[int](), list[int]()
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, TextPair):
                texts[index] = prompt.first, prompt.second
                judged += [index] if self._judges else []
            elif prompt.token_ids is None:
                texts[index] = prompt.text or ""
                framed += [index] if prompt.has_special_tokens else []
                # Images are not cut, which is found out later.
                limits[index] = None if prompt.items else limits[index]
            else:
                ids = prompt.token_ids
                found[index] = Encoded((ids if prompt.items else _cut(ids, limits[index], params[index])).tolist())
        if texts and self._tokenizer is None:
            raise RequestError("there is no tokenizer (skip_tokenizer_init): give prompts as token IDs", "prompt")
        if judged:
            assert self._tokenizer is not None
            pairs: Any = [texts[index] for index in judged]
            asked = JUDGED_IMAGES if self.images is not None else JUDGED_TEXTS
            results = encode_judged(self._tokenizer, pairs, [limits[index] for index in judged], asked)
            found.update(zip(judged, results, strict=True))
        plain = [index for index in texts if index not in found and index not in framed]
        for some, special in ((plain, add_special_tokens), (framed, False)):
            if some:
                assert self._tokenizer is not None
                results = encode(
                    self._tokenizer,
                    [texts[index] for index in some],
                    [limits[index] for index in some],
                    [params[index].truncation_side for index in some],
                    add_special_tokens=special,
                )
                found.update(zip(some, results, strict=True))
        return [found[index] for index in range(len(prompts))]

    def _bound(self, prompt: Any, limit: int | None) -> None:
        """Raise `PromptTooLongError` for what is surely too long, and not to be cut, before work is done on it."""
        if limit is not None:
            return
        most = self.limits.max_model_len
        if isinstance(prompt, list) and len(prompt) > most:
            raise self.limits.too_long(f"{len(prompt)} tokens")
        long = isinstance(prompt, str) and len(prompt) > SHORT
        if long and self._tokenizer is not None and self._tokenizer.length.exceeds(prompt, most):
            raise self.limits.too_long(f"{len(prompt)} characters")

    def _limit(self, params: PoolingParams) -> int | None:
        """Most tokens to keep; None: all."""
        keep = params.truncate_prompt_tokens
        return self.limits.max_model_len if keep == -1 else keep


def _cut(token_ids: np.ndarray, most: int | None, params: PoolingParams) -> np.ndarray:
    if most is None or len(token_ids) <= most:
        return token_ids
    return token_ids[-most:] if params.truncation_side == "left" else token_ids[:most]
