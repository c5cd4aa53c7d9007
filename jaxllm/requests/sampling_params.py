"""How one request's tokens are chosen and when it stops: vLLM's names, defaults and meanings."""

from collections.abc import Iterable, Mapping, Sized
from enum import Enum
from typing import Any, ClassVar, Final, Self

import msgspec
import numpy as np

from jaxllm.errors import RequestError
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.checked_names import CheckedNames, repr_of_changes
from jaxllm.requests.repetition import RepetitionDetectionParams
from jaxllm.requests.sampling_limits import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_EXTRA_BYTES,
    MAX_EXTRA_BYTES_OF_ALL,
    MAX_LISTED_TOKENS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_SEQUENCES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
)
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.requests.value_checks import Check, boolean, check_at_most, integer, list_of, number, optional, text, wrong

GREEDY_BELOW: Final = 1e-5
"""Temperatures below this mean greedy decoding."""

INTERNAL_FIELDS: Final = (
    "beam_search",
    "bad_words_token_ids",
    "reasoning_end_token_ids",
    "output_kind",
    "extra_args",
    "reasoning_closing_token_ids",
    "predicted_token_ids",
)
"""Fields of `SamplingParams` that no flag and no request has: they are made of others, or for Python alone."""


class RequestOutputKind(Enum):
    """The contents of each result of a request: all so far, what is new, or nothing before all is there."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


def _structured(form: str) -> str:
    return f"use structured_outputs=StructuredOutputsParams({form}=...)"


class _Names(CheckedNames):
    noun: ClassVar[str] = "sampling parameter"
    synonyms: ClassVar[dict[str, str]] = {"guided_decoding": "structured_outputs"}
    reasons: ClassVar[dict[str, str]] = {
        "logits_processors": "give classes to LLM(logits_processors=[...]), and extra_args to requests",
        **{f"guided_{form}": _structured(form) for form in ("json", "regex", "choice", "grammar")},
        "response_format": _structured("json"),
        "do_sample": "temperature=0 takes the most likely token, a higher temperature samples",
        "max_new_tokens": "use max_tokens",
        "num_return_sequences": "use n",
        "flat_logprobs": "logprobs are always a dictionary per token",
    }
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "flat_logprobs": (False,),
        "logits_processors": (None, [], ()),
        "output_text_buffer_length": (0,),
        "prompt_logprob_start": (None, 0),
        "prompt_logprob_token_ids": (None,),
        "routed_experts_prompt_start": (0,),
        "skip_clone": (False, True),
        "trace_decode_token_ids": (None,),
        "use_beam_search": (False,),
        "watermarking": (None, False),
    }


class SamplingParams(msgspec.Struct, metaclass=_Names, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Parameters of one request.

    Every value is checked when the object is made; a wrong one raises `RequestError` with the name of the field in
    `parameter`. After changing a field in place, call `validate()`.
    """

    n: int = 1
    """Number of sequences to return. With greedy decoding all are equal."""
    best_of: int | None = None
    """Number of sequences to generate; the `n` most likely are returned. None: `n`."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that occurs in the output, in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for every occurrence in the output, in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output; greater than 0."""
    temperature: float = 1.0
    """Divides the logits; 0 means greedy decoding."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose total probability reaches this value, in (0, 1]."""
    top_k: int = 0
    """Keep this many of the most likely tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this likely relative to the most likely one, in [0, 1]."""
    seed: int | None = None
    """Equal seeds give equal tokens, whatever else runs. 64-bit signed; None or -1: the engine chooses."""
    stop: str | list[str] | None = None
    """Strings that end the output; kept as a list once checked."""
    stop_token_ids: list[int] | None = None
    """Tokens that end the output, in addition to the model's end tokens."""
    bad_words: list[str] | None = None
    """Strings that must not be generated."""
    include_stop_str_in_output: bool = False
    """Keep the stop string in the text."""
    ignore_eos: bool = False
    """Continue after the model's end token."""
    max_tokens: int | None = 16
    """Maximum number of tokens to generate; None: up to the model's length."""
    min_tokens: int = 0
    """End and stop tokens are forbidden until this many tokens are generated."""
    logprobs: int | None = None
    """Number of alternatives to return per output token, in addition to the chosen one; -1: the whole vocabulary."""
    prompt_logprobs: int | None = None
    """Number of alternatives to return per prompt token, as `logprobs` for the output."""
    logprob_token_ids: list[int] | None = None
    """Tokens, at most 128, whose log-probabilities are returned in addition to the chosen one's at each position of the
    output, in this order and without ranks. They replace the most likely tokens: `logprobs` becomes 0."""
    detokenize: bool = True
    """Turn the tokens into text."""
    skip_special_tokens: bool = True
    """Omit special tokens from the text."""
    spaces_between_special_tokens: bool = True
    """Put spaces between special tokens in the text."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many last tokens of the prompt; -1: as many as the model allows."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these tokens; values are clipped to [-100, 100]."""
    allowed_token_ids: list[int] | None = None
    """Only these tokens may be generated."""
    structured_outputs: StructuredOutputsParams | None = None
    """Constraint on the output, as an object with one field such as regex or json; see docs/structured_outputs.md."""
    thinking_token_budget: int | None = None
    """Maximum number of reasoning tokens, after which reasoning ends; only for models with a known end of reasoning."""
    repetition_detection: RepetitionDetectionParams | None = None
    """End an output that repeats itself, with the finish reason "repetition": a pattern of `min_pattern_size` to
    `max_pattern_size` tokens, `min_count` times in a row."""
    stream_interval: int | None = None
    """Number of tokens per chunk of a stream, after the first; the engine's value is the default and the minimum."""
    skip_reading_prefix_cache: bool | None = None
    """Compute the whole prompt, even if its beginning is cached; later requests can still reuse it."""
    speculative_tokens: int | None = None
    """Most drafts that a step checks for this request, where the engine makes any; 0: none. They change no token."""
    prediction: str | None = None
    """Text that the output may repeat in part: drafts are taken from it, where the engine makes any."""
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    """Content of each result of `AsyncLLM.generate` or `LLMEngine.step`. `LLM` and servers ignore it."""
    extra_args: dict[str, Any] | None = None
    """JSON values passed along with the request for custom extensions, at most 64 KiB."""
    beam_search: BeamOptions | None = None
    """Internal: what `LLM.beam_search` and `use_beam_search` ask for."""
    bad_words_token_ids: list[list[int]] | None = None
    """Internal: `bad_words` as token ids, filled in where a tokenizer is at hand."""
    reasoning_end_token_ids: list[int] | None = None
    """Internal: the output begins inside reasoning, which this sequence of tokens ends. `structured_outputs` apply to
    what follows it; with `thinking_token_budget` it is forced when so many tokens have been generated."""
    reasoning_closing_token_ids: list[int] | None = None
    """Internal: what is forced then instead, which ends the reasoning too."""
    predicted_token_ids: bytes | None = None
    """Internal: `prediction` as token ids, filled in where a tokenizer is at hand and drafts are made: int32, as bytes,
    since as integers many of them would take 20 ms to check."""

    def __post_init__(self) -> None:
        self.validate()

    def __repr__(self) -> str:
        return repr_of_changes(self)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def uses_penalties(self) -> bool:
        """Whether the tokens seen so far change the logits."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    @property
    def wants_logprobs(self) -> bool:
        """Whether the sampled tokens' log-probabilities are returned, or decide which sequences are."""
        return self.logprobs is not None or self.num_sequences > self.n or self.beam_search is not None

    @property
    def uses_filters(self) -> bool:
        """Whether unlikely tokens are cut off before drawing."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @property
    def uses_bias(self) -> bool:
        """Whether single tokens are pushed or forbidden at some point of the request."""
        features = (self.logit_bias, self.allowed_token_ids, self.bad_words_token_ids)
        return self.min_tokens > 0 or any(feature is not None for feature in features)

    @property
    def uses_grammar(self) -> bool:
        """Whether the engine decides at every token which ones may follow."""
        if self.structured_outputs is not None:
            return True
        return self.thinking_token_budget is not None and self.reasoning_end_token_ids is not None

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list, empty when there are none."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def num_sequences(self) -> int:
        """Sequences to generate: `best_of`, or else `n`."""
        return self.n if self.best_of is None else self.best_of

    @property
    def num_searched(self) -> int:
        """Sequences that a search for the best follows; 0 without one. Nobody counts the tokens that they take."""
        return 0 if self.beam_search is None else self.beam_search.width

    @property
    def is_streamable(self) -> bool:
        """Whether it is known before the end what is returned."""
        return self.beam_search is None and self.best_of in (None, self.n)

    def check_streamable(self) -> None:
        """Raise `RequestError` where it is known only at the end what is returned."""
        if self.beam_search is not None:
            raise RequestError("beam search cannot be streamed: the best beams are known only at the end", "stream")
        if self.best_of is not None and self.best_of > self.n:
            message = f"best_of={self.best_of} cannot be streamed: the best {self.n} are known only at the end"
            raise RequestError(message, "best_of")

    def end_token_ids(self, eos_token_ids: Iterable[int]) -> frozenset[int]:
        """Tokens that end the output; `eos_token_ids` are the model's."""
        ends = frozenset(self.stop_token_ids or ())
        return ends if self.ignore_eos else ends.union(eos_token_ids)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Parameters from a mapping, as read from JSON. Raises `RequestError` for unknown names and wrong values."""
        made: Self = cls(**values)
        return made

    @classmethod
    def from_optional(cls, **values: Any) -> Self:
        """Parameters with the defaults in place of those that are None."""
        return cls.from_dict({name: value for name, value in values.items() if value is not None})

    def clone(self) -> Self:
        """A copy that shares nothing with this one that anybody would change."""
        copy: Self = msgspec.structs.replace(self)
        return copy

    def validate(self) -> None:
        """Normalise every field in place. Raises `RequestError` for the first that is wrong."""
        for name, check in _CHECKS.items():
            setattr(self, name, check(name, getattr(self, name)))
        _check_together(self)


def _stop(name: str, value: Any) -> Any:
    texts = list_of(text, "a string or a list of strings")(name, [value] if isinstance(value, str) else value)
    check_at_most(name, len(texts), MAX_STOPS, "different strings")
    check_at_most(name, sum(map(len, texts)), MAX_STOP_CHARACTERS, "characters in total")
    return texts


def _bad_words(name: str, value: Any) -> list[str]:
    texts: list[str] = list_of(text, "a list of strings")(name, value)
    check_at_most(name, len(texts), MAX_BAD_WORDS, "different strings")
    check_at_most(name, sum(map(len, texts)), MAX_BAD_WORD_CHARACTERS, "characters in total")
    return texts


def _bad_words_token_ids(name: str, value: Any) -> list[list[int]]:
    """What is wrong here came from `bad_words`, which is what its sender knows."""
    words: list[list[int]] = list_of(_word_ids, "a list of lists of token ids", unique=False)(name, value)
    check_at_most("bad_words", len(words), 2 * MAX_BAD_WORDS, "sequences of tokens")
    check_at_most(
        "bad_words", sum(map(len, words)), MAX_BAD_WORD_TOKENS, "tokens in total, with and without a leading space"
    )
    return words


def _packed_token_ids(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes) or len(value) % 4 or (np.frombuffer(value, np.int32) < 0).any():
        raise wrong(name, value, "token ids as bytes of an int32 array")
    return value


def _stop_token_ids(name: str, value: Any) -> list[int]:
    token_ids: list[int] = _token_ids(name, value)
    check_at_most(name, len(token_ids), MAX_STOP_TOKEN_IDS, "different token ids")
    return token_ids


def _logprob_token_ids(name: str, value: Any) -> list[int]:
    token_ids: list[int] = _token_ids(name, value)
    if not token_ids:
        raise wrong(name, [], "a non-empty list of token ids, or None")
    check_at_most(name, len(token_ids), MAX_LOGPROB_TOKEN_IDS, "different token ids")
    return token_ids


_MOST_DIGITS: Final = len(str(2**31))
"""Maximum number of digits of a token ID."""


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    """Token ids may be written as strings, as JSON does."""
    if not isinstance(value, Mapping):
        raise wrong(name, value, "a mapping of token ids to numbers")
    biases = {}
    for token, bias in value.items():
        # Python takes time, and then an error of its own, for thousands of digits.
        digits = isinstance(token, str) and len(token) <= _MOST_DIGITS and token.isascii() and token.isdigit()
        token_id = _token_id(name, int(token) if digits else token)
        biases[token_id] = min(
            100.0, max(-100.0, number("a finite number for each token id", lambda x: True)(name, bias))
        )
    return biases


def _beam_search(name: str, value: Any) -> BeamOptions:
    if not isinstance(value, BeamOptions):
        raise wrong(name, value, "omitted: use LLM.beam_search or use_beam_search instead")
    return value


def _output_kind(name: str, value: Any) -> RequestOutputKind:
    if not isinstance(value, RequestOutputKind):
        raise wrong(name, value, f"one of {', '.join(map(str, RequestOutputKind))}")
    return value


def _extra_args(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise wrong(name, value, "a dictionary with strings as keys")
    check_at_most(name, _encoded_size(name, value), MAX_EXTRA_BYTES, "bytes")
    return dict(value)


def _encoded_size(name: str, value: Mapping[str, Any]) -> int:
    try:
        return len(msgspec.msgpack.encode(value))
    except RecursionError:
        raise RequestError(f"{name}: values are nested too deeply", name) from None
    except (TypeError, ValueError, OverflowError):
        raise wrong(name, value, "a dictionary of JSON values") from None


_token_id = integer("token ids: integers of at least 0", 0, 2**31 - 1)
_token_ids = list_of(_token_id, "a list of token ids")
_word_ids = list_of(_token_id, "lists of token ids", unique=False)
_count = integer(f"an integer from 1 to {MAX_SEQUENCES}", 1, MAX_SEQUENCES)
_alternatives = optional(integer("an integer of at least 0, -1 for the whole vocabulary, or None", -1))
_penalty = number("a number from -2 to 2", lambda x: -2.0 <= x <= 2.0)

_CHECKS: Final[dict[str, Check]] = {
    "n": _count,
    "best_of": optional(_count),
    "presence_penalty": _penalty,
    "frequency_penalty": _penalty,
    "repetition_penalty": number("a finite number greater than 0", lambda x: x > 0.0),
    "temperature": number("a finite number of at least 0", lambda x: x >= 0.0),
    "top_p": number("a number greater than 0 and at most 1", lambda x: 0.0 < x <= 1.0),
    "top_k": integer("an integer of at least 1, or 0 (or -1) to keep all tokens", -1),
    "min_p": number("a number from 0 to 1", lambda x: 0.0 <= x <= 1.0),
    "seed": optional(integer("a 64-bit signed integer or None", -(2**63))),
    "stop": optional(_stop),
    "stop_token_ids": optional(_stop_token_ids),
    "bad_words": optional(_bad_words),
    "include_stop_str_in_output": boolean,
    "ignore_eos": boolean,
    "max_tokens": optional(integer("an integer of at least 1, or None", 1)),
    "min_tokens": integer("an integer of at least 0", 0),
    "logprobs": _alternatives,
    "prompt_logprobs": _alternatives,
    "logprob_token_ids": optional(_logprob_token_ids),
    "detokenize": boolean,
    "skip_special_tokens": boolean,
    "spaces_between_special_tokens": boolean,
    "truncate_prompt_tokens": optional(integer("an integer of at least 1, -1 for the model's length, or None", -1)),
    "logit_bias": optional(_logit_bias),
    "allowed_token_ids": optional(_token_ids),
    "structured_outputs": optional(lambda name, value: StructuredOutputsParams.of(value)),
    "thinking_token_budget": optional(integer("an integer of at least 0, or None", 0)),
    "repetition_detection": optional(lambda name, value: RepetitionDetectionParams.of(value)),
    "stream_interval": optional(integer("an integer of at least 1, or None", 1)),
    "skip_reading_prefix_cache": optional(boolean),
    "speculative_tokens": optional(integer("an integer of at least 0, or None", 0)),
    "prediction": optional(text),
    "output_kind": _output_kind,
    "extra_args": optional(_extra_args),
    "beam_search": optional(_beam_search),
    "bad_words_token_ids": optional(_bad_words_token_ids),
    "reasoning_end_token_ids": optional(_word_ids),
    "reasoning_closing_token_ids": optional(_word_ids),
    "predicted_token_ids": optional(_packed_token_ids),
}


def _check_together(params: SamplingParams) -> None:
    """Raise `RequestError` for values that are right one by one but not together."""
    if params.seed == -1:
        params.seed = None
    if params.best_of is not None and params.best_of < params.n:
        raise wrong("best_of", params.best_of, f"at least n={params.n}")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise wrong("min_tokens", params.min_tokens, f"at most max_tokens={params.max_tokens}")
    if params.stop and not params.detokenize:
        raise wrong("stop", params.stop, "omitted with detokenize=False, since stop strings are matched against text")
    if params.truncate_prompt_tokens == 0:
        raise wrong("truncate_prompt_tokens", 0, "an integer of at least 1, -1 for the model's length, or None")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise wrong("allowed_token_ids", [], "a non-empty list of token ids, or None to allow all")
    _check_listed_tokens(
        params.num_sequences,
        params.allowed_token_ids, params.logit_bias, params.logprob_token_ids, params.stop_token_ids,
        *(params.bad_words_token_ids or ()),
    )  # fmt: skip
    if params.extra_args is not None and params.num_sequences > 1:
        size = params.num_sequences * _encoded_size("extra_args", params.extra_args)
        check_at_most(
            "extra_args", size, MAX_EXTRA_BYTES_OF_ALL, f"bytes in total over n={params.num_sequences} sequences"
        )
    if params.beam_search is not None and params.structured_outputs is not None:
        raise RequestError("structured_outputs cannot be combined with beam search", "structured_outputs")
    if params.reasoning_end_token_ids is not None and not params.reasoning_end_token_ids:
        raise wrong("reasoning_end_token_ids", [], "a non-empty list of token ids, or None")
    if params.beam_search is not None:
        params.beam_search.check_compatible(params)
    if params.logprob_token_ids is not None:
        params.logprobs = 0


def _check_listed_tokens(num_sequences: int, *lists: Sized | None) -> None:
    """Raise `RequestError` for lists of token ids that are too long for the number of sequences."""
    listed = sum(len(each) for each in lists if each is not None)
    if listed * num_sequences > MAX_LISTED_TOKENS:
        raise RequestError(
            f"n={num_sequences} with {listed} token IDs in allowed_token_ids, logit_bias, logprob_token_ids, "
            f"stop_token_ids and bad_words: n times their number must be at most {MAX_LISTED_TOKENS}",
            "n",
        )
