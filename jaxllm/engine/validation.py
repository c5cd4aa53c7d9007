"""Checks of a request against the model and the limits of an engine, before it is queued."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final, Self

import numpy as np

from jaxllm.config.engine_info import EngineInfo, ImageInfo, KVTransferInfo, SoundInfo
from jaxllm.config.kv_transfer import is_loopback
from jaxllm.errors import PromptTooLongError, RequestError, quoted
from jaxllm.media.grid_positions import are_together
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.kv_transfer import KEY as TRANSFER
from jaxllm.requests.kv_transfer import transfer_params
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.requests.media import FIELD as MEDIA
from jaxllm.requests.media import PromptMedia
from jaxllm.requests.prompt_embeds import FIELD, NO_TOKEN, PromptEmbeds
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.spans import longest_span
from jaxllm.structured.backend import DEFAULT_BACKEND

_TOKEN_FIELDS: Final = (
    "stop_token_ids", "allowed_token_ids", "logit_bias", "logprob_token_ids",
    "reasoning_end_token_ids", "reasoning_closing_token_ids",
)  # fmt: skip


def check_adapter(lora: LoRARequest | None, max_loras: int) -> None:
    """Raise `RequestError` for an adapter where the engine has no slots for any."""
    if lora is not None and not max_loras:
        raise RequestError(
            f"lora_request: this engine takes no adapters, asked for {quoted(lora.lora_name)}; start it with "
            "--enable-lora",
            "lora_request",
        )


@dataclass(frozen=True)
class RequestLimits:
    """Limits on the requests of an engine."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    engine: EngineInfo | None = None
    """For what depends on more than that: searches for the best sequences."""

    @classmethod
    def of(cls, info: EngineInfo) -> Self:
        """The limits of this engine."""
        return cls(info.vocab_size, info.max_model_len, info.max_logprobs, info)

    @property
    def structured_outputs_backend(self) -> str:
        """The backend that enforces grammars."""
        return self.engine.structured_outputs_backend if self.engine is not None else DEFAULT_BACKEND

    def check(self, request: Request) -> None:
        """Raise `RequestError`, naming the parameter, unless the engine can serve the request."""
        self.check_adapter(request.lora_request)
        self.check_prompt(request.prompt_token_ids, request.prompt_embeds)
        if request.media is not None or (self.engine is not None and self.engine.sound is not None):
            self.check_media(request.media)
        self.check_logprobs(request.params)
        self.check_sampling(request)

    def check_adapter(self, lora: LoRARequest | None) -> None:
        """See the function `check_adapter`."""
        check_adapter(lora, 0 if self.engine is None else self.engine.max_loras)

    def check_prompt(self, token_ids: np.ndarray, embeds: PromptEmbeds | None = None) -> None:
        """Raise `RequestError` for a prompt that is empty, too long, or not of this vocabulary or width."""
        if len(token_ids) == 0:
            raise RequestError("the prompt is empty: it must contain at least one token", "prompt")
        if len(token_ids) >= self.max_model_len:
            raise self.too_long(f"{len(token_ids)} tokens")
        known = token_ids
        if embeds is not None:
            self.check_width(embeds.rows.shape[1])
            known = np.where(token_ids == NO_TOKEN, 0, token_ids)
        if ((known < 0) | (known >= self.vocab_size)).any():
            raise unknown_token(known, self.vocab_size)

    def check_media(self, media: PromptMedia | None) -> None:
        """Raise `RequestError` for images where the engine takes none, and for more of them than it holds.

        Also where a model that hears is given no sound, or not as it takes it.
        """
        sound = None if self.engine is None else self.engine.sound
        images = None if self.engine is None else self.engine.images
        if sound is not None and sound.token_id is None:
            check_sound(media, sound)
        elif media is not None:
            if sound is not None and (images is None or media.has_sound):
                check_sound(media, sound)
            else:
                check_images(media, images)

    def check_width(self, width: int | None = None) -> None:
        """Raise `RequestError` unless prompts may be embeddings, of this width if it is known."""
        size = None if self.engine is None else self.engine.embedding_size
        if size is None:
            raise RequestError("prompt_embeds: disabled on this engine; start it with --enable-prompt-embeds", FIELD)
        if width not in (None, size):
            raise RequestError(
                f"prompt_embeds: rows have {width} values, but the model's embeddings have {size}", FIELD
            )

    def check_logprobs(self, params: SamplingParams) -> None:
        """Raise `RequestError` for more alternatives per token than the engine returns."""
        if params.logprobs is not None:
            self._check_logprobs("logprobs", params.logprobs)
        if params.prompt_logprobs is not None:
            self._check_logprobs("prompt_logprobs", params.prompt_logprobs)

    def check_sampling(self, request: Request) -> None:
        """Raise `RequestError` for tokens that are not of this vocabulary, and searches that do not fit."""
        params = request.params
        if request.prompt_embeds is not None and params.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs cannot be combined with prompt_embeds, which have no tokens; omit it",
                "prompt_logprobs",
            )
        if params.extra_args is not None and TRANSFER in params.extra_args:
            check_transfer(params, None if self.engine is None else self.engine.kv_transfer)
        for name in _TOKEN_FIELDS:
            token_ids = getattr(params, name)
            if token_ids:
                self._check_tokens(name, token_ids)
        for word in params.bad_words_token_ids or ():
            self._check_tokens("bad_words", word)
        if self.engine is not None and params.beam_search is not None:
            num_ends = len(params.end_token_ids(request.eos_token_ids))
            check_beam_search(
                params.beam_search, len(request.prompt_token_ids), params.max_tokens, num_ends, self.engine
            )

    def too_long(self, length: str) -> PromptTooLongError:
        """The error for a prompt of this length."""
        return PromptTooLongError(
            f"the prompt has {length}, but max_model_len={self.max_model_len} allows at most {self.max_model_len - 1} "
            "tokens, which leaves room for one output token; shorten the prompt or set truncate_prompt_tokens",
            "prompt",
        )

    def _check_logprobs(self, name: str, value: int) -> None:
        if (self.vocab_size if value == -1 else value) > self.max_logprobs:
            allowed = (
                "start the engine with max_logprobs=-1 to allow it"
                if value == -1
                else "start the engine with a larger max_logprobs to allow more"
            )
            raise RequestError(f"{name}={value}: must be at most {self.max_logprobs}; {allowed}", name)

    def _check_tokens(self, name: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(f"{name}: token ID {token_id} is not between 0 and {self.vocab_size - 1}", name)


def check_transfer(params: SamplingParams, info: KVTransferInfo | None) -> None:
    """Raise `RequestError` for a transfer that an engine does not make."""
    asked = transfer_params(params)
    if asked is None:
        return
    if info is None:
        raise RequestError(
            f"{TRANSFER}: this server exchanges no pages with others; start it with --kv-transfer-config, or omit "
            f"{TRANSFER}",
            TRANSFER,
        )
    if asked.do_remote_decode:
        if info.role == "kv_consumer":
            raise RequestError(
                f"{TRANSFER}: do_remote_decode: this server is a kv_consumer; ask a kv_producer", TRANSFER
            )
        if params.beam_search is not None:
            raise RequestError(f"{TRANSFER}: do_remote_decode cannot be combined with beam search", TRANSFER)
        return
    if info.role == "kv_producer":
        raise RequestError(f"{TRANSFER}: do_remote_prefill: this server is a kv_producer; ask a kv_consumer", TRANSFER)
    host = asked.remote_host
    if host is None:
        return
    if not info.has_secret and not is_loopback(host):
        raise RequestError(
            f"{TRANSFER}: remote_host={quoted(host)} is another machine: start both servers with "
            "kv_connector_extra_config.secret_file",
            TRANSFER,
        )
    if info.peers and not any(_is_in(host, each) for each in info.peers):
        raise RequestError(
            f"{TRANSFER}: remote_host={quoted(host)} is none of kv_connector_extra_config.peers", TRANSFER
        )


def _is_in(host: str, peer: str) -> bool:
    """Whether a host is this one, or in this network."""
    try:
        return ip_address(host) in ip_network(peer, strict=False)
    except ValueError:
        return host == peer


def check_images(media: PromptMedia, images: ImageInfo | None) -> None:
    """Raise `RequestError` for images where an engine takes none (None), or not as many, as large or as these stand."""
    if images is None or any(item.features is not None for item in media.items):
        takes = "text only" if images is None else "images, but no sound"
        raise RequestError(f"this model accepts {takes}", MEDIA)
    for item in media.items:
        for crop in item.crops:
            check_patches(len(crop.patches), images)
    if images.has_grid_positions and not are_together(media):
        raise RequestError("the tokens that stand for an image must be next to each other", MEDIA)
    # Each image is there once, however often it occurs.
    num_rows = sum({item.digest: item.num_kept for item in media.items}.values())
    if num_rows > images.most_rows:
        raise RequestError(
            f"the images take {num_rows} tokens, but the engine holds at most {images.most_rows} of a request "
            "(media_pool_tokens); give fewer or smaller images",
            MEDIA,
        )
    if (span := longest_span(media.spans)) > max(images.longest_span, 0):
        what = "a prompt with images" if images.spans == "prompt" else "images without text between them"
        raise RequestError(
            f"{what} of {span} tokens, but the engine takes {images.longest_span} at most: all are computed in one "
            "step (max_num_batched_tokens, less one for each other of max_num_seqs), within the model's window",
            MEDIA,
        )


def check_sound(media: PromptMedia | None, sound: SoundInfo) -> None:
    """Raise `RequestError` unless a request has windows of sound as the model takes them."""
    size = f"{sound.num_bins} x {sound.num_frames}"
    if media is None:
        raise RequestError(
            f"this model needs sound: give {MEDIA} with log-mel features float32 [{size}] as 'audio'", MEDIA
        )
    windows = [item.features for item in media.items if item.features is not None]
    if len(windows) != len(media.items):
        raise RequestError("a prompt with sound may have text besides it, and no images", MEDIA)
    if sound.token_id is None and len(windows) != 1:
        raise RequestError("this model takes one window of sound per prompt", MEDIA)
    for window in windows:
        if window.dtype != np.float32 or window.shape != (sound.num_bins, sound.num_frames):
            given = " x ".join(map(str, window.shape))
            raise RequestError(
                f"sound: expected log-mel features float32 [{size}], got {window.dtype} [{given}]", MEDIA
            )
        if not np.isfinite(window).all():
            raise RequestError("sound: log-mel features must be finite", MEDIA)
    if sound.token_id is not None:
        _check_sound_rows(media, sound)


def _check_sound_rows(media: PromptMedia, sound: SoundInfo) -> None:
    for item in media.items:
        most = sound.num_frames - sound.context
        rows = sound.rows_of(item.num_frames) if item.num_frames <= most else 0
        if rows < 1 or item.num_kept != rows:
            raise RequestError(
                f"sound of {item.num_frames} frames: a window has from {sound.least_frames} to "
                f"{most}, and a row for every {sound.frames_per_row}",
                MEDIA,
            )
    total = sum({item.digest: item.num_kept for item in media.items}.values())
    if total > sound.most_rows:
        raise RequestError(
            f"the sound takes {total} tokens, but the engine holds at most {sound.most_rows} of a request "
            "(media_pool_tokens); give less of it",
            MEDIA,
        )


def check_patches(num_patches: int, images: ImageInfo) -> None:
    """Raise `RequestError` for an image, or a part of one that is seen alone, that is larger than the engine takes."""
    if num_patches > images.most_patches:
        raise RequestError(
            f"an image of {num_patches} patches is too large: the engine takes at most {images.most_patches} "
            "(max_image_patches); give a smaller image",
            MEDIA,
        )


def unknown_token(token_ids: np.ndarray, vocab_size: int) -> RequestError:
    """The error for a prompt with a token id that is not in the vocabulary."""
    place = int(np.argmax((token_ids < 0) | (token_ids >= vocab_size)))
    return RequestError(
        f"prompt token {place} is {int(token_ids[place])}: token IDs must be between 0 and {vocab_size - 1}", "prompt"
    )


def check_beam_search(
    options: BeamOptions, prompt_length: int, max_tokens: int | None, num_ends: int, info: EngineInfo
) -> None:
    """Raise `RequestError` unless this engine can run a beam search.

    `num_ends` tokens complete a hypothesis, which has at most `max_tokens` (None: up to the model's length).
    """
    width = options.width
    if info.logprobs_mode != "raw_logprobs":
        raise _wrong(width, f"the engine was started with logprobs_mode={info.logprobs_mode!r}, not raw_logprobs")
    places = ((info.max_num_seqs, "max_num_seqs"), (info.max_num_batched_tokens, "max_num_batched_tokens"))
    for limit, name in places:
        if width > limit:
            raise _wrong(width, f"each beam needs a row of the batch, which has {limit} ({name})")
    candidates = width + num_ends
    if candidates > info.vocab_size:
        raise _wrong(width, f"the vocabulary has {info.vocab_size} tokens, and {num_ends} of them end a text")
    if candidates > info.max_logprobs:
        raise _wrong(
            width,
            f"the search needs the {candidates} most likely tokens at each position, one for each beam and for each "
            f"of {num_ends} end tokens, but the engine allows max_logprobs={info.max_logprobs}",
        )
    _check_pages(width, prompt_length, max_tokens, info)


def _check_pages(width: int, prompt_length: int, max_tokens: int | None, info: EngineInfo) -> None:
    """The beams share the full pages of the prompt; in the worst case no others."""
    longest = info.max_model_len if max_tokens is None else min(info.max_model_len, prompt_length + max_tokens)
    needed = info.cache_groups.most_pages(longest, width, prompt_length)
    if needed > info.num_pages - 1:
        raise _wrong(
            width,
            f"beams of {longest} tokens need up to {needed} pages of the KV cache, which has "
            f"{info.num_pages - 1}; ask for fewer beams or fewer tokens",
        )


def _wrong(width: int, reason: str) -> RequestError:
    return RequestError(f"beam_width={width}: {reason}", "beam_width")
