"""Texts and pairs of texts, as people give them, to requests that a pooling engine can run."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import RequestError
from jaxllm.pooling.limits import PoolingLimits
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest
from jaxllm.serving.pooling.encode import Encoded, encode
from jaxllm.serving.pooling.judging import ANSWERS, encode_judged
from jaxllm.serving.tenancy.quotas import Reservation
from jaxllm.serving.text.adapters import GivenAdapters, adapter_of_each
from jaxllm.serving.text.length import SHORT
from jaxllm.serving.text.prompts import Prompt, as_token_ids, broadcast_to_prompts, naming_prompt, parse_prompt
from jaxllm.serving.text.tokenizer import Tokenizer, check_text


@dataclass(frozen=True)
class TextPair:
    """Two texts that a cross-encoder reads together."""

    first: str
    second: str


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


class PoolingInputs:
    """Checks texts and parameters against the model and makes requests of them. Stateless and thread-safe."""

    def __init__(self, tokenizer: Tokenizer | None, info: EngineInfo) -> None:
        self._tokenizer = tokenizer
        self._judges = info.pooling is not None and info.pooling.answers == ANSWERS
        self.limits = PoolingLimits.of(info)

    def prepare(
        self,
        prompts: Sequence[Prompt | TextPair],
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
        for index, own in enumerate(each_params):
            with naming_prompt(index, count):
                own.validate()
                self.limits.check_params(own)
        encoded = self._encode(prompts, each_params, add_special_tokens)
        requests = []
        for index, request_id in enumerate(request_ids):
            with naming_prompt(index, count):
                made = self._make(request_id, prompts[index], encoded[index], each_params[index], each_priority[index])
            made.arrival_time = arrival
            made.children[0].lora_request = adapters[index]
            requests.append(made)
        return requests

    def _make(
        self, request_id: str, prompt: Prompt | TextPair, encoded: Encoded, params: PoolingParams, priority: int
    ) -> PooledText:
        token_ids = np.asarray(encoded.token_ids)
        request = PoolingRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            params=params,
            priority=priority,
            second_text=encoded.second_text,
        )
        self.limits.check(request)
        # Only now: ids that are too large must not wrap around before they are looked at.
        request.prompt_token_ids = token_ids.astype(np.int32)
        return PooledText(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=request.prompt_token_ids.tolist(),
            params=params,
            children=[request],
        )

    def _encode(
        self, prompts: Sequence[Prompt | TextPair], params: Sequence[PoolingParams], add_special_tokens: bool
    ) -> list[Encoded]:
        """The token ids of all prompts; texts are encoded in one call."""
        found: dict[int, Encoded] = {}
        texts: dict[int, str | tuple[str, str]] = {}
        limits = [self._limit(each) for each in params]
        for index, prompt in enumerate(prompts):
            with naming_prompt(index, len(prompts)):
                self._bound(prompt, limits[index])
                text_or_ids = _read(prompt)
            if isinstance(text_or_ids, (str, tuple)):
                texts[index] = text_or_ids
            else:
                found[index] = Encoded(_cut(text_or_ids, limits[index], params[index]).tolist())
        if texts:
            if self._tokenizer is None:
                raise RequestError("there is no tokenizer (skip_tokenizer_init): give prompts as token IDs", "prompt")
            pairs = {index: text for index, text in texts.items() if isinstance(text, tuple) and self._judges}
            plain = {index: text for index, text in texts.items() if index not in pairs}
            judged = encode_judged(self._tokenizer, list(pairs.values()), [limits[index] for index in pairs])
            found.update(zip(pairs, judged, strict=True))
            results = encode(
                self._tokenizer,
                list(plain.values()),
                [limits[index] for index in plain],
                [params[index].truncation_side for index in plain],
                add_special_tokens=add_special_tokens,
            )
            found.update(zip(plain, results, strict=True))
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


def _read(prompt: Any) -> str | tuple[str, str] | np.ndarray:
    """A text, two, or token ids. Raises `RequestError`."""
    if isinstance(prompt, TextPair):
        for text in (prompt.first, prompt.second):
            check_text(text)
        return prompt.first, prompt.second
    parsed = parse_prompt(prompt)
    if parsed.cache_salt is not None:
        raise RequestError("cache_salt: a pooling model caches nothing", "cache_salt")
    if parsed.token_ids is None:
        assert parsed.text is not None
        check_text(parsed.text)
        return parsed.text
    return as_token_ids(parsed.token_ids)
