"""Prompts and parameters, as people give them, to requests the engine can run; everything wrong is found here."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import RequestError
from jaxllm.requests.kv_transfer import is_for_another, without_transfer
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import FIELD as MEDIA
from jaxllm.requests.media import PromptMedia
from jaxllm.requests.prompt_embeds import NO_TOKEN, PromptEmbeds
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.adapters import adapter_of_each, default_adapter
from jaxllm.serving.text.length import SHORT
from jaxllm.serving.text.messages import AUDIO
from jaxllm.serving.text.prompts import (
    IntArray,
    ParsedPrompt,
    Prompt,
    as_token_ids,
    broadcast_to_prompts,
    naming_prompt,
    parse_prompt,
)
from jaxllm.serving.text.stop_strings import StopAutomaton
from jaxllm.serving.text.tokenizer import Tokenizer, check_text
from jaxllm.serving.text.tracing import RequestTrace
from jaxllm.structured.checking import DirectChecker, FormChecker

if TYPE_CHECKING:
    from jaxllm.serving.tenancy.quotas import Reservation
    from jaxllm.serving.text.prompt_images import PromptImages
    from jaxllm.serving.text.sound_samples import PromptSound


@dataclass(slots=True)
class RequestProgress:
    """Measurements of a request, where somebody measures (`Meter`)."""

    num_tokens: int = 0
    """Of the sequences that have ended."""
    finish_reasons: list[str] = field(default_factory=list)
    first_token_seconds: float | None = None
    """From arrival; known once the first token of any sequence has come."""


@dataclass(slots=True, kw_only=True, eq=False)
class TextRequest:
    """A checked request. Its `children`, one per sequence to generate, are what the engine runs."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    children: list[Request]
    stream: bool = False
    arrival_time: float = 0.0
    stops: StopAutomaton | None = None
    preserved_tokens: frozenset[int] = frozenset()
    """Special tokens that stay in the text although others are skipped."""
    progress: RequestProgress = field(default_factory=RequestProgress)
    reservation: "Reservation | None" = None
    """Its share of the owner's quota."""
    tokenized_time: float = 0.0
    """When it was ready for the engine, as `arrival_time` in seconds of the monotonic clock."""
    trace: RequestTrace | None = None
    """What is told of the request's end, where it is traced."""


MOST_CHARACTERS_PER_TOKEN = 16
"""A prediction is cut after so many for each token of the longest output."""


class InputProcessor:
    """Checks prompts and parameters against the model and makes requests of them.

    Stateless and thread-safe; encoding long texts is the only slow part.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        limits: RequestLimits,
        eos_token_ids: Sequence[int] = (),
        forms: FormChecker | None = None,
        images: "PromptImages | None" = None,
        sound: "PromptSound | None" = None,
    ) -> None:
        """`limits` are the engine's. `eos_token_ids` are the model's own; the tokenizer's end token is added.

        `forms` looks at grammars; otherwise that is done in this process. `images` is how the model takes images, if it
        does, and `sound` how it takes sound.

        Without a tokenizer, prompts must be token ids and no text is produced.
        """
        self._tokenizer = tokenizer
        self._limits = limits
        self.images = images
        self.sound = sound
        self._forms: FormChecker = forms or DirectChecker(limits.structured_outputs_backend)
        eos = dict.fromkeys(eos_token_ids)
        if tokenizer is not None and tokenizer.eos_token_id is not None:
            eos[tokenizer.eos_token_id] = None
        self._eos_token_ids = tuple(eos)

    def prepare(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        request_ids: Sequence[str],
        *,
        priority: int | Sequence[int] = 0,
        stream: bool = False,
        add_special_tokens: bool = True,
        lora_request: "LoRARequest | Sequence[LoRARequest | None] | None" = None,
    ) -> list[TextRequest]:
        """One request per prompt, in order; `params`, `priority` and `lora_request` are one for all or one per prompt.

        Texts are encoded in one call. Raises `RequestError` for the first thing that is wrong; when there are several
        prompts its message begins with "prompt INDEX:".
        """
        total = len(prompts)
        each_params = broadcast_to_prompts("sampling_params", params, SamplingParams, total)
        each_priority = broadcast_to_prompts("priority", priority, int, total)
        parsed, checked = [], set[int]()
        for index, prompt in enumerate(prompts):
            with naming_prompt(index, total):
                parsed.append(parse_prompt(prompt))
        for each, adapter in zip(parsed, adapter_of_each(lora_request, total, self._limits), strict=True):
            each.lora_request = adapter
        for index, own in enumerate(each_params):
            if id(own) not in checked:
                checked.add(id(own))
                with naming_prompt(index, total):
                    own.validate()  # fields may have been set since
                    self._limits.check_logprobs(own)
                    if stream:
                        own.check_streamable()
        return self.build(
            parsed, each_params, request_ids, each_priority, stream=stream, add_special_tokens=add_special_tokens
        )

    def build(
        self,
        prompts: Sequence[ParsedPrompt],
        params: Sequence[SamplingParams],
        request_ids: Sequence[str],
        priorities: Sequence[int],
        *,
        stream: bool,
        add_special_tokens: bool,
    ) -> list[TextRequest]:
        """`prepare`, of prompts and parameters that are what they should be: only the rest is checked.

        The rest is what the model's length and vocabulary and the grammars say of them.
        """
        arrival = time.monotonic()  # encoding is part of the time to the first token
        if self._tokenizer is None and any(prompt.token_ids is None and prompt.embeds is None for prompt in prompts):
            raise RequestError("there is no tokenizer (skip_tokenizer_init): give prompts as token IDs", "prompt")
        requests = []
        index = 0
        try:
            finished = dict[int, tuple[SamplingParams, int]]()
            for index, own in enumerate(params):  # noqa: B007  (errors name it)
                if id(own) not in finished:
                    finished[id(own)] = self._finished(own)
            for index, prompt in enumerate(prompts):
                if prompt.images or prompt.sound:
                    self._check_media(prompt, params[index])
                    self._choose_adapter(prompt)
                if prompt.images:
                    assert self.images is not None
                    self.images.place(prompt)
                self._bound(prompt, params[index])
            self._encode(prompts, add_special_tokens)
            for index, name in enumerate(request_ids):
                own, grammar_bytes = finished[id(params[index])]
                made = self._make(name, prompts[index], own, priorities[index])
                for child in made.children:
                    child.grammar_bytes = grammar_bytes
                made.stream, made.arrival_time = stream, arrival
                requests.append(made)
            tokenized = time.monotonic()
            for made in requests:
                made.tokenized_time = tokenized
        except RequestError as error:
            with naming_prompt(index, len(prompts)):
                raise error from None
        return requests

    def close(self) -> None:
        """Give back what looks at grammars."""
        self._forms.close()

    def _make(self, request_id: str, prompt: ParsedPrompt, params: SamplingParams, priority: int) -> TextRequest:
        token_ids: IntArray = prompt.token_ids
        if not token_ids.size or prompt.text == "":
            raise RequestError("the prompt is empty: give at least one token", "prompt")
        if params.truncate_prompt_tokens is not None:
            token_ids = prompt.cut(token_ids, self._kept(params))
        embeds = None if prompt.embeds is None else self._embeds(prompt, token_ids)
        children = self._children(request_id, token_ids, params, priority, prompt.cache_salt)
        for child in children:
            child.prompt_embeds, child.lora_request = embeds, prompt.lora_request
        self._limits.check_prompt(token_ids, embeds)
        self._limits.check_sampling(children[0])
        # Only now: ids that are too large must not wrap around before they are looked at.
        token_ids = token_ids.astype(np.int32)
        media = None
        if prompt.items:
            assert self.images is not None
            media = self.images.media(prompt, token_ids)
        elif prompt.sound:
            media, token_ids = self._sound(prompt, token_ids)
        engine = self._limits.engine
        if media is not None or (engine is not None and engine.sound is not None):
            self._limits.check_media(media)
        for child in children:
            child.prompt_token_ids, child.media = token_ids, media
        if embeds is not None:
            token_ids = np.maximum(token_ids, 0)
        return TextRequest(
            request_id=request_id,
            prompt=prompt.text,
            prompt_token_ids=token_ids.tolist(),
            params=params,
            children=children,
            stops=StopAutomaton(params.stop_strings) if params.stop else None,
        )

    def _check_media(self, prompt: ParsedPrompt, params: SamplingParams) -> None:
        if prompt.images and self.images is None:
            raise RequestError("this model accepts text only", MEDIA)
        if prompt.sound and self.sound is None:
            raise RequestError("this model takes no sound", MEDIA)
        if prompt.images and prompt.sound:
            raise RequestError("a prompt may have images or sound, not both", MEDIA)
        if params.truncate_prompt_tokens is not None:
            what = "images" if prompt.images else "sound"
            raise RequestError(
                f"truncate_prompt_tokens cannot be combined with {what}, which cannot be cut; omit it",
                "truncate_prompt_tokens",
            )

    def _choose_adapter(self, prompt: ParsedPrompt) -> None:
        """Give a prompt that names no adapter that of its media, if they have one. Raises `RequestError`."""
        engine = self._limits.engine
        if prompt.lora_request is None and engine is not None and engine.default_adapters:
            media = [AUDIO] * bool(prompt.sound)
            if self.images is not None:
                media += self.images.media_of(prompt)
            prompt.lora_request = default_adapter(engine.default_adapters, media)

    def _sound(self, prompt: ParsedPrompt, token_ids: IntArray) -> tuple[PromptMedia, IntArray]:
        """The sound of a prompt, and its tokens with all that stand for rows of it."""
        assert self.sound is not None
        media, token_ids = self.sound.media(prompt.sound, token_ids)
        self._limits.check_prompt(token_ids)
        return media, token_ids

    def _embeds(self, prompt: ParsedPrompt, token_ids: IntArray) -> PromptEmbeds | None:
        """The embeddings of a prompt, as far as they are not cut off."""
        left = int(np.count_nonzero(token_ids == NO_TOKEN))
        assert self._limits.engine is not None
        rows = prompt.cut(prompt.embeds, left)
        return PromptEmbeds.of(rows, token_ids, self._limits.engine.block_size) if left else None

    def _kept(self, params: SamplingParams) -> int:
        """Most tokens of a prompt that may be cut. One place is left for the first generated token."""
        given = params.truncate_prompt_tokens
        return given if given is not None and given > 0 else self._limits.max_model_len - 1

    def _bound(self, prompt: ParsedPrompt, params: SamplingParams) -> None:
        """Refuse a prompt that is surely too long, or cut off what is surely not needed, before work is done on it."""
        cut = params.truncate_prompt_tokens is not None
        most = self._kept(params)
        if prompt.embeds is not None:
            # Most requests have none: starts are faster without the import.
            from jaxllm.serving.text.embeds import place_embeds

            place_embeds(prompt, self._limits, most if cut else None)
            return
        if prompt.token_ids is not None:
            if isinstance(prompt.token_ids, (list, tuple)) and len(prompt.token_ids) > most:
                if not cut:
                    raise self._limits.too_long(f"{len(prompt.token_ids)} tokens")
                prompt.token_ids = prompt.cut(prompt.token_ids, most)
            prompt.token_ids = as_token_ids(prompt.token_ids)
            return
        check_text(prompt.text)
        assert prompt.text is not None
        assert self._tokenizer is not None
        if len(prompt.text) > SHORT:
            length = self._tokenizer.length
            if not cut and length.exceeds(prompt.text, most):
                raise self._limits.too_long(f"{len(prompt.text)} characters")
            # A chat's prompt is more than its text (`ChatPrompt`), and is encoded as a whole.
            plain = type(prompt.text) is str
            if cut and plain and length.longest is not None and len(prompt.text) > 4 * most * length.longest:
                shorter = length.beginning if prompt.truncation_side == "right" else length.end
                prompt.part = shorter(prompt.text, most)

    def _encode(self, prompts: Sequence[ParsedPrompt], add_special_tokens: bool) -> None:
        """Fill in the token ids of prompts given as text."""
        waiting = [prompt for prompt in prompts if prompt.token_ids is None]
        for has_them in (False, True):
            some = [prompt for prompt in waiting if prompt.has_special_tokens == has_them]
            if not some:
                continue
            assert self._tokenizer is not None
            texts = [prompt.text or "" if prompt.part is None else prompt.part for prompt in some]
            encoded = self._tokenizer.encode(texts, add_special_tokens=add_special_tokens and not has_them)
            for prompt, token_ids in zip(some, encoded, strict=True):
                prompt.token_ids = np.asarray(token_ids, np.int32)

    def _finished(self, params: SamplingParams) -> tuple[SamplingParams, int]:
        """Parameters with bad words and prediction as token ids, and the bytes that their grammar takes, if known."""
        form = params.structured_outputs
        return self._with_prediction(self._with_bad_words(params)), 0 if form is None else self._forms.check(form)

    def _with_bad_words(self, params: SamplingParams) -> SamplingParams:
        if not params.bad_words:
            return params
        if self._tokenizer is None:
            raise RequestError("bad_words requires a tokenizer", "bad_words")
        # A word at the start of the text and one inside it are different tokens.
        texts = [prefix + word.lstrip() for word in params.bad_words for prefix in ("", " ")]
        for text in texts:
            check_text(text, "bad_words")
        encoded = self._tokenizer.encode(texts, add_special_tokens=False)
        unique = {tuple(token_ids): token_ids for token_ids in encoded if token_ids}
        return msgspec.structs.replace(params, bad_words_token_ids=list(unique.values()))

    def _with_prediction(self, params: SamplingParams) -> SamplingParams:
        text, engine = params.prediction, self._limits.engine
        if not text or self._tokenizer is None or engine is None or not engine.max_drafts:
            return params
        check_text(text, "prediction")
        # No output is longer: what is beyond that can predict nothing.
        part = text[: MOST_CHARACTERS_PER_TOKEN * self._limits.max_model_len]
        (encoded,) = self._tokenizer.encode([part], add_special_tokens=False)
        token_ids = np.array(encoded[: self._limits.max_model_len], np.int32)
        return msgspec.structs.replace(params, predicted_token_ids=token_ids.tobytes())

    def _children(
        self, request_id: str, token_ids: IntArray, params: SamplingParams, priority: int, salt: str | None
    ) -> list[Request]:
        """The sequences to generate: each has a seed of its own, and the prompt's pages are shared by the cache."""
        count = params.num_sequences
        single = count == 1
        children = []
        for index in range(count):
            own = params
            if not single:
                # What best_of ranks by.
                ranked = 0 if params.logprobs is None and count > params.n else params.logprobs
                seed = _child_seed(params.seed, index)
                own = msgspec.structs.replace(params, n=1, best_of=None, seed=seed, logprobs=ranked)
            if index and is_for_another(params):
                # Another engine goes on with the prompt: its pages are kept once.
                own = without_transfer(own)
            children.append(
                Request(
                    request_id=request_id if single else f"{request_id}-{index}",
                    prompt_token_ids=token_ids,
                    params=own,
                    priority=priority,
                    cache_salt=salt,
                    eos_token_ids=self._eos_token_ids,
                )
            )
        return children


def _child_seed(seed: int | None, index: int) -> int | None:
    """Seed of the `index`-th sequence: counted up within 64 bits, around -1, which would mean none."""
    if seed is None or index == 0:
        return seed
    following = (seed + index + 2**63) % 2**64 - 2**63
    return following if following != -1 else -(2**63) + index
